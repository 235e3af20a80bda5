"""The kit for authors of stores, and for tests of what uses one.

``assert_store`` checks that a store keeps `STORE_RULES`. It takes a function that opens the store, always at the same
place, which is empty at first:

>>> import functools, pathlib, tempfile
>>> from rxllm.durable import open_store
>>> from rxllm.durable.testing import assert_store
>>> folder = tempfile.TemporaryDirectory()
>>> assert_store(functools.partial(open_store, pathlib.Path(folder.name, "runs.db")), without={"processes"})
>>> folder.cleanup()

``Interposed`` is a store that calls functions before and after every call of another one.
"""

from __future__ import annotations

from rxllm.durable._assert_store import assert_store
from rxllm.durable._interposed import Interposed
from rxllm.durable._store_place import STORE_RULES

__all__ = ["STORE_RULES", "Interposed", "assert_store"]

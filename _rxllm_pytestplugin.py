"""rxllm's pytest plugin: the fixtures that ``rxllm.testing`` describes.

The module is outside the package, because pytest imports its plugins at every start, and a module inside the package
would import all of rxllm first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rxllm.testing.loopback import Loopback, Script

pytest.register_assert_rewrite("rxllm.testing")  # before its import, so that failures show both sides


@pytest.fixture
def loopback() -> Iterator[Callable[..., Loopback]]:
    """Return a function that starts a server: ``loopback(script)``, see `rxllm.testing.loopback.Loopback`.

    The servers stop at the end of the test, which then raises the errors of their scripts.
    """
    from rxllm.testing.loopback import Loopback, Reply

    with ExitStack() as servers:

        def start(script: Script | None = None, **options: Any) -> Loopback:
            return servers.enter_context(Loopback(Reply() if script is None else script, **options))

        yield start

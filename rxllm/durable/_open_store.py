"""open_store: the store that a path or an address names."""

from __future__ import annotations

import os
from typing import Any, cast

from rxllm.durable._sqlite import SQLiteStore
from rxllm.durable._store import Store
from rxllm.values.argument_checks import check, invalid_option

_METHODS = frozenset(name for name in vars(Store) if not name.startswith("_"))


def open_store(store: str | os.PathLike[str] | Store) -> Store:
    """Return the store in a SQLite file, for a path, in Redis, for ``"redis://..."``, or `store` itself.

    It connects when it is used first. Raises ``ValidationError("invalid_option")`` for anything else, and
    ``EngineError("missing_dependency")`` for Redis without ``rxllm[redis]``.
    """
    if isinstance(store, str) and store.startswith(("redis://", "rediss://", "unix://")):
        from rxllm.durable._redis import RedisStore  # redis-py is an extra

        return RedisStore(store)
    if isinstance(store, str | os.PathLike):
        path = os.fspath(store)
        if "://" in path:  # it may have a password
            raise invalid_option("store", 'must be a path, "redis://..." or a Store, not another kind of address')
        check("store", path, bool(path) and not path.startswith(":memory:"), "the path of a file")
        return SQLiteStore(path)
    is_store = not isinstance(store, type) and all(callable(getattr(store, name, None)) for name in _METHODS)
    check("store", store, is_store, 'a path, "redis://..." or a Store')
    return cast(Any, store)

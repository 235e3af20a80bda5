"""A test kit for stores and code that uses them.

Pass ``assert_store`` a function that opens the same store on every call. The store must be empty at first:

>>> import functools, pathlib, tempfile
>>> from rxllm.durable import open_store
>>> from rxllm.durable.testing import assert_store
>>> folder = tempfile.TemporaryDirectory()
>>> assert_store(functools.partial(open_store, pathlib.Path(folder.name, "runs.db")), without={"processes"})
>>> folder.cleanup()

``Interposed`` calls your own functions before and after each call to a store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from functools import wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from rxllm.durable._store import Store
from rxllm.durable._store_rules import MakeStore, Place, opened
from rxllm.durable._store_rules_at_once import CHECKS, STORE_RULES

__all__ = ["STORE_RULES", "Interposed", "assert_store"]

SECONDS = 60.0
"""The time limit for one rule, in seconds."""


def assert_store(make_store: MakeStore, *, only: Collection[str] | None = None, without: Collection[str] = ()) -> None:
    """Check that a store follows `STORE_RULES`.

    Every call to `make_store` must open the same store, which must be empty at first. For the rule ``processes``,
    `make_store` must be picklable, as a module-level function is. `only` names the rules to check, and `without` names
    the rules to skip. To make each rule a separate test::

        @pytest.mark.parametrize("rule", STORE_RULES)
        def test_the_contract(rule, tmp_path):
            assert_store(functools.partial(MyStore, tmp_path / "runs"), only=[rule])

    Raises ``AssertionError`` with a list of the broken rules. Raises ``ValueError`` for an unknown rule.
    """
    __tracebackhide__ = True
    if unknown := sorted({*(only or ()), *without} - {*STORE_RULES}):
        raise ValueError(f"there is no rule {', '.join(unknown)}; the rules are {', '.join(STORE_RULES)}")
    names = [name for name in STORE_RULES if name not in without and (only is None or name in only)]
    broken: list[str] = []
    cause: BaseException | None = None
    for name in names:
        try:
            _in_loop(lambda name=name: _check(make_store, name))
        except Exception as error:
            failure = str(error) if isinstance(error, AssertionError) else f"it raised {error!r}"
            broken.append(f"{name}: {STORE_RULES[name]}, but {failure}")
            cause = cause or error
    if broken:
        raise AssertionError("\n".join(broken)) from cause


async def _check(make_store: MakeStore, rule: str) -> None:
    async with asyncio.timeout(SECONDS), opened(make_store) as store:
        await CHECKS[rule](Place(make_store, store, uuid4().hex))


def _in_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``main()`` in an event loop on a new thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(asyncio.run(main()))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(2 * SECONDS)


# For type checkers, this base class has every method. At runtime, it has none.
_Base: Any = Any if TYPE_CHECKING else object

Hook = Callable[[str, tuple[Any, ...]], "Awaitable[object] | object"]


class Interposed(_Base):
    """A store that calls functions before and after each call.

    For each call, ``before(method, arguments)`` runs first, then the method of `store`, and then
    ``after(method, arguments)``. If `before` raises an error, the store is not called. If the store fails, `after` is
    not called. If `after` raises an error, the caller gets that error instead of the result. Both functions can be
    asynchronous. To kill the process after an append::

        store = Interposed(
            open_store("runs.db"),
            after=lambda method, arguments: os.kill(os.getpid(), signal.SIGKILL) if method == "append" else None,
        )
    """

    def __init__(self, store: Store, *, before: Hook | None = None, after: Hook | None = None) -> None:
        self._store, self._before, self._after = store, before, after

    def __repr__(self) -> str:
        return f"Interposed({self._store!r})"

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name.startswith("_") or not callable(method):
            return method
        asynchronous = cast("Callable[..., Awaitable[Any]]", method)

        @wraps(asynchronous)
        async def call(*args: Any, **kwargs: Any) -> Any:
            arguments = (*args, *kwargs.values())
            await _call(self._before, name, arguments)
            result = await asynchronous(*args, **kwargs)
            await _call(self._after, name, arguments)
            return result

        return call


async def _call(hook: Hook | None, method: str, arguments: tuple[Any, ...]) -> None:
    if hook is not None and isawaitable(pending := hook(method, arguments)):
        await pending

"""assert_store: whether a store keeps the Protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

from rxllm.durable import _store_rules, _store_rules_at_once
from rxllm.durable._store_place import CHECKS, STORE_RULES, Check, MakeStore, Place, opened

SECONDS = 60.0
"""How long the check of a rule may take."""

RULES = (_store_rules, _store_rules_at_once)
"""The modules that add rules to the table."""


def assert_store(make_store: MakeStore, *, only: Collection[str] | None = None, without: Collection[str] = ()) -> None:
    """Check that the stores that `make_store` opens keep all of `STORE_RULES`.

    `make_store` opens a store at the same place each time, which is empty at first. The rule ``processes`` calls it in
    other processes, so that it must be picklable: a function of a module, or a ``functools.partial`` of one. `only` and
    `without` are names of rules. To have each as a test of its own::

        @pytest.mark.parametrize("rule", STORE_RULES)
        def test_the_contract(rule, tmp_path):
            assert_store(functools.partial(MyStore, tmp_path / "runs"), only=[rule])

    Raises ``AssertionError``, which names every broken rule and says how, and ``ValueError`` for an unknown rule.
    """
    __tracebackhide__ = True
    if unknown := sorted({*(only or ()), *without} - {*STORE_RULES}):
        raise ValueError(f"there is no rule {', '.join(unknown)}; the rules are {', '.join(STORE_RULES)}")
    names = [name for name in STORE_RULES if name not in without and (only is None or name in only)]
    broken: list[str] = []
    cause: BaseException | None = None
    for name in names:
        try:
            _in_loop(lambda name=name: _check(make_store, CHECKS[name]))
        except Exception as error:
            how = str(error) if isinstance(error, AssertionError) else f"it raised {error!r}"
            broken.append(f"{name}: {STORE_RULES[name]}, but {how}")
            cause = cause or error
    if broken:
        raise AssertionError("\n".join(broken)) from cause


async def _check(make_store: MakeStore, check: Check) -> None:
    async with asyncio.timeout(SECONDS), opened(make_store) as store:
        await check(Place(make_store, store, uuid4().hex))


def _in_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``main()`` on a thread and a loop of its own, since the caller may have a loop."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(asyncio.run(main()))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(2 * SECONDS)

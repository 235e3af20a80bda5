"""What the rules of stores need: the table of them, the place of a store under test, and expectations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from rxllm import RunError
from rxllm.durable._store import Lease, Run, Store

T = TypeVar("T")

MakeStore = Callable[[], Store]
Check = Callable[["Place"], Coroutine[Any, Any, None]]

SOON = 3.0
"""How long news may take to those that wait, on a machine that has much to do."""

LONG = 60.0
BRIEF = 0.05

STORE_RULES: dict[str, str] = {}
"""The rules of `assert_store`: their names and sentences."""

CHECKS: dict[str, Check] = {}


class Place:
    """A store under test, with names of runs and factories that no other check has used."""

    def __init__(self, make_store: MakeStore, store: Store, prefix: str) -> None:
        self.make_store, self.store, self.prefix = make_store, store, prefix
        self.factory = f"factory {prefix}"

    def id(self, name: object = "run") -> str:
        return f"{self.prefix} {name}"

    async def create(self, name: object = "run") -> str:
        id = self.id(name)
        await self.store.create(Run(id, self.factory, b'{"n": 1}'))
        return id

    async def claim(self, name: object = "run", seconds: float = LONG) -> Lease:
        """A new run's lease."""
        id = await self.create(name)
        return present(await self.store.claim(id, "owner", seconds), "nobody could claim a new run")

    async def expired(self, name: object = "run") -> Lease:
        """A new run's lease, which has expired."""
        lease = await self.claim(name, BRIEF)
        await becomes(lambda: self.is_claimable(lease.run_id), "a run whose lease has expired is claimable")
        return lease

    async def lost(self, name: object = "run") -> tuple[Lease, Lease]:
        """A lease that another claim has replaced, and that of the claim."""
        lease = await self.expired(name)
        other = present(
            await self.store.claim(lease.run_id, "other", LONG), "nobody could claim a run whose lease has expired"
        )
        return lease, other

    async def is_claimable(self, id: str) -> bool:
        return id in await self.store.claimable([self.factory])


async def becomes(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not await condition():
        expect(time.monotonic() < deadline, f"it never came about that {what}")
        await asyncio.sleep(0.01)


async def refused(call: Awaitable[Any], reason: str, what: str) -> None:
    try:
        result = await call
    except RunError as error:
        expect(error.reason == reason, f"{what} raised {error!r}, not RunError({reason!r})")
    else:
        raise AssertionError(f"{what} returned {result!r}, and did not raise RunError({reason!r})")


def expect(condition: bool, why: str) -> None:
    if not condition:
        raise AssertionError(why)


def present(value: T | None, why: str) -> T:
    if value is None:
        raise AssertionError(why)
    return value


def expect_same(actual: object, expected: object, what: str) -> None:
    expect(actual == expected, f"{what} was {actual!r:.300}, not {expected!r:.300}")


def rule(name: str, sentence: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        STORE_RULES[name], CHECKS[name] = sentence, check
        return check

    return add


@asynccontextmanager
async def opened(make_store: MakeStore) -> AsyncGenerator[Store]:
    store = make_store()
    try:
        yield store
    finally:
        await store.close()


async def in_threads(mains: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Any]:
    """Run all on threads and loops of their own at the same time, and return their results."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(mains)) as threads:
        return await asyncio.gather(
            *(loop.run_in_executor(threads, lambda main=main: asyncio.run(main())) for main in mains)
        )

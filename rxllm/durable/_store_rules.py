"""The rules that stores must follow for runs, leases and the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from rxllm import RunError
from rxllm.durable._store import Ending, Lease, Record, Run, Status, Store

T = TypeVar("T")


MakeStore = Callable[[], Store]
Check = Callable[["Place"], Coroutine[Any, Any, None]]

SOON = 30.0
"""The number of seconds within which a store must wake a waiting call."""

LONG = 60.0
BRIEF = 0.05

STORE_RULES: dict[str, str] = {}
"""The rules that `assert_store` checks, by name."""

CHECKS: dict[str, Check] = {}


class Place:
    """The store under test, and names that no other check uses."""

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
        id = await self.create(name)
        return present(await self.store.claim(id, "owner", seconds), "a new run could not be claimed")

    async def expired(self, name: object = "run") -> Lease:
        lease = await self.claim(name, BRIEF)
        await becomes(lambda: self.is_claimable(lease.run_id), "a run is claimable once its lease has expired")
        return lease

    async def lost(self, name: object = "run") -> tuple[Lease, Lease]:
        lease, why = await self.expired(name), "a run whose lease has expired could not be claimed"
        return lease, present(await self.store.claim(lease.run_id, "other", LONG), why)

    async def is_claimable(self, id: str) -> bool:
        return id in await self.store.claimable([self.factory])


async def becomes(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not await condition():
        expect(time.monotonic() < deadline, f"after {SOON:g} s, this was still not true: {what}")
        await asyncio.sleep(0.01)


async def refused(call: Awaitable[Any], reason: str, what: str) -> None:
    try:
        result = await call
    except RunError as error:
        expect(error.reason == reason, f"{what} raised {error!r}, not RunError({reason!r})")
    else:
        raise AssertionError(f"{what} returned {result!r} instead of raising RunError({reason!r})")


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
    """Run each function in `mains` in its own thread, with its own event loop."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(mains)) as threads:
        return await asyncio.gather(
            *(loop.run_in_executor(threads, lambda main=main: asyncio.run(main())) for main in mains)
        )


# Runs


@rule(
    "create",
    "a new run has the given factory and input, a creation time set by the store, and no events; "
    "its id cannot be reused",
)
async def _create(place: Place) -> None:
    run = Run(place.id(), place.factory, b'"in\\u0000put"', "running", 7, 1.0, 2.0, True, b"1")
    await place.store.create(run)
    created = await place.store.load(run.id)
    expect_same(created, Run(run.id, run.factory, run.input, created_at=created.created_at), "the new run")
    expect(created.created_at > 1e9, f"the new run's created_at was {created.created_at}")
    await refused(place.store.create(run), "exists", "creating it again")


@rule("unknown", "for a run that does not exist, the store raises unknown_run and grants no lease")
async def _unknown(place: Place) -> None:
    id, store = place.id(), place.store
    for name, call in [("load", store.load), ("events", store.events), ("records", store.records)]:
        await refused(call(id), "unknown_run", name)
    await refused(store.cancel(id), "unknown_run", "cancel")
    expect_same(await store.claim(id, "owner", LONG), None, "its lease")
    await asyncio.wait_for(store.wait(id, 0, BRIEF), SOON)


@rule("runs", "runs() lists all runs, or those with a given status, newest first, up to a limit")
async def _runs(place: Place) -> None:
    store, waiting, running = place.store, await place.create(1), (await place.claim(2)).run_id
    lease = await place.claim(3)
    await store.append(lease, [], ending=Ending("failed", b"1"))
    halted = await place.claim(4)
    await store.append(halted, [], ending=Ending("halted"))
    expectations: dict[Status | None, list[str]] = {
        None: [halted.run_id, lease.run_id, running, waiting],
        "waiting": [waiting],
        "running": [running],
        "halted": [halted.run_id],
        "failed": [lease.run_id],
        "completed": [],
        "cancelled": [],
    }
    for status, expected in expectations.items():
        listed = [run for run in await store.runs(status) if run.id.startswith(place.prefix)]
        expect_same([run.id for run in listed], expected, f"the list of runs with status {status}")
        for run in listed:
            expect_same(run, await store.load(run.id), "a listed run")
    expect_same([run.id for run in await store.runs(limit=1)], [halted.run_id], "the newest run")


@rule("content", "ids, factory names, keys and data are returned unchanged, whatever they contain")
async def _content(place: Place) -> None:
    everything = bytes(range(256)) * 4096
    run = Run(f"{place.id()} 'ü\x01{{x}}:*%\n😀", f'{place.factory}"\\', everything)
    await place.store.create(run)
    expect_same((await place.store.load(run.id)).input, everything, "the input")
    expect_same(await place.store.claimable([run.factory]), [run.id], "the list of claimable runs")
    lease = present(await place.store.claim(run.id, "ö\n", LONG), "the run could not be claimed")
    events, records = [b"", b"\0", everything, b"\xff"], [Record("", ""), Record("ü\n", "😀{}", everything)]
    await place.store.append(lease, events, records, Ending("failed", everything), "ü")
    expect_same(await place.store.events(run.id), events, "the log")
    expect_same(await place.store.records(run.id), records, "the journal")
    expect_same((await place.store.load(run.id)).error, everything, "the error")


# Leases


@rule("claim", "a run has only one lease at a time, each new lease has a higher epoch, and an ended run gets no lease")
async def _claim(place: Place) -> None:
    lease, store = await place.claim(), place.store
    expect_same((lease.run_id, lease.owner, lease.seconds), (place.id(), "owner", LONG), "the lease")
    expect_same((await store.load(lease.run_id)).status, "running", "the status of a claimed run")
    for owner in ("owner", "other"):
        expect_same(await store.claim(lease.run_id, owner, LONG), None, f"a claim by {owner!r} during the lease")
    await store.release(lease)
    expect_same((await store.load(lease.run_id)).status, "waiting", "the status after the release")
    again = present(await store.claim(lease.run_id, "owner", LONG), "the released run could not be claimed")
    expect(again.epoch > lease.epoch, f"the epoch went from {lease.epoch} to {again.epoch}")
    await store.append(again, [], ending=Ending("completed"))
    expect_same(await store.claim(lease.run_id, "owner", LONG), None, "a claim after the end")


@rule(
    "expired", "a run whose lease has expired is waiting, but the lease stays usable until another owner claims the run"
)
async def _expired(place: Place) -> None:
    lease, store = await place.expired(), place.store
    expect_same((await store.load(lease.run_id)).status, "waiting", "the status after the lease expired")
    await store.append(lease, [b"1"])
    expect_same(await store.renew(lease), False, "renew")
    other = await place.expired("other")
    await store.renew(Lease(other.run_id, other.owner, other.epoch, LONG))
    expect_same(await store.claim(other.run_id, "other", LONG), None, "a claim after the lease was renewed")


@rule("extended", "renew() and append() both extend the lease")
async def _extended(place: Place) -> None:
    leases = [await place.expired(name) for name in ("renew", "append")]
    renewed, appended = [Lease(lease.run_id, lease.owner, lease.epoch, LONG) for lease in leases]
    await place.store.renew(renewed)
    await place.store.append(appended, [b"1"])
    for lease in (renewed, appended):
        expect_same(await place.store.claim(lease.run_id, "other", LONG), None, "a claim after the lease was extended")


@rule("stale", "a superseded lease, a released lease and the lease of an ended run are rejected and change nothing")
async def _stale(place: Place) -> None:
    (replaced, current), released, ended = await place.lost(1), await place.claim(2), await place.claim(3)
    await place.store.release(released)
    await place.store.append(ended, [], ending=Ending("completed"))
    stranger = Lease(current.run_id, "stranger", current.epoch, LONG)
    for lease in (replaced, released, ended, stranger, Lease(place.id("no"), "owner", 1, LONG)):
        await refused(place.store.renew(lease), "lease_lost", "renew")
        append = place.store.append(lease, [b"1"], [Record("a", "b")], Ending("failed"), "token")
        await refused(append, "lease_lost", "append")
        await place.store.release(lease)
    for lease in (replaced, released, ended):
        expect_same(await place.store.events(lease.run_id), [], "the log")
        expect_same(await place.store.records(lease.run_id), [], "the journal")
    expect_same(
        await place.store.claim(current.run_id, "third", LONG), None, "a claim after the old lease was released"
    )
    expect_same(await place.store.renew(current), False, "renew with the current lease")


@rule("claimable", "claimable() lists the waiting runs of the given factories, longest-waiting first")
async def _claimable(place: Place) -> None:
    store = place.store
    ids = [await place.create(number) for number in range(4)]
    await place.claim("running")
    await store.cancel(await place.create("ended"))
    await store.create(Run(place.id("foreign"), f"{place.factory} 2", b"1"))
    expect_same(await store.claimable([place.factory]), ids, "the list of claimable runs")
    expect_same(await store.claimable([place.factory, "no such factory"], limit=2), ids[:2], "the list of two runs")
    both = [*ids, place.id("foreign")]
    expect_same(await store.claimable([place.factory, f"{place.factory} 2"]), both, "the list for both factories")
    expect_same(await store.claimable([]), [], "the list for no factories")
    lease = present(await store.claim(ids[0], "owner", LONG), "the first run could not be claimed")
    expect_same(await store.claimable([place.factory]), ids[1:], "the list after a claim")
    await store.release(lease)
    expect_same(await store.claimable([place.factory]), [*ids[1:], ids[0]], "the list after the release")


# The log


@rule("log", "across appends and leases, events are numbered from 1 without gaps, and records keep their order")
async def _log(place: Place) -> None:
    (_, lease), store = await place.lost(), place.store
    for batch in ([b"1"], [], [b"2", b"3"]):
        await store.append(lease, batch, [Record("kind", "key", event) for event in batch])
    await store.release(lease)
    again = present(await store.claim(lease.run_id, "other", LONG), "the released run could not be claimed")
    await store.append(again, [b"4"], [Record("kind", "key", b"4")])
    expect_same(await store.events(lease.run_id), [b"1", b"2", b"3", b"4"], "the log")
    expect_same([record.data for record in await store.records(lease.run_id)], [b"1", b"2", b"3", b"4"], "the journal")
    expect_same((await store.load(lease.run_id)).events, 4, "the number of the last event")
    expect_same(await store.events(lease.run_id, after=1, limit=2), [b"2", b"3"], "the page of two events")
    expect_same(await store.events(lease.run_id, after=4), [], "the page after the last event")
    expect_same(await store.events(lease.run_id, after=99), [], "the page after event number 99")


@rule("token", "an append with the same token as the lease's last append changes nothing, even after the run has ended")
async def _token(place: Place) -> None:
    (_, lease), store = await place.lost(), place.store
    for token in ("1", "1", "2", "2", "1"):
        await store.append(lease, [token.encode()], [Record(token, "key")], token=token)
    for _ in range(2):
        await store.append(lease, [b""])
    for _ in range(2):
        await store.append(lease, [b"end"], ending=Ending("completed"), token="end")
    expect_same(await store.events(lease.run_id), [b"1", b"2", b"1", b"", b"", b"end"], "the log")
    expect_same([record.kind for record in await store.records(lease.run_id)], ["1", "2", "1"], "the journal")
    first = await place.claim("other")
    await store.append(first, [b"1"], token="1")
    await store.release(first)
    second = present(await store.claim(first.run_id, "owner", LONG), "the released run could not be claimed")
    await store.append(second, [b"2"], token="1")
    expect_same(await store.events(first.run_id), [b"1", b"2"], "the log after both leases used the same token")


@rule("ending", "the end of a run is committed together with its last events and records")
async def _ending(place: Place) -> None:
    for ending in (Ending("completed"), Ending("halted"), Ending("failed", b'{"a": 1}'), Ending("cancelled")):
        lease = await place.claim(ending.status)
        await place.store.append(lease, [b"1"], [Record("a", "b")], ending)
        run = await place.store.load(lease.run_id)
        expect_same((run.status, run.error, run.events), (ending.status, ending.error, 1), "the end of the run")
        ended_at = present(run.ended_at, "the run had no ended_at")
        expect(run.created_at <= ended_at, f"the run was created at {run.created_at} and ended at {ended_at}")
        expect_same(len(await place.store.records(lease.run_id)), 1, "the length of the journal")
        expect_same(await place.is_claimable(lease.run_id), False, "whether the ended run is claimable")


@rule(
    "cancel",
    "append() and renew() report a cancel request; if a run has no valid lease, the request immediately ends the run",
)
async def _cancel(place: Place) -> None:
    store, lease, waiting, expired = place.store, await place.claim(1), await place.create(2), await place.expired(3)
    for id in (lease.run_id, waiting, expired.run_id, waiting, lease.run_id):
        await store.cancel(id)
        expect_same((await store.load(id)).is_cancelled, True, "is_cancelled")
    for id in (waiting, expired.run_id):
        run = await store.load(id)
        expect_same((run.status, run.ended_at is not None), ("cancelled", True), "the status of a waiting run")
    expect_same((await store.load(lease.run_id)).status, "running", "the status of the claimed run")
    expect_same(await store.renew(lease), True, "renew")
    expect_same(await store.append(lease, [b"1"]), True, "append")
    await store.append(lease, [], ending=Ending("completed"))
    await store.cancel(lease.run_id)
    expect_same((await store.load(lease.run_id)).status, "completed", "the status after cancelling an ended run")


@rule("expire", "expire() deletes only runs that ended long enough ago, along with their logs and journals")
async def _expire(place: Place) -> None:
    store, ended, running = place.store, await place.claim(1), await place.claim(2)
    for lease in (ended, running):
        await store.append(lease, [b"1"], [Record("a", "b")])
    await store.append(ended, [], ending=Ending("completed"))
    expect_same(await store.expire(LONG), 0, "the number of expired runs")
    expect(await store.expire(0) >= 1, "expire deleted nothing")
    await refused(store.load(ended.run_id), "unknown_run", "loading a deleted run")
    expect_same(await store.events(running.run_id), [b"1"], "the log of a run that has not ended")
    again = await place.claim(1)
    expect_same([*await store.events(again.run_id), *await store.records(again.run_id)], [], "the content of a new run")
    expect_same([run.id for run in await store.runs(limit=2)], [again.run_id, running.run_id], "the list of runs")

"""The rules that stores must follow for waiting, concurrent use, documents and closing."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rxllm import RunError
from rxllm.durable._store import Ending, Lease, Record, Run, Store
from rxllm.durable._store_rules import (
    BRIEF,
    CHECKS,
    LONG,
    SOON,
    STORE_RULES,
    MakeStore,
    Place,
    expect,
    expect_same,
    in_threads,
    opened,
    present,
    refused,
    rule,
)

__all__ = ["CHECKS", "STORE_RULES"]  # importing this module adds its rules


# Waiting


@rule("wait", "wait() returns when its time is up, or immediately if there is something to read")
async def _wait(place: Place) -> None:
    lease, store = await place.claim(), place.store
    begin = time.monotonic()
    await asyncio.gather(*(store.wait(lease.run_id, 0, 0.1) for _ in range(20)))
    expect(time.monotonic() - begin < SOON, f"20 waits of 0.1 s took {time.monotonic() - begin:.1f} s")
    await store.append(lease, [b"1", b"2"])
    await asyncio.wait_for(store.wait(lease.run_id, 1, LONG), SOON)
    await store.append(lease, [], ending=Ending("completed"))
    await asyncio.wait_for(store.wait(lease.run_id, 2, LONG), SOON)


@rule(
    "woken",
    "wait() returns soon after any connection appends events, ends the run or requests that it be cancelled",
)
async def _woken(place: Place) -> None:
    async with opened(place.make_store) as other:
        for store in (place.store, other):
            lease = await place.claim(store is other)
            changes: list[Callable[[], Awaitable[Any]]] = [
                lambda store=store, lease=lease: store.append(lease, [b"1"]),
                lambda store=store, lease=lease: store.cancel(lease.run_id),
                lambda store=store, lease=lease: store.append(lease, [], ending=Ending("completed")),
            ]
            for change in changes:
                events = (await place.store.load(lease.run_id)).events
                waits = [asyncio.create_task(place.store.wait(lease.run_id, events, LONG)) for _ in range(3)]
                await asyncio.sleep(BRIEF)
                await change()
                await asyncio.wait_for(asyncio.gather(*waits), SOON)


# Concurrent use


@rule("race", "if a run is claimed on several loops, threads and connections at once, only one claim succeeds")
async def _race(place: Place) -> None:
    ids = [await place.create(number) for number in range(10)]

    async def claims(store: Store, owner: str) -> list[Lease | None]:
        return await asyncio.gather(*(store.claim(id, owner, LONG) for id in ids))

    async def alone(owner: str) -> list[Lease | None]:
        async with opened(place.make_store) as store:
            return await claims(store, owner)

    mains = [lambda n=n: claims(place.store, f"a{n}") if n % 2 else alone(f"b{n}") for n in range(6)]
    outcomes = await in_threads(mains)
    for leases in zip(*outcomes, strict=True):
        winners = [lease for lease in leases if lease is not None]
        expect_same(len(winners), 1, f"the number of leases in {winners}")


@rule("appenders", "if eight producers append to eight runs at once, each log is in order, without gaps")
async def _appenders(place: Place) -> None:
    leases = [await place.claim(number) for number in range(8)]

    async def append(store: Store, lease: Lease) -> None:
        for number in range(1, 61, 2):
            await store.append(lease, [b"%d" % number, b"%d" % (number + 1)], [Record("n", str(number))])

    async def alone(lease: Lease) -> None:
        async with opened(place.make_store) as store:
            await append(store, lease)

    mains = [
        lambda n=n, lease=lease: append(place.store, lease) if n % 2 else alone(lease) for n, lease in enumerate(leases)
    ]
    await in_threads(mains)
    for lease in leases:
        expect_same(await place.store.events(lease.run_id), [b"%d" % number for number in range(1, 61)], "a log")
        keys = [record.key for record in await place.store.records(lease.run_id)]
        expect_same(keys, [str(number) for number in range(1, 61, 2)], "a journal")


@rule("cancelled_call", "a cancelled call takes effect completely or not at all, and the next call works")
async def _cancelled_call(place: Place) -> None:
    lease, store = await place.claim(), place.store
    for number in range(20):
        task = asyncio.create_task(store.append(lease, [b"1", b"2"], [Record("a", "b")]))
        await asyncio.sleep(0.0005 * (number % 4))
        task.cancel()
        await asyncio.wait([task])
    await store.append(lease, [b"1", b"2"], [Record("a", "b")])
    events = await store.events(lease.run_id)
    expect_same(events, [b"1", b"2"] * (len(events) // 2), "the log")
    expect_same(len(await store.records(lease.run_id)), len(events) // 2, "the length of the journal")


@rule("processes", "processes see each other's commits, wake each other's waiting calls, and never hold the same lease")
async def _processes(place: Place) -> None:
    id = await place.create()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    owners = ["p1", "p2"]
    started = [
        context.Process(target=_in_process, args=(place.make_store, id, owner, results), daemon=True)
        for owner in owners
    ]
    for process in started:
        process.start()
    try:
        after = 0
        while after < 3:
            await place.store.wait(id, after, LONG)
            after = (await place.store.load(id)).events
        loop = asyncio.get_running_loop()
        won = [await loop.run_in_executor(None, results.get, True, LONG) for _ in owners]
        expect_same(sorted(won), [False, True], "the sorted list of the processes' claim results")
        expect_same(await place.store.events(id), [b"1", b"2", b"3"], "the log")
        expect_same((await place.store.load(id)).status, "completed", "the status of the ended run")
    finally:
        for process in started:
            process.join(SOON)
            process.kill()


def _in_process(make_store: MakeStore, id: str, owner: str, results: Any) -> None:
    async def main() -> bool:
        async with opened(make_store) as store:
            lease = await store.claim(id, owner, LONG)
            for number in (1, 2, 3):
                if lease is None:
                    await store.wait(id, number - 1, LONG)
                else:
                    await store.append(lease, [b"%d" % number], ending=Ending("completed") if number == 3 else None)
            return lease is not None

    results.put(asyncio.run(main()))


# Documents


@rule("documents", "only a caller that knows a document's current version can replace it")
async def _documents(place: Place) -> None:
    store, key = place.store, f"{place.id()} {{ü}}"
    expect_same(await store.read(key), None, "a missing document")
    await refused(store.write(key, 1, b"x"), "conflict", "replacing version 1 of a missing document")
    version = await store.write(key, 0, b"\0\xff")
    expect_same(await store.read(key), (version, b"\0\xff"), "the document")
    for wrong in (0, version + 1):
        await refused(
            store.write(key, wrong, b"x"), "conflict", f"replacing version {wrong} when version {version} is stored"
        )
    expect_same(await store.read(key), (version, b"\0\xff"), "the document after failed writes")

    async def write(number: int) -> bool:
        async with opened(place.make_store) as other:
            try:
                await other.write(key, version, b"%d" % number)
            except RunError as error:
                expect(error.reason == "conflict", f"the loser of the race got {error!r}")
                return False
            return True

    won = await in_threads([lambda n=n: write(n) for n in range(6)])
    expect_same(won.count(True), 1, "the number of writers that replaced the same version")
    newer, data = present(await store.read(key), "the document was lost")
    expect(newer > version, f"the document's version went from {version} to {newer}")
    expect_same(data, b"%d" % won.index(True), "the document after the race")


@rule("closed", "close() ends pending waits, later calls raise store_unavailable, and a second close does nothing")
async def _closed(place: Place) -> None:
    lease, store = await place.claim(), place.store
    waits = [asyncio.create_task(store.wait(lease.run_id, 0, LONG)) for _ in range(3)]
    await asyncio.sleep(BRIEF)
    await store.close()
    await store.close()
    done, _ = await asyncio.wait(waits, timeout=SOON)
    for wait in done:
        wait.exception()
    expect_same(len(done), 3, "the number of waits that close() ended")
    calls: list[tuple[str, Awaitable[Any]]] = [
        ("create", store.create(Run("id", "factory", b""))),
        ("load", store.load(lease.run_id)),
        ("runs", store.runs()),
        ("claim", store.claim(lease.run_id, "owner", 1)),
        ("claimable", store.claimable([place.factory])),
        ("renew", store.renew(lease)),
        ("release", store.release(lease)),
        ("append", store.append(lease, [b"1"])),
        ("events", store.events(lease.run_id)),
        ("records", store.records(lease.run_id)),
        ("wait", store.wait(lease.run_id, 0, LONG)),
        ("cancel", store.cancel(lease.run_id)),
        ("expire", store.expire(LONG)),
        ("read", store.read("key")),
        ("write", store.write("key", 0, b"")),
    ]
    for name, call in calls:
        await asyncio.wait_for(refused(call, "store_unavailable", name), SOON)
    async with opened(place.make_store) as again:
        expect_same((await again.load(lease.run_id)).id, lease.run_id, "the run after the store was reopened")

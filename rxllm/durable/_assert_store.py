"""The rules of stores, and `assert_store`, which checks them."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from rxllm import RunError
from rxllm.durable._store import Ending, Lease, Record, Run, Store

Check = Callable[["_Place"], Coroutine[Any, Any, None]]
MakeStore = Callable[[], Store]

SECONDS = 60.0
"""How long the check of a rule may take."""

SOON = 3.0
"""How long news may take to those that wait, on a machine that has much to do."""

LONG = 60.0
BRIEF = 0.05

STORE_RULES: dict[str, str] = {}
"""The rules of `assert_store`: their names and sentences."""

_CHECKS: dict[str, Check] = {}


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
            _in_loop(lambda name=name: _check(make_store, _CHECKS[name]))
        except Exception as error:
            how = str(error) if isinstance(error, AssertionError) else f"it raised {error!r}"
            broken.append(f"{name}: {STORE_RULES[name]}, but {how}")
            cause = cause or error
    if broken:
        raise AssertionError("\n".join(broken)) from cause


async def _check(make_store: MakeStore, check: Check) -> None:
    async with asyncio.timeout(SECONDS), _opened(make_store) as store:
        await check(_Place(make_store, store, uuid4().hex))


@asynccontextmanager
async def _opened(make_store: MakeStore) -> AsyncIterator[Store]:
    store = make_store()
    try:
        yield store
    finally:
        await store.close()


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


class _Place:
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
        lease = await self.store.claim(await self.create(name), "owner", seconds)
        assert lease is not None, "nobody could claim a new run"
        return lease

    async def expired(self, name: object = "run") -> Lease:
        """A new run's lease, which has expired."""
        lease = await self.claim(name, BRIEF)
        await _becomes(lambda: self.is_claimable(lease.run_id), "a run whose lease has expired is claimable")
        return lease

    async def lost(self, name: object = "run") -> tuple[Lease, Lease]:
        """A lease that another claim has replaced, and that of the claim."""
        lease = await self.expired(name)
        other = await self.store.claim(lease.run_id, "other", LONG)
        assert other is not None, "a run whose lease has expired could not be claimed"
        return lease, other

    async def is_claimable(self, id: str) -> bool:
        return id in await self.store.claimable([self.factory])


async def _becomes(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not await condition():
        assert time.monotonic() < deadline, f"it never came about that {what}"
        await asyncio.sleep(0.01)


async def _refused(call: Awaitable[Any], reason: str, what: str) -> None:
    try:
        result = await call
    except RunError as error:
        assert error.reason == reason, f"{what} raised {error!r}, not RunError({reason!r})"
    else:
        raise AssertionError(f"{what} returned {result!r}, and did not raise RunError({reason!r})")


def _same(actual: object, expected: object, what: str) -> None:
    assert actual == expected, f"{what} was {actual!r:.300}, not {expected!r:.300}"


def _rule(name: str, sentence: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        STORE_RULES[name], _CHECKS[name] = sentence, check
        return check

    return add


# Runs


@_rule("create", "a new run waits with its factory and input, no events, and the store's time; its id is taken")
async def _create(place: _Place) -> None:
    run = Run(place.id(), place.factory, b'"in\\u0000put"', "running", 7, 1.0, 2.0, True, b"1")
    await place.store.create(run)
    created = await place.store.load(run.id)
    _same(created, Run(run.id, run.factory, run.input, created_at=created.created_at), "the new run")
    assert created.created_at > 1e9, f"its created_at was {created.created_at}"
    await _refused(place.store.create(run), "exists", "creating it again")


@_rule("unknown", "a run that it does not have is unknown_run, and is not claimed")
async def _unknown(place: _Place) -> None:
    id, store = place.id(), place.store
    for name, call in [("load", store.load), ("events", store.events), ("records", store.records)]:
        await _refused(call(id), "unknown_run", name)
    await _refused(store.cancel(id), "unknown_run", "cancel")
    _same(await store.claim(id, "owner", LONG), None, "its lease")
    await asyncio.wait_for(store.wait(id, 0, BRIEF), SOON)


@_rule("runs", "runs are listed from the newest on, of one status or of all, up to a limit")
async def _runs(place: _Place) -> None:
    store, waiting, running = place.store, await place.create(1), (await place.claim(2)).run_id
    lease = await place.claim(3)
    await store.append(lease, [], ending=Ending("failed", b"1"))
    for status, expected in [
        (None, [lease.run_id, running, waiting]),
        ("waiting", [waiting]),
        ("running", [running]),
        ("failed", [lease.run_id]),
        ("completed", []),
        ("cancelled", []),
    ]:
        listed = [run for run in await store.runs(status) if run.id.startswith(place.prefix)]
        _same([run.id for run in listed], expected, f"the list of the {status or 'same'} ones")
        for run in listed:
            _same(run, await store.load(run.id), "a listed run")
    _same([run.id for run in await store.runs(limit=1)], [lease.run_id], "the newest one")


@_rule("content", "ids, factories, keys and bytes of any content come back as they were")
async def _content(place: _Place) -> None:
    everything = bytes(range(256)) * 4096
    run = Run(f"{place.id()} 'ü\x01{{x}}:*%\n😀", f'{place.factory}"\\', everything)
    await place.store.create(run)
    _same((await place.store.load(run.id)).input, everything, "the input")
    _same(await place.store.claimable([run.factory]), [run.id], "what is claimable")
    lease = await place.store.claim(run.id, "ö\n", LONG)
    assert lease is not None, "it could not be claimed"
    events, records = [b"", b"\0", everything, b"\xff"], [Record("", ""), Record("ü\n", "😀{}", everything)]
    await place.store.append(lease, events, records, Ending("failed", everything), "ü")
    _same(await place.store.events(run.id), events, "the log")
    _same(await place.store.records(run.id), records, "the journal")
    _same((await place.store.load(run.id)).error, everything, "the error")


# Leases


@_rule("claim", "one lease lasts at a time, each with a higher epoch; none of a run that has ended")
async def _claim(place: _Place) -> None:
    lease, store = await place.claim(), place.store
    _same((lease.run_id, lease.owner, lease.seconds), (place.id(), "owner", LONG), "the lease")
    _same((await store.load(lease.run_id)).status, "running", "its status")
    for owner in ("owner", "other"):
        _same(await store.claim(lease.run_id, owner, LONG), None, f"a claim of {owner!r} meanwhile")
    await store.release(lease)
    _same((await store.load(lease.run_id)).status, "waiting", "the status after its release")
    again = await store.claim(lease.run_id, "owner", LONG)
    assert again is not None, "nobody could claim it after its release"
    assert again.epoch > lease.epoch, f"the epoch went from {lease.epoch} to {again.epoch}"
    await store.append(again, [], ending=Ending("completed"))
    _same(await store.claim(lease.run_id, "owner", LONG), None, "a claim after the end")


@_rule("expired", "a lease that expires lets the run wait, and works on until somebody else claims it")
async def _expired(place: _Place) -> None:
    lease, store = await place.expired(), place.store
    _same((await store.load(lease.run_id)).status, "waiting", "its status")
    await store.append(lease, [b"1"])
    _same(await store.renew(lease), False, "renew")
    other = await place.expired("other")
    await store.renew(Lease(other.run_id, other.owner, other.epoch, LONG))
    _same(await store.claim(other.run_id, "other", LONG), None, "a claim after it was renewed")


@_rule("extended", "renew and append extend the lease")
async def _extended(place: _Place) -> None:
    for name, extend in [("renew", place.store.renew), ("append", lambda lease: place.store.append(lease, [b"1"]))]:
        lease = await place.claim(name, SOON / 3)
        for _ in range(4):
            await asyncio.sleep(SOON / 9)
            await extend(lease)
        _same(await place.store.claim(lease.run_id, "other", LONG), None, f"a claim after {name}")


@_rule("stale", "an older epoch, a released lease and one of an ended run are refused, and change nothing")
async def _stale(place: _Place) -> None:
    (replaced, current), released, ended = await place.lost(1), await place.claim(2), await place.claim(3)
    await place.store.release(released)
    await place.store.append(ended, [], ending=Ending("completed"))
    stranger = Lease(current.run_id, "stranger", current.epoch, LONG)
    for lease in (replaced, released, ended, stranger, Lease(place.id("no"), "owner", 1, LONG)):
        await _refused(place.store.renew(lease), "lease_lost", "renew")
        append = place.store.append(lease, [b"1"], [Record("a", "b")], Ending("failed"), "token")
        await _refused(append, "lease_lost", "append")
        await place.store.release(lease)
    for lease in (replaced, released, ended):
        _same(await place.store.events(lease.run_id), [], "the log")
        _same(await place.store.records(lease.run_id), [], "the journal")
    _same(await place.store.claim(current.run_id, "third", LONG), None, "a claim after the old lease was released")
    _same(await place.store.renew(current), False, "renew by the lease that lasts")


@_rule("claimable", "claimable runs are of these factories, have not ended, nobody holds them, the longest wait first")
async def _claimable(place: _Place) -> None:
    store = place.store
    ids = [await place.create(number) for number in range(4)]
    await place.claim("running")
    await store.cancel(await place.create("ended"))
    await store.create(Run(place.id("foreign"), f"{place.factory} 2", b"1"))
    _same(await store.claimable([place.factory]), ids, "what waits")
    _same(await store.claimable([place.factory, "no such factory"], limit=2), ids[:2], "the first two")
    both = [*ids, place.id("foreign")]
    _same(await store.claimable([place.factory, f"{place.factory} 2"]), both, "what waits for two factories")
    _same(await store.claimable([]), [], "what waits for none")
    lease = await store.claim(ids[0], "owner", LONG)
    assert lease is not None, "the first could not be claimed"
    _same(await store.claimable([place.factory]), ids[1:], "what waits after a claim")
    await store.release(lease)
    _same(await store.claimable([place.factory]), [*ids[1:], ids[0]], "what waits after its release")


# The log


@_rule("log", "events have numbers from 1 without a gap, and records an order, over all appends and leases")
async def _log(place: _Place) -> None:
    (_, lease), store = await place.lost(), place.store
    for batch in ([b"1"], [], [b"2", b"3"]):
        await store.append(lease, batch, [Record("kind", "key", event) for event in batch])
    await store.release(lease)
    again = await store.claim(lease.run_id, "other", LONG)
    assert again is not None, "it could not be claimed"
    await store.append(again, [b"4"], [Record("kind", "key", b"4")])
    _same(await store.events(lease.run_id), [b"1", b"2", b"3", b"4"], "the log")
    _same([record.data for record in await store.records(lease.run_id)], [b"1", b"2", b"3", b"4"], "the journal")
    _same((await store.load(lease.run_id)).events, 4, "the number of the last event")
    _same(await store.events(lease.run_id, after=1, limit=2), [b"2", b"3"], "two events after the first")
    _same(await store.events(lease.run_id, after=4), [], "what follows the last")
    _same(await store.events(lease.run_id, after=99), [], "what follows the 99th")


@_rule("token", "an append with the token of the lease's last one changes nothing, also after the end")
async def _token(place: _Place) -> None:
    (_, lease), store = await place.lost(), place.store
    for token in ("1", "1", "2", "2", "1"):
        await store.append(lease, [token.encode()], [Record(token, "key")], token=token)
    for _ in range(2):
        await store.append(lease, [b""])
    for _ in range(2):
        await store.append(lease, [b"end"], ending=Ending("completed"), token="end")
    _same(await store.events(lease.run_id), [b"1", b"2", b"1", b"", b"", b"end"], "the log")
    _same([record.kind for record in await store.records(lease.run_id)], ["1", "2", "1"], "the journal")
    first = await place.claim("other")
    await store.append(first, [b"1"], token="1")
    await store.release(first)
    second = await store.claim(first.run_id, "owner", LONG)
    assert second is not None, "it could not be claimed"
    await store.append(second, [b"2"], token="1")
    _same(await store.events(first.run_id), [b"1", b"2"], "the log of two leases with one token")


@_rule("ending", "a run ends with its last events and records")
async def _ending(place: _Place) -> None:
    for status, error in (("completed", None), ("failed", b'{"a": 1}'), ("cancelled", None)):
        lease = await place.claim(status)
        await place.store.append(lease, [b"1"], [Record("a", "b")], Ending(status, error))
        run = await place.store.load(lease.run_id)
        _same((run.status, run.error, run.events), (status, error, 1), "its end")
        assert run.ended_at is not None and run.created_at <= run.ended_at, f"its times were {run!r}"
        _same(len(await place.store.records(lease.run_id)), 1, "the length of its journal")
        _same(await place.is_claimable(lease.run_id), False, "whether it is claimable")


@_rule("cancel", "a producer learns of a cancel when it appends or renews; without a lasting lease the run ends")
async def _cancel(place: _Place) -> None:
    store, lease, waiting, expired = place.store, await place.claim(1), await place.create(2), await place.expired(3)
    for id in (lease.run_id, waiting, expired.run_id, waiting, lease.run_id):
        await store.cancel(id)
        _same((await store.load(id)).is_cancelled, True, "is_cancelled")
    for id in (waiting, expired.run_id):
        run = await store.load(id)
        _same((run.status, run.ended_at is not None), ("cancelled", True), "what became of a waiting run")
    _same((await store.load(lease.run_id)).status, "running", "the status of the running one")
    _same(await store.renew(lease), True, "renew")
    _same(await store.append(lease, [b"1"]), True, "append")
    await store.append(lease, [], ending=Ending("completed"))
    await store.cancel(lease.run_id)
    _same((await store.load(lease.run_id)).status, "completed", "the status after it had ended and was cancelled")


@_rule("expire", "runs that ended long enough ago are deleted with all that they had, and no others")
async def _expire(place: _Place) -> None:
    store, ended, running = place.store, await place.claim(1), await place.claim(2)
    for lease in (ended, running):
        await store.append(lease, [b"1"], [Record("a", "b")])
    await store.append(ended, [], ending=Ending("completed"))
    _same(await store.expire(LONG), 0, "how many ended so long ago")
    assert await store.expire(0) >= 1, "it deleted nothing"
    await _refused(store.load(ended.run_id), "unknown_run", "load after it was deleted")
    _same(await store.events(running.run_id), [b"1"], "the log of a run that has not ended")
    again = await place.claim(1)
    _same((await store.events(again.run_id), await store.records(again.run_id)), ([], []), "a new run of that id")
    _same([run.id for run in await store.runs(limit=2)], [again.run_id, running.run_id], "the list of runs")


# Waiting


@_rule("wait", "wait returns in time, and at once where there is something to read or to do")
async def _wait(place: _Place) -> None:
    lease, store = await place.claim(), place.store
    begin = time.monotonic()
    await asyncio.gather(*(store.wait(lease.run_id, 0, 0.1) for _ in range(20)))
    assert time.monotonic() - begin < SOON, f"20 waits of 0.1 s took {time.monotonic() - begin:.1f} s"
    await store.append(lease, [b"1", b"2"])
    await asyncio.wait_for(store.wait(lease.run_id, 1, LONG), SOON)
    await store.append(lease, [], ending=Ending("completed"))
    await asyncio.wait_for(store.wait(lease.run_id, 2, LONG), SOON)


@_rule("woken", "wait returns soon after an append, an end, or a cancel, through another connection too")
async def _woken(place: _Place) -> None:
    async with _opened(place.make_store) as other:
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


# Several at once


@_rule("race", "of claimants on many loops, threads and connections, one gets the lease")
async def _race(place: _Place) -> None:
    ids = [await place.create(number) for number in range(10)]

    async def claims(store: Store, owner: str) -> list[Lease | None]:
        return await asyncio.gather(*(store.claim(id, owner, LONG) for id in ids))

    async def alone(owner: str) -> list[Lease | None]:
        async with _opened(place.make_store) as store:
            return await claims(store, owner)

    mains = [lambda n=n: claims(place.store, f"a{n}") if n % 2 else alone(f"b{n}") for n in range(6)]
    outcomes = await _in_threads(mains)
    for leases in zip(*outcomes, strict=True):
        winners = [lease for lease in leases if lease is not None]
        _same(len(winners), 1, f"the number of leases in {winners}")


@_rule("appenders", "eight producers of eight runs get what they append, in order and without a gap")
async def _appenders(place: _Place) -> None:
    leases = [await place.claim(number) for number in range(8)]

    async def append(store: Store, lease: Lease) -> None:
        for number in range(1, 61, 2):
            await store.append(lease, [b"%d" % number, b"%d" % (number + 1)], [Record("n", str(number))])

    async def alone(lease: Lease) -> None:
        async with _opened(place.make_store) as store:
            await append(store, lease)

    mains = [
        lambda n=n, lease=lease: append(place.store, lease) if n % 2 else alone(lease) for n, lease in enumerate(leases)
    ]
    await _in_threads(mains)
    for lease in leases:
        _same(await place.store.events(lease.run_id), [b"%d" % number for number in range(1, 61)], "a log")
        keys = [record.key for record in await place.store.records(lease.run_id)]
        _same(keys, [str(number) for number in range(1, 61, 2)], "a journal")


@_rule("cancelled_call", "a call that is cancelled is carried out as a whole or not at all, and the next one works")
async def _cancelled_call(place: _Place) -> None:
    lease, store = await place.claim(), place.store
    for number in range(20):
        task = asyncio.create_task(store.append(lease, [b"1", b"2"], [Record("a", "b")]))
        await asyncio.sleep(0.0005 * (number % 4))
        task.cancel()
        await asyncio.wait([task])
    await store.append(lease, [b"1", b"2"], [Record("a", "b")])
    events = await store.events(lease.run_id)
    _same(events, [b"1", b"2"] * (len(events) // 2), "the log")
    _same(len(await store.records(lease.run_id)), len(events) // 2, "the length of the journal")


@_rule("processes", "other processes see what is committed, wake those that wait, and share no lease")
async def _processes(place: _Place) -> None:
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
        won = [await loop.run_in_executor(None, results.get, True, SECONDS) for _ in owners]
        _same(sorted(won), [False, True], "who won the lease")
        _same(await place.store.events(id), [b"1", b"2", b"3"], "the log")
        _same((await place.store.load(id)).status, "completed", "its end")
    finally:
        for process in started:
            process.join(SOON)
            process.kill()


def _in_process(make_store: MakeStore, id: str, owner: str, results: Any) -> None:
    async def main() -> bool:
        async with _opened(make_store) as store:
            lease = await store.claim(id, owner, LONG)
            for number in (1, 2, 3):
                if lease is None:
                    await store.wait(id, number - 1, LONG)
                else:
                    await store.append(lease, [b"%d" % number], ending=Ending("completed") if number == 3 else None)
            return lease is not None

    results.put(asyncio.run(main()))


# Documents


@_rule("documents", "a document is replaced by who knows its version alone")
async def _documents(place: _Place) -> None:
    store, key = place.store, f"{place.id()} {{ü}}"
    _same(await store.read(key), None, "a document that there is not")
    await _refused(store.write(key, 1, b"x"), "conflict", "writing version 1 of a document that there is not")
    version = await store.write(key, 0, b"\0\xff")
    _same(await store.read(key), (version, b"\0\xff"), "the document")
    for wrong in (0, version + 1):
        await _refused(store.write(key, wrong, b"x"), "conflict", f"writing version {wrong} of version {version}")
    _same(await store.read(key), (version, b"\0\xff"), "the document after that")

    async def write(number: int) -> bool:
        async with _opened(place.make_store) as other:
            try:
                await other.write(key, version, b"%d" % number)
            except RunError as error:
                assert error.reason == "conflict", f"a lost race raised {error!r}"
                return False
            return True

    won = await _in_threads([lambda n=n: write(n) for n in range(6)])
    _same(won.count(True), 1, "the number of those that replaced one version")
    current = await store.read(key)
    assert current is not None and current[0] > version, f"the document was {current!r}"
    _same(current[1], b"%d" % won.index(True), "the content that has won")


@_rule("closed", "close ends what waits; after it every call is store_unavailable, and another close does nothing")
async def _closed(place: _Place) -> None:
    lease, store = await place.claim(), place.store
    waits = [asyncio.create_task(store.wait(lease.run_id, 0, LONG)) for _ in range(3)]
    await asyncio.sleep(BRIEF)
    await store.close()
    await store.close()
    done, _ = await asyncio.wait(waits, timeout=SOON)
    for wait in done:
        wait.exception()
    _same(len(done), 3, "the number of waits that ended")
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
        await asyncio.wait_for(_refused(call, "store_unavailable", name), SOON)
    async with _opened(place.make_store) as again:
        _same((await again.load(lease.run_id)).id, lease.run_id, "the run in a store that was opened again")


async def _in_threads(mains: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Any]:
    """Run all on threads and loops of their own at the same time, and return their results."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(mains)) as threads:
        return await asyncio.gather(
            *(loop.run_in_executor(threads, lambda main=main: asyncio.run(main())) for main in mains)
        )

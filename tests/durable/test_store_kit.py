"""The kit for stores: both stores keep its rules, it finds stores that break one, and a model tells the rest."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from rxllm import RunError
from rxllm.durable import Ending, Lease, Record, Run, Store, _store_rules, _store_rules_at_once, open_store
from rxllm.durable._sqlite import SQLiteStore
from rxllm.durable.testing import STORE_RULES, Interposed, assert_store
from tests.durable.appender import append
from tests.durable.conftest import MakeStore
from tests.durable.support import forked
from tests.examples import examples
from tests.waiting import until


@pytest.mark.sockets
@pytest.mark.parametrize("name", STORE_RULES)
def test_the_contract(make_store: MakeStore, name: str) -> None:
    assert_store(make_store, only=[name])


# The kit finds what is broken


class Broken(SQLiteStore):
    """A store with a fault, for each of which the kit has a rule."""

    loaded: ClassVar[Counter[str]] = Counter()

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(path)
        self._fault = fault

    async def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        if self._fault == "race":
            status = (await self.load(id)).status
            self.loaded[id] += 1
            await until(lambda: self.loaded[id] > 1)
            lease = await super().claim(id, owner, seconds)
            return lease or (Lease(id, owner, 1, seconds) if status == "waiting" else None)
        return await super().claim(id, owner, seconds)

    async def append(self, lease: Lease, events: Any, records: Any = (), ending: Any = None, token: str = "") -> bool:
        if self._fault == "appenders" and len(events) == 2:
            await super().append(lease, events[:1], records, ending, token)
            return await super().append(lease, events[:1])
        return await super().append(lease, events, records, ending, "" if self._fault == "token" else token)

    async def wait(self, id: str, after: int, seconds: float) -> None:
        if self._fault == "woken":
            await asyncio.Event().wait()
        else:
            await super().wait(id, after, seconds)

    async def write(self, key: str, version: int, data: bytes) -> int:
        try:
            return await super().write(key, version, data)
        except RunError:
            if self._fault != "documents":
                raise
            return version + 1

    async def release(self, lease: Lease) -> None:
        if self._fault != "claim":
            await super().release(lease)


@pytest.mark.judges
@pytest.mark.parametrize("name", ["race", "appenders", "token", "woken", "documents", "claim"])
def test_the_kit_finds_a_store_that_breaks_a_rule(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_store_rules, _store_rules_at_once):
        monkeypatch.setattr(module, "SOON", 1.0)
    with pytest.raises(AssertionError, match=f"^{name}: {re.escape(STORE_RULES[name])}, but "):
        assert_store(partial(Broken, tmp_path / "runs.db", name), only=[name])


def test_the_kit_knows_its_rules_alone() -> None:
    with pytest.raises(ValueError, match="there is no rule nonsense; the rules are create,"):
        assert_store(lambda: open_store("runs.db"), without=["nonsense"])


# What stands between a store and what uses it


@pytest.mark.judges
def test_an_interposed_store_is_a_store_and_calls_its_hooks(tmp_path: Path) -> None:
    calls: list[str] = []

    async def after(method: str, arguments: tuple[Any, ...]) -> None:
        calls.append(f"after {method}")

    def make() -> Store:
        store = open_store(tmp_path / "runs.db")
        return open_store(Interposed(store, before=lambda method, arguments: calls.append(method), after=after))

    assert_store(make, without=["processes"])
    assert {call.removeprefix("after ") for call in calls} == {name for name in dir(Store) if name[0] != "_"}
    assert calls.index("append") < calls.index("after append")


def test_an_error_of_a_hook_replaces_the_call_or_its_result(tmp_path: Path) -> None:
    def fail(method: str, arguments: tuple[Any, ...]) -> None:
        if method == "create":
            raise RunError("store_unavailable")

    async def main() -> list[str]:
        store = open_store(tmp_path / "runs.db")
        for id, faulty in [("before", Interposed(store, before=fail)), ("after", Interposed(store, after=fail))]:
            with pytest.raises(RunError):
                await faulty.create(Run(id, "factory", b""))
        ids = [run.id for run in await store.runs()]
        await store.close()
        return ids

    assert asyncio.run(main()) == ["after"]


# A model


@dataclass
class Modelled:
    """A run as the model knows it. `is_lasting` says whether its lease lasts."""

    factory: str
    input: bytes
    events: list[bytes] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    owner: str | None = None
    epoch: int = 0
    token: str = ""
    is_lasting: bool = False
    is_cancelled: bool = False
    ending: str | None = None
    error: bytes | None = None

    @property
    def status(self) -> str:
        return self.ending or ("running" if self.is_lasting else "waiting")


class Model:
    """What a store does, over dicts. A lease of no seconds expires at once; the others last."""

    def __init__(self) -> None:
        self.all: dict[str, Modelled] = {}
        self.documents: dict[str, tuple[int, bytes]] = {}

    def _run(self, id: str) -> Modelled:
        if id not in self.all:
            raise RunError("unknown_run")
        return self.all[id]

    def _mine(self, lease: Lease) -> Modelled:
        run = self.all.get(lease.run_id)
        if run is None or (run.owner, run.epoch) != (lease.owner, lease.epoch):
            raise RunError("lease_lost")
        return run

    def create(self, run: Run) -> None:
        if run.id in self.all:
            raise RunError("exists")
        self.all[run.id] = Modelled(run.factory, run.input)

    def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        run = self.all.get(id)
        if run is None or run.status != "waiting":
            return None
        run.owner, run.epoch, run.token, run.is_lasting = owner, run.epoch + 1, "", seconds > 0
        return Lease(id, owner, run.epoch, seconds)

    def renew(self, lease: Lease) -> bool:
        if (run := self._mine(lease)).ending:
            raise RunError("lease_lost")
        run.is_lasting = lease.seconds > 0
        return run.is_cancelled

    def release(self, lease: Lease) -> None:
        run = self.all.get(lease.run_id)
        if run and not run.ending and (run.owner, run.epoch) == (lease.owner, lease.epoch):
            run.owner, run.is_lasting = None, False

    def append(self, lease: Lease, events: Any, records: Any, ending: Ending | None, token: str) -> bool:
        run = self._mine(lease)
        if token and run.token == token:
            return run.is_cancelled
        if run.ending:
            raise RunError("lease_lost")
        run.events += events
        run.records += records
        run.token, run.is_lasting = token, lease.seconds > 0
        if ending:
            run.ending, run.error = ending.status, ending.error
        return run.is_cancelled

    def cancel(self, id: str) -> None:
        run = self._run(id)
        if not run.ending:
            run.is_cancelled = True
            run.ending = None if run.is_lasting else "cancelled"

    def expire(self, seconds: float) -> int:
        ended = [id for id, run in self.all.items() if run.ending and not seconds]
        for id in ended:
            del self.all[id]
        return len(ended)

    def events(self, id: str, after: int, limit: int) -> list[bytes]:
        return self._run(id).events[after : after + limit]

    def records(self, id: str) -> list[Record]:
        return self._run(id).records

    def read(self, key: str) -> tuple[int, bytes] | None:
        return self.documents.get(key)

    def write(self, key: str, version: int, data: bytes) -> int:
        if version != self.documents.get(key, (0,))[0]:
            raise RunError("conflict")
        self.documents[key] = (version + 1, data)
        return version + 1


IDS = st.sampled_from(["a", "a", "b"])
FACTORIES = st.sampled_from(["f", "g"])
DATA = st.binary(max_size=4)
SECONDS = st.sampled_from([0.0, 500.0])
RECORDS = st.lists(st.builds(Record, st.sampled_from("kl"), st.sampled_from("xy"), DATA), max_size=3)
ENDINGS = st.builds(Ending, st.sampled_from(["completed", "halted", "failed", "cancelled"]), st.none() | st.just(b"1"))


class StoreMachine(RuleBasedStateMachine):
    """Does the same with a store and with the model."""

    make_store: Callable[[], Store]
    wipe: Callable[[], None]

    @initialize()
    def open(self) -> None:
        type(self).wipe()
        self.runner = asyncio.Runner()
        self.store, self.model, self.leases = type(self).make_store(), Model(), [Lease("a", "o", 1, 0.0)]

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self._await(self.store.close())
            self.runner.close()

    def _await(self, call: Awaitable[Any]) -> Any:
        async def main() -> Any:
            return await call

        return self.runner.run(main())

    def _both(self, method: str, *arguments: Any) -> Any:
        expected = outcome(lambda: getattr(self.model, method)(*arguments))
        actual = outcome(lambda: self._await(getattr(self.store, method)(*arguments)))
        assert actual == expected, (method, arguments)
        return actual

    @rule(id=IDS, factory=FACTORIES, input=DATA)
    def create(self, id: str, factory: str, input: bytes) -> None:
        self._both("create", Run(id, factory, input))

    @rule(id=IDS, owner=st.sampled_from("op"), seconds=SECONDS)
    def claim(self, id: str, owner: str, seconds: float) -> None:
        if isinstance(lease := self._both("claim", id, owner, seconds), Lease):
            self.leases.append(lease)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        self._both("renew", data.draw(st.sampled_from(self.leases)))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self._both("release", data.draw(st.sampled_from(self.leases)))

    @rule(
        data=st.data(),
        events=st.lists(DATA, max_size=3),
        records=RECORDS,
        ending=st.none() | st.none() | ENDINGS,
        token=st.sampled_from(["", "t", "u"]),
    )
    def append(self, data: st.DataObject, events: Any, records: Any, ending: Ending | None, token: str) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self._both("append", lease, events, records, ending, token)

    @rule(id=IDS)
    def cancel(self, id: str) -> None:
        self._both("cancel", id)

    @rule(seconds=SECONDS)
    def expire(self, seconds: float) -> None:
        self._both("expire", seconds)
        self.leases = self.leases[:1] if not seconds else self.leases  # a new run counts its epochs from 1 again

    @rule(id=IDS, after=st.integers(0, 9), limit=st.integers(1, 9))
    def events(self, id: str, after: int, limit: int) -> None:
        self._both("events", id, after, limit)

    @rule(key=IDS, version=st.integers(0, 4), data=DATA)
    def write(self, key: str, version: int, data: bytes) -> None:
        self._both("write", key, version, data)
        self._both("read", key)

    @rule()
    def again(self) -> None:
        self._await(self.store.close())
        self.store = type(self).make_store()

    @invariant()
    def they_know_the_same(self) -> None:
        if not hasattr(self, "runner"):
            return
        runs = self._await(self.store.runs())
        assert [run.id for run in runs] == [*self.model.all][::-1]
        for run in runs:
            model = self.model.all[run.id]
            actual = (run.factory, run.input, run.status, run.events, run.is_cancelled, run.error)
            events = len(model.events)
            assert actual == (model.factory, model.input, model.status, events, model.is_cancelled, model.error)
            assert (run.ended_at is None) == (model.ending is None)
            self._both("events", run.id, 0, 1000)
            self._both("records", run.id)
        waiting = {id for id, run in self.model.all.items() if run.status == "waiting" and run.factory == "f"}
        assert {*self._await(self.store.claimable(["f"]))} == waiting


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the reason of what it raises."""
    try:
        value = call()
    except RunError as error:
        return error.reason
    return [*value] if isinstance(value, list | tuple) else value


@pytest.mark.judges
def test_a_store_does_what_the_model_does(
    make_store: MakeStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    numbers = itertools.count()
    server = request.getfixturevalue("redis_server") if "redis" in str(make_store.args) else None

    class Machine(StoreMachine):
        @staticmethod
        def wipe() -> None:
            if server is None:
                Machine.make_store = staticmethod(partial(open_store, tmp_path / f"{next(numbers)}.db"))
            else:
                server.ask("FLUSHALL")
                Machine.make_store = staticmethod(make_store)

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples(50), stateful_step_count=50, deadline=None)
    )


# Kills


@pytest.mark.judges
def test_acknowledged_appends_survive_kills_of_the_process_and_none_is_half_there(
    make_store: MakeStore,
) -> None:
    rng = random.Random(7)

    async def log(id: str) -> tuple[list[bytes], list[Record]]:
        store = make_store()
        try:
            return [*await store.events(id, limit=1_000_000)], [*await store.records(id)]
        finally:
            await store.close()

    async def create() -> None:
        store = make_store()
        await store.create(Run("run", "factory", b"1"))
        await store.close()

    asyncio.run(create())
    acknowledged = 0
    for number in range(8):
        with forked(append, make_store, "run", f"owner {number}") as (process, pipe):
            for _ in range(rng.randint(1, 40)):
                acknowledged = pipe.recv()
            process.kill()
            with suppress(EOFError):
                while True:
                    acknowledged = pipe.recv()
        events, records = asyncio.run(log("run"))
        assert len(events) >= acknowledged
        assert events == [b"%d" % event for event in range(1, len(events) + 1)]
        assert [record.key for record in records] == [str(event) for event in range(0, len(events), 3)]
        acknowledged = len(events)
    assert acknowledged > 24


# Clocks


@pytest.mark.sockets
def test_the_clock_of_a_process_decides_nothing(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store, right = make_store(), time.time
        await store.create(Run("run", "factory", b"1"))
        lease = await store.claim("run", "owner", 60)
        assert lease is not None
        for minutes in (10, -10):
            monkeypatch.setattr(time, "time", lambda shift=60 * minutes: right() + shift)
            other = make_store()
            assert await other.claim("run", "other", 60) is None
            assert await other.claimable(["factory"]) == []
            await other.create(Run(f"{minutes}", "another", b"1"))
            await other.close()
        monkeypatch.undo()
        await store.create(Run("last", "another", b"1"))
        created = [(await store.load(id)).created_at for id in ("run", "10", "-10", "last")]
        assert created == sorted(created)
        await store.append(lease, [], ending=Ending("completed"))
        assert await store.expire(60) == 0
        await store.close()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert [thread for thread in threading.enumerate() if thread.name == "rxllm-store"] == []

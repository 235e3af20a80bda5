"""Runs whose store dies or is full, and whose processes compete for them, hang, or have a wrong clock."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, RunError, StreamCollector, ToolCall, tool
from rxllm.durable import Lease, Runs, Store, open_runs, open_store
from rxllm.events import Event
from tests.durable.redis_server import RedisServer
from tests.durable.support import forked, in_loop
from tests.durable.working import LEASE, work
from tests.waiting import PATIENCE, turns, until

pytestmark = pytest.mark.judges

RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool
async def note(text: str) -> str:
    RAN.append(text)
    await turns()
    return text


def build_long(input: Any) -> Any:
    words = [entry for number in range(40) for entry in (f"word{number} " * 20, ("delay", 0.02))]
    return rxllm.stream(Fake([*words[:40], ToolCall("c0", "note", {"text": "once"})], words[40:]), input, tools=[note])


async def seen(runs: Runs, id: str, came: Callable[[int], object] = lambda count: None) -> list[Event]:
    """What a watcher sees that comes back whenever the store is away."""
    events: list[Event] = []

    async def has_ended() -> bool:
        try:
            async for event in runs.watch(id, after=len(events)):
                events.append(event)
                came(len(events))
        except RunError as error:
            if error.reason != "store_unavailable":
                raise
            return False
        return True

    await until(has_ended)
    return events


def waits(caplog: pytest.LogCaptureFixture) -> int:
    """How often the producer has waited for its store."""
    return caplog.text.count("is waiting for its store to become available")


def check(events: list[Event]) -> None:
    """The events are those of a run that nothing has disturbed."""
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    assert RAN == ["once"]
    assert state.chat_result == build_long("Hi").run().result
    assert events == list(build_long("Hi"))


@pytest.mark.parametrize("at", [3, 24, 35])
def test_a_redis_that_is_killed_and_comes_back_costs_nothing(
    own_redis: RedisServer, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[Event]:
        async with open_runs(own_redis.url, {"long": build_long}, lease=PATIENCE) as runs:
            id = await runs.start("long", "Hi")
            reached = asyncio.Event()
            watching = asyncio.create_task(seen(runs, id, lambda count: reached.set() if count >= at else None))
            await reached.wait()
            own_redis.stop(signal.SIGKILL)
            await until(lambda: waits(caplog) >= 2)
            await asyncio.to_thread(own_redis.start)
            return await watching

    check(in_loop(main))


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_holds_a_run_up_until_there_is_room(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, filler = small_disk / "runs.db", small_disk / "filler"

    async def main() -> list[Event]:
        async with open_runs(path, {"long": build_long}, lease=PATIENCE) as runs:
            id = await runs.start("long", "Hi")
            fill(filler)
            count = (await runs.get(id)).events
            await until(lambda: waits(caplog) >= 3)
            run = await runs.get(id)
            assert run.status == "running"
            assert run.events <= count + 20  # what had room in the file that is there
            filler.unlink()
            return await seen(runs, id)

    check(in_loop(main))


# Workers


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("redis_server").url


@contextmanager
def workers(place: str, count: int, ahead: float = 0.0) -> Iterator[dict[Connection, int]]:
    """The process ids of workers, by what they say."""
    with ExitStack() as stack:
        started = [stack.enter_context(forked(work, place, ahead)) for _ in range(count)]
        yield {pipe: process.pid or 0 for process, pipe in started}


def begun(said: tuple[str, str]) -> list[str]:
    """The text of a tool that has begun, if a worker says that."""
    return [said[1]] if said[0] == "begun" else []


def run_tools(pipes: list[Connection], has_ended: Callable[[], bool], ran: list[str]) -> None:
    """Let the tools of the workers go on, until `has_ended`."""
    while not has_ended():
        for pipe in wait(pipes, timeout=1.0):
            assert isinstance(pipe, Connection)
            if texts := begun(pipe.recv()):
                ran += texts
                pipe.send("go on")


def have_ended(runs: Runs, *ids: str) -> Callable[[], bool]:
    return lambda: all(runs.get(id).run().ended_at is not None for id in ids)


@pytest.mark.parametrize(
    ("place", "end"),
    [("sqlite", signal.SIGKILL), ("redis", signal.SIGKILL), ("redis", signal.SIGSTOP)],
    indirect=["place"],
)
def test_workers_share_runs_and_take_over_those_of_one_that_dies_or_hangs(place: str, end: signal.Signals) -> None:
    """One that hangs and wakes up again does not go on."""
    with open_runs(place, {"chat": print}) as runs, workers(place, 3) as pids:
        ids = {f"text {n}": runs.start("chat", f"text {n}", here=False).run() for n in range(12)}
        ran: list[str] = []
        while not ran:
            (first, *_) = [pipe for pipe in wait([*pids]) if isinstance(pipe, Connection)]
            ran += begun(first.recv())
        interrupted = ran[0]
        os.kill(pids[first], end)  # in the middle of its tool
        run_tools([pipe for pipe in pids if pipe is not first], have_ended(runs, *ids.values()), ran)
        assert runs.get(ids[interrupted]).run().status == "halted"
        if end == signal.SIGSTOP:
            os.kill(pids[first], signal.SIGCONT)
            first.send("go on")
        with suppress(EOFError):  # of one that is dead
            while f"this process has stopped executing run {ids[interrupted]}: " not in (said := first.recv())[1]:
                ran += begun(said)
        assert max(Counter(ran).values()) == 1
        for text, id in ids.items():
            result = runs.result(id).run()
            assert isinstance(result, ChatResult)
            if result.halted_reason == "approval":  # it was interrupted, and is left to us
                assert [call.metadata["interrupted"] for call in result.pending_tool_calls] == [True]
            else:
                assert result.output_text == "one two three four"
                assert text in ran


@pytest.mark.parametrize(("place", "ahead"), [("sqlite", -600), ("redis", -600), ("redis", 600)], indirect=["place"])
def test_the_clock_of_a_process_decides_nothing(place: str, ahead: int) -> None:
    """Which takes over what nobody has, and only that."""

    async def claim(store: Store, id: str, seconds: float) -> Lease:
        lease = await store.claim(id, "somebody who dies", seconds)
        assert lease is not None
        return lease

    with open_runs(place, {"chat": print}) as runs:
        held, expiring, free = [runs.start("chat", name, here=False).run() for name in ("held", "expiring", "free")]
        store = open_store(place)

        async def main() -> None:
            await claim(store, held, 500)
            await claim(store, expiring, LEASE)
            await store.close()

        in_loop(main)
        with workers(place, 1, ahead) as pids:
            run_tools([*pids], have_ended(runs, expiring, free), ran := [])
            later = runs.start("chat", "later", here=False).run()
            run_tools([*pids], have_ended(runs, later), ran)
        assert sorted(ran) == ["expiring", "free", "later"]
        assert runs.get(held).run().status == "running"

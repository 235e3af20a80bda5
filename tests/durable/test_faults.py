"""Runs whose store dies or is full, and whose processes compete for them, hang, or have a wrong clock."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, RunError, StreamCollector, ToolCall, tool
from rxllm.durable import Runs, open_runs, open_store
from rxllm.durable._redis import RedisStore
from rxllm.events import Event
from tests.durable.redis_server import RedisServer
from tests.runtime.support import ROOT

pytestmark = pytest.mark.long

RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool
async def note(text: str) -> str:
    RAN.append(text)
    await asyncio.sleep(0.05)
    return text


def build_long(input: Any) -> Any:
    words = [entry for number in range(40) for entry in (f"word{number} " * 20, ("delay", 0.02))]
    return rxllm.stream(Fake([*words[:40], ToolCall("c0", "note", {"text": "once"})], words[40:]), input, tools=[note])


async def seen(runs: Runs, id: str, came: Callable[[int], object] = lambda count: None) -> list[Event]:
    """What a watcher sees that comes back whenever the store is away."""
    events: list[Event] = []
    while True:
        try:
            async for event in runs.watch(id, after=len(events)):
                events.append(event)
                came(len(events))
        except RunError as error:
            if error.reason != "store_unavailable":
                raise
            await asyncio.sleep(0.05)
        else:
            return events


def check(events: list[Event]) -> None:
    """The events are those of a run that nothing has disturbed."""
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    assert RAN == ["once"]
    assert state.chat_result == build_long("Hi").run().result
    assert events == list(build_long("Hi"))


@pytest.mark.parametrize("at", [3, 24, 35])
def test_a_redis_that_is_killed_and_comes_back_costs_nothing(redis_server: RedisServer, at: int) -> None:
    async def main() -> list[Event]:
        async with open_runs(redis_server.url, {"long": build_long}, lease=20) as runs, asyncio.timeout(60):
            id = await runs.start("long", "Hi")
            reached = asyncio.Event()
            watching = asyncio.create_task(seen(runs, id, lambda count: reached.set() if count >= at else None))
            await reached.wait()
            redis_server.stop(signal.SIGKILL)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(redis_server.start)
            return await watching

    check(asyncio.run(main()))


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_holds_a_run_up_until_there_is_room(small_disk: Path) -> None:
    path, filler = small_disk / "runs.db", small_disk / "filler"

    async def main() -> list[Event]:
        async with open_runs(path, {"long": build_long}, lease=20) as runs, asyncio.timeout(60):
            id = await runs.start("long", "Hi")
            fill(filler)
            count = (await runs.list())[0].events
            await asyncio.sleep(1.5)
            assert (await runs.list())[0].status == "running"
            assert (await runs.list())[0].events <= count + 20  # what had room in the file that is there
            filler.unlink()
            return await seen(runs, id)

    check(asyncio.run(main()))


# Workers

APP = """
import asyncio, os, sys, time
{skew}
import rxllm
from rxllm.durable import open_runs

@rxllm.tool
async def note(text: str) -> str:
    with open("effects", "a") as file:
        file.write(text + "\\n")
    await asyncio.sleep(0.05)
    return text

def build(input):
    words = ["one ", ("delay", 0.02), "two ", ("delay", 0.02), "three "]

    def respond(request):  # a script would begin anew in another process
        if request.messages[-1].role == "tool":
            return [*words, ("delay", 0.2), "four"]
        return [*words, rxllm.ToolCall("c0", "note", dict(text=input))]

    return rxllm.stream(rxllm.Fake(respond), input, tools=[note])

runs = open_runs({place!r}, dict(chat=build), lease={lease})
"""
SKEW = "real = time.time; time.time = lambda: real() + {seconds}"


@contextmanager
def workers(folder: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    command = [sys.executable, "-m", "rxllm", "worker", "app:runs", "--every", "0.05"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    started = [subprocess.Popen(command, cwd=folder, env=env, **options) for _ in range(count)]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()  # it is there
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate(timeout=20)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("redis_server").url


async def ended(runs: Runs, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while {run.status for run in await runs.list()} - {"completed", "halted"}:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("place", "end"),
    [("sqlite", signal.SIGKILL), ("redis", signal.SIGKILL), ("redis", signal.SIGSTOP)],
    indirect=["place"],
)
def test_workers_share_runs_and_take_over_those_of_one_that_dies_or_hangs(
    tmp_path: Path, place: str, end: signal.Signals
) -> None:
    """One that hangs and wakes up again may not go on either."""
    (tmp_path / "app.py").write_text(APP.format(skew="", place=place, lease=1.0))

    async def main() -> None:
        async with open_runs(place, {"chat": print}) as runs:
            with workers(tmp_path, 3) as processes:
                ids = [await runs.start("chat", f"text {number}", here=False) for number in range(12)]
                effects = tmp_path / "effects"
                while not effects.exists():
                    await asyncio.sleep(0.005)
                processes[0].send_signal(end)
                await asyncio.sleep(1.0)
                if end == signal.SIGSTOP:
                    await asyncio.sleep(1.0)
                    processes[0].send_signal(signal.SIGCONT)
                await ended(runs)
            ran = Counter(effects.read_text().splitlines())
            assert max(ran.values()) == 1
            for number, id in enumerate(ids):
                result = await runs.result(id)
                assert isinstance(result, ChatResult)
                if result.halted_reason == "approval":  # it was interrupted, and is left to us
                    assert [call.metadata["interrupted"] for call in result.pending_tool_calls] == [True]
                else:
                    assert result.output_text == "one two three four"
                    assert ran[f"text {number}"] == 1

    asyncio.run(main())


@pytest.mark.parametrize(("place", "seconds"), [("sqlite", -600), ("redis", -600), ("redis", 600)], indirect=["place"])
def test_the_clock_of_a_process_decides_nothing(tmp_path: Path, place: str, seconds: int) -> None:
    skew = SKEW.format(seconds=seconds)
    (tmp_path / "app.py").write_text(APP.format(skew=skew, place=place, lease=1.0))
    words: list[Any] = [entry for _ in range(10) for entry in ("word ", ("delay", 0.1))]

    async def main() -> None:
        factories: dict[str, Any] = {"chat": lambda input: rxllm.stream(Fake(words), input)}
        async with open_runs(place, factories, lease=2.0) as runs:
            id = await runs.start("chat", "here")
            with workers(tmp_path, 1):
                result = await runs.result(id)
                assert isinstance(result, ChatResult)
                assert result.output_text == "word " * 10  # nobody took it over
                store = RedisStore(place) if "://" in place else open_store(place)
                other = await runs.start("chat", "there", here=False)
                lease = await store.claim(other, "somebody who dies", 1.0)
                if lease is None:  # the worker was quicker
                    await ended(runs)
                    return
                began = time.monotonic()
                await ended(runs)
                assert 1.0 < time.monotonic() - began < 10.0
                await store.close()

    asyncio.run(main())

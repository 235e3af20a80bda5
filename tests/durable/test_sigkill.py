"""A producer is killed; another process goes on, nothing is lost and nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rxllm import ChatResult, RunError, StreamCollector, Thread
from rxllm.durable import Runs, _sqlite, open_runs
from rxllm.events import Event, Nested, StepCompleted, StepRestarted, TextDelta
from tests.durable import crashing, kill_points
from tests.durable.support import forked
from tests.waiting import until

pytestmark = pytest.mark.judges

ASK = {"ask": "Go!"}
EFFECTS = ["note outside", "stamp x", "note inside", "approved pay", "pay 5"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kill_points, "FOLDER", tmp_path)
    return tmp_path


def kill(folder: Path, point: str) -> None:
    with forked(crashing.crash, folder, point) as (process, _):
        process.join()
        assert process.exitcode == -signal.SIGKILL


def lines(folder: Path, name: str) -> list[str]:
    file = folder / name
    return file.read_text().splitlines() if file.exists() else []


def effects(folder: Path) -> list[str]:
    return lines(folder, "effects")


async def watched(runs: Runs, id: str) -> list[Event]:
    """What a watcher sees that leaves and comes back."""
    seen: list[Event] = []
    while True:
        count = len(seen)
        async for event in runs.watch(id, after=len(seen)):
            seen.append(event)
            if len(seen) == count + 7:
                break
        else:
            return seen


async def recovered(runs: Runs) -> None:
    """Take the run over, if it has not ended."""

    async def is_taken() -> bool:
        return bool(await runs.recover()) or (await runs.get("run")).status == "completed"

    await until(is_taken)


def seconds_of_lease(folder: Path) -> float:
    """How long the lease on the run lasts by the clock of the store."""
    with closing(sqlite3.connect(folder / "runs.db")) as db:
        ((seconds,),) = db.execute(f"SELECT leased_until - {_sqlite._NOW} FROM runs")
    return seconds


def fold(events: list[Event]) -> StreamCollector:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state


async def go_on(folder: Path) -> tuple[ChatResult, list[Event], list[Event]]:
    """Recover the run, answer what was interrupted, and return the end with what a watcher saw before and after."""
    assert seconds_of_lease(folder) <= crashing.LEASE
    path = folder / "runs.db"
    async with open_runs(path, crashing.FACTORIES, lease=5) as runs, open_runs(path, {}) as watching:
        committed = await committed_events(watching)
        seen, _ = await asyncio.gather(watched(watching, "run"), recovered(runs))
        assert seen[: len(committed)] == committed
        result = await runs.result("run")
        assert isinstance(result, ChatResult)
        assert fold(seen).chat_result == result
        everything = seen
        while result.pending_tool_calls:
            result, events = await answer(runs, folder, result)
            everything = [*everything, *events]
        return result, committed, everything


async def committed_events(runs: Runs) -> list[Event]:
    """Everything that is committed now."""
    (run,) = await runs.list()
    return [event async for event in runs.watch("run").take(run.events)]


async def answer(runs: Runs, folder: Path, halted: ChatResult) -> tuple[ChatResult, list[Event]]:
    """Answer interrupted calls as a person would who looks into the file: run it, or say that it has run."""
    approvals: dict[str, Any] = {}
    results: dict[str, Any] = {}
    for call in halted.pending_tool_calls:
        assert call.metadata["interrupted"] is True
        line = f"note {call.arguments['text']}" if "text" in call.arguments else "pay 5"
        if line in effects(folder):
            results[call.id] = line
        else:
            approvals[call.id] = {"amount": 5} if call.name == "pay" else True
    id = await runs.start("chat", {"resume": halted, "approvals": approvals, "results": results})
    result = await runs.result(id)
    assert isinstance(result, ChatResult)
    return result, await watched(runs, id)


def contents(thread: Thread) -> list[str]:
    return [message.text for message in thread]


def shown(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> ChatResult:
    kill_points.FOLDER = tmp_path_factory.mktemp("undisturbed")
    result: ChatResult = crashing.build_chat(ASK).run().result
    assert effects(kill_points.FOLDER) == EFFECTS
    return result


POINTS = ["after:claim:1", "before:append:9", "stamp:after:1", "deep_note:before:1"]  # all of them: test_kills


@pytest.mark.parametrize("point", POINTS)
def test_another_process_goes_on(folder: Path, undisturbed: ChatResult, point: str) -> None:
    kill(folder, point)
    finished_before = effects(folder)
    result, committed, events = asyncio.run(go_on(folder))
    assert contents(result.thread) == contents(undisturbed.thread)
    assert (result.halted_reason, result.output_text) == ("completed", undisturbed.output_text)
    assert effects(folder)[: len(finished_before)] == finished_before
    done = effects(folder)
    assert sorted({*done}) == sorted(EFFECTS)
    again = [line for line in EFFECTS if done.count(line) > 1]
    assert again in ([], ["stamp x"])  # it is idempotent
    assert not again or "stamp x" in finished_before
    assert len(lines(folder, "asked")) <= 7 + 3  # what was open or not yet committed is asked for again, at any depth
    passed = (folder / "passed").read_text()
    assert all(event.delta in passed for event in events if isinstance(event, TextDelta))
    assert sum(isinstance(event, StepRestarted) for event in events) <= 1
    for event in committed:  # steps that were committed are not produced again
        if isinstance(event, StepCompleted):
            assert events.count(event) == 1


def test_the_depths_are_watched_too(folder: Path) -> None:
    kill(folder, "deep_note:before:1")
    _, _, events = asyncio.run(go_on(folder))
    assert any(isinstance(event, Nested) and event.path == ("c2", "c0") for event in events)


def test_a_run_that_was_cancelled_while_nobody_produced_it_ends(folder: Path) -> None:
    kill(folder, "note:before:1")

    async def main() -> None:
        async with open_runs(folder / "runs.db", crashing.FACTORIES) as runs:
            await runs.cancel("run")
            while (await runs.get("run")).status != "cancelled":
                await runs.recover()
            with pytest.raises(RunError, match="cancelled"):
                await runs.result("run")

    asyncio.run(main())
    assert effects(folder) == []


def test_the_journal_is_used_at_every_depth(folder: Path) -> None:
    """What had been answered is not asked again, also in the agents."""
    kill(folder, "pay:before:1")
    asked = lines(folder, "asked")
    asyncio.run(go_on(folder))
    assert len(lines(folder, "asked")) == len(asked) + 1 == 7  # the answer after the payment

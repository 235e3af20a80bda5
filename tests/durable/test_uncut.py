"""Runs whose answers are kept by the provider: another process reads on, and each answer is asked for once."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, StreamCollector
from rxllm.durable import Record, Runs, open_runs, open_store
from rxllm.events import StepRestarted
from rxllm.telemetry import RetryAttempt
from rxllm.testing.loopback import STALL, Loopback, Pause, Reply, Request
from tests.adapters.openai_responses.keeping import Keeper, call, number, number_of, text
from tests.adapters.openai_responses.support import COMPLETED, CREATED
from tests.durable import uncut
from tests.durable.support import forked, in_loop, take_over
from tests.examples import share
from tests.waiting import PATIENCE, until, wait_until

pytestmark = pytest.mark.sockets

QUESTION = "Double 21!"


def frames(body: Any) -> list[bytes]:
    if any(item.get("type") == "function_call_output" for item in body["input"]):
        return number(text("It ", "is ", "42", ". ", "Bye", "!"))
    return number(CREATED + call("c", "double", '{"x":21}') + COMPLETED)


class Replaying(Keeper):
    """A provider that also sends whole answers again. `replays` are their ids.

    One answer stalls, once: behind the text "It ", or after so many more frames as `stall_after` says.
    """

    def __init__(self, refusal: Reply | None = None) -> None:
        super().__init__(frames)
        self.replays: list[str] = []
        self.is_stalled = False
        self.sent = 0  # frames of the answer that has come last
        self._left: int | None = None
        self._refusal = refusal

    def stall_after(self, count: int | None) -> None:
        self._left, self.is_stalled = count, count is None

    def _reply(self, frames: Any) -> Reply:
        def sent() -> Iterator[bytes | Pause]:
            self.sent = 0
            for part in frames:
                if self._left == 0 and not self.is_stalled:
                    self.is_stalled = True
                    yield STALL
                yield part
                self.sent += 1
                if self._left is not None:
                    self._left -= 1
                elif not self.is_stalled and b'"It "' in part:
                    self.is_stalled = True
                    yield STALL

        return Reply(sent())

    def __call__(self, request: Request) -> Reply:
        path, _, query = request.path.partition("?")
        if request.method == "GET" and query == "stream=true":
            id = path.removeprefix("/responses/")
            self.replays.append(id)
            return self._refusal or self._reply(self.kept[id])
        return super().__call__(request)


def fold(events: list[Any]) -> rxllm.ChatResult:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_chat_result()


async def first_text(runs: Runs) -> None:
    async for event in runs.watch(uncut.ID):
        if "TextDelta" in repr(event):  # perhaps an agent's
            return


async def hand_over(server: Loopback, path: Path, other_url: str, observe: Any) -> list[Any]:
    """Leave a run in the middle of its second answer, take it over, and return its events."""
    async with open_runs(path, uncut.factories(server.url), lease=1.0) as runs:
        await runs.start("chat", QUESTION, id=uncut.ID)
        await first_text(runs)
    async with open_runs(path, uncut.factories(other_url, observe), lease=1.0) as runs:
        await take_over(runs, uncut.ID)
        return [event async for event in runs.watch(uncut.ID)]


def play(keeper: Replaying, path: Path, other_url: str | None = None, observe: Any = lambda value: None) -> list[Any]:
    seen: list[Any] = []
    with Loopback(keeper) as server:

        async def main() -> None:
            seen.extend(await hand_over(server, path, other_url or server.url, observe))

        in_loop(main)
    return seen


def test_the_process_that_takes_over_reads_the_same_answer(tmp_path: Path) -> None:
    keeper = Replaying()
    events = play(keeper, tmp_path / "runs.db")
    assert fold(events).output_text == "It is 42. Bye!"
    assert any(isinstance(event, StepRestarted) for event in events)
    assert (len(keeper.posts), keeper.replays, keeper.stops) == (2, ["r2"], [])


def losses(seen: list[Any]) -> list[AdapterError]:
    """Return the errors for which an earlier process's answer could not be read."""
    errors = [value.error for value in seen if isinstance(value, RetryAttempt) and value.attempt == 0]
    return [error for error in errors if isinstance(error, AdapterError)]


@pytest.mark.judges
@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_an_answer_that_is_lost_is_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    seen: list[Any] = []
    keeper = Replaying(refusal=Reply.of_json({"error": {"message": "Response not found."}}, status))
    assert fold(play(keeper, tmp_path / "runs.db", observe=seen.append)).output_text == "It is 42. Bye!"
    assert (len(keeper.posts), keeper.replays, keeper.stops) == (3, ["r2"], ["r2"])
    assert "the answer r2 was lost" in caplog.text
    (error,) = losses(seen)
    assert error.status == status


def test_another_base_url_asks_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    keeper = Replaying()
    with Loopback(Keeper(frames)) as other:
        events = play(keeper, tmp_path / "runs.db", other_url=other.url, observe=seen.append)
    assert fold(events).output_text == "It is 42. Bye!"
    assert (len(keeper.posts), keeper.replays) == (2, [])
    assert "the answer r2 was lost" in caplog.text
    (error,) = losses(seen)
    assert (error.reason, "but the base_url is now" in error.message) == ("invalid_request", True)


def test_a_cancelled_run_stops_its_answer(tmp_path: Path) -> None:
    keeper = Replaying()
    with Loopback(keeper) as server:

        async def main() -> None:
            async with open_runs(tmp_path / "runs.db", uncut.factories(server.url)) as runs:
                await runs.start("chat", QUESTION, id=uncut.ID)
                await first_text(runs)
                await runs.cancel(uncut.ID)
                await until(lambda: keeper.stops == ["r2"])

        in_loop(main)


class Late(Keeper):
    """A provider that does not begin the second answer before it `may`."""

    def __init__(self) -> None:
        super().__init__(frames)
        self.may = threading.Event()

    def _reply(self, frames: Any) -> Reply:
        def sent() -> Iterator[bytes | Pause]:
            while not self.may.is_set():
                yield Pause(0.001)
            yield frames[0]
            yield STALL

        return Reply(sent() if len(self.posts) == 2 else [b"".join(frames)])


def test_a_producer_that_stops_before_the_id_arrives_stops_the_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", uncut.factories(server.url)) as runs:
            await runs.start("chat", QUESTION, id=uncut.ID)
            await until(lambda: len(keeper.posts) == 2)
        assert keeper.stops == []
        keeper.may.set()
        await until(lambda: keeper.stops == ["r2"])  # its id was not recorded, so no process would read it

    with Loopback(keeper := Late()) as server:
        in_loop(main)


# Runs that end while no process produces them


def leave(keeper: Replaying, path: Path, then: Any, build: Any = uncut.factories) -> None:
    """Leave a run in the middle of an answer, and call ``then(runs, store)`` in what stands for another process."""

    async def main() -> None:
        factories = build(server.url)
        async with open_runs(path, factories, lease=1.0) as runs:
            await runs.start("chat", QUESTION, id=uncut.ID)
            await first_text(runs)
        store = open_store(path)
        async with open_runs(store, factories, lease=1.0, max_attempts=2) as runs:
            await then(runs, store)

    with Loopback(keeper) as server:
        in_loop(main)


async def cancel(runs: Runs, store: Any) -> None:
    await runs.cancel(uncut.ID)
    run = await runs.get(uncut.ID)
    assert (run.status, runs.produced) == ("cancelled", ())


def test_a_run_that_is_cancelled_while_no_process_produces_it_stops_its_answer(tmp_path: Path) -> None:
    leave(keeper := Replaying(), tmp_path / "runs.db", cancel)
    assert (len(keeper.posts), keeper.replays, keeper.stops) == (2, [], ["r2"])


def test_a_stop_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = Replaying()
    keeper._stop = Reply.of_json({"error": {"message": "busy"}}, 503)
    leave(keeper, tmp_path / "runs.db", cancel)
    assert keeper.stops == ["r2"]
    assert "openai did not stop the answer r2, which may still cost money: HTTP 503" in caplog.text


def test_recover_stops_the_answer_of_a_run_whose_producer_died_before_it_could_cancel(tmp_path: Path) -> None:
    async def recover(runs: Runs, store: Any) -> None:
        lease = await store.claim(uncut.ID, "dies", PATIENCE)
        await store.cancel(uncut.ID)
        assert (await runs.get(uncut.ID)).ended_at is None
        await store.release(lease)
        assert await runs.recover() == (uncut.ID,)
        await until(lambda: not runs.produced)
        assert (await runs.get(uncut.ID)).status == "cancelled"

    leave(keeper := Replaying(), tmp_path / "runs.db", recover)
    assert (len(keeper.posts), keeper.replays, keeper.stops) == (2, [], ["r2"])


def test_a_cancelled_run_replays_agents_up_to_the_answer_and_runs_no_tool(tmp_path: Path) -> None:
    began: list[int] = []

    @rxllm.tool(idempotent=True)
    async def hang(x: int) -> int:
        """Take very long."""
        began.append(x)
        await asyncio.Event().wait()
        return x

    def build(url: str) -> dict[str, Any]:
        engine = uncut.engine(url)
        agent = engine.as_tool(name="agent", description="Answers.")
        return {"chat": lambda question: rxllm.stream(engine, question, tools=[hang, agent])}

    def both(body: Any) -> list[bytes]:
        if [tool["name"] for tool in body["tools"]] == ["double"]:
            return frames({"input": [{"type": "function_call_output"}]})
        return number(CREATED + call("a", "hang", '{"x":1}') + call("b", "agent", '{"prompt":"Hi"}', 1) + COMPLETED)

    keeper = Replaying()
    keeper._answer = both
    leave(keeper, tmp_path / "runs.db", cancel, build)
    assert began == [1]
    assert (len(keeper.posts), keeper.replays, keeper.stops) == (2, [], ["r2"])


def test_a_run_without_its_factory_reports_the_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def cancel_elsewhere(runs: Runs, store: Any) -> None:
        async with open_runs(tmp_path / "runs.db", {}) as others:
            await cancel(others, store)

    leave(keeper := Replaying(), tmp_path / "runs.db", cancel_elsewhere)
    assert keeper.stops == []
    assert '"r2"' in caplog.text
    assert "were not stopped" in caplog.text


def test_a_run_with_too_many_attempts_reports_the_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def recover(runs: Runs, store: Any) -> None:
        for _ in range(2):
            lease = await store.claim(uncut.ID, "dies", 1.0)
            await store.append(lease, [], [Record("attempt", "dies")])
            await store.release(lease)
        await runs.recover()
        await until(lambda: not runs.produced)
        assert (await runs.get(uncut.ID)).status == "failed"

    leave(keeper := Replaying(), tmp_path / "runs.db", recover)
    assert (len(keeper.posts), keeper.stops) == (2, [])
    assert "were not stopped" in caplog.text


# Kills


def killed(path: Path, kills: int, seed: int) -> None:
    """Kill processes in the middle of an answer, at once or when its id is committed, and let the last one end."""
    keeper, drawn = Replaying(), random.Random(seed)

    async def answers() -> int:
        store = open_store(path)
        records = await store.records(uncut.ID)
        await store.close()
        return len([record for record in records if record.kind == "answer"])

    with Loopback(keeper) as server:
        lost = 0
        for _ in range(kills):
            keeper.stall_after(drawn.randint(0, 8))
            with forked(uncut.produce, server.url, str(path)) as (process, _):
                wait_until(lambda process=process: keeper.is_stalled or not process.is_alive())
                if not process.is_alive():
                    break
                if keeper.sent and drawn.random() < 0.5:
                    wait_until(lambda lost=lost: asyncio.run(answers()) == len(keeper.posts) - lost)
            lost = len(keeper.posts) - asyncio.run(answers())
        keeper.stall_after(None)
        with forked(uncut.produce, server.url, str(path)) as (process, _):
            process.join()
            assert process.exitcode == 0

    async def read() -> list[Any]:
        async with open_runs(path, {}) as runs:
            return [event async for event in runs.watch(uncut.ID)]

    assert fold(asyncio.run(read())).output_text == "It is 42. Bye!"
    assert keeper.stops == []
    # Only an answer whose id was not committed when the process was killed has been asked for again.
    assert (asyncio.run(answers()), len(keeper.posts)) == (2, 2 + lost)


@pytest.mark.judges
def test_kills_ask_for_each_answer_once(tmp_path: Path) -> None:
    killed(tmp_path / "runs.db", 3, 0)


@pytest.mark.judges
@pytest.mark.parametrize("seed", range(1, 1 + share(20)))
def test_many_kills_ask_for_each_answer_once(tmp_path: Path, seed: int) -> None:
    killed(tmp_path / "runs.db", 10, seed)


def test_the_script_is_numbered() -> None:
    assert number_of(frames({"input": []})[0]) == 0

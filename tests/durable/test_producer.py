"""What a producer does when its store is slow, away or lost, and when its tools run on other threads and loops."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, RunError, ToolCall, tool
from rxllm.durable import open_runs, open_store
from rxllm.durable._writer import MOST
from rxllm.durable.testing import Interposed
from rxllm.events import Event, StepRestarted, TextDelta, ToolExecutionStarted
from tests.durable.support import RAN, add, gated, in_loop, take_over
from tests.programs import python
from tests.runtime.support import ROOT
from tests.waiting import turns, until


def build_chat(input: Any) -> Any:
    return rxllm.stream(Fake(ToolCall("c0", "add", {"x": 1}), ["t", "w", "o"]), input, tools=[add])


class Fault:
    """Fails the calls of `method` while there are `faults` left."""

    def __init__(self, method: str, faults: int) -> None:
        self.method, self.faults = method, faults

    def __call__(self, method: str, arguments: tuple[Any, ...]) -> None:
        if method == self.method and self.faults:
            self.faults -= 1
            raise RunError("store_unavailable")


@pytest.mark.parametrize("method", ["append", "renew", "wait", "release"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_is_away_for_a_while_loses_and_doubles_nothing(tmp_path: Path, method: str, when: str) -> None:
    async def main() -> None:
        store = Interposed(open_store(tmp_path / "runs.db"), **{when: Fault(method, 3)})  # type: ignore[arg-type]
        open_here = open_runs(store, {"chat": build_chat}, flush_after=0.0)
        async with open_here as runs, open_runs(tmp_path / "runs.db", {}) as others:
            id = await runs.start("chat", "Hi")
            events = [event async for event in others.watch(id)]
            assert events == [event async for event in build_chat("Hi")]

    in_loop(main)
    assert RAN == [1, 1]  # one of them undisturbed


def test_a_store_that_stays_away_longer_than_the_lease_ends_the_producer(tmp_path: Path) -> None:
    closed: list[str] = []

    def build(input: Any) -> Any:
        return build_chat(input).finally_action(lambda: closed.append("closed"))

    async def main() -> None:
        fault = Fault("append", 0)
        store = Interposed(open_store(tmp_path / "runs.db"), before=fault)
        async with open_runs(store, {"chat": build}, lease=0.4) as runs:
            fault.faults = 10**9
            id = await runs.start("chat", "Hi")
            await until(lambda: not runs.produced)
            assert closed == ["closed"]
            fault.faults = 0
            await take_over(runs, id)
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert result.output_text == "two"

    in_loop(main)
    assert RAN == [1]  # it began when that could be committed


@pytest.mark.parametrize("method", ["append", "renew", "wait", "load", "records", "events"])
def test_any_other_error_of_a_store_ends_the_producer_and_is_logged_once(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_broken = True
    first = Fake(["t", ("delay", 60)])

    def fail(called: str, arguments: tuple[Any, ...]) -> None:
        if is_broken and called == method:
            raise OSError("no such disk")

    def build(input: Any) -> Any:
        return rxllm.stream(first, input) if is_broken else build_chat(input)

    async def main() -> None:
        nonlocal is_broken
        store = Interposed(open_store(tmp_path / "runs.db"), after=fail)
        async with open_runs(store, {"chat": build}, flush_after=0.0, lease=0.5) as runs:
            id = await runs.start("chat", "Hi", here=method != "events")
            if method == "events":  # is read by whoever recovers it
                lease = await store.claim(id, "me", 60)
                await store.append(lease, [rxllm.serializer.to_json(TextDelta("t")).encode()])
                await store.release(lease)
                await runs.recover()
            await until(lambda: not runs.produced)
            gc.collect()
            assert len(caplog.records) == 1, caplog.text
            assert f"this process has stopped executing run {id}: the store failed" in caplog.text
            assert caplog.text.count("Traceback") == 1
            is_broken = False
            await take_over(runs, id)
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert result.output_text == "two"

    in_loop(main)


def test_after_a_close_that_gives_up_on_its_store_the_producer_calls_it_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    async def stall(method: str, arguments: tuple[Any, ...]) -> None:
        calls.append(method)
        if method == "append":
            await asyncio.Event().wait()

    async def main() -> None:
        store = Interposed(open_store(tmp_path / "runs.db"), before=stall)
        async with open_runs(store, {"chat": build_chat}, flush_after=0.0, lease=0.3) as runs:
            id = await runs.start("chat", "Hi")
            await until(lambda: "append" in calls)
        await until(lambda: not runs.produced)
        assert calls[calls.index("close") + 1 :] in ([], ["release"])
        assert [f"this process has stopped executing run {id}" in record.getMessage() for record in caplog.records] == [
            True
        ]
        async with open_runs(tmp_path / "runs.db", {"chat": build_chat}) as others:
            await take_over(others, id)
            result = await others.result(id)
            assert isinstance(result, ChatResult)
            assert result.output_text == "two"

    in_loop(main)


@pytest.mark.judges
def test_a_slow_store_holds_the_model_back(tmp_path: Path) -> None:
    waiting: list[int] = []
    emitted = 0

    async def words(request: Any, call: Any) -> Any:
        nonlocal emitted
        for _ in range(6000):
            emitted += 1
            yield TextDelta("a")

    async def before(method: str, arguments: tuple[Any, ...]) -> None:
        if method == "append":
            waiting.append(len(arguments[1]))
            seen = -1
            while seen != emitted:  # until the model has run ahead as far as it can
                seen = emitted
                await turns()

    async def main() -> None:
        store = Interposed(open_store(tmp_path / "runs.db"), before=before)
        async with open_runs(store, {"words": lambda input: rxllm.stream_generate(words, input)}) as runs:
            id = await runs.start("words", "Hi")
            response = await runs.result(id)
            assert isinstance(response, rxllm.Response)
            assert len(response.output_text) == 6000

    in_loop(main)
    assert max(waiting) <= MOST + 2 * 64
    assert emitted == 6000


def test_two_processes_that_claim_a_run_do_not_both_have_it(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "runs.db"
        async with open_runs(path, {"chat": build_chat}) as runs, open_runs(path, {"chat": build_chat}) as others:
            ids = [await runs.start("chat", "Hi", here=False) for _ in range(10)]
            taken = await asyncio.gather(runs.recover(), others.recover())
            assert sorted([*taken[0], *taken[1]]) == sorted(ids)
            for id in ids:
                await runs.result(id)

    in_loop(main)
    assert RAN == [1] * 10


def test_a_tool_that_runs_a_chat_in_its_thread_is_noted_too(tmp_path: Path) -> None:
    inner = Fake(ToolCall("c0", "add", {"x": 1}), "inner")

    @tool(idempotent=True)
    def ask(question: str) -> str:
        RAN.append("ask")
        text = rxllm.chat(inner, question, tools=[add]).run().output_text  # on another loop
        if RAN.count("ask") == 1:
            raise SystemExit  # a handler's exit is an error of the tool
        return text

    def build(input: Any) -> Any:
        return rxllm.stream(Fake(ToolCall("c0", "ask", {"question": "?"}), "done"), input, tools=[ask])

    with open_runs(tmp_path / "runs.db", {"chat": build}) as runs:
        assert runs.result(runs.start("chat", "Hi").run()).run().output_text == "done"  # type: ignore[union-attr]
    assert RAN == ["ask", 1]


def test_a_run_of_another_loop_is_watched_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", {"chat": build_chat}) as runs:
            id = await asyncio.to_thread(runs.start("chat", "Hi").run)  # as in a notebook: on rxllm's own loop
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert result.output_text == "two"

    in_loop(main)


def test_a_started_run_does_not_know_who_started_it(tmp_path: Path) -> None:
    from contextvars import ContextVar

    user: ContextVar[str] = ContextVar("user", default="nobody")

    def build(input: Any) -> Any:
        RAN.append(user.get())
        return rxllm.stream(Fake("Hi"), input)

    with open_runs(tmp_path / "runs.db", {"chat": build}) as runs:
        user.set("Ada")
        runs.result(runs.start("chat", "Hi").run()).run()
    assert RAN == ["nobody"]


def test_the_start_of_a_tool_is_committed_before_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    seen: list[list[Event]] = []

    @tool(name="add")
    async def look(x: int) -> int:
        async with open_runs(path, {}) as others:
            (run,) = await others.list()
            seen.append([event async for event in others.watch(run.id).take(run.events)])
        return x + 1

    def build(input: Any) -> Any:
        return rxllm.stream(Fake(ToolCall("c0", "add", {"x": 1}), "two"), input, tools=[look])

    with open_runs(path, {"chat": build}, flush_after=60.0) as runs:
        runs.result(runs.start("chat", "Hi").run()).run()
    assert isinstance(seen[0][-1], ToolExecutionStarted)


@pytest.mark.judges
def test_a_program_that_ends_waits_for_its_run(tmp_path: Path) -> None:
    code = f"""
import rxllm
from rxllm.durable import open_runs
build = lambda input: rxllm.stream(rxllm.Fake(["Once", ("delay", 0.3), " upon"]), input)
runs = open_runs({str(tmp_path / "runs.db")!r}, {{"story": build}})
print(runs.start("story", "Hi").run())
"""
    program = python("-c", code, cwd=ROOT)
    assert (program.returncode, program.stderr) == (0, "")
    with open_runs(tmp_path / "runs.db", {}) as runs:
        assert [run.status for run in runs.list().run()] == ["completed"]


def test_a_loop_that_ends_gives_the_run_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def build(input: Any) -> Any:
        return rxllm.stream(Fake(["Once", ("delay", 60)]), input)

    left = open_runs(path, {"story": build})

    async def main() -> str:
        id = await left.start("story", "Hi")
        await left.watch(id).take(2)
        return id  # without close

    id = asyncio.run(main())
    with open_runs(path, {"story": lambda input: rxllm.stream(Fake("Once"), input)}) as runs:
        assert runs.recover(every=1.0).first().run() == (id,)
        restarts = [event for event in runs.watch(id) if isinstance(event, StepRestarted)]
        assert restarts == [StepRestarted("recovered", 1)]
    left.close().run()


@pytest.mark.judges
def test_importing_rxllm_imports_no_store() -> None:
    code = "import rxllm, sys; assert not {'sqlite3', 'redis', 'rxllm.durable'} & {*sys.modules}"
    assert python("-c", code, cwd=ROOT).returncode == 0
    assert sys.modules["rxllm"]


def test_a_run_whose_store_stalls_during_close_goes_on_elsewhere_when_its_lease_expires(tmp_path: Path) -> None:
    """A store that does not answer cannot take the lease back, and `close` waits for it no longer than for a lease."""

    def build(*pieces: Any) -> Any:
        return lambda input: rxllm.stream(gated(*pieces), input)

    async def main() -> None:
        path, is_stalled, answers = tmp_path / "runs.db", asyncio.Event(), asyncio.Event()

        async def stall(method: str, arguments: tuple[Any, ...]) -> None:
            if is_stalled.is_set() and method in ("append", "release"):
                await answers.wait()

        store = Interposed(open_store(path), before=stall)
        slow = open_runs(store, {"chat": build("One, ", asyncio.Event(), "two.")}, lease=0.5)
        id = await slow.start("chat", "Count!")
        await slow.watch(id).first()
        is_stalled.set()
        await slow.close()
        async with open_runs(path, {"chat": build("One, ", "two.")}) as runs:
            await take_over(runs, id)
            assert (await runs.result(id)).output_text == "One, two."
        answers.set()
        await until(lambda: not slow.produced)

    in_loop(main)

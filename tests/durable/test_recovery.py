"""Where a recovered stream leads: to what an earlier one has left, to other steps, or to the death of its process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import reactivex

import rxllm
from rxllm import AdapterError, ChatResult, Fake, Request, RunError, ToolCall
from rxllm import operators as ops
from rxllm.durable import Record, Runs, Store, open_runs, open_store
from rxllm.durable import _journal as journal
from rxllm.events import StepCompleted
from rxllm.pipelines import _call as pipelines_call
from tests.durable.support import RAN, add, forked, in_loop, take_over
from tests.durable.working import die_at_once
from tests.waiting import until


async def stopped_in_the_second_step(path: Path, build: Any) -> str:
    """Return the id of a run that is given back when its first step is committed."""
    async with open_runs(path, {"chat": build}) as runs:
        id = await runs.start("chat", "Hi")
        await runs.watch(id).filter(lambda event: isinstance(event, StepCompleted)).first()
    return id


async def failure(runs: Runs, id: str) -> str:
    with pytest.raises(RunError) as caught:
        await runs.result(id)
    return caught.value.reason


def calls(request: Request) -> bool:
    return request.messages[-1].role != "tool"


CALL = ToolCall("c0", "add", {"x": 1})


@pytest.mark.parametrize("winner", [0, 1])
def test_a_race_that_was_won_is_won_by_the_same_again(tmp_path: Path, winner: int) -> None:
    """In the first process one of the two is slow, and in the second the other."""

    def build(slow: int, *end: Any) -> Any:
        def lane(number: int) -> Any:
            delay = [("delay", 60)] if number == slow else []
            return Fake(lambda request: [*delay, f"{number}", CALL] if calls(request) else [*end, "Bye"])

        return lambda input: rxllm.race(*(rxllm.stream(lane(number), input, tools=[add]) for number in range(2)))

    async def main() -> None:
        path = tmp_path / "runs.db"
        id = await stopped_in_the_second_step(path, build(1 - winner, ("delay", 60)))
        async with open_runs(path, {"chat": build(winner)}) as runs:
            await take_over(runs, id)
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert [message.text for message in result.thread] == ["Hi", str(winner), "2", "Bye"]

    in_loop(main)


def test_each_of_two_equal_requests_gets_its_own_answer_again(tmp_path: Path) -> None:
    def build(first: float) -> Any:
        number = count()

        def model(request: Request) -> Any:
            lane = next(number) % 2
            return [("delay", 60 if lane == first else 0.0), f"{lane}", CALL] if calls(request) else ("delay", 60)

        def last(request: Request) -> Any:
            return model(request) if calls(request) else "Bye"

        operators = [ops.hedge(after=0.01)]
        return lambda input: rxllm.stream(
            rxllm.Engine(Fake(model if first == 0 else last), tools=[add], operators=operators), input
        )

    async def main() -> None:
        path = tmp_path / "runs.db"
        id = await stopped_in_the_second_step(path, build(0))
        async with open_runs(path, {"chat": build(1)}) as runs:
            await take_over(runs, id)
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert [message.text for message in result.thread] == ["Hi", "1", "2", "Bye"]

    in_loop(main)


def test_a_guard_that_has_tripped_trips_again(tmp_path: Path) -> None:
    """Its process dies before the end is committed; the model is not asked for something else."""
    asked: list[str] = []

    def build(text: str) -> Any:
        def model(request: Request) -> Any:
            asked.append(text)
            return [f"{text} is one. ", "Two ", ("delay", 60), "or three. "]

        def check(part: str) -> str | None:
            return "no" if part.startswith("Secret") else None

        return lambda input: rxllm.stream(rxllm.Engine(Fake(model), operators=[ops.guard(check)]), input)

    async def main() -> None:
        path = tmp_path / "runs.db"
        store = open_store(path)
        async with open_runs(path, {"chat": build("Secret")}) as runs:
            id = await runs.start("chat", "Hi")
            first = await runs.result(id)
        records = await store.records(id)
        assert [record.kind for record in records] == ["left"]
        async with open_runs(path, {"chat": build("Other")}) as runs:
            again = await runs.start("chat", "Hi", here=False)
            await noted(store, again, *records)
            assert again in await runs.recover()
            assert await runs.result(again) == first
        await store.close()
        assert asked == ["Secret"]

    in_loop(main)


async def noted(store: Store, id: str, *records: Record) -> None:
    """Leave the run as a process leaves it that has died: with these records, and a lease that has ended."""
    lease = await store.claim(id, "somebody", 0.0)
    assert lease is not None
    await store.append(lease, [], records)


def test_a_replay_that_does_not_end_as_recorded_diverges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LEFT_SECONDS", 0.1)

    def build(*operators: Any) -> Any:
        return lambda input: rxllm.stream(rxllm.Engine(Fake(["One. ", "Two. "]), operators=operators), input)

    async def main() -> None:
        path = tmp_path / "runs.db"
        store = open_store(path)
        async with open_runs(path, {"chat": build(ops.guard(lambda text: False))}) as runs:
            id = await runs.start("chat", "Hi")
            await runs.result(id)
        async with open_runs(path, {"chat": build()}) as runs:
            again = await runs.start("chat", "Hi", here=False)
            await noted(store, again, *await store.records(id))
            await runs.recover()
            assert await failure(runs, again) == "diverged"
        await store.close()

    in_loop(main)


def test_a_factory_that_builds_another_chat_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "QUIET_SECONDS", 0.2)

    def build(prompt: str) -> Any:
        model = Fake(lambda request: [prompt, CALL] if calls(request) else ["Bye", ("delay", 60)])
        return lambda input: rxllm.stream(model, f"{prompt}: {input}", tools=[add])

    async def main() -> None:
        path = tmp_path / "runs.db"
        id = await stopped_in_the_second_step(path, build("Monday"))
        async with open_runs(path, {"chat": build("Tuesday")}) as runs:
            await take_over(runs, id)
            assert await failure(runs, id) == "diverged"

    in_loop(main)


def system_of_engine(prompt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"system": prompt}, {}


def system_of_call(prompt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {"system": prompt}


def prepared_system(prompt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    added = rxllm.system(prompt)
    return {"prepare": [lambda request: replace(request, messages=(added, *request.messages))]}, {}


@pytest.mark.parametrize("place", [system_of_engine, system_of_call, prepared_system])
def test_a_run_continues_with_the_same_system_prompt_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    """The prompt is no part of the thread, but of the recorded request, in whichever way it got there."""
    monkeypatch.setattr(journal, "QUIET_SECONDS", 0.2)

    def build(prompt: str, *end: Any) -> Any:
        settings, option = place(prompt)
        model = Fake(lambda request: CALL if calls(request) else [request.messages[0].text, *end])
        return lambda input: rxllm.stream(rxllm.Engine(model, tools=[add], **settings), input, **option)

    async def main() -> None:
        for version in ("old", "new"):
            path = tmp_path / f"{version}.db"
            id = await stopped_in_the_second_step(path, build("old", ("delay", 60)))
            async with open_runs(path, {"chat": build(version)}) as runs:
                await take_over(runs, id)
                if version == "new":
                    assert await failure(runs, id) == "diverged"
                else:
                    result = await runs.result(id)
                    assert isinstance(result, ChatResult)
                    assert [message.text for message in result.thread] == ["Hi", "", "2", "old"]

    in_loop(main)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("at", ["begin", "finish"])
def test_after_a_changed_prompt_neither_a_model_is_asked_nor_a_tool_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, at: str
) -> None:
    """Each version's model gives its calls ids of its own, as those of providers do."""
    monkeypatch.setattr(journal, "QUIET_SECONDS", 0.2)
    asked: list[str] = []

    def build(version: str) -> Any:
        def respond(request: Request) -> Any:
            asked.append(version)
            return ToolCall(version, "add", {"x": 1}) if calls(request) else ["Bye", ("delay", 60)]

        engine = rxllm.Engine(Fake(respond), tools=[add])
        if not depth:
            return lambda input: rxllm.stream(engine, [rxllm.system(version), rxllm.user(input)])
        agent = engine.as_tool(name="adder", description="Adds.", system=version)
        model = Fake(ToolCall("agent", "adder", {"prompt": "Add!"}), "Bye")
        return lambda input: rxllm.stream(model, input, tools=[agent])

    async def main() -> None:
        path = tmp_path / "runs.db"
        store = open_store(path)
        async with open_runs(path, {"chat": build("old")}) as runs:
            id = await runs.start("chat", "Hi")
            await until(lambda: len(asked) == 2)
        records = [record for record in await store.records(id) if record.kind != "stop"]
        last = max(n for n, record in enumerate(records) if record.kind == at)
        asked.clear()
        RAN.clear()
        async with open_runs(path, {"chat": build("new")}) as runs:
            again = await runs.start("chat", "Hi", here=False)
            await noted(store, again, *records[: last + 1])
            assert again in await runs.recover()
            assert await failure(runs, again) == "diverged"
        await store.close()
        assert (asked, RAN) == ([], [])

    in_loop(main)


When = Callable[[Sequence[Record]], bool]


async def recovered(path: Path, old: Any, new: Any, *, when: When, input: Any = "Hi") -> Any:
    """Run `old` until its records are so, let its process die, and return the result with `new`, or its error."""
    store = open_store(path)
    async with open_runs(path, {"chat": old}) as runs:
        id = await runs.start("chat", input)
        records = await until(lambda: store.records(id), when)
        await runs.cancel(id)
    RAN.clear()
    async with open_runs(path, {"chat": new}) as runs:
        again = await runs.start("chat", input, here=False)
        await noted(store, again, *records)
        assert again in await runs.recover()
        try:
            return await runs.result(again)
        except RunError as error:
            return error.reason
        finally:
            await store.close()


def kinds(*expected: str) -> When:
    return lambda records: [record.kind for record in records] == [*expected]


FINISHED = kinds("response", "begin", "finish")


@pytest.mark.parametrize("tardy", [0, 1])
def test_two_chats_of_a_tool_go_on_of_which_one_had_run_a_tool(tmp_path: Path, tardy: int) -> None:
    """The other's first answer was still coming, so its request is new, and that is right."""

    def build(*end: Any) -> Any:
        def respond(request: Request) -> Any:
            first = request.messages[0].text
            return [CALL] if first != str(tardy) and calls(request) else [first, *end]

        @rxllm.tool(idempotent=True)
        async def both() -> str:
            chats = (rxllm.chat(Fake(respond), str(number), tools=[add]) for number in range(2))
            return " ".join(result.output_text for result in await asyncio.gather(*chats))

        model = Fake(lambda request: ToolCall("both", "both", {}) if calls(request) else request.messages[-1].text)
        return lambda input: rxllm.stream(model, input, tools=[both])

    async def main() -> None:
        when = kinds("response", "begin", "response", "begin", "finish")
        result = await recovered(tmp_path / "runs.db", build(("delay", 60)), build(), when=when)
        assert (result.output_text, RAN) == ("0 1", [])

    in_loop(main)


def test_a_fallback_answers_again_whose_first_engine_is_open_to_calls_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps calls from the first engine, as `circuit_breaker` does, is a process's own, and noted nowhere."""
    monkeypatch.setattr(journal, "QUIET_SECONDS", 0.2)
    asked: list[str] = []

    def build(is_open: bool) -> Any:
        def first(request: Request) -> Any:
            asked.append(request.messages[-1].role)
            return "First."

        def breaker(events: Any) -> Any:
            return rxllm.Stream.of(reactivex.throw(AdapterError("provider_unavailable"))) if is_open else events

        second = Fake(lambda request: CALL if calls(request) else ("delay", 60))
        operators = [breaker, ops.fallback(rxllm.Engine(second, model="second"))]
        return lambda input: rxllm.stream(rxllm.Engine(Fake(first), tools=[add], operators=operators), input)

    async def main() -> None:
        result = await recovered(tmp_path / "runs.db", build(True), build(False), when=FINISHED)
        assert (result.output_text, RAN, asked) == ("First.", [], ["tool"])

    in_loop(main)


@pytest.mark.parametrize("has_approval", [False, True])
def test_a_tool_that_has_run_does_not_under_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_approval: bool
) -> None:
    """The session's id and the messages before a call are part of its key, and a call that is resumed asks nothing."""
    monkeypatch.setattr(journal, "QUIET_SECONDS", 0.2)
    approved = rxllm.Thread() + "Hi" + rxllm.Message("assistant", "", tool_calls=(CALL,))

    def build(version: str) -> Any:
        model = Fake(lambda request: CALL if calls(request) else ["Bye", ("delay", 60)])
        if not has_approval:
            return lambda input: rxllm.stream(model, input, tools=[add], session_id=version)
        thread = rxllm.Thread() + rxllm.system(version) + approved
        return lambda input: rxllm.stream_resume(model, thread, tools=[add], approvals={"c0": True})

    async def main() -> None:
        when = kinds("begin", "finish") if has_approval else FINISHED
        assert await recovered(tmp_path / "runs.db", build("old"), build("new"), when=when) == "diverged"
        assert RAN == []

    in_loop(main)


def test_an_agent_whose_time_is_up_while_its_request_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure is not told to the model, which would call it again."""
    monkeypatch.setattr(journal, "QUIET_SECONDS", 0.3)
    asked: list[str] = []

    def build(version: str) -> Any:
        model = Fake(lambda request: CALL if calls(request) else ["Bye", ("delay", 60)])
        agent = rxllm.Engine(model, tools=[add]).as_tool(name="adder", description="Adds.", system=version)
        agent = replace(agent, timeout=0.2) if version == "new" else agent

        def respond(request: Request) -> Any:
            asked.append(version)
            return ToolCall(f"{len(request.messages)}", "adder", {"prompt": "Add!"})

        return lambda input: rxllm.stream(Fake(respond), input, tools=[agent], max_turns=3)

    async def main() -> None:
        when = kinds("response", "begin", "response", "begin", "finish")
        assert await recovered(tmp_path / "runs.db", build("old"), build("new"), when=when) == "diverged"
        assert (RAN, [version for version in asked if version == "new"]) == ([], [])

    in_loop(main)


# Attempts


@pytest.mark.judges
def test_a_run_that_kills_its_processes_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "runs.db"
    with open_runs(path, {"chat": print}) as runs:
        runs.start("chat", id="run", here=False).run()
    for _ in range(3):
        with forked(die_at_once, str(path)) as (process, _):
            process.join()
            assert process.exitcode == -signal.SIGKILL

    async def main() -> None:
        async with open_runs(path, {"chat": print}, max_attempts=3) as runs:
            await take_over(runs, "run")
            with pytest.raises(RunError, match=r"\(run\): 3 processes have died at the same point"):
                await runs.result("run")

    in_loop(main)
    assert "error in run run: RunError('too_many_attempts'" in caplog.text


ATTEMPT, STOP, RESPONSE = Record("attempt", ""), Record("stop", ""), Record("response", "", b"[]")


@pytest.mark.parametrize(
    ("records", "fails"),
    [
        ([], False),
        ([ATTEMPT], False),
        ([ATTEMPT, ATTEMPT], True),
        ([ATTEMPT, ATTEMPT, ATTEMPT], True),
        ([ATTEMPT, STOP, ATTEMPT], False),  # one has not died
        ([STOP, ATTEMPT, ATTEMPT], False),
        ([ATTEMPT, RESPONSE, ATTEMPT], False),  # the second got further
        ([ATTEMPT, RESPONSE, ATTEMPT, ATTEMPT], True),
    ],
)
def test_producers_that_die_without_getting_further_are_counted(
    tmp_path: Path, records: list[Record], fails: bool
) -> None:
    async def main() -> None:
        path = tmp_path / "runs.db"
        store = open_store(path)
        async with open_runs(path, {"chat": lambda input: rxllm.stream(Fake("Hi"), input)}, max_attempts=3) as runs:
            id = await runs.start("chat", "Hi", here=False)
            await noted(store, id, *records)
            assert await runs.recover() == (id,)
            if fails:
                assert await failure(runs, id) == "too_many_attempts"
            else:
                assert isinstance(await runs.result(id), ChatResult)
        await store.close()

    in_loop(main)


def test_a_released_run_does_not_count_as_an_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "runs.db"
        model = Fake(lambda request: ["One", ("delay", 60)])
        for number in range(4):
            factories: dict[str, Any] = {"chat": lambda input: rxllm.stream(model, input)}
            async with open_runs(path, factories, max_attempts=2) as runs:
                if number:
                    await take_over(runs, "run")
                else:
                    await runs.start("chat", "Hi", id="run")
                await until(lambda number=number: len(model.requests) == number + 1)
                assert [run.status for run in await runs.list()] == ["running"]

    in_loop(main)


# Descriptions


@pytest.mark.parametrize("form", ["new", "old"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_changed_description_of_a_tool_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, form: str
) -> None:
    """Its parameters may have a property of that name. Journals of the old form are read where nothing has changed."""
    monkeypatch.setattr(journal, "QUIET_SECONDS", 0.2)
    asked: list[str] = []

    def build(version: str, *end: Any) -> Any:
        text = "Adds." if form == "old" else version
        properties = {"x": {"type": "integer", "description": text}, "description": {"type": "string"}}
        schema = {"type": "object", "properties": properties}
        tool = rxllm.tool(name="add", description=text, schema=schema, handler=lambda arguments: RAN.append(1))

        def respond(request: Request) -> Any:
            asked.append(version)
            return CALL if calls(request) else ["Bye", *end]

        engine = rxllm.Engine(Fake(respond), tools=[tool])
        if not depth:
            return lambda input: rxllm.stream(engine, input)
        agent = engine.as_tool(name="adder", description=text)
        model = Fake(lambda request: ToolCall("agent", "adder", {"prompt": "Add!"}) if calls(request) else "Bye")
        return lambda input: rxllm.stream(model, input, tools=[agent])

    async def main() -> None:
        path = tmp_path / "runs.db"
        when = kinds(*["response", "begin"] * depth, *["response", "begin", "finish"])
        if form == "old":
            monkeypatch.setattr(pipelines_call, "undescribed", lambda request: request)
        old, new = build("old", ("delay", 60)), build("new")
        store = open_store(path)
        async with open_runs(path, {"chat": old}) as runs:
            id = await runs.start("chat", "Hi")
            records = await until(lambda: store.records(id), when)
            await runs.cancel(id)
        monkeypatch.undo()
        RAN.clear()
        asked.clear()
        async with open_runs(path, {"chat": new}) as runs:
            again = await runs.start("chat", "Hi", here=False)
            await noted(store, again, *records)
            assert again in await runs.recover()
            result = await runs.result(again)
        await store.close()
        assert isinstance(result, ChatResult)
        assert (RAN, asked) == ([], ["new"])

    in_loop(main)


def test_another_parameter_of_a_tool_is_another_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "QUIET_SECONDS", 0.2)

    def build(name: str) -> Any:
        schema = {"type": "object", "properties": {name: {"type": "integer"}}}
        tool = rxllm.tool(name="add", description="Adds.", schema=schema, handler=lambda arguments: 1)
        model = Fake(lambda request: CALL if calls(request) else ["Bye", ("delay", 60)])
        return lambda input: rxllm.stream(model, input, tools=[tool])

    async def main() -> None:
        assert await recovered(tmp_path / "runs.db", build("x"), build("y"), when=FINISHED) == "diverged"

    in_loop(main)

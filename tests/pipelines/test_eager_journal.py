"""Tools that start early in a journaled stream: after a crash, none of them runs a second time by itself."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Engine, Fake, Tool, ToolCall, tool
from rxllm import operators as ops
from rxllm.events import ErrorEvent, Event, StepRestarted, TextDelta, ToolExecutionStarted
from rxllm.runtime import EagerJournal, RecallingJournal
from rxllm.testing import World, simulate
from tests.operators.journal import Entry, KeepingJournal, MemoryJournal

RAN: list[str] = []
TURN = ["First. ", ToolCall("c0", "look", {}, "{}"), ("delay", 0.05), "Second. ", ("delay", 60)]
CALL = TURN[1]


def looking(*, hangs: bool = False, **flags: Any) -> Tool:
    """A tool that notes that it has run."""

    async def look(arguments: Any) -> str:
        RAN.append("look")
        if hangs:
            await asyncio.Event().wait()
        return "seen"

    return tool(name="look", handler=look, **{"eager": True, **flags})


def says(event: Event, text: str) -> bool:
    return isinstance(event, TextDelta) and event.delta == text


def chat(model: Any, *tools: Tool, journal: Any, **options: Any) -> rxllm.Stream[Event]:
    return rxllm.stream(model, "Hi", tools=tools, **options).pipe(ops.journaled(journal), ops.verify())


def played(events: rxllm.Stream[Any]) -> Any:
    """The last of `events` in virtual time: a tool ends before the model's next word, however slow the machine is."""

    async def app(world: World) -> Any:
        return await events

    return simulate(app, faults=()).value


def entries_at(text: str, events: rxllm.Stream[Event], journal: KeepingJournal) -> list[Entry]:
    """The entries of `journal` when the model says `text`, where `events` are left."""

    async def app(world: World) -> list[Entry]:
        async with rxllm.to_async_iter(events) as items:
            async for event in items:
                if says(event, text):
                    return list(journal.entries)
        raise AssertionError(f"the model did not say {text!r}")

    return simulate(app, faults=()).value


def crashed(**flags: Any) -> list[Entry]:
    """The entries of a journal whose process dies when the model has said its second sentence."""
    RAN.clear()
    journal = KeepingJournal()
    return entries_at("Second. ", chat(Fake(TURN), looking(**flags), journal=journal), journal)


def recovered(entries: list[Entry], model: Any = None, **flags: Any) -> tuple[ChatResult, KeepingJournal]:
    """The end of a second run that starts with these entries, and its journal."""
    RAN.clear()
    journal = KeepingJournal(entries)
    result = played(chat(model or Fake("Done."), looking(**flags), journal=journal).pipe(ops.to_chat_result()))
    return result, journal


def test_the_journals_of_these_tests_have_the_methods_they_need() -> None:
    assert isinstance(KeepingJournal(), EagerJournal)
    assert not isinstance(MemoryJournal(), RecallingJournal)


def test_a_journal_that_cannot_keep_events_runs_them_after_the_response() -> None:
    RAN.clear()
    journal = MemoryJournal()
    played(chat(Fake([CALL, ("delay", 0.02), "Hm."], "Done."), looking(), journal=journal))
    assert journal.log == ["answered", "begin look", "finish", "answered"]


def test_the_response_so_far_is_recorded_before_the_start() -> None:
    assert [kind for kind, _, _ in crashed()] == ["kept", "begin", "finish"]


def test_after_a_crash_a_tool_that_had_finished_does_not_run_again() -> None:
    result, journal = recovered(crashed())
    assert RAN == []
    assert [message.text for message in result.thread] == ["Hi", "First. ", "seen", "Done."]
    assert result.steps[0].response.raw_finish_reason == "interrupted"
    assert (result.halted_reason, journal.left) == ("completed", 0)


def test_after_a_crash_a_tool_that_was_interrupted_is_asked_about() -> None:
    model = Fake("Done.")
    result, journal = recovered(crashed(hangs=True), model)
    assert (RAN, model.requests, journal.left) == ([], [], 0)
    assert result.halted_reason == "approval"
    (waiting,) = result.pending_tool_calls
    assert (waiting.id, waiting.metadata) == ("c0", {"interrupted": True})
    answered = rxllm.resume(model, result, results={"c0": "seen by hand"}, tools=[looking()]).run()
    assert (RAN, answered.output_text) == ([], "Done.")


def test_after_a_crash_an_idempotent_tool_runs_again() -> None:
    result, _ = recovered(crashed(hangs=True, idempotent=True), idempotent=True)
    assert (RAN, result.output_text) == (["look"], "Done.")


def test_a_second_crash_changes_nothing() -> None:
    _, journal = recovered(crashed())
    result, journal = recovered(journal.entries)
    assert (RAN, result.output_text, journal.left) == ([], "Done.", 0)


def test_a_response_that_was_recorded_is_replayed_as_it_is() -> None:
    RAN.clear()
    journal = KeepingJournal()
    model = Fake(["First. ", CALL, ("delay", 0.02), "Second."], "Done.")
    first = played(chat(model, looking(), journal=journal).pipe(ops.to_chat_result()))
    assert (RAN, first.steps[0].response.output_text) == (["look"], "First. Second.")
    model = Fake("Never.")
    second, again = recovered(journal.entries, model)
    assert (RAN, model.requests, second, again.left) == ([], [], first, 0)
    assert again.entries == journal.entries


def test_a_failed_response_is_replayed_without_its_tools() -> None:
    RAN.clear()
    journal = KeepingJournal()
    model = Fake(["First. ", CALL, ("delay", 0.05), ("error", "provider_unavailable")])
    first = played(chat(model, looking(), journal=journal).pipe(ops.to_chat_result()))
    assert (RAN, first.halted_reason, first.steps[0].tool_results) == (["look"], "error", ())
    model, again = Fake("Never."), KeepingJournal(journal.entries)
    events = played(chat(model, looking(), journal=again).to_list())
    assert any(isinstance(event, ErrorEvent) for event in events)
    assert not any(isinstance(event, ToolExecutionStarted) for event in events)
    assert (RAN, model.requests, again.left) == (["look"], [], 0)


FAILING = ["First. ", CALL, ("delay", 0.02), ("error", "timeout")]


def restarting(*turns: Any) -> Engine:
    return Engine(Fake(scripts=turns), operators=[ops.restart({"base_delay": 0.0})])


def test_the_calls_of_a_discarded_attempt_are_voided() -> None:
    """The second attempt makes the same call. It runs, and its record is the one that counts."""
    RAN.clear()
    journal = KeepingJournal()
    engine = restarting(FAILING, ["Again. ", CALL, ("delay", 0.02), "Second."], ["Done."])
    events = played(chat(engine, looking(), journal=journal).to_list())
    assert sum(isinstance(event, StepRestarted) for event in events) == 1
    assert RAN == ["look", "look"]
    result, again = recovered(journal.entries, restarting(["Never."]))
    assert (RAN, result.output_text, again.left) == ([], "Done.", 0)
    assert [result] == [event.result for event in events if isinstance(event, rxllm.ChatCompleted)]


def test_a_crash_in_the_second_attempt_keeps_what_the_first_has_done() -> None:
    RAN.clear()
    journal = KeepingJournal()
    engine = restarting(FAILING, ["Again. ", ("delay", 60)])
    result, again = recovered(entries_at("Again. ", chat(engine, looking(), journal=journal), journal))
    assert (RAN, result.output_text, again.left) == ([], "Done.", 0)


def test_a_response_that_is_disposed_leaves_nothing() -> None:
    RAN.clear()
    journal = KeepingJournal()
    events = chat(Fake(TURN), looking(), journal=journal)
    played(events.take_while(lambda event: not says(event, "Second. ")))
    assert [kind for kind, _, _ in journal.entries] == ["kept", "begin", "finish", "void", "kept"]
    assert KeepingJournal(journal.entries).left == 0


def test_agents_wait_for_the_response() -> None:
    agent = dataclasses.replace(Engine(Fake("Inner.")).as_tool(name="agent"), eager=True)
    model = Fake([ToolCall("c0", "agent", {"prompt": "Go"}), ("delay", 0.02), "Outer."], "Done.")
    kinds = [type(event) for event in played(chat(model, agent, journal=KeepingJournal()).to_list())]
    assert kinds.index(ToolExecutionStarted) > kinds.index(rxllm.MessageCompleted)


def test_after_a_crash_a_recorded_response_wins_over_its_kept_beginning() -> None:
    """The process dies after the response was recorded, and before what was kept of it was given up."""
    RAN.clear()
    journal = KeepingJournal()
    turn = ["First. ", CALL, ("delay", 0.02), "Second. ", ToolCall("c1", "look", {}, "{}")]
    first = played(chat(Fake(turn, "Done."), looking(), journal=journal).pipe(ops.to_chat_result()))
    kinds = [kind for kind, _, _ in journal.entries]
    result, again = recovered(journal.entries[: kinds.index("response") + 1])
    assert [len(message.tool_calls) for message in result.thread] == [0, 2, 0, 0, 0]
    assert [message.text for message in result.thread] == [message.text for message in first.thread]
    assert again.left == 0


def test_a_response_is_kept_for_a_bounded_number_of_early_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.operators._step_tools.MOST_KEPT", 2)
    journal, kept = KeepingJournal(), list[Any]()
    keep = journal.keep
    monkeypatch.setattr(journal, "keep", lambda path, key, events: kept.append(events) or keep(path, key, events))
    turn = [part for i in range(5) for part in (ToolCall(f"c{i}", "look", {}, "{}"), ("delay", 0.05))]
    RAN.clear()
    played(chat(Fake(turn, "Done."), looking(), journal=journal))
    assert len([events for events in kept if events]) == 2
    assert RAN == ["look"] * 5

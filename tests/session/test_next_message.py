"""Sessions that continue with a thread in which the user has answered a question, or has written something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rxllm
from rxllm import Engine, Fake, Session, Thread, ToolCall, ask_user, session, tool, validate
from rxllm.values import user
from tests.session.support import ask, pay

ASKED = session.start(Engine(Fake(ToolCall("c1", "ask", {})), tools=[ask]), "Buy one.").run().session
PAYING = session.start(Engine(Fake(ToolCall("c1", "pay", {})), tools=[pay]), "Pay.").run().session


def asked_by_an_agent() -> tuple[Engine, Session]:
    inner = Engine(Fake(ToolCall("a", "ask", {}), "The second."), tools=[ask])
    agent = inner.as_tool(name="agent", description="Helps.")
    engine = Engine(Fake(ToolCall("c1", "agent", {"prompt": "Choose."}), "Bought."), tools=[agent])
    return engine, session.start(engine, "Buy one.").run().session


def test_a_new_message_answers_the_question() -> None:
    assert ASKED.status == "awaiting_user"
    answered = ASKED.with_thread(ASKED.thread + user("The second."))
    assert (answered.status, answered.pending_question, answered.pending_tool_call_id) == ("idle", None, None)
    turn = session.resume(Fake("Bought."), answered).run()
    assert (turn.session.status, turn.output_text) == ("completed", "Bought.")
    assert turn.session.thread[: len(answered.thread)] == answered.thread


def test_a_question_that_is_still_open_stays_open() -> None:
    assert ASKED.with_thread(ASKED.thread) == ASKED
    _, waiting = asked_by_an_agent()
    assert waiting.status == "awaiting_user"
    assert waiting.with_thread(waiting.thread) == waiting


def test_calls_that_are_still_open_stay_pending() -> None:
    assert PAYING.with_thread(PAYING.thread) == PAYING
    both = PAYING.with_thread(PAYING.thread + user("Wait."))
    assert (both.status, both.pending_tool_calls) == ("awaiting_tools", PAYING.pending_tool_calls)
    cut = PAYING.with_thread(PAYING.thread[:1])
    assert (cut.status, cut.pending_tool_calls) == ("idle", ())
    for value in (both, cut):
        validate.session(value)


def test_a_call_that_nothing_lists_is_pending_if_it_is_open() -> None:
    stopped = replace(PAYING, status="idle", pending_tool_calls=())
    assert [call.id for call in stopped.with_thread(stopped.thread).pending_tool_calls] == ["c1"]


def test_a_failed_session_continues() -> None:
    failed = session.start(Fake(["Hel", ("error", "network_error")]), "Hi").run().session
    assert failed.status == "error"
    assert failed.with_thread(failed.thread + user("Again.")).status == "idle"


@pytest.mark.parametrize("form", ["The second.", {"choice": 2}])
def test_resume_answers_a_question_under_the_id_of_its_call(form: Any) -> None:
    id = ASKED.pending_tool_call_id
    assert id is not None
    turn = session.resume(Fake("Bought."), ASKED, results={id: form}).run()
    assert turn.session.status == "completed"
    assert [message.role for message in turn.session.thread][-3:] == ["assistant", "user", "assistant"]
    assert rxllm.resume(Fake("Bought."), ASKED.thread, results={id: form}).run().thread == turn.session.thread


def test_resume_answers_a_question_inside_an_agent() -> None:
    engine, waiting = asked_by_an_agent()
    id = waiting.pending_tool_call_id
    assert id is not None
    assert "/" in id
    turn = session.resume(engine, waiting, results={id: "The second."}).run()
    assert (turn.session.status, turn.output_text) == ("completed", "Bought.")


def test_a_question_and_a_call_are_answered_together() -> None:
    @tool
    def colour() -> Any:
        return ask_user("Which colour?")

    inner = Engine(Fake(ToolCall("a", "colour", {}), "Red."), tools=[colour])
    agent = inner.as_tool(name="agent", description="Helps.")
    calls = [ToolCall("c1", "agent", {"prompt": "Choose."}), ToolCall("c2", "pay", {})]
    engine = Engine(Fake(calls, "Done."), tools=[agent, pay])
    waiting = session.start(engine, "Go.").run().session
    assert (waiting.status, waiting.pending_question) == ("awaiting_tools", "Which colour?")
    results = {str(waiting.pending_tool_call_id): "Red"}
    turn = session.resume(engine, waiting, results=results, approvals={"c2": True}).run()
    assert (turn.session.status, turn.output_text) == ("completed", "Done.")


def test_a_stopped_turn_keeps_the_answer() -> None:
    id = str(ASKED.pending_tool_call_id)
    events = session.stream_resume(Fake(["Bought."]), ASKED, results={id: "The second."})
    turn = events.take(1).pipe(rxllm.operators.to_session(ASKED, keep_partial=True)).run()
    assert turn.session.thread.last == user("The second.")
    assert turn.session.status == "idle" or turn.session.status == "completed"


@pytest.mark.parametrize("results", [{"zz": "x"}, {"c1": 3}])
def test_answers_to_nothing_are_refused(results: Any) -> None:
    with pytest.raises(rxllm.LLMError):
        session.resume(Fake("x"), ASKED, results=results).run()
    assert ASKED.thread != Thread()

"""The session as a value."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import serializer, validate
from rxllm.testing import strategies
from rxllm.values import (
    ChatResult,
    Message,
    Response,
    Session,
    SessionError,
    StepResult,
    StreamError,
    Thread,
    ToolCall,
    Turn,
    ValidationError,
    user,
)

SIGN, SEND = ToolCall("a", "sign"), ToolCall("b", "send")
ASKED = Thread((user("Hi"), Message("assistant", "", tool_calls=(SIGN, SEND))))
WAITING = Session("s", ASKED, "awaiting_tools", (SIGN, SEND))
FAILED = Session(status="error", metadata={"error": StreamError("truncated")})


# Helpers


def test_what_is_appended_is_in_a_new_session() -> None:
    first = Session("s", context={"user": "ada"})
    second = first.append_user("Hi").append(Message("assistant", "Hello"), user("Bye"))
    assert [message.text for message in second.messages] == ["Hi", "Hello", "Bye"]
    assert (second.id, second.context, first.messages) == ("s", {"user": "ada"}, ())
    assert second.append_tool_result("a", "42").messages[-1].tool_call_id == "a"


def test_the_last_result_ends_the_wait_for_tools() -> None:
    one = WAITING.submit_tool_result("b", "sent")
    assert (one.status, one.pending_tool_calls) == ("awaiting_tools", (SIGN,))
    both = one.submit_tool_result("a", {"signed": True})
    assert (both.status, both.pending_tool_calls) == ("idle", ())
    assert [(m.tool_call_id, m.content) for m in both.messages[2:]] == [("a", '{"signed":true}'), ("b", "sent")]


@given(st.permutations([SIGN, SEND]))
def test_the_order_of_the_results_makes_no_difference(order: list[ToolCall]) -> None:
    """Law 25: submitted in any order, the session is idle, and the same."""
    one_by_one = WAITING
    for call in order:
        one_by_one = one_by_one.submit_tool_result(call.id, call.name)
    assert one_by_one.status == "idle"
    assert one_by_one == WAITING.submit_tool_results((call.id, call.name) for call in order)
    assert one_by_one == WAITING.submit_tool_results({"a": "sign", "b": "send"})


def test_then_it_waits_for_the_user_if_there_is_a_question() -> None:
    waiting = Session(None, ASKED, "awaiting_tools", (SIGN, SEND), "Which?", "c")
    answered = waiting.submit_tool_results({"a": "1", "b": "2"})
    assert (answered.status, answered.pending_question) == ("awaiting_user", "Which?")


def test_an_unknown_call_is_refused_and_nothing_is_submitted() -> None:
    for submit in (
        lambda: WAITING.submit_tool_result("z", "x"),
        lambda: WAITING.submit_tool_results({"a": "1", "z": "2"}),
    ):
        with pytest.raises(SessionError, match="'z'") as caught:
            submit()
        assert (caught.value.reason, caught.value.metadata) == ("unknown_tool_call_id", {"tool_call_id": "z"})
    assert WAITING.pending_tool_calls == (SIGN, SEND)


def test_no_results_are_the_same_session_in_any_status() -> None:
    assert Session().submit_tool_results({}) == Session()
    assert FAILED.submit_tool_results([]) == FAILED


def test_a_result_that_has_no_json_is_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        WAITING.submit_tool_result("a", {"f": print})
    assert (caught.value.reason, caught.value.errors) == ("not_serializable", ((("a",), "not_serializable"),))


def test_in_a_notebook_it_shows_what_it_waits_for() -> None:
    shown = Turn(WAITING, ChatResult(ASKED))._repr_markdown_()
    assert "`sign()`?" in shown
    assert "*awaiting_tools*" in shown


# Legality


@pytest.mark.parametrize(
    ("status", "legal"),
    [
        ("idle", ["start", "reply", "resume", "step"]),
        ("completed", ["start", "reply", "resume", "step"]),
        ("awaiting_user", ["reply"]),
        ("awaiting_tools", ["resume", "submit_tool_result", "submit_tool_results"]),
    ],
)
def test_the_error_says_what_is_legal(status: Any, legal: list[str]) -> None:
    session = Session(status=status)
    for operation in ("start", "reply", "resume", "step", "submit_tool_result", "submit_tool_results"):
        if operation in legal:
            session.require(operation)
            continue
        with pytest.raises(SessionError) as caught:
            session.require(operation)
        assert caught.value.reason == "invalid_status_for_operation"
        assert caught.value.metadata == {"operation": operation, "status": status, "legal": legal}
        assert all(name in caught.value.message for name in (operation, status, *legal))


def test_a_session_that_has_failed_allows_nothing() -> None:
    for operation in ("start", "reply", "resume", "step"):
        with pytest.raises(SessionError) as caught:
            FAILED.require(operation)
        assert caught.value.reason == "session_in_error_state"
    with pytest.raises(SessionError, match="has failed"):
        FAILED.submit_tool_result("a", "x")
    with pytest.raises(SessionError, match="submit_tool_result is not allowed while the session is idle"):
        Session().submit_tool_result("a", "x")


# Results

ANSWERED = Thread((user("Hi"), Message("assistant", "Hello")))


@pytest.mark.parametrize("reason", ["completed", "max_turns", "halt_when", "cancelled", "found"])
def test_most_ends_complete(reason: str) -> None:
    after = Session("s", metadata={"old": 1}).after(ChatResult(ANSWERED, halted_reason=reason, metadata={"new": 2}))
    assert after == Session("s", ANSWERED, "completed", metadata={"old": 1, "new": 2})


def test_a_question_waits_for_the_user() -> None:
    result = ChatResult(ANSWERED, halted_reason="ask_user", pending_question="Which?", pending_tool_call_id="a")
    after = Session().after(result)
    assert (after.status, after.pending_question, after.pending_tool_call_id) == ("awaiting_user", "Which?", "a")


@pytest.mark.parametrize("reason", ["manual_tool_calls", "approval", "found", "max_turns"])
def test_open_calls_wait_for_tools(reason: str) -> None:
    after = Session().after(ChatResult(ASKED, halted_reason=reason, pending_tool_calls=(SIGN, SEND)))
    assert (after.status, after.pending_tool_calls, after.pending_question) == ("awaiting_tools", (SIGN, SEND), None)


def test_open_calls_come_before_an_open_question() -> None:
    result = ChatResult(ASKED, halted_reason="ask_user", pending_question="Which?", pending_tool_calls=(SEND,))
    after = Session().after(result)
    assert (after.status, after.pending_tool_calls, after.pending_question) == ("awaiting_tools", (SEND,), "Which?")


def test_an_error_is_kept() -> None:
    error = StreamError("truncated")
    after = Session().after(ChatResult(ANSWERED, halted_reason="error", error=error))
    assert (after.status, after.metadata) == ("error", {"error": error})


@pytest.mark.parametrize(
    ("metadata", "kept"),
    [
        ({"halt_tool_call_id": "a"}, {"halt_tool_call_id": "a"}),
        ({"halt_tool_call_id": "a", "on_tool_error_exception": {"type": "E"}}, {"type": "E"}),
    ],
)
def test_so_is_a_tools_failure(metadata: Any, kept: Any) -> None:
    after = Session().after(ChatResult(ANSWERED, halted_reason="tool_error", metadata=metadata))
    assert (after.status, after.metadata) == ("error", {**metadata, "error": kept})


def test_the_results_of_steps() -> None:
    said = Response(finish_reason="stop", output_text="Hello")
    assert Session().after(StepResult(ANSWERED, said, done=True)).status == "completed"
    assert Session().after(StepResult(ANSWERED, said)).status == "idle"
    assert Session().after(StepResult(ASKED, said, metadata={"mode": "manual"})).pending_tool_calls == (SIGN, SEND)
    failed = Session().after(StepResult(ANSWERED, Response(finish_reason="error", error=StreamError("timeout"))))
    assert (failed.status, failed.metadata) == ("error", {"error": StreamError("timeout")})
    asks = {"halted_reason": "ask_user", "pending_question": "Which?", "pending_tool_call_id": "a"}
    asking = Session().after(StepResult(ANSWERED, said, done=True, metadata=asks))
    assert (asking.status, asking.pending_question, asking.messages[-1].text) == ("awaiting_user", "Which?", "Which?")


# Rules


@pytest.mark.parametrize(
    ("session", "path", "what"),
    [
        (Session(status="lost"), ("status",), "unknown"),  # type: ignore[arg-type]
        (Session(status="awaiting_user"), ("pending_question",), "required_for_status"),
        (Session(status="awaiting_tools"), ("pending_tool_calls",), "required_for_status"),
        (Session(status="error"), ("metadata",), "error_required_for_status"),
        (Session(thread=Thread((Message("tool", "42"),))), ("thread", "messages", 0, "tool_call_id"), "required"),
        (Session(thread=Thread((Message("robot", "x"),))), ("thread", "messages", 0, "role"), "unknown"),  # type: ignore[arg-type]
        ("a session", (), "wrong_type"),
    ],
)
def test_a_session_that_contradicts_itself_is_invalid(session: Any, path: Any, what: str) -> None:
    with pytest.raises(ValidationError) as caught:
        validate.session(session)
    assert (caught.value.reason, caught.value.errors) == ("invalid_session", ((path, what),))


def test_all_its_faults_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        validate.session(Session(status="awaiting_user", thread=Thread((Message("tool", "42"),))))
    assert len(caught.value.errors) == 2


@pytest.mark.parametrize("session", [Session(), WAITING, FAILED, Session(status="awaiting_user", pending_question="?")])
def test_a_sound_session_is_valid(session: Session) -> None:
    validate.session(session)


# JSON

sessions = st.builds(
    Session,
    id=st.none() | strategies.texts,
    thread=strategies.threads,
    status=st.sampled_from(["idle", "awaiting_user", "awaiting_tools", "completed", "error"]),
    pending_tool_calls=st.lists(strategies.tool_calls, max_size=2).map(tuple),
    pending_question=st.none() | strategies.texts,
    pending_tool_call_id=st.none() | strategies.texts,
    context=strategies.maps,
    metadata=strategies.maps | st.builds(lambda error: {"error": error}, strategies.errors),
)
turns = st.builds(Turn, session=sessions, result=strategies.chat_results | strategies.step_results)


@given(sessions | turns)
def test_json_is_exact(value: Any) -> None:
    assert serializer.from_json(serializer.to_json(value)) == value
    assert serializer.from_json(serializer.to_json(value), type(value)) == value


def test_what_is_no_data_is_named_when_it_is_stored() -> None:
    with pytest.raises(ValidationError, match=r"context\.f"):
        serializer.to_json(Session(context={"f": print}))


def test_the_status_is_one_of_five() -> None:
    five = ("idle", "awaiting_user", "awaiting_tools", "completed", "error")
    assert get_args(get_type_hints(Session)["status"]) == five
    for status in five:
        assert serializer.from_json(f'{{"$": "Session", "status": "{status}"}}').status == status
    with pytest.raises(ValidationError, match="status"):
        serializer.from_json('{"$": "Session", "status": "lost"}')

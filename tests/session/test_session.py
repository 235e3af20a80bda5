"""Operations on sessions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import reactivex
from reactivex import operators as rx
from reactivex.testing import TestScheduler

import rxllm
from rxllm import (
    AdapterError,
    ChatResult,
    Custom,
    EngineError,
    Fake,
    Message,
    StepResult,
    StreamError,
    Thread,
    ToolCall,
    ToolContext,
    ValidationError,
    serializer,
    session,
    tool,
)
from rxllm import operators as ops
from rxllm.events import ChatCompleted, StepCompleted, TextDelta, ToolExecutionStarted
from rxllm.values import Session, SessionError, Turn, user
from tests.session.support import RUNS, ask, pay


@pytest.fixture(autouse=True)
def no_runs() -> None:
    RUNS.clear()


@tool
def double(x: int) -> int:
    return 2 * x


@tool
def fail() -> None:
    raise ValueError("no")


sign = tool(name="sign", manual=True)
TOOLS = [pay, ask, double, fail, sign]


def call(name: str, id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


def stored(value: Session) -> Session:
    return serializer.from_json(serializer.to_json(value), Session)


def texts(value: Session) -> list[str]:
    return [message.text for message in value.messages]


# Turns


def test_a_conversation() -> None:
    fake = Fake("Hello", "In Rome too.")
    turn = session.start(fake, "Hi").run()
    assert isinstance(turn.result, ChatResult)
    assert (turn.session.status, turn.session.thread, turn.output_text) == ("completed", turn.result.thread, "Hello")
    turn = session.reply(fake, stored(turn.session), "And in Rome?").run()
    assert texts(turn.session) == ["Hi", "Hello", "And in Rome?", "In Rome too."]


@pytest.mark.parametrize("input", ["Hi", user("Hi"), [user("Hi")], Thread((user("Hi"),)), Session().append_user("Hi")])
def test_it_starts_from_what_a_chat_starts_from_and_from_a_session(input: Any) -> None:
    assert texts(session.start(Fake("Hello"), input).run().session) == ["Hi", "Hello"]


def test_id_context_and_metadata_of_the_session_are_kept() -> None:
    initial = Session("s1", Thread((user("Hi"),)), context={"user": "ada"}, metadata={"made": "today"})
    after = session.start(Fake("Hello"), initial).run().session
    assert (after.id, after.context, after.metadata) == ("s1", {"user": "ada"}, {"made": "today"})


def test_a_question_is_answered_by_a_reply() -> None:
    fake = Fake(call("ask"), "Good.")
    waiting = stored(session.start(fake, "Hi", tools=TOOLS).run().session)
    assert (waiting.status, waiting.pending_question, waiting.pending_tool_call_id) == (
        "awaiting_user",
        "Which one?",
        "c1",
    )
    after = session.reply(fake, waiting, "The first", tools=TOOLS).run().session
    assert (after.status, after.pending_question, after.pending_tool_call_id) == ("completed", None, None)
    assert texts(after)[-3:] == ["Which one?", "The first", "Good."]


def test_a_message_of_parts_is_a_reply_too() -> None:
    fake = Fake("Hello")
    session.reply(fake, Session(), user([rxllm.values.TextPart("Look")])).run()
    assert fake.requests[0].messages[0].text == "Look"


def test_pending_calls_are_submitted_and_the_chat_resumed() -> None:
    fake = Fake([call("sign", "a"), call("pay", "b")], "Thanks.")
    waiting = stored(session.start(fake, "Hi", tools=TOOLS).run().session)
    assert (waiting.status, [pending.id for pending in waiting.pending_tool_calls]) == ("awaiting_tools", ["a", "b"])
    ready = waiting.submit_tool_results({"b": "not now", "a": "signed"})
    assert ready.status == "idle"
    after = session.resume(fake, stored(ready), tools=TOOLS).run().session
    assert (after.status, after.pending_tool_calls, texts(after)[-1]) == ("completed", (), "Thanks.")
    assert RUNS == []


def test_or_answered_while_it_is_resumed() -> None:
    fake = Fake([call("sign", "a"), call("pay", "b")], "Thanks.")
    waiting = stored(session.start(fake, "Hi", tools=TOOLS).run().session)
    answers: dict[str, Any] = {"approvals": {"b": True}, "results": {"a": "signed"}}
    after = session.resume(fake, waiting, **answers, tools=TOOLS).run().session
    assert (after.status, after.pending_tool_calls, RUNS) == ("completed", (), ["pay 1"])
    assert [m.content for m in after.messages if m.role == "tool"] == ["signed", "paid 1"]


@pytest.mark.parametrize("submits", [True, False])
def test_open_calls_come_before_the_open_question(submits: bool) -> None:
    fake = Fake([call("ask", "a"), call("sign", "b")], "Good.")
    waiting = stored(session.start(fake, "Hi", tools=TOOLS).run().session)
    assert (waiting.status, waiting.pending_question) == ("awaiting_tools", "Which one?")
    if submits:
        waiting = waiting.submit_tool_result("b", "signed")
    else:
        waiting = session.resume(fake, waiting, results={"b": "signed"}, tools=TOOLS).run().session
    assert (waiting.status, waiting.pending_tool_calls, waiting.pending_question) == ("awaiting_user", (), "Which one?")
    assert len(fake.requests) == 1
    after = session.reply(fake, stored(waiting), "The first", tools=TOOLS).run().session
    assert [message.role for message in after.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_steps_one_by_one() -> None:
    fake = Fake(call("double", x=21), "42")
    first = session.step(fake, Session().append_user("Hi"), tools=TOOLS).run()
    assert isinstance(first.result, StepResult)
    assert (first.session.status, texts(first.session)[-1]) == ("idle", "42")
    second = session.step(fake, stored(first.session), tools=TOOLS).run()
    assert (second.session.status, second.output_text) == ("completed", "42")


def test_a_steps_question_is_in_the_thread() -> None:
    waiting = session.step(Fake(call("ask")), Session().append_user("Hi"), tools=TOOLS).run().session
    assert (waiting.status, texts(waiting)[-1]) == ("awaiting_user", "Which one?")


def test_a_tools_failure_under_halt_is_the_end_of_the_session() -> None:
    turn = session.start(Fake(call("fail")), "Hi", tools=TOOLS, on_tool_error="halt").run()
    assert (turn.session.status, turn.session.metadata["error"]) == ("error", {"halt_tool_call_id": "c1"})


def test_a_stream_that_breaks_is_too_and_its_thread_can_start_another() -> None:
    turn = session.start(Fake(["Hal", StreamError("truncated")]), "Hi").run()
    failed = stored(turn.session)
    assert (failed.status, failed.metadata["error"]) == ("error", StreamError("truncated"))
    assert session.start(Fake("Hello"), failed.thread).run().session.status == "completed"


def test_a_model_that_cannot_be_asked_leaves_the_session_as_it_was() -> None:
    initial = Session().append_user("Hi")
    with pytest.raises(AdapterError):
        session.start(Fake(AdapterError("rate_limited")), initial, retry=False).run()
    assert session.start(Fake("Hello"), initial).run().session.status == "completed"


# Context


def look(seen: list[Any]) -> Any:
    @tool
    def look(context: ToolContext) -> str:
        seen.append((dict(context.context), context.session_id))
        return "seen"

    return look


@pytest.mark.parametrize(
    ("options", "context", "id"),
    [
        ({}, {"a": "engine", "b": "session", "c": "session"}, "s1"),
        ({"context": {"c": "call"}}, {"a": "engine", "b": "session", "c": "call"}, "s1"),
        ({"session_id": "other"}, {"a": "engine", "b": "session", "c": "session"}, "other"),
    ],
)
@pytest.mark.parametrize("name", ["start", "reply", "resume", "step"])
def test_the_call_goes_before_the_session_before_the_engine(name: str, options: Any, context: Any, id: str) -> None:
    seen: list[Any] = []
    engine = rxllm.Engine(Fake(call("look"), "Done."), tools=(look(seen),)).with_context(a="engine", b="engine")
    initial = Session("s1", Thread((user("Hi"),)), context={"b": "session", "c": "session"})
    arguments = (initial, "Hi") if name == "reply" else (initial,)
    getattr(session, name)(engine, *arguments, **options).run()
    assert seen == [(context, id)]


def test_a_session_without_an_id_has_the_engines() -> None:
    seen: list[Any] = []
    engine = rxllm.Engine(Fake(call("look"), "Done."), tools=(look(seen),)).with_params(session_id="engine")
    session.start(engine, "Hi").run()
    assert seen == [({}, "engine")]


# Refusals

ASKING = Session(status="awaiting_user", pending_question="Which?")
WAITING = Session(
    None,
    Thread((user("Hi"), Message("assistant", tool_calls=(call("sign"),)))),
    status="awaiting_tools",
    pending_tool_calls=(call("sign"),),
)
FAILED = Session(status="error", metadata={"error": StreamError("truncated")})
IDLE = Session().append_user("Hi")


def operate(name: str, value: Session, fake: Fake, prefix: str = "") -> Any:
    arguments = (value, "Hello") if name == "reply" else (value,)
    answers = {"results": {"c1": "ok"}} if name == "resume" and value is WAITING else {}
    return getattr(session, prefix + name)(fake, *arguments, **answers)


@pytest.mark.parametrize("prefix", ["", "stream_"])
@pytest.mark.parametrize("name", ["start", "reply", "resume", "step"])
@pytest.mark.parametrize("value", [IDLE, ASKING, WAITING, FAILED], ids=lambda value: value.status)
def test_what_is_not_legal_now_says_what_is_and_asks_nobody(prefix: str, name: str, value: Session) -> None:
    fake = Fake("Hello")
    source = operate(name, value, fake, prefix)
    if name in value.legal:
        source.run()
        assert len(fake.requests) == 1
        return
    with pytest.raises(SessionError) as caught:
        source.run()
    failed = value.status == "error"
    assert caught.value.reason == ("session_in_error_state" if failed else "invalid_status_for_operation")
    assert all(name in caught.value.message for name in value.legal)
    assert fake.requests == []


def test_a_failed_session_goes_on_as_its_error_says() -> None:
    session_ = Session(id="s", context={"user": "ann"})
    failed = session.reply(Fake(["Hel", ("error", "network_error")]), session_, "Hi").run().session
    with pytest.raises(SessionError, match=re.escape("dataclasses.replace(session, status='idle')")):
        session.reply(Fake("lo"), failed, "Go on").run()
    turn = session.reply(Fake("lo"), replace(failed, status="idle"), "Go on").run()
    assert (turn.session.id, turn.session.context, turn.session.status) == ("s", {"user": "ann"}, "completed")
    assert [message.text for message in turn.session.thread] == ["Hi", "Hel", "Go on", "lo"]


@pytest.mark.parametrize(
    ("value", "answers", "reason"),
    [
        (WAITING, {"results": {"zz": "ok"}}, "unknown_tool_call_id"),
        (WAITING, {"approvals": {"zz": True}}, "unknown_tool_call_id"),
        (IDLE, {"results": {"c1": "ok"}}, "no_pending_tool_call"),
    ],
)
def test_answers_to_what_is_not_pending_are_refused(value: Session, answers: Any, reason: str) -> None:
    with pytest.raises(SessionError) as caught:
        session.resume(Fake("x"), value, **answers).run()
    assert caught.value.reason == reason


def test_calls_that_are_left_without_an_answer_are_named() -> None:
    with pytest.raises(EngineError, match=r"sign \(c1\)"):
        session.resume(Fake("x"), WAITING).run()


def test_a_session_that_contradicts_itself_is_not_asked_with() -> None:
    fake = Fake("x")
    with pytest.raises(ValidationError) as caught:
        session.reply(fake, Session(status="awaiting_user"), "Hi").run()
    assert (caught.value.reason, fake.requests) == ("invalid_session", [])


@pytest.mark.parametrize("value", [None, 3, ["Hi"], {"role": "user"}])
def test_what_is_no_session_raises_at_the_call(value: Any) -> None:
    for make in (
        lambda: session.start(Fake("x"), value),
        lambda: session.reply(Fake("x"), value, "Hi"),
        lambda: session.step(Fake("x"), value),
        lambda: session.resume(Fake("x"), value),
        lambda: session.reply(Fake("x"), Session(), value),
    ):
        with pytest.raises(ValidationError) as caught:
            make()
        assert caught.value.reason == "invalid_session_input"
        assert len(caught.value.errors) == 1


def test_so_do_options_that_make_no_sense() -> None:
    with pytest.raises(EngineError, match="max_turns"):
        session.step(Fake("x"), Session(), max_turns=3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="context"):
        session.start(Fake("x"), Session("s", context={"a": 1}), context=3)  # type: ignore[arg-type]


# Streams


def test_the_events_are_the_chats_behind_one_that_says_what_is_asked() -> None:
    events = list(session.stream_reply(Fake("Hello"), Session("s"), "Hi"))
    replied = Session("s").append_user("Hi")
    assert events[0] == Custom("session_turn", {"session": replied, "operation": "reply"})
    assert events[1:] == list(rxllm.stream(Fake("Hello"), "Hi"))
    assert [serializer.from_json(serializer.to_json(event)) for event in events] == events


def test_each_folds_to_its_turn() -> None:
    def cases(fake: Any) -> Any:
        idle = Session("s", Thread((user("Hi"),)))
        yield session.start(fake(), idle), session.stream_start(fake(), idle), idle
        yield session.reply(fake(), idle, "x"), session.stream_reply(fake(), idle, "x"), idle
        yield session.step(fake(), idle), session.stream_step(fake(), idle), idle
        answers: dict[str, Any] = {"results": {"c1": "ok"}}
        yield session.resume(fake(), WAITING, **answers), session.stream_resume(fake(), WAITING, **answers), WAITING

    for turn, events, initial in cases(lambda: Fake("Hello")):
        assert events.pipe(ops.to_session(initial)).run() == turn.run()


def test_plain_chats_and_steps_fold_to_turns_too() -> None:
    initial = Session("s", Thread((user("Hi"),)))
    chat = rxllm.stream(Fake("Hello"), initial.thread).pipe(ops.to_session(initial)).run()
    assert chat == session.start(Fake("Hello"), initial).run()
    step = rxllm.stream_step(Fake("Hello"), initial.thread).pipe(ops.to_session(initial)).run()
    assert step == session.step(Fake("Hello"), initial).run()


@pytest.mark.parametrize("count", range(6))
def test_a_turn_that_is_cut_off_keeps_what_the_user_said(count: int) -> None:
    initial = Session("s", Thread((user("Hi"), Message("assistant", "Hello"))))
    events = session.stream_reply(Fake(["In ", "Rome ", "too"]), initial, "And in Rome?")
    turn = events.pipe(lambda source: source.pipe(rx.take(count + 1)), ops.to_session(initial)).run()
    assert (turn.session.status, texts(turn.session)) == ("completed", ["Hi", "Hello", "And in Rome?"])
    assert isinstance(turn.result, ChatResult)
    assert turn.result.halted_reason == "cancelled"
    assert session.resume(Fake("Go on."), turn.session).run().output_text == "Go on."


def test_so_does_one_that_is_cut_off_before_the_model_answers() -> None:
    scheduler, turns = TestScheduler(), list[Turn]()
    events = session.stream_reply(Fake([("delay", 60.0), "late"]), Session(), "Hi")
    stopped = events.pipe(rx.take_until(reactivex.timer(5.0)), ops.to_session(Session()))
    stopped.subscribe(turns.append, scheduler=scheduler)
    scheduler.start()
    assert [texts(turn.session) for turn in turns] == [["Hi"]]


def test_a_turn_that_is_cut_off_keeps_the_steps_that_were_complete() -> None:
    fake = Fake(call("pay", "a"), "Thanks.", "Thanks.")
    waiting = session.start(fake, "Hi", tools=TOOLS).run().session
    events = session.stream_resume(fake, waiting, approvals={"a": True}, tools=TOOLS)
    turn = events.pipe(rx.take_while(lambda e: not isinstance(e, TextDelta)), ops.to_session(waiting))
    cut = turn.run().session
    assert (RUNS, cut.status, cut.pending_tool_calls) == (["pay 1"], "completed", ())
    assert session.resume(fake, cut, tools=TOOLS).run().session.status == "completed"
    assert RUNS == ["pay 1"]


@pytest.mark.parametrize("until", [StepCompleted, ToolExecutionStarted])
def test_cut_off_at_a_halt_it_waits_for_what_the_halt_waits_for(until: type) -> None:
    events = session.stream_start(Fake([call("ask", "a"), call("sign", "b")]), "Hi", tools=TOOLS)
    turn = events.pipe(rx.take_while(lambda e: not isinstance(e, until), inclusive=True))
    cut = turn.pipe(ops.to_session(Session())).run().session
    if until is StepCompleted:
        assert (cut.status, [c.id for c in cut.pending_tool_calls]) == ("awaiting_tools", ["b"])
        assert (cut.pending_question, cut.messages[-1].text) == ("Which one?", "Which one?")
    else:
        assert (cut.status, texts(cut)) == ("completed", ["Hi"])


def test_a_step_that_is_cut_off_leaves_the_session() -> None:
    events = session.stream_step(Fake("Hello"), IDLE).pipe(rx.take(3))
    turn = events.pipe(ops.to_session(IDLE)).run()
    assert (turn.session.thread, getattr(turn.result, "halted_reason", None)) == (IDLE.thread, "cancelled")


def test_an_empty_stream_is_a_cancelled_turn() -> None:
    turn = reactivex.empty().pipe(ops.to_session(IDLE)).run()
    assert (turn.session.thread, turn.result.halted_reason) == (IDLE.thread, "cancelled")


def test_presentation_changes_no_turn() -> None:
    shown: dict[str, Any] = {"emit_text_deltas": False, "include_raw_chunks": True}
    assert session.start(Fake("Hello"), "Hi", **shown).run() == session.start(Fake("Hello"), "Hi").run()


def test_nothing_happens_before_subscribe() -> None:
    fake = Fake("Hello")
    turn = session.start(fake, "Hi")
    assert fake.requests == []
    assert turn.run() == turn.run()
    assert len(fake.requests) == 2


def test_a_subscriber_that_wants_one_event_asks_no_model() -> None:
    fake = Fake("Hello")
    session.stream_start(fake, "Hi").pipe(rx.take(1)).run()
    assert fake.requests == []


def test_the_streams_end_with_the_chat() -> None:
    assert isinstance(session.stream_start(Fake("Hello"), "Hi").run(), ChatCompleted)
    assert isinstance(session.stream_step(Fake("Hello"), IDLE).run(), StepCompleted)


def test_a_turn_means_its_session_wherever_a_session_is_taken() -> None:
    turn = session.start(Fake("Hello"), "Hi").run()
    for value in (turn, turn.session):
        assert texts(session.reply(Fake("Rome"), value, "And in Italy?").run().session)[-2:] == [
            "And in Italy?",
            "Rome",
        ]
    halted = session.start(Fake(ToolCall("c1", "pay")), "Pay!", tools=[rxllm.Tool("pay", manual=True)]).run()
    resumed = session.resume(Fake("Paid."), halted, results={"c1": "ok"}).run()
    assert texts(resumed.session)[-2:] == ["ok", "Paid."]
    assert texts(session.step(Fake("More."), resumed).run().session)[-1] == "More."
    with pytest.raises(ValidationError, match="session must be a Session or a Turn"):
        session.reply(Fake("Hello"), "s1", "Hi")  # type: ignore[arg-type]

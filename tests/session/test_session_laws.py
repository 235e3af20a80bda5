"""What holds of sessions on every script. Each test names its law."""

from __future__ import annotations

from typing import Any

import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import operators as rx

import rxllm
from rxllm import Fake, RetryPolicy, serializer, session, validate
from rxllm import operators as ops
from rxllm.runtime import Stream
from rxllm.values import Session, Thread, Turn, user
from tests.examples import examples
from tests.laws import scripts
from tests.laws.scripts import fake

law = settings(deadline=None, max_examples=examples(80))
AT_ONCE = RetryPolicy(max_attempts=2, base_delay=0.0, jitter=0.0)
INITIAL = Session("s", Thread((user("Hi"),)), context={"user": "ada"}, metadata={"made": 1})


def engine(script: list[list[Any]]) -> rxllm.Engine:
    return rxllm.Engine(fake(script), tools=tuple(scripts.TOOLS), retry=AT_ONCE)


def outcome(source: Stream[Any]) -> Any:
    try:
        return source.run()
    except Exception as error:
        return error if isinstance(error, rxllm.LLMError) else repr(error)


def sound(value: Session) -> None:
    """What every session keeps: valid, exact in JSON, with the pending fields of its status and no others."""
    validate.session(value)
    assert serializer.from_json(serializer.to_json(value)) == value
    assert (value.status == "awaiting_tools") == bool(value.pending_tool_calls)
    if value.status not in ("awaiting_user", "awaiting_tools"):
        assert (value.pending_question, value.pending_tool_call_id) == (None, None)
    if value.status == "awaiting_user":
        assert value.pending_question is not None


@law
@given(scripts.scripts, scripts.chat_options, scripts.presentations)
def test_a_turn_is_the_fold_of_its_stream(script: Any, options: Any, shown: Any) -> None:
    """Law 6: start = stream_start |> to_session, as reply and step, on every script, under every presentation."""
    streamed = session.stream_start(engine(script), INITIAL, **options, **shown).pipe(ops.to_session(INITIAL))
    turn = outcome(session.start(engine(script), INITIAL, **options))
    assert outcome(streamed) == turn
    if isinstance(turn, Turn):
        sound(turn.session)
        assert (turn.session.id, turn.session.context) == (INITIAL.id, INITIAL.context)
        assert turn.session == INITIAL.after(turn.result)


@law
@given(scripts.scripts, scripts.step_options)
def test_so_is_a_step(script: Any, options: Any) -> None:
    """Law 6, for step; and a session's step is a step."""
    turn = outcome(session.step(engine(script), INITIAL, **options))
    assert outcome(session.stream_step(engine(script), INITIAL, **options).pipe(ops.to_session(INITIAL))) == turn
    if isinstance(turn, Turn):
        sound(turn.session)
        assert turn.result == outcome(rxllm.step(engine(script), INITIAL.thread, **options))


@law
@given(scripts.scripts, scripts.chat_options)
def test_a_reply_is_a_start_with_one_more_message(script: Any, options: Any) -> None:
    """Law 25: reply(session, text) = start(session + user's message)."""
    reply = outcome(session.reply(engine(script), INITIAL, "And?", **options))
    assert reply == outcome(session.start(engine(script), INITIAL.append_user("And?"), **options))


@law
@given(scripts.scripts, scripts.chat_options, st.integers(0, 12))
def test_a_turn_that_is_cut_off_anywhere_is_sound(script: Any, options: Any, count: int) -> None:
    """Law 25: wherever a turn is cut off, the session is sound, keeps what the user said, and can go on; folding
    changes neither the session it began with nor, folded again, its turn.
    """
    source = session.stream_reply(engine(script), INITIAL, "And?", **options)
    events = list(source.pipe(ops.errors_as_events(), rx.take(count + 1)))
    turn = reactivex.from_iterable(events).pipe(ops.to_session(INITIAL)).run()
    assert reactivex.from_iterable(events).pipe(ops.to_session(INITIAL)).run() == turn
    sound(turn.session)
    assert turn.session.messages[:2] == (user("Hi"), user("And?"))
    assert INITIAL.messages == (user("Hi"),)
    if turn.session.status == "completed":
        assert session.reply(Fake("Go on."), turn.session, "And then?").run().output_text == "Go on."


@law
@given(scripts.scripts, scripts.chat_options, st.randoms())
def test_what_waits_can_be_answered_in_any_order(script: Any, options: Any, random: Any) -> None:
    """Law 25: the results of all pending calls, submitted in any order, give the same session, which waits for no tool
    and can go on, stored in between.
    """
    turn = outcome(session.start(engine(script), INITIAL, **options))
    if not isinstance(turn, Turn) or turn.session.status != "awaiting_tools":
        return
    waiting = serializer.from_json(serializer.to_json(turn.session), Session)
    calls = list(waiting.pending_tool_calls)
    random.shuffle(calls)
    one_by_one = waiting
    for call in calls:
        one_by_one = one_by_one.submit_tool_result(call.id, "ok")
    assert one_by_one == waiting.submit_tool_results({call.id: "ok" for call in calls})
    sound(one_by_one)
    assert one_by_one.status == ("idle" if waiting.pending_question is None else "awaiting_user")
    model = rxllm.Engine(Fake("Go on."), tools=tuple(scripts.TOOLS))
    follow = session.resume(model, one_by_one) if one_by_one.status == "idle" else session.reply(model, one_by_one, "x")
    assert follow.run().session.status == "completed"

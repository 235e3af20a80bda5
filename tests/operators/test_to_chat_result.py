from __future__ import annotations

from typing import Any, cast

import pytest
import reactivex
from reactivex import from_iterable

from rxllm import Fake, stream
from rxllm import operators as ops
from rxllm.events import ChatCompleted, ErrorEvent, Event, MessageStarted, StepCompleted, TextDelta, UsageUpdated
from rxllm.runtime import Stream
from rxllm.testing.marbles import check
from rxllm.values import (
    ChatResult,
    Message,
    Response,
    StepResult,
    StreamError,
    Thread,
    Usage,
    ValidationError,
    assistant,
    user,
)

THREAD = Thread((user("Hi"),))
ASKED = user("A story!")


def test_the_chats_own_result_is_the_result() -> None:
    result = ChatResult(THREAD, halted_reason="completed")
    check(
        ops.to_chat_result(),
        "-H-c-|",
        "^----!",
        "-----(r|)",
        H=TextDelta("Hi"),
        c=ChatCompleted(result),
        r=result,
    )


def test_a_chat_that_was_cut_off_is_cancelled() -> None:
    step = StepResult(THREAD + assistant("a"), Response(assistant("a"), "a", usage=Usage(1, 1)))
    events = [StepCompleted(step), TextDelta("b"), UsageUpdated(Usage(2, 0))]
    result = Stream.of(from_iterable(events)).pipe(ops.to_chat_result(THREAD)).run()
    assert (result.halted_reason, result.steps, result.thread) == ("cancelled", (step,), step.thread)
    assert (result.final_response, result.usage) == (step.response, Usage(3, 1))


def test_a_chat_that_failed_before_its_end_says_so() -> None:
    error = StreamError("truncated")
    result = Stream.of(from_iterable([TextDelta("a"), ErrorEvent(error)])).pipe(ops.to_chat_result(THREAD)).run()
    assert (result.halted_reason, result.error, result.output_text) == ("error", error, "a")


def test_a_chat_that_was_cut_off_needs_no_thread() -> None:
    """A client has none: it has the events that its server sends."""
    error = StreamError("cancelled")
    result = Stream.of(from_iterable([TextDelta("a"), ErrorEvent(error)])).pipe(ops.to_chat_result()).run()
    assert (result.output_text, result.halted_reason, result.error, result.thread) == ("a", "error", error, Thread())


def test_without_an_event_or_a_thread_it_says_what_is_missing() -> None:
    with pytest.raises(StreamError, match=r"no event has arrived.*write to_chat_result\(thread\)") as caught:
        reactivex.empty().pipe(ops.to_chat_result()).run()
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize(
    ("events", "texts", "partial"),
    [
        ([], ["Hi"], None),
        ([MessageStarted(Message("assistant")), TextDelta(" ")], ["Hi"], None),
        ([TextDelta("Once "), TextDelta("upon")], ["Hi", "Once upon"], "cancelled"),
        ([TextDelta("Once "), ErrorEvent(StreamError("truncated"))], ["Hi", "Once "], "error"),
    ],
)
def test_what_was_cut_off_may_be_kept(events: list[Event], texts: list[str], partial: str | None) -> None:
    result = Stream.of(from_iterable(events)).pipe(ops.to_chat_result(THREAD, keep_partial=True)).run()
    assert [message.text for message in result.thread] == texts
    assert result.thread[-1].metadata.get("partial") == partial
    assert Stream.of(from_iterable(events)).pipe(ops.to_chat_result(THREAD)).run().thread == THREAD


def test_the_partial_text_of_a_chat_that_was_left_is_kept() -> None:
    saved: list[ChatResult] = []
    story = stream(Fake(["one ", "two ", ("delay", 60), "three"]), THREAD)
    keep = ops.finally_result(lambda result, _: saved.append(result), ops.to_chat_result(THREAD, keep_partial=True))
    story.pipe(keep, ops.text()).take(2).run()
    assert [message.text for message in saved[0].thread] == ["Hi", "one two "]


def test_keep_partial_is_a_boolean() -> None:
    with pytest.raises(ValidationError, match="keep_partial must be True or False"):
        ops.to_chat_result(keep_partial=cast(Any, "yes"))


@pytest.mark.parametrize("begin", [ASKED.text, ASKED, [ASKED], {"role": "user", "content": "A story!"}])
def test_the_thread_is_whatever_a_conversation_is(begin: Any) -> None:
    fold = ops.to_chat_result(begin, keep_partial=True)
    stopped = stream(Fake(["Once ", "upon"]), begin).take(2).pipe(fold).run()
    assert [message.text for message in stopped.thread] == ["A story!", "Once "]

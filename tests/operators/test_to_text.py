from __future__ import annotations

import pytest
from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.events import ChatCompleted, ErrorEvent, MessageCompleted, StepCompleted, TextDelta, ThinkingDelta
from rxllm.runtime import Stream
from rxllm.testing.marbles import check
from rxllm.values import ChatResult, Message, Response, StepResult, StreamError, Thread, assistant

STOP = MessageCompleted(Message("assistant"), "stop")
ANSWER = Response(assistant("42"), "42", finish_reason="stop")


def test_the_text_comes_at_the_end() -> None:
    check(
        ops.to_text(),
        "-h-H-i-s-|",
        "^--------!",
        "---------(t|)",
        h=ThinkingDelta("hm"),
        H=TextDelta("H"),
        i=TextDelta("i"),
        s=STOP,
        t="Hi",
    )


def test_a_chats_text_is_its_final_response() -> None:
    step = StepResult(Thread(), ANSWER)
    result = ChatResult(Thread(), ANSWER, (step,), "completed")
    events = [TextDelta("let me see"), StepCompleted(step), ChatCompleted(result)]
    assert Stream.of(from_iterable(events)).pipe(ops.to_text()).run() == "42"


@pytest.mark.parametrize(
    "last", [ErrorEvent(StreamError("truncated")), ChatCompleted(ChatResult(Thread(), error=StreamError("truncated")))]
)
def test_a_failed_stream_gives_its_error_instead(last: ErrorEvent | ChatCompleted) -> None:
    with pytest.raises(StreamError):
        Stream.of(from_iterable([TextDelta("Hi"), last])).pipe(ops.to_text()).run()

from __future__ import annotations

import pytest
import reactivex
from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.events import MessageCompleted, StepCompleted, TextDelta
from rxllm.runtime import Stream
from rxllm.testing.marbles import check
from rxllm.values import Message, Response, StepResult, StreamError, Thread, assistant, user

THREAD = Thread((user("Hi"),))
STOP = MessageCompleted(Message("assistant"), "stop")
STEP = StepResult(
    THREAD + assistant("Hi"), Response(assistant("Hi"), "Hi", finish_reason="stop"), done=True, metadata={}
)


def test_a_completed_step_is_the_result() -> None:
    kept = StepResult(THREAD, Response(), metadata={"mode": "manual"})
    check(
        ops.to_step_result(),
        "-H-c-|",
        "^----!",
        "-----(s|)",
        H=TextDelta("Hi"),
        c=StepCompleted(kept),
        s=kept,
    )


def test_of_several_steps_the_last_one_counts() -> None:
    first, last = StepResult(THREAD, Response()), STEP
    check(
        ops.to_step_result(),
        "-a-b-|",
        "^----!",
        "-----(s|)",
        a=StepCompleted(first),
        b=StepCompleted(last),
        s=last,
    )


def test_without_a_completed_step_it_is_what_was_folded_onto_the_thread() -> None:
    check(
        ops.to_step_result(THREAD),
        "-H-c-|",
        "^----!",
        "-----(s|)",
        H=TextDelta("Hi"),
        c=STOP,
        s=STEP,
    )


def test_a_step_that_was_cut_off_needs_no_thread() -> None:
    step = Stream.of(from_iterable([TextDelta("Hi"), STOP])).pipe(ops.to_step_result()).run()
    assert (step.response, step.thread) == (STEP.response, Thread((assistant("Hi"),)))


def test_without_an_event_or_a_thread_it_says_what_is_missing() -> None:
    with pytest.raises(StreamError, match=r"no event has arrived.*write to_step_result\(thread\)"):
        reactivex.empty().pipe(ops.to_step_result()).run()

from __future__ import annotations

from typing import Any

from rxllm import Fake, stream
from rxllm import operators as ops
from rxllm.events import RawChunk, StepCompleted, StepRestarted, UsageUpdated
from rxllm.testing.marbles import check
from rxllm.values import Response, StepResult, Thread, Usage


def step(usage: Usage) -> StepCompleted:
    return StepCompleted(StepResult(Thread(), Response(usage=usage)))


def updated(tokens: int) -> Any:
    return UsageUpdated(Usage(tokens))


def test_within_a_step_the_last_count_counts() -> None:
    check(
        ops.usage(),
        "-a-b-|",
        "^----!",
        "-1-2-|",
        **{"a": updated(3), "b": updated(5), "1": Usage(3), "2": Usage(5)},
    )


def test_over_steps_it_is_the_sum() -> None:
    check(
        ops.usage(),
        "-a-s-b-t-|",
        "^--------!",
        "-1---2---|",
        **{"a": updated(5), "s": step(Usage(5)), "b": updated(4), "t": step(Usage(4)), "1": Usage(5), "2": Usage(9)},
    )


def test_a_step_that_never_said_it_counts_at_its_end() -> None:
    check(
        ops.usage(),
        "-s-b-|",
        "^----!",
        "-1-2-|",
        **{"s": step(Usage(5)), "b": updated(4), "1": Usage(5), "2": Usage(9)},
    )


def test_a_raw_usage_of_an_adapter_counts_like_any_other() -> None:
    fake = Fake(["Hi", RawChunk("usage", {"input_tokens": 3}), RawChunk("usage", {"input_tokens": 3})])
    assert list(stream(fake, "Hi").pipe(ops.usage())) == [Usage(3)]


def test_an_unchanged_total_is_said_once() -> None:
    check(
        ops.usage(),
        "-a-a-|",
        "^----!",
        "-1---|",
        **{"a": updated(3), "1": Usage(3)},
    )


def test_a_restart_takes_back_what_its_step_has_cost() -> None:
    check(
        ops.usage(),
        "-a-s-b-r-c-|",
        "^----------!",
        "-1---2-1-3-|",
        a=updated(5),
        s=step(Usage(5)),
        b=updated(4),
        r=StepRestarted("timeout", 2),
        c=updated(1),
        **{"1": Usage(5), "2": Usage(9), "3": Usage(6)},
    )

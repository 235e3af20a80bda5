"""`seconds` and `first_token_seconds`: measured on the subscription's clock, and no part of a result's data."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from reactivex.testing import TestScheduler

import rxllm
from rxllm import Fake, Response, ToolCall, Usage, rows, serializer
from rxllm import operators as ops
from rxllm.testing.marbles import record

SLOW = Fake([("delay", 2), "Hel", ("delay", 3), "lo", Usage(1, 2)])


def result_of(stream: Any) -> Any:
    return record(TestScheduler(), lambda: stream)[0][2]


@pytest.mark.parametrize("ask", [rxllm.generate, rxllm.step, rxllm.chat], ids=lambda ask: ask.__name__)
def test_a_result_has_the_seconds_of_its_call(ask: Callable[..., Any]) -> None:
    result = result_of(ask(SLOW, "Hi"))
    assert (result.seconds, result.first_token_seconds) == (5.0, 2.0)
    (row,) = rows([result])
    assert (row["seconds"], row["ttft"]) == (5.0, 2.0)


@pytest.mark.parametrize(
    ("script", "times"),
    [
        ([("delay", 2), ToolCall("c1", "add", {})], (2.0, 2.0)),
        ([("delay", 1), ("thinking", "hm"), ("delay", 3), "4"], (4.0, 1.0)),
        ([("delay", 4), ("error", "rate_limited")], (4.0, None)),
        ([], (0.0, None)),
    ],
)
def test_the_first_output_of_any_kind_counts(script: list[Any], times: tuple[float, float | None]) -> None:
    result = result_of(rxllm.generate(Fake(script), "Hi", retry=False))
    assert (result.seconds, result.first_token_seconds) == times


def test_each_subscription_is_measured() -> None:
    scheduler, answer = TestScheduler(), rxllm.generate(Fake([("delay", 1), "a"], [("delay", 7), "b"]), "Hi")
    assert [record(scheduler, lambda: answer)[0][2].seconds for scheduler in (scheduler, TestScheduler())] == [1.0, 7.0]


def test_a_replayed_run_has_the_times_of_the_run() -> None:
    events = record(TestScheduler(), lambda: rxllm.stream(SLOW, "Hi").pipe(ops.timed(), ops.to_chat_result()))
    live = events[0][2]
    assert (live.seconds, live.first_token_seconds) == (5.0, 2.0)
    import reactivex

    again = reactivex.from_iterable(rxllm.values.times_of(live)).pipe(ops.to_chat_result()).run()
    assert (again.seconds, again.first_token_seconds) == (5.0, 2.0)


def test_times_are_no_data() -> None:
    result = result_of(rxllm.generate(SLOW, "Hi"))
    plain = serializer.from_json(serializer.to_json(result))
    assert plain == result
    assert repr(plain) == repr(result)
    assert (plain.seconds, plain.first_token_seconds) == (None, None)
    assert Response().seconds is None
    assert pickle.loads(pickle.dumps(result)).seconds == copy.copy(result).seconds == 5.0


def test_a_fold_changes_no_event() -> None:
    events = rxllm.stream(SLOW, "Hi")
    notes = record(TestScheduler(), lambda: events)
    completed = notes[-2][2].result
    assert completed.seconds is None
    import reactivex

    folded = reactivex.of(*[item for _, kind, item in notes if kind == "next"]).pipe(ops.to_chat_result()).run()
    assert folded == completed
    assert folded.seconds is not None
    assert completed.seconds is None


def test_the_answers_of_a_batch_have_them_too() -> None:
    fake = Fake(*['{"name": "Rome"}'] * 2)
    answers = rxllm.generate_many(fake, {"a": "Where?", "b": "And?"}, response_format={"type": "json_object"}).run()
    assert all(answer.seconds is not None and answer.first_token_seconds is not None for answer in answers)

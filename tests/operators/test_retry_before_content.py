"""The facade's retry for any stream of events; its cases are in tests/runtime/test_retry.py."""

from __future__ import annotations

from typing import Any

import pytest
from reactivex import operators as rx
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Fake, Request, RetryPolicy, StreamError, ValidationError, user
from rxllm import operators as ops
from rxllm.events import ErrorEvent
from rxllm.testing.marbles import cold, record
from rxllm.values import Call

AT_ONCE = RetryPolicy(base_delay=0.0, jitter=0.0)
BUSY = AdapterError("rate_limited")


def answer(fake: Fake) -> Any:
    return rxllm.runtime.Stream.of(fake.stream(Request((user("Hi"),)), Call()))


def test_behind_an_adapter_it_is_what_the_facade_does() -> None:
    for script in ([[BUSY], ["Hello"]], [[BUSY], [BUSY], [BUSY]], [["Hel", StreamError("truncated")], ["Hello"]]):
        by_hand = answer(Fake(scripts=script)).pipe(ops.retry_before_content(AT_ONCE), ops.errors_as_events())
        facade = rxllm.stream_generate(Fake(scripts=script), "Hi", retry=AT_ONCE).pipe(ops.errors_as_events())
        assert list(by_hand) == list(facade)


def test_it_waits_on_the_schedulers_clock_and_subscribes_again() -> None:
    scheduler = TestScheduler()
    retries: list[tuple[int, float, Exception]] = []
    source = cold(scheduler, "--X", {"X": BUSY})
    policy = RetryPolicy(max_attempts=3, base_delay=5.0, jitter=0.0)
    operator = ops.retry_before_content(policy, on_retry=lambda *told: retries.append(told))
    assert record(scheduler, lambda: source.pipe(operator)) == [(21, "error", BUSY)]
    assert [(s.subscribe - 200, s.unsubscribe - 200) for s in source.subscriptions] == [(0, 2), (7, 9), (19, 21)]
    assert retries == [(1, 5.0, BUSY), (2, 10.0, BUSY)]


def test_reactivexs_retry_does_not_see_a_streamed_error() -> None:
    """The two channels of failure, of which the docstring warns."""
    script: list[list[Any]] = [[("error", "rate_limited")], ["Hello"]]
    assert isinstance(list(answer(Fake(scripts=script)).pipe(rx.retry(3)))[-1], ErrorEvent)
    assert answer(Fake(scripts=script)).pipe(ops.retry_before_content(AT_ONCE), ops.to_text()).run() == "Hello"


def test_below_run_tools_every_attempt_belongs_to_the_step() -> None:
    ids: list[str] = []
    engine = rxllm.Engine(Fake([BUSY], ["Hello"]), retry=False, observers=[lambda told: ids.append(told.request_id)])
    source = rxllm.stream_generate(engine, "Hi").pipe(ops.retry_before_content(AT_ONCE), ops.run_tools(thread="Hi"))
    chat = source.pipe(ops.repeat_until_halt(lambda thread: source))
    assert chat.run().result.output_text == "Hello"
    assert len(set(ids)) == 1


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("often",), "policy"), (({"attempts": 3},), "policy"), (({"max_attempts": -1},), "policy"), ((3,), "policy")],
)
def test_a_policy_that_is_none_is_refused_at_the_call(arguments: Any, name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.retry_before_content(*arguments)
    assert caught.value.errors[0][0][0] == name
    with pytest.raises(ValidationError):
        ops.retry_before_content(on_retry=3)  # type: ignore[arg-type]


def test_no_retry_is_the_source_itself() -> None:
    source = answer(Fake("Hi"))
    assert source.pipe(ops.retry_before_content(False)) is source

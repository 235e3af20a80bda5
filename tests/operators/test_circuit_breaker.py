"""A breaker's calls, each at its time, in virtual time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from reactivex import Observable
from reactivex.testing import TestScheduler

from rxllm import Engine, Fake, generate
from rxllm import operators as ops
from rxllm.events import ErrorEvent, MessageCompleted, MessageStarted, TextDelta
from rxllm.operators._race_and_fallback import Circuit
from rxllm.testing.marbles import cold
from rxllm.values import AdapterError, EngineError, Message, StreamError, ValidationError
from tests.operators.threads import together

DOWN = AdapterError("provider_unavailable")
VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "H": TextDelta("H"),
    "e": MessageCompleted(Message("assistant", "H"), "stop"),
    "t": ErrorEvent(StreamError("truncated")),
    "X": DOWN,
}
FAILS, WORKS = "-X", "-sHe|"


class Calls:
    """Calls of one breaker: `at(time, marbles)` makes one, `play` runs them all."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.scheduler = TestScheduler()
        self.states: list[tuple[float, str]] = []
        self.breaker = ops.circuit_breaker(
            *args, on_change=lambda state: self.states.append((self.scheduler.clock, state)), **options
        )
        self.ends: dict[float, tuple[float, Any]] = {}
        self.sources: dict[float, Any] = {}

    def at(self, time: float, marbles: str, dispose: float | None = None, **values: Any) -> Calls:
        source = self.sources[time] = cold(self.scheduler, marbles, {**VALUES, **values})

        def end(what: Any = None) -> None:
            self.ends[time] = (self.scheduler.clock, what)

        def begin(*_: Any) -> None:
            call: Observable[Any] = source.pipe(self.breaker)
            held = call.subscribe(on_error=end, on_completed=end, scheduler=self.scheduler)
            if dispose is not None:
                self.scheduler.schedule_absolute(dispose, lambda *_: held.dispose())

        self.scheduler.schedule_absolute(time, begin)
        return self

    def play(self) -> Calls:
        self.scheduler.start()
        return self

    @property
    def asked(self) -> list[float]:
        return [time for time, source in self.sources.items() if source.subscriptions]


def test_it_opens_after_so_many_failures_in_a_row_and_refuses_at_once() -> None:
    calls = Calls(3, cooldown=30).at(10, FAILS).at(20, FAILS).at(30, FAILS).at(40, WORKS).play()
    assert calls.states == [(31, "open")]
    assert calls.asked == [10, 20, 30]
    when, error = calls.ends[40]
    assert (when, error.reason, error.retry_after, error.metadata) == (
        40,
        "provider_unavailable",
        21.0,
        {"circuit": "open"},
    )
    assert "tried again in 21 s" in error.message


def test_a_success_in_between_begins_the_count_anew() -> None:
    calls = Calls(2).at(10, FAILS).at(20, WORKS).at(30, FAILS).at(40, WORKS).play()
    assert calls.states == []
    assert calls.asked == [10, 20, 30, 40]


def test_failures_that_are_long_past_do_not_count() -> None:
    calls = Calls(2, within=15).at(10, FAILS).at(30, FAILS).at(50, FAILS).at(60, FAILS).at(70, WORKS).play()
    assert calls.states == [(61, "open")]
    assert calls.asked == [10, 30, 50, 60]


def test_after_the_cooldown_one_call_tries_and_closes_it_with_its_first_content() -> None:
    calls = Calls(1, cooldown=20).at(10, FAILS).at(40, "-s---H---e|").at(43, WORKS).at(46, WORKS).play()
    assert calls.states == [(11, "open"), (40, "half_open"), (45, "closed")]
    assert calls.asked == [10, 40, 46]
    _, error = calls.ends[43]
    assert (error.metadata, error.retry_after) == ({"circuit": "half_open"}, 20)
    assert calls.ends[40] == (50, None)


def test_a_try_that_fails_opens_it_again_for_another_cooldown() -> None:
    calls = Calls(3, cooldown=20).at(1, FAILS).at(2, FAILS).at(3, FAILS)
    calls.at(30, FAILS).at(40, WORKS).at(55, WORKS).play()
    assert calls.states == [(4, "open"), (30, "half_open"), (31, "open"), (55, "half_open"), (57, "closed")]
    assert calls.asked == [1, 2, 3, 30, 55]


def test_a_try_that_is_left_lets_the_next_call_try() -> None:
    calls = Calls(1, cooldown=20).at(10, FAILS).at(40, "-s--------------", dispose=44).at(50, WORKS).play()
    assert calls.states == [(11, "open"), (40, "half_open"), (52, "closed")]
    assert calls.asked == [10, 40, 50]


def test_a_try_that_fails_after_its_first_content_is_a_failure_like_any_other() -> None:
    calls = Calls(2, cooldown=20).at(1, FAILS).at(2, FAILS).at(30, "-sHt|").at(40, FAILS).at(50, WORKS).play()
    assert calls.states == [(3, "open"), (30, "half_open"), (32, "closed"), (41, "open")]


def test_an_error_event_is_a_failure_though_the_stream_completes() -> None:
    calls = Calls(1).at(10, "-sHt|").at(20, WORKS).play()
    assert calls.states == [(13, "open")]
    assert calls.ends[10] == (14, None)


@pytest.mark.parametrize(
    "error", [AdapterError("invalid_request"), AdapterError("authentication_failed"), StreamError("cancelled")]
)
def test_errors_that_are_the_callers_do_not_count(error: Exception) -> None:
    calls = Calls(1).at(10, FAILS, X=error).at(20, WORKS).play()
    assert (calls.states, calls.ends[10]) == ([], (11, error))


@pytest.mark.parametrize("error", [KeyError("mine"), EngineError("missing_key")])
def test_an_error_that_says_nothing_of_the_provider_leaves_the_try_to_the_next(error: Exception) -> None:
    calls = Calls(1, cooldown=20).at(10, FAILS).at(40, FAILS, X=error).at(50, WORKS).play()
    assert calls.states == [(11, "open"), (40, "half_open"), (52, "closed")]


def test_a_try_that_fails_by_the_callers_fault_closes_it() -> None:
    calls = Calls(1, cooldown=20).at(10, FAILS).at(40, FAILS, X=AdapterError("invalid_request")).at(50, WORKS).play()
    assert calls.states == [(11, "open"), (40, "half_open"), (41, "closed")]


def test_calls_that_were_under_way_when_it_opened_change_nothing() -> None:
    calls = Calls(1, cooldown=20).at(10, "---------sHe|").at(11, FAILS).at(15, WORKS).play()
    assert calls.states == [(12, "open")]
    assert calls.ends[10] == (22, None)
    assert calls.asked == [10, 11]


def test_nor_do_they_make_the_cooldown_longer() -> None:
    calls = Calls(1, cooldown=20).at(10, "-----------------X").at(11, FAILS).at(33, WORKS).play()
    assert calls.states == [(12, "open"), (33, "half_open"), (35, "closed")]


def test_a_try_that_has_failed_cannot_recover() -> None:
    circuit = Circuit(1, 60.0, 10.0, None)
    for now in (0.0, 20.0):
        passage = circuit.enter(now)
        assert not isinstance(passage, AdapterError)
        circuit.report(passage, "failed", now)
        circuit.record_content(passage)
        assert isinstance(circuit.enter(now + 1), AdapterError)


def test_what_on_change_raises_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(state: str) -> None:
        raise KeyError("mine")

    caplog.set_level(logging.WARNING, logger="rxllm")
    engine = Engine(Fake(DOWN), operators=(ops.circuit_breaker(1, on_change=fail),), retry=False)
    with pytest.raises(AdapterError) as caught:
        generate(engine, "Hi").run()
    assert caught.value is DOWN
    assert [record.getMessage() for record in caplog.records] == ["the circuit is open", "on_change('open') failed"]


def test_the_calls_of_an_engine_share_it() -> None:
    model = Fake([DOWN], [DOWN], ["Hello"])
    engine = Engine(model, operators=(ops.circuit_breaker(2),), retry=False)
    for _ in range(4):
        with pytest.raises(AdapterError):
            generate(engine, "Hi").run()
    assert len(model.requests) == 2


def test_a_retried_call_is_one_failure() -> None:
    model = Fake([DOWN])
    engine = Engine(model, operators=(ops.circuit_breaker(2),), retry={"base_delay": 0.0, "jitter": 0.0})
    for _ in range(2):
        with pytest.raises(AdapterError):
            generate(engine, "Hi").run()
    assert len(model.requests) == 6


def test_of_many_threads_one_tries() -> None:
    """All ask at once, as soon as the cooldown is over."""
    circuit = Circuit(1, 60.0, 10.0, None)
    first = circuit.enter(0.0)
    assert not isinstance(first, AdapterError)
    circuit.report(first, "failed", 0.0)
    passed, guard = list[Any](), threading.Lock()

    def ask() -> None:
        answer = circuit.enter(10.0)
        with guard:
            passed.append(answer)

    together(*[ask] * 16)
    assert sum(not isinstance(each, AdapterError) for each in passed) == 1


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ops.circuit_breaker(0), "failures"),
        (lambda: ops.circuit_breaker(1.5), "failures"),  # pyright: ignore[reportArgumentType]
        (lambda: ops.circuit_breaker(within=0), "within"),
        (lambda: ops.circuit_breaker(cooldown=float("nan")), "cooldown"),
        (lambda: ops.circuit_breaker(on_change="print"), "on_change"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))

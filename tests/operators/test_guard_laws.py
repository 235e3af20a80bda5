"""Laws of guards, for every text, cutting and timing, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable, Subject, empty, of, throw, timer
from reactivex import operators as rx
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import StreamCollector
from rxllm import operators as ops
from rxllm.events import ErrorEvent, Event, RawChunk, TextDelta, ThinkingDelta
from rxllm.testing.marbles import record
from rxllm.testing.strategies import lawful_events
from tests.operators.scripts import pieces, said, texts

Timed = list[tuple[float, Event]]
Verdicts = list[tuple[float, Any]]

verdicts = st.lists(
    st.tuples(
        st.integers(0, 9).map(float), st.sampled_from([None, None, None, True, False, "no", 3, ValueError("no")])
    ),
    min_size=1,
    max_size=8,
)
everies = st.sampled_from(["sentence", 1, 3, 20])


class Guards:
    """A check that answers in turn, after so many seconds, and notes which text has passed when."""

    def __init__(self, verdicts: Verdicts, scheduler: TestScheduler, as_streams: bool = True) -> None:
        self.passed: list[tuple[float, int]] = []  # when, and which
        self.parts: list[str] = []
        self.late = False
        self._verdicts = verdicts
        self._scheduler = scheduler
        self._as_streams = as_streams

    def __call__(self, text: str) -> Any:
        number = len(self.parts)
        self.parts.append(text)
        seconds, verdict = self._verdicts[number % len(self._verdicts)]
        if not self._as_streams or seconds == 0:
            return self._judge(number, verdict)
        return timer(seconds).pipe(rx.map(lambda _: self._judge(number, verdict)))

    def _judge(self, number: int, verdict: Any) -> Any:
        if isinstance(verdict, Exception):
            raise verdict
        if verdict is None or verdict is True:
            self.passed.append((self._scheduler.to_seconds(self._scheduler.now) - 200, number))
        return verdict

    def passed_by(self, time: float) -> int:
        """How many characters had passed, from the beginning, without a gap; white space alone is not checked."""
        known = {number for at, number in self.passed if at <= time}
        count = next(number for number in range(len(self.parts) + 1) if number not in known)
        return solid(*self.parts[:count])


def solid(*texts: str) -> int:
    return len("".join("".join(texts).split()))


@st.composite
def timed(draw: st.DrawFn, events: list[Event]) -> tuple[Timed, float]:
    """When each of `events` comes, and when the source ends."""
    gaps = draw(st.lists(st.integers(0, 6), min_size=len(events) + 1, max_size=len(events) + 1))
    *times, end = accumulate(gaps)
    return list(zip((float(at) for at in times), events, strict=True)), float(end)


def shown(
    source: Timed, end: float, guard: Callable[[Any], Callable[[Observable[Any]], Observable[Any]]], verdicts: Verdicts
) -> tuple[list[tuple[int, str, Any]], Guards, Any]:
    scheduler = TestScheduler()
    notes = [ReactiveTest.on_next(int(at), event) for at, event in source]
    cold = scheduler.create_cold_observable([*notes, ReactiveTest.on_completed(int(end))])
    guards = Guards(verdicts, scheduler)
    told = record(scheduler, lambda: cold.pipe(guard(guards)), disposed=100_000)
    return told, guards, cold


def fold(events: Any) -> Any:
    return reduce(StreamCollector.apply_event, events, StreamCollector()).to_response()


def items(notes: Any) -> list[Any]:
    return [value for _, kind, value in notes if kind == "next"]


@given(texts(), verdicts, everies, st.none() | st.integers(0, 12), st.data())
def test_with_fail_what_is_shown_has_passed(
    text: str, verdicts: Verdicts, every: Any, lag: float | None, data: st.DataObject
) -> None:
    events = said(data.draw(pieces(text)))
    source, end = data.draw(timed(events))
    notes, guards, cold = shown(source, end, lambda check: ops.guard(check, every, lag), verdicts)
    visible = ""
    for at, kind, event in notes:
        if kind == "next" and isinstance(event, TextDelta):
            visible += event.delta
            assert solid(visible) <= guards.passed_by(at)
    assert text.startswith(visible)
    *_, (ended, kind, _) = notes
    assert cold.subscriptions[0].unsubscribe <= 200 + ended
    assert kind == "end"
    result, whole = fold(items(notes)), fold(events)
    if result.error is None:
        assert result == whole
        assert visible == text
    else:
        assert result.error.reason.startswith("guard_")
        assert result.output_text == visible
    assert items(record(TestScheduler(), lambda: of(*items(notes)).pipe(ops.verify()))) == items(notes)


@given(texts(), st.integers(0, 3), st.data())
def test_what_has_passed_is_released_before_the_source_ends(text: str, seconds: int, data: st.DataObject) -> None:
    events = said(data.draw(pieces(text)))
    source, end = data.draw(timed(events))
    notes, guards, _ = shown(source, end, ops.guard, [(float(seconds), None)])
    assert items(notes)[0] is events[0]
    for at, _number in guards.passed:
        if at < end:
            visible = "".join(event.delta for tick, _, event in notes if tick <= at and isinstance(event, TextDelta))
            assert solid(visible) >= guards.passed_by(at)


@given(texts(), verdicts, everies, st.integers(0, 9), st.data())
def test_with_release_nothing_waits_longer(
    text: str, verdicts: Verdicts, every: Any, lag: int, data: st.DataObject
) -> None:
    events = said(data.draw(pieces(text)))
    source, end = data.draw(timed(events))
    notes, _, _ = shown(source, end, lambda check: ops.guard(check, every, lag, "release"), verdicts)
    *released, (ended, kind, _) = notes
    cut = any(isinstance(event, ErrorEvent) for event in items(notes))
    assert kind == "end"
    assert ended <= end + lag
    came = "".join(event.delta for at, event in source if isinstance(event, TextDelta) and at + lag < ended)
    visible = "".join(event.delta for event in items(notes) if isinstance(event, TextDelta))
    assert visible.startswith(came)
    for at, event in source:
        if not isinstance(event, TextDelta) and not cut:
            assert any(other is event and tick <= at + lag for tick, _, other in released)
    if not cut:
        assert fold(items(notes)) == fold(events)
    else:
        assert fold(items(notes)).output_text == visible


@given(lawful_events, everies, st.sampled_from([0.0, 2.0]))
def test_where_all_passes_the_result_is_that_of_the_source(events: list[Event], every: Any, seconds: float) -> None:
    source = [(float(number), event) for number, event in enumerate(events)]
    notes, guards, _ = shown(source, float(len(events)), lambda check: ops.guard(check, every), [(seconds, None)])
    assert fold(items(notes)) == fold(events)
    assert without_deltas(items(notes)) == without_deltas(events)
    assert items(record(TestScheduler(), lambda: of(*items(notes)).pipe(ops.verify()))) == items(notes)
    told = "".join(event.delta for event in events if isinstance(event, TextDelta | ThinkingDelta))
    assert "".join("".join(guards.parts).split()) == "".join(told.split()) or not told


def without_deltas(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, TextDelta | ThinkingDelta | RawChunk)]


@given(lawful_events, everies, st.lists(st.sampled_from([None, None, "no"]), min_size=1, max_size=5))
def test_where_it_trips_the_stream_stays_lawful(events: list[Event], every: Any, answers: list[Any]) -> None:
    source = [(float(number), event) for number, event in enumerate(events)]
    verdicts: Verdicts = [(1.0, answer) for answer in answers]
    notes, _, _ = shown(source, float(len(events)), lambda check: ops.guard(check, every), verdicts)
    assert items(record(TestScheduler(), lambda: of(*items(notes)).pipe(ops.verify()))) == items(notes)


@given(texts(), st.sampled_from([3, 20, "sentence"]), st.data())
def test_the_parts_depend_on_the_text_alone(text: str, every: Any, data: st.DataObject) -> None:
    def parts(pieces: list[str]) -> list[str]:
        seen: list[str] = []
        record(TestScheduler(), lambda: of(*said(pieces)).pipe(ops.guard(seen.append, every)))
        return seen

    assert parts(data.draw(pieces(text))) == parts([text])


@given(st.sampled_from([lambda: empty(), lambda: of(None), lambda: None]), st.data())
def test_however_a_check_says_yes(make: Any, data: st.DataObject) -> None:
    events = said(data.draw(pieces("One is. Two is.\nThree")))
    assert fold(items(record(TestScheduler(), lambda: of(*events).pipe(ops.guard(lambda text: make()))))) == fold(
        events
    )


@given(st.permutations(range(4)), st.lists(st.booleans(), min_size=4, max_size=4))
def test_verdicts_in_any_order_show_the_same(order: list[int], answers: list[bool]) -> None:
    source, checks, seen = Subject[Any](), [Subject[Any]() for _ in range(4)], list[Any]()
    turn = iter(checks)
    source.pipe(ops.guard(lambda text: next(turn), every=2)).subscribe(seen.append, scheduler=TestScheduler())
    source.on_next(TextDelta(""))
    source.on_next(TextDelta("0.1.2.3."))
    for number in order:
        checks[number].on_next(answers[number])
        checks[number].on_completed()
    first = answers.index(False) if False in answers else 4
    assert "".join(event.delta for event in seen if isinstance(event, TextDelta)) == "0.1.2.3."[: 2 * first]
    if first < 4:
        assert seen[-1].error.metadata["text"] == f"{first}."


def test_a_check_that_fails_as_a_stream_never_passes() -> None:
    events = said(["One is. ", "Two."])
    (*_, result) = record(TestScheduler(), lambda: of(*events).pipe(ops.guard(lambda text: throw(ValueError("no")))))
    assert result[1] == "end"

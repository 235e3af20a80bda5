"""Text at a steady pace, and snapshots at intervals, in virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject, from_iterable
from reactivex.scheduler import VirtualTimeScheduler
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import Fake, Response, ValidationError, stream_generate
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    RawChunk,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.runtime import Stream
from rxllm.runtime.back_pressure import read_by
from rxllm.testing import strategies
from rxllm.testing.marbles import Note, check, cold, record
from rxllm.testing.virtual_time import Clock
from rxllm.values import Message, StreamError, Usage
from tests.operators.scripts import TEXTS, pieces, recorded, said, texts, through

# smooth


LAG = 0.25
Timed = list[tuple[float, Any]]


def played(source: Timed, end: float = 100.0, error: Exception | None = None, lag: float = LAG) -> Timed:
    """When `smooth` says what, in seconds; its end is None, or the error."""
    scheduler = TestScheduler()
    notes = [ReactiveTest.on_next(at, event) for at, event in source]
    notes.append(ReactiveTest.on_error(end, error) if error else ReactiveTest.on_completed(end))
    cold = scheduler.create_cold_observable(notes)
    told = scheduler.start(lambda: cold.pipe(ops.smooth(lag)), disposed=10_000)
    return [(float(each.time) - 200, _said(each.value)) for each in told.messages]


def _said(note: Any) -> Any:
    return {"N": lambda: note.value, "E": lambda: note.exception, "C": lambda: None}[note.kind]()


def deltas(told: Timed) -> list[str]:
    return [event.delta for _, event in told if isinstance(event, TextDelta | ThinkingDelta)]


def test_what_comes_evenly_is_not_touched() -> None:
    check(
        ops.smooth(),
        "-s-a-b-c-d-|",
        "^----------!",
        "-s-a-b-c-d-|",
        s=StepRestarted("again", 2),
        a=TextDelta("Hello "),
        b=TextDelta("world"),
        c=TextCompleted("Hello world"),
        d=ThinkingDelta("hm"),
    )


def test_a_burst_is_spread_word_by_word_over_the_lag() -> None:
    told = played([(1, TextDelta("one two three four five six seven eight "))])
    times = [at for at, event in told if event is not None]
    assert deltas(told) == ["one ", "two ", "three ", "four ", "five ", "six ", "seven ", "eight "]
    assert times[0] == 1
    assert times[-1] == pytest.approx(1 + LAG, abs=0.06)
    assert max(after - before for before, after in pairwise(times)) < 2 * LAG / 8


def test_bursts_are_spread_until_the_next_one() -> None:
    source = [(1 + 0.2 * i, TextDelta("a b c d e f ")) for i in range(10)]
    times = [at for at, event in played(source) if event is not None][6:]  # the first could not be foreseen
    gaps = [after - before for before, after in pairwise(times)]
    assert len(times) == 54
    assert 0.01 < min(gaps) <= max(gaps) < 0.06  # evenly they would be 0.033; in bursts they are 0 and 0.2


def test_a_word_behind_a_burst_does_not_hold_it_up() -> None:
    told = played([(1, TextDelta("a " * 30, "1")), (1 + LAG / 2, TextDelta("b ", "2"))])
    assert max(at for at, event in told if event is not None and event.id == "1") <= 1 + LAG


def test_a_word_behind_a_burst_does_not_push_it_out() -> None:
    source = [(1 + 0.2 * i, TextDelta("a b c d e f ")) for i in range(10)]
    times = [at for at, event in played([*source, (2.82, TextDelta("g "))]) if event is not None]
    assert max(map(times.count, times)) == 1


def test_the_timer_is_gone_when_the_end_is_told() -> None:
    clock, waiting = Clock(), list[int]()
    events: Subject[Event] = Subject()
    piped = events.pipe(ops.smooth())
    piped.subscribe(on_completed=lambda: waiting.append(clock.waiting), scheduler=clock)
    events.on_next(TextDelta("a"))
    assert clock.waiting == 1
    events.on_completed()
    assert waiting == [0]


def test_words_that_come_faster_than_frames_hardly_wait() -> None:
    source = [(1 + 0.01 * i, TextDelta("word ")) for i in range(100)]
    told = played(source)
    lags = [went - came for (came, _), (went, _) in zip(source, told[:-1], strict=True)]
    assert max(lags[10:]) < 0.12


def test_the_end_and_what_follows_wait_for_the_text() -> None:
    rest = [TextCompleted("a b c "), ToolCallStarted("c1", "add")]
    told = played([(1, TextDelta("a b c ")), *((1, event) for event in rest)], end=1)
    assert [event for _, event in told[-3:]] == [*rest, None]
    assert 1 + LAG / 2 < told[-1][0] <= 1 + LAG
    assert {at for at, _ in told[-3:]} == {told[-1][0]}


def test_thinking_and_blocks_are_kept_apart() -> None:
    source = [ThinkingDelta("h"), ThinkingDelta("m "), TextDelta("a", "1"), TextDelta("b c", "2"), TextDelta("d", "2")]
    assert [event for _, event in played([(1, event) for event in source])] == [
        ThinkingDelta("h"),
        ThinkingDelta("m "),
        TextDelta("a", "1"),
        TextDelta("b ", "2"),
        TextDelta("cd", "2"),
        None,
    ]


def test_an_error_brings_what_waits_before_it() -> None:
    error = ValueError("no")
    told = played([(1, TextDelta("a b c ")), (1, TextCompleted("a b c "))], end=1.01, error=error)
    assert [event for _, event in told[1:]] == [TextDelta("b "), TextDelta("c "), TextCompleted("a b c "), error]
    assert [at for at, _ in told[1:]] == pytest.approx([1.01] * 4)


def test_an_error_in_the_stream_waits_like_any_event() -> None:
    event = ErrorEvent(StreamError("truncated"))
    told = played([(1, TextDelta("a b c ")), (1, event)], end=1)
    assert deltas(told) == ["a ", "b ", "c "]
    assert [each for _, each in told[-2:]] == [event, None]


def test_a_dispose_drops_what_waits() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable([ReactiveTest.on_next(210, TextDelta("a b c "))])
    told = scheduler.start(lambda: source.pipe(ops.smooth(5.0)), disposed=211)
    assert [note.value.value for note in told.messages] == [TextDelta("a ")]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 211)]


def test_without_lag_everything_passes() -> None:
    source = said(["one two ", "three"])
    assert [event for _, event in played([(1, event) for event in source], lag=0)][:-1] == source
    events: Subject[Event] = Subject()
    assert isinstance(events.pipe(ops.smooth(0)), Stream)


def test_a_subscriber_s_exception_comes_back_once() -> None:
    scheduler, errors, told = TestScheduler(), list[Exception](), list[Any]()
    failure = ValueError("no")

    def refuse(event: Any) -> None:
        told.append(event)
        if len(told) == 2:
            raise failure

    events: Subject[Event] = Subject()
    events.pipe(ops.smooth()).subscribe(refuse, errors.append, scheduler=scheduler)
    events.on_next(TextDelta("a b c "))
    scheduler.advance_by(10.0)
    assert errors == [failure]
    assert told == [TextDelta("a "), TextDelta("b ")]
    assert not events.observers


def test_the_end_does_not_follow_what_a_subscriber_raised_to_its_reader() -> None:
    scheduler, heard, told = TestScheduler(), list[BaseException](), list[Any]()

    def refuse(event: Any) -> None:
        told.append(event)
        if len(told) == 2:
            raise KeyboardInterrupt

    def listen(error: BaseException) -> bool:
        heard.append(error)
        return True

    events: Subject[Event] = Subject()
    with read_by(None, listen):
        events.pipe(ops.smooth()).subscribe(refuse, told.append, lambda: told.append("|"), scheduler=scheduler)
        events.on_next(TextDelta("a b "))
        events.on_completed()
        scheduler.advance_by(10.0)
    assert [type(error) for error in heard] == [KeyboardInterrupt]
    assert told == [TextDelta("a "), TextDelta("b ")]


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    class Unsteady(VirtualTimeScheduler):
        offset = 0.0

        @property
        def now(self) -> Any:
            return self.to_datetime(self._clock - self.offset)

        def schedule_relative(self, duetime: Any, action: Any, state: Any = None) -> Any:
            return self.schedule_absolute(self._clock + duetime, action, state)

    scheduler, told = Unsteady(), list[Any]()
    events: Subject[Event] = Subject()
    events.pipe(ops.smooth()).subscribe(told.append, scheduler=scheduler)
    events.on_next(TextDelta("a b c d "))
    scheduler.offset = 3600
    scheduler.start()
    assert "".join(event.delta for event in told) == "a b c d "
    assert scheduler._clock < 2 * LAG


def test_a_character_is_never_cut() -> None:
    told = played([(1, TextDelta("か\u3099が 👩‍👩‍👧 漢\U000e0100字 e\u0301te\u0301"))])
    assert deltas(told) == ["か\u3099", "が ", "👩‍👩‍👧 ", "漢\U000e0100", "字 ", "e\u0301te\u0301"]


@st.composite
def streams(draw: st.DrawFn) -> Timed:
    """A text in pieces, with other events between, at any times."""
    at, source = 1.0, Timed()
    for piece in draw(pieces(draw(texts()))):
        at += draw(st.sampled_from([0.0, 0.0, 0.003, 0.02, 0.1, 0.4]))
        kind = draw(st.sampled_from([TextDelta, TextDelta, TextDelta, ThinkingDelta, ToolCallStarted]))
        source.append((at, kind(piece, "x")))
    return source


@given(streams(), st.sampled_from([0.0, 0.02, 1.0]), st.sampled_from([0.05, LAG, 1.0]))
def test_nothing_is_lost_moved_or_late(source: Timed, rest: float, lag: float) -> None:
    end = (source[-1][0] if source else 0.0) + rest
    told = played(source, end, lag=lag)
    assert told.pop()[1] is None
    assert _characters(told) == _characters(source)
    for came, went in zip(_times(source), _times(told), strict=True):
        assert came - 1e-9 <= went <= came + lag + 1e-6


def _characters(told: Timed) -> list[Any]:
    return [
        each
        for _, event in told
        for each in (
            [(type(event), event.id, character) for character in event.delta] if hasattr(event, "delta") else [event]
        )
        if not hasattr(event, "delta") or event.delta
    ]


def _times(told: Timed) -> list[float]:
    return [at for at, event in told for _ in (event.delta if hasattr(event, "delta") else "x")]


def test_recorded_texts_come_whole() -> None:
    for text in (*TEXTS, *recorded()[:20]):
        events = said(text[i : i + 7] for i in range(0, len(text), 7))
        source = [(1 + 0.01 * i, event) for i, event in enumerate(events)]
        told = played(source, source[-1][0])
        assert "".join(deltas(told)) == text
        assert [type(event) for _, event in told[-3:]] == [TextCompleted, type(source[-1][1]), type(None)]


def test_on_a_loop_it_ends_with_everything_and_no_timer() -> None:
    async def main() -> list[Event]:
        events = await stream_generate(Fake("one two three four"), "Hi").pipe(ops.smooth(0.05)).to_list()
        loop = asyncio.get_running_loop()
        assert not [each for each in getattr(loop, "_scheduled", ()) if not each.cancelled()]
        return events

    told = asyncio.run(main())
    assert [event.delta for event in told if isinstance(event, TextDelta)] == ["one ", "two ", "three ", "four"]
    assert [type(event).__name__ for event in told[-2:]] == ["TextCompleted", "MessageCompleted"]


@pytest.mark.parametrize("lag", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_lag_that_makes_no_sense_is_refused(lag: Any) -> None:
    with pytest.raises(ValidationError, match="max_lag") as refusal:
        ops.smooth(lag)
    assert refusal.value.reason == "invalid_option"


def test_thinking_is_smoothed_too() -> None:
    told = played([(1, ThinkingDelta("a b c ")), (1, ThinkingCompleted("a b c "))])
    assert deltas(told) == ["a ", "b ", "c "]
    assert told[-2][1] == ThinkingCompleted("a b c ")


def test_what_waits_comes_before_the_error_for_what_is_no_event() -> None:
    clock, told, errors = Clock(), list[Any](), list[Exception]()
    events: Subject[Any] = Subject()
    events.pipe(ops.smooth(1.0)).subscribe(told.append, errors.append, scheduler=clock)
    events.on_next(TextDelta("one two three"))
    events.on_next("text")
    assert "".join(event.delta for event in told) == "one two three"
    assert [type(error) for error in errors] == [StreamError]
    assert not clock.waiting


# snapshots


VALUES: dict[str, Any] = {
    **{letter: TextDelta(letter) for letter in "abcdef"},
    "T": TextCompleted("ab"),
    "M": MessageCompleted(Message("assistant", "ab"), "stop"),
    "r": RawChunk("frame", {}),
    "X": ValueError("no"),
    "E": ErrorEvent(StreamError("truncated")),
}


def snapshot_texts(marbles: str, every: float = 4.0, disposed: int | None = None) -> list[Note]:
    """When which text is shown."""
    scheduler = TestScheduler()
    told = record(scheduler, lambda: cold(scheduler, marbles, VALUES).pipe(ops.snapshots(every)), disposed)
    return [(at, kind, what.output_text if kind == "next" else what) for at, kind, what in told]


def test_the_first_comes_at_once_and_then_one_in_so_many_seconds() -> None:
    assert snapshot_texts("-abcdef----|", 3.0) == [
        (1, "next", "a"),
        (4, "next", "abcd"),
        (7, "next", "abcdef"),
        (11, "end", None),
    ]


def test_the_last_one_comes_with_the_end() -> None:
    assert snapshot_texts("-ab|") == [(1, "next", "a"), (3, "next", "ab"), (3, "end", None)]


def test_while_nothing_changes_nothing_comes_and_no_timer_runs() -> None:
    assert snapshot_texts("-a-----r------b-|") == [(1, "next", "a"), (14, "next", "ab"), (16, "end", None)]
    clock, events = Clock(), Subject[Event]()
    events.pipe(ops.snapshots(1.0)).subscribe(scheduler=clock)
    events.on_next(TextDelta("a"))
    assert clock.waiting == 1
    clock.advance_to(10.0)
    assert clock.waiting == 0


def test_nothing_comes_after_a_dispose() -> None:
    assert snapshot_texts("-ab------|", disposed=3) == [(1, "next", "a")]


def test_an_error_follows_what_came() -> None:
    assert snapshot_texts("-ab-X") == [(1, "next", "a"), (4, "next", "ab"), (4, "error", VALUES["X"])]


def test_a_streamed_error_is_in_the_response() -> None:
    told = through(ops.snapshots(), [TextDelta("a"), VALUES["E"]])
    assert told[-1].error == StreamError("truncated")
    assert (told[-1].output_text, told[-1].finish_reason) == ("a", "error")


def test_without_a_period_there_is_one_for_each_change() -> None:
    assert snapshot_texts("-abr-c|", 0) == [(1, "next", "a"), (2, "next", "ab"), (5, "next", "abc"), (6, "end", None)]


def test_an_empty_stream_gives_what_to_response_gives() -> None:
    assert through(ops.snapshots(), []) == through(ops.to_response(), []) == [Response(Message("assistant"))]


@given(st.lists(strategies.lawful_events, max_size=2), st.sampled_from([0.0, 0.1]))
def test_the_last_one_is_the_response(responses: list[list[Event]], every: float) -> None:
    events = [event for response in responses for event in response]
    assert through(ops.snapshots(every), events)[-1:] == through(ops.to_response(), events)


def test_a_raw_usage_with_unknown_names_is_the_stream_s_error() -> None:
    errors: list[Exception] = []
    from_iterable([RawChunk("usage", {"nonsense": 1})]).pipe(ops.snapshots()).subscribe(on_error=errors.append)
    assert [type(error) for error in errors] == [TypeError]


def test_a_subscriber_s_exception_comes_back_once_of_snapshots() -> None:
    scheduler, errors, told, failure = TestScheduler(), list[Exception](), list[Any](), ValueError("no")

    def refuse(response: Any) -> None:
        told.append(response)
        if len(told) == 2:
            raise failure

    events: Subject[Event] = Subject()
    events.pipe(ops.snapshots(1.0)).subscribe(refuse, errors.append, scheduler=scheduler)
    for letter in "abc":
        events.on_next(TextDelta(letter))
    scheduler.advance_by(5.0)
    assert errors == [failure]
    assert [response.output_text for response in told] == ["a", "abc"]
    assert not events.observers


def test_the_last_one_follows_a_subscriber_s_exception_that_the_source_has_survived() -> None:
    seen: list[Any] = []

    def refuse_first(response: Any) -> None:
        seen.append(response.output_text)
        if len(seen) == 1:
            raise ValueError("no")

    events: Subject[Event] = Subject()
    piped = events.pipe(ops.snapshots(1.0))
    piped.subscribe(refuse_first, on_completed=lambda: seen.append("|"), scheduler=TestScheduler())
    with pytest.raises(ValueError, match="no"):
        events.on_next(TextDelta("a"))
    events.on_next(TextDelta("b"))
    events.on_completed()
    assert seen == ["a", "ab", "|"]


def test_it_counts_tokens_too() -> None:
    told = through(ops.snapshots(0), [UsageUpdated(Usage(3, 1)), UsageUpdated(Usage(3, 2)), *said(["Hi"])])
    assert [response.usage.total for response in told[:2]] == [4, 5]


def test_on_a_loop_no_timer_is_left() -> None:
    async def main() -> list[Response[Any]]:
        told = await stream_generate(Fake(["a", ("delay", 0.03), "b"]), "Hi").pipe(ops.snapshots(0.02)).to_list()
        loop = asyncio.get_running_loop()
        assert not [each for each in getattr(loop, "_scheduled", ()) if not each.cancelled()]
        return told

    assert [response.output_text for response in asyncio.run(main())] == ["", "a", "ab"]


@pytest.mark.parametrize("every", [-1, float("nan"), "1", None, False])
def test_a_period_that_makes_no_sense_is_refused(every: Any) -> None:
    with pytest.raises(ValidationError, match="every") as refusal:
        ops.snapshots(every)
    assert refusal.value.reason == "invalid_option"


def test_an_end_from_inside_on_next_still_brings_the_last_one() -> None:
    events: Subject[Event] = Subject()
    told: list[Any] = []

    def hear(response: Response[Any]) -> None:
        told.append(response.output_text)
        if len(told) == 1:
            events.on_next(TextDelta("b"))
            events.on_completed()

    events.pipe(ops.snapshots(1.0)).subscribe(hear, on_completed=lambda: told.append("|"), scheduler=TestScheduler())
    events.on_next(TextDelta("a"))
    assert told == ["a", "ab", "|"]


def test_the_timer_is_gone_when_the_end_is_told_of_snapshots() -> None:
    clock, waiting = Clock(), list[int]()
    events: Subject[Event] = Subject()
    piped = events.pipe(ops.snapshots(1.0))
    piped.subscribe(on_completed=lambda: waiting.append(clock.waiting), scheduler=clock)
    events.on_next(TextDelta("a"))
    assert clock.waiting == 1
    events.on_completed()
    assert waiting == [0]

"""Limits of time and warnings of stalls, in virtual time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from reactivex import Observable, Subject, abc
from reactivex.disposable import CompositeDisposable, Disposable
from reactivex.scheduler import VirtualTimeScheduler
from reactivex.testing import TestScheduler

from rxllm import Fake
from rxllm import operators as ops
from rxllm.events import (
    Custom,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    PartAdded,
    RawChunk,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.runtime.back_pressure import Gate, read_by
from rxllm.testing.marbles import START, check, cold, record
from rxllm.values import AdapterError, Call, Message, ProviderPart, Request, StreamError, Usage, ValidationError
from tests.waiting import PATIENCE, wait_until

# time_limits


VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "H": TextDelta("H"),
    "i": TextDelta("i"),
    "T": TextCompleted("Hi"),
    "e": MessageCompleted(Message("assistant", "Hi"), "stop"),
    "p": RawChunk("ping", {}),
    "u": UsageUpdated(Usage(3)),
}


def late(limit: str, seconds: float, events: int) -> StreamError:
    faults = {
        "first": "no content arrived within",
        "idle": "no more content arrived for",
        "total": "the stream did not end within",
    }
    message = f"{faults[limit]} {seconds:g} s (timeout {limit!r}, after {events} events)"
    return StreamError("timeout", message, metadata={"limit": limit, "seconds": seconds, "events": events})


def test_a_stream_in_time_passes_as_it_is() -> None:
    check(
        ops.time_limits(first=5, idle=5, total=20),
        "-s--H---i-(Te)-|",
        "^--------------!",
        "-s--H---i-(Te)-|",
        **VALUES,
    )


def test_before_the_first_event_it_is_raised() -> None:
    error = late("first", 5, 0)
    check(
        ops.time_limits(first=5),
        "----------|",
        "^----!",
        "-----X",
        X=AdapterError(error.reason, error.message, metadata=error.metadata),
    )


def test_signs_of_life_are_no_first_content() -> None:
    check(
        ops.time_limits(first=6),
        "-s-p-u-p-H|",
        "^-----!",
        "-s-p-u(x|)",
        **{**VALUES, "x": ErrorEvent(late("first", 6, 3))},
    )


def test_signs_of_life_do_not_keep_an_idle_stream_alive() -> None:
    check(
        ops.time_limits(first=3, idle=4),
        "-sH-pu-p-p-i|",
        "^-----!",
        "-sH-pu(Tx|)",
        **{**VALUES, "T": TextCompleted("H"), "x": ErrorEvent(late("idle", 4, 4))},
    )


@pytest.mark.parametrize("content", [Custom("mine"), PartAdded(ProviderPart("p", {})), ThinkingDelta("")])
def test_text_of_the_model_or_of_an_operator_is_content(content: Event) -> None:
    check(
        ops.time_limits(first=3, idle=3),
        "s-c-c-c-c-c|",
        "^----------!",
        "s-c-c-c-c-c|",
        s=VALUES["s"],
        c=content,
    )


def test_idle_begins_with_the_first_content() -> None:
    check(
        ops.time_limits(idle=2),
        "-----s----H---|",
        "^-----------!",
        "-----s----H-(Tx|)",
        **{**VALUES, "T": TextCompleted("H"), "x": ErrorEvent(late("idle", 2, 2))},
    )


def test_an_earlier_limit_than_the_one_before_is_kept() -> None:
    """The timer was set for `first`."""
    check(
        ops.time_limits(first=50, idle=3),
        "-sH---------|",
        "^----!",
        "-sH--(Tx|)",
        **{**VALUES, "T": TextCompleted("H"), "x": ErrorEvent(late("idle", 3, 2))},
    )


def test_the_whole_has_a_limit_however_much_is_said() -> None:
    check(
        ops.time_limits(idle=5, total=8),
        "sHiHiHiHiHiHi|",
        "^-------!",
        "sHiHiHiH(iTx|)",
        **{**VALUES, "T": TextCompleted("HiHiHiHi"), "x": ErrorEvent(late("total", 8, 9))},
    )


def test_an_open_block_is_closed_and_kept() -> None:
    values: dict[str, Any] = {
        "s": VALUES["s"],
        "h": ThinkingDelta("hm", "1"),
        "a": TextDelta("a", "2"),
        "b": TextDelta("b"),  # the open one's
        "c": ToolCallStarted("c0", "add", {"index": 0}),
        "d": ToolCallDelta("c0", '{"x": '),
        "f": ToolCallStarted("c1", "add"),
        "g": ToolCallCompleted("c1", "add", {}, "{}"),
        "H": ThinkingCompleted("hm", id="1"),
        "A": TextCompleted("ab", "2"),
        "D": ToolCallCompleted("c0", "add", {}, '{"x": ', {"index": 0, "error": "incomplete"}),
        "x": ErrorEvent(late("idle", 3, 8)),
    }
    check(
        ops.time_limits(idle=3),
        "shabcdfg-------|",
        "^---------!",
        "shabcdfg--(HADx|)",
        **values,
    )


def test_blocks_without_ids_are_one_after_another() -> None:
    check(
        ops.time_limits(idle=3),
        "sHTi-------|",
        "^-----!",
        "sHTi--(Ix|)",
        **{**VALUES, "T": TextCompleted("H"), "I": TextCompleted("i"), "x": ErrorEvent(late("idle", 3, 4))},
    )


def test_the_source_is_left_before_anything_is_said_of_it() -> None:
    scheduler, left = TestScheduler(), list[int]()
    source = cold(scheduler, "-sH------|", VALUES)
    events = source.pipe(ops.time_limits(idle=3))
    record(
        scheduler, lambda: events.do_action(lambda event: left.append(int(source.subscriptions[0].unsubscribe < 999)))
    )
    assert left == [0, 0, 1, 1]


def test_the_cut_stream_is_lawful_and_folds_to_what_came() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-sHi---------|", VALUES)
    ((tick, _, response), _) = record(
        scheduler, lambda: source.pipe(ops.time_limits(idle=3), ops.verify(), ops.to_response())
    )
    assert (tick, response.output_text, response.finish_reason) == (6, "Hi", "error")
    assert response.error == late("idle", 3, 3)


@pytest.mark.parametrize("end", ["e", "x"])
def test_after_the_end_of_a_response_nothing_is_timed(end: str) -> None:
    """Its source may still wait for its connection, or be about to run tools."""
    check(
        ops.time_limits(first=3, idle=2, total=5),
        f"-sHT{end}--------|",
        "^------------!",
        f"-sHT{end}--------|",
        **{**VALUES, "x": ErrorEvent(StreamError("truncated"))},
    )


def test_an_answer_without_content_is_in_time() -> None:
    check(
        ops.time_limits(first=3),
        "-se------|",
        "^--------!",
        "-se------|",
        **VALUES,
    )


def test_the_events_after_a_response_are_timed_again() -> None:
    check(
        ops.time_limits(idle=3),
        "-sHTe--------s-----H|",
        "^---------------!",
        "-sHTe--------s--(x|)",
        **{**VALUES, "x": ErrorEvent(late("idle", 3, 5))},
    )
    check(
        ops.time_limits(total=8),
        "-sHTe--------s-----H|",
        "^------------!",
        "-sHTe--------(sx|)",
        **{**VALUES, "x": ErrorEvent(late("total", 8, 5))},
    )


@pytest.mark.parametrize(
    ("source", "disposed"), [("-sH|", None), ("-sHX", None), ("-sH-----", 4), ("-sH-----", None)], ids=str
)
def test_no_timer_is_left_behind(source: str, disposed: int | None) -> None:
    """Whether the source ends, the subscriber leaves, or a limit is reached."""
    scheduler = TestScheduler()
    timers = Timers(scheduler)
    played = cold(scheduler, source, {**VALUES, "X": ValueError("no")})
    timed = played.pipe(ops.time_limits(first=60, idle=20, total=90))
    record(scheduler, lambda: Observable(lambda observer, _: timed.subscribe(observer, scheduler=timers)), disposed)
    assert timers.live == 0
    assert scheduler.clock <= 1000


@pytest.mark.parametrize(("limits", "armed"), [({"first": 50, "idle": 50}, 2 + 500 // 50), ({"first": 50}, 1)])
def test_one_timer_serves_hundreds_of_events(limits: dict[str, float], armed: int) -> None:
    """It is armed at the start, for what follows the first content, and when it fires."""
    scheduler = TestScheduler()
    timers = Timers(scheduler)
    source = cold(scheduler, "s" + "H" * 510 + "|", VALUES)
    seen: list[Event] = []
    live: list[int] = []
    timed = source.pipe(ops.time_limits(**limits))
    timed.subscribe(seen.append, on_completed=lambda: live.append(timers.live), scheduler=timers)
    scheduler.start()
    assert (len(seen), timers.armed, live) == (511, armed, [0])


def test_nothing_comes_after_the_error_from_a_source_that_goes_on() -> None:
    """A subject does not stop when it is disposed of."""
    scheduler, subject = TestScheduler(), Subject[Event]()
    scheduler.schedule_absolute(300, lambda *_: subject.on_next(VALUES["H"]))
    notes = record(scheduler, lambda: subject.pipe(ops.time_limits(first=10)))
    assert [(tick, kind) for tick, kind, _ in notes] == [(10, "error")]


def test_no_limits_are_no_operator() -> None:
    source: Observable[Event] = Subject[Event]().pipe(ops.tap(lambda event: None))
    assert ops.time_limits()(source) is source


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5", True, [1]])
@pytest.mark.parametrize("name", ["first", "idle", "total"])
def test_limits_that_make_no_sense_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ValidationError, match=name) as caught:
        ops.time_limits(**{name: wrong})
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))


def test_a_subscriber_that_raises_at_the_last_words_is_told() -> None:
    scheduler, told = TestScheduler(), list[Any]()

    def on_next(event: Event) -> None:
        if isinstance(event, ErrorEvent):
            raise KeyError("mine")

    cold(scheduler, "-sH-----", VALUES).pipe(ops.time_limits(idle=3)).subscribe(
        on_next, told.append, scheduler=scheduler
    )
    scheduler.start()
    assert [repr(error) for error in told] == ["KeyError('mine')"]


def test_a_reader_that_is_behind_is_no_silence_of_the_model() -> None:
    """The source waits for its reader from 2 to 30, the model is silent from then on."""
    scheduler, gate, told = TestScheduler(), Gate(2), list[Any]()
    with read_by(gate, told.append):
        timed = cold(scheduler, "-sH" + "-" * 50, VALUES).pipe(ops.time_limits(first=5, idle=5))
        timed.do_action(gate.waiting.append).subscribe(
            lambda event: told.append((scheduler.clock, type(event).__name__)), scheduler=scheduler
        )
    scheduler.schedule_absolute(30, lambda *_: gate.take())
    scheduler.start()
    assert told == [(1, "MessageStarted"), (2, "TextDelta"), (35, "TextCompleted"), (35, "ErrorEvent")]


def test_an_event_that_is_being_delivered_is_no_silence() -> None:
    """The source is on another thread than the timer, which does not wait for it, and says nothing meanwhile."""
    scheduler, subject, told = TestScheduler(), Subject[Event](), list[str]()
    entered, leave = threading.Event(), threading.Event()

    def on_next(event: Event) -> None:
        told.append(type(event).__name__)
        if isinstance(event, TextDelta):
            entered.set()
            assert leave.wait(PATIENCE)

    subject.pipe(ops.time_limits(idle=5)).subscribe(on_next, scheduler=scheduler)
    thread = threading.Thread(target=subject.on_next, args=(VALUES["H"],))
    thread.start()
    wait_until(entered.is_set)
    scheduler.advance_to(10)
    assert told == ["TextDelta"]
    leave.set()
    thread.join(PATIENCE)
    scheduler.advance_to(20)
    assert told == ["TextDelta", "TextCompleted", "ErrorEvent"]


class Timers(TestScheduler):
    """Counts the timers that are set on a scheduler."""

    def __init__(self, scheduler: TestScheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self.armed = self.live = 0

    @property
    def now(self) -> datetime:
        return self._scheduler.now

    def schedule_relative(self, duetime: Any, action: Callable[..., Any], state: Any = None) -> abc.DisposableBase:
        self.armed += 1
        self.live += 1

        def end() -> None:
            self.live -= 1

        ended = Disposable(end)

        def fire(scheduler: Any, state: Any) -> None:
            ended.dispose()
            action(scheduler, state)

        return CompositeDisposable(ended, self._scheduler.schedule_relative(duetime, fire, state))


def test_fractions_of_a_microsecond_do_not_keep_virtual_time_from_passing() -> None:
    draw = random.Random(1)
    for _ in range(200):
        scheduler, seen = VirtualTimeScheduler(0.0), list[Event]()
        script: list[Any] = ["H", ("delay", draw.random()), "i", ("delay", 9.0)]
        source = Fake(script).stream(Request(), Call()).pipe(ops.time_limits(idle=1.1 + draw.random()))
        source.subscribe(seen.append, scheduler=scheduler)
        scheduler.advance_to(20.0)
        assert isinstance(seen[-1], ErrorEvent)


# stall_warning


STALL_WARNING_VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "H": TextDelta("H"),
    "e": MessageCompleted(Message("assistant", "H"), "stop"),
    "p": RawChunk("ping", {}),
}


def warnings(source: str, after: float = 3) -> list[tuple[float, float, int]]:
    """When `fn` was called, and with what; the events pass as they are."""
    scheduler, told = TestScheduler(), list[tuple[float, float, int]]()
    warn = ops.stall_warning(after, lambda seconds, events: told.append((scheduler.clock - START, seconds, events)))
    played = cold(scheduler, source, STALL_WARNING_VALUES)
    notes = record(scheduler, lambda: played.pipe(warn))
    assert notes == record(again := TestScheduler(), lambda: cold(again, source, STALL_WARNING_VALUES))
    return told


def test_it_warns_once_per_stall_and_goes_on() -> None:
    assert warnings("-sH------H-H----H|") == [(5, 3, 2), (14, 3, 4)]


def test_a_stream_that_keeps_talking_is_not_warned_of() -> None:
    assert warnings("-sH-H-H-H-He|") == []


def test_signs_of_life_end_no_stall() -> None:
    assert warnings("-sHp-p-p-p-p-H|") == [(5, 3, 4)]


def test_the_wait_for_the_first_content_is_one() -> None:
    assert warnings("-s-------H|") == [(3, 3, 1)]
    assert warnings("-----H|") == [(3, 3, 0)]


def test_after_the_response_there_is_none() -> None:
    assert warnings("-sHe--------|") == []
    assert warnings("-sHe--------s----H|") == [(15, 3, 4)]


def test_an_exception_of_the_function_ends_the_stream() -> None:
    failure = KeyError("mine")

    def fail(seconds: float, events: int) -> None:
        raise failure

    check(
        ops.stall_warning(3, fail),
        "-sH------H|",
        "^----!",
        "-sH--X",
        X=failure,
        **STALL_WARNING_VALUES,
    )


def test_dispose_leaves_nothing_behind() -> None:
    scheduler, told = TestScheduler(), list[Any]()
    source = cold(scheduler, "-sH-------", STALL_WARNING_VALUES)
    record(scheduler, lambda: source.pipe(ops.stall_warning(3, lambda *given: told.append(given))), disposed=4)
    assert told == []


@pytest.mark.parametrize(
    ("after", "fn", "name"), [(0, print, "after"), (-1, print, "after"), ("3", print, "after"), (3, None, "fn")]
)
def test_invalid_arguments_are_refused(after: Any, fn: Any, name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.stall_warning(after, fn)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))

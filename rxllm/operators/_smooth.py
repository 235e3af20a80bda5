"""Text that comes in bursts, evened out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import cached_property
from threading import RLock
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.events import Event, TextDelta, ThinkingDelta
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.operators._shared.segments import split_words
from rxllm.runtime import Stream, clock, fail
from rxllm.values.arguments import check_seconds

FRAME = 1 / 60
"""Seconds between two looks at what waits: as often as a screen shows."""

_LONG = 64  # a word that is longer is not put together


def smooth(max_lag: float = 0.25) -> Callable[[Observable[Event]], Stream[Event]]:
    """Even out bursts of text and thinking: word by word, and never later than `max_lag` seconds after they came.

    ::

        source         --ABCD----EFGH--|
        smooth()       --A-B-C-D-E-F-G-H|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> events = stream_generate(Fake("Hello, wide world"), "Hi").pipe(smooth(0.01))
    >>> [event.delta for event in events if isinstance(event, TextDelta)]
    ['Hello, ', 'wide ', 'world']

    A burst is spread over the time in which the next one is to be expected, as the last ones came, and over `max_lag`
    at the most; text that comes evenly, a word at a time, is hardly delayed. Where a script puts no space between words
    (Chinese, Japanese, Thai, ...), a character is a piece; what belongs to one character is never cut. Other events,
    and the end, wait for the text before them. With an ``on_error`` what waits comes at once, before it.

    Raises ``ValidationError("invalid_option")`` for a `max_lag` that is no number of seconds; 0 is no smoothing at all.
    """
    lag = check_seconds("max_lag", max_lag)

    def operator(source: Observable[Event]) -> Stream[Event]:
        if not lag:
            return Stream.of(source)

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return _Smoothing(observer, lag, scheduler).start(source)

        return Stream(subscribe)

    return operator


class _Smoothing:
    """One subscription. `waiting` holds events, each with the time by which it is to be passed on."""

    def __init__(self, observer: abc.ObserverBase[Event], lag: float, scheduler: abc.SchedulerBase | None) -> None:
        self._observer = observer
        self._lag = lag
        self._frame = lag / math.ceil(lag / FRAME)
        self._scheduler = scheduler
        self._timer = SerialDisposable()
        self._lock = RLock()  # a source without a loop may be on another thread than the timer
        self._waiting: deque[tuple[Event, float]] = deque()
        self._pieces = 0  # of text, among what waits
        self._looking = False  # while a timer runs
        self._share = 0.0  # of the next piece
        self._gap = lag  # the time to expect between bursts
        self._burst = -math.inf  # when the last one came
        self._told = self._behind = 0.0
        self._ended = False
        self._refused = False  # whether a subscriber has raised

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        subscription = source.subscribe(self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, self._timer)

    def _on_next(self, event: Event) -> None:
        with self._lock:
            if (type(event) is TextDelta or type(event) is ThinkingDelta) and event.delta:
                self._take(event)
            elif type(event) not in EVENTS:
                self._on_error(not_an_event("smooth", event))
            elif self._waiting:
                self._waiting.append((event, math.inf))
            else:
                self._deliver(event)

    def _take(self, event: TextDelta | ThinkingDelta) -> None:
        now = self._now()
        if now - self._burst > self._frame / 2:  # not of the same burst
            self._gap = min(self._lag, max(now - self._burst, 0.75 * self._gap))
            self._burst = now
        text, due = event.delta, now + self._lag
        dues = [due]
        begun = _begun(self._waiting[-1][0], event) if self._waiting else None
        if begun is not None:  # the last piece that waits, which may be half a word
            text, dues = begun + text, [self._waiting.pop()[1]]
            self._pieces -= 1
        pieces = split_words(text)
        dues += [due] * (len(pieces) - len(dues))
        made = [(type(event)(piece, event.id), due) for piece, due in zip(pieces, dues, strict=True)]
        first = None if self._looking else made.pop(0)[0]
        self._waiting += made
        self._pieces += len(made)
        if first is not None:
            self._look_again()
            self._deliver(first)

    def _on_completed(self) -> None:
        with self._lock:
            self._ended = True
            self._end()

    def _on_error(self, error: Exception) -> None:
        with self._lock:
            self._timer.dispose()
            try:
                while self._waiting and not self._refused:  # else it is the subscriber's own error
                    self._deliver(self._waiting.popleft()[0])
            except Exception as refusal:
                error = refusal
            self._observer.on_error(error)

    def _end(self) -> None:
        if self._ended and not self._waiting:
            self._timer.dispose()
            self._observer.on_completed()

    def _look_again(self) -> None:
        self._looking = True
        self._timer.disposable = self._clock.schedule_relative(self._frame, self._look)

    def _look(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            self._looking = False
            try:
                self._release()
            except BaseException as error:  # the subscriber's; nobody above would deliver it
                self._timer.dispose()
                fail(self._observer, error)
            else:
                self._end()

    def _release(self) -> None:
        now = self._now()
        left = max(self._burst + self._gap - now, self._frame)
        self._share = self._share + self._pieces * self._frame / left if self._pieces else 0.0
        if self._pieces:
            self._look_again()
        while self._waiting:
            event, due = self._waiting[0]
            if due < math.inf:
                if self._share < 1 - 1e-9 and due > now + self._frame:
                    return
                self._share = max(self._share - 1, 0.0)
                self._pieces -= 1
            self._waiting.popleft()
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        try:
            self._observer.on_next(event)
        except BaseException:
            self._refused = True
            raise

    @cached_property
    def _clock(self) -> abc.SchedulerBase:
        return clock(self._scheduler)

    def _now(self) -> float:
        told = self._clock.to_seconds(self._clock.now)
        self._behind += max(self._told - told, 0.0)  # the wall clock was set back
        self._told = told
        return told + self._behind


def _begun(last: Event, event: TextDelta | ThinkingDelta) -> str | None:
    """The piece that `event` goes on, if `last` is of its block, and no long word."""
    if not isinstance(last, TextDelta | ThinkingDelta) or type(last) is not type(event) or last.id != event.id:
        return None
    return last.delta if len(last.delta) < _LONG else None

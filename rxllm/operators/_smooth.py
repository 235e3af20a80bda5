"""Even out text that arrives in bursts."""

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
from rxllm.operators._shared.operate import operate
from rxllm.operators._shared.words_and_sentences import split_words
from rxllm.runtime import Stream, clock, fail
from rxllm.values.argument_checks import check_seconds

FRAME = 1 / 60
"""Seconds between two releases of waiting events: the rate of a screen."""

_LONG = 64  # characters; a longer piece is not joined with the next delta


def smooth(max_lag: float = 0.25) -> Callable[[Observable[Event]], Stream[Event]]:
    """Even out bursts of text and thinking word by word, delaying each by at most `max_lag` seconds.

    ::

        source         --ABCD----EFGH--|
        smooth()       --A-B-C-D-E-F-G-H|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> events = stream_generate(Fake("Hello, wide world"), "Hi").pipe(smooth(0.01))
    >>> [event.delta for event in events if isinstance(event, TextDelta)]
    ['Hello, ', 'wide ', 'world']

    A burst is spread over the expected time until the next one, judged by the last ones, and at most over `max_lag`;
    text that arrives evenly, a word at a time, is hardly delayed. In scripts without spaces between words (Chinese,
    Japanese, Thai, ...) the text is split into characters, each with its marks. Other events, those of agents
    among them, and the end wait for the text before them. An ``on_error`` releases all waiting events before it.
    0 seconds means no smoothing.

    Raises ``ValidationError("invalid_option")`` unless `max_lag` is a number of seconds.
    """
    lag = check_seconds("max_lag", max_lag)
    if not lag:
        return Stream.of
    return operate(lambda source, observer, scheduler: _Smoother(observer, lag, scheduler).start(source))


class _Smoother:
    """One subscription. `waiting` holds events, each with the time by which it is due; infinity for all but text."""

    def __init__(self, observer: abc.ObserverBase[Event], lag: float, scheduler: abc.SchedulerBase | None) -> None:
        self._observer = observer
        self._lag = lag
        self._frame = lag / math.ceil(lag / FRAME)
        self._scheduler = scheduler
        self._timer = SerialDisposable()
        self._lock = RLock()  # a source without a loop may run on another thread than the timer
        self._waiting: deque[tuple[Event, float]] = deque()
        self._pieces = 0  # pieces of text in `waiting`
        self._armed = False  # while a timer runs
        self._share = 0.0  # the part of the next piece whose time has come
        self._gap = lag  # the expected seconds between bursts
        self._burst = -math.inf  # when the last burst began
        self._clock_time = self._set_back = 0.0
        self._ended = False
        self._subscriber_raised = False

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
        if now - self._burst > self._frame / 2:  # a new burst
            self._gap = min(self._lag, max(now - self._burst, 0.75 * self._gap))
            self._burst = now
        text, due = event.delta, now + self._lag
        dues = [due]
        start = _start_of(event, self._waiting[-1][0]) if self._waiting else None
        if start is not None:  # the last piece in the queue, which may be half a word
            text, dues = start + text, [self._waiting.pop()[1]]
            self._pieces -= 1
        words = split_words(text)
        dues += [due] * (len(words) - len(dues))
        pieces = [(type(event)(word, event.id), due) for word, due in zip(words, dues, strict=True)]
        first = None if self._armed else pieces.pop(0)[0]
        self._waiting += pieces
        self._pieces += len(pieces)
        if first is not None:
            self._arm()
            self._deliver(first)

    def _on_completed(self) -> None:
        with self._lock:
            self._ended = True
            self._end()

    def _on_error(self, error: Exception) -> None:
        with self._lock:
            self._timer.dispose()
            try:
                while self._waiting and not self._subscriber_raised:  # `error` may be the subscriber's own
                    self._deliver(self._waiting.popleft()[0])
            except Exception as raised:
                error = raised
            self._observer.on_error(error)

    def _end(self) -> None:
        if self._ended and not self._waiting:
            self._timer.dispose()
            self._observer.on_completed()

    def _arm(self) -> None:
        self._armed = True
        self._timer.disposable = self._clock.schedule_relative(self._frame, self._wake)

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            self._armed = False
            try:
                self._release()
            except BaseException as error:  # the subscriber raised, and nothing above would deliver it
                self._timer.dispose()
                fail(self._observer, error)
            else:
                self._end()

    def _release(self) -> None:
        now = self._now()
        left = max(self._burst + self._gap - now, self._frame)
        self._share = self._share + self._pieces * self._frame / left if self._pieces else 0.0
        if self._pieces:
            self._arm()
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
            self._subscriber_raised = True
            raise

    @cached_property
    def _clock(self) -> abc.SchedulerBase:
        return clock(self._scheduler)

    def _now(self) -> float:
        time = self._clock.to_seconds(self._clock.now)
        self._set_back += max(self._clock_time - time, 0.0)  # a wall clock may be set back
        self._clock_time = time
        return time + self._set_back


def _start_of(event: TextDelta | ThinkingDelta, last: Event) -> str | None:
    """Return the text of `last` that `event` continues; None for another block, and for a long word."""
    if not isinstance(last, TextDelta | ThinkingDelta) or type(last) is not type(event) or last.id != event.id:
        return None
    return last.delta if len(last.delta) < _LONG else None

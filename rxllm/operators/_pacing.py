"""Operators that control timing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.collector import StreamCollector
from rxllm.events import Event, TextDelta, ThinkingDelta, with_text
from rxllm.operators._event_operators import EVENTS, not_an_event, operate
from rxllm.operators._strings import TextOperator, for_strings_too
from rxllm.operators._words_and_sentences import split_words
from rxllm.runtime import (
    LIMIT,
    MAX_WAITING,
    Backlog,
    Hold,
    LoopScheduler,
    Stream,
    call_context,
    clock,
    current_gate,
    fail,
    paced,
    schedule_in,
)
from rxllm.values import Response, StreamError
from rxllm.values.argument_checks import check_count, check_instance, check_seconds, invalid_option, shown

T = TypeVar("T")


FRAME = 1 / 60
"""The maximum number of seconds between two releases of text."""

_LONG = 64  # in characters; a piece of this length or more is not joined with the next


def smooth(max_lag: float = 0.25) -> TextOperator:
    """Emit text and thinking word by word at an even pace.

    ::

        source         --ABCD----EFGH--|
        smooth()       --A-B-C-D-E-F-G-H|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> events = stream_generate(Fake("Hello, wide world"), "Hi").pipe(smooth(0.01))
    >>> [event.delta for event in events if isinstance(event, TextDelta)]
    ['Hello, ', 'wide ', 'world']

    Each word is delayed by at most `max_lag` seconds. A burst is spread over the expected time until the next burst.
    Text that already arrives one word at a time is hardly delayed. Chinese, Japanese, Thai and similar text is split
    into characters with their combining marks.

    Order is preserved. Other events and the end of the stream wait for the text before them. Before an ``on_error``,
    all waiting events are emitted. A `max_lag` of 0 leaves the stream unchanged. A stream of strings is smoothed too.

    Raises ``ValidationError("invalid_option")`` unless `max_lag` is a number of seconds.
    """
    lag = check_seconds("max_lag", max_lag)
    if not lag:
        return for_strings_too("smooth", Stream.of)
    return for_strings_too(
        "smooth", operate(lambda source, observer, scheduler: _Smoother(observer, lag, scheduler).start(source))
    )


class _Smoother(Backlog[Event, Event]):
    """One subscription to `smooth`. In `_waiting`, only text and thinking deltas have a finite due time.

    The stream completes only after every event has been emitted.
    """

    def __init__(self, observer: abc.ObserverBase[Event], lag: float, scheduler: abc.SchedulerBase | None) -> None:
        super().__init__(observer, scheduler)
        self._lag = lag
        self._frame = lag / math.ceil(lag / FRAME)  # seconds between two releases
        self._clock = clock(scheduler)
        self._waiting: deque[tuple[Event, float]] = deque()
        self._pieces = 0  # The number of pieces of text in `_waiting`.
        self._armed = False  # Whether the timer is running.
        self._share = 0.0  # The number of pieces that are due, which may be a fraction.
        self._gap = lag  # The expected number of seconds between bursts.
        self._burst = -math.inf  # When the last burst began.
        self._clock_time = self._set_back = 0.0
        self._ended = False

    def _on_next(self, event: Event) -> None:
        with self._lock:
            if (type(event) is TextDelta or type(event) is ThinkingDelta) and event.delta:
                self._enqueue(event)
            elif type(event) not in EVENTS:
                self._on_error(not_an_event("smooth", event))
            elif self._waiting:
                self._waiting.append((event, math.inf))
            else:
                self._deliver(event)

    def _enqueue(self, event: TextDelta | ThinkingDelta) -> None:
        now = self._now()
        if now - self._burst > self._frame / 2:  # a new burst
            self._gap = min(self._lag, max(now - self._burst, 0.75 * self._gap))
            self._burst = now
        due = now + self._lag
        text, first_due = event.delta, due
        start = _start_of(event, self._waiting[-1][0]) if self._waiting else None
        if start is not None:  # The last piece may be only half a word.
            text, first_due = start + text, self._waiting.pop()[1]
            self._pieces -= 1
        first_word, *words = split_words(text)
        pieces = [(with_text(event, first_word), first_due)]
        pieces += [(with_text(event, word), due) for word in words]
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

    def _take_all(self) -> Iterator[Event]:
        while self._waiting:
            yield self._waiting.popleft()[0]

    def _end(self) -> None:
        if self._ended and not self._waiting:
            self._timer.dispose()
            self._observer.on_completed()

    def _arm(self) -> None:
        self._armed = True
        self._timer.disposable = self._clock.schedule_relative(self._frame, self.wake)

    def wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            super().wake(scheduler, state)
            if not self._timer.is_disposed:  # The timer is disposed if the subscriber has raised an exception.
                self._end()

    def _release(self) -> None:
        self._armed = False
        now = self._now()
        remaining = max(self._burst + self._gap - now, self._frame)  # seconds until the next burst
        self._share = self._share + self._pieces * self._frame / remaining if self._pieces else 0.0
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

    def _now(self) -> float:
        time = self._clock.to_seconds(self._clock.now)
        self._set_back += max(self._clock_time - time, 0.0)  # The system clock may be set back.
        self._clock_time = time
        return time + self._set_back


def _start_of(event: TextDelta | ThinkingDelta, last: Event) -> str | None:
    if not isinstance(last, TextDelta | ThinkingDelta) or type(last) is not type(event) or last.id != event.id:
        return None
    return last.delta if 0 < len(last.delta) < _LONG else None


def snapshots(every: float = 0.1) -> Callable[[Observable[Event]], Stream[Response[Any]]]:
    """Emit snapshots of the `Response`, one every `every` seconds.

    ::

        source           --H--i-----!-----end|
        snapshots(4)     --H---Hi---Hi!---Hi!|

    >>> from rxllm import Fake, stream_generate
    >>> events = stream_generate(Fake(["Hi", ("delay", 0.3), "!"]), "Hello")
    >>> [so_far.output_text for so_far in events.pipe(snapshots(0.2))]
    ['', 'Hi', 'Hi!']

    Snapshots are emitted at the start, while the response grows, and at the end. If `every` is 0, a snapshot follows
    each event. The last snapshot equals the result of `to_response`, including any error. Before an ``on_error``, the
    response so far is emitted. In a chat, each snapshot is the response of the current step. The longer the text, the
    more a snapshot costs.

    Raises ``ValidationError("invalid_option")`` unless `every` is a number of seconds.
    """
    period = check_seconds("every", every)
    return operate(lambda source, observer, scheduler: _Snapshots(observer, period, scheduler).start(source))


class _Snapshots(Backlog[Event, Response[Any]]):
    """One subscription to `snapshots`. A snapshot is due if `_state` differs from `_emitted`."""

    def __init__(
        self, observer: abc.ObserverBase[Response[Any]], period: float, scheduler: abc.SchedulerBase | None
    ) -> None:
        super().__init__(observer, scheduler)
        self._period = period
        self._state = StreamCollector()
        self._emitted: StreamCollector | None = None
        self._armed = False  # whether the timer is running

    def _on_next(self, event: Event) -> None:
        with self._lock:
            try:
                if type(event) not in EVENTS:
                    raise not_an_event("snapshots", event)
                self._state = self._state.apply_event(event)
            except Exception as error:  # raised if the item is not an event, or if raw usage has unknown keys
                self._observer.on_error(error)
                return
            if not self._armed:
                self._release()

    def _release(self) -> None:
        self._armed = False
        if self._state is self._emitted:
            return
        self._emitted = self._state
        if self._period:
            self._armed = True
            self._timer.disposable = clock(self._scheduler).schedule_relative(self._period, self.wake)
        self._deliver(self._state.to_response())

    def _take_all(self) -> tuple[Response[Any], ...]:
        return () if self._state is self._emitted else (self._state.to_response(),)


def gate(
    while_open: Observable[bool], maxsize: int = MAX_WAITING, *, limit: int | None = None
) -> Callable[[Observable[T]], Stream[T]]:
    """Hold items back while the latest value from `while_open` is False.

    ::

        source               --a-b-c-d-e-f--|
        while_open           T-----F-------T---
        gate(while_open)     --a-b---------(cdef)|

    >>> import reactivex
    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> approved = reactivex.timer(0.01).map(lambda _: True)
    >>> list(stream_generate(Fake(["Hello, ", "world"]), "Hi").pipe(ops.text(), gate(approved)))
    ['Hello, ', 'world']

    The gate is closed until `while_open` emits its first value. To start with an open gate, pass
    ``while_open.start_with(True)``. Each item passes exactly once, in order. The stream completes after all waiting
    items have passed. An ``on_error`` passes at once, and waiting items are dropped. If `while_open` completes while
    the gate is open, the gate stays open. If it completes while the gate is closed, the stream ends with
    ``StreamError("cancelled")``. If `while_open` fails or emits anything but a boolean, the stream fails at once.

    While `maxsize` items are waiting, the source is paused. A source that cannot be paused, such as a `Subject`, may
    send more. If more than `limit` items (65,536 by default) are waiting, the stream ends with
    ``StreamError("overflow")``. Put `keep_latest` before the gate to keep only the newest waiting item, or `conflate`
    to join the waiting items.

    Raises ``ValidationError("invalid_option")`` for invalid arguments.
    """
    check_instance("while_open", while_open, Observable, "an Observable of booleans")
    check_count("maxsize", maxsize)
    if limit is not None:
        check_count("limit", limit)
    most = max(LIMIT, maxsize) if limit is None else limit
    return operate(
        lambda source, observer, scheduler: _Gated(observer, maxsize, most, scheduler).start(source, while_open)
    )


class _Gated:
    """One subscription to `gate`. Its `_gate` holds the waiting items and, unlike a `Backlog`, can pause the source."""

    def __init__(
        self, observer: abc.ObserverBase[Any], maxsize: int, limit: int, scheduler: abc.SchedulerBase | None
    ) -> None:
        self._observer = observer
        self._limit = limit
        self._scheduler = scheduler
        self._clock = clock(scheduler)
        self._wake = SerialDisposable()
        self._lock = RLock()
        self._context = call_context()
        self._reader = current_gate()
        self._gate = Hold(min(maxsize, limit))
        self._gate.closed = True
        self._delivering = False
        self._waits_for_reader = False
        self._completed = False
        self._over = False

    def start(self, source: Observable[Any], while_open: Observable[bool]) -> abc.DisposableBase:
        subscriptions = CompositeDisposable(self._wake)
        switch = paced(while_open, None)  # A slow consumer must not delay opening or closing the gate.
        subscriptions.add(
            switch.subscribe(self._on_switch, self._fail, self._on_switch_completed, scheduler=self._scheduler)
        )
        if not self._over:
            items = paced(source, self._gate)
            subscriptions.add(items.subscribe(self._on_next, self._fail, self._on_completed, scheduler=self._scheduler))
        return subscriptions

    def _on_switch(self, is_open: Any) -> None:
        # Closing must not wait for another thread's delivery, so take no lock.
        if not isinstance(is_open, bool):  # the string "off" is truthy
            remedy = "write while_open.map(...) with a function that returns a boolean"
            self._fail(invalid_option("while_open", f"must emit True or False, not {shown(is_open)}; {remedy}"))
            return
        if not is_open:
            self._gate.closed = True
            return
        self._gate.let_through()
        if self._gate.waiting:
            self._schedule_release()

    def _on_switch_completed(self) -> None:
        if self._gate.closed:
            fault = "gate() can never open again: while_open completed without a final True"
            self._fail(StreamError("cancelled", f"{fault}; let it emit True before it completes, or keep it running"))

    def _on_next(self, item: Any) -> None:
        with self._lock:
            if not (self._gate.closed or self._gate.waiting or self._delivering):
                self._deliver(item)
            elif len(self._gate.waiting) < self._limit:
                self._gate.waiting.append(item)
            else:
                self._cut_off()
            self._release()  # Deliver items that arrived during a delivery.
            if self._completed:
                self._end()

    def _cut_off(self) -> None:
        fault = f"{self._limit} items are already waiting for gate() to open"
        remedy = "put ops.keep_latest() or ops.conflate() before it, or pass a larger limit="
        self._fail(StreamError("overflow", f"{fault}; {remedy}"))

    def _schedule_release(self) -> None:
        # The gate may open on another thread, but items must be delivered on our loop.
        if isinstance(self._clock, LoopScheduler) and self._clock.has_ended:
            self._fail(StreamError("cancelled", "the stream's event loop is closed"))
        elif not self._wake.is_disposed:
            schedule_in(self._wake, self._clock, self._release_now)

    def _release_now(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        self._context.copy().run(self._release_and_end)  # The timer may run in another context.

    def _release_and_end(self) -> None:
        with self._lock:
            try:
                self._release()
            except BaseException as error:  # The subscriber raised an exception that no caller can report.
                fail(self._observer, error)
            else:
                self._end()

    def _release(self) -> None:
        while self._gate.waiting and not (self._gate.closed or self._delivering):
            if self._reader is not None and self._reader.full:
                if not self._waits_for_reader:
                    self._waits_for_reader = True
                    self._reader.when_open(self._reader_is_open)
                return
            self._deliver(self._gate.waiting[0])
            if not self._over:
                self._gate.take()  # Take the item only now, because the gate must not look idle during the delivery.

    def _reader_is_open(self) -> None:
        self._waits_for_reader = False
        self._schedule_release()

    def _deliver(self, item: Any) -> None:
        self._delivering = True
        try:
            self._observer.on_next(item)
        finally:
            self._delivering = False

    def _on_completed(self) -> None:
        with self._lock:
            self._completed = True
            self._end()

    def _end(self) -> None:
        if self._completed and not self._gate.waiting and not self._delivering:
            self._over = True
            self._wake.dispose()
            self._observer.on_completed()

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._over = True
            self._wake.dispose()
            self._gate.waiting.clear()
            self._observer.on_error(error)

"""Not too many calls at once, nor too soon."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import (
    CompositeDisposable,
    Disposable,
    SerialDisposable,
    SingleAssignmentDisposable,
)

from rxllm.runtime import Stream, clock, is_seconds, stopwatch
from rxllm.values import ValidationError

T = TypeVar("T")


def rate_limited(
    per_second: float | None = None, concurrent: int | None = None
) -> Callable[[Observable[T]], Stream[T]]:
    """Subscriptions wait their turn: `concurrent` of them at a time, begun ``1 / per_second`` seconds apart.

    ::

        calls                        12 3
        rate_limited(concurrent=2)   --A----a--|
                                     ---B------------b--|
                                     -----------C----c--|       (begins when the first has ended)

    >>> from rxllm import Engine, Fake, generate_many
    >>> engine = Engine(Fake("Hi"), operators=[rate_limited(per_second=500, concurrent=2)])
    >>> [response.output_text for response in generate_many(engine, ["a", "b", "c"])]
    ['Hi', 'Hi', 'Hi']

    One operator has one queue, which all its subscriptions share, in any thread: in an engine, all its calls, in their
    order. A subscription that is disposed leaves the queue. Only what is above it waits: in ``engine.operators`` each
    of the retry's attempts belongs to the call that has its turn.

    Raises ``ValidationError("invalid_option")`` without a limit, for a `per_second` that is no number above 0 and a
    `concurrent` below 1.
    """
    wrong: list[tuple[tuple[str, ...], str]] = []
    if per_second is None and concurrent is None:
        wrong.append((("per_second",), "give this, or concurrent, or both"))
    if per_second is not None and not is_seconds(per_second):
        wrong.append((("per_second",), f"must be None or a number above 0, not {per_second!r}"))
    if concurrent is not None and (type(concurrent) is not int or concurrent < 1):
        wrong.append((("concurrent",), f"must be None or at least 1, not {concurrent!r}"))
    if wrong:
        raise ValidationError("invalid_option", errors=wrong)
    line = _Line(1.0 / per_second if per_second else 0.0, concurrent)

    def operator(source: Observable[T]) -> Stream[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            return line.enter(_Turn(source, observer, scheduler))

        return Stream(subscribe)

    return operator


class _Turn:
    """One subscription that waits, runs, or is over."""

    def __init__(
        self, source: Observable[Any], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> None:
        self._source = source
        self._observer = observer
        self._scheduler = scheduler
        self._clock = clock(scheduler)
        self._context = contextvars.copy_context()  # the turn may be given by another call's end
        self.now = stopwatch(scheduler)
        self.running = SerialDisposable()

    def begin(self, after: float | None) -> None:
        """Subscribe, on the subscription's own loop after so many seconds, or here and now for None."""
        if after is None:
            return self._subscribe()

        def act(scheduler: abc.SchedulerBase, state: Any) -> None:
            self._context.run(self._subscribe_later)

        timer = self.running.disposable = SingleAssignmentDisposable()  # before it can fire, on another thread
        timer.disposable = self._clock.schedule_relative(after, act)
        return None

    def _subscribe_later(self) -> None:
        try:
            self._subscribe()
        except Exception as error:  # the source's own; nobody above would deliver it
            self._observer.on_error(error)

    def _subscribe(self) -> None:
        self.running.disposable = self._source.subscribe(self._observer, scheduler=self._scheduler)


class _Line:
    """Who waits, and who may go. A subscription that has ended is disposed of by reactivex: that ends its turn."""

    def __init__(self, interval: float, concurrent: int | None) -> None:
        self._interval = interval
        self._concurrent = concurrent
        self._guard = threading.Lock()
        self._waiting: deque[_Turn] = deque()
        self._running: set[_Turn] = set()
        self._next = -1e300  # when the next may begin

    def enter(self, turn: _Turn) -> abc.DisposableBase:
        with self._guard:
            free = self._concurrent is None or len(self._running) < self._concurrent
            (self._running.add if free else self._waiting.append)(turn)
            after = self._wait(turn) if free else 0.0
        if free:
            turn.begin(after or None)
        return CompositeDisposable(turn.running, Disposable(lambda: self._leave(turn)))

    def _wait(self, turn: _Turn) -> float:
        now = turn.now()
        begins = max(now, self._next)
        self._next = begins + self._interval
        return begins - now

    def _leave(self, turn: _Turn) -> None:
        following: _Turn | None = None
        after = 0.0
        with self._guard:
            if turn in self._running:
                self._running.remove(turn)
                if self._waiting:
                    following = self._waiting.popleft()
                    self._running.add(following)
                    after = self._wait(following)
            elif turn in self._waiting:
                self._waiting.remove(turn)
        if following is not None:
            try:
                following.begin(after)
            except RuntimeError:  # its loop is gone, and it with it
                self._leave(following)

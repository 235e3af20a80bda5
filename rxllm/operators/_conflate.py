"""Join deltas for a slow consumer."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.events import Event
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.operators._shared.join_deltas import continues, joined, text_of
from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream, clock, conclude, current_gate, fail

MOST = 1024
"""At most so many events wait; then they pass, and the consumer's buffer slows the source down."""


def conflate() -> Callable[[Observable[Event]], Stream[Event]]:
    """Join adjacent deltas while the consumer is busy; nothing is lost, and the order stays.

    ::

        source         --H-e-l-l-o--end--|
        conflate()     --H-----(ello)-end|        (the consumer was busy with H)

    >>> import asyncio
    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> async def slow_reader():
    ...     events = stream_generate(Fake(["H", "e", "l", "l", "o"]), "Hi").pipe(conflate())
    ...     async for event in events:
    ...         await asyncio.sleep(0.001)        # its work
    ...         if isinstance(event, TextDelta): print(event.delta)
    >>> asyncio.run(slow_reader())
    Hello

    A consumer is busy

    - while its iterator (``for``, ``async for``, ``to_iter``, ``to_async_iter``) has events left to take;
    - while its ``on_next`` runs.

    Then deltas of the same block or tool call become one; other events wait behind them. When the consumer has taken
    everything, it gets the waiting batch; so it is never further behind than one batch, and a quick consumer gets every
    event unchanged. A consumer that only passes events on, to a queue or a task, never counts as busy. The end and
    ``on_error`` release waiting events first.
    """
    return operate(lambda source, observer, scheduler: _Conflating(observer, scheduler).start(source))


class _Conflating:
    """One subscription. Each waiting event has a list of the texts that join to its own."""

    def __init__(self, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None) -> None:
        self._observer = observer
        self._scheduler = scheduler
        self._gate = current_gate.get()
        self._clock = clock(scheduler) if self._gate is not None else None
        self._wake = SerialDisposable()
        self._lock = RLock()
        self._waiting: list[tuple[Event, list[str]]] = []
        self._count = 0
        self._delivering = False
        self._refused = False  # a subscriber has raised

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        subscription = source.subscribe(self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, self._wake)

    def _on_next(self, event: Event) -> None:
        with self._lock:
            if type(event) not in EVENTS:
                self._on_error(not_an_event("conflate", event))
                return
            if not (self._waiting or self._delivering or (self._gate is not None and self._gate.waiting)):
                self._deliver(event)
                if not self._waiting:
                    return
            else:
                self._add(event)
            if self._delivering:
                return
            if self._gate is None or self._count >= MOST or not self._gate.waiting:
                self._release()

    def _add(self, event: Event) -> None:
        if not self._waiting and self._gate is not None:
            self._gate.when_idle(self._soon)
        self._count += 1
        text = text_of(event)
        if text is not None and self._waiting and continues(self._waiting[-1][0], event):
            self._waiting[-1][1].append(text)
        else:
            self._waiting.append((event, [] if text is None else [text]))

    def _soon(self) -> None:
        # The consumer that takes an item may be on another thread; it should not do this work.
        if self._clock is not None and not self._wake.is_disposed:
            self._wake.disposable = self._clock.schedule(self._release_now)

    def _release_now(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            try:
                self._release()
            except BaseException as error:  # raised by the subscriber; no caller would deliver it
                fail(self._observer, error)

    def _release(self) -> None:
        while self._waiting and not self._delivering:
            for event in self._take_all():
                self._deliver(event)

    def _take_all(self) -> list[Event]:
        events = [joined(event, texts) if len(texts) > 1 else event for event, texts in self._waiting]
        self._waiting.clear()
        self._count = 0
        return events

    def _deliver(self, event: Event) -> None:
        self._delivering = True
        try:
            self._observer.on_next(event)
        except BaseException:
            self._refused = True
            raise
        finally:
            self._delivering = False

    def _on_completed(self) -> None:
        with self._lock:
            self._wake.dispose()
            conclude(self._observer, self._take_all())

    def _on_error(self, error: Exception) -> None:
        with self._lock:
            self._wake.dispose()
            try:
                for event in () if self._refused else self._take_all():  # a refused error is the subscriber's
                    self._observer.on_next(event)
            except Exception as refusal:
                error = refusal
            self._observer.on_error(error)

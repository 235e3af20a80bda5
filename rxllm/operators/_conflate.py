"""Deltas joined for a consumer that is slow."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.events import Event, TextDelta, ThinkingDelta, ToolCallDelta
from rxllm.operators._shared.only_events import EVENTS, no_event
from rxllm.runtime import Stream, clock, conclude, current_gate, fail

MOST = 1024
"""So many events are held at the most; then they are passed on, and the consumer's buffer slows the source down."""


def conflate() -> Callable[[Observable[Event]], Stream[Event]]:
    """Join deltas that stand next to each other while the consumer is busy; nothing is lost, and the order stays.

    ::

        source         --H-e-l-l-o--end--|
        conflate()     --H-----(ello)-end|        (the consumer was busy with H)

    >>> import asyncio
    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> async def slow_reader():
    ...     events = stream_generate(Fake(["H", "e", "l", "l", "o"]), "Hi").pipe(conflate())
    ...     async for event in events:
    ...         await asyncio.sleep(0.001)        # what it does with the event
    ...         if isinstance(event, TextDelta): print(event.delta)
    >>> asyncio.run(slow_reader())
    Hello

    A consumer is busy

    - while events wait that an iterator (``for``, ``async for``, ``to_iter``, ``to_async_iter``) has not taken yet;
    - while its ``on_next`` runs, for what comes in the meantime.

    Then deltas of the same block, or of the same call, become one; other events wait behind them. As soon as the
    consumer has taken all that it was given, it gets what waits; so it is never further behind than one such batch, and
    a quick consumer gets every event as it came. Whoever only passes events on (to a queue or a task of their own) is
    never seen to be busy. The end, or an ``on_error``, brings what waits with it.
    """

    def operator(source: Observable[Event]) -> Stream[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return _Conflating(observer, scheduler).start(source)

        return Stream(subscribe)

    return operator


class _Conflating:
    """One subscription. `held` are the events that wait, each with the texts that it is to have."""

    def __init__(self, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None) -> None:
        self._observer = observer
        self._scheduler = scheduler
        self._gate = current_gate.get()
        self._clock = clock(scheduler) if self._gate is not None else None
        self._wake = SerialDisposable()
        self._lock = RLock()
        self._held: list[tuple[Event, list[str]]] = []
        self._count = 0
        self._delivering = False
        self._refused = False  # whether a subscriber has raised

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        subscription = source.subscribe(self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, self._wake)

    def _on_next(self, event: Event) -> None:
        with self._lock:
            if type(event) not in EVENTS:
                self._on_error(no_event("conflate", event))
                return
            if not (self._held or self._delivering or (self._gate is not None and self._gate.waiting)):
                self._deliver(event)
                if not self._held:
                    return
            else:
                self._hold(event)
            if self._delivering:
                return
            if self._gate is None or self._count >= MOST or not self._gate.waiting:
                self._release()

    def _hold(self, event: Event) -> None:
        if not self._held and self._gate is not None:
            self._gate.when_idle(self._soon)
        self._count += 1
        text = _text_of(event)
        if text is not None and self._held and _goes_on(self._held[-1][0], event):
            self._held[-1][1].append(text)
        else:
            self._held.append((event, [] if text is None else [text]))

    def _soon(self) -> None:
        # The one who takes an item may be on another thread, and is not to do our work.
        if self._clock is not None and not self._wake.is_disposed:
            self._wake.disposable = self._clock.schedule(self._release_now)

    def _release_now(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            try:
                self._release()
            except BaseException as error:  # the subscriber's; nobody above would deliver it
                fail(self._observer, error)

    def _release(self) -> None:
        while self._held and not self._delivering:
            for event in self._taken():
                self._deliver(event)

    def _taken(self) -> list[Event]:
        taken = [_joined(event, texts) for event, texts in self._held]
        self._held.clear()
        self._count = 0
        return taken

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
            conclude(self._observer, self._taken())

    def _on_error(self, error: Exception) -> None:
        with self._lock:
            self._wake.dispose()
            try:
                for event in () if self._refused else self._taken():  # if so, it is the subscriber's own error
                    self._observer.on_next(event)
            except Exception as refusal:
                error = refusal
            self._observer.on_error(error)


_DELTAS = frozenset({TextDelta, ThinkingDelta, ToolCallDelta})


def _text_of(event: Any) -> str | None:
    if type(event) not in _DELTAS:
        return None
    return event.arguments_delta if type(event) is ToolCallDelta else event.delta


def _goes_on(last: Any, event: Any) -> bool:
    return type(last) is type(event) and last.id == event.id


def _joined(event: Any, texts: list[str]) -> Event:
    if len(texts) < 2:
        return event
    text = "".join(texts)
    return ToolCallDelta(event.id, text) if type(event) is ToolCallDelta else type(event)(text, event.id)

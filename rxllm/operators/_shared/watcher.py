"""One watcher of a shared call. What it is not ready for waits for it, joined; the call does not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from reactivex import abc
from reactivex.disposable import SerialDisposable

from rxllm.collector import StreamCollector, innermost
from rxllm.events import Event, Nested, ToolExecutionCompleted, UsageUpdated
from rxllm.operators._shared.join_deltas import continues, joined, text_of
from rxllm.runtime import call_context, current_gate, fail, report_unheard

MOST = 1024
"""When so many events wait for a watcher, it misses what the fold does not keep."""


class Backlog:
    """The events that wait for a watcher: adjacent deltas of a block are one, and of usages the last is left.

    Adjacent are those between which nothing else of the same chat waits: agents that run at once do not part them.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._entries: list[_Entry] = []
        self._latest: dict[tuple[str, ...], list[_Entry]] = {}  # of each chat, by its path: at most two
        self._most = MOST
        self._extend(events)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, event: Event) -> None:
        latest = self._latest.setdefault(event.path if type(event) is Nested else (), [])
        text = text_of(event)
        if text is None and _is_usage(event) and latest and _is_usage(latest[-1].event):
            latest[-1].event = event
        elif text is None or not _join(latest, event, text):
            entry = _Entry(event, [] if text is None else [text])
            self._entries.append(entry)
            latest[:] = [*latest[-1:], entry]
        if len(self._entries) > self._most:
            kept = [event for event in self.take() if _is_kept(event)]
            self._most = max(MOST, 2 * len(kept))  # so that the cost stays linear
            self._extend(kept)

    def take(self) -> list[Event]:
        """Return what waits; then nothing waits."""
        entries, self._entries, self._latest, self._most = self._entries, [], {}, MOST
        return [joined(entry.event, entry.texts) if len(entry.texts) > 1 else entry.event for entry in entries]

    def _extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.add(event)


class _Entry(msgspec.Struct):
    event: Event
    texts: list[str]


def _join(latest: list[_Entry], event: Event, text: str) -> bool:
    # Some providers send a usage with each delta: in the fold, the two pass each other.
    for entry in reversed(latest):
        if continues(entry.event, event):
            entry.texts.append(text)
            return True
        if not _is_usage(entry.event):
            break
    return False


def _is_usage(event: Event) -> bool:
    return type(innermost(event)) is UsageUpdated


def _is_kept(event: Event) -> bool:
    if type(innermost(event)) is ToolExecutionCompleted:  # of an execution that the fold keeps
        return True
    state = StreamCollector()
    return state.apply_event(event) is not state


class Watcher:
    """One subscription to a shared call.

    A watcher is ready unless its ``on_next`` runs, on some thread, or its iterator has items left to take. It is called
    in the context of its own subscription: with its own gate, scope and listener.
    """

    def __init__(
        self,
        observer: abc.ObserverBase[Event],
        lock: AbstractContextManager[Any],
        leave: Callable[[Watcher], None],
        events: Iterable[Event],
    ) -> None:
        self.has_left = False
        self._observer = observer
        self._lock = lock  # of the call: it guards what waits, and no subscriber is called while it is held
        self._leave = leave
        self._waiting = Backlog(events)
        self._has_ended = False
        self._error: Exception | None = None
        self._context = call_context()
        self._gate = current_gate.get()
        self._wake = SerialDisposable()
        self._is_delivering = False
        self._waits_for_gate = False

    def add(self, event: Event) -> None:
        """Let `event` wait, under the lock; `deliver` follows."""
        self._waiting.add(event)

    def finish(self, error: Exception | None) -> None:
        """Let the end wait, under the lock; `deliver` follows."""
        self._has_ended, self._error = True, error

    def deliver(self, clock: abc.SchedulerBase) -> None:
        """Deliver what waits, unless that is being done already or the watcher is not ready: then it is done later."""
        while (events := self._begin(clock)) is not None:
            self._context.run(self._deliver, events)
            with self._lock:  # another thread may enter the context now, and not before
                self._is_delivering = False

    def deliver_soon(self, clock: abc.SchedulerBase) -> None:
        """Deliver what waits on the clock's own thread."""

        def deliver(scheduler: abc.SchedulerBase, state: Any) -> None:
            self.deliver(clock)

        if not self.has_left:
            self._wake.disposable = clock.schedule(deliver)

    def leave(self) -> None:
        """Deliver nothing more."""
        self.has_left = True
        self._wake.dispose()

    def _begin(self, clock: abc.SchedulerBase) -> list[Event] | None:
        """Return what waits: nothing if only the end does, and None if there is nothing to do now."""
        with self._lock:
            if self._is_delivering or self.has_left or not (self._waiting or self._has_ended):
                return None
            if self._gate is not None and not (self._gate.idle or self._has_ended):
                if not self._waits_for_gate:
                    self._waits_for_gate = True
                    self._gate.when_idle(lambda: self._on_idle(clock))
                return None
            self._is_delivering = True
            return self._waiting.take()

    def _deliver(self, events: list[Event]) -> None:
        try:
            for event in events:
                if self.has_left:
                    return
                self._observer.on_next(event)
        except BaseException as error:  # the subscriber's own: it harms no other
            self._leave(self)
            fail(self._observer, error)
        else:
            if self._has_ended and not self._waiting and not self.has_left:
                self._deliver_end()

    def _deliver_end(self) -> None:
        self._leave(self)
        try:
            self._observer.on_completed() if self._error is None else self._observer.on_error(self._error)
        except BaseException as error:
            report_unheard(error)

    def _on_idle(self, clock: abc.SchedulerBase) -> None:
        # The reader that takes an item may be on another thread; it should not do this work.
        self._waits_for_gate = False
        self.deliver_soon(clock)

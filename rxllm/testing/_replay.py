"""`replay_file`: a recorded stream, played again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reactivex import abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.events import Event
from rxllm.runtime import Stream, clock, current_gate, fail, report_unheard
from rxllm.testing._record import as_path, stopwatch
from rxllm.testing._recordings import Note, recordings_in
from rxllm.values import ValidationError


def replay_file(path: str | Path, speed: float = 1.0) -> Stream[Event]:
    """Play what `record` has written, in its own time or `speed` times as fast; with ``math.inf`` all at once.

    ::

        replay_file(path)           --a--b--|        (in the file: 2 a, 5 b, 8 completed)
        replay_file(path, 0.5)      ----a-----b-----|

    It ends as the recorded stream did: with a recorded error through ``on_error``, with ``StreamError("cancelled")`` if
    the subscriber had left. The file is read when the stream is subscribed. A file that `record` cannot have
    written gives ``ValidationError("invalid_request")``, with the file and the line in its message and `metadata`; a
    missing one gives its ``OSError``.

    Raises ``ValueError`` for a `speed` that is not positive, and ``TypeError`` if `path` is not a path.
    """
    file = as_path(path)
    check_speed(speed)

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        recordings = recordings_in(file)
        if len(recordings) != 1:
            fault = f"{file} is a Cassette with {len(recordings)} recordings; Cassette(path, engine) plays them"
            raise ValidationError("invalid_request", fault)
        return play(recordings[0].notes(), speed).subscribe(observer, scheduler=scheduler)

    return Stream(subscribe)


def check_speed(speed: float) -> None:
    if not isinstance(speed, int | float) or not speed > 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"speed must be a positive number, not {speed!r}")


def play(notes: Sequence[Note], speed: float) -> Stream[Event]:
    """Return a stream of the notes, in their own time or `speed` times as fast."""
    return Stream(lambda observer, scheduler=None: _Play(notes, speed, observer, scheduler).start())


class _Play:
    """One subscription: it waits for the time of each note, and for a consumer that is behind."""

    def __init__(
        self,
        notes: Sequence[Note],
        speed: float,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._notes = iter(notes)
        self._note = next(self._notes)
        self._speed = speed
        self._observer = observer
        self._scheduler = scheduler
        self._seconds = stopwatch(scheduler)
        self._gate = current_gate.get()
        self._waiting = SerialDisposable()
        self._disposed = False

    def start(self) -> abc.DisposableBase:
        self._soon()
        return CompositeDisposable(Disposable(self._dispose), self._waiting)

    def _dispose(self) -> None:
        self._disposed = True

    def _soon(self) -> None:
        # Not at once: the subscriber must have its disposable before the first event.
        self._wait(self._scheduler or CurrentThreadScheduler.singleton(), 0.0)

    def _wait(self, scheduler: abc.SchedulerBase, seconds: float) -> None:
        # Set first: the action may run before schedule_relative returns, perhaps on another thread.
        waiting = self._waiting.disposable = SingleAssignmentDisposable()
        waiting.disposable = scheduler.schedule_relative(seconds, self._play)

    def _play(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        try:
            while True:
                early = self._note.at / self._speed - self._seconds()
                if not math.isinf(self._speed) and early > 1e-6:
                    self._wait(clock(self._scheduler), early)
                    return
                if self._note.item is None:
                    break
                self._observer.on_next(self._note.item)
                if self._disposed:
                    return
                self._note = next(self._notes)
                if self._gate is not None and self._gate.full:
                    self._gate.when_open(self._soon)
                    return
        except BaseException as error:  # the subscriber's own
            fail(self._observer, error)
        else:
            self._end(self._note.error)

    def _end(self, error: Exception | None) -> None:
        if error is not None:
            fail(self._observer, error)
            return
        try:
            self._observer.on_completed()
        except BaseException as unheard:
            report_unheard(unheard)

"""Streams in files: recorded with their timing, and played again.

A file is lines of JSON, one per notification: ``at``, in seconds since the subscription, and one of

=================  ===================================================================================
``"next"``         an event or a value, as ``rxllm.serializer`` writes it
``"error"``        an error, in the same way; an error of another kind as a ``StreamError("adapter_error")``
                   that names it
``"completed"``    true
``"disposed"``     true: the subscriber left
=================  ===================================================================================

The last line has one of the last three.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.runtime import Stream
from rxllm.runtime.back_pressure import current_endings
from rxllm.serializer import to_json
from rxllm.values import LLMError, StreamError, ValidationError

T = TypeVar("T")


def record(path: str | Path) -> Callable[[Observable[T]], Stream[T]]:
    """Write a stream of events to a file while it passes, with its timing; `replay_file` plays it.

    ::

        source          --a--b--|
        record(path)    --a--b--|        (and in the file: 2 a, 5 b, 8 completed)

    >>> import tempfile
    >>> from rxllm import Fake, stream_generate
    >>> from rxllm.testing import replay_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     live = stream_generate(Fake("Hi"), "Hello").pipe(record(f"{folder}/hi.jsonl")).to_list().run()
    ...     live == replay_file(f"{folder}/hi.jsonl").to_list().run()
    True

    Every subscription writes a file of its own, over an existing one: the first at `path` (``hi.jsonl``), then
    ``hi.2.jsonl`` and so on. The file is written line by line, and is complete and closed before the stream's end is
    passed on, or when the subscriber leaves. Times are those of the subscription's scheduler.

    An item that has no JSON form ends the stream with ``ValidationError("not_serializable")``, a file that cannot be
    written with its ``OSError``. Raises ``TypeError`` if `path` is not a path.
    """
    file = as_path(path)
    numbers = itertools.count(1)

    def begin(seconds: Callable[[], float]) -> Recording:
        return Recording(_numbered(file, next(numbers)).open("w", encoding="utf-8", buffering=1), seconds)

    return recording_with(begin)


def recording_with(begin: Callable[[Callable[[], float]], Recording]) -> Callable[[Observable[T]], Stream[T]]:
    """Return an operator that writes to ``begin(seconds)``, a new one for each subscription."""

    def operator(source: Observable[T]) -> Stream[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            recording = begin(stopwatch(scheduler))
            if (endings := current_endings.get()) is not None:
                endings.expect()
            delivering = False  # stays True when a subscriber raises: that error is not the stream's

            def on_next(item: T) -> None:
                nonlocal delivering
                try:
                    recording.add(item)
                except Exception as error:
                    on_error(error)
                    return
                delivering = True
                observer.on_next(item)
                delivering = False

            def on_error(error: Exception) -> None:
                leave() if delivering else recording.end("error", _json(error))
                observer.on_error(error)

            def on_completed() -> None:
                failure = recording.end("completed", "true")
                observer.on_completed() if failure is None else observer.on_error(failure)

            def leave() -> None:
                recording.end("disposed", "true")

            subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, Disposable(leave))

        return Stream(subscribe)

    return operator


def as_path(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"record, replay_file, Cassette and backtest need the path of a file, not {path!r}")
    return Path(path)


def stopwatch(scheduler: abc.SchedulerBase | None) -> Callable[[], float]:
    """Return a function that returns the seconds since now, by the `scheduler`."""
    if scheduler is None:
        began = time.monotonic()
        return lambda: time.monotonic() - began
    start = scheduler.now
    return lambda: (scheduler.now - start).total_seconds()


class Recording:
    """The lines of one stream. After its last line, which may be written on another thread, it takes no more."""

    def __init__(self, file: TextIO, seconds: Callable[[], float]) -> None:
        self._file: TextIO | None = file
        self._seconds = seconds
        self._lock = threading.RLock()

    def add(self, item: Any) -> None:
        self._write("next", to_json(item))

    def end(self, kind: str, json: str) -> Exception | None:
        """Write the last line and close the file; return the error if that failed."""
        with self._lock:
            file = self._file
            if file is None:
                return None
            try:
                self._write(kind, json)
                self._file = None
                self._close(file)
            except (OSError, LLMError) as error:
                self._file = None
                with suppress(OSError):
                    file.close()
                return error
        return None

    def _write(self, kind: str, json: str) -> None:
        with self._lock:
            if self._file is not None:
                self._file.write(f'{{"at": {round(self._seconds(), 6)!r}, "{kind}": {json}}}\n')

    def _close(self, file: Any) -> None:
        file.close()


def _numbered(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_suffix(f".{number}{path.suffix}")


def _json(error: Exception) -> str:
    with suppress(ValidationError):  # the fields of an error may have no JSON form
        if isinstance(error, LLMError):
            return to_json(error)
    return to_json(StreamError("adapter_error", f"{type(error).__name__}: {error}"))

"""Record streams and their timing in files, and play them back.

A file has one line of JSON for each notification. ``"at"`` is the time in seconds since the subscription. Each line
also has one of these fields:

=================  ===================================================================================
``"next"``         An event or a value, as ``rxllm.serializer`` writes it.
``"error"``        An `LLMError`, as ``rxllm.serializer`` writes it. Any other error becomes a
                   ``StreamError("adapter_error")`` with the error's type and message.
``"completed"``    ``true`` if the stream completed.
``"disposed"``     ``true`` if the subscriber unsubscribed.
=================  ===================================================================================

The last line of each stream has ``"error"``, ``"completed"`` or ``"disposed"``. `record` writes one stream to a file.
In a cassette, each stream is preceded by a line with its ``"request"``. Unfinished streams in a cassette are ignored.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

import msgspec
from reactivex import Observable, abc, defer, from_iterable
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.events import ErrorEvent, Event
from rxllm.runtime import Stream, clock, current_gate, fail, noting_times, report_unheard
from rxllm.runtime.context_variables import current_reader
from rxllm.serializer import from_json, to_json
from rxllm.values import Labelled, LLMError, StreamError, Timed, ValidationError
from rxllm.values.errors import as_llm_error

T = TypeVar("T")


def record(path: str | Path) -> Callable[[Observable[T]], Stream[T]]:
    """Write a stream and its timing to a file for `replay_file`.

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

    Each subscription writes its own file. The first is `path` (``hi.jsonl``), the second ``hi.2.jsonl``, and so on.
    Existing files are replaced. A file is written line by line, and closed before the subscriber is notified that the
    stream has ended. Times are measured on the subscription's scheduler.

    An item that JSON cannot represent ends the stream with ``ValidationError("not_serializable")``. If the file cannot
    be written, the stream ends with the ``OSError``. Raises ``TypeError`` if `path` is not a path.
    """
    file = as_path(path)
    numbers = itertools.count(1)

    def begin(seconds: Callable[[], float]) -> Recording:
        number = next(numbers)
        numbered = file if number == 1 else file.with_suffix(f".{number}{file.suffix}")
        return Recording(numbered.open("w", encoding="utf-8", buffering=1), seconds)

    return recording_with(begin)


def replay_file(path: str | Path, speed: float = 1.0) -> Stream[Event]:
    """Play back a file that `record` wrote, `speed` times as fast as it was recorded.

    ::

        replay_file(path)           --a--b--|        (in the file: 2 a, 5 b, 8 completed)
        replay_file(path, 0.5)      ----a-----b-----|

    With ``math.inf`` as the `speed`, all events are emitted at once. The stream ends as the recorded stream did. If the
    recorded subscriber unsubscribed early, ``on_error`` receives ``StreamError("cancelled")``.

    The file is read at each subscription. If it is malformed, the stream fails with
    ``ValidationError("invalid_request")``. The error's message and `metadata` name the file and the line. If the file
    is missing, the stream fails with the ``OSError``.

    Raises ``ValueError`` if `speed` is not positive, and ``TypeError`` if `path` is not a path.
    """
    file = as_path(path)
    check_speed(speed)

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        recordings = recordings_in(file)
        if len(recordings) != 1:
            fault = f"{file} is a Cassette with {len(recordings)} recordings: play it with Cassette(path, engine)"
            raise ValidationError("invalid_request", fault)
        return play(recordings[0].notes(), speed).subscribe(observer, scheduler=scheduler)

    return Stream(subscribe)


def timed_file(path: str | Path) -> Stream[Timed[Any]]:
    """Emit the events in a file as `Timed` items, without delays.

    ::

        timed_file(path)    ABC|        (in the file: 2 a, 5 b, 8 an error; A: a at 2, B: b at 5, C: an ErrorEvent at 8)

    The file must be one that `record` or a `Cassette` has written. ``rxllm.timeline(timed_file("run.jsonl"))`` draws a
    recording. In a cassette, the times start from zero again in each answer. Events from a cassette are also wrapped in
    a `Labelled` with the answer's number and model. The file is read at each subscription. If the file is malformed or
    missing, the stream fails as in `replay_file`.

    Raises ``TypeError`` if `path` is not a path.
    """
    file = as_path(path)

    def read(scheduler: abc.SchedulerBase) -> Observable[Timed[Any]]:
        return from_iterable(
            Timed(note.at, event if label is None else Labelled(label, event))
            for label, recording in _with_labels(recordings_in(file))
            for note in recording.notes()
            if (event := note.item or (note.error and ErrorEvent(as_llm_error(note.error)))) is not None
        )

    return Stream.of(defer(read))


def _with_labels(recordings: Sequence[Recorded]) -> Iterator[tuple[str | None, Recorded]]:
    for number, recording in enumerate(recordings, 1):
        yield None if recording.head is None else f"{number}. {recording.request.get('model') or 'answer'}", recording


def as_path(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the path of a recording must be a string or a Path, not {path!r}")
    return Path(path)


def check_speed(speed: float) -> None:
    if not isinstance(speed, int | float) or not speed > 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"speed must be a positive number, not {speed!r}")


def recording_with(begin: Callable[[Callable[[], float]], Recording]) -> Callable[[Observable[T]], Stream[T]]:
    """Return an operator that records each subscription."""

    def operator(source: Observable[T]) -> Stream[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            recording = begin(stopwatch(scheduler))
            if (endings := current_reader.get().endings) is not None:
                endings.expect()
            delivering = False  # in on_error, this is true only if the subscriber raised the error

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
                leave() if delivering else recording.end("error", _error_json(error))
                observer.on_error(error)

            def on_completed() -> None:
                failure = recording.end("completed", "true")
                observer.on_completed() if failure is None else observer.on_error(failure)

            def leave() -> None:
                recording.end("disposed", "true")

            notes = noting_times(source)
            subscription = notes.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, Disposable(leave))

        return Stream(subscribe)

    return operator


def stopwatch(scheduler: abc.SchedulerBase | None) -> Callable[[], float]:
    """Start a stopwatch on `scheduler`, and return a function that reads it in seconds."""
    if scheduler is None:
        began = time.monotonic()
        return lambda: time.monotonic() - began
    start = scheduler.now
    return lambda: (scheduler.now - start).total_seconds()


class Recording:
    """Writes the lines of one stream. Once the stream's last line is written, further lines are ignored."""

    def __init__(self, file: TextIO, seconds: Callable[[], float]) -> None:
        self._file: TextIO | None = file
        self._seconds = seconds
        self._lock = threading.RLock()

    def add(self, item: Any) -> None:
        self._write("next", to_json(item))

    def end(self, kind: str, json: str) -> Exception | None:
        """Write the last line, and close the file. If that fails, return the error."""
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


def _error_json(error: Exception) -> str:
    with suppress(ValidationError):  # some errors have fields that JSON cannot represent
        if isinstance(error, LLMError):
            return to_json(error)
    return to_json(StreamError("adapter_error", f"{type(error).__name__}: {error}"))


_HEAD = b'{"request"'

_LEFT = "the recording ends here because its subscriber unsubscribed"


def is_left(error: Exception) -> bool:
    """Return whether `error` means that the recorded subscriber unsubscribed."""
    return isinstance(error, StreamError) and error.message == _LEFT


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a recording. It has `at` and exactly one other field."""

    at: float
    next: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    completed: bool = False
    disposed: bool = False


class Note(msgspec.Struct):
    """A notification. It has an `item`, an `error` or, if the stream completed, neither."""

    at: float
    item: Any = None
    error: Exception | None = None


_FAULTS = (msgspec.MsgspecError, ValueError, RecursionError, LLMError)


@dataclass(frozen=True)
class Recorded:
    """One stream in a file, as numbered `lines`. In a cassette, `head` is the line that contains the request."""

    path: Path
    lines: list[tuple[int, bytes]]
    head: tuple[int, bytes] | None = None

    @property
    def request(self) -> Mapping[str, Any]:
        """The recorded request, or an empty dict if there is no `head`."""
        if self.head is None:
            return {}
        number, line = self.head
        try:
            return _decode(line, dict[str, dict[str, Any]])["request"]
        except _FAULTS as error:
            raise _malformed(self.path, number, str(error)) from error

    @property
    def text(self) -> bytes:
        """The lines of this stream, including the `head`, exactly as they are in the file."""
        return b"".join(line for _, line in (*([self.head] if self.head else []), *self.lines))

    def notes(self) -> list[Note]:
        """Return the stream's notifications.

        Raises ``ValidationError("invalid_request")`` for a malformed line.
        """
        notes: list[Note] = []
        for number, line in self.lines:
            try:
                note = _read_note(_decode(line, _Line))
            except _FAULTS as error:
                raise _malformed(self.path, number, str(error)) from error
            if (note.item is None) != (number == self.lines[-1][0]):
                raise _malformed(self.path, number, "the last line must end the stream, and no other line may")
            notes.append(note)
        if not notes:
            raise _malformed(self.path, 1, "it is empty")
        return notes

    @property
    def is_whole(self) -> bool:
        try:
            return bool(self.lines) and _read_note(_decode(self.lines[-1][1], _Line)).item is None
        except _FAULTS:
            return False


def recordings_in(path: Path) -> list[Recorded]:
    """Return the streams in a file, except for the unfinished entries of a cassette."""
    with path.open("rb") as file:
        first, *others = _split_entries(path, file)
    if first.head is None:
        for entry in others:
            raise _malformed(path, (entry.head or (0,))[0], "a file from `record` cannot also contain Cassette entries")
        return [first]
    return [entry for entry in (first, *others) if entry.head is not None and entry.is_whole]


def _split_entries(path: Path, lines: Iterable[bytes]) -> Iterator[Recorded]:
    entry = Recorded(path, [])
    for number, line in enumerate(lines, 1):
        if line.startswith(_HEAD):
            if entry.head or entry.lines:
                yield entry
            entry = Recorded(path, [], (number, line))
        elif entry.head and not line.strip():  # an empty line ends a cassette's entry
            yield entry
            entry = Recorded(path, [])
        else:
            entry.lines.append((number, line))
    yield entry


def _decode(line: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=type)
    except msgspec.DecodeError as error:  # perhaps because of a lone surrogate or a number that is out of range
        try:
            data: Any = json.loads(line)
        except ValueError:
            raise error from None
        if type is _Line and isinstance(data, dict):
            fields = cast(dict[str, Any], data).items()
            data = {
                name: msgspec.Raw(json.dumps(entry).encode()) if name in ("next", "error") else entry
                for name, entry in fields
            }
        return msgspec.convert(data, type)


def _read_note(line: _Line) -> Note:
    notifications = (line.next is not msgspec.UNSET, line.error is not msgspec.UNSET, line.completed, line.disposed)
    if sum(notifications) != 1:
        raise ValueError('a line must have exactly one of "next", "error", "completed" and "disposed"')
    if isinstance(line.next, msgspec.Raw):
        return Note(line.at, from_json(bytes(line.next), local_files=True))
    if isinstance(line.error, msgspec.Raw):
        return Note(line.at, error=from_json(bytes(line.error), LLMError, local_files=True))
    cancelled = StreamError("cancelled", _LEFT)
    return Note(line.at, error=cancelled if line.disposed else None)


def _malformed(path: Path, line: int, fault: str) -> ValidationError:
    metadata = {"path": str(path), "line": line}
    return ValidationError("invalid_request", f"{path}, line {line}: {fault}", metadata=metadata)


def play(notes: Sequence[Note], speed: float) -> Stream[Event]:
    return Stream(lambda observer, scheduler=None: _Play(notes, speed, observer, scheduler).start())


class _Play:
    """One subscription to the stream that `play` returns."""

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
        self._gate = current_gate()
        self._waiting = SerialDisposable()

    def start(self) -> abc.DisposableBase:
        self._schedule()
        return self._waiting

    def _schedule(self) -> None:
        # The subscriber must have its disposable before the first event arrives.
        self._wait(self._scheduler or CurrentThreadScheduler.singleton(), 0.0)

    def _wait(self, scheduler: abc.SchedulerBase, seconds: float) -> None:
        # The action may run before schedule_relative returns.
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
                if self._waiting.is_disposed:
                    return
                self._note = next(self._notes)
                if self._gate is not None and self._gate.full:
                    self._gate.when_open(self._schedule)
                    return
        except BaseException as error:  # raised by the subscriber
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

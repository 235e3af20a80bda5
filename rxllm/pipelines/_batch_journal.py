"""The journal of a batch: a file with one line for each answered request, so that the batch can be resumed.

Each line is ``{"request_key": "...", "id": ..., "response": {...}}``, followed by a newline. The key is the request's
``rxllm.values.request_key``, which covers all options of the request. The id is the caller's id for the request. If
there are no ids, the line of a repeated request also contains ``"nth"``, the number of identical requests before it.
The response is written by ``rxllm.serializer`` without `parsed`; a later run parses the text again.

==============================  ======================================================================================
event                           effect on the file
==============================  ======================================================================================
A response arrives.             Its line is written before the response is emitted, so the line survives a crash of the
                                process. A response with an error is not written.
A line is written a second or   The file is synced to disk, so its lines survive a crash of the machine.
more after the last sync, or
the batch ends.
The process dies while          The file ends with half a line. The next run removes it and sends the request again.
writing a line.
The disk is full.               The new line is removed, and the earlier lines stay. The stream fails.
==============================  ======================================================================================

The file is locked while a stream writes to it. The operating system releases the lock when the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import replace
from io import FileIO
from typing import Any, TypeVar

import msgspec

from rxllm import serializer
from rxllm.runtime import daemon_threads
from rxllm.values import EngineError, LLMError, Request, Response, ValidationError, request_key
from rxllm.values.argument_checks import invalid_option, shown

T = TypeVar("T")
RequestId = str | int

Count = Callable[[int, Hashable, Response[Any] | None], object]
"""A function that is called with a request's index, a key for its line (the path and the position), and the response.

The response is None unless it was already stored.
"""

WAIT = 1.0
"""The number of seconds to wait for the file's lock.

A disposed stream may hold the lock until it has closed the file.
"""

SYNC_EVERY = 1.0
"""The minimum number of seconds between syncs to disk."""

_HEAD = b'{"request_key": "'


class _Line(msgspec.Struct):
    request_key: str
    response: dict[str, Any]
    id: RequestId | None = None
    nth: int = 0

    @property
    def name(self) -> tuple[RequestId, int | None]:
        """The key that identifies the line within a batch."""
        return (self.request_key, self.nth) if self.id is None else (self.id, None)


def _read_line(text: bytes) -> _Line:
    # msgspec's decoder rejects a lone surrogate; Python's accepts it.
    return msgspec.convert(json.loads(text), _Line)


class Journal:
    """The journal for one subscription to a batch of `requests`.

    `complete` fills in the fields of a request, and returns the request that will be sent to `provider`.
    """

    def __init__(
        self,
        path: str,
        requests: Sequence[Request],
        ids: Sequence[RequestId] | None,
        complete: Callable[[Request], Request],
        provider: str,
        count: Count | None = None,
    ) -> None:
        self.path = path
        self._count = count
        self._requests = requests
        self._ids = ids
        self._complete = complete
        self._provider = provider
        self._lock = threading.Lock()  # held while a thread uses the file
        self._file: FileIO | None = None
        self._is_closed = False
        self._size = 0
        self._synced_at = 0.0
        # `_lines` holds the line of each request, but no responses. `_places` maps the index of each answered request
        # to the start and size of its line in the file.
        self._lines: list[_Line] = []
        self._places: dict[int, tuple[int, int]] = {}

    async def open(self) -> None:
        """Lock the file, remove an unfinished last line, and find the answered requests.

        Raises ``EngineError("journal_in_use")`` if another stream is writing to the file,
        ``EngineError("journal_failed")`` if the file cannot be read or written, and a ``ValidationError`` if the file
        is not a journal, or if it stores a different request under the id of one of the `requests`.
        """
        await _in_thread(self._open)

    async def close(self) -> None:
        """Sync and close the file.

        Raises ``EngineError("journal_failed")`` if that fails.
        """
        await _in_thread(self._close)

    def leave(self) -> None:
        """Start closing the file on another thread."""
        if not self._is_closed:
            daemon_threads().submit(self._close)

    def has(self, index: int) -> bool:
        """Return whether the file has an answer to the request with this index."""
        return index in self._places

    async def read(self, index: int) -> Response[Any]:
        """Return the stored response to the request with this index."""
        return await _in_thread(lambda: self._read(*self._places[index]))

    def forget(self, index: int) -> None:
        """Discard the stored response to the request with this index, so that a new one can replace it."""
        del self._places[index]

    async def append(self, index: int, response: Response[Any]) -> Response[Any]:
        """Append `response` to the file, and return the response.

        Raises ``EngineError("journal_failed")`` if that fails.
        """
        await _in_thread(lambda: self._append(index, response))
        return response

    def _open(self) -> None:
        with self._lock, self._typed_errors():
            if self._is_closed:
                return
            self._file = FileIO(self.path, "a+")
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # reading a pipe or a device might never finish
                raise OSError(f"{self.path!r} is not a regular file")
            _lock_file(self._file, self.path)
            self._lines = self._lines_of_requests()
            self._scan(self._file)

    def _lines_of_requests(self) -> list[_Line]:
        lines, counts = list[_Line](), Counter[str]()
        for index, request in enumerate(self._requests):
            id = None if self._ids is None else self._ids[index]
            try:
                key = request_key(self._complete(request), self._provider)
            except ValidationError as error:
                raise error.under(index if id is None else id).under("requests") from None
            lines.append(_Line(key, {}, id, counts[key] if id is None else 0))
            counts[key] += 1
        return lines

    def _scan(self, file: FileIO) -> None:
        """Find the lines that answer the batch's requests."""
        indexes = {line.name: index for index, line in enumerate(self._lines)}
        with open(self.path, "rb") as lines:
            for number, text in enumerate(lines, 1):
                if not text.endswith(b"\n"):
                    self._cut_off(file, text)
                    break
                try:
                    line = _read_line(text)
                except (ValueError, RecursionError) as error:  # includes msgspec's errors
                    raise self._not_a_journal(number, text) from error
                if (index := indexes.get(line.name)) is not None:
                    self._check_unchanged(index, line)
                    self._places[index] = (self._size, len(text))
                    if self._count is not None:
                        self._count(index, (self.path, self._size), serializer.from_data(line.response, Response))
                self._size += len(text)

    def _cut_off(self, file: FileIO, text: bytes) -> None:
        """Remove `text`, the unfinished last line, from the file. Raises an error if the file is not a journal."""
        start = text.rstrip(b"\0")  # after a machine crash, the file can end with NUL bytes
        if start[: len(_HEAD)] != _HEAD[: len(start)]:
            raise self._not_a_journal(None, text)
        file.truncate(self._size)

    def _check_unchanged(self, index: int, line: _Line) -> None:
        if line.request_key != self._lines[index].request_key:
            fault = (
                f"differs in its messages, model, tools or options from the request with this id in {self.path!r}; "
                "use another journal, or give the request a different id"
            )
            raise ValidationError("invalid_request", errors=[(("requests", str(line.id)), fault)])

    def _not_a_journal(self, number: int | None, text: bytes) -> ValidationError:
        place = "the last line" if number is None else f"line {number}"
        fault = f"must be a file written by generate_many, but {place} of {self.path!r} is {shown(text)}"
        return invalid_option("journal", f"{fault}; pass the path of a new file")

    def _read(self, start: int, size: int) -> Response[Any]:
        with self._lock, self._typed_errors():
            if self._file is None:
                return Response()  # the subscription has been disposed
            self._file.seek(start)
            text = b""
            while len(text) < size and (piece := self._file.read(size - len(text))):
                text += piece
        return serializer.from_data(_read_line(text).response, Response, local_files=True)

    def _append(self, index: int, response: Response[Any]) -> None:
        line = self._lines[index]
        names = {"request_key": line.request_key, "id": line.id, "nth": line.nth or None}
        head = json.dumps({name: value for name, value in names.items() if value is not None})
        try:
            data = serializer.to_json(replace(response, parsed=None))
        except ValidationError as error:  # an operator has put something into the metadata that JSON cannot express
            raise self._journal_error(error) from error
        text = f'{head[:-1]}, "response": {data}}}\n'.encode()
        with self._lock, self._typed_errors():
            if self._file is not None:  # None if the subscription has been disposed
                if self._count is not None:
                    self._count(index, (self.path, self._size), None)
                self._write(self._file, text)

    def _write(self, file: FileIO, text: bytes) -> None:
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(self._size)
            raise
        self._size += len(text)
        if time.monotonic() - self._synced_at >= SYNC_EVERY:
            os.fsync(file.fileno())
            self._synced_at = time.monotonic()

    def _close(self) -> None:
        with self._lock, self._typed_errors():
            self._is_closed = True
            file, self._file = self._file, None
            if file is not None:
                with file:
                    os.fsync(file.fileno())

    @contextlib.contextmanager
    def _typed_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise self._journal_error(error) from error

    def _journal_error(self, error: OSError | LLMError) -> EngineError:
        message = (
            f"the journal {self.path!r} cannot be read or written: {error}; its existing lines are safe; free some "
            "space or pass a writable path, and run the batch again"
        )
        return EngineError("journal_failed", message)


async def _in_thread(function: Callable[[], T]) -> T:
    # Unlike ``in_thread``, this logs nothing when it is cancelled, because the thread is about to return anyway.
    return await asyncio.wrap_future(daemon_threads().submit(function))


def _lock_file(file: FileIO, path: str) -> None:
    end = time.monotonic() + WAIT
    while not _is_locked_by_us(file):
        if time.monotonic() > end:
            message = f"another process or stream is writing to the journal {path!r}"
            raise EngineError("journal_in_use", f"{message}; wait until it has finished, or pass another path")
        time.sleep(0.02)


if sys.platform == "win32":
    import msvcrt

    def _is_locked_by_us(file: FileIO) -> bool:
        # Lock a byte far beyond the end of the file, because other processes cannot read locked bytes.
        file.seek(1 << 40)
        with contextlib.suppress(OSError):
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return True
        return False
else:
    import fcntl

    def _is_locked_by_us(file: FileIO) -> bool:
        # A POSIX lock would be lost as soon as any code in the process, such as a reader, closed the file.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

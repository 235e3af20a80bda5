"""The streams in a file: what `record` has written, and the entries of a `Cassette`.

A file of `record` is one stream. In a cassette each stream follows a line of its own with the ``"request"``, and an
entry without an end, which a killed process has left behind, does not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from rxllm.serializer import from_json
from rxllm.values import LLMError, StreamError, ValidationError

T = TypeVar("T")

_HEAD = b'{"request"'
_LEFT = "the recording ends here because its subscriber left"


def is_left(error: Exception) -> bool:
    """Whether `error` stands where the subscriber of a recorded stream had left."""
    return isinstance(error, StreamError) and error.message == _LEFT


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A notification: it has one of the last four."""

    at: float
    next: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    completed: bool = False
    disposed: bool = False


class Note(msgspec.Struct):
    """A notification: an `item`, or the end if it is None, with its `error` if there is one."""

    at: float
    item: Any = None
    error: Exception | None = None


_FAULTS = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, LLMError)


@dataclass(frozen=True)
class Recorded:
    """One stream in a file: its numbered lines, and in a cassette the `head` with the request."""

    path: Path
    lines: list[tuple[int, bytes]]
    head: tuple[int, bytes] | None = None

    @property
    def request(self) -> Mapping[str, Any]:
        """The request as the cassette has it; without a head, nothing."""
        if self.head is None:
            return {}
        number, line = self.head
        try:
            return _decode(line, dict[str, dict[str, Any]])["request"]
        except _FAULTS as error:
            raise _bad(self.path, number, str(error)) from error

    @property
    def text(self) -> bytes:
        """What the file has of it."""
        return b"".join(line for _, line in (*([self.head] if self.head else []), *self.lines))

    def notes(self) -> list[Note]:
        """Return the notifications. Raises ``ValidationError("invalid_request")``, which names the line at fault."""
        notes: list[Note] = []
        for number, line in self.lines:
            try:
                note = _note(_decode(line, _Line))
            except _FAULTS as error:
                raise _bad(self.path, number, str(error)) from error
            if (note.item is None) != (number == self.lines[-1][0]):
                raise _bad(self.path, number, "the last line, and no other, has the stream's end")
            notes.append(note)
        if not notes:
            raise _bad(self.path, 1, "it is empty")
        return notes

    @property
    def is_whole(self) -> bool:
        """Whether the last line is the end of a stream."""
        try:
            return bool(self.lines) and _note(_decode(self.lines[-1][1], _Line)).item is None
        except _FAULTS:
            return False


def recordings_in(path: Path) -> list[Recorded]:
    """Return the streams in a file, in order, without those of a cassette that have no end."""
    with path.open("rb") as file:
        first, *others = _entries(path, file)
    if first.head is None:
        for entry in others:
            raise _bad(path, (entry.head or (0,))[0], "a file of `record` cannot have entries of a Cassette too")
        return [first]
    return [entry for entry in (first, *others) if entry.head is not None and entry.is_whole]


def _entries(path: Path, lines: Iterable[bytes]) -> Iterator[Recorded]:
    entry = Recorded(path, [])
    for number, line in enumerate(lines, 1):
        if line.startswith(_HEAD):
            if entry.head or entry.lines:
                yield entry
            entry = Recorded(path, [], (number, line))
        elif entry.head and not line.strip():  # an empty line ends an entry of a cassette
            yield entry
            entry = Recorded(path, [])
        else:
            entry.lines.append((number, line))
    yield entry


def _decode(line: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=type)
    except msgspec.DecodeError as error:  # half a surrogate pair, or a number out of range
        try:
            data: Any = json.loads(line)
        except ValueError:
            raise error from None
        if type is _Line and isinstance(data, dict):
            fields = cast(dict[str, Any], data).items()
            data = {name: _raw(entry) if name in ("next", "error") else entry for name, entry in fields}
        return msgspec.convert(data, type)


def _raw(data: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(data).encode())


def _note(line: _Line) -> Note:
    notifications = (line.next is not msgspec.UNSET, line.error is not msgspec.UNSET, line.completed, line.disposed)
    if sum(notifications) != 1:
        raise ValueError('a line must have one of "next", "error", "completed" and "disposed"')
    if isinstance(line.next, msgspec.Raw):
        return Note(line.at, from_json(bytes(line.next), local_files=True))
    if isinstance(line.error, msgspec.Raw):
        return Note(line.at, error=from_json(bytes(line.error), LLMError, local_files=True))
    cancelled = StreamError("cancelled", _LEFT)
    return Note(line.at, error=cancelled if line.disposed else None)


def _bad(path: Path, line: int, fault: str) -> ValidationError:
    metadata = {"path": str(path), "line": line}
    return ValidationError("invalid_request", f"{path}, line {line}: {fault}", metadata=metadata)

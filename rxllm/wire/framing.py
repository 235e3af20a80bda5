"""Split a byte stream into server-sent events, NDJSON lines or the elements of a JSON array.

The frames do not depend on how the bytes are divided into reads. An unfinished frame is kept until the rest of it
arrives. No frame may have more than `max_frame` bytes, so the buffers stay small.

Server-sent events:

1. A line ends with LF, CR or CRLF, even if a CRLF is split between two reads. U+2028 and U+0085 do not end a line, so
   the decoder works on bytes.
2. A blank line dispatches the event, unless the event's data is empty. Comments, ``id:``, ``retry:`` and empty
   heartbeats (``data:``) do not produce a frame. If there are several data lines, they are joined with LF.
3. Servers often omit the blank line after the final event. `close` returns that event if its data is complete.
4. If a body begins with ``{`` or ``[``, it is a JSON document from a server that ignores ``"stream": true``. `close`
   returns it as a single frame.
5. A line such as ``error: {...}`` becomes an event named ``error``. llama.cpp and gpustack report failures this way.

Newline-delimited JSON:

1. A line ends only with LF or CRLF, never with U+2028 or a lone CR.
2. Blank lines are skipped, and so is a BOM at the beginning.
3. `close` returns an unterminated last line if it is complete JSON.

A JSON array is read by a state machine:

=========  ==========================  =====================================================================
state      input                       action
=========  ==========================  =====================================================================
before     ``[``                       Go to *between*. Anything before the bracket is skipped.
between    a comma or whitespace       Skip it.
between    ``{``, ``[`` or ``"``       Go to *inside*.
between    ``]``                       Go to *ended*.
between    anything else               Go to *odd*. The input is a number, a word, or nonsense.
odd        a comma or ``]``            Return the bytes before it as an element, and go to *between*.
inside     the end of the element      Return the element's bytes as they were sent, and go to *between*.
ended      anything                    Ignore it.
=========  ==========================  =====================================================================

Brackets inside strings are ignored. The bytes of earlier reads are not scanned again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import msgspec

from rxllm.values import StreamError
from rxllm.values.json_text import is_json

MAX_FRAME = 16 * 2**20

_Frame = TypeVar("_Frame")


class PendingFrame:
    """The base class for framings. It keeps the unfinished frame.

    If a frame is too large, the error is raised only after the earlier frames have been returned.
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._pieces: list[bytes] = []
        self._pending = 0  # how many bytes `_pieces` contains
        self._oversized = False

    def _append(self, data: bytes) -> None:
        self._pieces.append(data)
        self._pending += len(data)
        self._oversized = self._oversized or self._pending > self.max_frame

    def _take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces, self._pending = [], 0
        return data

    def _split_lines(self, data: bytes, read: Callable[[bytes], list[_Frame]]) -> list[_Frame]:
        """Return the frames that the complete lines of `data` contain. If the last line is incomplete, keep it."""
        end = data.rfind(b"\n") + 1
        if not end:
            self._append(data)
            return self._checked([])
        rest = data[end:]
        if rest:
            data = data[:end]
        frames = read(self._take() + data if self._pieces else data)
        if rest:
            self._append(rest)
        return self._checked(frames) if self._oversized else frames

    def _check_open(self) -> None:
        if self._oversized:
            raise StreamError("oversized_frame", f"a frame has more than {self.max_frame} bytes")

    def _checked(self, frames: list[_Frame]) -> list[_Frame]:
        if not frames:
            self._check_open()
        return frames


BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"
_CR = 13  # an integer, because that is faster to search for
_NAMED = re.compile(rb"^event: ([^\n]++)\ndata: ([^\n]++)\n\n", re.MULTILINE)

Frame = tuple[str, bytes]
"""The name of an event (``"message"`` by default) and its data."""


class SSEDecoder(PendingFrame):
    """Decodes server-sent events incrementally.

    Call `feed` with the bytes of each read, and `close` at the end. Both return the frames that are complete. If a
    frame has more than `max_frame` bytes, ``StreamError("oversized_frame")`` is raised after the earlier frames have
    been returned.

    >>> decoder = SSEDecoder()
    >>> decoder.feed(b'data: {"a": 1}\\n\\ndata: [DO'), decoder.feed(b"NE]\\n\\n"), decoder.close()
    ([('message', b'{"a": 1}')], [('message', b'[DONE]')], [])
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame=max_frame)
        self.is_json = False  # whether rule 4 of server-sent events applies (see the module's docstring)
        self._event = "message"
        self._data: list[bytes] = []
        self._size = 0  # the length of the joined `_data` in bytes, kept only while `_data` has several lines
        self._started = False
        self._after_cr = False

    def feed(self, data: bytes) -> list[Frame]:
        self._check_open()
        if not self._started:
            data = self._start(data)
        if self._after_cr or _CR in data:
            data = self._with_lf(data)
        if self.is_json:
            self._append(data)
            return self._checked([])
        return self._split_lines(data, self._read)

    def close(self) -> list[Frame]:
        self._check_open()
        rest = self._take() if self._started else b""
        if self.is_json:
            self._data = [rest]
        frames = self._read_lines([rest]) if rest and not self.is_json else []
        data, self._data = b"\n".join(self._data), []
        if data and (data == DONE or is_json(data)):
            frames.append((self._event, data))
        return self._checked(frames)

    def _start(self, data: bytes) -> bytes:
        data = self._take() + data
        body = data.removeprefix(BOM).lstrip(b"\r\n")
        document = body.lstrip()
        if BOM.startswith(data):
            self._append(data)
            return b""
        if not document:
            # Keep only what the next bytes need, so that a long run of blank lines is not copied at every read.
            self._append(b"\n" if body[-1:] in b"\r\n" else b"\n ")
            return b""
        self._started = True
        self.is_json = document[:1] in (b"{", b"[")
        return document if self.is_json else body

    def _with_lf(self, data: bytes) -> bytes:
        # If a read ends with a CR, the CR may be the first half of a CRLF.
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = data.endswith(b"\r") or (self._after_cr and not data)
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read(self, text: bytes) -> list[Frame]:
        if self._data or self._event != "message" or len(text) > self.max_frame:
            return self._read_lines(text.split(b"\n")[:-1])
        # The following are shortcuts for events that have a single data line.
        if text.find(b"\n") == len(text) - 2 > 6 and text.startswith(b"data: "):
            return [("message", text[6:-2])]
        if text.startswith(b"event: ") and text.endswith(b"\n\n"):
            return self._read_named(text)
        if text.startswith(b"data: ") and text.endswith(b"\n\n"):
            found = text[6:-2].split(b"\n\ndata: ")
            if text.count(b"\n") == 2 * len(found) and all(found):  # only non-empty data lines
                return [("message", data) for data in found]
        return self._read_lines(text.split(b"\n")[:-1])

    def _read_named(self, text: bytes) -> list[Frame]:
        # Nearly every named event consists of one event line and one data line.
        single = _NAMED.fullmatch(text)
        if single:
            return [(_name(single[1]), single[2])]
        pairs: list[tuple[bytes, bytes]] = _NAMED.findall(text)
        if text.count(b"\n") != 3 * len(pairs):
            return self._read_lines(text.split(b"\n")[:-1])
        return [(_name(name), data) for name, data in pairs]

    def _read_lines(self, lines: list[bytes]) -> list[Frame]:
        frames: list[Frame] = []
        bounded = self._within_bound(lines)
        for line in bounded:
            if not line:
                if self._data:
                    self._dispatch(frames)
                self._event = "message"
            elif not self._data and line.startswith(b"data: "):
                self._data.append(line[6:])
            else:
                self._read_field(line, frames)
                if self._oversized:
                    return frames
        self._oversized = len(bounded) < len(lines)
        return frames

    def _dispatch(self, frames: list[Frame]) -> None:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data = []
        if data:
            frames.append((self._event, data))

    def _read_field(self, line: bytes, frames: list[Frame]) -> None:
        name, _, text = line.partition(b":")
        text = text.removeprefix(b" ")
        if name == b"data":
            size = self._size if len(self._data) > 1 else sum(map(len, self._data))
            self._size = size + len(text) + bool(self._data)
            self._oversized = self._size > self.max_frame
            self._data.append(text)
        elif name == b"event":
            self._event = text.decode(errors="replace") or "message"
        elif name == b"error" and text:
            self._dispatch(frames)
            frames.append(("error", text))

    def _within_bound(self, lines: list[bytes]) -> list[bytes]:
        if sum(map(len, lines)) <= self.max_frame:
            return lines
        long = next((i for i, line in enumerate(lines) if len(line) > self.max_frame), None)
        return lines[:long]


@lru_cache(64)
def _name(name: bytes) -> str:
    return name.decode(errors="replace")


class NDJSONDecoder(PendingFrame):
    """Decodes newline-delimited JSON incrementally.

    Call `feed` with the bytes of each read, and `close` at the end. Both return the lines that are complete. If a line
    has more than `max_frame` bytes, ``StreamError("oversized_frame")`` is raised after the earlier lines have been
    returned.

    >>> decoder = NDJSONDecoder()
    >>> decoder.feed(b'{"a": 1}\\n{"b"'), decoder.feed(b": 2}\\r\\n\\n"), decoder.close()
    ([b'{"a": 1}'], [b'{"b": 2}'], [])
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame=max_frame)
        self._first = True

    def feed(self, data: bytes) -> list[bytes]:
        self._check_open()
        return self._split_lines(data, self._lines)

    def close(self) -> list[bytes]:
        self._check_open()
        return [line for line in self._lines(self._take()) if is_json(line)]

    def _lines(self, text: bytes) -> list[bytes]:
        if self._first:
            self._first = False
            text = text.removeprefix(BOM)
        frames: list[bytes] = []
        for line in text.split(b"\n"):
            if len(line) > self.max_frame:
                self._oversized = True
                break
            frame = line.strip(b"\r\t ")
            if frame:
                frames.append(frame)
        return frames


class NDJSONFraming:
    """Gives `NDJSONDecoder` the interface of `Framing`. Every frame is named ``"line"``.

    >>> NDJSONFraming().feed(b'{"a": 1}\\n')
    [('line', b'{"a": 1}')]
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        self._lines = NDJSONDecoder(max_frame=max_frame)

    def feed(self, data: bytes) -> list[Frame]:
        return [("line", line) for line in self._lines.feed(data)]

    def close(self) -> list[Frame]:
        return [("line", line) for line in self._lines.close()]


_SPACE = b" \t\r\n,"
_BEFORE = re.compile(rb"[^\[]*\[")
# Matches the rest of a string, up to its closing quote or a trailing backslash.
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# Matches text and complete strings, up to the next bracket or incomplete string.
_PLAIN = re.compile(rb'(?:[^"{}\[\]]++|"%b")*+' % _TEXT.pattern, re.DOTALL)
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")
_ODD = re.compile(rb"[,\]]")


class JSONArrayDecoder(PendingFrame):
    """Splits a JSON array into its elements incrementally.

    Call `feed` with the bytes of each read. It returns the elements that are complete. If an element has more than
    `max_frame` bytes, ``StreamError("oversized_frame")`` is raised after the earlier elements have been returned.

    >>> decoder = JSONArrayDecoder()
    >>> decoder.feed(b'[{"a": "}"},'), decoder.feed(b'{"b"'), decoder.feed(b": 2}]"), decoder.ended
    ([b'{"a": "}"}'], [], [b'{"b": 2}'], True)
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame=max_frame)
        self.ended = False
        self._begun = False
        self._tail = b""  # a backslash at the end of the last read
        self._depth = 0
        self._in_string = False
        self._odd = False

    def feed(self, data: bytes) -> list[bytes]:
        self._check_open()
        frames: list[bytes] = []
        data, at = self._tail + data, 0
        self._tail = b""
        while at < len(data) and not self.ended and not self._oversized:
            at = self._step(data, at, frames)
        return self._checked(frames)

    @property
    def is_between(self) -> bool:
        """Whether the decoder is between two elements of the array."""
        return not self._depth and not self._odd and not self._in_string

    def close(self) -> list[bytes]:
        """Return []. If the last element is unfinished, it is dropped."""
        self._check_open()
        return []

    def _step(self, data: bytes, at: int, frames: list[bytes]) -> int:
        if not self._begun:
            opening = _BEFORE.match(data, at)
            self._begun = opening is not None
            return opening.end() if opening else len(data)
        if not self.is_between:
            return self._inside(data, at, frames)
        byte = data[at : at + 1]
        if byte in _SPACE:
            return at + 1
        if byte == b"]":
            self.ended = True
            return at
        if byte == b"{" and not frames:
            # Nearly every read contains exactly one element, so try that case first.
            end = data.rfind(b"}") + 1
            if end - at <= self.max_frame and _is_element(data[at:end]):
                frames.append(data[at:end])
                return end
        if byte == b'"':
            self._append(byte)
            self._in_string = True
            return self._inside(data, at + 1, frames)
        self._odd = byte not in _OPENING
        return self._inside(data, at, frames)

    def _inside(self, data: bytes, start: int, frames: list[bytes]) -> int:
        at = self._end_of_odd(data, start) if self._odd else self._end_of_element(data, start)
        self._append(data[start:at])
        if self.is_between and not self._oversized:
            frames.append(self._take())
        return at + len(self._tail)

    def _end_of_odd(self, data: bytes, at: int) -> int:
        end = _ODD.search(data, at)
        self._odd = end is None
        return end.start() if end else len(data)

    def _end_of_element(self, data: bytes, at: int) -> int:
        if self._in_string:
            at = self._end_of_text(data, at)
            if not self._depth:  # the element itself is a string
                return at
        while at < len(data) and not self._in_string:
            plain = _PLAIN.match(data, at)
            at = plain.end() if plain else at
            mark = data[at : at + 1]
            if mark == b'"':  # an unfinished string begins here
                self._in_string = True
                return self._end_of_text(data, at + 1)
            self._depth += (mark in _OPENING) - (mark in _CLOSING) if mark else 0
            at += len(mark)
            if not self._depth:
                return at
        return at

    def _end_of_text(self, data: bytes, at: int) -> int:
        text = _TEXT.match(data, at)
        at = text.end() if text else at
        if data[at : at + 1] == b'"':
            self._in_string = False
            return at + 1
        self._tail = data[at:]  # the backslash, or nothing
        return at


def _is_element(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True

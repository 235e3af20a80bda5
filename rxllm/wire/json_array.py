"""Split a JSON array into its elements as their bytes arrive, however the reads cut them.

=========  ==========================  =====================================================================
state      input                       next state
=========  ==========================  =====================================================================
before     ``[``                       between (white space and a BOM before it are skipped)
between    ``{``, ``[`` or ``"``       inside; a comma and white space are skipped
between    ``]``                       ended
between    anything else               odd: a number, a word or nonsense, up to the next comma or ``]``
inside     the end of the element      between; the element is returned, as the bytes that were sent
ended      anything                    nothing
=========  ==========================  =====================================================================

Brackets inside strings are text. Bytes are searched only once, so an element costs no more if it arrives in many reads.
No element may exceed `max_frame` bytes: no buffer grows without bound. The same bytes give the same elements, however
the reads cut them.
"""

from __future__ import annotations

import re

import msgspec

from rxllm.wire.framing import MAX_FRAME, PendingFrame

_SPACE = b" \t\r\n,"
_BEFORE = re.compile(rb"[^\[]*\[")
# A string up to its end, or up to a backslash whose character is missing.
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# Everything except brackets; strings are skipped whole.
_PLAIN = re.compile(rb'(?:[^"{}\[\]]++|"%b")*+' % _TEXT.pattern, re.DOTALL)
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")
_ODD = re.compile(rb"[,\]]")


class JSONArrayDecoder(PendingFrame):
    """An incremental decoder: `feed` takes what was read and returns the elements that are complete.

    Raises ``StreamError("oversized_frame")`` for an element of more than `max_frame` bytes, once the elements before it
    are returned.

    >>> decoder = JSONArrayDecoder()
    >>> decoder.feed(b'[{"a": "}"},'), decoder.feed(b'{"b"'), decoder.feed(b": 2}]"), decoder.ended
    ([b'{"a": "}"}'], [], [b'{"b": 2}'], True)
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame=max_frame)
        self.ended = False
        self._begun = False
        self._tail = b""  # a backslash whose character has not arrived
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
        """Whether every element that has begun is complete."""
        return not self._depth and not self._odd and not self._in_string

    def close(self) -> list[bytes]:
        """Return nothing: an unfinished element is dropped."""
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
        # Nearly every read holds one whole element: if the bytes up to the last brace are JSON, no search is needed.
        end = data.rfind(b"}") + 1
        if byte == b"{" and end - at <= self.max_frame and _is_json(data[at:end]):
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
            if not self._depth:  # a string is the element
                return at
        while at < len(data) and not self._in_string:
            plain = _PLAIN.match(data, at)
            at = plain.end() if plain else at
            mark = data[at : at + 1]
            if mark == b'"':  # the string's end has not arrived
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
        self._tail = data[at:]  # empty, or the backslash
        return at


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True

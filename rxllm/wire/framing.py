"""Split server-sent events and newline-delimited JSON from bytes, and keep the bytes of an unfinished frame.

1. A line ends with LF, CR or CRLF, even if a read ends between CR and LF. Nothing else ends a line: U+2028 and U+0085
   are ordinary characters of the JSON inside, which is why this works on bytes and never decodes the data.
2. A blank line dispatches the event, unless its data is empty: comments, ``id:``, ``retry:`` and empty heartbeats
   (``data:``) never become a frame. Lines of data are joined with LF.
3. Only whole lines are read, so a character or a BOM that a read cuts is whole before it is decoded.
4. The specification drops a last event without its blank line; `close` returns it if its data is complete, because
   servers close the connection right after the last line.
5. A body that begins with ``{`` or ``[``, perhaps after blanks that kept the connection alive, is not an event stream
   but one JSON document, from a server that ignores ``"stream": true``: `close` returns it as one frame.
6. No line, and no event's data, may exceed `max_frame` bytes: no buffer grows without bound.
7. A line ``error: {...}``, with which llama.cpp and gpustack report a failure, is an event of that name.

The same bytes give the same frames, however the reads cut them.

1. A line ends with LF or CRLF. Nothing else ends a line: U+2028 and a lone CR do not.
2. Blank lines and a BOM are skipped.
3. Only whole lines are read. The last line may lack its end: `close` returns it if it is complete JSON.
4. No line may exceed `max_frame` bytes: no buffer grows without bound.

The same bytes give the same frames, however the reads cut them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeVar

from rxllm.values import StreamError
from rxllm.values.json_text import is_json

MAX_FRAME = 16 * 2**20

_Frame = TypeVar("_Frame")


class PendingFrame:
    """Base class of the framings. A frame that is too long raises only after the frames before it are returned."""

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._pieces: list[bytes] = []
        self._pending = 0  # bytes in `_pieces`
        self._oversized = False

    def _append(self, data: bytes) -> None:
        self._pieces.append(data)
        self._pending += len(data)
        self._oversized = self._oversized or self._pending > self.max_frame

    def _take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces, self._pending = [], 0
        return data

    def _checked(self, frames: list[_Frame]) -> list[_Frame]:
        if self._oversized and not frames:
            raise self._error()
        return frames

    def _error(self) -> StreamError:
        return StreamError("oversized_frame", f"a frame has more than {self.max_frame} bytes")


BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"
_CR = 13  # searching for an int is faster than for bytes
_NAMED = re.compile(rb"^event: ([^\n]++)\ndata: ([^\n]++)\n\n", re.MULTILINE)

Frame = tuple[str, bytes]
"""An event's type, ``"message"`` by default, and its data."""


class SSEDecoder(PendingFrame):
    """An incremental decoder: `feed` takes what was read, `close` ends the stream; both return complete frames.

    Raises ``StreamError("oversized_frame")`` for a frame of more than `max_frame` bytes, after the frames before it.

    >>> decoder = SSEDecoder()
    >>> decoder.feed(b'data: {"a": 1}\\n\\ndata: [DO'), decoder.feed(b"NE]\\n\\n"), decoder.close()
    ([('message', b'{"a": 1}')], [('message', b'[DONE]')], [])
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame=max_frame)
        self.is_json = False  # rule 5
        self._event = "message"
        self._data: list[bytes] = []
        self._size = 0  # bytes in `_data`, counted from its second line on
        self._started = False
        self._after_cr = False

    def feed(self, data: bytes) -> list[Frame]:
        if self._oversized:
            raise self._error()
        if not self._started:
            data = self._start(data)
        if self._after_cr or _CR in data:
            data = self._with_lf(data)
        end = -1 if self.is_json else data.rfind(b"\n")
        if end < 0:
            self._append(data)
            return self._checked([])
        rest = data[end + 1 :]
        if rest:
            data = data[: end + 1]
        frames = self._read(self._take() + data if self._pieces else data)
        if rest:
            self._append(rest)
        return self._checked(frames) if self._oversized else frames

    def close(self) -> list[Frame]:
        if self._oversized:
            raise self._error()
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
        if not document or BOM.startswith(data):
            self._append(data)
            return b""
        self._started = True
        self.is_json = document[:1] in (b"{", b"[")
        return document if self.is_json else body

    def _with_lf(self, data: bytes) -> bytes:
        # A CR at the end of a read ends its line at once; the LF that may come next belongs to it.
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = data.endswith(b"\r") or (self._after_cr and not data)
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read(self, text: bytes) -> list[Frame]:
        if self._data or self._event != "message" or len(text) > self.max_frame:
            return self._read_lines(text.split(b"\n")[:-1])
        # Nearly all events have one line: the first returns are short cuts for those.
        if text.find(b"\n") == len(text) - 2 > 6 and text.startswith(b"data: "):
            return [("message", text[6:-2])]
        if text.startswith(b"event: ") and text.endswith(b"\n\n"):
            return self._read_named(text)
        if text.startswith(b"data: ") and text.endswith(b"\n\n"):
            found = text[6:-2].split(b"\n\ndata: ")
            if text.count(b"\n") == 2 * len(found) and all(found):  # no line of another kind, and none is empty
                return [("message", data) for data in found]
        return self._read_lines(text.split(b"\n")[:-1])

    def _read_named(self, text: bytes) -> list[Frame]:
        # In streams with named events nearly every event has two lines, and nearly every text consists of such events.
        one = _NAMED.fullmatch(text)
        if one:
            return [(_name(one[1]), one[2])]
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
            self._size = (self._size if len(self._data) > 1 else sum(map(len, self._data))) + len(text) + 1
            self._oversized = self._size > self.max_frame + 1
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
    """An incremental decoder: `feed` takes what was read, `close` ends the stream; both return complete lines.

    Raises ``StreamError("oversized_frame")`` for a line of more than `max_frame` bytes, after the lines before it.

    >>> decoder = NDJSONDecoder()
    >>> decoder.feed(b'{"a": 1}\\n{"b"'), decoder.feed(b": 2}\\r\\n\\n"), decoder.close()
    ([b'{"a": 1}'], [b'{"b": 2}'], [])
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame=max_frame)
        self._first = True

    def feed(self, data: bytes) -> list[bytes]:
        if self._oversized:
            raise self._error()
        end = data.rfind(b"\n")
        if end < 0:
            self._append(data)
            return self._checked([])
        rest, data = data[end + 1 :], data[:end]
        frames = self._lines(self._take() + data if self._pieces else data)
        if rest:
            self._append(rest)
        return self._checked(frames) if self._oversized else frames

    def close(self) -> list[bytes]:
        if self._oversized:
            raise self._error()
        frames = self._lines(self._take())
        return [frame for frame in frames if is_json(frame)]

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
    """The lines as the frames of a `FrameDecoder`: the name of each is ``"line"``. `max_frame` is `NDJSONDecoder`'s.

    >>> NDJSONFraming().feed(b'{"a": 1}\\n')
    [('line', b'{"a": 1}')]
    """

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        self._lines = NDJSONDecoder(max_frame=max_frame)

    def feed(self, data: bytes) -> list[Frame]:
        return [("line", line) for line in self._lines.feed(data)]

    def close(self) -> list[Frame]:
        return [("line", line) for line in self._lines.close()]

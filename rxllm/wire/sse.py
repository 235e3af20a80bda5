"""Server-sent events from bytes, as https://html.spec.whatwg.org/multipage/server-sent-events.html says.

1. A line ends with LF, CR or CRLF, also when a read ends between CR and LF. Nothing else ends a line: U+2028 and U+0085
   are ordinary characters of the JSON inside, which is why this works on bytes and never decodes the data.
2. A blank line dispatches the event, unless its data is empty: comments, ``id:``, ``retry:`` and empty heartbeats
   (``data:``) never become a frame. Lines of data are joined with LF.
3. Only whole lines are read, so a character or a BOM that is cut by a read is whole before anyone looks at it.
4. Where the specification drops an event whose blank line never came, `close` gives it if its data is complete: servers
   close the connection right after the last line.
5. A body that begins with ``{`` or ``[``, perhaps behind blanks by which the server kept the connection alive, is no
   event stream but one JSON document, of a server that ignores ``"stream": true``: `close` gives it as one frame.
6. No line, and no event's data, may exceed `max_frame` bytes: nothing is buffered without bound.
7. A line ``error: {...}``, by which llama.cpp and gpustack report a failure, is an event of that name.

Any cut of the same bytes gives the same frames.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rxllm.values._json import is_json
from rxllm.wire.bounded import MAX_FRAME, Bounded

BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"
_CR = 13  # an int is found faster than bytes
_NAMED = re.compile(rb"^event: ([^\n]++)\ndata: ([^\n]++)\n\n", re.MULTILINE)

Frame = tuple[str, bytes]
"""An event's type, ``"message"`` unless the stream says otherwise, and its data."""


class SSEDecoder(Bounded):
    """An incremental decoder: `feed` it what was read, `close` it at the end; both give the frames that are complete.

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
            self._hold(data)
            return self._given([])
        rest = data[end + 1 :]
        if rest:
            data = data[: end + 1]
        frames = self._read(self._take() + data if self._pieces else data)
        if rest:
            self._hold(rest)
        return self._given(frames) if self._oversized else frames

    def close(self) -> list[Frame]:
        if self._oversized:
            raise self._error()
        rest = self._take() if self._started else b""
        if self.is_json:
            self._data = [rest]
        frames = self._read_lines([rest]) if rest and not self.is_json else []
        data, self._data = b"\n".join(self._data), []
        if data == DONE or is_json(data):
            frames.append((self._event, data))
        return self._given(frames)

    def _start(self, data: bytes) -> bytes:
        data = self._take() + data
        begun = data.removeprefix(BOM).lstrip(b"\r\n")
        document = begun.lstrip()
        if not document or BOM.startswith(data):
            self._hold(data)
            return b""
        self._started = True
        self.is_json = document[:1] in (b"{", b"[")
        return document if self.is_json else begun

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
        # Nearly all of every stream is events of one line: the first ways out are short cuts for those.
        if text.find(b"\n") == len(text) - 2 > 6 and text.startswith(b"data: "):
            return [("message", text[6:-2])]
        if text.startswith(b"event: ") and text.endswith(b"\n\n"):
            return self._read_named(text)
        lines = text.split(b"\n")
        lines.pop()
        if len(lines) % 2 or any(lines[1::2]):
            return self._read_lines(lines)
        frames: list[Frame] = []
        for line in lines[::2]:
            if len(line) > 6 and line.startswith(b"data: "):
                frames.append(("message", line[6:]))
            else:
                frames += self._read_lines([line, b""])
        return frames

    def _read_named(self, text: bytes) -> list[Frame]:
        # Where events have names, nearly all are two lines, and nearly all texts are such events.
        one = _NAMED.fullmatch(text)
        if one:
            return [(_name(one[1]), one[2])]
        found: list[tuple[bytes, bytes]] = _NAMED.findall(text)
        if text.count(b"\n") != 3 * len(found):
            return self._read_lines(text.split(b"\n")[:-1])
        return [(_name(name), data) for name, data in found]

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

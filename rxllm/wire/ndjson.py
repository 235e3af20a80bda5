"""Newline-delimited JSON, byte by byte: one value a line, as https://github.com/ndjson/ndjson-spec says.

1. A line ends with LF or CRLF. Nothing else ends a line: U+2028 and a lone CR are no line ends.
2. Blank lines and a BOM say nothing.
3. Only whole lines are read; of the last one, whose end may never come, `close` gives what is complete JSON.
4. No line may exceed `max_frame` bytes: nothing is buffered without bound.

Any cut of the same bytes gives the same frames.
"""

from __future__ import annotations

from rxllm.values._json import is_json
from rxllm.wire.bounded import MAX_FRAME, Bounded
from rxllm.wire.sse import BOM


class NDJSONDecoder(Bounded):
    """An incremental decoder: `feed` it what was read, `close` it at the end; both give the lines that are complete.

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
            self._hold(data)
            return self._given([])
        rest, data = data[end + 1 :], data[:end]
        frames = self._lines(self._take() + data if self._pieces else data)
        if rest:
            self._hold(rest)
        return self._given(frames) if self._oversized else frames

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

"""Split newline-delimited JSON from bytes: one value per line, see https://github.com/ndjson/ndjson-spec.

1. A line ends with LF or CRLF. Nothing else ends a line: U+2028 and a lone CR do not.
2. Blank lines and a BOM are skipped.
3. Only whole lines are read. The last line may lack its end: `close` returns it if it is complete JSON.
4. No line may exceed `max_frame` bytes: no buffer grows without bound.

The same bytes give the same frames, however the reads cut them.
"""

from __future__ import annotations

from rxllm.values.json_text import is_json
from rxllm.wire.pending import MAX_FRAME, PendingFrame
from rxllm.wire.sse import BOM, Frame


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

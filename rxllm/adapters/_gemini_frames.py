"""The two forms of Gemini's answer: an event stream (``?alt=sse``), or a JSON array of the same chunks.

The first byte tells, so that a server which does not know ``alt`` is understood too.
"""

from __future__ import annotations

from rxllm.wire.json_array import JSONArrayDecoder
from rxllm.wire.sse import BOM, SSEDecoder


class GeminiFrames:
    """The chunks of an event stream or of a JSON array, whichever begins."""

    def __init__(self) -> None:
        self.ended = False  # the array is closed; an event stream has no such mark
        self._held = b""
        self._source: SSEDecoder | JSONArrayDecoder | None = None

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        source = self._source
        if type(source) is SSEDecoder:
            return source.feed(data)
        if source is None:
            data, self._held = self._held + data, b""
            begun = data.removeprefix(BOM).lstrip()
            if not begun or BOM.startswith(data):
                self._held = data
                return []
            source = self._source = JSONArrayDecoder() if begun[:1] == b"[" else SSEDecoder()
        frames = source.feed(data)
        self.ended = isinstance(source, JSONArrayDecoder) and source.ended
        return [("message", frame) if isinstance(frame, bytes) else frame for frame in frames]

    def close(self) -> list[tuple[str, bytes]]:
        source = self._source
        return source.close() if isinstance(source, SSEDecoder) else []

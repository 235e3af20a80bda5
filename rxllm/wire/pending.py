"""Keep the bytes of an unfinished frame: in pieces, joined once, and never more than `max_frame`."""

from __future__ import annotations

from typing import TypeVar

from rxllm.values import StreamError

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

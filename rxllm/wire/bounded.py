"""What has come of a frame whose end has not: held in pieces, joined once, and never more than `max_frame` bytes."""

from __future__ import annotations

from typing import TypeVar

from rxllm.values import StreamError

MAX_FRAME = 16 * 2**20

_Frame = TypeVar("_Frame")


class Bounded:
    """A framing that holds back the line that has not ended; the frames before one that is too long are given."""

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._pieces: list[bytes] = []  # of the line that has not ended
        self._held = 0  # bytes in `_pieces`
        self._oversized = False

    def _hold(self, data: bytes) -> None:
        self._pieces.append(data)
        self._held += len(data)
        self._oversized = self._oversized or self._held > self.max_frame

    def _take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces, self._held = [], 0
        return taken

    def _given(self, frames: list[_Frame]) -> list[_Frame]:
        if self._oversized and not frames:
            raise self._error()
        return frames

    def _error(self) -> StreamError:
        return StreamError("oversized_frame", f"a frame of more than {self.max_frame} bytes")

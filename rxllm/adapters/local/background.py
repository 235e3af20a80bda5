"""Read the answers that llama.cpp's server keeps for requests that have ``"background": True``.

The server keeps the bytes of the answer, even if the connection closes. If the remaining bytes are requested later,
they may begin in the middle of a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from rxllm.adapters.http_base import HTTPBase
from rxllm.events import ErrorEvent, Event, MessageCompleted
from rxllm.http import Decoder
from rxllm.values import Call

if TYPE_CHECKING:
    import httpx


HEADER = "x-conversation-id"
"""The name of the request header that contains the answer's id."""


class CountingDecoder:
    """Wraps a decoder, and counts the bytes that it has read.

    `has_ended` is True once there is nothing more to read. `is_complete` is True once the whole answer has been read.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.count = 0
        self.has_ended = False
        self.is_complete = False

    def feed(self, data: bytes) -> list[Event]:
        self.count += len(data)
        events = self._decoder.feed(data)
        self.has_ended = self.has_ended or (bool(events) and isinstance(events[-1], ErrorEvent | MessageCompleted))
        self.is_complete = self.is_complete or (bool(events) and isinstance(events[-1], MessageCompleted))
        return events

    def close(self) -> list[Event]:
        return self._decoder.close()


class LocalAnswer:
    """An answer that the local server keeps. `decoder` reads it."""

    def __init__(self, adapter: HTTPBase, id: str, decoder: CountingDecoder) -> None:
        self.id = id
        self._adapter = adapter
        self._decoder = decoder

    @property
    def place(self) -> None:
        """None, because no other process can read the answer: the server stops when this process ends."""

    @property
    def position(self) -> int:
        return self._decoder.count

    @property
    def progress(self) -> int:
        return self._decoder.count

    @property
    def is_running(self) -> bool:
        return not self._decoder.is_complete

    @property
    def is_pending(self) -> bool:
        """False, because the server streams all its answers."""
        return False

    @property
    def can_resume(self) -> bool:
        return not self._decoder.has_ended

    def reopen(self, id: str | None) -> None:
        """Do nothing. Each process has its own server, so there is never an answer from an earlier process."""

    def refuse(self) -> None:
        self._decoder.has_ended = self._decoder.is_complete = True

    def drop_partial(self) -> None:
        """Do nothing. The incomplete frame is still needed, because the next connection sends the rest of it."""

    def resume(self, call: Call) -> httpx.Request:
        return self._adapter.get(f"{self._path}&from={self._decoder.count}", call, headers={})

    def stop(self, call: Call) -> httpx.Request:
        return self._adapter.delete(self._path, call)

    @property
    def _path(self) -> str:
        return f"/stream?conv_id={quote(self.id, safe='')}"

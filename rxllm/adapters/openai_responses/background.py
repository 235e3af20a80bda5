"""Read the answer to a request with ``"background": True``, even if the connection drops.

The provider numbers the frames. The first connection reads every frame. If it receives a number that is not one more
than the previous number, the answer cannot be resumed. A later connection compares each number with `last`, which is
the number of the last frame that was read:

=======================  ==============================================================================================
number of the frame      action
=======================  ==============================================================================================
none                     Read the frame. It keeps the connection alive, or reports an error.
at most `last`           Skip the frame, because it has already been read.
``last + 1``             Read the frame.
higher                   Fail with ``StreamError("truncated")``, because frames are missing.
=======================  ==============================================================================================

The server may also send a JSON document instead of frames. If the answer in the document is not complete yet, the
provider is asked again. Any other document ends the answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from rxllm.adapters.http_base import HTTPBase
from rxllm.adapters.openai_chat import bearer
from rxllm.adapters.openai_responses.decoder import ENDED, NAMED, ResponsesDecoder, is_pending
from rxllm.adapters.openai_responses.frames import Frame, Item, to_item
from rxllm.events import Event
from rxllm.http.secrets import keyless_url
from rxllm.values import Call, StreamError
from rxllm.wire.framing import SSEDecoder

if TYPE_CHECKING:
    import httpx


_ID = re.compile(r"(?=.{1,500}\Z)[.:-]*+\w[\w.:-]*+", re.ASCII)
"""Matches an id that is safe to use as a segment of a path: not only dots, and at most 500 characters."""


class NumberedFrame(Frame):
    sequence_number: Any = None


class BackgroundDecoder(ResponsesDecoder):
    """Decodes an answer that may arrive over several connections.

    `id` is None if the provider does not keep the answer. `last` is the number of the last frame that was read.
    `is_over` is True once the answer has ended. `is_pending` is True if the latest connection has only reported that
    the answer is not complete yet.
    """

    typed = msgspec.json.Decoder(NumberedFrame)
    id: str | None = None
    last: int | None = None
    is_over = False
    is_pending = False
    _is_resumed = False
    _counts_by_one = True

    def read(self, kind: str, frame: Frame, data: bytes, /) -> None:
        assert isinstance(frame, NumberedFrame)
        if not self._is_new(frame.sequence_number):
            return
        if frame.type in NAMED:
            self.id = _kept_id(to_item(frame.response))
        super().read(kind, frame, data)
        # An error that has no number is about the connection, not the answer.
        is_failure = "error" in (kind, frame.type) and type(frame.sequence_number) is int
        self.is_over = self.is_over or frame.type in ENDED or is_failure

    def read_whole(self, response: Item) -> None:
        self.is_pending = is_pending(response)
        self.is_over = self.is_over or not self.is_pending
        if self.id is None:
            self.reopen(_kept_id(response))
        super().read_whole(response)

    def feed(self, data: bytes) -> list[Event]:
        """Return the events in `data`. If `data` is empty, the connection has ended, which also ends its last frame."""
        if data:
            return super().feed(data)
        try:
            self._read_all(self._framing.close())
        except Exception as error:
            self._break_off(error)
        return self.blocks.take()

    def end(self, *, over: bool) -> None:
        self.is_over = self.is_over or over
        super().end(over=over)

    def _is_new(self, number: Any) -> bool:
        if type(number) is not int:
            return True
        if self.last is not None and number != self.last + 1:
            if not self._is_resumed:
                self._counts_by_one = False
            elif number <= self.last:
                return False
            else:
                fault = f"event {self.last + 1} of the answer is missing: the rest begins with event {number}"
                raise StreamError("truncated", fault, provider=self.provider)
        self.last = number
        return True

    @property
    def can_resume(self) -> bool:
        """Whether the next frames can be read over a new connection."""
        is_open = not (self.is_over or self.blocks.ended)
        return is_open and self.id is not None and self.last is not None and self._counts_by_one

    def reopen(self, id: str | None) -> None:
        """Prepare to read all the frames of the answer with this `id`, or of a new answer if `id` is None."""
        self.id, self.last, self._is_resumed = id, None if id is None else -1, id is not None

    def drop_partial(self) -> None:
        """Discard the incomplete frame that a dropped connection left behind."""
        self._framing = SSEDecoder()

    def resume(self) -> None:
        """Prepare to read the remaining frames over a new connection."""
        self._is_resumed, self.is_pending = True, False


def _kept_id(response: Item) -> str | None:
    """Return the id of `response`, or None if the server does not keep the answer."""
    id = response.get("id")
    is_kept = isinstance(id, str) and _ID.fullmatch(id) and response.get("background") is not False
    return id if is_kept else None


class BackgroundAnswer:
    """An answer that the provider keeps. `decoder` reads it."""

    def __init__(self, adapter: HTTPBase, decoder: BackgroundDecoder) -> None:
        self._adapter = adapter
        self._decoder = decoder

    @property
    def id(self) -> str | None:
        return self._decoder.id

    @property
    def position(self) -> int | None:
        return self._decoder.last

    @property
    def is_running(self) -> bool:
        return self._decoder.id is not None and not self._decoder.is_over

    @property
    def can_resume(self) -> bool:
        return self._decoder.can_resume

    @property
    def is_pending(self) -> bool:
        return self._decoder.is_pending

    @property
    def place(self) -> str:
        return keyless_url(self._adapter.base_url)

    def reopen(self, id: str | None) -> None:
        self._decoder.reopen(id)

    def refuse(self) -> None:
        """Do nothing. A provider that refuses the request sends no id, so there is no answer to stop."""

    def drop_partial(self) -> None:
        self._decoder.drop_partial()

    def resume(self, call: Call) -> httpx.Request:
        """See https://platform.openai.com/docs/guides/background#streaming-a-background-response."""
        self._decoder.resume()
        last = self._decoder.last
        path = f"{self._path}?stream=true" + ("" if last in (None, -1) else f"&starting_after={last}")
        return self._adapter.get(path, call, headers=bearer(self._adapter, call))

    def stop(self, call: Call) -> httpx.Request:
        return self._adapter.post(f"{self._path}/cancel", {}, call, headers=bearer(self._adapter, call))

    @property
    def _path(self) -> str:
        return f"/responses/{quote(self._decoder.id or '', safe='')}"

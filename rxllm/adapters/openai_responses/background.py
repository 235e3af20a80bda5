"""Read the answer to a request with ``"background": True``, even if the connection drops.

The provider numbers the frames. The first connection reads every frame. If it receives a number that is not one more
than the previous number, or a part of the answer without a whole number, the answer cannot be resumed. A later
connection compares each number with `last`, which is the number of the last frame that was read:

=======================  ==============================================================================================
number of the frame      action
=======================  ==============================================================================================
at most `last`           Skip the frame, because it has already been read.
``last + 1``             Read the frame.
higher                   Fail with ``StreamError("truncated")``, because frames are missing.
no whole number          Read the frame if it is no part of the answer: it keeps the connection alive, or reports an
                         error. Otherwise, fail with ``StreamError("truncated")``, because the frame may repeat an
                         earlier one.
=======================  ==============================================================================================

The server may also send a JSON document instead of frames. If the answer in the document is not complete yet, the
provider is asked again. Any other document ends the answer.

The first id that arrives is the answer's id, and only this answer is asked for and stopped. If a later connection sends
an answer with another id, or one whose output does not begin with what has been read, the stream fails with
``StreamError("truncated")``.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from rxllm.adapters.http_base import HTTPBase
from rxllm.adapters.openai_chat import bearer
from rxllm.adapters.openai_responses.decoder import CONTENT, ENDED, NAMED, PINGS, ResponsesDecoder, is_pending
from rxllm.adapters.openai_responses.frames import Frame, Item, as_items, to_item
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

    `id` is None if the provider does not keep the answer. `last` is the number of the last frame that was read, and
    `progress` is the number of frames so far that were a part of the answer. `is_over` is True once the answer has
    ended. `is_pending` is True if the latest connection has only reported that the answer is not complete yet.
    """

    typed = msgspec.json.Decoder(NumberedFrame)
    id: str | None = None
    last: int | None = None
    progress = 0
    is_over = False
    is_pending = False
    _is_named = False
    _is_resumed = False
    _counts_by_one = True

    def read(self, kind: str, frame: Frame, data: bytes, /) -> None:
        assert isinstance(frame, NumberedFrame)
        if frame.type in NAMED or frame.type in ENDED:
            self._name(to_item(frame.response))
        if not self._is_new(frame):
            return
        super().read(kind, frame, data)
        # An error that has no number is about the connection, not the answer.
        is_failure = "error" in (kind, frame.type) and type(frame.sequence_number) is int
        self.is_over = self.is_over or frame.type in ENDED or is_failure
        self.progress += frame.type in CONTENT or frame.type in ENDED or "_call." in frame.type

    def read_whole(self, response: Item) -> None:
        was_named = self._is_named
        self._name(response)
        if self.id is not None and not was_named:
            self.reopen(self.id)
        self.is_pending = is_pending(response)
        super().read_whole(response)
        self.is_over = self.is_over or not self.is_pending

    def _complete(self, response: Item, beside: Item) -> None:
        items = as_items(response.get("output"))
        is_whole = beside is response and response.get("status") not in ("failed", "cancelled")
        if self._is_resumed and (items or is_whole) and not self._output.is_part_of(items):
            fault = "the rest belongs to another answer: its output does not begin with what has been read"
            raise StreamError("truncated", fault, provider=self.provider)
        super()._complete(response, beside)

    def _name(self, response: Item) -> None:
        """Take the answer's id from `response`, or check that it is the id of this answer."""
        if not self._is_named and response.get("id"):
            self.id, self._is_named = _kept_id(response), True
        elif self._is_resumed and (response.get("id") or self.id) != self.id:
            fault = f"the rest belongs to another answer: the id is {str(response['id'])[:80]!r}, not {self.id!r}"
            raise StreamError("truncated", fault, provider=self.provider)

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
        if over and self._is_resumed:
            return  # the marker ends the connection, and only the last frame ends the answer
        self.is_over = self.is_over or over
        super().end(over=over)

    def _is_new(self, frame: NumberedFrame) -> bool:
        number = frame.sequence_number
        if type(number) is not int or not 0 <= number < 1 << 63:
            return self._is_read_unnumbered(frame)
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

    def _is_read_unnumbered(self, frame: NumberedFrame) -> bool:
        if frame.type in PINGS or not frame.type.startswith("response."):
            return True
        if not self._is_resumed:
            self._counts_by_one = self._counts_by_one and frame.type in NAMED
            return True
        if frame.type in NAMED or self._was_read(frame.sequence_number):
            return False
        fault = f"a frame of the rest has no whole number: {frame.type[:80]}, {str(frame.sequence_number)[:80]}"
        raise StreamError("truncated", fault, provider=self.provider)

    def _was_read(self, number: Any) -> bool:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return self.last is not None and float(number) <= self.last
        return False

    @property
    def can_resume(self) -> bool:
        """Whether the next frames can be read over a new connection."""
        is_open = not (self.is_over or self.blocks.ended)
        return is_open and self.id is not None and self.last is not None and self._counts_by_one

    def reopen(self, id: str | None) -> None:
        """Prepare to read all the frames of the answer with this `id`, or of a new answer if `id` is None."""
        self.id, self.last = id, None if id is None else -1
        self._is_named = self._is_resumed = id is not None

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
    def progress(self) -> int:
        return self._decoder.progress

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

"""What every decoder of frames does alike, so that a provider's decoder only says what its frames mean.

1. `feed` and `close` turn the framing's ``StreamError`` into the end of the stream.
2. Once the stream has ended, no frame is read.
3. A frame that its type does not fit is odd. ``[DONE]`` ends the stream. JSON is read again and numbers as strings are
   forgiven; what still does not fit is a ``RawChunk``, and an error if its event is named so.
4. Other text is an error: the provider's if its event is named so, else ``malformed_event``. Blanks say nothing.

A subclass says `_read`, what a decoded frame means, and `_error_of`, the error of a payload; it may add to `_fail` and
to `_end`, by which every stream ends, and changes a rule for its wire in the method that has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from rxllm.events import Event
from rxllm.values import AdapterError, LLMError, StreamError
from rxllm.wire.blocks import Blocks
from rxllm.wire.sse import DONE, Frame

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Framing(Protocol):
    """Bytes to frames; both methods may raise ``StreamError``."""

    def feed(self, data: bytes) -> list[Frame]: ...

    def close(self) -> list[Frame]: ...


class FrameDecoder(ABC):
    """One response's bytes to events; `typed` decodes its frames, `raw` asks for a ``RawChunk`` of each."""

    def __init__(
        self, framing: Framing, blocks: Blocks, typed: msgspec.json.Decoder[Any], *, provider: str, raw: bool
    ) -> None:
        self.provider = provider
        self.raw = raw
        self._framing = framing
        self._blocks = blocks
        self._decode: Callable[[bytes], Any] = typed.decode
        self._shape: Any = typed.type
        self._whole = False  # an answer that was not streamed has come

    def feed(self, data: bytes) -> list[Event]:
        try:
            frames = self._framing.feed(data)
        except StreamError as error:
            self._fail(error)
        else:
            self._read_all(frames)
        return self._blocks.take()

    def close(self) -> list[Event]:
        try:
            frames = self._framing.close()
        except StreamError as error:
            self._fail(error)
        else:
            self._read_all(frames)
        self._end(over=self._whole)
        return self._blocks.take()

    @abstractmethod
    def _read(self, kind: str, said: Any, frame: bytes, /) -> None:
        """What a frame means: its event's name, what it decodes to, and its bytes."""

    @abstractmethod
    def _error_of(self, payload: Any) -> AdapterError:
        """The error that a frame says, as JSON or as text."""

    def _fail(self, error: LLMError) -> None:
        self._blocks.error(error)

    def _end(self, *, over: bool) -> None:
        self._blocks.end(over=over)

    def _read_all(self, frames: list[Frame]) -> None:
        for kind, frame in frames:
            if self._blocks.ended:
                return
            try:
                said = self._decode(frame)
            except UNREADABLE:
                self._read_odd(kind, frame)
                continue
            try:
                self._read(kind, said, frame)
            except UnicodeDecodeError:  # in a field that the typed decode has skipped
                self._read_plain(kind, frame.decode(errors="replace"))

    def _read_odd(self, kind: str, frame: bytes) -> None:
        text = frame.strip()
        if text == DONE:
            self._end(over=True)
            return
        try:
            data = msgspec.json.decode(text)
        except UNREADABLE:
            self._read_plain(kind, text.decode(errors="replace"))
        else:
            self._read_unfit(kind, data, text)

    def _read_unfit(self, kind: str, data: Any, frame: bytes) -> None:
        try:
            said = msgspec.convert(data, self._shape, strict=False)
        except msgspec.ValidationError:
            self._blocks.raw(raw_kind(kind), data)
            if kind == "error":
                self._fail(self._error_of(data))
        else:
            self._read(kind, said, frame)

    def _read_plain(self, kind: str, text: str) -> None:
        if kind == "error":
            self._fail(self._error_of(text))
        elif text:
            self._fail(malformed(text, self.provider))


def malformed(text: str, provider: str) -> StreamError:
    return StreamError("malformed_event", f"a frame that is not JSON: {text[:200]}", provider=provider)


def raw_kind(kind: str) -> str:
    # "usage" is the one kind that is folded, and a frame of that name is not what is meant.
    return "chunk" if kind in ("message", "usage") else kind

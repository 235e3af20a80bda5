"""What every decoder of frames does alike, so that a provider's decoder only says what its frames mean.

1. `feed` and `close` turn whatever is raised inside them into the end of the stream, after all that came before: the
   framing's ``StreamError``, and the ``malformed_event`` of a frame that the wire's own code cannot read.
2. Once the stream has ended, no frame is read.
3. A frame that its type does not fit is odd. ``[DONE]`` ends the stream, with an error if it comes first. JSON is read
   again, as Python's ``json`` reads it, and numbers as strings are forgiven; what still does not fit is a ``RawChunk``,
   and an error if its event is named so.
4. Other text is an error: the provider's if its event is named so, else ``malformed_event``. Blanks say nothing.
5. Half a character (``"\ud83d"``) that ends a string waits for the other half to begin one in a later frame.

A subclass says `_read`, what a decoded frame means, and `_error_of`, the error of a payload; it may add to `_fail` and
to `_end`, by which every stream ends, and changes a rule for its wire in the method that has it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from rxllm.events import Event
from rxllm.values import AdapterError, LLMError, StreamError
from rxllm.values._json import UNREADABLE, read_json
from rxllm.wire.blocks import Blocks
from rxllm.wire.sse import DONE, Frame

_HALVES = re.compile(
    rb'(?P<pair>\\ud[89ab]..\\ud[c-f]..)|(?P<high>\\ud[89ab]..(?="))|(?<=[^\\]")(?P<low>\\ud[c-f]..)|\\.',
    re.DOTALL | re.IGNORECASE,
)
"""Every escape of a JSON text, and among them the halves of surrogate pairs at the ends of strings."""


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
        self._half = b""  # the escape of half a character, whose other half has not come

    def feed(self, data: bytes) -> list[Event]:
        try:
            self._read_all(self._framing.feed(data))
        except Exception as error:
            self._break_off(error)
        return self._blocks.take()

    def close(self) -> list[Event]:
        try:
            self._read_all(self._framing.close())
            self._end(over=self._whole)
        except Exception as error:
            self._break_off(error)
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

    def _break_off(self, error: Exception) -> None:
        failure = error if isinstance(error, LLMError) else unreadable(error, self.provider)
        try:
            self._fail(failure)
        except Exception:  # what the wire adds cannot be read either
            self._blocks.error(failure)

    def _read_odd(self, kind: str, frame: bytes) -> None:
        text = self._joined(frame.strip())
        if text == DONE:
            self._read_done()
            return
        try:
            data = read_json(text)
        except UNREADABLE:
            self._read_plain(kind, text.decode(errors="replace"))
        else:
            self._read_unfit(kind, data, text)

    def _read_done(self) -> None:
        if self._blocks.started:
            self._end(over=True)
        else:
            self._fail(StreamError("truncated", "the stream ended before its first frame", provider=self.provider))

    def _joined(self, frame: bytes) -> bytes:
        """`frame` with the half that waits; a half at the end of one of its strings is taken out, and waits."""
        if b"\\ud" not in frame.lower():
            return frame
        half, self._half = self._half, b""

        def join(escape: re.Match[bytes]) -> bytes:
            match escape.lastgroup:
                case "high":
                    self._half = escape[0]
                    return b""
                case "low":
                    return half + escape[0]
                case _:
                    return escape[0]

        return _HALVES.sub(join, frame)

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


def unreadable(error: Exception, provider: str) -> StreamError:
    """The error of a frame on which the code that reads it has raised `error`."""
    message = f"a frame that cannot be read: {type(error).__name__}: {str(error)[:200]}"
    failure = StreamError("malformed_event", message, provider=provider)
    failure.__cause__ = error
    return failure


def malformed(text: str, provider: str) -> StreamError:
    return StreamError("malformed_event", f"a frame that is not JSON: {text[:200]}", provider=provider)


def raw_kind(kind: str) -> str:
    # "usage" is the one kind that is folded, and a frame of that name is not what is meant.
    return "chunk" if kind in ("message", "usage") else kind

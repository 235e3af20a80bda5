"""The base class for decoders. It handles malformed frames, so a subclass only has to interpret valid ones.

1. `feed` and `close` never raise. If an exception occurs, they return the events so far, and end the stream with an
   error. An ``LLMError``, such as the framing's ``StreamError``, is reported unchanged; any other exception becomes a
   ``malformed_event``.
2. ``[DONE]`` ends the stream, with an error if it is the first frame. Frames after the end are ignored.
3. JSON that does not match the expected type is parsed again with Python's ``json``, this time accepting strings as
   numbers. If it still does not match, it becomes a ``RawChunk``; if the event is named ``error``, the stream then ends
   with the error that the JSON describes.
4. A frame that is not JSON ends the stream with an error: the provider's own error if the event is named ``error``,
   otherwise a ``malformed_event``. Blank frames are skipped.
5. If a string ends with half a surrogate pair (``"\\ud83d"``), the decoder keeps that half until a string in a later
   frame begins with the other half.

A subclass reports the content of frames to ``self.blocks``. It must define `FrameDecoder.read`, which interprets a
decoded frame, and `FrameDecoder.error_of`, which returns the error that a payload describes. It may replace
`read_unfit` (rule 3) and `read_plain` (rule 4), and extend `fail` and `end`, one of which is called to end the stream.
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from rxllm.events import Event
from rxllm.values import AdapterError, LLMError, StreamError
from rxllm.values.json_text import UNREADABLE, read_json
from rxllm.wire.event_order import Blocks
from rxllm.wire.framing import DONE, Frame

_HALVES = re.compile(
    rb'(?P<pair>\\ud[89ab]..\\ud[c-f]..)|(?P<high>\\ud[89ab]..(?="))|(?<=[^\\]")(?P<low>\\ud[c-f]..)|\\.',
    re.DOTALL | re.IGNORECASE,
)
"""Matches JSON escapes. If a surrogate pair is split, one string ends with `high` and a later one begins with `low`."""


class Framing(Protocol):
    """Splits bytes into frames. Both methods can raise ``StreamError``."""

    def feed(self, data: bytes) -> list[Frame]: ...

    def close(self) -> list[Frame]: ...


class FrameDecoder(ABC):
    """Turns the bytes of one response into events.

    >>> from rxllm.wire import NDJSONFraming  # or SSEDecoder
    >>> class Words(FrameDecoder):
    ...     def read(self, kind, payload, frame):
    ...         self.blocks.text(payload.get("word", ""))
    ...         if payload.get("last"):
    ...             self.end(over=True)
    ...     def error_of(self, payload):
    ...         return AdapterError("unknown", str(payload), provider=self.provider)
    >>> decoder = Words(NDJSONFraming(), Blocks(), msgspec.json.Decoder(), provider="words", raw=False)
    >>> [type(event).__name__ for event in decoder.feed(b'{"word": "Hi"}\\n{"last": true}\\n')]
    ['MessageStarted', 'TextDelta', 'TextCompleted', 'MessageCompleted']

    `framing` splits the bytes into frames, `typed` decodes each frame, and `blocks` turns what the subclass reports
    into events. `provider` is the provider's name, for errors. If `raw` is true, the subclass should report a
    ``RawChunk`` for each frame.
    """

    def __init__(
        self, framing: Framing, blocks: Blocks, typed: msgspec.json.Decoder[Any], *, provider: str, raw: bool
    ) -> None:
        self.provider = provider
        self.raw = raw
        self._framing = framing
        self.blocks = blocks
        self._decode: Callable[[bytes], Any] = typed.decode
        self._shape: Any = typed.type
        self._whole = False  # True once a response that was not streamed has arrived.
        self._half = b""  # The first half of an escaped surrogate pair, until the second arrives.

    def feed(self, data: bytes) -> list[Event]:
        try:
            self._read_all(self._framing.feed(data))
        except Exception as error:
            self._break_off(error)
        return self.blocks.take()

    def close(self) -> list[Event]:
        try:
            self._read_all(self._framing.close())
            self.end(over=self._whole)
        except Exception as error:
            self._break_off(error)
        return self.blocks.take()

    @abstractmethod
    def read(self, kind: str, payload: Any, frame: bytes, /) -> None:
        """Interpret a frame and report its content to `blocks`.

        `kind` is the name of the frame's event, `payload` its decoded data, and `frame` its bytes.
        """

    @abstractmethod
    def error_of(self, payload: Any) -> AdapterError:
        """Return the error described by `payload`, a frame's decoded JSON or text."""

    def fail(self, error: LLMError) -> None:
        """End the stream with `error`.

        A subclass with a buffer should extend this method to report the buffered content first.
        """
        self.blocks.error(error)

    def end(self, *, over: bool) -> None:
        """End the stream. `over` is true if the end marker has arrived.

        Like `fail`, this method may be extended.
        """
        self.blocks.end(over=over)

    def _read_all(self, frames: list[Frame]) -> None:
        for kind, frame in frames:
            if self.blocks.ended:
                return
            try:
                payload = self._decode(frame)
            except UNREADABLE:
                self._read_odd(kind, frame)
                continue
            try:
                self.read(kind, payload, frame)
            except UnicodeDecodeError:  # invalid text in a field that the typed decoder skipped
                self.read_plain(kind, frame.decode(errors="replace"))

    def _break_off(self, error: Exception) -> None:
        failure = error if isinstance(error, LLMError) else unreadable(error, self.provider)
        try:
            self.fail(failure)
        except Exception:  # the subclass's `fail` raised as well
            self.blocks.error(failure)

    def _read_odd(self, kind: str, frame: bytes) -> None:
        text = self._joined(frame.strip())
        if text == DONE and self.blocks.started:
            self.end(over=True)
        elif text == DONE:
            self.fail(StreamError("truncated", "the stream ended before its first frame", provider=self.provider))
        else:
            try:
                data = read_json(text)
            except UNREADABLE:
                self.read_plain(kind, text.decode(errors="replace"))
            else:
                self.read_unfit(kind, data, text)

    def _joined(self, frame: bytes) -> bytes:
        """Join surrogate pairs that are split between frames.

        A first half at the end of a string is held back until the second half arrives.
        """
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

    def read_unfit(self, kind: str, data: Any, frame: bytes) -> None:
        """Handle a frame whose JSON does not match the expected type."""
        try:
            payload = msgspec.convert(data, self._shape, strict=False)
        except msgspec.ValidationError:
            self.blocks.raw(raw_kind(kind), data)
            if kind == "error":
                self.fail(self.error_of(data))
        else:
            self.read(kind, payload, frame)

    def read_plain(self, kind: str, text: str) -> None:
        """Handle a frame that is not JSON."""
        if kind == "error":
            self.fail(self.error_of(text))
        elif text:
            fault = f"a frame is not JSON: {text[:200]}"
            self.fail(StreamError("malformed_event", fault, provider=self.provider))


def unreadable(error: Exception, provider: str) -> StreamError:
    """Convert `error`, which was raised while reading a frame, to a ``StreamError``."""
    message = f"a frame cannot be read: {type(error).__name__}: {str(error)[:200]}"
    failure = StreamError("malformed_event", message, provider=provider)
    failure.__cause__ = error
    return failure


def raw_kind(kind: str) -> str:
    """Return a ``RawChunk``'s kind. ``"usage"`` is replaced, because rxllm would read such a chunk as token counts."""
    return "chunk" if kind in ("message", "usage") else kind


def decode_base64(text: str) -> bytes:
    """Return the bytes that `text` encodes as base64, or empty bytes if it is malformed."""
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""

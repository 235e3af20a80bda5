"""The base class of decoders: it reads frames, even faulty ones, so that a provider's decoder only interprets them.

1. `feed` and `close` turn every exception into the end of the stream, after the events before it: the framing's
   ``StreamError``, or a ``malformed_event`` if the wire's own code cannot read a frame.
2. Once the stream has ended, no more frames are read.
3. Some frames do not fit the type. ``[DONE]`` ends the stream, with an error if it is the first frame. JSON is read
   again, as Python's ``json`` reads it, and numbers may be strings; a frame that still does not fit becomes a
   ``RawChunk``, and an error too if its event is named ``error``.
4. Text that is not JSON is an error: the provider's if its event is named ``error``, otherwise ``malformed_event``.
   Blank frames are skipped.
5. Half a surrogate pair (``"\\ud83d"``) at the end of a string waits for the other half at the start of a string in a
   later frame.

A subclass reports to ``self.blocks``. It defines `FrameDecoder.read`, which interprets a decoded frame, and
`FrameDecoder.error_of`, which returns the error in a payload. It may extend `fail` and `end`, one of which ends every
stream, and override `read_unfit` and `read_plain` (rules 3 and 4) where its wire differs.
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
"""Every escape in a JSON text; the groups are halves of surrogate pairs at the ends and starts of strings."""


class Framing(Protocol):
    """Splits bytes into frames; both methods may raise ``StreamError``."""

    def feed(self, data: bytes) -> list[Frame]: ...

    def close(self) -> list[Frame]: ...


class FrameDecoder(ABC):
    """Turns the bytes of one response into events; `typed` decodes a frame, `raw` adds a ``RawChunk`` for each.

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

    `blocks` turns reports into ordered events. `provider` is the provider's name in the decoder's errors.
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
        self._whole = False  # whether a response that was not streamed has arrived
        self._half = b""  # the first half of a surrogate pair, as its escape, while the other half is missing

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
        """Interpret a frame, and report to `blocks`; `kind` is the name of its event, `payload` its decoded data."""

    @abstractmethod
    def error_of(self, payload: Any) -> AdapterError:
        """Return the error in a frame's payload, which is JSON or text."""

    def fail(self, error: LLMError) -> None:
        """End the stream with `error`. A subclass that keeps something back extends it to report that first."""
        self.blocks.error(error)

    def end(self, *, over: bool) -> None:
        """End the stream; `over` is whether the wire's end marker was seen.

        Subclasses may extend this method, just as they may extend `fail`.
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
            except UnicodeDecodeError:  # the typed decoder skipped the field with the malformed text
                self.read_plain(kind, frame.decode(errors="replace"))

    def _break_off(self, error: Exception) -> None:
        failure = error if isinstance(error, LLMError) else unreadable(error, self.provider)
        try:
            self.fail(failure)
        except Exception:  # the subclass's own code fails too
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
        """Return `frame` with the pending half in place. A half at a string's end is removed and becomes pending."""
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
        """Report a frame whose JSON does not fit the type."""
        try:
            payload = msgspec.convert(data, self._shape, strict=False)
        except msgspec.ValidationError:
            self.blocks.raw(raw_kind(kind), data)
            if kind == "error":
                self.fail(self.error_of(data))
        else:
            self.read(kind, payload, frame)

    def read_plain(self, kind: str, text: str) -> None:
        """Report a frame that is not JSON."""
        if kind == "error":
            self.fail(self.error_of(text))
        elif text:
            fault = f"a frame is not JSON: {text[:200]}"
            self.fail(StreamError("malformed_event", fault, provider=self.provider))


def unreadable(error: Exception, provider: str) -> StreamError:
    """Return the error for a frame whose reader raised `error`."""
    message = f"a frame cannot be read: {type(error).__name__}: {str(error)[:200]}"
    failure = StreamError("malformed_event", message, provider=provider)
    failure.__cause__ = error
    return failure


def raw_kind(kind: str) -> str:
    """Return the kind of a frame's raw chunk. It is never ``"usage"``, which the fold reads as counters."""
    return "chunk" if kind in ("message", "usage") else kind


def decode_base64(text: str) -> bytes:
    """Return the bytes of base64 `text`; no bytes if it is malformed."""
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""

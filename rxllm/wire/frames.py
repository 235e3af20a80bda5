"""The base class for decoders, which handles malformed frames.

1. `feed` and `close` catch any ``Exception``. The stream then ends with an error, after any events decoded so far. An
   ``LLMError`` is reported unchanged. Any other exception becomes a ``malformed_event``.
2. ``[DONE]`` ends the stream, and later frames are ignored. If it is the first frame, that is an error.
3. If JSON does not have the expected type, it is read again, field by field (see `lenient`). What does not fit is left
   out, and logged once. If it is content (`FrameDecoder.content`), the stream then ends with a ``malformed_event``. If
   nothing of the frame fits, it becomes a ``RawChunk``. If the event is named ``error``, the stream then ends with the
   error in the data.
4. If a frame is not JSON, the stream ends with an error. This is the provider's own error if the event is named
   ``error``, and a ``malformed_event`` otherwise. Blank frames are skipped.
5. If a string ends with a lone surrogate (``"\\ud83d"``), the surrogate is held back until a later frame brings its
   other half.

A subclass reports to ``self.blocks``. It must define `FrameDecoder.read` and `FrameDecoder.error_of`. It may replace
`read_unfit` (rule 3) and `read_plain` (rule 4). It may extend `fail` and `end`. Every stream ends with a call to one of
these two.
"""

from __future__ import annotations

import base64
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec

from rxllm.events import Event
from rxllm.values import AdapterError, LLMError, StreamError
from rxllm.values.json_text import UNREADABLE, read_json
from rxllm.wire.event_order import Blocks
from rxllm.wire.framing import DONE, Frame
from rxllm.wire.lenient import Odd, read_leniently

log = logging.getLogger("rxllm")

_HALVES = re.compile(
    rb'(?P<pair>\\ud[89ab]..\\ud[c-f]..)|(?P<high>\\ud[89ab]..(?="))|(?<=[^\\]")(?P<low>\\ud[c-f]..)|\\.',
    re.DOTALL | re.IGNORECASE,
)
"""Matches escapes in JSON text.

If a surrogate pair is split between two strings, `high` matches its first half, and `low` matches its second half.
"""


class Framing(Protocol):
    """Splits bytes into frames. Both methods may raise ``StreamError``."""

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

    `framing` splits the bytes into frames. `typed` decodes each frame. `blocks` creates the events. `provider` is the
    provider's name, which is passed to errors. If `raw` is true, the subclass should report a ``RawChunk`` for each
    frame.
    """

    content: ClassVar[frozenset[str]] = frozenset()
    """The names of the fields without which an answer is another one: its text, its calls, and what a frame is.

    If one of them cannot be read, the stream ends with an error, where it would otherwise look complete.
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
        self._whole = False
        self._reported: set[tuple[str, ...]] = set()  # the places of values that were left out
        self._half = b""  # an escaped lone surrogate, whose other half has not arrived yet

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
        """Report the content of a frame to `blocks`.

        `kind` is the name of the event, `payload` is its decoded data, and `frame` contains its bytes.
        """

    @abstractmethod
    def error_of(self, payload: Any) -> AdapterError:
        """Return the error that a frame describes. `payload` is the frame's decoded JSON, or its text."""

    def fail(self, error: LLMError) -> None:
        """End the stream with `error`.

        A subclass that buffers content should extend this method, and report the buffered content first.
        """
        self.blocks.error(error)

    def end(self, *, over: bool) -> None:
        """End the stream. `over` is true if the provider's end marker has arrived.

        A subclass that buffers content should extend this method, as well as `fail`, and report the buffered content
        first.
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
            except UnicodeDecodeError:  # there are invalid bytes in a field that the typed decoder skipped
                self.read_plain(kind, frame.decode(errors="replace"))

    def _break_off(self, error: Exception) -> None:
        failure = error if isinstance(error, LLMError) else unreadable(error, self.provider)
        try:
            self.fail(failure)
        except Exception:  # raised by the subclass's `fail`
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
        """Return `frame` with split surrogate pairs joined. The first half of a pair is held back for a later frame."""
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
        """Read JSON data that does not have the expected type: as much of it as fits."""
        payload, odd = read_leniently(data, self._shape)
        for each in odd:
            self.report(each)
        if payload is None:
            self.blocks.raw(raw_kind(kind), data)
            if kind == "error":
                self.fail(self.error_of(data))
        else:
            self.read(kind, payload, frame)
        lost = [each for each in odd if each.value and each.name in self.content]
        if lost and not self.blocks.ended:
            self.fail(StreamError("malformed_event", f"{lost[0]}", provider=self.provider))

    def report(self, odd: Odd) -> None:
        """Log that a value is left out, once for each place."""
        place = tuple(step for step in odd.path if isinstance(step, str))
        if odd.value and place not in self._reported:
            self._reported.add(place)
            log.warning("%s: a value is left out, which cannot be read: %s", self.provider, odd)

    def read_plain(self, kind: str, text: str) -> None:
        """Handle a frame that is not JSON."""
        if kind == "error":
            self.fail(self.error_of(text))
        elif text:
            fault = f"a frame is not JSON: {text[:200]}"
            self.fail(StreamError("malformed_event", fault, provider=self.provider))


def unreadable(error: Exception, provider: str) -> StreamError:
    """Return a ``StreamError`` for an exception that was raised while a frame was read."""
    message = f"a frame cannot be read: {type(error).__name__}: {str(error)[:200]}"
    failure = StreamError("malformed_event", message, provider=provider)
    failure.__cause__ = error
    return failure


def raw_kind(kind: str) -> str:
    """Return the kind of the ``RawChunk`` for an event named `kind`. The result must never be ``"usage"``."""
    return "chunk" if kind in ("message", "usage") else kind


def decode_base64(text: str) -> bytes:
    """Decode base64 text. If it is malformed, return empty bytes."""
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""

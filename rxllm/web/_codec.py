"""`encode`, `decode`, and rxllm's own protocol.

rxllm's own protocol sends every event as JSON (see ``rxllm.serializer``). The last frame is ``{"type": "end"}``.
If this frame is missing, the stream was cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from reactivex import Observable

from rxllm import ErrorEvent, Event, Stream, StreamError
from rxllm import operators as ops
from rxllm.values.argument_checks import check
from rxllm.web import _ag_ui_decoder, _ag_ui_encoder, _ui_stream
from rxllm.web._frames import Frame, all_of, event_data, event_of, malformed


class Encoder(Protocol):
    """Turns events into frames. `END` is sent after the last frame. `HEADERS` are added to the HTTP response."""

    END: ClassVar[bytes]
    HEADERS: ClassVar[dict[str, str]]

    def feed(self, event: Event, /) -> Iterable[Frame]: ...

    def close(self) -> Iterable[Frame]: ...


class Decoder(Protocol):
    """Turns frames into events.

    Raises ``StreamError("malformed_event")`` for a malformed frame. If the stream was cut off, the last event is
    ``ErrorEvent(StreamError("truncated"))``.
    """

    def feed(self, frame: Frame, /) -> Iterable[Event]: ...

    def close(self) -> Iterable[Event]: ...


def encode(protocol: str, **options: Any) -> Callable[[Observable[Event]], Stream[Frame]]:
    """Turn a stream of events into frames of `protocol`.

    >>> import rxllm
    >>> hello = rxllm.stream_generate(rxllm.Fake("Hello"), "Hi").pipe(ops.only(rxllm.TextDelta))
    >>> list(hello.pipe(encode("rxllm")))
    [{'type': 'text_delta', 'delta': 'Hello', 'id': 'block_0'}, {'type': 'end'}]

    If the stream fails, its error becomes a frame. `encode` hides nothing from the client, so put `for_client` before
    it. The `options` are passed to the protocol's encoder. Raises ``ValidationError("invalid_option")`` for an unknown
    `protocol`. Raises ``TypeError`` for an unknown option.
    """
    encoder(protocol, **options)  # an invalid argument raises an error now, not on subscription

    def operator(source: Observable[Event]) -> Stream[Frame]:
        return source.pipe(ops.errors_as_events(), ops.lift(lambda: encoder(protocol, **options)))

    return operator


def decode(protocol: str) -> Callable[[Observable[Frame]], Stream[Event]]:
    """Turn frames of `protocol` back into events.

    >>> from reactivex import of
    >>> list(of({"type": "text_delta", "delta": "Hello"}, {"type": "end"}).pipe(decode("rxllm")))
    [TextDelta(delta='Hello', id=None)]

    Raw chunks survive only in "rxllm". Frames of "ag-ui" can be from any server, but frames of "ui" must be from rxllm.
    Raises ``ValidationError("invalid_option")`` for an unknown `protocol`.
    """
    return ops.lift(_classes(protocol)[1])


def encoder(protocol: str, **options: Any) -> Encoder:
    """Return an encoder for `protocol`.

    Raises the same errors as `encode`.
    """
    return _classes(protocol)[0](**options)


def _classes(protocol: str) -> tuple[type[Any], type[Any]]:
    check("protocol", protocol, protocol in [*PROTOCOLS], f"one of {', '.join(map(repr, PROTOCOLS))}")
    return PROTOCOLS[protocol]


class _OwnEncoder:
    END: ClassVar[bytes] = b""
    HEADERS: ClassVar[dict[str, str]] = {}

    def feed(self, event: Event) -> list[Frame]:
        return [event_data(event)]

    def close(self) -> list[Frame]:
        return [{"type": "end"}]


class _OwnDecoder:
    def __init__(self) -> None:
        self._is_ended = False

    def feed(self, frame: Frame) -> list[Event]:
        if self._is_ended:
            raise malformed(frame)
        if frame.get("type") == "end":
            self._is_ended = True
            return []
        return all_of(frame, map(event_of, [frame]))

    def close(self) -> list[Event]:
        return [] if self._is_ended else [ErrorEvent(StreamError("truncated"))]


PROTOCOLS: dict[str, tuple[type[Any], type[Any]]] = {
    "rxllm": (_OwnEncoder, _OwnDecoder),
    "ui": (_ui_stream.Encoder, _ui_stream.Decoder),
    "ag-ui": (_ag_ui_encoder.Encoder, _ag_ui_decoder.Decoder),
}

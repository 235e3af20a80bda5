"""What the protocols share: their encoders and decoders by name, and frames as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, ClassVar, Protocol, cast, overload

import msgspec
from reactivex import Observable

from rxllm import Event, Stream, StreamError, ValidationError, serializer
from rxllm import operators as ops
from rxllm.values.argument_checks import check
from rxllm.wire import SSEDecoder

Frame = dict[str, Any]
"""One message of a protocol: a JSON object."""

PROTOCOLS = {"rxllm": "_own", "ui": "_ui_stream", "ag-ui": "_ag_ui"}
"""The modules of the protocols; each has an `Encoder` and a `Decoder`."""


class Encoder(Protocol):
    """Events to frames. `END` is what follows the last frame on the wire, `HEADERS` are those of the response."""

    END: ClassVar[bytes]
    HEADERS: ClassVar[dict[str, str]]

    def feed(self, event: Event, /) -> Iterable[Frame]: ...

    def close(self) -> Iterable[Frame]: ...


class Decoder(Protocol):
    """Frames to events. A stream that is cut off ends with ``ErrorEvent(StreamError("truncated"))``.

    A malformed frame raises ``StreamError("malformed_event")``.
    """

    def feed(self, frame: Frame, /) -> Iterable[Event]: ...

    def close(self) -> Iterable[Event]: ...


def encoder(protocol: str, **options: Any) -> Encoder:
    """Return a fresh encoder, whose class takes `options`. Raises ``ValidationError`` for an unknown `protocol`."""
    return _module(protocol).Encoder(**options)


def encode(protocol: str, **options: Any) -> Callable[[Observable[Event]], Stream[Frame]]:
    """Emit the events of a stream as frames of `protocol`; an error becomes a frame too, and the stream completes.

    >>> import rxllm
    >>> hello = rxllm.stream_generate(rxllm.Fake("Hello"), "Hi").pipe(ops.only(rxllm.TextDelta))
    >>> list(hello.pipe(encode("rxllm")))
    [{'type': 'text_delta', 'delta': 'Hello', 'id': 'block_0'}, {'type': 'end'}]

    Put `for_client` before it: frames hold all that the events hold. `options` are those of the protocol's `Encoder`.
    Raises ``ValidationError("invalid_option")`` for an unknown `protocol`, ``TypeError`` for an unknown option.
    """
    encoder(protocol, **options)  # wrong arguments raise here

    def operator(source: Observable[Event]) -> Stream[Frame]:
        return source.pipe(ops.errors_as_events(), ops.lift(lambda: encoder(protocol, **options)))

    return operator


def decode(protocol: str) -> Callable[[Observable[Frame]], Stream[Event]]:
    """Emit frames of `protocol` as the events that were encoded, but for what the protocol cannot say.

    >>> from reactivex import of
    >>> list(of({"type": "text_delta", "delta": "Hello"}, {"type": "end"}).pipe(decode("rxllm")))
    [TextDelta(delta='Hello', id=None)]

    Raises ``ValidationError("invalid_option")`` for an unknown `protocol`.
    """
    return ops.lift(_module(protocol).Decoder)


def sse(frame: Frame) -> bytes:
    r"""Return `frame` as a server-sent event.

    >>> sse({"type": "end"})
    b'data: {"type":"end"}\n\n'
    """
    return b"data: %b\n\n" % frame_json(frame)


def frame_json(frame: Frame) -> bytes:
    """Return `frame` as JSON."""
    try:
        return msgspec.json.encode(frame)
    except UnicodeEncodeError:  # half a surrogate pair must be escaped
        return json.dumps(frame).encode()


@overload
def from_sse(chunks: bytes | Iterable[bytes]) -> Iterator[Frame]: ...
@overload
def from_sse(chunks: AsyncIterable[bytes]) -> AsyncIterator[Frame]: ...
def from_sse(chunks: bytes | Iterable[bytes] | AsyncIterable[bytes]) -> Iterator[Frame] | AsyncIterator[Frame]:
    r"""Return the frames of server-sent events, whose bytes may be cut anywhere. ``[DONE]`` is left out.

    >>> list(from_sse(b'data: {"type":"end"}\n\n'))
    [{'type': 'end'}]

    For asynchronous chunks, such as httpx's ``response.aiter_bytes()``, write ``async for frame in from_sse(...)``.
    Raises ``StreamError``: ``malformed_event`` for what is not a JSON object, ``oversized_frame``.
    """
    if isinstance(chunks, AsyncIterable):
        return _later(chunks)
    check("chunks", chunks, not isinstance(chunks, str), "bytes, such as response.content or response.iter_bytes()")
    return _now((chunks,) if isinstance(chunks, bytes) else chunks)


def _now(chunks: Iterable[bytes]) -> Iterator[Frame]:
    lines = SSEDecoder()
    for chunk in chunks:
        yield from _frames(lines.feed(chunk))
    yield from _frames(lines.close())


async def _later(chunks: AsyncIterable[bytes]) -> AsyncIterator[Frame]:
    lines = SSEDecoder()
    async for chunk in chunks:
        for frame in _frames(lines.feed(chunk)):
            yield frame
    for frame in _frames(lines.close()):
        yield frame


def _frames(events: Iterable[tuple[str, bytes]]) -> Iterator[Frame]:
    for _, data in events:
        if data == b"[DONE]":
            continue
        try:
            frame = json.loads(data)
        except (ValueError, RecursionError):
            frame = None
        if not isinstance(frame, dict):
            raise malformed(data)
        yield cast(Frame, frame)


def event_data(event: Event) -> Frame:
    """Return `event` as data without a version: a reader takes the current one."""
    return {name: value for name, value in serializer.to_data(event).items() if name != "v"}


def event_of(data: Any) -> Event:
    """Return the event that `event_data` returned. Raises for anything else."""
    event: Any = serializer.from_data(data)
    if not isinstance(event, Event):
        raise TypeError("not an event")
    return event


def text_of(frame: Frame, name: str) -> str:
    """Return a field that is text. Raises ``LookupError`` or ``TypeError`` if it is not there, or none."""
    text: Any = frame[name]
    if not isinstance(text, str):
        raise TypeError(f"{name} is not text")
    return text


def all_of(frame: Frame, events: Iterable[Event]) -> list[Event]:
    """Return the `events` that a decoder reads in `frame`. Raises ``StreamError("malformed_event")`` for any fault."""
    try:
        return list(events)
    except (ValidationError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise malformed(frame) from None


class Block(msgspec.Struct):
    """An open block of text or thinking: its id, the name that its frames have, and its text so far."""

    kind: str
    id: str | None
    name: str
    role: str = "assistant"
    pieces: list[str] = []
    signature: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def open_block(blocks: dict[tuple[str, str], Block], kind: str, id: str | None) -> Block | None:
    """Return the open block that `id` means, see `rxllm.events`."""
    return next((block for block in reversed(blocks.values()) if block.kind == kind and id in (None, block.id)), None)


def rest(text: str, so_far: str) -> str:
    """Return what of `text` was left out of the deltas, which have told it `so_far`."""
    return text[len(so_far) :] if text.startswith(so_far) else ""


def malformed(frame: object) -> StreamError:
    """Return the error for a `frame` that its protocol does not allow."""
    return StreamError("malformed_event", f"not a frame of this protocol: {str(frame)[:80]}")


def _module(protocol: str) -> Any:
    check("protocol", protocol, protocol in [*PROTOCOLS], f"one of {', '.join(map(repr, PROTOCOLS))}")
    return import_module(f"rxllm.web.{PROTOCOLS[protocol]}")

"""Protocol frames, and helpers for encoders and decoders."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from hashlib import sha256
from typing import Any, cast, overload

import msgspec

from rxllm import Event, StreamError, ToolCall, ValidationError, serializer
from rxllm.events import ToolApprovalRequested
from rxllm.values.argument_checks import check
from rxllm.wire import SSEDecoder

Frame = dict[str, Any]
"""A message in one of the web protocols, as a JSON object."""


def approval_id(call: ToolCall) -> str:
    """Return the id of the request to approve `call`: the call's id, with a digest of its name and its arguments.

    >>> approval_id(ToolCall("c1", "pay", {"amount": 5}))
    'c1:c748de091d0e09a602609d626cef14f8'

    An approval with this id approves only what the user has seen, even if a model uses the call's id again.
    """
    arguments = event_data(ToolApprovalRequested(call.id, call.name, call.arguments))["arguments"]
    text = json.dumps([call.name, arguments], sort_keys=True)
    return f"{call.id}:{sha256(text.encode()).hexdigest()[:32]}"


def sse(frame: Frame) -> bytes:
    r"""Return `frame` as a server-sent event.

    >>> sse({"type": "end"})
    b'data: {"type":"end"}\n\n'
    """
    return b"data: %b\n\n" % frame_json(frame)


def frame_json(frame: Frame) -> bytes:
    try:
        return msgspec.json.encode(frame)
    except UnicodeEncodeError:  # json.dumps escapes lone surrogates
        return json.dumps(frame).encode()


@overload
def from_sse(chunks: bytes | Iterable[bytes]) -> Iterator[Frame]: ...
@overload
def from_sse(chunks: AsyncIterable[bytes]) -> AsyncIterator[Frame]: ...
def from_sse(chunks: bytes | Iterable[bytes] | AsyncIterable[bytes]) -> Iterator[Frame] | AsyncIterator[Frame]:
    r"""Yield the frames in a stream of server-sent events.

    >>> list(from_sse(b'data: {"type":"end"}\n\n'))
    [{'type': 'end'}]

    An event can span several chunks. ``[DONE]`` is skipped. For asynchronous chunks, such as httpx's
    ``response.aiter_bytes()``, write ``async for frame in from_sse(...)``. Raises ``StreamError("malformed_event")`` if
    an event is not a JSON object. Raises ``StreamError("oversized_frame")`` if an event is too long.
    """
    if isinstance(chunks, AsyncIterable):
        return _async_frames(chunks)
    check("chunks", chunks, not isinstance(chunks, str), "bytes, such as response.content or response.iter_bytes()")
    return _sync_frames((chunks,) if isinstance(chunks, bytes) else chunks)


def _sync_frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    lines = SSEDecoder()
    for chunk in chunks:
        yield from _frames(lines.feed(chunk))
    yield from _frames(lines.close())


async def _async_frames(chunks: AsyncIterable[bytes]) -> AsyncIterator[Frame]:
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
    """Return `event` as data, without a format version. `event_of` assumes the current version."""
    return {name: value for name, value in serializer.to_data(event).items() if name != "v"}


def event_of(data: Any) -> Event:
    """Rebuild an event from data that `event_data` returned. Any other `data` raises an exception."""
    event: Any = serializer.from_data(data)
    if not isinstance(event, Event):
        raise TypeError("not an event")
    return event


def text_of(frame: Frame, name: str) -> str:
    """Return the text in the field `name`.

    Raises ``LookupError`` if there is no such field. Raises ``TypeError`` if the field is not text.
    """
    text: Any = frame[name]
    if not isinstance(text, str):
        raise TypeError(f"{name} is not text")
    return text


def all_of(frame: Frame, events: Iterable[Event]) -> list[Event]:
    """Return `events`, the events in `frame`, as a list.

    `events` may be a generator, which decodes `frame` only while the list is built. Raises
    ``StreamError("malformed_event")`` if `frame` is invalid.
    """
    try:
        return list(events)
    except (ValidationError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise malformed(frame) from None


class Block(msgspec.Struct):
    """An open block. `name` identifies the block in frames."""

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
    """Return the latest open block with this kind and `id`. If `id` is None, any id matches."""
    return next((block for block in reversed(blocks.values()) if block.kind == kind and id in (None, block.id)), None)


def rest(text: str, so_far: str) -> str:
    """Return the part of `text` that follows `so_far`, or "" if `text` does not begin with `so_far`."""
    return text[len(so_far) :] if text.startswith(so_far) else ""


def malformed(frame: object) -> StreamError:
    return StreamError("malformed_event", f"not a frame of this protocol: {str(frame)[:80]}")

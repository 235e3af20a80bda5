"""The rules of what lies under an adapter's events: the chunks that it gives, the bytes that it is given."""

from __future__ import annotations

import inspect

from rxllm.chunks import ChunkFeeder, StreamChunk, validate
from rxllm.events import ErrorEvent, Event, RawChunk
from rxllm.runtime import from_async_iter
from rxllm.testing._adapter_run import Tried, keep_the_law
from rxllm.testing._chunks import chunkings
from rxllm.testing._observe import Told
from rxllm.testing._rule_table import clip, expect, expect_same
from rxllm.values import ProviderPart, StreamError, ValidationError

JUNK = (
    b"",
    b"\n\n",
    b"\xff\xfe\x00",
    b'data: {}\n\ndata: [1, null]\n\ndata: {"error": {"message": "no"}}\n\n',
    b"event: error\ndata: no\n\n",
    b'{"a": 1}\n[{"b": [{}]}',
    b'data: {"choices": [{"delta": {"content": 7}}]}\r\n\r\ndata: [DONE]',
)
"""What a decoder may meet when it talks to the wrong server."""


def understood(tried: Tried) -> None:
    function = tried.engine.adapter
    if not inspect.isasyncgenfunction(function):
        return
    request, call = tried.asked
    items = tried.hear(from_async_iter(lambda: function(request, call))).events
    feeder = ChunkFeeder(request.messages)
    for chunk in (item for item in items if isinstance(item, StreamChunk)):
        try:
            validate(chunk)
        except ValidationError as error:
            raise AssertionError(f"{chunk!r} is none: {error}") from error
        for event in feeder.feed(chunk):
            expect(_is_meant(event) or _is_raw(chunk), f"{chunk!r} became no more than {clip(event)}")
    for event in feeder.close():
        expect(_is_meant(event), f"there was no call for {event!r}")


def _is_meant(event: Event) -> bool:
    return not isinstance(event, RawChunk) or isinstance(event.data, ProviderPart)


def _is_raw(chunk: StreamChunk) -> bool:
    """Whether it is raw by its author's will."""
    return "stream_only?" in chunk.metadata or (chunk.type, *chunk.metadata) == ("meta", "provider_event")


def decoder(tried: Tried) -> None:
    if not hasattr(tried.engine.adapter, "decoder"):
        return
    for junk in JUNK:
        keep_the_law(Told(tried.decode([junk])))
    match tried.decode([]):
        case [*_, ErrorEvent(error=StreamError(reason="truncated"))]:
            pass
        case events:
            raise AssertionError(f"of nothing at all it made {clip(events)}, and not the error truncated")


def however_cut(tried: Tried) -> None:
    if not hasattr(tried.engine.adapter, "decoder"):
        return
    for junk in JUNK:
        whole = tried.decode([junk])
        for chunks in chunkings(junk):
            expect_same(f"what it made of {clip(chunks)}", whole, tried.decode(chunks))

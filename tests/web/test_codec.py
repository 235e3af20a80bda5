"""Each protocol decodes what it has encoded, wherever the bytes are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import from_iterable

import rxllm
from rxllm import ErrorEvent, Event, Fake, Stream, StreamCollector, StreamError, TextDelta, Thread, ValidationError, web
from rxllm import operators as ops
from rxllm.testing import strategies
from tests.examples import examples
from tests.laws import scripts
from tests.web.mutations import hostile
from tests.web.streams import DECODERS, of_recordings, of_script

law = settings(deadline=None, max_examples=examples(60))
protocols = pytest.mark.parametrize("protocol", ["rxllm", "ui", "ag-ui"])


def client(events: list[Event]) -> list[Event]:
    return list(Stream.of(from_iterable(events)).pipe(web.for_client()))


def framed(events: list[Event], protocol: str) -> list[Any]:
    return list(Stream.of(from_iterable(events)).pipe(web.encode(protocol)))


def again(frames: list[Any], protocol: str) -> list[Event]:
    return list(Stream.of(from_iterable(frames)).pipe(web.decode(protocol)))


@protocols
@law
@given(scripts.scripts, st.sampled_from([rxllm.stream, rxllm.stream_step, rxllm.stream_generate]), st.data())
def test_every_stream_comes_back(protocol: str, script: Any, function: Any, data: st.DataObject) -> None:
    options = data.draw(scripts.presentations)
    if function is not rxllm.stream_generate:
        options |= data.draw(scripts.chat_options if function is rxllm.stream else scripts.step_options)
    events = client(of_script(script, function, **options))
    assert again(framed(events, protocol), protocol) == events


@protocols
@law
@given(strategies.lawful_chats)
def test_every_lawful_chat_comes_back(protocol: str, chat: list[Event]) -> None:
    """Its tools and agents may start before the response has ended."""
    events = client(chat)
    assert again(framed(events, protocol), protocol) == events


@law
@given(strategies.event_lists)
def test_any_event_comes_back_in_our_own_protocol(events: list[Event]) -> None:
    assert again(framed(events, "rxllm"), "rxllm") == events


@pytest.mark.judges
@protocols
@settings(deadline=None, max_examples=examples(300))
@given(strategies.event_lists)
def test_any_event_for_a_client_comes_back(protocol: str, events: list[Event]) -> None:
    events = client(events)
    assert again(framed(events, protocol), protocol) == events


@protocols
@law
@given(st.data(), scripts.scripts)
def test_the_bytes_may_be_cut_anywhere(protocol: str, data: st.DataObject, script: Any) -> None:
    frames = framed(client(of_script(script)), protocol)
    body = b": a comment\n\n" + b"".join(map(web.sse, frames))
    assert list(web.from_sse(data.draw(strategies.chunked(body)))) == frames


def test_frames_are_read_of_one_piece_and_of_asynchronous_ones() -> None:
    body = web.sse({"type": "text_delta", "delta": "a"}) + web.sse({"type": "end"})

    async def pieces() -> AsyncIterator[bytes]:
        for byte in body:
            yield bytes([byte])

    async def read() -> list[Any]:
        return [frame async for frame in web.from_sse(pieces())]

    assert asyncio.run(read()) == list(web.from_sse(body)) == [{"type": "text_delta", "delta": "a"}, {"type": "end"}]
    with pytest.raises(ValidationError, match="chunks must be bytes"):
        web.from_sse(body.decode())  # pyright: ignore


@protocols
@pytest.mark.parametrize("api", DECODERS)
def test_every_recorded_stream_comes_back(protocol: str, api: str) -> None:
    for name, recorded in of_recordings(api, every=4):
        events = client(recorded)
        assert again(framed(events, protocol), protocol) == events, name


def test_a_stream_without_its_end_was_cut_off() -> None:
    frames = framed([TextDelta("Hel")], "rxllm")[:-1]
    assert again(frames, "rxllm") == [TextDelta("Hel"), ErrorEvent(StreamError("truncated"))]


def test_an_error_becomes_a_frame_and_the_stream_completes() -> None:
    error = rxllm.AdapterError("rate_limited", retry_after=2.0)
    frames = list(rxllm.stream_generate(Fake(error), "Hi", retry=False).pipe(web.for_client(), web.encode("rxllm")))
    assert [frame["type"] for frame in frames] == ["error", "end"]
    assert again(frames, "rxllm") == [ErrorEvent(rxllm.AdapterError("rate_limited", retry_after=2.0))]


tags = st.sampled_from(
    [
        *("text_delta", "step_completed", "nested", "error", "end", "Message", "nobody"),
        *("text-delta", "tool-input-available", "tool-output-available", "file", "data-rxllm", "message-metadata"),
        *("RUN_STARTED", "RUN_FINISHED", "RUN_ERROR", "CUSTOM", "TOOL_CALL_CHUNK", "TEXT_MESSAGE_START"),
    ]
)


@pytest.mark.judges
@protocols
@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.dictionaries(st.text(max_size=8), hostile, max_size=4), max_size=3), tags)
def test_hostile_frames_are_one_typed_error(protocol: str, frames: list[Any], tag: str) -> None:
    for frame in frames:
        frame["type"] = tag
    ended = list(Stream.of(from_iterable(frames)).pipe(web.decode(protocol), ops.errors_as_events()))
    for error in (event.error for event in ended[-1:] if isinstance(event, ErrorEvent)):
        assert error.reason in ("malformed_event", "truncated") or "error" in tag
        assert len(str(error)) < 200


@pytest.mark.parametrize("body", [b"data: {\n\n", b"data: []\n\n", b"data: 1\n\n", b"data: " + b"[" * 9000 + b"\n\n"])
def test_bytes_that_are_no_frames_are_one_typed_error(body: bytes) -> None:
    with pytest.raises(StreamError, match="not a frame"):
        list(web.from_sse([body]))


@pytest.mark.parametrize("function", [web.encode, web.decode])
@pytest.mark.parametrize("protocol", ["sse", "", None, []])
def test_an_unknown_protocol_is_told_at_once(function: Any, protocol: Any) -> None:
    with pytest.raises(ValidationError, match=r"protocol must be one of 'rxllm'"):
        function(protocol)


def test_a_frame_that_no_file_could_hold_is_escaped() -> None:
    frame = {"type": "text_delta", "delta": "\ud800"}
    assert web.sse(frame) == b'data: {"type": "text_delta", "delta": "\\ud800"}\n\n'
    assert list(web.from_sse([web.sse(frame)])) == [frame]


def test_the_fold_of_what_arrives_is_the_result() -> None:
    events = client(of_script([["Hello"]]))
    arrived = again(framed(events, "rxllm"), "rxllm")
    folded = Stream.of(from_iterable(arrived)).pipe(ops.to_chat_result(Thread())).run()
    assert (folded.output_text, folded.halted_reason) == ("Hello", "completed")
    state = StreamCollector(Thread())
    for event in arrived[:-2]:
        state = state.apply_event(event)
    assert state.to_response() == folded.final_response

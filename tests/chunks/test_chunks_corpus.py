"""Every recorded stream, turned into chunks: the accumulator and `from_chunks` give the response that the events give.

What the dialect cannot say differs, and nothing else does:

============  =========================================================================================
``stop``      a stream that ends without a finish reason has meant ``stop``; chunks have no end marker
``bounds``    neighbouring blocks of text, and of thinking that nobody signed, are one block
``larger``    the accumulator takes the larger of two counts; providers correct themselves downwards
``types``     arguments that are JSON and no object are a fault in an event, and in the accumulator what they are
``notes``     the raw finish reason and the metadata of the completed message are missing from these chunks
============  =========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, reduce
from typing import Any, NamedTuple

from reactivex import from_iterable

from rxllm import Event, Response, StreamCollector, UsageUpdated
from rxllm.chunks import ChunkAccumulator, from_chunks
from rxllm.values import Part, SourcePart, TextPart, ThinkingPart
from tests.chunks.as_chunks import as_chunks
from tests.corpus import Recording, recordings
from tests.coverage import ADAPTERS, decode, responses
from tests.wire.lawful import apart, lawful


class Case(NamedTuple):
    recording: Recording
    events: list[Event]
    response: Response[Any]


@cache
def cases() -> list[Case]:
    bodies = [(recording, body) for api in ADAPTERS for recording in recordings(api) for body in responses(recording)]
    decoded = [(recording, decode(recording.api, body)) for recording, body in bodies]
    return [Case(recording, events, _fold(events)) for recording, events in decoded]


def test_from_chunks_gives_the_same_response() -> None:
    for case in cases():
        events = list(from_iterable(as_chunks(case.events)).pipe(from_chunks()))
        lawful(events)
        apart(events)
        said, expected = _said(_fold(events)), _said(case.response)
        if case.response.error:  # a call that was whole before the error is complete, but chunks do not tell which was
            calls = [said.pop("calls"), expected.pop("calls")]
            assert [call.id for call in calls[0]] == [call.id for call in calls[1]]
            del said["client calls"], expected["client calls"]
        assert said == expected, str(case.recording)


def test_the_accumulator_gives_the_same_response() -> None:
    for case in cases():
        state, response = _accumulated(case.events), case.response
        assert response.message is not None
        message = state.finalize_message()
        assert (message.text if message else "") == response.output_text, str(case.recording)
        thought = "".join(part.text for part in response.message.parts if isinstance(part, ThinkingPart))
        assert state.finalize_thinking() == thought, str(case.recording)
        calls = [(call.id, call.name, call.arguments) for call in message.tool_calls] if message else []
        assert calls == [(call.id, call.name, call.arguments) for call in response.message.tool_calls]
        assert state.finalize_finish_reason() == (None if response.error else response.finish_reason)
        assert _files(state.finalize_content_parts()) == _files(response.message.parts)


def test_the_accumulators_calls_are_the_responses() -> None:
    for case in cases():
        assert case.response.message is not None
        calls = _accumulated(case.events).finalize_tool_calls_for_response()
        for one, call in zip(calls, case.response.message.tool_calls, strict=True):
            assert (one["id"], one["name"]) == (call.id, call.name)
            assert one.get("builtin?", False) == bool(call.metadata.get("server"))
            error = call.metadata.get("error")
            if error is None:  # a null stays one here, and is no arguments in a call
                assert (one["arguments"] or {}, "error" in one.get("metadata", {})) == (call.arguments, False)
            elif error == "invalid_json":
                assert one["metadata"]["error"] == ("args_lost", "json_decode_error")


def test_the_accumulators_usage_is_the_responses() -> None:
    for case in cases():
        usage = _accumulated(case.events).finalize_usage()
        usages = [event.usage for event in case.events if isinstance(event, UsageUpdated)]
        assert (usage is None) == (not usages), str(case.recording)
        if usage is not None:
            assert usage["input"] == max(update.input_tokens or 0 for update in usages)
            assert usage["output"] == max(update.output_tokens or 0 for update in usages)
            assert usage["total_tokens"] == usage["input"] + usage["output"]


def _fold(events: Iterable[Event]) -> Response[Any]:
    return reduce(StreamCollector.apply_event, events, StreamCollector()).to_response()


def _accumulated(events: Iterable[Event]) -> ChunkAccumulator:
    """The chunks' fold, as far as there are chunks."""
    states: list[ChunkAccumulator] = [ChunkAccumulator()]
    scanned = from_iterable(as_chunks(events)).scan(ChunkAccumulator.push, states[0])
    scanned.subscribe(states.append, lambda error: None)
    return states[-1]


def _said(response: Response[Any]) -> dict[str, Any]:
    """What is compared of a response."""
    assert response.message is not None
    parts = response.message.parts
    return {
        "text": response.output_text,
        "calls": response.message.tool_calls,
        "client calls": response.tool_calls,
        "reason": response.finish_reason or "stop",
        "usage": response.usage,
        "error": response.error,
        "identity": (response.id, response.model),
        "sources": [part for part in parts if isinstance(part, SourcePart)],
        "parts": _joined(part for part in parts if not isinstance(part, SourcePart)),
    }


def _joined(parts: Iterable[Part]) -> list[Part]:
    joined: list[Part] = []
    for part in parts:
        match (joined[-1] if joined else None, part):
            case (TextPart(text=before), TextPart(text=after)):
                joined[-1] = TextPart(before + after)
            case (ThinkingPart(text=before, signature=None, provider_data=None), ThinkingPart()):
                joined[-1] = ThinkingPart(before + part.text, part.signature, part.provider_data)
            case _:
                joined.append(part)
    return joined


def _files(parts: Iterable[Part]) -> list[Part]:
    return [part for part in parts if type(part).__name__ in ("FilePart", "ProviderPart", "SourcePart")]

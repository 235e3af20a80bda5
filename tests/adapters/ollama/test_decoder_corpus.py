"""Every recorded stream of Ollama's own API: lawful, the same however it is cut, and what its lines add up to.

There is no official SDK to ask: the judge adds the lines up as the documentation says, and agrees in every field.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.collector import StreamCollector
from rxllm.events import Event, RawChunk
from rxllm.testing import chunkings, cut
from rxllm.values import Response, ThinkingPart
from tests.corpus import Recording, recordings
from tests.wire.lawful import apart, lawful

pytestmark = pytest.mark.judges


class Fold(NamedTuple):
    """What is compared."""

    text: str
    thinking: str
    calls: list[tuple[str, dict[str, Any]]]
    done_reason: str | None
    usage: tuple[int | None, int | None]
    durations: dict[str, int]
    model: str | None


def of_ollama() -> tuple[Recording, ...]:
    return recordings("ollama-chat") + recordings("ollama-generate")


def decode(*chunks: bytes, **options: Any) -> list[Event]:
    decoder = OllamaDecoder(**options)
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.close()


def fold(events: list[Event]) -> Response[Any]:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


def ours(response: Response[Any]) -> Fold:
    parts = response.message.parts
    return Fold(
        response.output_text,
        "".join(part.text for part in parts if isinstance(part, ThinkingPart)),
        [(call.name, dict(call.arguments)) for call in response.tool_calls],
        response.raw_finish_reason,
        (response.usage.input_tokens, response.usage.output_tokens),
        dict(response.usage.extra),
        response.model,
    )


def added_up(body: bytes) -> Fold:
    lines = [json.loads(line) for line in body.splitlines() if line.strip()]
    said = [line.get("message") or {"content": line["response"], "thinking": line.get("thinking")} for line in lines]
    calls = [call["function"] for each in said for call in each.get("tool_calls") or ()]
    last = lines[-1]
    return Fold(
        "".join(each.get("content") or "" for each in said),
        "".join(each.get("thinking") or "" for each in said),
        [(call["name"], call["arguments"]) for call in calls],
        last["done_reason"],
        (last.get("prompt_eval_count"), last.get("eval_count")),
        {name: held for name, held in last.items() if name.endswith("_duration")},
        last["model"],
    )


def test_every_stream_is_lawful():
    for recording in of_ollama():
        try:
            events = decode(recording.body)
            lawful(events)
            apart(events)
        except AssertionError as error:
            raise AssertionError(f"{recording}: {error}") from error


def test_any_cut_gives_the_same_events():
    for recording in of_ollama():
        whole, cut_up = (decode(*chunks) for chunks in chunkings(recording.body, cuts=200))
        assert cut_up == whole, recording


def test_byte_by_byte_gives_the_same_events():
    small = [each for each in of_ollama() if len(each.body) < 10_000]
    assert small
    for recording in small:
        assert decode(*cut(recording.body, *range(len(recording.body)))) == decode(recording.body), recording


def test_raw_adds_one_raw_chunk_per_line_and_changes_nothing_else():
    for recording in of_ollama():
        events = decode(recording.body, raw=True)
        assert [each for each in events if not isinstance(each, RawChunk)] == decode(recording.body), recording
        assert sum(isinstance(each, RawChunk) for each in events) == len(recording.body.splitlines())


def test_the_fold_is_what_the_lines_add_up_to():
    for recording in of_ollama():
        response = fold(decode(recording.body))
        assert ours(response) == added_up(recording.body), recording
        expected = "tool_calls" if response.tool_calls else response.raw_finish_reason
        assert (response.finish_reason, response.error) == (expected, None), recording

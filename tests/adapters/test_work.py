"""The work of a decoder grows with the length of the answer, and not with its square.

No clock is asked: parses, comparisons and lines of Python are counted, at two sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import rxllm
from rxllm import ErrorEvent, TextDelta, ToolCallCompleted, UsageUpdated
from rxllm.adapters import _usage_and_metadata
from rxllm.adapters.openai_chat import decoder as chat
from rxllm.adapters.openai_responses import missing, output
from rxllm.events import Event
from rxllm.wire import tool_calls
from tests.laws.test_linear import work

REQUEST = rxllm.request("Hi")
SMALL, LARGE = 100, 400

Frames = list[dict[str, Any]]


def fed(adapter: Any, frames: Frames) -> list[Event]:
    decoder = adapter.decoder(REQUEST)
    data = b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames)
    return [*decoder.feed(data), *decoder.close()]


def ended_choices(n: int) -> Frames:
    return [{"id": "r", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}] * n}]


def verdicts(n: int) -> Frames:
    return [{"choices": [{"index": 0, "content_filter_results": {f"v{i}": {"filtered": False}}}]} for i in range(n)]


def parts(n: int) -> Frames:
    item = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "a"}] * n}
    return [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "m"}},
        {"type": "response.output_text.delta", "item_id": "m", "delta": "zz"},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]


def thoughts(n: int) -> Frames:
    items = [{"type": "reasoning", "id": f"r{i}", "summary": []} for i in range(n)]
    kinds = ("response.output_item.added", "response.output_item.done")
    return [{"type": kind, "output_index": i, "item": item} for kind in kinds for i, item in enumerate(items)]


def open_texts(n: int) -> Frames:
    call = {"type": "tool_use", "id": "t", "name": "f"}
    texts = [{"type": "content_block_start", "index": i, "content_block": {"type": "text"}} for i in range(1, n)]
    piece = {"type": "input_json_delta", "partial_json": " "}
    pieces = [{"type": "content_block_delta", "index": -7, "delta": piece} for _ in range(n)]
    start = {"type": "message_start", "message": {"id": "r", "model": "m"}}
    return [start, {"type": "content_block_start", "index": 0, "content_block": call}, *texts, *pieces]


def waiting_calls(n: int) -> Frames:
    calls = [{"functionCall": {"name": f"f{i}", "args": {}}} for i in range(n)]
    answers = [{"functionResponse": {"name": f"f{i}", "response": {}}} for i in reversed(range(n))]
    return [{"candidates": [{"content": {"parts": [*calls, *answers]}, "finishReason": "STOP"}]}]


OPENAI, RESPONSES = rxllm.OpenAIChat(api_key="k"), rxllm.OpenAIResponses(api_key="k")
ANTHROPIC, GEMINI = rxllm.Anthropic(api_key="k"), rxllm.Gemini(api_key="k")

CASES: dict[str, tuple[Any, Callable[[int], Frames]]] = {
    "ended choices of one frame": (OPENAI, ended_choices),
    "verdicts of filters": (OPENAI, verdicts),
    "parts that differ from the deltas": (RESPONSES, parts),
    "thoughts that are open at once": (RESPONSES, thoughts),
    "deltas beside open texts": (ANTHROPIC, open_texts),
    "calls that Gemini answers": (GEMINI, waiting_calls),
}


@pytest.mark.parametrize("name", CASES)
def test_the_work_is_linear_in(name: str) -> None:
    adapter, make = CASES[name]
    fed(adapter, make(2))  # what is done once: imports, caches
    small, large = (work(partial(fed, adapter, make(n)))[0] for n in (SMALL, LARGE))
    assert large <= 1.25 * LARGE / SMALL * small


def test_a_frame_is_parsed_once_for_all_its_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    read = chat.read_json
    monkeypatch.setattr(chat, "read_json", lambda data: parsed.append(data) or read(data))
    assert fed(OPENAI, ended_choices(1_000))[-1].finish_reason == "stop"
    assert len(parsed) == 1


def test_the_item_of_a_waiting_frame_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Any] = []
    read = output.to_item
    monkeypatch.setattr(output, "to_item", lambda raw: parsed.append(raw) or read(raw))
    frames = thoughts(50)
    fed(RESPONSES, frames)
    assert len(parsed) <= 2 * len(frames)  # once to see whether it waits, once to read it


def test_a_whole_call_is_parsed_once_however_often_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    read = tool_calls.read_arguments
    monkeypatch.setattr(tool_calls, "read_arguments", lambda raw: parsed.append(raw) or read(raw))
    tracker = tool_calls.CallTracker()
    tracker.feed(0, "c", "f", '{"a": 1,}')  # looks whole, but is not
    for place in range(100):
        tracker.feed(0, f"other_{place}", None, None)
    assert len(parsed) == 1


@pytest.mark.parametrize("n", [2, 2_000])
def test_parts_that_differ_from_the_deltas_are_not_repeated(n: int) -> None:
    assert "".join(event.delta for event in fed(RESPONSES, parts(n)) if isinstance(event, TextDelta)) == "zz"


@pytest.mark.parametrize(
    ("streamed", "texts", "expected"),
    [
        ("", ["One", "two"], ["One", "two"]),
        ("One and tw", ["One and two", "Three"], ["o", "Three"]),
        ("Three", ["One", "Two", "Three"], ["One", "Two", ""]),
        ("x" * 300, ["a"] * 200 + ["x" * 300, "b"], ["a"] * 200 + ["", "b"]),
        ("reworded, two th", ["worded", ", two", " three"], ["", "", "ree"]),
        ("zz", ["a"] * 300, [""] * 300),
        ("ab" * 200, ["a", "c", "b"] * 200, ["", "", ""] * 200),
    ],
)
def test_the_missing_text_is_found(streamed: str, texts: list[str], expected: list[str]) -> None:
    assert missing.missing_texts(streamed, texts) == expected


def test_an_item_of_too_many_parts_is_an_error() -> None:
    error = fed(RESPONSES, parts(missing.MOST_PARTS + 1))[-1].error
    assert (error.reason, error.message) == ("malformed_event", "an item has 10001 parts; at most 10000 are read")


def test_an_item_with_a_very_long_id_is_an_error() -> None:
    item = {"type": "message", "id": "m" * 1_001}
    events = fed(RESPONSES, [{"type": "response.output_item.added", "output_index": 0, "item": item}])
    error = events[-1].error
    assert (error.reason, error.message) == (
        "malformed_event",
        "the id of an item has 1001 characters; at most 1000 are read",
    )


def usage_of(wire: str, counters: dict[str, int]) -> Frames:
    match wire:
        case "anthropic":
            start = {"type": "message_start", "message": {"id": "r", "model": "m"}}
            return [start, *({"type": "message_delta", "usage": {name: 1}} for name in counters)]
        case "gemini":
            return [{"candidates": [], "usageMetadata": counters}]
        case _:
            return [{"id": "r", "model": "m", "choices": [], "usage": counters}]


@pytest.mark.parametrize(("wire", "adapter"), [("anthropic", ANTHROPIC), ("gemini", GEMINI), ("openai", OPENAI)])
def test_counters_of_too_many_names_are_an_error(wire: str, adapter: Any) -> None:
    most = _usage_and_metadata.MOST_COUNTERS
    names = [f"counter_{i}" for i in range(most + 100)]
    events = fed(adapter, usage_of(wire, dict.fromkeys(names, 1)))
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error.reason == "malformed_event"
    assert "counters; at most 500 are read" in events[-1].error.message
    assert len([event for event in events if isinstance(event, UsageUpdated)]) <= most
    assert fed(adapter, usage_of(wire, dict.fromkeys(names[:most], 1)))[-2].usage.extra == dict.fromkeys(
        names[:most], 1
    )


def test_iterations_of_too_many_names_are_an_error() -> None:
    entries = [{"input_tokens": 1, "output_tokens": 1, f"counter_{i}": 1} for i in range(501)]
    frames = [{"type": "message_start", "message": {"id": "r", "model": "m", "usage": {"iterations": entries}}}]
    assert fed(ANTHROPIC, frames)[-1].error.reason == "malformed_event"


def test_gemini_answers_the_calls_that_it_names() -> None:
    calls = [
        {"functionCall": {"id": id, "name": name, "args": {}}} for id, name in (("1", "f"), ("2", "f"), ("3", "g"))
    ]
    answers = [{"functionResponse": fields} for fields in ({"id": "2", "name": "f"}, {"name": "g"}, {"name": "h"})]
    frame = {"candidates": [{"content": {"parts": [*calls, *answers]}, "finishReason": "STOP"}]}
    completed = [event for event in fed(GEMINI, [frame]) if isinstance(event, ToolCallCompleted)]
    assert [(call.id, bool(call.metadata.get("server"))) for call in completed] == [
        ("2", True),
        ("3", True),
        ("1", False),
    ]

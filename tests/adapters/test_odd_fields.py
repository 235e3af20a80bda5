"""A field of an unexpected type takes nothing else of its frame with it, and what is left out is said."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import OpenAIChat, Request
from rxllm.collector import StreamCollector
from rxllm.events import ErrorEvent, Event, TextDelta
from tests.adapters.mutated import DECODERS, Make, decode
from tests.adapters.streams import ndjson, sse
from tests.corpus import recordings

ODD: list[Any] = [7, True, "odd", ["odd"], {"odd": "odd"}]
"""Values that are put in the place of those of other types."""


class Outcome(NamedTuple):
    """What an answer says, and whether something was said to be wrong: by an error or a warning."""

    text: str
    thinking: str
    calls: list[tuple[str, str]]
    usage: tuple[Any, ...]
    is_said: bool


def outcome_of(make: Make, body: bytes) -> Outcome:
    warnings: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = warnings.append  # type: ignore[method-assign]
    logger = logging.getLogger("rxllm")
    logger.addHandler(handler)
    try:
        events = decode(make, False, body)
    finally:
        logger.removeHandler(handler)
    response = fold(events)
    usage = response.usage
    counts = () if usage is None else (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens)
    calls = [(call.name, json.dumps(call.arguments)) for call in response.tool_calls]
    is_said = bool(warnings) or any(isinstance(event, ErrorEvent) for event in events)
    return Outcome(response.output_text, response.thinking or "", calls, counts, is_said)


# Where the frames of a body are, and the fields of a frame


def frames_of(body: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield the place and the data of each frame of JSON."""
    start = 0
    for line in body.splitlines(keepends=True):
        text = line.removeprefix(b"data:").strip()
        at = start + line.find(text) if text else start
        start += len(line)
        if text[:1] in (b"{", b"[") or text == body.strip():
            try:
                yield at, at + len(text), json.loads(text)
            except ValueError:
                continue


Path = tuple[str | int, ...]

ARGUMENTS = {"arguments", "args", "partialArgs", "input", "action", "operation"}
"""Inside these, any value is as good as another."""


def fields_of(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path of each field, with its value. Of the items of a list, the first stands for all."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield (*path, name), value
            if name not in ARGUMENTS:
                yield from fields_of(value, (*path, name))
    elif isinstance(data, list) and data:
        yield from fields_of(data[0], (*path, 0))


def changed(data: Any, path: Path, change: Callable[[Any, Any], None]) -> bytes:
    copy = json.loads(json.dumps(data))
    inside = copy
    for step in path[:-1]:
        inside = inside[step]
    change(inside, path[-1])
    return json.dumps(copy).encode()


def kind_of(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


class Change(NamedTuple):
    """A field of one frame of a body, and the answer as it is."""

    make: Make
    body: bytes
    place: tuple[int, int]
    data: Any
    path: Path
    good: Outcome

    def loss(self, odd: Any) -> str | None:
        """What is lost without a word if the field is `odd`."""
        found = outcome_of(self.make, self._with(lambda inside, name: inside.__setitem__(name, odd)))
        is_shown = "odd" in repr(found)
        if found.is_said or is_shown or found[:4] == self.good[:4]:
            return None
        without = outcome_of(self.make, self._with(lambda inside, name: inside.pop(name)))
        if found[:4] == without[:4]:
            return None
        return f"{self.path} = {odd!r} in {self.data}: {self.good} became {found}"

    def _with(self, change: Callable[[Any, Any], None]) -> bytes:
        start, end = self.place
        return self.body[:start] + changed(self.data, self.path, change) + self.body[end:]


def changes(make: Make, body: bytes, wanted: Callable[[Any, Path], bool] = lambda data, path: True) -> Iterator[Change]:
    good = outcome_of(make, body)
    for start, end, data in frames_of(body):
        for path, value in fields_of(data):
            if value is not None and wanted(data, path):
                yield Change(make, body, (start, end), data, path, good)


def losses(changes: Iterator[Change]) -> list[str]:
    found: list[str | None] = []
    for change in changes:
        value = change.data
        for step in change.path:
            value = value[step]
        found += [change.loss(odd) for odd in ODD if kind_of(odd) is not kind_of(value)]
    return [loss for loss in found if loss is not None]


@pytest.mark.judges
@pytest.mark.parametrize("wire", DECODERS)
def test_no_field_of_a_hand_written_stream_takes_another_with_it(wire: str) -> None:
    make, bodies = DECODERS[wire]
    assert [loss for body in bodies for loss in losses(changes(make, body))] == []


@pytest.mark.judges
@pytest.mark.parametrize("wire", DECODERS)
def test_no_field_of_a_recorded_stream_takes_another_with_it(wire: str) -> None:
    """Each field of each type of frame once, in the shortest stream that has it."""
    make, _ = DECODERS[wire]
    seen: set[Any] = set()

    def is_new(data: Any, path: Path) -> bool:
        key = (data.get("type") if isinstance(data, dict) else None, path)
        return key not in seen and not seen.add(key)

    bodies = sorted((recording.body for recording in recordings(wire)), key=len)
    assert [loss for body in bodies for loss in losses(changes(make, body, is_new))] == []


ANY_ODD = st.recursive(
    st.sampled_from(["odd", 0, False, ""]),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.sampled_from(["odd", "text", "type"]), inside),
    max_leaves=4,
)


@pytest.mark.parametrize("wire", DECODERS)
@given(data=st.data())
def test_no_odd_value_takes_another_field_with_it(wire: str, data: st.DataObject) -> None:
    change = data.draw(st.sampled_from(hand_written(wire)))
    assert change.loss(data.draw(ANY_ODD)) is None


@cache
def hand_written(wire: str) -> list[Change]:
    make, bodies = DECODERS[wire]
    return [change for body in bodies for change in changes(make, body)]


# What has been seen


CHAT_FRAMES = [
    {"choices": [{"index": 0, "delta": {"content": "Hel"}}]},
    {"choices": [{"index": 0, "delta": {"content": "lo"}}]},
    {"choices": [{"index": 0, "delta": {"content": "!"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


def chat_body(*odd: Callable[[dict[str, Any]], Any], at: tuple[int, ...] = (1,)) -> bytes:
    frames = json.loads(json.dumps(CHAT_FRAMES))
    for place in at:
        for change in odd:
            change(frames[place])
    return sse(*frames, done=True)


@pytest.mark.parametrize("at", [(1,), (0, 1, 2, 3)], ids=["one frame", "every frame"])
@pytest.mark.parametrize(
    ("name", "value"), [("id", 7), ("model", 7), ("usage", []), ("usage", [7]), ("system_fingerprint", 7)]
)
def test_an_odd_field_of_a_frame_leaves_its_text(name: str, value: Any, at: tuple[int, ...]) -> None:
    response = fold(decode_chat(chat_body(lambda frame: frame.update({name: value}), at=at)))
    assert (response.output_text, response.finish_reason, response.error) == ("Hello!", "stop", None)


@pytest.mark.parametrize("annotations", [{}, {"url": "u"}, [7]])
def test_an_odd_field_of_a_delta_leaves_its_text(annotations: Any) -> None:
    body = chat_body(lambda frame: frame["choices"][0]["delta"].update(annotations=annotations))
    assert fold(decode_chat(body)).output_text == "Hello!"


def test_what_is_left_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    fold(decode_chat(chat_body(lambda frame: frame.update(id=7, usage=["x" * 999]), at=(0, 1, 2))))
    at_id, at_usage = sorted(record.getMessage() for record in caplog.records)
    assert at_id == "openai: a value is left out, which cannot be read: id is not a string: 7"
    assert len(at_usage) < 200


def test_what_is_empty_is_left_out_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert fold(decode_chat(chat_body(lambda frame: frame.update(id=[], usage=[])))).output_text == "Hello!"
    assert caplog.records == []


@pytest.mark.parametrize("content", [7, True, ["odd"]])
def test_a_text_that_cannot_be_read_is_an_error_after_the_rest_of_its_frame(content: Any) -> None:
    def change(frame: dict[str, Any]) -> None:
        frame["choices"][0]["delta"] = {"content": content, "reasoning_content": "Hm."}

    response = fold(decode_chat(chat_body(change)))
    assert (response.output_text, response.thinking) == ("Hel", "Hm.")
    assert response.error is not None
    assert response.error.reason == "malformed_event"
    assert response.error.message.startswith("choices[0].delta.content")


def test_an_odd_id_leaves_its_call() -> None:
    call = {"index": 0, "id": 7, "function": {"name": "f", "arguments": '{"a": 1}'}}
    delta, end = {"index": 0, "delta": {"tool_calls": [call]}}, {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    (made,) = fold(decode_chat(sse({"choices": [delta]}, {"choices": [end]}, done=True))).tool_calls
    assert (made.name, made.arguments) == ("f", {"a": 1})


def test_an_odd_delta_leaves_its_finish_reason() -> None:
    body = sse(CHAT_FRAMES[0], {"choices": [{"index": 0, "delta": [], "finish_reason": "length"}]}, done=True)
    assert fold(decode_chat(body)).finish_reason == "length"


ANTHROPIC_CALL: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "m", "model": "m", "usage": {}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "c", "name": "add"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    {"type": "message_stop"},
]

ODD_FRAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemini": ("gemini", {"candidates": [{"content": {"parts": [{"text": "lo"}]}, "groundingMetadata": []}]}),
    "anthropic": (
        "anthropic-messages",
        {"type": "content_block_delta", "index": "x", "delta": {"type": "text_delta", "text": "lo"}},
    ),
    "ollama": ("ollama-chat", {"message": {"role": "assistant", "content": "lo", "thinking": []}, "done": False}),
    "responses": (
        "openai-responses",
        {"type": "response.output_text.delta", "output_index": "x", "content_index": [], "item_id": 7, "delta": "lo"},
    ),
}


@pytest.mark.parametrize("name", ODD_FRAMES)
def test_an_odd_field_of_any_wire_leaves_its_text(name: str) -> None:
    wire, frame = ODD_FRAMES[name]
    make, _ = DECODERS[wire]
    decoder = make(False)
    events = decoder.feed(ndjson(frame) if name == "ollama" else sse(frame))
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["lo"]


def test_the_arguments_of_a_block_without_an_index_are_those_of_the_open_call() -> None:
    frames = [json.loads(json.dumps(frame)) for frame in ANTHROPIC_CALL]
    for frame in frames:
        if "index" in frame:
            frame["index"] = "x"
    make, _ = DECODERS["anthropic-messages"]
    (call,) = fold(decode(make, False, sse(*frames))).tool_calls
    assert (call.name, call.arguments) == ("add", {"a": 1})


def test_an_object_in_place_of_text_is_an_error() -> None:
    frame = {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": {"a": 1}}
    error = fold(decode(DECODERS["openai-responses"][0], False, sse(frame))).error
    assert "a delta is not text" in str(error)


@pytest.mark.parametrize("usage", [7, "x", ["a"]])
def test_odd_usage_inside_a_response_is_said(usage: Any, caplog: pytest.LogCaptureFixture) -> None:
    response = {"id": "r", "model": "m", "status": "completed", "output": [], "usage": usage}
    fold(decode(DECODERS["openai-responses"][0], False, sse({"type": "response.completed", "response": response})))
    assert "response.usage is not an object" in caplog.text


FLAT = {"index": 0, "id": "c1", "name": "f", "arguments": '{"p":1}'}


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (
            "openai-chat",
            sse({"choices": [{"delta": {"tool_calls": [FLAT]}, "finish_reason": "tool_calls"}]}, done=True),
        ),
        ("ollama-chat", ndjson({"message": {"tool_calls": [FLAT]}}, {"message": {"content": ""}, "done": True})),
    ],
)
def test_a_call_without_its_function_object_is_a_call(wire: str, body: bytes) -> None:
    (made,) = fold(decode(DECODERS[wire][0], False, body)).tool_calls
    assert (made.name, made.arguments) == ("f", {"p": 1})


# A lone choice


@pytest.mark.parametrize("indices", [(0, 1, 2), (1, 1, 1), (0, 0, 7)])
def test_a_lone_choice_counts_whatever_its_index(indices: tuple[int, ...]) -> None:
    deltas = [({"content": "Hel"}, None), ({"content": "lo"}, None), ({"content": ""}, "stop")]
    frames = [
        {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}
        for index, (delta, finish) in zip(indices, deltas, strict=True)
    ]
    response = fold(decode_chat(sse(*frames, done=True)))
    assert (response.output_text, response.finish_reason) == ("Hello", "stop")


def test_the_only_choice_of_a_whole_answer_counts_whatever_its_index() -> None:
    body = json.dumps({"choices": [{"index": 1, "message": {"content": "Hi"}, "finish_reason": "stop"}]}).encode()
    response = fold(decode_chat(body))
    assert (response.output_text, response.finish_reason, response.error) == ("Hi", "stop", None)


def test_of_several_choices_that_were_asked_for_the_first_counts() -> None:
    frames = [{"choices": [{"index": index, "delta": {"content": text}}]} for index, text in ((0, "A"), (1, "B"))]
    decoder = OpenAIChat().decoder(Request(options={"n": 2}))
    events = [*decoder.feed(sse(*frames, done=True)), *decoder.close()]
    assert fold(events).output_text == "A"


def decode_chat(body: bytes) -> list[Event]:
    return decode(DECODERS["openai-chat"][0], False, body)


def fold(events: list[Event]) -> Any:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()

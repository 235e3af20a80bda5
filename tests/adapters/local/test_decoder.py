"""The JSON of a call, in any pieces, as the events of a tool call."""

from __future__ import annotations

import json

from rxllm.adapters.local.tools import CallDecoder
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.events import ErrorEvent, Event, MessageCompleted, TextDelta, ToolCallCompleted, ToolCallDelta
from rxllm.values import Message, Request, ToolCall, user
from tests.tables import assert_rows
from tests.wire.lawful import lawful

CALL = '{\n  "name": "add", "arguments": {"a": {"b": "}}"}}\n}'


def body(text: str, finish: str | None = "stop", step: int = 3) -> bytes:
    """The stream of a server that says `text`, `step` characters at a time."""
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    choices = [{"delta": {"content": piece}} for piece in pieces]
    choices += [{"delta": {}, "finish_reason": finish}] if finish else []
    lines = [f"data: {json.dumps({'id': 'r', 'model': 'm', 'choices': [choice]})}\n\n" for choice in choices]
    lines += [
        f"data: {json.dumps({'id': 'r', 'choices': [], 'usage': {'prompt_tokens': 2, 'completion_tokens': 3}})}\n\n"
    ]
    return "".join([*lines, "data: [DONE]\n\n"] if finish else lines[:-1]).encode()


def events(data: bytes, request: Request | None = None) -> list[Event]:
    request = request or Request((user("Hi"),))
    decoder = CallDecoder(ChatDecoder(provider="local", messages=request.messages), request)
    made = [*decoder.feed(data), *decoder.close()]
    lawful(made)
    return made


def test_a_call_in_pieces_of_any_size() -> None:
    assert_rows([(step,) for step in range(1, 60)], check_pieces)


def check_pieces(step: int) -> None:
    made = events(body(CALL, step=step))
    (completed,) = (event for event in made if isinstance(event, ToolCallCompleted))
    assert completed == ToolCallCompleted("call_0", "add", {"a": {"b": "}}"}}, '{"a": {"b": "}}"}}')
    assert not any(isinstance(event, TextDelta) for event in made)
    assert isinstance(made[-1], MessageCompleted)
    assert made[-1].finish_reason == "tool_calls"
    assert made[-1].message.metadata == {"id": "r", "model": "m"}


def test_the_arguments_come_as_they_are_said() -> None:
    deltas = [event.arguments_delta for event in events(body(CALL, step=1)) if isinstance(event, ToolCallDelta)]
    assert len(deltas) > 10


def test_the_id_counts_the_calls_of_the_thread() -> None:
    earlier = Message("assistant", tool_calls=(ToolCall("call_0", "add"), ToolCall("x", "add")))
    made = events(body(CALL), Request((user("Hi"), earlier, user("Hi"))))
    assert [event.id for event in made if isinstance(event, ToolCallCompleted)] == ["call_2"]


def test_a_call_that_is_cut_by_the_token_limit_keeps_its_text() -> None:
    made = events(body(CALL[:-6], "length"))
    (completed,) = (event for event in made if isinstance(event, ToolCallCompleted))
    assert completed.raw_arguments == '{"a": {"b": "}'
    assert completed.metadata == {"error": "invalid_json"}
    assert isinstance(made[-1], MessageCompleted)
    assert made[-1].finish_reason == "length"


def test_a_stream_that_breaks_off() -> None:
    made = events(body(CALL[:-2], finish=None))
    (completed,) = (event for event in made if isinstance(event, ToolCallCompleted))
    assert completed.metadata["error"] == "incomplete"
    assert isinstance(made[-1], ErrorEvent)
    assert made[-1].error.reason == "truncated"


def test_text_that_is_no_call_stays_text() -> None:
    made = events(body("I cannot."))
    assert [event.delta for event in made if isinstance(event, TextDelta)] == ["I cannot."]
    assert isinstance(made[-1], MessageCompleted)
    assert (made[-1].message.text, made[-1].finish_reason) == ("I cannot.", "stop")

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given

from rxllm import (
    Engine,
    Fake,
    Message,
    Request,
    Tool,
    ToolCall,
    ValidationError,
    generate,
    request,
    serializer,
    tool,
    user,
)
from rxllm import operators as ops
from rxllm.adapters import OpenAIChat
from rxllm.runtime import EngineCall, current_engine_call
from rxllm.testing import strategies
from rxllm.values import TextPart, request_key
from tests.programs import python


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@dataclass
class City:
    name: str


FULL = request(
    [user("Hi"), Message("assistant", (TextPart("Yes?"),), tool_calls=(ToolCall("c1", "add", {"a": 1, "b": 2}),))],
    model="gpt-5",
    tools=(add,),
    temperature=0.5,
    options={"user": "u", "nested": {"b": 1, "a": [2]}},
)

PROGRAM = """
from tests.values.test_request_key import FULL
from rxllm.values import request_key
print(request_key(FULL, "openai"))
"""


@pytest.mark.judges
def test_the_key_is_the_same_in_every_process_and_version() -> None:
    # The texts are in journals of users: a change of them asks everything again.
    assert request_key(request("Hi", model="gpt-5"), "openai") == "3636991165173c05f0c1eac875802dc2"
    assert request_key(FULL, "openai") == "fa1810e82d98af0d7966a23af7eeec18"
    for seed in ("0", "1"):
        program = python("-c", PROGRAM, env={**os.environ, "PYTHONHASHSEED": seed})
        assert program.stdout.strip() == request_key(FULL, "openai"), program.stderr


@given(strategies.requests)
def test_a_request_read_from_its_json_has_the_same_key(one: Request) -> None:
    assert request_key(serializer.from_json(serializer.to_json(replace(one, metadata={})))) == request_key(one)


CHANGES: list[dict[str, Any]] = [
    {"messages": (Message("user", "Ho"),)},
    {"messages": (Message("system", "Hi"),)},
    {"messages": (*FULL.messages, Message("user", "Hi"))},
    {"messages": (FULL.messages[0], replace(FULL.messages[1], tool_calls=()))},
    {"messages": (FULL.messages[0], replace(FULL.messages[1], tool_calls=(ToolCall("c2", "add", {"a": 1, "b": 2}),)))},
    {"model": "gpt-5-mini"},
    {"tools": ()},
    {"tools": (Tool("add", "Other", FULL.tools[0].schema),)},
    {"tools": (replace(FULL.tools[0], metadata={"strict": True}),)},
    {"tool_choice": "none"},
    {"temperature": 0.6},
    {"top_p": 0.5},
    {"max_tokens": 5},
    {"stop": "x"},
    {"seed": 1},
    {"reasoning_effort": "low"},
    {"response_format": City},
    {"structured_finalize": True},
    {"options": {"user": "v"}},
]


def test_every_field_that_is_sent_changes_the_key() -> None:
    keys = {request_key(replace(FULL, **change), "openai") for change in CHANGES}
    assert len(keys | {request_key(FULL, "openai"), request_key(FULL, "azure")}) == len(CHANGES) + 2
    assert {name for change in CHANGES for name in change} == set(Request.__dataclass_fields__) - {"metadata"}


def noted(messages: Sequence[Message]) -> tuple[Message, ...]:
    note = {"id": "m1", "at": 12.5}
    return tuple(
        replace(
            message,
            metadata=note,
            content=tuple(replace(part, metadata=note) for part in message.parts if isinstance(part, TextPart))
            if not isinstance(message.content, str)
            else message.content,
            tool_calls=tuple(replace(c, metadata=note, raw_arguments='{ "a":1,"b":2}') for c in message.tool_calls),
        )
        for message in messages
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(FULL, metadata={"run": 1}),
        replace(FULL, messages=noted(FULL.messages)),
        replace(FULL, options={"nested": {"a": [2], "b": 1.0}, "user": "u"}),
        replace(FULL, tools=(replace(FULL.tools[0], handler=None, timeout=3.0),)),
    ],
    ids=["metadata", "messages", "order", "handler"],
)
def test_what_is_not_sent_changes_nothing(other: Request) -> None:
    assert request_key(other, "openai") == request_key(FULL, "openai")


def test_a_type_is_the_schema_that_is_sent() -> None:
    sent: list[EngineCall | None] = []

    def look(source: Any) -> Any:
        sent.append(current_engine_call.get())
        return source.pipe(ops.tap(lambda _: None))

    generate(Engine(Fake('{"name": "Lima"}'), operators=[look]), "Where?", response_format=City).run()
    assert sent[0] is not None
    assert request_key(sent[0].request) == request_key(request("Where?", response_format=City))


def test_what_has_no_json_is_refused_with_its_path() -> None:
    with pytest.raises(ValidationError) as raised:
        request_key(request("Hi", options={"a": [object()]}))
    assert raised.value.reason == "not_serializable"
    assert raised.value.errors == ((("options", "a", 0), "not_serializable"),)


@pytest.mark.parametrize("arguments", [("Hi",), (FULL, OpenAIChat())])
def test_wrong_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(ValidationError, match="must be"):
        request_key(*arguments)

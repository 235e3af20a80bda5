"""What the request builders of all wires share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rxllm import (
    Anthropic,
    Gemini,
    Ollama,
    OpenAIChat,
    OpenAIResponses,
    Request,
    ValidationError,
    json_schema,
    user,
    validate,
)
from rxllm.adapters._requests import response_format
from rxllm.values import Call

WIRES = [Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses]
SCHEMA = {"type": "object"}


@pytest.mark.parametrize("text", [None, "text", {"type": "text"}])
@pytest.mark.parametrize("wire", WIRES)
def test_text_is_what_every_wire_answers_with_unasked(wire: Any, text: Any):
    def body(**options: Any) -> Any:
        request = Request((user("Hi"),), model="m", **options)
        return json.loads(wire(api_key="k").build(request, Call()).content)

    assert response_format(Request(response_format=text)) is None
    assert body(response_format=text) == body()


def test_a_schema_has_a_name():
    assert response_format(Request(response_format=json_schema("city", SCHEMA))) == json_schema("city", SCHEMA)
    nameless = Request(response_format={"type": "json_schema", "schema": SCHEMA, "description": "d", "other": 1})
    named = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "description": "d"}
    assert response_format(nameless) == named


@pytest.mark.parametrize(
    "wrong", ["yaml", 5, {}, {"type": "x"}, {"type": "json_schema"}, {"type": "json_schema", "schema": "city"}]
)
def test_an_unknown_format_is_refused_as_the_validation_refuses_it(wrong: Any):
    request = Request((user("Hi"),), model="m", response_format=wrong)
    with pytest.raises(ValidationError) as caught:
        response_format(request)
    assert caught.value.reason == "invalid_request"
    assert [path for path, _ in caught.value.errors] == [("response_format",)]
    assert f"not {wrong!r}" in str(caught.value)
    with pytest.raises(ValidationError) as caught:
        validate.request(request)
    assert caught.value.reason == "invalid_request"
    assert [path for path, _ in caught.value.errors] == [("response_format",)]

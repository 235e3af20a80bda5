"""A request that is built without being sent has the response format that a call sends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

import rxllm
from rxllm import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses, ValidationError, json_schema
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import Call


@dataclass
class City:
    name: str


OPENAI_FORM = {"type": "json_schema", "json_schema": {"name": "city", "schema": {"type": "object"}}}


@pytest.mark.sockets
@pytest.mark.parametrize("make", [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama])
@pytest.mark.parametrize(
    "form", [City, list[City], bool, json_schema("city", {"type": "object"}, strict=False), OPENAI_FORM, "text"]
)
def test_it_is_built_as_a_call_sends_it(make: Any, form: Any) -> None:
    with Loopback(Reply(status=400)) as server:
        adapter = make(api_key="key", base_url=server.url)
        built = adapter.build(rxllm.request("Hi", model="m", response_format=form), Call())
        with pytest.raises(rxllm.AdapterError):
            rxllm.generate(rxllm.Engine(adapter, "m"), "Hi", response_format=form, retry=False).run().raise_for_error()
    assert json.loads(built.content) == server.requests[0].json


@pytest.mark.parametrize("form", [{"type": "grammar"}, {"type": "json_schema"}, 3])
def test_what_is_no_format_is_refused(form: Any) -> None:
    with pytest.raises(ValidationError, match=r"response_format must be a type, 'text', .* or json_schema"):
        OpenAIChat(api_key="k").build(rxllm.request("Hi", model="m", response_format=form), Call())

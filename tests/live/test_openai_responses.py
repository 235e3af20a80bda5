"""The Responses API as llama.cpp speaks it: a real server, and one that leaves out much of what OpenAI says."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm.adapters.local.server import find_weights, serve
from rxllm.adapters.openai_responses import OpenAIResponses
from rxllm.collector import StreamCollector
from rxllm.events import RawChunk, TextDelta
from rxllm.runtime import run
from rxllm.values import Call, EngineError, Message, Request, Response, Tool, ToolCall, assistant, system, user
from rxllm.values import tool_result as told
from tests.wire.lawful import lawful

pytestmark = pytest.mark.judges

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")


@pytest.fixture(scope="module")
def server() -> OpenAIResponses:
    try:
        weights = find_weights()
    except EngineError as error:
        pytest.skip(str(error))
    return OpenAIResponses(base_url=f"{serve(weights, 8192).url}/v1")


def respond(server: OpenAIResponses, *messages: Message, **fields: Any) -> Response[Any]:
    request = Request(messages, "any", max_tokens=16, temperature=0.0, **fields)
    events = run(server.stream(request, Call()).to_list())
    lawful(events)
    assert any(isinstance(event, TextDelta) for event in events)
    assert not any(isinstance(event, RawChunk) for event in events)
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


def test_a_question(server: OpenAIResponses) -> None:
    response = respond(server, user("Say hi."))
    assert response.output_text
    assert (response.finish_reason, response.error) == ("stop", None)
    assert response.usage.output_tokens
    assert response.id is not None
    assert response.id.startswith("resp_")
    assert response.model


def test_a_conversation(server: OpenAIResponses) -> None:
    assert respond(server, system("Be brief."), user("Hi"), assistant("Hello"), user("Say hi.")).output_text


def test_a_tool_run(server: OpenAIResponses) -> None:
    called = Message("assistant", "Let me see.", tool_calls=(ToolCall("a", "f", {"x": 1}),))
    response = respond(server, user("Hi"), called, told("a", "42"), user("So?"), tools=(Tool("f", "Does"),))
    assert response.error is None

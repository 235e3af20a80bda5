"""Asked through its own adapter, a served engine folds to what it gives itself."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import (
    ChatResult,
    Engine,
    Nested,
    OpenAIChat,
    Response,
    RetryPolicy,
    SourceAdded,
    Tool,
    ToolCallStarted,
    Usage,
    web,
)
from rxllm import operators as ops
from tests.examples import examples
from tests.laws import scripts
from tests.web.completions import EVERY, HI, Replay, finish_of, itself, text_of, waits_in_agent
from tests.web.streams import DECODERS, of_recordings

law = settings(deadline=None, max_examples=examples(60))
RETRY = RetryPolicy(max_attempts=2, base_delay=0.0, jitter=0.0)
CLIENT_TOOLS = [Tool(name, manual=True) for name in [*scripts.TOOL_NAMES, "unknown"]]
OTHERS = [tool for tool in CLIENT_TOOLS if tool.name in ("manual", "approval", "unknown")]
OWN_TOOLS = [tool for tool in scripts.TOOLS if tool.name not in ("manual", "approval")]


def transport(engine: Engine) -> httpx.ASGITransport:
    return httpx.ASGITransport(web.openai_app({"m": engine}))


def through(engine: Engine, tools: list[Tool]) -> Response[Any]:
    """What the engine gives when it is served, and asked by our own adapter."""
    adapter = OpenAIChat(base_url="http://served/v1", client=lambda: httpx.AsyncClient(transport=transport(engine)))
    events = rxllm.stream_generate(Engine(adapter, model="m", retry=False), HI, tools=tools)
    return events.pipe(ops.errors_as_events(), ops.to_response()).run()


def whole(engine: Engine, tools: list[Tool]) -> Any:
    """The completion of a request without a stream."""
    body: dict[str, Any] = {"model": "m", "messages": HI.to_openai()}
    functions = [{"name": tool.name, "parameters": tool.schema} for tool in tools]
    if functions:
        body["tools"] = [{"type": "function", "function": function} for function in functions]

    async def main() -> Any:
        async with httpx.AsyncClient(transport=transport(engine), base_url="http://served/v1") as sdk:
            return (await sdk.post("/chat/completions", json=body)).json()

    return asyncio.run(main())


def counts(usage: Usage) -> tuple[int, ...]:
    return (usage.input_tokens or 0, usage.output_tokens or 0, usage.total, usage.cached_input_tokens or 0)


def calls_of(calls: Any) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, dict(call.arguments)) for call in calls]


def assert_same(response: Response[Any], result: ChatResult, name: str = "") -> None:
    assert response.output_text == text_of(result), name
    assert response.finish_reason == finish_of(result), name
    if result.error is None and not waits_in_agent(result):
        assert counts(response.usage) == counts(result.usage), name
        if response.finish_reason not in ("length", "content_filter"):  # a call that was cut off is not one
            assert calls_of(response.tool_calls) == calls_of(result.pending_tool_calls), name


@law
@given(scripts.scripts)
def test_a_served_model_folds_to_what_it_gives_itself(script: Any) -> None:
    result = itself(Engine(scripts.fake(script), retry=RETRY), CLIENT_TOOLS)
    response = through(Engine(scripts.fake(script), retry=RETRY), CLIENT_TOOLS)
    assert_same(response, result)
    if len(result.steps) == 1 and result.final_response is not None:  # it is that of one request, too
        direct = result.final_response
        assert response.output_text == direct.output_text
        assert response.thinking == direct.thinking
        if direct.finish_reason not in ("length", "content_filter", "error"):
            assert calls_of(response.tool_calls) == calls_of(direct.tool_calls)


@law
@given(scripts.scripts)
def test_a_served_engine_with_tools_folds_to_its_chat(script: Any) -> None:
    result = itself(Engine(scripts.fake(script), tools=tuple(OWN_TOOLS), retry=RETRY), OTHERS)
    response = through(Engine(scripts.fake(script), tools=tuple(OWN_TOOLS), retry=RETRY), OTHERS)
    assert_same(response, result)


@law
@given(scripts.scripts, st.booleans())
def test_a_whole_answer_is_the_fold_of_the_streamed_one(script: Any, with_tools: bool) -> None:
    tools = tuple(OWN_TOOLS) if with_tools else ()
    clients = OTHERS if with_tools else CLIENT_TOOLS
    folded = through(Engine(scripts.fake(script), tools=tools, retry=RETRY), clients)
    answer = whole(Engine(scripts.fake(script), tools=tools, retry=RETRY), clients)
    if folded.finish_reason == "error":
        assert answer["error"]["code"]
        return
    choice = answer["choices"][0]
    assert (choice["message"]["content"] or "") == folded.output_text
    assert choice["message"].get("reasoning_content", "") == folded.thinking
    assert choice["finish_reason"] == folded.finish_reason
    calls = choice["message"].get("tool_calls", [])
    if folded.finish_reason == "tool_calls":
        assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
            (call.id, call.raw_arguments) for call in folded.tool_calls
        ]
    assert answer["usage"]["total_tokens"] == folded.usage.total


@pytest.mark.parametrize("api", DECODERS)
def test_recorded_streams_fold_to_what_they_are(api: str) -> None:
    for name, events in of_recordings(api, EVERY):
        names = {event.name for event in events if isinstance(event, ToolCallStarted)}
        tools = [Tool(name, manual=True) for name in sorted(names)]
        result = itself(Engine(Replay(events), retry=False), tools)
        response = through(Engine(Replay(events), retry=False), tools)
        assert_same(response, result, name)
        if len(result.steps) == 1 and result.final_response is not None:
            assert response.thinking == result.final_response.thinking, name
        cited = [event.source["url"] for event in events if isinstance(event, SourceAdded) and event.source.get("url")]
        shown = [part.source["url"] for part in response.message.parts if isinstance(part, rxllm.values.SourcePart)]
        assert set(shown) == set(cited) or result.error is not None, name


def test_usage_has_every_field_and_that_of_agents() -> None:
    usage = Usage(10, 5, 4, 3, 2, 15, 0.5, 0.25, 0.75)
    response = through(Engine(rxllm.Fake(["Hi", usage])), [])
    assert response.usage == usage

    agent = [Nested(("c",), event) for event in rxllm.stream(Engine(rxllm.Fake(["Secret", Usage(100, 1)])), HI)]
    events = list(rxllm.stream_generate(rxllm.Fake(["Done", Usage(3, 3)]), HI))
    served = through(Engine(Replay([*events[:1], *agent, *events[1:]])), [])
    assert (served.output_text, served.usage.total) == ("Done", 107)


def test_the_usage_before_an_error_is_told() -> None:
    engine = Engine(rxllm.Fake(["Hel", Usage(7, 2), rxllm.AdapterError("rate_limited", retry_after=1.0)]), retry=False)
    response = through(engine, [])
    assert (response.output_text, response.finish_reason, response.usage.total) == ("Hel", "error", 9)
    assert response.error is not None
    assert response.error.reason == "rate_limited"

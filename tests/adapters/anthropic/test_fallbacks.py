"""Anthropic's own fallbacks: another model continues an answer that the first one refused to finish."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm import Anthropic, Engine, Stream, chat, generate, tool
from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.collector import StreamCollector
from rxllm.events import ToolCallCompleted
from rxllm.serializer import from_json, to_json
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Pause, Reply
from rxllm.values import Message, ProviderPart, Response, TextPart, ToolCall, ToolCallPart, tool_result, user
from tests.adapters.anthropic.sdk import asked, check
from tests.adapters.anthropic.support import END, HI, START, begin, finish, json_of, stop
from tests.wire.lawful import lawful

OPTIONS = {"fallbacks": [{"model": "claude-b"}], "betas": ["server-side-fallback-2026-07-01"]}


def hop(before: str, after: str) -> dict[str, Any]:
    trigger = {"type": "refusal", "category": "cyber"}
    return {"type": "fallback", "from": {"model": before}, "to": {"model": after}, "trigger": trigger}


def iteration(kind: str, model: str, tokens: int) -> dict[str, Any]:
    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"type": kind, "model": model, "input_tokens": tokens, "output_tokens": 1, **cache}


USED = {
    "input_tokens": 30,
    "output_tokens": 1,
    "iterations": [iteration("message", "claude-a", 10), iteration("fallback_message", "claude-b", 30)],
}


def blocks(*contents: dict[str, Any], start: int = 0) -> bytes:
    """Blocks as their start frames say them, and the JSON of calls as a delta."""
    frames: list[bytes] = []
    for index, content in enumerate(contents, start):
        arguments = content.get("input")
        bare = {**content, "input": {}} if arguments is not None else content
        frames += [begin(index, **bare), json_of(index, arguments) if arguments else b"", stop(index)]
    return b"".join(frames)


def act(id: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "act", "input": arguments}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig"}
SECOND = {"type": "thinking", "thinking": "ah", "signature": "sig2"}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": "{}"}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
LOST = {"type": "server_tool_use", "id": "s2", "name": "web_search", "input": "{}"}
SAID = {"type": "text", "text": "Well. "}
REFUSED = [THOUGHT, SAID, SEARCH, FOUND, LOST, act("a", '{"x": 1}')]
HANDED = hop("claude-a", "claude-b")
ANSWER = [SECOND, {"type": "text", "text": "Done"}]


def answer(*contents: dict[str, Any], reason: str = "end_turn") -> bytes:
    return START + blocks(*contents) + finish(reason, USED) + END


def response(body: bytes) -> Response[Any]:
    state = StreamCollector()
    decoder = MessagesDecoder(fallbacks=True)
    events = [*decoder.feed(body), *decoder.close()]
    lawful(events)
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


def talk(
    *replies: Any, eager: bool = False, streamed: bool = False, **options: Any
) -> tuple[Any, list[Any], list[int]]:
    """The result of a chat over these answers, the requests, and what the tool was called with."""
    ran: list[int] = []

    @tool(eager=eager)
    def act(x: int) -> str:
        """Act."""
        ran.append(x)
        return "done"

    @tool(name="act")
    async def act_on(x: Stream[str]) -> str:
        """Act as soon as the argument begins."""
        ran.append(0)
        return "done"

    async def app(world: World) -> Any:
        server = world.serve([Reply(reply) for reply in replies])
        engine = Engine(Anthropic(base_url=server.url, api_key="k"), model="claude-a", retry=False)
        result = await chat(engine, "Hi", tools=[act_on if streamed else act], options=options or OPTIONS)
        return result, [request.json for request in server.requests]

    result, requests = simulate(app, faults=()).value
    for request in requests:
        check(request)
    return result, requests, ran


@pytest.mark.parametrize("starts", [{}, {"eager": True}, {"streamed": True}, {"thinking": None}])
def test_no_tool_of_a_model_that_gave_way_runs(starts: dict[str, Any]) -> None:
    """The last case does not ask for fallbacks, so that its calls are complete when the other model takes over."""
    refused = [*REFUSED[:-1], act("a", '{"x": "a long text"}' if starts.get("streamed") else '{"x": 1}')]
    pauses = [START, blocks(*refused), Pause(10.0), blocks(HANDED, *ANSWER, start=6), finish("end_turn", USED), END]
    result, requests, ran = talk(pauses, **starts)
    assert (ran, len(requests), result.halted_reason) == ([], 1, "completed")
    assert result.final_response.output_text == "Well. Done"
    assert result.final_response.finish_reason == "stop"


def test_tools_of_the_model_that_answers_run_and_what_goes_back_leaves_out_what_must_be_left_out() -> None:
    first = answer(*REFUSED, HANDED, SECOND, act("b", '{"x": 2}'), reason="tool_use")
    result, requests, ran = talk(first, START + HI + finish() + END)
    assert (ran, result.halted_reason) == ([2], "completed")
    _, turn, results = requests[1]["messages"]
    assert turn["content"] == [
        SAID,
        {**SEARCH, "input": {}},
        FOUND,
        HANDED,
        SECOND,
        {"type": "tool_use", "id": "b", "name": "act", "input": {"x": 2}},
    ]
    assert [block["tool_use_id"] for block in results["content"]] == ["b"]
    assert result.thread.messages[-1].text == "Hi"


def test_only_what_stands_before_the_last_fallback_is_left_out() -> None:
    last = hop("claude-b", "claude-c")
    message = response(answer(THOUGHT, SAID, HANDED, SECOND, act("a", "{}"), last, *ANSWER)).message
    assert message is not None
    sent = asked(user("Hi"), from_json(to_json(message)), user("And?"))["messages"]
    assert sent[1]["content"] == [SAID, HANDED, last, *ANSWER]


def test_results_of_calls_that_are_left_out_are_left_out_too() -> None:
    """As in a thread that was stored by a program that ran the call."""
    parts = (TextPart("Well."), ToolCallPart("a"), ProviderPart("anthropic", HANDED), TextPart("Done"))
    message = Message("assistant", parts, tool_calls=(ToolCall("a", "act", {"x": 1}),))
    sent = asked(user("Hi"), message, tool_result("a", "done"), user("And?"))["messages"]
    assert [turn["role"] for turn in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == [{"type": "text", "text": "Well."}, HANDED, {"type": "text", "text": "Done"}]
    assert sent[2]["content"] == "And?"


def test_the_response_says_which_model_answered_and_what_each_one_used() -> None:
    result = response(answer(*REFUSED, HANDED, *ANSWER))
    assert result.model == "claude-b"
    assert result.metadata["fallbacks"] == [{name: HANDED[name] for name in ("from", "to", "trigger")}]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (40, 2)
    used = [(each["extra"]["model"], each["input_tokens"]) for each in result.usage.extra["iterations"]]
    assert used == [("claude-a", 10), ("claude-b", 30)]


def test_a_model_that_answers_without_a_boundary_is_named_by_the_usage() -> None:
    result = response(START + HI + finish("end_turn", USED) + END)
    assert (result.model, result.metadata.get("fallbacks")) == ("claude-b", None)


def test_an_answer_that_is_not_streamed_says_the_same() -> None:
    content = [{**block, "input": {"x": 1}} if "input" in block else block for block in [*REFUSED, HANDED, *ANSWER]]
    message = {"type": "message", "id": "r1", "model": "claude-b", "content": content, "stop_reason": "end_turn"}

    async def app(world: World) -> Any:
        server = world.serve(Reply.of_json({**message, "usage": USED}))
        engine = Engine(Anthropic(base_url=server.url, api_key="k"), model="claude-a", retry=False)
        return await generate(engine, "Hi", options=OPTIONS)

    result = simulate(app, faults=()).value
    assert (result.output_text, result.tool_calls, result.model) == ("Well. Done", (), "claude-b")


def test_a_chain_that_ends_in_a_refusal_is_refused() -> None:
    result = response(answer(SAID, HANDED, reason="refusal"))
    assert (result.refused, result.model) == (True, "claude-b")


def test_no_cut_of_the_bytes_changes_the_calls() -> None:
    body = answer(*REFUSED, HANDED, SECOND, act("b", '{"x": 2}'), reason="tool_use")
    whole = response(body)
    assert [call.id for call in whole.tool_calls] == ["b"]
    for place in range(0, len(body), 97):
        decoder = MessagesDecoder(fallbacks=True)
        events = [*decoder.feed(body[:place]), *decoder.feed(body[place:]), *decoder.close()]
        calls = {event.id: event.metadata.get("error") for event in events if isinstance(event, ToolCallCompleted)}
        assert calls == {"s1": None, "s2": None, "a": "incomplete", "b": None}

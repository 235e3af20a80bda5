"""Refusals: on every wire they look the same, run no tool, and can be answered by another model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from reactivex.testing import TestScheduler

from rxllm import (
    AdapterError,
    Anthropic,
    Engine,
    Fake,
    Gemini,
    OpenAIChat,
    OpenAIResponses,
    RetryPolicy,
    StreamError,
    ToolCall,
    ValidationError,
    chat,
    generate,
    stream,
    stream_generate,
    tool,
)
from rxllm import operators as ops
from rxllm.adapters import Ollama
from rxllm.display import timeline
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
)
from rxllm.serializer import from_json, to_json
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Reply
from rxllm.testing.marbles import cold, record
from rxllm.values import Message


def sse(*frames: dict[str, Any]) -> Reply:
    lines = (f"event: {frame['type']}\n" if "type" in frame else "" for frame in frames)
    body = "".join(f"{line}data: {json.dumps(frame)}\n\n" for line, frame in zip(lines, frames, strict=True))
    return Reply(body.encode())


def of_claude(reason: str, *blocks: dict[str, Any]) -> Reply:
    message = {"id": "m", "model": "c", "content": [*blocks]}
    end = {"stop_reason": reason, "stop_details": {"type": "refusal", "category": "cyber", "explanation": "no"}}
    starts = [
        frame
        for index, block in enumerate(blocks)
        for frame in (
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_stop", "index": index},
        )
    ]
    message["content"] = []
    return sse(
        {"type": "message_start", "message": message},
        *starts,
        {"type": "message_delta", "delta": end},
        {"type": "message_stop"},
    )


def of_chat(reason: str, *deltas: dict[str, Any]) -> Reply:
    choices = [*({"index": 0, "delta": delta} for delta in deltas), {"index": 0, "delta": {}, "finish_reason": reason}]
    return sse(*({"id": "c", "model": "g", "choices": [choice]} for choice in choices))


def of_responses(reason: str | None, *items: dict[str, Any]) -> Reply:
    status: dict[str, Any] = {"status": "completed"}
    if reason is not None:
        status = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    created = {"type": "response.created", "response": {"id": "r", "model": "g"}}
    done = {"id": "r", "model": "g", "output": [*items], **status}
    return sse(created, {"type": "response.completed", "response": done})


def of_gemini(*chunks: dict[str, Any]) -> Reply:
    return sse(*chunks)


def of_ollama(**last: Any) -> Reply:
    body = json.dumps({"model": "o", "done": True, "message": {"role": "assistant", "content": "", **last}, **last})
    return Reply((body + "\n").encode(), headers={"Content-Type": "application/x-ndjson"})


CLAUDES = {"type": "tool_use", "id": "t", "name": "act", "input": {"x": 1}}
CHATS = {
    "tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "act", "arguments": '{"x": 1}'}}]
}
ITEM = {"type": "function_call", "id": "f", "call_id": "t", "name": "act", "arguments": '{"x": 1}'}
NO = {"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "No."}]}
PART = {"content": {"parts": [{"functionCall": {"name": "act", "args": {"x": 1}}}]}}
CALL = {"tool_calls": [{"function": {"name": "act", "arguments": {"x": 1}}}]}

SILENT: dict[str, tuple[Any, Reply]] = {
    "anthropic": (Anthropic, of_claude("refusal")),
    "anthropic, after a thought that is not shown": (
        Anthropic,
        of_claude("refusal", {"type": "thinking", "thinking": "", "signature": "sig"}),
    ),
    "a gateway before anthropic": (Anthropic, of_claude("guardrail_intervened")),
    "chat": (OpenAIChat, of_chat("content_filter")),
    "chat, as text": (OpenAIChat, of_chat("stop", {"refusal": "I "}, {"refusal": "cannot."})),
    "a gateway of bedrock": (OpenAIChat, of_chat("guardrail_intervened")),
    "a gateway of vertex": (OpenAIChat, of_chat("PROHIBITED_CONTENT")),
    "responses": (OpenAIResponses, of_responses("content_filter")),
    "responses, as text": (OpenAIResponses, of_responses(None, NO)),
    "gemini": (Gemini, of_gemini({"candidates": [{"finishReason": "SAFETY"}]})),
    "gemini, the prompt": (Gemini, of_gemini({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})),
    "ollama": (Ollama, of_ollama(done_reason="content_filter")),
    "azure, the prompt": (
        OpenAIChat,
        Reply.of_json({"error": {"code": "content_filter", "message": "The response was filtered"}}, 400),
    ),
}

WITH_CALLS: dict[str, tuple[Any, Reply]] = {
    "anthropic": (Anthropic, of_claude("refusal", CLAUDES)),
    "a gateway before anthropic": (Anthropic, of_claude("content_filtered", CLAUDES)),
    "chat": (OpenAIChat, of_chat("content_filter", CHATS)),
    "chat, as text": (OpenAIChat, of_chat("tool_calls", CHATS, {"refusal": "No."})),
    "a gateway of bedrock": (OpenAIChat, of_chat("content_filtered", CHATS)),
    "responses": (OpenAIResponses, of_responses("content_filter", ITEM)),
    "responses, as text": (OpenAIResponses, of_responses(None, ITEM, NO)),
    "gemini": (Gemini, of_gemini({"candidates": [PART]}, {"candidates": [{"finishReason": "SAFETY"}]})),
    "gemini, the prompt": (
        Gemini,
        of_gemini({"candidates": [PART], "promptFeedback": {"blockReason": "SAFETY"}}),
    ),
    "ollama": (Ollama, of_ollama(done_reason="content_filter", **CALL)),
}


def asked(adapter: Any, reply: Reply, ask: Callable[[Engine], Any], **options: Any) -> tuple[Any, int]:
    """The result of asking a model that replies so, and how many requests it got."""

    async def app(world: World) -> Any:
        server = world.serve(reply)
        key = {} if adapter is Ollama else {"api_key": "k"}
        return await ask(Engine(adapter(base_url=server.url, **key), model="m", retry=False, **options)), server

    result, server = simulate(app, faults=()).value
    return result, len(server.requests)


@pytest.mark.parametrize("name", SILENT)
def test_another_model_answers_where_one_refuses_on_every_wire(name: str) -> None:
    adapter, reply = SILENT[name]
    other = Fake("Hello")
    response, _ = asked(adapter, reply, lambda engine: generate(engine, "Hi"), operators=[ops.fallback(other)])
    assert (response.output_text, response.refused, len(other.requests)) == ("Hello", False, 1)
    assert response.metadata["fallback"]["answered_by"] == "Fake"
    assert "content_filter" in response.metadata["fallback"]["errors"][0]

    def ask(engine: Engine) -> Any:
        return stream_generate(engine, "Hi").to_list()

    if "azure" not in name:  # an error before the first event is raised
        events, _ = asked(adapter, reply, ask)
        refused = events[-1]
        assert isinstance(refused, MessageCompleted)
        assert refused.finish_reason == "content_filter"
        events, _ = asked(adapter, reply, ask, operators=[ops.fallback(other)])
        assert [event.delta for event in events if isinstance(event, TextDelta)] == ["Hello"]


@pytest.mark.parametrize("name", WITH_CALLS)
@pytest.mark.parametrize("eager", [False, True])
def test_a_refused_models_tool_does_not_run(name: str, eager: bool) -> None:
    adapter, reply = WITH_CALLS[name]
    ran: list[Any] = []

    @tool(eager=eager)
    def act(x: int) -> str:
        """Act."""
        ran.append(x)
        return "done"

    chats, requests = asked(adapter, reply, lambda engine: chat(engine, "Hi", tools=[act]))
    assert requests == 1
    assert eager or ran == []  # an eager tool may start before the refusal, but its result is not used
    assert chats.final_response.refused
    assert (chats.halted_reason, chats.pending_tool_calls) == ("completed", ())
    assert all(not message.tool_calls and message.role != "tool" for message in chats.thread)


def test_a_response_says_that_it_was_refused_in_json_too() -> None:
    for script in (("finish", "content_filter"), ("error", AdapterError("content_filter"))):
        response = generate(Engine(Fake(["Well", script]), retry=False), "Hi").run()
        assert response.refused
        assert from_json(to_json(response)).refused
    assert not generate(Fake("Hi"), "Hi").run().refused


# fallback

REFUSED = MessageCompleted(Message("assistant"), "content_filter", "refusal", {"stop_details": {"category": "cyber"}})
CUT = MessageCompleted(Message("assistant"), "length", "max_tokens")
END = MessageCompleted(Message("assistant", "H"), "stop")
VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "H": TextDelta("H"),
    "n": TextDelta("No", None, True),
    "N": TextCompleted("No", None, True),
    "t": ThinkingDelta("", None, 12),
    "T": ThinkingCompleted("", "sig"),
    "r": REFUSED,
    "c": CUT,
    "e": END,
    "x": ErrorEvent(StreamError("timeout")),
}


def played(*marbles: str, with_others: Callable[..., Any] | None = None, **options: Any) -> list[Any]:
    """The names of what is seen of the first stream, with the others to fall back on, and how it ends."""
    scheduler = TestScheduler()
    first, *others = (cold(scheduler, each, VALUES) for each in marbles)
    operator = (with_others or ops.fallback)(*others, **options)
    return [
        name_of(what) if kind == "next" else kind for _, kind, what in record(scheduler, lambda: first.pipe(operator))
    ]


def name_of(event: Event) -> str:
    if isinstance(event, MessageCompleted):
        return str(event.finish_reason)
    return next((name for name, value in VALUES.items() if value == event), type(event).__name__)


ANSWER = ["s", "H", "stop", "end"]


@pytest.mark.parametrize("first", ["-s-r|", "-s-t-t-T-r|", "-s-n-n-N-r|", "-r|"])
def test_a_refusal_without_content_leaves_no_trace(first: str) -> None:
    assert played(first, "-s-H-e|") == ANSWER


def test_what_is_held_back_is_released_once_it_is_an_answer() -> None:
    assert played("-s-t-n-N-H-e|", "-s-H-e|") == ["s", "t", "n", "N", "H", "stop", "end"]
    assert played("-s-r|", "-s-n-N-r|") == ["s", "n", "N", "content_filter", "end"]


def test_a_refusal_after_content_is_the_answer_unless_the_option_says_otherwise() -> None:
    assert played("-s-H-r|", "-s-H-e|") == ["s", "H", "content_filter", "end"]
    restarted = ["s", "H", "Custom", "StepRestarted", *ANSWER]
    assert played("-s-H-r|", "-s-H-e|", after_content=True) == restarted
    assert played("-s-H-x|", "-s-H-e|", after_content=True) == restarted
    assert played("-s-r|", "-s-H-e|", after_content=True) == ANSWER
    assert played("-s-H-r|", "-s-r|", after_content=True)[2:] == [
        "Custom",
        "StepRestarted",
        "s",
        "content_filter",
        "end",
    ]


@pytest.mark.parametrize(
    ("on", "falls_back"), [("errors", "xX"), ("refusals", "r"), ("limits", "cl"), (("errors", "limits"), "xXcl")]
)
def test_on_names_what_triggers_a_fallback(on: Any, falls_back: str) -> None:
    errors = {"X": AdapterError("network_error"), "l": ErrorEvent(AdapterError("context_length_exceeded"))}
    for kind in "xXrcl":
        scheduler = TestScheduler()
        first, other = (
            cold(scheduler, each, {**VALUES, **errors})
            for each in (f"-s-{kind}{'' if kind == 'X' else '|'}", "-s-H-e|")
        )
        seen = record(scheduler, lambda first=first, other=other: first.pipe(ops.fallback(other, on=on)))
        is_limited_error = kind == "l" and "errors" in on
        assert bool(other.subscriptions) is (kind in falls_back or is_limited_error), (on, kind, seen)


def test_by_default_an_answer_that_is_cut_off_is_the_answer() -> None:
    assert played("-s-c|", "-s-H-e|") == ["s", "length", "end"]


def test_when_is_asked_about_refusals() -> None:
    errors: list[Any] = []

    def when(error: Exception) -> bool:
        errors.append(error)
        return False

    assert played("-s-r|", "-s-H-e|", when=when) == ["s", "content_filter", "end"]
    (error,) = errors
    assert (error.reason, error.code) == ("content_filter", "refusal")
    assert error.metadata == {"stop_details": {"category": "cyber"}}


def test_wrong_options_are_named() -> None:
    for options, name in [
        ({"on": "error"}, "on"),
        ({"on": ()}, "on"),
        ({"on": 1}, "on"),
        ({"sticky": 1}, "sticky"),
        ({"after_content": "yes"}, "after_content"),
    ]:
        with pytest.raises(ValidationError) as caught:
            ops.fallback(Fake("Hi"), **options)
        assert caught.value.errors[0][0] == (name,)
    with pytest.raises(ValidationError, match="operators"):
        stream_generate(Fake("Hi"), "Hi").pipe(ops.fallback(stream_generate(Fake("Hi"), "Hi"), sticky=True)).run()


def test_a_refusal_sticks_for_the_conversation() -> None:
    refuses: Any = [("finish", "content_filter")]
    first, second, third = Fake(refuses, "mine"), Fake(refuses, "again"), Fake("Hello", "Well", "So")
    engine = Engine(first, operators=[ops.fallback(second, third, sticky=True)])
    one = chat(engine, "Hi").run()
    thread = from_json(to_json(one.thread.add_user("And?")))
    two = chat(engine, thread).run()
    three = chat(engine, two.thread.add_user("So?")).run()
    texts = [result.final_response.output_text for result in (one, two, three) if result.final_response]
    assert texts == ["Hello", "Well", "So"]
    assert [len(fake.requests) for fake in (first, second, third)] == [1, 1, 3]
    assert two.final_response is not None
    assert two.final_response.metadata["fallback"] == {"answered_by": "Fake", "errors": ()}
    assert chat(engine, "A new conversation").run().final_response.output_text == "mine"  # type: ignore[union-attr]


def test_an_error_does_not_stick() -> None:
    first, second = Fake(AdapterError("network_error"), "mine"), Fake("Hello")
    engine = Engine(first, operators=[ops.fallback(second, sticky=True)], retry=False)
    result = chat(engine, "Hi").run()
    assert chat(engine, result.thread.add_user("And?")).run().final_response.output_text == "mine"  # type: ignore[union-attr]


def test_tools_run_for_the_model_that_answers() -> None:
    ran: list[int] = []

    @tool
    def act(x: int) -> str:
        """Act."""
        ran.append(x)
        return "done"

    refuses: Any = ["Well", ToolCall("a", "act", {"x": 1}), ("finish", "content_filter")]
    second = Fake(ToolCall("b", "act", {"x": 2}), "Done")
    engine = Engine(Fake(refuses), operators=[ops.fallback(second, after_content=True, sticky=True)])
    events = stream(engine, "Hi", tools=[act]).to_list().run()
    assert ran == [2]
    assert sum(isinstance(event, StepRestarted) for event in events) == 1
    assert events[-1].result.final_response.output_text == "Done"


def test_a_timeline_shows_an_answer_that_was_replaced_once() -> None:
    first, second = Fake(["Well", ("finish", "content_filter")]), Fake("Hello")
    engine = Engine(first, operators=[ops.fallback(second, after_content=True)])
    drawing = str(timeline(stream_generate(engine, "Hi").pipe(ops.timed()).to_list().run()))
    assert drawing.count("content_filter") == 1
    assert "fallback" not in drawing


# race, hedge, retry, restart, circuit_breaker


def test_a_refusal_drops_out_of_a_race() -> None:
    for refusal in ("-s-r|", "s-n-N-r|"):
        assert played(refusal, "------s-H-e|", with_others=ops.race) == ANSWER
    assert played("-s-r|", "---s-n-N-r|", with_others=ops.race) == ["s", "n", "N", "content_filter", "end"]


def test_a_hedged_call_takes_the_refusal() -> None:
    scheduler = TestScheduler()
    first = cold(scheduler, "---s-r|", VALUES)
    seen = record(scheduler, lambda: first.pipe(ops.hedge(after=1)))
    assert [name_of(what) for _, kind, what in seen if kind == "next"] == ["s", "content_filter"]


def test_a_refusal_is_asked_again_only_by_a_policy_that_names_it() -> None:
    again: Any = RetryPolicy(base_delay=0, jitter=0, retry_on=frozenset({"content_filter"}))
    refuses: Any = [("finish", "content_filter")]
    partly: Any = ["Well", ("finish", "content_filter")]
    assert generate(Engine(Fake(refuses, "Hi"), retry=again), "Hi").run().output_text == "Hi"
    assert generate(Fake(refuses, "Hi"), "Hi").run().refused
    assert generate(Engine(Fake(partly, "Hi"), operators=[ops.restart(again)]), "Hi").run().output_text == "Hi"
    assert generate(Engine(Fake(partly, "Hi"), operators=[ops.restart({"base_delay": 0})]), "Hi").run().refused


def test_a_refusal_does_not_open_a_circuit() -> None:
    states: list[str] = []
    model = Fake(lambda request: [("finish", "content_filter")])
    engine = Engine(model, operators=[ops.circuit_breaker(1, on_change=states.append)])
    assert [generate(engine, "Hi").run().refused for _ in range(3)] == [True] * 3
    assert states == []

"""A stopped turn that keeps its partial text, and the request that follows it on every wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Subject
from reactivex import operators as rx

from rxllm import Engine, Fake, Local, StreamError, ToolCall, serializer, session, tool, validate
from rxllm import operators as ops
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses, connect
from rxllm.events import (
    ChatCompleted,
    Custom,
    ErrorEvent,
    Event,
    MessageStarted,
    Nested,
    StepCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolExecutionStarted,
    ToolResultEncoded,
)
from rxllm.http import Decoder
from rxllm.testing import World, simulate
from rxllm.values import Call, EngineError, Message, Request, Session, Thread, Turn, ValidationError, user
from rxllm.values.sessions import open_agents
from tests.adapters import streams
from tests.corpus import recordings
from tests.examples import examples
from tests.laws import scripts
from tests.waiting import until

STOPPED = {"error": "The tool was stopped before it finished. It may already have done some or all of its work."}
INITIAL = Session("s", Thread((user("Hi"), Message("assistant", "Hello"))))


@tool
def double(x: int) -> int:
    return 2 * x


def folded(events: Sequence[Event], **options: Any) -> Turn:
    return reactivex.from_iterable(events).pipe(ops.to_session(INITIAL, **options)).run()


def events_of(*pieces: Any, **options: Any) -> list[Event]:
    return list(session.stream_reply(Fake(*pieces), INITIAL, "And?", **options))


def up_to(events: Sequence[Event], last: Callable[[Event], bool]) -> list[Event]:
    return list(
        reactivex.from_iterable(events).pipe(rx.take_while(lambda e: not last(e), inclusive=True)).to_list().run()
    )


# What is kept


def test_a_stopped_turn_keeps_its_text_and_says_so() -> None:
    events = up_to(events_of(["In ", "Rome", " too"]), lambda e: isinstance(e, TextDelta) and e.delta == "Rome")
    turn = folded(events, keep_partial=True)
    assert [message.text for message in turn.session.messages] == ["Hi", "Hello", "And?", "In Rome"]
    assert turn.session.messages[-1].metadata == {"partial": "cancelled"}
    assert (turn.session.status, turn.output_text) == ("completed", "In Rome")
    assert session.reply(Fake("Go on."), turn.session, "More!").run().output_text == "Go on."


def test_by_default_it_keeps_the_users_message_alone() -> None:
    events = up_to(events_of(["In ", "Rome", " too"]), lambda e: isinstance(e, TextDelta) and e.delta == "Rome")
    assert [message.text for message in folded(events).session.messages] == ["Hi", "Hello", "And?"]


def test_a_turn_that_is_whole_is_the_same() -> None:
    events = events_of(ToolCall("c1", "double", {"x": 2}), "4", tools=[double])
    assert folded(events, keep_partial=True) == folded(events)


def test_an_unfinished_tool_call_is_left_out() -> None:
    pieces = ["Let me see", *(("tool_call_delta", {"id": "c1", "name": "double", "arguments_delta": d}) for d in "{}")]
    for last in (ToolCallDelta, ToolCallCompleted, ToolExecutionStarted):
        events = up_to(events_of(pieces, tools=[double]), lambda e, last=last: isinstance(e, last))
        turn = folded(events, keep_partial=True)
        assert turn.session.messages[-1] == Message("assistant", "Let me see", metadata={"partial": "cancelled"})


def test_a_tool_call_behind_one_text_stays_with_its_result() -> None:
    """Such a message has no marks among its parts."""
    events = events_of(["Let me see", ToolCall("c1", "double", {"x": 2})], "4", tools=[double])
    turn = folded(up_to(events, lambda e: isinstance(e, ToolResultEncoded)), keep_partial=True)
    *_, message, result = turn.session.messages
    assert (message.content, [call.id for call in message.tool_calls], result.text) == ("Let me see", ["c1"], "4")


def test_a_finished_tool_call_stays_with_its_result() -> None:
    free = asyncio.Event()

    @tool
    async def hang(x: int) -> int:
        await free.wait()
        return x

    calls = [ToolCall("c1", "hang", {"x": 1}), "so", ToolCall("c2", "double", {"x": 2})]
    stopped = session.stream_reply(Fake(calls), INITIAL, "And?", tools=[double, hang]).pipe(
        rx.take_while(lambda e: not isinstance(e, ToolResultEncoded), inclusive=True)
    )
    turn = stopped.pipe(ops.to_session(INITIAL, keep_partial=True)).run()
    *_, question, message, result = turn.session.messages
    assert (question.text, message.text, result) == ("And?", "so", Message("tool", "4", tool_call_id="c2"))
    assert [call.id for call in message.tool_calls] == ["c2"]
    assert (turn.session.status, turn.session.pending_tool_calls) == ("completed", ())


def test_a_resumed_step_keeps_its_results_and_does_not_run_a_stopped_tool_again() -> None:
    paid: list[str] = []

    @tool(approval=True)
    async def pay(to: str) -> str:
        await (asyncio.sleep(0) if to == "ada" else asyncio.Event().wait())
        paid.append(to)
        return f"paid {to}"

    calls = [ToolCall(id, "pay", {"to": to}) for id, to in (("a", "ada"), ("b", "bob"), ("c", "cy"))]
    options: Any = {"tools": [pay], "max_concurrency": 1}
    waiting = session.start(Fake(calls), "Pay!", **options).run().session
    events = session.stream_resume(Fake("Done."), waiting, approvals={"a": True, "b": True, "c": True}, **options)

    def is_second(event: Any) -> bool:
        return isinstance(event, ToolExecutionStarted) and event.id == "b"

    stopped = events.pipe(rx.take_while(lambda event: not is_second(event), inclusive=True))
    cut = stopped.pipe(ops.to_session(waiting, keep_partial=True)).run().session
    assert (cut.status, [call.id for call in cut.pending_tool_calls], paid) == ("awaiting_tools", ["c"], ["ada"])
    assert [message.tool_call_id for message in cut.messages[-2:]] == ["a", "b"]
    assert cut.messages[-2] == Message("tool", "paid ada", tool_call_id="a")
    assert cut.messages[-1].content == STOPPED


def test_a_tool_that_a_time_limit_stops_is_answered() -> None:
    @tool(approval=True)
    async def pay() -> None:
        await asyncio.Event().wait()

    waiting = session.start(Fake(ToolCall("a", "pay")), "Pay!", tools=[pay]).run().session
    events = session.stream_resume(Fake("Done."), waiting, approvals={"a": True}, tools=[pay])
    limited = events.pipe(ops.time_limits(total=5.0), ops.to_session(waiting, keep_partial=True))

    async def app(world: World) -> Turn:
        return await limited

    turn = simulate(app, faults=()).value
    assert turn.session.messages[-1] == Message("tool", STOPPED, tool_call_id="a")


def test_a_stopped_tool_of_an_agent_does_not_run_again() -> None:
    @tool(approval=True)
    async def pay(to: str) -> str:
        await (asyncio.sleep(0) if to == "ada" else asyncio.Event().wait())
        return f"paid {to}"

    calls = [ToolCall("a", "pay", {"to": "ada"}), ToolCall("b", "pay", {"to": "bob"})]
    agent = Engine(Fake(calls), tools=[pay]).as_tool(name="agent", description="Pays.")
    engine = Engine(Fake(ToolCall("x", "agent", {"prompt": "Pay!"})), tools=[agent])
    waiting = session.start(engine, "Pay!").run().session
    events = session.stream_resume(engine, waiting, approvals={"x/a": True, "x/b": True})

    def is_answer(event: Any) -> bool:
        return isinstance(event, Nested) and isinstance(event.event, ToolResultEncoded)

    stopped = events.pipe(rx.take_while(lambda event: not is_answer(event), inclusive=True))
    cut = stopped.pipe(ops.to_session(waiting, keep_partial=True)).run().session
    assert (cut.status, cut.pending_tool_calls) == ("completed", ())
    (agent_thread,) = open_agents(cut.thread).values()
    assert [message.content for message in agent_thread[-2:]] == ["paid ada", STOPPED]


@pytest.mark.parametrize(
    "events", [[], [ThinkingDelta("Hm")], [TextDelta(" \n")], [MessageStarted(Message("assistant"))]]
)
def test_without_text_there_is_no_message(events: list[Event]) -> None:
    begun = Custom("session_turn", {"session": INITIAL.replied("And?"), "operation": "reply"})
    assert folded([begun, *events], keep_partial=True) == folded([begun, *events])


def test_thinking_of_a_broken_answer_keeps_its_text_without_a_signature() -> None:
    events: list[Event] = [
        Custom("session_turn", {"session": INITIAL.replied("And?"), "operation": "reply"}),
        ThinkingDelta("Hm"),
        ThinkingCompleted("Hm", "signed", {"provider": "anthropic"}),
        TextDelta("Well"),
    ]
    message = folded(events, keep_partial=True).session.messages[-1]
    assert [(type(part).__name__, getattr(part, "signature", None)) for part in message.parts] == [
        ("ThinkingPart", None),
        ("TextPart", None),
    ]


def test_an_error_below_the_steps_keeps_the_text_and_says_so() -> None:
    events = up_to(events_of(["In ", "Rome"]), lambda e: isinstance(e, TextDelta))
    turn = folded([*events, ErrorEvent(StreamError("timeout"))], keep_partial=True)
    assert (turn.session.status, turn.session.messages[-1].text) == ("error", "In ")
    assert turn.session.messages[-1].metadata == {"partial": "error"}


def test_after_an_error_of_the_model_the_option_changes_nothing() -> None:
    events = events_of(["In ", StreamError("truncated")])
    assert folded(events, keep_partial=True) == folded(events)
    assert folded(events).session.messages[-1].text == "In "


# How it is stopped


def test_a_stop_button_emits_the_turn() -> None:
    stop, turns, seen = Subject[None](), list[Turn](), list[Event]()

    async def main() -> None:
        story = session.stream_reply(Fake(["Once", " upon", ("delay", 60)]), INITIAL, "A story!")
        turn = story.do_action(seen.append).take_until(stop).pipe(ops.to_session(INITIAL, keep_partial=True))
        turn.subscribe(turns.append)
        await until(lambda: [event for event in seen if isinstance(event, TextDelta) and event.delta == " upon"])
        stop.on_next(None)

    asyncio.run(main())
    assert turns[0].session.messages[-1].text == "Once upon"


@pytest.mark.parametrize("function", [lambda turn, outcome: (turn, outcome), "async"])
def test_however_it_is_left_finally_result_has_the_turn(function: Any) -> None:
    saved: list[tuple[Turn, str]] = []

    def save(turn: Turn, outcome: str) -> None:
        saved.append((turn, outcome))

    async def save_later(turn: Turn, outcome: str) -> None:
        await asyncio.sleep(0)
        save(turn, outcome)

    async def main() -> None:
        story = session.stream_reply(Fake(["Once", " upon", ("delay", 60)]), INITIAL, "A story!")
        keep = ops.finally_result(
            save_later if function == "async" else save, ops.to_session(INITIAL, keep_partial=True)
        )
        async for text in story.pipe(keep, ops.text()):
            if text == " upon":
                break
        await until(lambda: saved)

    asyncio.run(main())
    [(turn, outcome)] = saved
    assert (turn.session.messages[-1].text, outcome) == ("Once upon", "cancelled")


def test_the_option_is_not_the_calls() -> None:
    with pytest.raises(EngineError) as caught:
        session.reply(Fake("Hi"), INITIAL, "Hi", keep_partial=True)  # pyright: ignore[reportCallIssue]
    assert "ops.to_session(session, keep_partial=True)" in caught.value.message
    with pytest.raises(ValidationError):
        ops.to_session(INITIAL, keep_partial="yes")  # pyright: ignore[reportArgumentType]


# The next request


def local() -> Local:
    from rxllm.adapters.local.server import Server

    adapter = Local()
    adapter._server = Server("http://127.0.0.1:1", knows_tools=True)  # pyright: ignore[reportPrivateUsage]
    return adapter


WIRES: dict[str, Any] = {
    "openai-chat": OpenAIChat(api_key="k"),
    "deepseek": connect("deepseek", api_key="k"),
    "openai-responses": OpenAIResponses(api_key="k"),
    "anthropic-messages": Anthropic(api_key="k"),
    "gemini": Gemini(api_key="k"),
    "ollama-chat": Ollama(),
    "local": local(),
}


def body_of(wire: str, thread: Thread) -> Any:
    request = Request(thread.messages, model="gemini-3-pro" if wire == "gemini" else "m")
    return json.loads(WIRES[wire].build(request, Call()).content)


def assert_legal(wire: str, thread: Thread) -> None:
    """What the providers' documentation demands of a conversation, beyond its types."""
    body = body_of(wire, thread)
    if wire == "anthropic-messages":
        legal_for_anthropic(body["messages"])
    elif wire == "gemini":
        legal_for_gemini(body["contents"])
    elif wire == "openai-responses":
        legal_for_responses(body["input"])
    else:
        legal_for_chat(body["messages"])


def legal_for_chat(messages: list[Any]) -> None:
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        waiting = {call["id"] for call in message.get("tool_calls", ())}
        assert message.get("content") or waiting or message["role"] != "assistant"
    assert not waiting


def legal_for_responses(items: list[Any]) -> None:
    named = [item for item in items if "call_id" in item]
    results = [item["call_id"] for item in named if item["type"].endswith("_output")]
    assert sorted(item["call_id"] for item in named if not item["type"].endswith("_output")) == sorted(results)
    for item, following in pairwise(items):
        # "provided without its required following item"
        assert item.get("type") != "reasoning" or following.get("role") != "user"


def legal_for_anthropic(turns: list[Any]) -> None:
    roles = [turn["role"] for turn in turns]
    assert all(role != following for role, following in pairwise(roles))
    waiting: list[str] = []
    for turn in turns:
        blocks = [{"type": "text", "text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]
        assert [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"] == waiting
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        server = [block["id"] for block in blocks if block["type"] in ("server_tool_use", "mcp_tool_use")]
        found = [block["tool_use_id"] for block in blocks if block["type"].endswith("tool_result")]
        assert turn["role"] == "user" or sorted(server) == sorted(found)
        assert blocks[-1]["type"] not in ("thinking", "redacted_thinking")
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
    assert waiting == []


def legal_for_gemini(contents: list[Any]) -> None:
    waiting: list[str] = []
    for content in contents:
        assert content["parts"]
        assert [p["functionResponse"]["name"] for p in content["parts"] if "functionResponse" in p] == waiting
        calls = [part for part in content["parts"] if "functionCall" in part]
        assert not calls or calls[0].get("thoughtSignature")
        waiting = [part["functionCall"]["name"] for part in calls]
    assert waiting == []


def sound(turn: Turn) -> Session:
    """The session with the user's next message: valid, and exact in JSON."""
    validate.session(turn.session)
    assert serializer.from_json(serializer.to_json(turn.session)) == turn.session
    assert turn.session.status == "completed"
    return turn.session.replied("Go on.")


DECODERS: dict[str, tuple[Callable[[], Decoder], Sequence[bytes]]] = {
    "openai-chat": (lambda: OpenAIChat().decoder(Request(), raw=False), streams.CHAT),
    "openai-responses": (lambda: OpenAIResponses().decoder(Request(), raw=False), streams.RESPONSES),
    "anthropic-messages": (lambda: Anthropic().decoder(Request(), raw=False), streams.ANTHROPIC),
    "gemini": (lambda: Gemini().decoder(Request(), raw=False), streams.GEMINI),
    "ollama-chat": (lambda: Ollama().decoder(Request(), raw=False), streams.OLLAMA),
}


def turn_events(make: Callable[[], Decoder], body: bytes) -> list[Event]:
    """The events of a turn with this answer, whose tools have begun to answer."""
    begun = Custom("session_turn", {"session": INITIAL.replied("And?"), "operation": "reply"})
    decoder = make()
    answer = [event for event in (*decoder.feed(body), *decoder.close()) if not isinstance(event, ErrorEvent)]
    calls = [e for e in answer if isinstance(e, ToolCallCompleted) and not e.metadata.get("server")]
    return [begun, *answer, *(ToolResultEncoded(call.id, "ok") for call in reversed(calls))]


def cuts(wire: str, bodies: Sequence[bytes], step: int = 1) -> Iterator[Session]:
    make, _ = DECODERS[wire]
    for body in bodies:
        events = turn_events(make, body)
        for cut in range(1, len(events) + 1, step):
            yield sound(folded(events[:cut], keep_partial=True))


@pytest.mark.parametrize("wire", DECODERS)
def test_wherever_an_answer_is_cut_the_next_request_is_legal_on_every_wire(wire: str) -> None:
    for following in cuts(wire, DECODERS[wire][1]):
        for other in WIRES:
            assert_legal(other, following.thread)


@pytest.mark.parametrize("wire", DECODERS)
def test_so_it_is_for_recorded_answers(wire: str) -> None:
    bodies = [recording.body for recording in recordings(wire) if len(recording.body) < 20_000]
    assert len(bodies) > 10
    for body in bodies[:: max(1, len(bodies) // 60)]:
        step = max(1, len(turn_events(DECODERS[wire][0], body)) // 25)
        for following in cuts(wire, [body], step):
            assert_legal(wire, following.thread)


@settings(deadline=None, max_examples=examples(80))
@given(scripts.scripts, scripts.chat_options, st.integers(0, 20))
def test_so_it_is_wherever_a_chat_is_cut(script: Any, options: Any, count: int) -> None:
    """And the text of the unfinished step is what was shown of it."""
    engine = Engine(scripts.fake(script), tools=tuple(scripts.TOOLS), retry=False)
    source = session.stream_reply(engine, INITIAL, "And?", **options).pipe(ops.errors_as_events())
    seen = list(source.pipe(rx.take(count + 1)))
    turn = folded(seen, keep_partial=True)
    validate.session(turn.session)
    assert turn.session.messages[:3] == (*INITIAL.messages, user("And?"))
    partial = next((message for message in turn.session.messages if "partial" in message.metadata), None)
    begins = max((i for i, event in enumerate(seen) if isinstance(event, StepCompleted)), default=0)
    text = "".join(event.delta for event in seen[begins:] if isinstance(event, TextDelta))
    assert partial is None or partial.text == text
    assert partial is not None or not text.strip() or any(isinstance(event, ChatCompleted) for event in seen)
    if turn.session.status == "completed":
        assert_legal("anthropic-messages", sound(turn).thread)


@pytest.mark.judges
def test_a_real_model_goes_on_from_a_stopped_answer() -> None:
    pytest.importorskip("xllamacpp")
    engine = Engine("local")
    story = session.stream_start(engine, "Tell me a long story about a fox.", max_tokens=64)
    stopped = story.pipe(rx.take(12), ops.to_session(Session(), keep_partial=True)).run().session
    assert stopped.messages[-1].text.strip()
    assert session.reply(engine, stopped, "Go on.", max_tokens=8).run().session.status == "completed"

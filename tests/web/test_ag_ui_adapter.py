"""An agent that speaks AG-UI is raced, guarded and shown like a model: `AGUI`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from ag_ui.core import RunAgentInput
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import from_iterable

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    Fake,
    MessageCompleted,
    Nested,
    RawChunk,
    Stream,
    StreamCollector,
    StreamError,
    TextDelta,
    Thread,
    ToolCall,
    web,
)
from rxllm import operators as ops
from rxllm.testing import HTTPAdapterConformance, Script, refusal
from rxllm.testing.loopback import STALL, Loopback, Reply
from rxllm.values import ProviderPart, ThinkingPart
from rxllm.web import AGUI
from rxllm.web._ag_ui_adapter import to_input
from tests.closing import assert_closes
from tests.examples import examples
from tests.laws import scripts
from tests.waiting import PATIENCE, until
from tests.web import clients
from tests.web.ag_ui import again, client, framed
from tests.web.streams import of_script

pytestmark = pytest.mark.sockets

HEADERS = {"Content-Type": "text/event-stream"}
START = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
FINISH = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}


def text(message: str, *deltas: str) -> list[dict[str, Any]]:
    contents = [{"type": "TEXT_MESSAGE_CONTENT", "messageId": message, "delta": delta} for delta in deltas]
    start = {"type": "TEXT_MESSAGE_START", "messageId": message, "role": "assistant"}
    return [start, *contents, {"type": "TEXT_MESSAGE_END", "messageId": message}]


def reasoning(message: str, *deltas: str, signature: str | None = None) -> list[dict[str, Any]]:
    signed = {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": message}
    return [
        {"type": "REASONING_START", "messageId": message},
        {"type": "REASONING_MESSAGE_START", "messageId": message, "role": "reasoning"},
        *({"type": "REASONING_MESSAGE_CONTENT", "messageId": message, "delta": delta} for delta in deltas),
        {"type": "REASONING_MESSAGE_END", "messageId": message},
        *([] if signature is None else [{**signed, "encryptedValue": signature}]),
        {"type": "REASONING_END", "messageId": message},
    ]


def call(id: str, name: str, arguments: str) -> list[dict[str, Any]]:
    return [
        {"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name},
        {"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": arguments},
        {"type": "TOOL_CALL_END", "toolCallId": id},
    ]


def result(id: str, content: str) -> dict[str, Any]:
    return {"type": "TOOL_CALL_RESULT", "messageId": f"m_{id}", "toolCallId": id, "content": content}


def reply(*frames: dict[str, Any]) -> Reply:
    return Reply([*map(web.sse, frames)], headers=HEADERS)


class TestConformance(HTTPAdapterConformance):
    without = {  # noqa: RUF012 as the base has it
        "length": "a run does not say why its last answer ends",
        "content_filter": "a run does not say why its last answer ends",
    }

    def adapter(self, url: str, **connection: Any) -> AGUI:
        return AGUI(url, **connection)

    def said(self, script: Script) -> list[bytes]:
        frames = [START]
        if script.thinking:
            frames += reasoning("m0", *script.thinking)
        if script.texts:
            frames += text("m1", *script.texts)
        for tool_call in script.calls:
            frames += call(tool_call.id, tool_call.name, json.dumps(tool_call.arguments))
        return [*map(web.sse, frames)]

    def ended(self, script: Script) -> list[bytes]:
        usage = script.usage and {"inputTokens": script.usage.input_tokens, "outputTokens": script.usage.output_tokens}
        return [web.sse({**FINISH, **({"usage": [usage]} if usage else {})})]

    def failed(self, error: AdapterError) -> list[bytes]:
        return [web.sse({"type": "RUN_ERROR", "message": error.message, "code": error.reason})]

    def refused(self, error: AdapterError) -> Reply:
        codes = {"context_length_exceeded": "context_length_exceeded", "content_filter": "content_filter"}
        return refusal(error, {"error": {"message": error.message, "code": codes.get(error.reason)}})


@rxllm.tool
def add(x: int = 1) -> int:
    return x + 1


def model(server: Loopback, **options: Any) -> Engine:
    return Engine(AGUI(f"{server.url}/agent"), retry=False, **options)


def test_the_agents_own_tools_and_ours_take_part_in_one_chat() -> None:
    first = [*reasoning("m0", "Hm", signature="s"), *call("s1", "search", '{"q":"x"}'), result("s1", "found")]
    first += [*text("m1", "I add."), *call("c1", "add", '{"x":1}')]
    with Loopback([reply(START, *first, FINISH), reply(START, *text("m2", "Two."), FINISH)]) as server:
        answer = rxllm.chat(model(server), "Hi", tools=[add]).run()
        again = [RunAgentInput.model_validate(request.json) for request in server.requests]
    assert (answer.output_text, answer.halted_reason) == ("Two.", "completed")
    message = answer.steps[0].response.message
    assert message is not None
    assert [(p.text, p.signature) for p in message.parts if isinstance(p, ThinkingPart)] == [("Hm", "s")]
    assert [p.data for p in message.parts if isinstance(p, ProviderPart)] == [{"id": "s1", "content": "found"}]
    assert [tool_call.id for tool_call in answer.steps[0].response.tool_calls] == ["c1"]
    assert [(entry.role, entry.content) for entry in again[1].messages] == [
        *(("user", "Hi"), ("reasoning", "Hm"), ("assistant", "I add."), ("tool", "found"), ("tool", "2"))
    ]
    assert [tool.name for tool in again[0].tools or ()] == ["add"]
    assert server.requests[0].path == "/agent"


def test_a_call_that_the_agent_has_answered_does_not_run_here_too() -> None:
    """It may have a tool of the name of one of ours."""
    ran: list[int] = []

    @rxllm.tool(name="add")
    def ours(x: int) -> int:
        ran.append(x)
        return x + 1

    run = [*call("s1", "add", '{"x":1}'), result("s1", "2"), *text("m1", "Two.")]
    with Loopback([reply(START, *run, FINISH)]) as server:
        answer = rxllm.chat(model(server), "Hi", tools=[ours]).run()
    assert (answer.output_text, len(answer.steps), ran) == ("Two.", 1, [])
    (step,) = answer.steps
    assert [call.metadata for call in step.response.message.tool_calls] == [{"server": True}]


def test_an_interrupt_is_answered_by_an_option() -> None:
    interrupt = {"id": "i1", "reason": "tool_call", "toolCallId": "s1"}
    asks = reply(
        START, *call("s1", "pay", "{}"), {**FINISH, "outcome": {"type": "interrupt", "interrupts": [interrupt]}}
    )
    answer = {"interruptId": "i1", "status": "resolved", "payload": {"approved": True}}
    with Loopback([asks, reply(START, *text("m1", "Paid."), FINISH)]) as server:
        halted = rxllm.generate(model(server), "Pay.").run()
        assert (halted.raw_finish_reason, halted.metadata["interrupts"]) == ("interrupt", [interrupt])
        options = {"threadId": "t", "resume": [answer], "forwardedProps": {"a": 1}}
        thread = [rxllm.user("Pay."), halted.message]
        done = rxllm.generate(model(server), thread, options=options, temperature=0.0).run()
        body = server.requests[1].json
    assert done.output_text == "Paid."
    assert (body["threadId"], body["resume"]) == ("t", [answer])
    assert [entry.get("toolCalls", [{}])[0].get("id") for entry in body["messages"]] == [None, "s1"]
    assert body["forwardedProps"] == {"temperature": 0.0, "a": 1}


def inside(events: Iterable[rxllm.Event]) -> list[rxllm.Event]:
    return [event for event in events if isinstance(event, Nested)]


def decoded(frames: list[Any], **options: Any) -> list[rxllm.Event]:
    """What the adapter makes of frames, by the rules of events."""
    decoder = AGUI("http://127.0.0.1").decoder(rxllm.Request((rxllm.user("Hi"),), **options))
    body = b"".join(map(web.sse, frames))
    events = [event for i in range(0, len(body), 100) for event in decoder.feed(body[i : i + 100])]
    return [*events, *decoder.close()]


def fold(events: list[rxllm.Event]) -> rxllm.ChatResult:
    state = StreamCollector(Thread())
    for event in events:
        state = state.apply_event(event)
    return state.to_chat_result()


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.sampled_from(scripts.AGENT_NAMES), min_size=1, max_size=3), scripts.scripts, scripts.presentations)
def test_what_agents_inside_do_comes_back(names: list[str], script: Any, options: Any) -> None:
    agents = [ToolCall(f"z{i}", name, {"x": 1}) for i, name in enumerate(names)]
    served = client(of_script([["Hm.", *agents, rxllm.Usage(1, 1)], *script], **options))
    events = decoded(framed(served))
    assert inside(events) == inside(served) != []
    if not options:  # which drop deltas
        list(Stream.of(from_iterable(events)).pipe(ops.verify()))
    if isinstance(served[-1], rxllm.ChatCompleted) or isinstance(events[-1], MessageCompleted):
        assert fold(events).usage.total == fold(served).usage.total


def of_agent(run: str, *frames: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The frames of an agent inside, of another server."""
    begin = {"type": "SUBAGENT_STARTED", "subagentRunId": run, "name": "agent", **fields}
    return [begin, *({**frame, "subagentRunId": run} for frame in frames)]


FOREIGN = [
    *(START, *call("c1", "agent", "{}"), *call("c2", "agent", "{}"), *text("m0", "Wait.")[:2]),
    *of_agent("a1", *reasoning("m1", "Hm"), *text("m2", "I ask."), *call("c1", "deep", "{}"), parentToolCallId="c1"),
    *of_agent("b1", *text("m3", "Deep."), parentToolCallId="c1", parentSubagentRunId="a1"),
    *({"type": f"SUBAGENT_{end}", "subagentRunId": "b1"} for end in ["FINISHED"]),
    *({**frame, "subagentRunId": "a1"} for frame in [result("c1", "Deep."), *text("m4", "Yes.")]),
    *of_agent("a2", *text("m5", "Bro")[:2], parentToolCallId="c2"),
    {"type": "SUBAGENT_ERROR", "subagentRunId": "a2", "message": "No."},
    {"type": "SUBAGENT_FINISHED", "subagentRunId": "a1", "outcome": {"type": "success"}},
    *(text("m0", "")[2], result("c1", "Yes."), result("c2", "No."), *text("m6", "Done."), FINISH),
]


def agents_of(events: list[rxllm.Event]) -> dict[str, list[Any]]:
    """What each agent inside has said, and how it has ended."""
    said: dict[str, list[Any]] = {}
    for event in events:
        if isinstance(event, Nested):
            entries = said.setdefault("/".join(event.path), [])
            match event.event:
                case rxllm.TextCompleted(text=text):
                    entries.append(text)
                case rxllm.ChatCompleted(result=result):
                    entries.append((result.halted_reason, result.output_text))
                case rxllm.ErrorEvent(error=error):
                    entries.append(error)
                case _:
                    pass
    return said


def test_agents_inside_the_agents_of_other_servers_are_whole_chats() -> None:
    seen = {
        "c1": ["I ask.", "Yes.", ("completed", "Yes.")],
        "c1/c1": ["Deep.", ("completed", "Deep.")],
        "c2": ["Bro", StreamError("adapter_error", "No.")],
    }
    for events in (decoded(FOREIGN), again(FOREIGN)):
        list(Stream.of(from_iterable(events)).pipe(ops.verify()))
        assert agents_of(events) == seen
        assert [event.text for event in events if isinstance(event, rxllm.TextCompleted)] == ["Wait.", "Done."]


@pytest.mark.judges
@pytest.mark.parametrize(("depth", "reason"), [(32, None), (33, "malformed_event"), (300, "malformed_event")])
def test_agents_are_not_nested_without_end(depth: int, reason: str | None) -> None:
    parents = [{"parentSubagentRunId": f"a{i - 1}"} if i else {} for i in range(depth)]
    agents = [frame for i, parent in enumerate(parents) for frame in of_agent(f"a{i}", *text(f"m{i}", "Hi"), **parent)]
    frames = from_iterable([START, *agents, FINISH])
    read = Stream.of(frames).pipe(web.decode("ag-ui"), ops.errors_as_events())
    for events in (decoded([START, *agents, FINISH]), list(read)):
        errors = [event.error.reason for event in events if isinstance(event, rxllm.ErrorEvent)]
        assert errors == ([] if reason is None else [reason])


def test_an_agent_that_runs_without_a_call_gets_one() -> None:
    unannounced = [{**frame, "subagentRunId": "a2"} for frame in text("m3", "No.")]
    agents = [*of_agent("a1", *text("m2", "I ask.")), {"type": "SUBAGENT_FINISHED", "subagentRunId": "a1"}]
    events = decoded([START, *text("m1", "Hm.")[:2], *agents, *unannounced, *text("m4", "Done."), FINISH])
    list(Stream.of(from_iterable(events)).pipe(ops.verify()))
    assert agents_of(events) == {"a1": ["I ask.", ("completed", "I ask.")], "a2": ["No."]}
    last = events[-1]
    assert isinstance(last, MessageCompleted)
    calls = [(call.id, call.name, dict(call.metadata)) for call in last.message.tool_calls]
    assert calls == [("a1", "agent", {"server": True}), ("a2", "a2", {"server": True})]
    assert (last.finish_reason, last.message.text) == ("stop", "Hm.Done.")
    again = to_input(rxllm.Request((rxllm.user("Hi"), last.message, rxllm.user("Go on."))))
    assert [entry.get("toolCalls") for entry in again["messages"]] == [None, None, None]


@pytest.mark.parametrize("at", range(1, len(FOREIGN)))
def test_a_run_with_agents_that_is_cut_off_leaves_nothing_open(at: int) -> None:
    events = decoded(FOREIGN[:at])
    assert isinstance(events[-1], rxllm.ErrorEvent)
    list(Stream.of(from_iterable(events)).pipe(ops.verify()))


def test_state_is_raw_and_agents_inside_are_not_the_answer() -> None:
    state = {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}}
    inside = [{**frame, "subagentRunId": "a1"} for frame in text("m0", "No.")]
    with Loopback(reply(START, state, *inside, *text("m1", "Yes."), FINISH)) as server:
        events = list(rxllm.stream_generate(model(server), "Hi", include_raw_chunks=True))
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["Yes."]
    assert state in [event.data for event in events if isinstance(event, RawChunk)]


@pytest.mark.parametrize(("code", "cls"), [("truncated", StreamError), ("rate_limited", AdapterError)])
def test_our_own_errors_come_through(code: str, cls: Any) -> None:
    failed = {"type": "RUN_ERROR", "message": "No.", "code": code}
    with Loopback(reply(START, *text("m1", "Hel"), failed)) as server:
        error = rxllm.generate(model(server), "Hi").run().error
    assert (type(error), error and error.reason, error and error.message) == (cls, code, "No.")


def test_what_we_serve_is_what_we_ask() -> None:
    script = [("thinking", "Hm."), "Hello", ToolCall("c1", "add", {"x": 1}), rxllm.Usage(3, 4)]
    served = list(rxllm.stream_generate(Fake(script), "Hi", tools=[add]).pipe(web.for_client(), web.encode("ag-ui")))
    with Loopback(reply(*served)) as server:
        response = rxllm.generate(model(server), "Hi", tools=[add]).run()
    assert (response.output_text, response.thinking, response.finish_reason) == ("Hello", "Hm.", "tool_calls")
    assert [(c.id, c.name, c.arguments) for c in response.tool_calls] == [("c1", "add", {"x": 1})]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 4)


def test_an_agent_is_raced_and_guarded() -> None:
    with Loopback(reply(START, *text("m1", "Hello ", "secret."), FINISH)) as server:
        slow = rxllm.stream_generate(Fake([("delay", 3600), "Late."]), "Hi")
        raced = rxllm.race(slow, rxllm.stream_generate(model(server), "Hi")).pipe(ops.to_text()).run()
        redacted = rxllm.stream_generate(model(server), "Hi").pipe(ops.redact("secret"), ops.to_text()).run()
    assert (raced, "secret" in redacted) == ("Hello secret.", False)


def test_a_call_that_is_left_is_closed() -> None:
    async def leave(server: Loopback) -> None:
        events: list[Any] = []
        subscription = rxllm.stream_generate(model(server), "Hi").subscribe(events.append)
        await until(lambda: bool(events) and isinstance(events[-1], TextDelta))
        subscription.dispose()

    frames = [web.sse(frame) for frame in [START, *text("m1", "Hel")[:2]]]
    assert_closes(leave, Reply([*frames, STALL], headers=HEADERS))


@pytest.fixture(scope="module")
def aimock() -> str:
    return clients.run("ag_ui_server")


def posted(url: str, prompt: str) -> list[Any]:
    """The frames of a server's answer."""
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": prompt}]}
    fields = {**body, "tools": [], "context": [], "state": {}, "forwardedProps": {}}
    response = httpx.post(url, json=fields, timeout=PATIENCE)
    return list(web.from_sse([response.content]))


@pytest.mark.judges
def test_a_foreign_agent_answers(aimock: str) -> None:
    engine = Engine(AGUI(aimock), retry=False)
    assert rxllm.generate(engine, "greet").run().output_text == "Hello there."
    assert "They wonder." in rxllm.generate(engine, "think").run().thinking
    response = rxllm.generate(engine, "chunks", tools=[add]).run()
    assert (response.thinking, response.output_text, response.usage.total) == ("Hm", "In chunks.", 7)
    assert (response.model, [c.arguments for c in response.tool_calls]) == ("m", [{"x": 1}])
    own = rxllm.generate(engine, "search").run()
    assert (own.finish_reason, own.tool_calls) == ("stop", ())
    assert rxllm.generate(engine, "fail").run().error == AdapterError("rate_limited", "No.", provider="ag-ui")


@pytest.mark.judges
def test_foreign_frames_are_read_as_a_chat(aimock: str) -> None:
    def read(prompt: str) -> list[rxllm.Event]:
        return list(Stream.of(from_iterable(posted(aimock, prompt))).pipe(web.decode("ag-ui"), ops.verify()))

    def chat(prompt: str) -> Any:
        last = read(prompt)[-1]
        assert isinstance(last, rxllm.ChatCompleted)
        return last.result

    assert (chat("greet").output_text, chat("greet").halted_reason) == ("Hello there.", "completed")
    (step,) = [event for event in read("search") if isinstance(event, rxllm.StepCompleted)]
    assert [(call.name, call.arguments) for call in step.response.tool_calls] == [("search", {"q": "x"})]
    assert [result.text for result in step.result.tool_results] == ["found"]
    chunks = chat("chunks")
    assert (chunks.halted_reason, chunks.usage.total) == ("manual_tool_calls", 7)
    assert [(c.name, c.arguments) for c in chunks.pending_tool_calls] == [("add", {"x": 1})]
    cut = [*posted(aimock, "chunks")[:3], {"type": "RUN_ERROR", "message": "No."}]
    for frames in (cut, cut[:-1]):
        broken = list(Stream.of(from_iterable(frames)).pipe(web.decode("ag-ui"), ops.verify()))
        assert broken[-2:-1] == [rxllm.TextCompleted("In ", "m1")]
    assert read("fail")[-1] == rxllm.ErrorEvent(StreamError("adapter_error", "No."))

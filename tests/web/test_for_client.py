"""Nothing private leaves: every secret place holds a canary, and no frame of any protocol sings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import from_iterable

import rxllm
from rxllm import (
    AdapterError,
    ChatCompleted,
    Custom,
    Engine,
    ErrorEvent,
    Event,
    Fake,
    Message,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    RawChunk,
    StepCompleted,
    Stream,
    StreamCollector,
    StreamError,
    TextDelta,
    ThinkingCompleted,
    Thread,
    Tool,
    ToolApprovalRequested,
    ToolCall,
    ToolCallCompleted,
    ToolCallStarted,
    ToolError,
    ToolExecutionCompleted,
    ToolHalt,
    ToolProgress,
    Usage,
    UsageUpdated,
    serializer,
    session,
    web,
)
from rxllm import operators as ops
from rxllm.testing import strategies
from rxllm.values import ProviderPart, TextPart, ThinkingPart
from rxllm.web._codec import PROTOCOLS
from tests.examples import examples
from tests.laws import scripts
from tests.operators.support import NO, Dictation, refusing
from tests.web.streams import DECODERS, of_recordings, of_script

CANARY = "CANARY"


def client(events: list[Event]) -> list[Event]:
    return list(Stream.of(from_iterable(events)).pipe(web.for_client()))


PRIVATE = {"anything": CANARY, "a": {"b": [CANARY]}}


@pytest.mark.parametrize(
    "event",
    [
        MessageStarted(Message("assistant", metadata=PRIVATE)),
        MessageCompleted(
            Message(
                "assistant",
                (
                    TextPart("Hi", PRIVATE),
                    ThinkingPart("Hm", "signature", PRIVATE),
                    ProviderPart("openai", PRIVATE),
                ),
                tool_calls=(ToolCall("c1", "f", metadata=PRIVATE),),
                metadata=PRIVATE,
            ),
            "stop",
            metadata=PRIVATE,
        ),
        ThinkingCompleted("Hm", "signature", PRIVATE),
        ToolCallStarted("c1", "f", PRIVATE),
        ToolCallCompleted("c1", "f", {}, "{}", PRIVATE),
        RawChunk("frame", PRIVATE),
        RawChunk("part", ProviderPart("openai", PRIVATE)),
        PartAdded(ProviderPart("openai", PRIVATE)),
        UsageUpdated(Usage(1, extra=PRIVATE)),
        ErrorEvent(AdapterError("unknown", CANARY, code=CANARY, request_id=CANARY, metadata=PRIVATE)),
        ErrorEvent(StreamError("truncated", CANARY, metadata=PRIVATE)),
        ToolExecutionCompleted("c1", "f", None, ToolError("handler_raised", CANARY, metadata=PRIVATE)),
        ToolExecutionCompleted("c1", "f", object()),
        ToolHalt("c1", "stopped", metadata=PRIVATE),
        Custom("session_turn", PRIVATE),
        Custom("step_abandoned", PRIVATE),
        Custom("thread_compacted", {"usage": Usage(1, extra=PRIVATE)}),
        Custom("thread_compaction_failed", {"error": AdapterError("unknown", CANARY)}),
        ChatCompleted(
            rxllm.ChatResult(
                Thread((Message("system", CANARY),), PRIVATE),
                rxllm.Response(output_text=CANARY),
                pending_tool_calls=(ToolCall("c1", "f", metadata=PRIVATE),),
                error=AdapterError("unknown", CANARY),
                metadata=PRIVATE,
            )
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_private_stays(event: Event) -> None:
    start = [TextDelta("Hi"), rxllm.TextCompleted("Hi")]
    for events in ([*start, event], [*start, Nested(("c1", "c2"), event)], [Nested((), event)]):
        for kept in client(events):
            assert CANARY not in serializer.to_json(kept)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("said", [[], ["Hel"]])
def test_what_an_error_says_stays_where_the_stream_fails(said: list[str], protocol: str) -> None:
    """A failure is an ``on_error`` before the first event, and an event after it."""
    model = Fake(lambda request: [*said, AdapterError("rate_limited", CANARY, retry_after=7.0)])
    seen = rxllm.stream_generate(model, "Hi", retry=False).pipe(web.for_client())
    frames = list(seen.pipe(web.encode(protocol)))
    assert CANARY not in repr(frames)
    assert "rate_limited" in repr(frames)
    (error,) = [event.error for event in seen.pipe(ops.errors_as_events()) if isinstance(event, ErrorEvent)]
    assert (type(error), getattr(error, "retry_after", None), error.__cause__) == (AdapterError, 7.0, None)


def test_a_bug_of_the_server_is_the_servers_to_see() -> None:
    def prepare(request: rxllm.Request) -> rxllm.Request:
        raise RuntimeError(CANARY)

    with pytest.raises(RuntimeError, match=CANARY):
        rxllm.stream(rxllm.Engine(Fake("Hi"), prepare=[prepare]), "Hi").pipe(web.for_client()).run()


def test_a_system_prompt_and_a_history_stay() -> None:
    thread = [rxllm.system(CANARY), rxllm.user(CANARY), rxllm.assistant(CANARY), rxllm.user(CANARY)]
    model = Fake(ToolCall("c1", "add", {"x": 1}), "Two")
    events = list(rxllm.stream(model, thread, tools=scripts.TOOLS).pipe(web.for_client()))
    assert CANARY not in "".join(map(serializer.to_json, events))
    assert isinstance(events[-1], ChatCompleted)
    assert events[-1].result.output_text == "Two"


def test_what_a_tool_raises_stays() -> None:
    def read() -> str:
        raise OSError(CANARY)

    model, inner = (Fake(ToolCall(id, "read", {}), "No.") for id in ("c1", "c0"))
    agent = rxllm.Engine(inner, tools=[read]).as_tool(name="reader", description="Reads.")
    events = list(rxllm.stream(model, "Read!", tools=[read]).pipe(web.for_client()))
    events += rxllm.stream(Fake(ToolCall("c0", "reader", {"prompt": "Go"}), "No."), "Read!", tools=[agent]).pipe(
        web.for_client()
    )
    assert CANARY not in "".join(map(serializer.to_json, events))
    contents = [event.content for event in events if isinstance(event, rxllm.ToolResultEncoded)]
    assert contents == ['{"error": "handler_raised"}', "No."]


def test_a_session_stays() -> None:
    start = rxllm.Session(context={"secret": CANARY}, thread=Thread((rxllm.system(CANARY),)))
    events = list(session.stream_reply(Fake("Hello"), start, "Hi").pipe(web.for_client()))
    assert CANARY not in "".join(map(serializer.to_json, events))
    assert isinstance(events[-1], ChatCompleted)


def test_a_summary_and_the_threads_of_agents_stay() -> None:
    private = {"summary": {"text": CANARY}, "agents": {"c1": Thread((rxllm.user(CANARY),))}}
    message = Message("assistant", "Hi", metadata=private)
    result = rxllm.StepResult(Thread((message,)), rxllm.Response(message, "Hi"))
    events = [MessageStarted(message), TextDelta("Hi"), rxllm.TextCompleted("Hi"), MessageCompleted(message, "stop")]
    events += [rxllm.StepCompleted(result), ChatCompleted(rxllm.ChatResult(Thread((message,)), result.response))]
    for seen in (client(events), client([Nested(("c1",), event) for event in events])):
        assert len(seen) == len(events)
        assert CANARY not in "".join(map(serializer.to_json, seen))


def test_a_client_gets_its_messages_back_that_came_too_late() -> None:
    late = Message("user", (TextPart("No!", PRIVATE),), metadata=PRIVATE)
    (done,) = client([ChatCompleted(rxllm.ChatResult(Thread(), metadata={"unused_steering": (late,)}))])
    assert isinstance(done, ChatCompleted)
    (back,) = done.result.metadata["unused_steering"]
    assert (back.role, back.text) == ("user", "No!")
    assert CANARY not in serializer.to_json(done)


def test_what_agents_have_used_is_in_the_results_of_a_client() -> None:
    call = ToolCall("c1", "ask", {"prompt": "?"})
    inner = rxllm.Engine(Fake(scripts=[["deep", Usage(100, 1, extra=PRIVATE)]])).as_tool(name="ask", description="Ask.")
    outer = rxllm.Engine(Fake(scripts=[[call, Usage(10, 1)], ["up", Usage(20, 1)]]), tools=[inner])
    asked = outer.as_tool(name="ask", description="Ask.")
    events = list(rxllm.stream(Fake(scripts=[[call, Usage(1, 1)], ["Done", Usage(2, 1)]]), CANARY, tools=[asked]))
    seen = client(events)
    assert CANARY not in "".join(map(serializer.to_json, seen))
    for step, original in zip(steps(seen), steps(events), strict=True):
        used = original.result.agent_usage
        assert step.result.agent_usage == replace(used, extra={})
        assert (step.result.usage.total, step.result.response.usage.total) == (
            original.result.usage.total,
            original.result.response.usage.total,
        )
    assert [step.result.agent_usage.input_tokens for step in steps(seen)] == [None, 100, None, 130, None]
    state = StreamCollector(Thread())
    for event in seen:
        state = state.apply_event(event)
    assert state.to_chat_result().usage.input_tokens == 133


def steps(events: list[Event]) -> list[Any]:
    inner = [event.event if isinstance(event, Nested) else event for event in events]
    return [event for event in inner if isinstance(event, rxllm.StepCompleted)]


def test_what_a_client_needs_passes() -> None:
    events: list[Event] = [
        *(TextDelta("a"), rxllm.TextCompleted("a"), rxllm.SourceAdded({"url": "https://example.org"})),
        *(ToolProgress("c1", "f", {"done": 0.5}), Custom("weather", {"degrees": 20})),
        Nested(("c1",), TextDelta("b")),
        rxllm.AskUserRequested("c1", "ask", "Which?", {"choices": ["a"]}),
    ]
    assert client(events) == events


@settings(deadline=None, max_examples=examples(60))
@given(scripts.scripts, st.sampled_from([rxllm.stream, rxllm.stream_step]))
def test_results_are_folds_of_what_the_client_sees(script: Any, function: Any) -> None:
    events = client(of_script(script, function))
    state = StreamCollector(Thread())
    for event in events:
        if isinstance(event, rxllm.StepCompleted):
            folded = state.to_step_result() if not state.summary.fresh else event.result
            assert folded.response == event.result.response
            assert event.result.thread == Thread()
        state = state.apply_event(event)
    assert CANARY not in "".join(map(serializer.to_json, events))


@settings(deadline=None, max_examples=examples(100))
@given(strategies.event_lists)
def test_it_takes_any_events(events: list[Event]) -> None:
    client(events)


@pytest.mark.parametrize("api", DECODERS)
def test_the_text_calls_and_usage_of_recorded_streams_survive(api: str) -> None:
    for name, events in of_recordings(api, every=8):
        before, after = StreamCollector(Thread()), StreamCollector(Thread())
        for event in events:
            before = before.apply_event(event)
        for event in client(events):
            after = after.apply_event(event)
        ours, theirs = before.to_response(), after.to_response()
        assert theirs.output_text == ours.output_text, name
        assert theirs.thinking == ours.thinking, name
        assert [(call.id, call.name, call.arguments) for call in theirs.tool_calls] == [
            (call.id, call.name, call.arguments) for call in ours.tool_calls
        ], name
        assert (theirs.usage.total, theirs.finish_reason) == (ours.usage.total, ours.finish_reason), name


@dataclass
class Order:
    number: int


@rxllm.tool
def buy() -> rxllm.values.Halt:
    """Buy it."""
    return rxllm.halt("bought", Order(7))


@pytest.mark.parametrize("protocol", ["rxllm", "ui", "ag-ui"])
@pytest.mark.parametrize("is_agent", [False, True])
def test_the_object_that_halts_a_chat_or_an_agent_arrives_as_its_data(protocol: Any, is_agent: bool) -> None:
    agent = rxllm.Engine(Fake(ToolCall("c2", "buy"))).as_tool(name="agent", tools=[buy])
    call = ToolCall("c1", "agent", {"prompt": "Go"}) if is_agent else ToolCall("c1", "buy")
    events = client(list(rxllm.stream(Fake(call, "Done."), "Hi", tools=[agent, buy])))
    assert list(Stream.of(from_iterable(events)).pipe(web.encode(protocol), web.decode(protocol))) == events
    assert "Order(" not in repr(events)


@pytest.mark.judges
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_step_does_not_send_the_steps_before_it(protocol: str) -> None:
    def sent(steps: int) -> int:
        model = Fake(*([ToolCall(f"c{i}", "look", {})] for i in range(steps)), "Done.")
        look = Tool("look", handler=lambda arguments: "x" * 1000)
        events = rxllm.stream(model, "Hi", tools=[look], max_turns=steps + 1)
        return sum(len(web.sse(frame)) for frame in events.pipe(web.for_client(), web.encode(protocol)))

    assert sent(80) < 4.4 * sent(20)


# Approvals that a fold has dropped


def test_a_browser_that_returns_is_asked_for_the_approvals_again() -> None:
    @rxllm.tool(approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    inner = Engine(Fake(ToolCall("a", "pay", {"amount": 5})), tools=[pay])
    agent = inner.as_tool(name="agent", description="Helps.")
    calls = [ToolCall("c1", "agent", {"prompt": "Pay."}), ToolCall("c/2", "pay", {"amount": 6})]
    events = list(rxllm.stream(Engine(Fake(calls), tools=[pay, agent]), "Hi"))
    kept = [event for event in events if not isinstance(innermost(event), ToolApprovalRequested)]
    returned = client(kept)
    asked = [event for event in returned if isinstance(innermost(event), ToolApprovalRequested)]
    own = ToolApprovalRequested("c/2", "pay", {"amount": 6})
    nested = Nested(("c1",), ToolApprovalRequested("a", "pay", {"amount": 5}))
    assert sorted(asked, key=repr) == sorted([nested, own], key=repr)
    end = next(i for i, event in enumerate(returned) if isinstance(event, StepCompleted))
    assert all(returned.index(event) < end for event in asked)
    whole = client(events)
    assert sum(isinstance(innermost(event), ToolApprovalRequested) for event in whole) == 2


def innermost(event: Event) -> Event:
    return event.event if isinstance(event, Nested) else event


def test_a_client_folds_a_vetoed_call_with_its_result() -> None:
    events = list(rxllm.stream(Dictation().write, "Hi", tools=[refusing(NO)]).pipe(web.for_client()))
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    (call,) = state.steps[0].response.tool_calls
    assert (call.id, call.arguments) == ("c1", {"path": "a"})
    assert [message.tool_call_id for message in state.steps[0].tool_results] == ["c1"]

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import reactivex
from hypothesis import given
from reactivex import from_iterable
from reactivex import operators as rx
from reactivex.testing import TestScheduler

import rxllm
from rxllm import Engine, Fake, serializer
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    Custom,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    RawChunk,
    Steered,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.testing import strategies
from rxllm.testing.marbles import check, cold, record
from rxllm.values import (
    AdapterError,
    ChatResult,
    EngineError,
    Message,
    ProviderPart,
    Response,
    StepResult,
    StreamError,
    TextPart,
    Thread,
    ToolCall,
    ToolCallPart,
    ToolError,
    Usage,
    halt,
    user,
)
from tests.laws import scripts
from tests.laws.scripts import fake

START = MessageStarted(Message("assistant"))
HI = (TextDelta("H"), TextDelta("i"), TextCompleted("Hi"))
END = MessageCompleted(Message("assistant", "Hi"), "stop")
CALL = (ToolCallStarted("c", "f"), ToolCallDelta("c", '{"x":'), ToolCallDelta("c", "1}"))
CALLED = ToolCallCompleted("c", "f", {"x": 1}, '{"x":1}')
CALLS = MessageCompleted(Message("assistant", "", tool_calls=(ToolCall("c", "f", {"x": 1}, '{"x":1}'),)), "tool_calls")
FAILED = ErrorEvent(StreamError("truncated"))
STEP = StepCompleted(StepResult(Thread(), Response(Message("assistant"))))
CHAT = ChatCompleted(ChatResult(Thread(), Response(Message("assistant"))))
RUN = ToolExecutionStarted("c", "f", {"x": 1})
RAN = ToolExecutionCompleted("c", "f", 1)
CALLING = [START, *CALL, CALLED, CALLS]
CHILD = [START, *HI, END, STEP, CHAT]
SERVED = [START, ToolCallStarted("s", "f", {"server": True})]


def nested(id: str, events: Any = CHILD) -> list[Nested]:
    """What the agent that is the tool call `id` emits; with an id instead of events, what an agent inside it does."""
    inner = nested(events) if isinstance(events, str) else events
    return [Nested((id, *getattr(event, "path", ())), getattr(event, "event", event)) for event in inner]


def fault(*events: Any) -> StreamError | None:
    """What `verify` finds wrong."""
    errors: list[Any] = []
    from_iterable(events).pipe(ops.verify()).subscribe(on_error=errors.append)
    return errors[0] if errors else None


def test_lawful_events_pass_as_they_come() -> None:
    check(
        ops.verify(),
        "-s-H-i-c-e|",
        "^---------!",
        "-s-H-i-c-e|",
        **dict(zip("sHice", (START, *HI, END), strict=True)),
    )


def test_events_without_an_id_belong_to_the_open_block() -> None:
    message = MessageCompleted(Message("assistant", "Hi"), "stop")
    assert fault(START, TextDelta("H", "a"), TextDelta("i"), TextCompleted("Hi"), message) is None


def test_the_first_that_is_not_is_the_end() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-s-H-s-e|", {"s": START, "H": TextDelta("H"), "e": END})
    notes = record(scheduler, lambda: source.pipe(ops.verify()))
    assert [(tick, kind) for tick, kind, _ in notes] == [(1, "next"), (3, "next"), (5, "error")]
    assert (source.subscriptions[0].unsubscribe - source.subscriptions[0].subscribe) == 5


def test_an_end_too_soon_is_an_error_at_the_end() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-s-|", {"s": START})
    (_, (tick, kind, error)) = record(scheduler, lambda: source.pipe(ops.verify()))
    assert (tick, kind, error.metadata["rule"], error.event_index) == (3, "error", "terminal", 1)


PLANTED: dict[str, tuple[str, int, list[Any]]] = {
    "no event": ("event", 1, [START, "Hi", END]),
    "no start": ("message_started", 0, [TextDelta("Hi"), TextCompleted("Hi"), END]),
    "an error for a start": ("message_started", 0, [FAILED]),
    "nothing at all": ("message_started", 0, []),
    "two starts": ("terminal", 1, [START, START]),
    "text in thinking": ("block_closed", 2, [START, ThinkingDelta("hm"), TextDelta("Hi")]),
    "text in other text": ("block_closed", 2, [START, TextDelta("H", "a"), TextDelta("i", "b")]),
    "a call in text": ("block_closed", 2, [START, TextDelta("Hi"), *CALL]),
    "an end in text": ("block_closed", 2, [START, TextDelta("Hi"), END]),
    "an error in text": ("block_closed", 2, [START, TextDelta("Hi"), FAILED]),
    "the completion of another block": ("block_closed", 2, [START, TextDelta("Hi", "a"), TextCompleted("Hi", "b")]),
    "other text": ("block_text", 2, [START, TextDelta("Hi"), TextCompleted("Ho")]),
    "text twice": ("block_text", 4, [START, *HI, TextCompleted("Hi")]),
    "other thinking": ("block_text", 2, [START, ThinkingDelta("hm"), ThinkingCompleted("")]),
    "a call without an id": ("call_id", 1, [START, ToolCallStarted("", "f")]),
    "an id twice": ("call_id", 5, [START, *CALL, CALLED, ToolCallStarted("c", "f")]),
    "an id of the step before": ("call_id", 8, [START, *CALL, CALLED, CALLS, STEP, START, ToolCallStarted("c", "f")]),
    "a delta of no call": ("call_order", 1, [START, ToolCallDelta("c", "{}")]),
    "a delta of a call that is over": ("call_order", 5, [START, *CALL, CALLED, ToolCallDelta("c", "{}")]),
    "a completion of no call": ("call_order", 1, [START, CALLED]),
    "another name": ("call_name", 4, [START, *CALL, ToolCallCompleted("c", "g", {"x": 1}, '{"x":1}')]),
    "other raw arguments": ("call_raw_arguments", 4, [START, *CALL, ToolCallCompleted("c", "f", {"x": 1}, '{"x": 1}')]),
    "other arguments": ("call_arguments", 4, [START, *CALL, ToolCallCompleted("c", "f", {"x": 2}, '{"x":1}')]),
    "broken arguments in silence": (
        "call_arguments",
        3,
        [START, CALL[0], CALL[1], ToolCallCompleted("c", "f", {}, '{"x":')],
    ),
    "an open call at the end": ("call_completed", 4, [START, *CALL, END]),
    "an open call at an error": ("call_completed", 4, [START, *CALL, FAILED]),
    "usage twice": ("usage_changed", 2, [START, UsageUpdated(Usage(1)), UsageUpdated(Usage(1)), END]),
    "another message": ("message_folded", 4, [START, *HI, MessageCompleted(Message("assistant", "Ho"), "stop")]),
    "a call that is not in the message": (
        "message_folded",
        5,
        [START, *CALL, CALLED, MessageCompleted(Message("assistant"), "tool_calls")],
    ),
    "calls, and done": ("finish_reason", 5, [START, *CALL, CALLED, MessageCompleted(CALLS.message, "stop")]),
    "no end": ("terminal", 4, [START, *HI]),
    "text after the end": ("terminal", 5, [START, *HI, END, TextDelta("!")]),
    "usage after the end": ("terminal", 5, [START, *HI, END, UsageUpdated(Usage(1))]),
    "two ends": ("terminal", 5, [START, *HI, END, END]),
    "an end after an error": ("terminal", 5, [START, *HI, FAILED, END]),
    "an error after an end": ("terminal", 5, [START, *HI, END, FAILED]),
    "a tool without its call": ("tool_started", 1, [START, RUN]),
    "a tool's end before its call is complete": ("tool_started", 5, [START, *CALL, RUN, RAN]),
    "a tool twice": ("tool_started", 6, [START, *CALL, CALLED, RUN, RUN]),
    "a tool twice in a step": ("tool_started", 7, [*CALLING, RUN, RUN]),
    "a tool's end without its beginning": ("tool_started", 5, [START, *CALL, CALLED, RAN]),
    "a result before the end": ("terminal", 7, [START, *CALL, CALLED, RUN, RAN, ToolResultEncoded("c", "1")]),
    "an early agent's text is another": (
        "block_text",
        8,
        [START, *CALL, CALLED, RUN, *nested("c", [START, HI[0], HI[2]])],
    ),
    "a tool after an error": ("terminal", 2, [START, FAILED, RUN]),
    "a step before the end": ("terminal", 1, [START, STEP]),
    "tools without a step": ("step_completed", 7, [START, *CALL, CALLED, CALLS, RUN]),
    "text among tools": ("step_completed", 7, [START, *CALL, CALLED, CALLS, RUN, TextDelta("Hi")]),
    "a step after a step": ("message_started", 3, [START, MessageCompleted(Message("assistant")), STEP, STEP]),
    "two steps and no chat": (
        "chat_completed",
        6,
        [START, MessageCompleted(Message("assistant")), STEP, START, MessageCompleted(Message("assistant")), STEP],
    ),
    "a lost step and no chat": (
        "chat_completed",
        4,
        [START, MessageCompleted(Message("assistant")), STEP, FAILED],
    ),
    "a later response without its step": (
        "step_completed",
        5,
        [START, MessageCompleted(Message("assistant")), STEP, START, MessageCompleted(Message("assistant"))],
    ),
    "an agent without its tool call": ("nested", 6, [*CALLING, *nested("c")]),
    "an agent before its tool call runs": ("nested", 6, [*CALLING, *nested("c"), RUN]),
    "an agent after its tool call has run": ("nested", 8, [*CALLING, RUN, RAN, *nested("c"), STEP]),
    "an agent of another tool call": ("nested", 7, [*CALLING, RUN, *nested("d")]),
    "an agent in an agent without a call": (
        "nested",
        13,
        [*CALLING, RUN, *nested("c", CALLING), *nested("c", "c")],
    ),
    "a result in the middle of an agent's chat": ("nested", 9, [*CALLING, RUN, *nested("c", CHILD[:2]), RAN]),
    "a step that ends in an agent's chat": ("nested", 13, [*CALLING, RUN, *nested("c", CHILD[:6]), STEP]),
    "an agent whose text is another": ("block_text", 9, [*CALLING, RUN, *nested("c", [START, HI[0], HI[2]])]),
    "an agent's events in a response": ("terminal", 1, [START, *nested("c")]),
    "an agent of the provider's own without a beginning": ("message_started", 2, [*SERVED, *nested("s", HI)]),
    "an agent of the provider's own that fails while it writes": (
        "block_closed",
        6,
        [
            *SERVED,
            ToolCallDelta("s", "{}"),
            ToolCallCompleted("s", "f", {}, "{}"),
            *nested("s", [START, HI[0]]),
            FAILED,
        ],
    ),
    "a correction in a response": ("terminal", 1, [START, Steered(user("No!"))]),
    "something after the chat": (
        "chat_completed",
        4,
        [START, MessageCompleted(Message("assistant")), STEP, CHAT, START],
    ),
}


def test_a_message_that_lacks_a_part_is_told_the_part() -> None:
    thought = [ThinkingDelta("hm"), ThinkingCompleted("hm")]
    events = [START, *thought, *HI, MessageCompleted(Message("assistant", "Hi"), "stop")]
    with pytest.raises(StreamError, match=re.escape("ThinkingPart(text='hm'")):
        rxllm.run(from_iterable(events).pipe(ops.verify()))


@pytest.mark.parametrize(("rule", "index", "events"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found_where_it_is(rule: str, index: int, events: list[Any]) -> None:
    error = fault(*events)
    assert isinstance(error, StreamError)
    assert (error.reason, error.metadata["rule"], error.event_index) == ("malformed_event", rule, index)
    at_end = index == len(events)
    tag = None if at_end or rule == "event" else type(events[index]).__struct_config__.tag
    assert error.metadata["event"] == tag
    assert rule in error.message
    assert ("the end" if at_end else repr(events[index])[:40]) in error.message
    assert serializer.from_json(serializer.to_json(error)) == error


def test_every_rule_of_the_docstring_has_its_fault_and_the_other_way_round() -> None:
    told = inspect.getdoc(ops.verify) or ""
    named = set(re.findall(r"^``(\w+)``  ", told, re.MULTILINE))
    assert named == {rule for rule, _, _ in PLANTED.values()}


SERVER = {"server": True}

LAWFUL: dict[str, list[Event]] = {
    "nothing said": [START, MessageCompleted(Message("assistant"))],
    "a block by id": [
        START,
        TextDelta("Hi", "t"),
        TextCompleted("Hi", "t"),
        MessageCompleted(Message("assistant", "Hi"), "stop"),
    ],
    "a block closed without its id": [START, TextDelta("Hi", "t"), TextCompleted("Hi"), END],
    "a signature alone": [START, ThinkingCompleted("", "sig"), FAILED],
    "agents that the provider runs": [
        *(*SERVED, ToolCallCompleted("s", "f", {}, "", {"server": True, "error": "incomplete"})),
        *(TextDelta("H", "t"), *nested("s", CHILD[:2]), TextDelta("i", "t"), *nested("s", CHILD[2:])),
        *(TextCompleted("Hi", "t"), FAILED),
    ],
    "calls side by side": [
        START,
        ToolCallStarted("a", "f"),
        ToolCallStarted("b", "f"),
        ToolCallDelta("b", "{}"),
        ToolCallDelta("a", "{}"),
        ToolCallCompleted("a", "f", {}, "{}"),
        ToolCallCompleted("b", "f", {}, "{}"),
        FAILED,
    ],
    "a call that does not parse, and says so": [
        START,
        ToolCallStarted("a", "f"),
        ToolCallDelta("a", "{"),
        ToolCallCompleted("a", "f", {}, "{", {"error": "incomplete"}),
        FAILED,
    ],
    "a call of the provider's own": [
        START,
        ToolCallStarted("a", "f", SERVER),
        ToolProgress("a", "f", 1),
        ToolCallCompleted("a", "f", {}, "", SERVER),
        MessageCompleted(Message("assistant", "", tool_calls=(ToolCall("a", "f", {}, "", SERVER),)), "stop"),
    ],
    "raw chunks and one's own events": [START, RawChunk("frame", 1), TextDelta("H"), Custom("mine"), *HI[1:], END],
    "a part of the provider's in a block": [START, PartAdded(ProviderPart("p", {})), FAILED],
    "a part in its earlier form": [START, RawChunk("x", ProviderPart("p", {})), FAILED],
    "usage that changes": [START, UsageUpdated(Usage(1)), UsageUpdated(Usage(2)), UsageUpdated(Usage(1)), FAILED],
    "a restart in the middle": [START, *CALL, StepRestarted("retry", 1), START, *CALL, CALLED, CALLS],
    "a restart after an error": [START, FAILED, StepRestarted("retry", 1), START, *HI, END],
    "a restart before the start": [StepRestarted("retry", 1), START, *HI, END],
    "an unknown tool": [START, *CALL, CALLED, CALLS, ErrorEvent(EngineError("unknown_tool")), STEP],
    "a chat that lost its second step": [START, *CALL, CALLED, CALLS, RUN, STEP, FAILED, CHAT],
    "a chat": [START, *CALL, CALLED, CALLS, Custom("mine"), RUN, STEP, Custom("mine"), START, *HI, END, STEP, CHAT],
    "a chat with a correction": [*CALLING, RUN, STEP, Steered(user("No!")), START, *HI, END, STEP, CHAT],
    "an agent": [*CALLING, RUN, *nested("c"), RAN, STEP, START, *HI, END, STEP, CHAT],
    "an agent in an agent": [
        *(*CALLING, RUN),
        *nested("c", [*CALLING, RUN]),
        *nested("c", "c"),
        *nested("c", [RAN, STEP, CHAT]),
        *(RAN, STEP, CHAT),
    ],
    "agents side by side": [
        *(*CALLING, RUN, ToolExecutionStarted("d", "f", {})),
        *(event for pair in zip(nested("c"), nested("d"), strict=True) for event in pair),
        *(RAN, ToolExecutionCompleted("d", "f"), STEP, CHAT),
    ],
    "an agent that fails midway": [
        *(*CALLING, RUN, *nested("c", CHILD[:3])),
        *(ToolExecutionCompleted("c", "f", error=ToolError("handler_raised")), STEP, CHAT),
    ],
    "a tool that starts early": [START, *CALL, CALLED, RUN, RAN, CALLS, ToolResultEncoded("c", "1"), STEP, CHAT],
    "a tool that starts within its call": [START, *CALL, RUN, CALLED, RAN, CALLS, STEP, CHAT],
    "a tool that starts within a text": [
        *(START, *CALL, CALLED, HI[0], RUN, *HI[1:], ToolProgress("c", "f", 1)),
        MessageCompleted(
            Message("assistant", (ToolCallPart("c"), TextPart("Hi")), tool_calls=CALLS.message.tool_calls), "tool_calls"
        ),
        *(RAN, STEP, CHAT),
    ],
    "an early tool that is stopped by an error": [
        *(
            START,
            *CALL,
            CALLED,
            RUN,
            ToolExecutionCompleted("c", "f", error=ToolError("cancelled")),
            FAILED,
            STEP,
            CHAT,
        ),
    ],
    "an early tool in a response that is restarted": [
        *(START, *CALL, CALLED, RUN, StepRestarted("again", 1)),
        *(START, *CALL, CALLED, RUN, RAN, CALLS, STEP, CHAT),
    ],
    "an early agent": [
        *(START, *CALL, CALLED, RUN, *nested("c", CHILD[:3]), CALLS, *nested("c", CHILD[3:]), RAN, STEP, CHAT),
    ],
    "an agent that waits for approval": [*CALLING, RUN, *nested("c"), STEP, CHAT],
    "an agent that is resumed": [RUN, *nested("c", [RUN, RAN, STEP, *CHILD]), RAN, STEP, START, *HI, END, STEP, CHAT],
    "a chat that is resumed": [RUN, STEP, START, *HI, END, STEP, CHAT],
}


@pytest.mark.parametrize("events", LAWFUL.values(), ids=LAWFUL)
def test_what_is_lawful_passes(events: list[Event]) -> None:
    passed: list[Event] = []
    assert fault(*events) is None
    from_iterable(events).pipe(ops.verify()).subscribe(passed.append)
    assert passed == events


@given(strategies.lawful_events)
def test_any_lawful_response_passes(events: list[Event]) -> None:
    assert fault(*events) is None


@given(strategies.lawful_chats)
def test_any_lawful_chat_with_agents_passes(events: list[Event]) -> None:
    assert fault(*events) is None


def test_a_fault_of_an_agent_names_its_path() -> None:
    torn = [Nested(("c", "c"), event) for event in (START, HI[0], HI[2])]
    error = fault(*CALLING, RUN, *nested("c", [*CALLING, RUN]), *torn)
    assert error is not None
    assert "in the agent c/c" in error.message


@given(scripts.scripts, scripts.chat_options)
def test_whatever_the_pipelines_say_is_lawful(script: Any, options: Any) -> None:
    for make in (rxllm.stream_generate, rxllm.stream_step, rxllm.stream):
        engine = Engine(fake(script), tools=tuple(scripts.TOOLS), retry=False)
        known = {} if make is rxllm.stream_generate else options
        if make is rxllm.stream_step:
            known = {name: held for name, held in options.items() if name not in ("max_turns", "halt_when")}
        _lawful_or_raised(make(engine, "Hi", **known))


def _lawful_or_raised(source: Any) -> None:
    errors: list[Any] = []
    list(source.pipe(ops.verify(), rx.catch(lambda error, _: errors.append(error) or reactivex.empty())))
    assert [error for error in errors if error.reason == "malformed_event"] == []


@pytest.mark.parametrize("is_agent", [False, True])
def test_a_chat_that_goes_on_with_its_question_still_open_is_lawful(is_agent: bool) -> None:
    @rxllm.tool
    def choose() -> Any:
        return rxllm.ask_user("Which?")

    asking = Engine(Fake(lambda request: ToolCall("c", "choose")), tools=[choose])
    if is_agent:
        calls = [ToolCall(id, "agent", {"prompt": "Go"}) for id in "ab"]
        asking = Engine(Fake(lambda request: calls), tools=[asking.as_tool(name="agent")])
    halted = rxllm.chat(asking, "Go").run()
    answers: Any = {"a/c": "This"} if is_agent else {}
    result = rxllm.stream_resume(asking, halted, results=answers).pipe(ops.verify()).run().result
    assert result.halted_reason == "ask_user"


def test_a_resumed_chat_is_lawful() -> None:
    @rxllm.tool(approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    model = Fake(ToolCall("c0", "pay", {"amount": 5}), "Done.")
    halted = rxllm.chat(model, "Pay 5.", tools=[pay]).run()
    events = list(rxllm.stream_resume(model, halted, approvals={"c0": True}, tools=[pay]).pipe(ops.verify()))
    assert isinstance(events[-1], ChatCompleted)


def test_a_chat_that_a_tool_halts_is_lawful() -> None:
    stop = rxllm.tool(name="stop", handler=lambda arguments: halt("enough", 1))
    events = list(rxllm.stream(Fake(ToolCall("c0", "stop")), "Hi", tools=[stop]).pipe(ops.verify()))
    assert isinstance(events[-1], ChatCompleted)


def test_as_middleware_it_ends_a_call_of_a_broken_adapter() -> None:
    async def broken(request: Any, call: Any) -> Any:
        yield START
        yield TextDelta("Hi")
        yield TextCompleted("Ho")

    watched = Engine(broken, operators=[ops.verify()])
    with pytest.raises(StreamError, match="block_text") as caught:
        rxllm.generate(watched, "Hi").run()
    assert caught.value.event_index == 2


def test_an_error_of_the_source_passes_in_the_middle() -> None:
    failure = AdapterError("network_error")
    check(
        ops.verify(),
        "-s-X",
        "^--!",
        "-s-X",
        s=START,
        X=failure,
    )

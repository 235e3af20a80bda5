"""AG-UI's frames obey its models and its client's rules, and its client folds what we fold.

The judges are the models of ``ag_ui.core`` and, under Node, the npm package ``@ag-ui/client``, see `judges/ag_ui.mjs`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import Event as AGUIEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from reactivex import from_iterable
from starlette.testclient import TestClient

import rxllm
from rxllm import (
    AdapterError,
    ErrorEvent,
    Event,
    Fake,
    Message,
    MessageCompleted,
    MessageStarted,
    Nested,
    Stream,
    StreamCollector,
    StreamError,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    Thread,
    ToolCall,
    ToolCallCompleted,
    ToolCallStarted,
    Usage,
    UsageUpdated,
    web,
)
from rxllm import operators as ops
from rxllm.testing import strategies
from rxllm.values import ThinkingPart
from tests.examples import examples
from tests.laws import scripts
from tests.operators.support import NO, Dictation, refusing
from tests.web.ag_ui import add_twice, again, ask, client, framed, judged, locate, pay, run
from tests.web.streams import DECODERS, of_recordings, of_script
from tests.web.work import assert_linear

MODEL: TypeAdapter[Any] = TypeAdapter(AGUIEvent)


OPENERS = {"TEXT_MESSAGE_START": "messageId", "REASONING_START": "messageId", "REASONING_MESSAGE_START": "messageId"}
OPENERS |= {"TOOL_CALL_START": "toolCallId", "STEP_STARTED": "stepName", "SUBAGENT_STARTED": "subagentRunId"}
ENDS = {"SUBAGENT_ERROR": "SUBAGENT_STARTED"}
ENDS |= {kind.replace("START", "END"): kind for kind in OPENERS if kind.endswith("_START")}
ENDS |= {kind.replace("STARTED", "FINISHED"): kind for kind in OPENERS if kind.endswith("_STARTED")}
CONTENTS = {"TEXT_MESSAGE_CONTENT": "TEXT_MESSAGE_START", "TOOL_CALL_ARGS": "TOOL_CALL_START"}
CONTENTS |= {"REASONING_MESSAGE_CONTENT": "REASONING_MESSAGE_START"}


def check_rules(frames: list[Any]) -> None:
    """The rules of the client: what opens is closed once, by its own agent, before the run ends; agents begin once."""
    assert frames[0]["type"] == "RUN_STARTED"
    assert frames[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")
    is_open: dict[tuple[str, Any, str | None], bool] = {}
    agents: set[str] = set()
    for frame in frames:
        MODEL.validate_python(frame)
        kind, agent = frame["type"], frame.get("subagentRunId")
        if kind == "SUBAGENT_STARTED":
            assert agent not in agents
            assert frame.get("parentSubagentRunId", agent) in {*agents, agent}
            agents.add(agent)
        assert agent is None or agent in agents
        opener = ENDS.get(kind) or CONTENTS.get(kind) or kind
        if opener in OPENERS:
            key = (opener, frame[OPENERS[opener]], agent)
            assert bool(is_open.get(key)) == (kind != opener), frame
            is_open[key] = kind not in ENDS
    assert not any(is_open.values())
    assert sum(frame["type"].startswith("RUN_") for frame in frames) == 2


def ours(events: list[Event]) -> dict[str, Any]:
    """The text, the thinking, the calls and the results that `events` fold to, without agents that run as tools."""
    state = StreamCollector(Thread())
    for event in events:
        state = state.apply_event(event)
    messages = [step.response.message for step in state.steps] + ([] if state.summary.fresh else [state.message])
    results = [result for step in state.steps for result in step.tool_results]
    results += () if state.summary.fresh else state.tool_results
    known = [message for message in messages if message is not None]
    return {
        "text": "".join(message.text for message in known),
        "thinking": [
            (part.text, part.signature)
            for message in known
            for part in message.parts
            if isinstance(part, ThinkingPart) and (part.text or part.signature)
        ],
        "calls": {call.id: (call.name, call.raw_arguments) for message in known for call in message.tool_calls},
        "results": {r.tool_call_id: r.text for r in results if r.text != "<awaiting user response>"},
        "input_tokens": state.to_chat_result().usage.input_tokens,
    }


def theirs(result: Any) -> dict[str, Any]:
    """The same of the client's messages."""
    messages = [message for message in result["messages"] if "subagentRunId" not in message]
    answers = [message for message in messages if message["role"] == "assistant"]
    calls = [call for message in answers for call in message.get("toolCalls", ())]
    return {
        "text": "".join(message.get("content", "") for message in answers),
        "thinking": [(m["content"], m.get("encryptedValue")) for m in messages if m["role"] == "reasoning"],
        "calls": {call["id"]: (call["function"]["name"], call["function"]["arguments"]) for call in calls},
        "results": {m["toolCallId"]: m["content"] for m in messages if m["role"] == "tool"},
        "input_tokens": (result["usage"] or [{}])[0].get("inputTokens"),
    }


def assert_folds_equal(result: Any, events: list[Event], name: str = "") -> None:
    assert result["refused"] is None, (name, result)
    assert result["warnings"] == [], name
    void = [("", None)] if any(isinstance(event, rxllm.StepRestarted) for event in events) else []
    expected = ours(events)
    expected["thinking"] = [*void, *expected["thinking"]]  # a client keeps one message of reasoning, empty
    assert theirs(result) == expected, name
    errors = [event.error for event in events if isinstance(event, ErrorEvent)]
    assert (result["outcome"] == "error") == bool(errors), name


@pytest.mark.judges
@pytest.mark.parametrize("api", DECODERS)
def test_the_client_folds_recorded_streams_as_we_do(api: str) -> None:
    named = [(name, client(events)) for name, events in of_recordings(api)]
    frames = [framed(events) for _, events in named]
    for stream in frames:
        check_rules(stream)
    for (name, events), result in zip(named, judged(frames), strict=True):
        assert_folds_equal(result, events, name)


functions = st.sampled_from([rxllm.stream, rxllm.stream_step, rxllm.stream_generate])


@settings(deadline=None, max_examples=examples(80))
@given(scripts.scripts, functions, scripts.presentations)
def test_every_stream_keeps_the_rules_of_the_client(script: Any, function: Any, options: Any) -> None:
    frames = framed(client(of_script(script, function, **options)))
    check_rules(frames)
    assert "CANARY" not in json.dumps(frames)


@settings(deadline=None, max_examples=examples(100))
@given(strategies.event_lists)
def test_any_events_keep_the_rules_of_the_client(events: list[Event]) -> None:
    check_rules(framed(client(events)))


@settings(deadline=None, max_examples=examples(80))
@given(scripts.scripts, st.booleans(), scripts.presentations)
def test_every_resumed_chat_comes_back(script: Any, approved: bool, options: Any) -> None:
    waits = [["I do.", ToolCall("m", "manual"), ToolCall("p", "approval"), ToolCall("x", "add")]]
    halted = rxllm.chat(scripts.fake(waits), "Hi", tools=scripts.TOOLS).run()
    engine = rxllm.Engine(scripts.fake(script), tools=tuple(scripts.TOOLS), retry=False)
    resumed = rxllm.stream_resume(engine, halted, approvals={"p": approved}, results={"m": "done"}, **options)
    events = client(list(resumed.pipe(ops.errors_as_events())))
    check_rules(framed(events))
    assert again(framed(events)) == events


@pytest.mark.judges
def test_the_client_folds_scripts_as_we_do() -> None:
    collected: list[list[Event]] = []

    @settings(deadline=None, max_examples=examples(80), database=None)
    @given(scripts.scripts, scripts.presentations)
    def collect(script: Any, options: Any) -> None:
        collected.append(client(of_script(script, **options)))

    collect()
    for events, result in zip(collected, judged([framed(events) for events in collected]), strict=True):
        assert_folds_equal(result, events, repr(events)[:2000])


# Scenes


def wait_for_approval() -> list[Event]:
    return run(Fake(["I pay.", ToolCall("c1", "pay", {"amount": 5})]), tools=[pay])


def wait_for_the_client() -> list[Event]:
    return run(Fake([ToolCall("c1", "locate", {})]), tools=[locate])


def ask_the_user() -> list[Event]:
    return run(Fake([ToolCall("c1", "ask", {"question": "Which?"})]), tools=[ask])


def mid_stream_error() -> list[Event]:
    return run(Fake(["Hel", AdapterError("provider_unavailable", "https://secret")]))


def cancelled() -> list[Event]:
    return run(Fake(["Hel", StreamError("cancelled")]))


def begun_again() -> list[Event]:
    """A step that begins again with the same ids after text, thinking, a call and an agent."""
    start = MessageStarted(Message("assistant"))
    return client(
        [
            *(start, ThinkingDelta("void", "t"), ThinkingCompleted("void", "s", None, "t"), TextDelta("void", "b")),
            *(TextCompleted("void", "b"), ToolCallStarted("c1", "add"), ToolCallCompleted("c1", "add", {}, '{"x": 9}')),
            *(Nested(("c1",), start), Nested(("c1",), TextDelta("void", "b"))),
            rxllm.StepRestarted("truncated", 2),
            *(start, TextDelta("Hello", "b"), TextCompleted("Hello", "b"), ToolCallStarted("c1", "add")),
            *(ToolCallCompleted("c1", "add", {"x": 1}, '{"x":1}'), UsageUpdated(Usage(1, 2))),
            MessageCompleted(Message("assistant"), "tool_calls"),
            Nested(("c1",), start),
            rxllm.ToolExecutionCompleted("c1", "add", 2),
            rxllm.ToolResultEncoded("c1", "2"),
        ]
    )


def begun_again_twice() -> list[Event]:
    """A second step that breaks off twice in the middle of a block, and an agent inside that begins again."""
    start, end = MessageStarted(Message("assistant")), MessageCompleted(Message("assistant"), "tool_calls")
    step = rxllm.StepCompleted(rxllm.StepResult(Thread(), rxllm.Response()))
    again = rxllm.StepRestarted("truncated", 2)
    inside = [start, TextDelta("void", "b"), again, start, TextDelta("in", "b"), TextCompleted("in", "b")]
    return client(
        [
            *(start, TextDelta("One.", "b"), TextCompleted("One.", "b"), ToolCallStarted("c1", "agent")),
            *(ToolCallCompleted("c1", "agent", {}, "{}"), end, *(Nested(("c1",), event) for event in inside)),
            *(rxllm.ToolExecutionCompleted("c1", "agent", "in"), rxllm.ToolResultEncoded("c1", "in"), step),
            *(start, ThinkingDelta("void", "t"), again, start, TextDelta("void", "b"), ToolCallStarted("c2", "agent")),
            *(
                again,
                start,
                TextDelta("Two.", "b"),
                TextCompleted("Two.", "b"),
                MessageCompleted(Message("assistant"), "stop"),
            ),
        ]
    )


def agents_and_a_correction() -> list[Event]:
    """Two agents at once, one of which fails after it has called another, and a correction."""
    start, end = MessageStarted(Message("assistant")), MessageCompleted(Message("assistant"), "stop")
    calls = [("c1", "writer"), ("c2", "critic")]
    inside = [start, TextDelta("in", "a"), TextCompleted("in", "a"), end]
    error = rxllm.ToolError("handler_raised")
    return client(
        [
            *(start, TextDelta("Both.", "a"), TextCompleted("Both.", "a")),
            *(
                event
                for id, name in calls
                for event in (ToolCallStarted(id, name), ToolCallCompleted(id, name, {}, "{}"))
            ),
            MessageCompleted(Message("assistant"), "tool_calls"),
            *(rxllm.ToolExecutionStarted(id, name, {}) for id, name in calls),
            *(Nested((id,), event) for event in inside for id in ("c1", "c2")),
            *(
                Nested(("c2",), ToolCallStarted("c1", "deep")),
                Nested(("c2",), ToolCallCompleted("c1", "deep", {}, "{}")),
            ),
            *(Nested(("c2", "c1"), event) for event in inside[:2]),
            rxllm.ToolExecutionCompleted("c1", "writer", "in"),
            rxllm.ToolResultEncoded("c1", "in"),
            rxllm.ToolExecutionCompleted("c2", "critic", error=error),
            rxllm.ToolResultEncoded("c2", "failed"),
            rxllm.Steered(rxllm.user("Shorter.")),
            rxllm.Steered(rxllm.user("Late."), used=False),
            *(
                rxllm.Custom("weather", {"degrees": 20}),
                rxllm.Custom("rxllm", {"event": 1}),
                rxllm.Custom("pair", (1, 2)),
            ),
            rxllm.SourceAdded({"url": "https://example.org", "title": "Example"}),
            rxllm.FileAdded({"mime_type": "image/png", "data": b"png", "name": "a.png"}),
        ]
    )


def vetoed() -> list[Event]:
    return run(Dictation(TextDelta("I save.")).write, tools=[refusing(NO)])


def halted() -> list[Event]:
    return run(Dictation().write, tools=[refusing(rxllm.halt("enough", 7))])


SCENES = [
    vetoed,
    halted,
    *(add_twice, wait_for_approval, wait_for_the_client, ask_the_user, mid_stream_error, cancelled),
    *(begun_again, begun_again_twice, agents_and_a_correction),
]


@pytest.mark.parametrize("scene", SCENES)
def test_scenes_come_back(scene: Any) -> None:
    events = scene()
    frames = framed(events)
    check_rules(frames)
    assert again(frames) == events


@pytest.mark.judges
@pytest.mark.parametrize("cut", [None, 7])
def test_the_client_folds_scenes_as_we_do(cut: int | None) -> None:
    scenes = [scene() for scene in SCENES if scene is not cancelled]
    for events, result in zip(scenes, judged([framed(events) for events in scenes], cut=cut), strict=True):
        assert_folds_equal(result, events)


@pytest.mark.judges
def test_what_the_run_waits_for_is_an_interrupt_or_a_pending_call() -> None:
    scenes = [wait_for_approval, wait_for_the_client, ask_the_user, cancelled, add_twice]
    approval, client_call, question, stopped, done = judged([framed(scene()) for scene in scenes])
    (interrupt,) = approval["interrupts"]
    assert (interrupt["id"][:3], interrupt["toolCallId"], interrupt["reason"]) == ("c1:", "c1", "tool_call")
    assert interrupt["responseSchema"]["required"] == ["approved"]
    assert (client_call["outcome"], client_call["pending"]) == ("success", ["c1"])
    (interrupt,) = question["interrupts"]
    assert (interrupt["id"], interrupt["reason"], interrupt["message"]) == ("c1", "input_required", "Which?")
    assert interrupt["metadata"] == {"opts": {"choices": ["a", "b"]}}
    assert (stopped["outcome"], stopped["refused"], done["outcome"]) == ("cancelled", None, "success")


@pytest.mark.judges
def test_a_restart_keeps_what_the_client_had() -> None:
    history = [{"id": "m1", "role": "user", "content": "Hi"}, {"id": "m2", "role": "assistant", "content": "Yes?"}]
    (result,) = judged([framed(begun_again(), messages=history)], messages=history)
    assert [message.get("content") for message in result["messages"]] == ["Hi", "Yes?", "", "Hello", "2"]


@pytest.mark.judges
def test_a_restart_leaves_a_conversation_alone_that_the_encoder_does_not_know() -> None:
    history = [{"id": "m1", "role": "user", "content": "Hi"}, {"id": "m2", "role": "assistant", "content": "Yes?"}]
    (result,) = judged([framed(begun_again(), messages=None)], messages=history)
    contents = [message.get("content") for message in result["messages"]]
    assert contents[:2] == ["Hi", "Yes?"]
    assert {"void", "Hello", "2"} < {*contents}


@pytest.mark.judges
def test_a_request_knows_the_encoder_of_its_answer() -> None:
    history = [{"id": "m1", "role": "user", "content": "Hi"}]
    incoming = web.from_ag_ui({"threadId": "t", "runId": "r", "messages": history})
    response = web.streaming_response(Stream.of(from_iterable(begun_again())), incoming.encoder())
    frames = list(web.from_sse(TestClient(response).get("/").content))
    (result,) = judged([frames], messages=history)
    assert [message.get("content") for message in result["messages"]] == ["Hi", "", "Hello", "2"]


@pytest.mark.judges
def test_nothing_void_is_left_with_the_client() -> None:
    (result,) = judged([framed(begun_again_twice())])
    assert [message.get("content") for message in result["messages"]] == ["One.", "in", "in", "", "Two."]


@pytest.mark.judges
def test_agents_have_runs_of_their_own() -> None:
    frames = framed(agents_and_a_correction())
    starts = {frame["subagentRunId"]: frame for frame in frames if frame["type"] == "SUBAGENT_STARTED"}
    assert [(start["name"], start["parentToolCallId"]) for start in starts.values()] == [
        *(("writer", "c1"), ("critic", "c2"), ("deep", "c2/c1"))
    ]
    ends = [
        frame["type"]
        for frame in frames
        if frame["type"].startswith("SUBAGENT_") and frame["type"] != "SUBAGENT_STARTED"
    ]
    assert ends == ["SUBAGENT_FINISHED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR"]
    (result,) = judged([frames])
    inner = [message for message in result["messages"] if "subagentRunId" in message]
    assert [message.get("content") for message in inner if message["role"] == "assistant"] == ["in", "in", "in"]
    assert [message["content"] for message in result["messages"] if message["role"] == "user"] == ["Shorter."]


@pytest.mark.judges
def test_an_agent_that_waits_for_approval_is_suspended() -> None:
    start = MessageStarted(Message("assistant"))
    halted = rxllm.ChatResult(
        Thread(), halted_reason="approval", pending_tool_calls=(ToolCall("c1/c2", "pay", {"amount": 5}),)
    )
    events = [
        *(start, ToolCallStarted("c1", "agent"), ToolCallCompleted("c1", "agent", {}, "{}")),
        *(MessageCompleted(Message("assistant"), "tool_calls"), Nested(("c1",), start)),
        *(Nested(("c1",), ToolCallStarted("c2", "pay")), Nested(("c1",), ToolCallCompleted("c2", "pay", {}, "{}"))),
        Nested(("c1",), MessageCompleted(Message("assistant"), "tool_calls")),
        Nested(("c1",), rxllm.ToolApprovalRequested("c2", "pay", {"amount": 5})),
        rxllm.ChatCompleted(halted),
    ]
    frames = framed(client(events))
    check_rules(frames)
    (agent,) = (frame["subagentRunId"] for frame in frames if frame["type"] == "SUBAGENT_STARTED")
    (end,) = (frame for frame in frames if frame["type"] == "SUBAGENT_FINISHED")
    shown = web.approval_id(halted.pending_tool_calls[0])
    assert end["outcome"] == {"type": "suspended", "interruptIds": [shown]}
    (result,) = judged([frames])
    (interrupt,) = result["interrupts"]
    assert (interrupt["id"], interrupt["toolCallId"], interrupt["subagentRunId"]) == (shown, "c1/c2", agent)


def test_a_stream_that_is_cut_off_is_an_error_on_the_wire() -> None:
    frames = framed([MessageStarted(Message("assistant")), TextDelta("Hel", "a")])
    check_rules(frames)
    assert (frames[-1]["type"], frames[-1]["code"]) == ("RUN_ERROR", "truncated")
    assert again(frames[:-1])[-1] == ErrorEvent(StreamError("truncated"))


def read_calls(count: int) -> None:
    calls = [
        {"type": kind, "toolCallId": f"c{i}", "toolCallName": "f", "parentMessageId": f"m{i}"}
        for i in range(count)
        for kind in ("TOOL_CALL_START", "TOOL_CALL_END")
    ]
    events = again([{"type": "RUN_STARTED", "threadId": "t", "runId": "r"}, *calls, {"type": "RUN_FINISHED"}])
    assert isinstance(events[-1], rxllm.ChatCompleted)


@pytest.mark.judges
def test_a_run_of_many_calls_is_read_in_linear_time() -> None:
    assert_linear(read_calls, 500)
    read_calls(12_000)


def test_options_are_checked_at_once() -> None:
    with pytest.raises(TypeError, match="thread"):
        web.encode("ag-ui", thread="t")
    frames = list(rxllm.stream_generate(Fake("Hi"), "Hi").pipe(web.encode("ag-ui")))
    assert len(frames[0]["threadId"]) == len(frames[0]["runId"]) == 32

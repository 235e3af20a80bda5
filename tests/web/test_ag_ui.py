"""AG-UI's frames obey its models and its client's rules, and its client folds what we fold.

The judges are the models of ``ag_ui.core`` and, under Node, the npm package ``@ag-ui/client``, see `judges/ag_ui.mjs`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Event as AGUIEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from reactivex import from_iterable

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
    ThinkingPart,
    Thread,
    ToolCall,
    ToolCallCompleted,
    ToolCallStarted,
    Usage,
    UsageUpdated,
    ask_user,
    tool,
    web,
)
from rxllm import operators as ops
from rxllm.testing import strategies
from tests.judges import absent, node
from tests.laws import scripts
from tests.web.streams import DECODERS, of_recordings, of_script

JUDGE = Path(__file__).parent / "judges" / "ag_ui.mjs"
MODULES = Path(__file__).parents[1] / "node_modules"
MODEL: TypeAdapter[Any] = TypeAdapter(AGUIEvent)


def client(events: list[Event]) -> list[Event]:
    return list(Stream.of(from_iterable(events)).pipe(web.for_client()))


def framed(events: list[Event], **options: Any) -> list[Any]:
    encode = web.encode("ag-ui", **{"thread_id": "thread", "run_id": "run", **options})
    return list(Stream.of(from_iterable(events)).pipe(encode))


def again(frames: list[Any]) -> list[Event]:
    return list(Stream.of(from_iterable(frames)).pipe(web.decode("ag-ui")))


def judged(streams: list[list[Any]], messages: list[Any] | None = None, cut: int | None = None) -> list[Any]:
    """What the client makes of streams of frames; before each it has `messages`."""
    if not (MODULES / "@ag-ui" / "client").is_dir():
        absent("@ag-ui/client", "npm ci --prefix tests")
    bodies = [b"".join(map(web.sse, frames)).decode() for frames in streams]
    lines = [json.dumps({"body": body, "messages": messages or [], "cut": cut}) for body in bodies]
    finished = subprocess.run(
        [node(), str(JUDGE)], input="\n".join(lines).encode(), capture_output=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr.decode()[-2000:]
    results = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len(results) == len(streams)
    return results


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
        "thinking": [(p.text, p.signature) for message in known for p in message.parts if isinstance(p, ThinkingPart)],
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
    assert theirs(result) == ours(events), name
    errors = [event.error for event in events if isinstance(event, ErrorEvent)]
    assert (result["outcome"] == "error") == bool(errors), name


@pytest.mark.parametrize("api", DECODERS)
def test_the_client_folds_recorded_streams_as_we_do(api: str) -> None:
    named = [(name, client(events)) for name, events in of_recordings(api)]
    frames = [framed(events) for _, events in named]
    for stream in frames:
        check_rules(stream)
    for (name, events), result in zip(named, judged(frames), strict=True):
        assert_folds_equal(result, events, name)


functions = st.sampled_from([rxllm.stream, rxllm.stream_step, rxllm.stream_generate])


@settings(deadline=None, max_examples=80)
@given(scripts.scripts, functions, scripts.presentations)
def test_every_stream_keeps_the_rules_of_the_client(script: Any, function: Any, options: Any) -> None:
    check_rules(framed(client(of_script(script, function, **options))))


@settings(deadline=None, max_examples=100)
@given(strategies.event_lists)
def test_any_events_keep_the_rules_of_the_client(events: list[Event]) -> None:
    check_rules(framed(client(events)))


def test_the_client_folds_scripts_as_we_do() -> None:
    collected: list[list[Event]] = []

    @settings(deadline=None, max_examples=80, database=None)
    @given(scripts.scripts, scripts.presentations)
    def collect(script: Any, options: Any) -> None:
        collected.append(client(of_script(script, **options)))

    collect()
    for events, result in zip(collected, judged([framed(events) for events in collected]), strict=True):
        assert_folds_equal(result, events, repr(events)[:2000])

"""Hypothesis strategies: scripts for a Fake, the tools they call, and the options of the call."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rxllm import AdapterError, Engine, Fake, StreamError, ToolCall, ToolError, Usage, ask_user, halt, tool
from rxllm.testing import strategies

AGENT_NAMES = ["agent", "failing_agent", "short_agent", "asking_agent", "waiting_agent", "agent_of_agents"]
TOOL_NAMES = [
    *("add", "raises", "halts", "asks", "greedy", "streams", "progresses", "odd", "manual", "approval"),
    *AGENT_NAMES,
]


@tool
def add(x: int = 1) -> int:
    return x + 1


def _raise(arguments: Any) -> Any:
    raise ValueError("first\nsecond")


async def _stream(arguments: Any) -> Any:
    yield 1
    yield {"two": 2}


def _progress(arguments: Any, context: Any) -> str:
    context.progress([1, 2])
    return "done"


TOOLS = [
    add,
    tool(name="raises", handler=_raise),
    tool(name="halts", handler=lambda arguments: halt("found", {"answer": 42})),
    tool(name="asks", handler=lambda arguments: ask_user("Which?", choices=["a", "b"])),
    tool(name="greedy", handler=lambda arguments: halt("completed")),
    tool(name="streams", handler=_stream),
    tool(name="progresses", handler=_progress),
    tool(name="odd", handler=lambda arguments: {"nested": [None, 1.5, "x"]}),
    tool(name="manual", manual=True),
    tool(name="approval", handler=lambda arguments: "approved", approval=True),
]


def _agent(name: str, *turn: Any, tools: Any = (), **options: Any) -> Any:
    """An agent whose model plays `turn` first, and then says what came of it."""

    def reply(request: Any) -> Any:
        if len(request.messages) == 1:
            return list(turn)
        return [" ".join(message.text for message in request.messages[1:]), Usage(0, 2)]

    schema = {"type": "object", "properties": {"x": {}}}
    # One tool at a time: two that end on threads of their own have no order, and the laws compare runs event by event.
    return Engine(Fake(reply), tools=tools).as_tool(name=name, schema=schema, max_concurrency=1, **options)


TOOLS += [
    _agent("agent", "Hm. ", Usage(3, 4), ToolCall("a", "odd"), tools=TOOLS),
    _agent("failing_agent", "Hm. ", Usage(5, 6), ("error", "provider_unavailable"), retry=False),
    _agent("short_agent", ToolCall("a", "halts"), tools=TOOLS),
    _agent("asking_agent", Usage(7, 8), ToolCall("a", "asks"), ToolCall("b", "add"), tools=TOOLS),
    _agent("waiting_agent", ToolCall("a", "manual"), ToolCall("b", "approval"), ToolCall("c", "raises"), tools=TOOLS),
]
TOOLS.append(_agent("agent_of_agents", *(ToolCall(id, f"{id}_agent") for id in ("asking", "waiting")), tools=TOOLS))

texts = strategies.texts.filter(bool)
usages = st.builds(Usage, st.none() | st.integers(0, 99), st.none() | st.integers(0, 99))


@st.composite
def calls(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from([*TOOL_NAMES, "unknown"]) if draw(st.integers(0, 3)) else st.just("add"))
    id = draw(st.sampled_from(["a", "b", "c"]))
    match draw(st.sampled_from(["whole", "pieces", "broken", "server"])):
        case "whole":
            return [ToolCall(id, name, draw(st.sampled_from([{}, {"x": 1}, {"x": "no"}])))]
        case "pieces":
            pieces = draw(st.sampled_from([["{", "}"], ['{"x"', ": 2}"], ["{}"]]))
            named = {"id": id, "name": name}
            return [("tool_call_delta", {**named, "arguments_delta": piece}) for piece in pieces]
        case "broken":
            return [ToolCall(id, name, {}, draw(st.sampled_from(['{"x": ', "[]", "no"])))]
        case _:
            return [ToolCall(id, name, {}, "{}", {"server": True})]


pieces = st.one_of(
    texts.map(lambda text: [text]),
    texts.map(lambda text: [("thinking", text)]),
    calls(),
    usages.map(lambda usage: [usage]),
    st.just([("raw_chunk", {"x": 1})]),
    st.just([("usage", {"input_tokens": 7})]),
)
endings = st.sampled_from(
    [[]] * 4
    + [[("finish", reason)] for reason in ("stop", "length", "content_filter", "tool_calls", "other", "pause_turn")]
    + [[("error", "provider_unavailable")], [StreamError("truncated")], [RuntimeError("a bug")]]
)


@st.composite
def turns(draw: st.DrawFn) -> list[Any]:
    if draw(st.integers(0, 9)) == 0:
        return [AdapterError(draw(st.sampled_from(["invalid_request", "rate_limited"])))]
    body = [piece for each in draw(st.lists(pieces, max_size=5)) for piece in each]
    # An exception that is first in its turn is raised as it is; these laws are about streams.
    return [*body, *draw(endings)] if body else body


scripts = st.lists(turns(), min_size=2, max_size=4)


def _policy(call: ToolCall, error: ToolError) -> Any:
    return {"instead of": error.reason}


def _raising(call: ToolCall, error: ToolError) -> Any:
    raise RuntimeError("the policy's own")


def _halting(call: ToolCall, error: ToolError) -> Any:
    return halt("gave_up", call.id)


presentations = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("emit_text_deltas", "emit_tool_deltas", "emit_thinking", "include_raw_chunks"), st.booleans()
    ),
)
step_options = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["auto", "auto", "manual"]),
        "on_tool_error": st.sampled_from(["continue", "halt", _policy, _raising, _halting]),
        "approve": st.sampled_from(
            [
                lambda call: True,
                lambda call: False,
                lambda call: "no",
                lambda call: {"x": 3},
                lambda call: halt("approval"),
            ]
        ),
        "max_concurrency": st.integers(1, 2),
    },
)
chat_options = st.tuples(
    step_options,
    st.fixed_dictionaries(
        {},
        optional={
            "max_turns": st.integers(1, 3),
            "halt_when": st.sampled_from([lambda step: True, lambda step: len(step.thread) > 3]),
        },
    ),
).map(lambda both: {**both[0], **both[1]})


def fake(script: list[list[Any]]) -> Fake:
    """A fresh model: one that has played elsewhere would go on from there."""
    return Fake(scripts=script)

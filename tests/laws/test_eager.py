"""Law: tools that start early give the same chat as tools that wait for the response, on every script, in virtual time.

Tools are pure here: they take time, fail, halt, ask, time out, need approvals and run agents, but have no effects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex.testing import TestScheduler

import rxllm
from rxllm import Engine, Fake, StreamCollector, ToolCall, ask_user, halt, serializer, tool
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    Event,
    MessageCompleted,
    StepCompleted,
    ToolCallCompleted,
    ToolExecutionStarted,
    ToolResultEncoded,
)
from rxllm.testing.marbles import record
from tests.examples import examples
from tests.laws import scripts

NAMES = ["add", "slow", "late", "raises", "halts", "asks", "approval", "manual", "agent", "waiting_agent"]

seconds = st.integers(0, 6)


def after(delay: float, value: Any) -> Any:
    return value if not delay else reactivex.timer(delay).map(lambda _: value)


def tools_of(delay: int) -> list[rxllm.Tool]:
    def fail(arguments: Any) -> Any:
        raise ValueError("first\nsecond")

    inner = tool(name="look", handler=lambda arguments: after(delay, "seen"), eager=True)
    turns: list[Any] = [[ToolCall("x", "look"), ("delay", 1)], "Inner."]

    def agent(name: str, *inner_tools: rxllm.Tool, turns: Any) -> rxllm.Tool:
        model = Fake(lambda request: turns[min(sum(m.role == "tool" for m in request.messages), len(turns) - 1)])
        return Engine(model, tools=inner_tools).as_tool(name=name, schema={"type": "object", "properties": {"x": {}}})

    return [
        scripts.add,
        tool(name="slow", handler=lambda arguments: after(delay, {"slow": [None, 1.5]})),
        tool(name="late", handler=lambda arguments: after(delay + 4, "late"), timeout=3),
        tool(name="raises", handler=fail),
        tool(name="halts", handler=lambda arguments: after(delay, halt("found", {"answer": 42}))),
        tool(name="asks", handler=lambda arguments: ask_user("Which?", choices=["a", "b"])),
        tool(name="approval", handler=lambda arguments: after(delay, "approved"), approval=True),
        tool(name="manual", manual=True),
        agent("agent", inner, turns=turns),
        agent("waiting_agent", tool(name="look", manual=True), turns=turns),
    ]


@st.composite
def calls(draw: st.DrawFn) -> list[Any]:
    name = draw(st.sampled_from([*NAMES, *NAMES, *NAMES, "unknown"]))
    raw = draw(st.sampled_from(["{}", "{}", '{"x": 1}', '{"x": "no"}', '{"x": ', "[]"]))
    metadata = draw(st.sampled_from([{}, {}, {}, {}, {"server": True}]))
    return [ToolCall("", name, {}, raw, metadata) if metadata else ("tool_call", {"name": name, "raw_arguments": raw})]


pieces = st.one_of(
    scripts.texts.map(lambda text: [text]),
    scripts.texts.map(lambda text: [("thinking", text)]),
    calls(),
    calls(),
    calls(),
    seconds.map(lambda delay: [("delay", delay)]),
)
endings = st.sampled_from(
    [[]] * 7
    + [[("finish", reason)] for reason in ("length", "content_filter", "tool_calls", "pause_turn")]
    + [[("error", "provider_unavailable")]]
)
turns = st.tuples(st.lists(pieces, min_size=1, max_size=7), endings).map(
    lambda both: [piece for part in both[0] for piece in part] + both[1]
)


def played(script: Any, tools: list[rxllm.Tool], options: Any) -> list[Event]:
    engine = Engine(Fake(scripts=script), tools=tuple(tools), retry=False)
    stream = rxllm.stream(engine, "Hi", **options).pipe(ops.verify())
    notes = record(TestScheduler(), lambda: stream, disposed=10_000)
    assert notes[-1][1] in ("end", "error"), notes
    return [event for _, kind, event in notes if kind == "next"] + [e for _, kind, e in notes if kind == "error"]


@settings(deadline=None, max_examples=examples(250))
@given(
    st.lists(turns, min_size=1, max_size=4),
    st.sets(st.sampled_from(NAMES)),
    seconds,
    scripts.chat_options,
    st.booleans(),
)
def test_eager_is_late(script: Any, eager: set[str], delay: int, options: Any, all_idempotent: bool) -> None:
    late = tools_of(delay)
    early = [replace(item, eager=item.name in eager, idempotent=item.idempotent or all_idempotent) for item in late]
    expected = played(script, [replace(item, idempotent=item.idempotent or all_idempotent) for item in late], options)
    found = played(script, early, {**options, "eager": True if all_idempotent else None})
    last, other = expected[-1], found[-1]
    if not isinstance(last, ChatCompleted):
        assert repr(last) == repr(other)
        return
    assert isinstance(other, ChatCompleted)
    assert other.result.thread == last.result.thread
    assert serializer.to_json(other) == serializer.to_json(last)
    state = StreamCollector(rxllm.Thread((rxllm.user("Hi"),)))
    for event in found[:-1]:
        state = state.apply_event(event)
    assert state.steps == other.result.steps
    check_order(found)


def check_order(events: list[Event]) -> None:
    """Each tool starts once and after its call is complete, and its result follows its response."""
    completed: set[str] = set()
    started: set[str] = set()
    is_over = False
    for event in events:
        match event:
            case ToolCallCompleted(id=id):
                completed.add(id)
                is_over = False
            case ToolExecutionStarted(id=id):
                assert id in completed
                assert id not in started
                started.add(id)
            case MessageCompleted():
                is_over = True
            case ToolResultEncoded():
                assert is_over
            case StepCompleted():
                is_over = False
            case _:
                pass

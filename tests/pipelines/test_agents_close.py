"""Agents over real sockets and in simulation: a dispose reaches every depth, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Engine, Fake, ToolCall, ask_user, tool
from rxllm import operators as ops
from rxllm.adapters.local.server import find_weights
from rxllm.events import Event, Nested, TextDelta, ToolExecutionCompleted
from rxllm.runtime import daemon_threads
from rxllm.testing import World, simulate_cancels, simulate_many
from rxllm.testing.loopback import (
    DONE,
    STALL,
    Loopback,
    Reply,
    Request,
    chat,
    chat_chunk,
    chat_event,
    chat_finish,
)
from rxllm.tools import AgentTool
from rxllm.values import EngineError
from tests.closing import also_next, assert_closed, next_call
from tests.examples import share
from tests.testing.simulated import double, engine_of, is_answered, slowly, with_tools
from tests.waiting import until

pytestmark = pytest.mark.judges

CHUNKS = 6000
LONG = Reply([*[chat_chunk("x" * 4000)] * CHUNKS, chat_finish(), DONE])
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def asking(name: str, *ids: str) -> Callable[[Request], Reply]:
    """Call the agent `name` under each of `ids`, and then answer."""
    functions = {"name": name, "arguments": json.dumps({"prompt": "go"})}
    calls = [{"index": i, "id": id, "type": "function", "function": functions} for i, id in enumerate(ids)]
    frames = [*(chat_event({"tool_calls": [entry]}) for entry in calls), chat_finish("tool_calls"), DONE]
    return lambda request: Reply(chat("Done.") if is_answered(request) else frames)


def agent_of(server: Loopback, name: str, *tools: Any, **options: Any) -> AgentTool:
    return engine_of(server, tools=tools).as_tool(name=name, **options)


# Sockets


@pytest.mark.parametrize("depth", [1, 2])
def test_a_dispose_closes_the_connections_of_the_agents_at_once(depth: int) -> None:
    """The innermost ones stream on, and are closed before a next call is answered."""

    async def main(server: Loopback, *above: Loopback) -> None:
        agent = agent_of(server, "agent")
        for other in above[:-1]:
            agent = agent_of(other, "agent", agent)
        seen: list[Event] = []
        events = rxllm.stream(engine_of(above[-1]), "Go", tools=[agent])
        subscription = events.subscribe(seen.append)
        await until(lambda: sum(type(e) is Nested and type(e.event) is TextDelta for e in seen) >= 2**depth)
        connections = list(server.connections)
        assert len(connections) == 2**depth
        subscription.dispose()
        before = len(seen)
        await next_call(server)
        for connection in connections:
            assert_closed(connection)
        assert len(seen) == before

    with (
        Loopback(also_next(Reply([chat_chunk("a"), STALL]))) as server,
        Loopback(asking("agent", "a", "b")) as middle,
        Loopback(asking("agent", "a", "b")) as top,
    ):
        asyncio.run(main(server, *([middle, top] if depth == 2 else [top])))


def test_a_reader_that_is_behind_holds_the_servers_of_the_agents_back() -> None:
    """The server still has most of the agent's answer, though a whole other one has come on the same loop."""
    with Loopback(LONG) as server:
        agent = Engine(Fake(ToolCall("x", "poet", {"prompt": "go"}), "Done."), tools=[agent_of(server, "poet")])
        parent = Fake(ToolCall("a", "agent", {"prompt": "go"}), "Done.")
        with rxllm.to_iter(rxllm.stream(parent, "Go", tools=[agent.as_tool(name="agent")]), maxsize=8) as events:
            next(event for event in events if isinstance(event, Nested) and isinstance(event.event, TextDelta))
            rxllm.generate(engine_of(server), "Hi").run()
            behind, whole = server.connections
            assert behind.bytes_sent < 0.6 * whole.bytes_sent
            nested = [event.event for event in events if isinstance(event, Nested) and len(event.path) == 2]
    assert sum(len(event.delta) for event in nested if isinstance(event, TextDelta)) == (CHUNKS - 1) * 4000


def test_one_agent_that_fails_leaves_the_other_alone() -> None:
    failing = Engine(Fake(AdapterError("invalid_request"))).as_tool(name="bad")
    with Loopback(lambda request: Reply(chat("Fine."))) as server:
        good = agent_of(server, "good")
        calls = [ToolCall("a", "bad", {"prompt": "go"}), ToolCall("b", "good", {"prompt": "go"})]
        result = rxllm.chat(Fake([*calls], "Done."), "Go", tools=[failing, good]).run()
    texts = {message.tool_call_id: message.text for message in result.thread if message.role == "tool"}
    assert texts["b"] == "Fine."
    assert "error" in texts["a"]


# Simulation


async def two_agents(world: World) -> None:
    """A parent with two agents, each of which has two tools of its own."""
    agent = engine_of(world.serve(with_tools), tools=[double]).as_tool(name="double", schema=SCHEMA)
    await world.cancellable(rxllm.chat(engine_of(world.serve(with_tools)), "?", tools=[agent]))


async def agents_of_agents(world: World) -> None:
    inner = engine_of(world.serve(slowly)).as_tool(name="double", schema=SCHEMA)
    agent = engine_of(world.serve(with_tools), tools=[inner]).as_tool(name="double", schema=SCHEMA)
    await world.cancellable(rxllm.stream(engine_of(world.serve(with_tools)), "?", tools=[agent]).to_list())


async def halting_and_going_on(world: World) -> None:
    approved = replace(double, approval=True)
    agent = engine_of(world.serve(with_tools), tools=[approved]).as_tool(name="double", schema=SCHEMA)
    engine = engine_of(world.serve(with_tools), tools=[agent])
    halted = await world.cancellable(rxllm.chat(engine, "?"))
    if halted is not None and halted.pending_tool_calls:
        answers = {call.id: True for call in halted.pending_tool_calls}
        await world.cancellable(rxllm.resume(engine, halted, approvals=answers))


@pytest.mark.parametrize("app", [two_agents, agents_of_agents, halting_and_going_on], ids=lambda app: app.__name__)
def test_a_cancel_at_any_await_leaves_nothing_behind(app: Any) -> None:
    simulate_cancels(app)
    simulate_many(app, range(30))


# A thousand runs, a quarter of them each way


async def counted(run: Callable[[], Any], runs: int) -> None:
    """Run `run` again and again on this loop; it may leave no task, thread, socket or file open."""
    for _ in range(10):
        await run()
    before = counts()
    for _ in range(runs):
        await run()
    await until(lambda: all(now <= then for now, then in zip(counts(), before, strict=True)))


def counts() -> tuple[int, int, int, int]:
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return len(asyncio.all_tasks()), threading.active_count(), files, daemon_threads().left


@tool
async def wait() -> str:
    await asyncio.Event().wait()
    return "waited"


@tool
async def choose() -> Any:  # a plain function would take threads of the pool, more or fewer
    return ask_user("Which?")


@pytest.mark.parametrize("how", ["completed", "failing", "halting", "disposed"])
def test_many_runs_leave_nothing_behind(how: str) -> None:
    scripts: dict[str, Any] = {
        "completed": "Fine.",
        "failing": ["Fi", ("error", "provider_unavailable")],
        "halting": ToolCall("x", "choose"),
        "disposed": ToolCall("x", "wait"),
    }
    inner = Engine(Fake(lambda request: scripts[how]), tools=[wait, choose], retry=False)
    model = Fake(lambda request: "Done." if request.messages[-1].role == "tool" else calls)
    calls = [ToolCall(id, id, {"prompt": "go"}) for id in ("ann", "bob")]
    engine = Engine(model, tools=[inner.as_tool(name="ann"), inner.as_tool(name="bob")])

    async def run() -> None:
        events = rxllm.stream(engine, "Go")
        if how != "disposed":
            await events
            return
        seen: list[Event] = []
        subscription = events.subscribe(seen.append)
        await until(
            lambda: sum(type(e) is Nested and type(e.event).__name__ == "ToolExecutionStarted" for e in seen) == 2
        )
        subscription.dispose()

    asyncio.run(counted(run, share(250)))


# A real model


def test_a_real_model_as_an_agent() -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    try:
        find_weights()
    except EngineError as error:
        pytest.skip(str(error))
    local = Engine("local", params={"max_tokens": 8, "temperature": 0.0}).as_tool(name="poet", system="Be brief.")
    parent = Fake(ToolCall("c1", "poet", {"prompt": "Say hello."}), "Done.")
    events = list(rxllm.stream(parent, "Go", tools=[local]).pipe(ops.verify()))
    text = "".join(e.event.delta for e in events if isinstance(e, Nested) and isinstance(e.event, TextDelta))
    completed = next(event for event in events if isinstance(event, ToolExecutionCompleted))
    assert completed.error is None
    assert text
    assert text in str(completed.result)
    assert events[-1].result.steps[0].agent_usage.output_tokens  # type: ignore[union-attr]

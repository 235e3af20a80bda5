"""Real agents on the way to a client: their work survives a reload, and what is theirs alone stays here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Engine, Event, Fake, Nested, ToolCall, compact_thread, serializer, tool, web
from rxllm.testing import World, simulate

CANARY = "CANARY"
CALL = ToolCall("c1", "agent", {"prompt": "Go"})


@tool
def fail() -> str:
    """Fail."""
    raise RuntimeError(CANARY)


@tool(approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


ERROR = AdapterError("provider_unavailable", CANARY)
COMPACTED = [compact_thread(Fake(f"{CANARY} summary"), at=1, keep=1)]
UNCOMPACTED = [compact_thread(Fake(ERROR), at=1, keep=1, on_error="continue")]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ([ToolCall("c2", "fail"), "Inside."], {}),
        ([ToolCall("c2", "pay")], {}),
        ([ToolCall("c2", "fail"), ERROR], {}),
        ([ToolCall("c2", "fail"), "Inside."], {"prepare": COMPACTED}),
        ([ToolCall("c2", "fail"), "Inside."], {"prepare": UNCOMPACTED}),
    ],
)
def test_nothing_private_of_an_agent_leaves(script: list[Any], options: Any, depth: int) -> None:
    agent = Engine(Fake(*script), **options).as_tool(name="agent", system=CANARY, tools=[fail, pay])
    if depth > 1:
        agent = Engine(Fake(CALL, "Between.")).as_tool(name="agent", system=CANARY, tools=[agent])
    thread = [rxllm.system(CANARY), rxllm.user("Hi")]
    stream = rxllm.stream(Fake(CALL, "Done."), thread, tools=[agent], context={"key": CANARY})

    async def app() -> tuple[list[Event], list[Event]]:
        runs = web.Runs()
        early: list[Event] = []
        late: list[Event] = []
        done = asyncio.Event()
        runs.start("a", stream).subscribe(early.append, on_completed=done.set)
        await asyncio.wait_for(done.wait(), 10)
        runs.watch("a").subscribe(late.append)  # pyright: ignore[reportOptionalMemberAccess]
        return early, late

    early, late = asyncio.run(app())
    for events in (early, late):
        assert any(isinstance(event, Nested) for event in events)
        assert CANARY not in "".join(map(serializer.to_json, events)) + repr(events)
        assert '"agents"' not in "".join(map(serializer.to_json, events))
    assert early[-1] == late[-1]


def test_a_page_that_is_loaded_again_sees_what_an_agent_has_said_so_far() -> None:
    async def app(world: World) -> list[Event]:
        agent = Engine(Fake(["in", "ner", ("delay", 10), "!"])).as_tool(name="agent", system=CANARY)
        runs = web.Runs()
        runs.start("a", rxllm.stream(Fake(CALL, "Done."), "Hi", tools=[agent]))
        await asyncio.sleep(5)
        seen: list[Event] = []
        runs.watch("a").subscribe(seen.append)  # pyright: ignore[reportOptionalMemberAccess]
        await asyncio.sleep(1)
        so_far = list(seen)
        await asyncio.sleep(20)
        assert isinstance(seen[-1], rxllm.ChatCompleted)
        return so_far

    last = simulate(app, faults=()).value[-1]
    assert isinstance(last, Nested)
    assert (last.path, getattr(last.event, "delta", None)) == (("c1",), "inner")

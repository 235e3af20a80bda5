"""Early tools in simulated worlds: whatever fails and wherever the app is cancelled, no call runs twice or is left."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, cast

import pytest

import rxllm
from rxllm import tool
from rxllm.testing import World, simulate, simulate_cancels, simulate_many
from rxllm.testing.loopback import Pause, Reply, Request
from tests.examples import share


def frame(type: str, **fields: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **fields})}\n\n".encode()


START = frame("message_start", message={"id": "m1", "role": "assistant", "content": [], "usage": {"input_tokens": 1}})


def block(index: int, content: dict[str, Any], delta: dict[str, Any]) -> list[Any]:
    return [
        frame("content_block_start", index=index, content_block=content),
        frame("content_block_delta", index=index, delta=delta),
        frame("content_block_stop", index=index),
    ]


def call(index: int, name: str) -> list[Any]:
    """A call in the frames of Anthropic, whose end is a frame of its own."""
    content = {"type": "tool_use", "id": f"call_{name}", "name": name, "input": {}}
    return block(index, content, {"type": "input_json_delta", "partial_json": "{}"})


def end(reason: str) -> list[bytes]:
    return [frame("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 1}), frame("message_stop")]


def answer(request: Request) -> Reply:
    if b"tool_result" in request.body:
        text = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "All done."})
        return Reply([START, *text, *end("end_turn")])
    calls = [*call(0, "first"), Pause(1.0), *call(1, "second"), Pause(1.0), *call(2, "third"), Pause(1.0)]
    return Reply([START, *calls, *end("tool_use")])


def engine_of(world: World) -> rxllm.Engine:
    adapter = rxllm.Anthropic(base_url=world.serve(answer).url, api_key="k")
    return rxllm.Engine(adapter, model="m", retry=False)


async def app(world: World) -> Any:
    begun: Counter[str] = Counter()
    running: set[str] = set()
    overlapped: list[str] = []

    def working(name: str, seconds: float, **flags: Any) -> rxllm.Tool:
        async def work(arguments: Any, context: rxllm.ToolContext) -> str:
            begun[context.tool_call.id] += 1
            running.add(name)
            overlapped.extend(running)
            try:
                await asyncio.sleep(seconds)
            finally:
                running.remove(name)
            return name

        return tool(name=name, handler=work, **flags)

    tools = [working("first", 2.5, eager=True), working("second", 0.1, eager=True), working("third", 0.5)]
    try:
        result = await rxllm.chat(engine_of(world), "Hi", tools=tools, timeout=30)
    finally:
        await asyncio.sleep(0.1)  # a stopped tool needs a turn of the loop
        assert not running
        assert all(times == 1 for times in begun.values()), begun
    if result.halted_reason == "completed":
        assert [message.text for message in result.steps[0].tool_results] == ["first", "second", "third"]
        assert dict(begun) == {"call_first": 1, "call_second": 1, "call_third": 1}
    else:
        assert all(step.tool_results == () for step in result.steps[-1:] if step.response.error is not None)
    return result.halted_reason


def dictation(request: Request) -> Reply:
    if b"tool_result" in request.body:
        return answer(request)
    content = {"type": "tool_use", "id": "call_save", "name": "save", "input": {}}
    pieces = ['{"path": "a", "text": "', *["word "] * 20, '"}']
    deltas = [
        frame("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": piece})
        for piece in pieces
    ]
    begun = frame("content_block_start", index=0, content_block=content)
    body = [piece for delta in deltas for piece in (delta, Pause(0.05))]
    return Reply([START, begun, *body, frame("content_block_stop", index=0), *end("tool_use")])


async def dictated(world: World) -> Any:
    running = 0
    saved: list[str] = []

    @tool(eager=True, timeout=None)
    async def save(path: str, text: rxllm.Stream[str]) -> int:
        nonlocal running
        running += 1
        try:
            async for piece in text:
                saved.append(piece)
                await asyncio.sleep(0.1)  # slower than the model
        finally:
            running -= 1
        return len(saved)

    adapter = rxllm.Anthropic(base_url=world.serve(dictation).url, api_key="k")
    try:
        result = await rxllm.chat(rxllm.Engine(adapter, model="m", retry=False), "Hi", tools=[save], timeout=30)
    finally:
        await asyncio.sleep(0.1)
        assert running == 0
    if result.halted_reason == "completed":
        assert "".join(saved) == "word " * 20
    return result.halted_reason


async def refused(world: World) -> Any:
    """A tool refuses the path while the model still dictates, beside a tool that has not ended."""
    ended: Counter[str] = Counter()

    @tool(eager=True)
    async def save(path: str, text: rxllm.Stream[str]) -> None:
        async for _ in text:
            await asyncio.sleep(0.1)
            ended["save"] += 1
            raise rxllm.ToolError("handler_raised", "not there")

    async def look(arguments: Any) -> str:
        await asyncio.sleep(0.5)
        ended["look"] += 1
        return "seen"

    def two_calls(request: Request) -> Reply:
        if b"tool_result" in request.body:
            return answer(request)
        _, *rest = cast(list[Any], dictation(request).body)
        shifted = [piece.replace(b'"index": 0', b'"index": 1') if isinstance(piece, bytes) else piece for piece in rest]
        return Reply([START, *call(0, "look"), *shifted])

    adapter = rxllm.Anthropic(base_url=world.serve(two_calls).url, api_key="k")
    tools = [save, tool(name="look", handler=look, eager=True)]
    result = await rxllm.chat(rxllm.Engine(adapter, model="m", retry=False), "Hi", tools=tools, timeout=30)
    assert all(times == 1 for times in ended.values()), ended
    if result.halted_reason == "completed":
        first, *_ = result.steps
        assert [message.text for message in first.tool_results] == ["seen", '{"error":"not there"}']
        is_vetoed = first.response.raw_finish_reason == "vetoed"  # unless all bytes have arrived at once
        text = {} if is_vetoed else {"text": "word " * 20}
        assert first.thread[-3].tool_calls[1].arguments == {"path": "a", **text}
        return "vetoed" if is_vetoed else "completed"
    return result.halted_reason


def test_a_veto_may_be_cancelled_at_every_await() -> None:
    simulate_cancels(refused)


def test_vetoes_in_worlds_with_faults() -> None:
    assert "vetoed" in [run.value for run in simulate_many(refused, range(12))]


def test_a_dictation_may_be_cancelled_at_every_await() -> None:
    steps = simulate(dictated, faults=()).steps
    for step in range(1, steps, 9):
        simulate(dictated, faults=(), cancel=step)


def test_dictations_in_worlds_with_faults() -> None:
    assert "completed" in [run.value for run in simulate_many(dictated, range(8))]


@pytest.mark.parametrize(("eager", "seconds"), [(False, 6.0), (None, 5.0)])
def test_three_slow_tools_end_sooner(eager: bool | None, seconds: float) -> None:
    """The response takes 3 s, and each tool takes 3 s; the last call is complete after 2 s."""

    async def look(arguments: Any) -> str:
        await asyncio.sleep(3)
        return "seen"

    tools = [tool(name=name, handler=look, eager=True) for name in ("first", "second", "third")]

    async def looking(world: World) -> float:
        began = asyncio.get_running_loop().time()
        result = await rxllm.chat(engine_of(world), "Hi", tools=tools, eager=eager)
        assert result.output_text == "All done."
        return asyncio.get_running_loop().time() - began

    assert simulate(looking, faults=()).value == pytest.approx(seconds, abs=0.1)


def test_an_early_tool_may_be_cancelled_at_every_await() -> None:
    assert len(simulate_cancels(app)) > 30


def test_early_tools_in_worlds_with_faults() -> None:
    runs = simulate_many(app, range(20))
    assert "completed" in [run.value for run in runs]


@pytest.mark.judges
@pytest.mark.timeout(600)
def test_early_tools_in_many_worlds() -> None:
    simulate_many(app, range(share(1000)))
    simulate_many(dictated, range(share(300)))
    simulate_many(refused, range(share(1000)))
    simulate_cancels(dictated)
    for seed in range(1, 6):
        simulate_cancels(app, seed, faults=("slow", "reorder"))

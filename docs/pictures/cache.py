"""The picture of a cache that missed: a date in the system prompt changes while an agent works, around midnight.

The agent sends its requests through the real adapter, in virtual time. The server's answers are scripted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import rxllm
from rxllm import Usage, tool
from rxllm import operators as ops
from rxllm.display import Timeline
from rxllm.testing import simulate
from rxllm.testing.loopback import Pause, Reply

DAYS = ["Monday", "Monday", "Tuesday", "Tuesday"]
"""The day of each request."""

CACHE = [(0, 9_180), (9_180, 640), (0, 10_420), (10_420, 590)]
"""How many tokens each request reads from the cache, and how many it writes to the cache."""

WAITS = [1.9, 0.5, 2.1, 0.5]
"""How long the model reads each request before it answers, in seconds."""

PRICES = {"cached_input_tokens": 0.5, "cache_write_input_tokens": 6.25, "output_tokens": 25.0}
"""Dollars for a million tokens."""

CALLS = ["orders since Monday", "orders that are late", "carriers of the late orders"]
ANSWER = "Four orders are late, and all four are with the same carrier."


@tool
async def query(text: str) -> str:
    """Search the orders."""
    await asyncio.sleep(0.6)
    return f"Found: {text}."


def _frame(type: str, **fields: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **fields})}\n\n".encode()


def _block(index: int, block: Mapping[str, Any], *deltas: Mapping[str, Any]) -> Iterator[bytes | Pause]:
    yield _frame("content_block_start", index=index, content_block=block)
    for delta in deltas:
        yield Pause(0.08)
        yield _frame("content_block_delta", index=index, delta=delta)
    yield _frame("content_block_stop", index=index)


def _answer(number: int) -> Iterator[bytes | Pause]:
    read, written = CACHE[number]
    usage = {"input_tokens": 4, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    message = {"id": f"m{number}", "role": "assistant", "model": "claude-opus-5-5", "content": [], "usage": usage}
    yield _frame("message_start", message=message)
    thought = [{"type": "thinking_delta", "thinking": "Hm. "}] * 4
    signature = {"type": "signature_delta", "signature": f"signature {number}"}
    yield from _block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thought, signature)
    if number < len(CALLS):
        arguments = {"type": "input_json_delta", "partial_json": json.dumps({"text": CALLS[number]})}
        call = {"type": "tool_use", "id": f"c{number}", "name": "query", "input": {}}
        yield from _block(1, call, arguments)
    else:
        texts = [{"type": "text_delta", "text": f"{word} "} for word in ANSWER.split()]
        yield from _block(1, {"type": "text", "text": ""}, *texts)
    reason = "tool_use" if number < len(CALLS) else "end_turn"
    yield _frame("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 60})
    yield _frame("message_stop")


def _priced(usage: Usage) -> Usage:
    cost = sum((getattr(usage, name) or 0) * price for name, price in PRICES.items())
    return replace(usage, total_cost=cost / 1_000_000)


def drawn() -> Timeline:
    """Run the agent in virtual time, and return its timeline."""
    days = iter(DAYS)

    def dated(request: rxllm.Request) -> rxllm.Request:
        return replace(request, messages=(rxllm.system(f"Today is {next(days)}."), *request.messages))

    async def run(world: Any) -> Timeline:
        replies = (Reply(_answer(number), before=wait) for number, wait in enumerate(WAITS))
        server = world.serve(lambda _: next(replies))
        adapter = rxllm.Anthropic(api_key="k", base_url=server.url)
        engine = rxllm.Engine(adapter, "claude-opus-5-5", prepare=[dated], operators=[ops.cost(price=_priced)])
        chat = rxllm.stream(engine, "Which orders are late, and why?", tools=[query], max_tokens=2_000)
        return rxllm.timeline(await chat.pipe(ops.timed()).to_list())

    timeline = simulate(run, faults=()).value
    assert isinstance(timeline, Timeline)
    return timeline


def timeline() -> str:
    """Return the picture of the run."""
    return drawn().svg()

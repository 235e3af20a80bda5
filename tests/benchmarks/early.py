"""q. Tools that start while the model writes, beside tools that wait: the time to the last word, and what a veto saves.

The first rows are in virtual time, the others are real: a server on this machine, and the local model.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import rxllm
from rxllm import ToolCallDelta, ToolError, tool
from rxllm.testing import World, simulate
from rxllm.testing.loopback import DONE, Loopback, Pause, Reply, Request, chat, chat_event, chat_finish
from tests.benchmarks.report import Effort, Table, progress

NAMES = ("first", "second", "third")
WORDS = 500
"""The number of words that a model dictates."""


def measure(effort: Effort) -> list[Table]:
    words = min(WORDS, effort.count)
    speed = Table("q", "Tools that start early", ["", "late", "early"])
    seconds = [simulate(chat_with(eager), faults=()).value for eager in (False, None)]
    speed.rows.append(["a chat with three tools of 3 s, in virtual time, s", *seconds])
    speed.budgets["early over late"] = (seconds[1] / seconds[0], 0.9)
    refusals = [[refused(words, eager) for _ in range(effort.turns)] for eager in (False, None)]
    for name, column in (("words that the provider sends until a path is refused", 0), ("seconds until then", 1)):
        speed.rows.append([name, *(float(median(run[column] for run in runs)) for runs in refusals)])
    progress("q. loopback")
    if effort.peers:
        try:
            rxllm.generate("local", "Hi", max_tokens=1).run()  # loads the weights
            local = [dictated_locally(eager) for eager in (False, None)]
        except rxllm.LLMError as error:
            speed.skip("the local model", error)
        else:
            for name, column in (("the local model: characters dictated", 0), ("the local model: seconds", 1)):
                speed.rows.append([name, *(run[column] for run in local)])
            waits = [connected_locally(eager) for eager in (False, None)]
            speed.rows.append(["the local model: a chat with three tools that take 1 s to connect, s", *waits])
    return [speed]


# Three slow tools, in virtual time


def frame(type: str, **fields: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **fields})}\n\n".encode()


def three_calls(request: Request) -> Reply:
    """Answer in Anthropic's frames, where a call has an end of its own. Each call takes a second."""
    start = frame("message_start", message={"id": "m1", "role": "assistant", "content": [], "usage": {}})
    reason = "end_turn" if b"tool_result" in request.body else "tool_use"
    body: list[bytes | Pause] = [start]
    for index, name in enumerate(NAMES if reason == "tool_use" else ()):
        call = {"type": "tool_use", "id": f"call_{name}", "name": name, "input": {}}
        body += [frame("content_block_start", index=index, content_block=call)]
        body += [frame("content_block_stop", index=index), Pause(1.0)]
    body += [frame("message_delta", delta={"stop_reason": reason}, usage={}), frame("message_stop")]
    return Reply(body)


def chat_with(eager: bool | None) -> Any:
    async def look(arguments: Any) -> str:
        await asyncio.sleep(3)
        return "seen"

    async def app(world: World) -> float:
        adapter = rxllm.Anthropic(base_url=world.serve(three_calls).url, api_key="k")
        tools = [tool(name=name, handler=look, eager=True) for name in NAMES]
        began = asyncio.get_running_loop().time()
        await rxllm.chat(rxllm.Engine(adapter, model="m", tools=tools), "Hi", eager=eager)
        return asyncio.get_running_loop().time() - began

    return app


# A veto


@tool(eager=True, timeout=None)
async def save(path: str, text: rxllm.Stream[str]) -> str:
    """Save text to a file."""
    raise ToolError("handler_raised", f"{path} is outside your folder")


def call_frames(name: str, pieces: list[str]) -> Iterator[bytes]:
    begun = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": ""}}
    yield chat_event({"tool_calls": [begun]})
    for piece in pieces:
        yield chat_event({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})


def refused(words: int, eager: bool | None) -> tuple[int, float]:
    """Return how many words a provider has sent until the next request, and the seconds until then."""
    sent = 0

    def dictate() -> Iterator[bytes | Pause]:
        nonlocal sent
        pieces = ['{"path": "/etc/motd", "text": "', *["word "] * words, '"}']
        begun, *frames, end = call_frames("save", pieces)
        yield begun
        for data in frames:
            yield data
            sent += 1
            yield Pause(0.002)
        yield from (end, chat_finish("tool_calls"), DONE)

    def answer(request: Request) -> Reply:
        return Reply(dictate()) if request.json["messages"][-1]["role"] == "user" else Reply(chat("Well."))

    with Loopback(answer) as server:
        engine = rxllm.Engine(rxllm.OpenAIChat(base_url=server.url, api_key="k"), model="m", tools=[save])
        began = time.perf_counter()
        rxllm.chat(engine, "Hi", eager=eager).run()
        return sent, time.perf_counter() - began


def dictated_locally(eager: bool | None) -> tuple[int, float]:
    """Return how many characters the local model dictates, and the seconds of its response."""
    characters, began = 0, time.perf_counter()
    prompt = "Save a long story about a fox to the file /etc/fox.txt."
    for event in rxllm.stream_step("local", prompt, tools=[save], eager=eager, temperature=0.0, max_tokens=400):
        if isinstance(event, ToolCallDelta):
            characters += len(event.arguments_delta)
    return characters, time.perf_counter() - began


@tool(eager=True, timeout=None)
async def send(text: rxllm.Stream[str]) -> str:
    """Send a text to a friend."""
    await asyncio.sleep(1.0)  # while a connection is made
    async for _ in text:
        pass
    return "sent"


def connected_locally(eager: bool | None) -> float:
    """Return the seconds of a chat in which the local model calls a slow tool three times, once for each message."""
    thread, began = rxllm.Thread(), time.perf_counter()
    for topic in ("a fox", "the sea", "a train"):
        prompt = thread + rxllm.user(f"Send a long story about {topic}.")
        thread = rxllm.chat("local", prompt, tools=[send], eager=eager, temperature=0.0, max_tokens=120).run().thread
    assert [message.text for message in thread.messages if message.role == "tool"] == ["sent"] * 3
    return time.perf_counter() - began

"""What the tests of operators share: events of steps, models that dictate, and answers that are too long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from hypothesis import strategies as st

import rxllm
from rxllm import operators as ops
from rxllm import tool
from rxllm.events import Event, StepCompleted, TextDelta, ToolCallCompleted, ToolCallDelta, ToolCallStarted
from rxllm.testing.loopback import DONE, Loopback, Reply, chat_chunk, chat_event, chat_finish
from rxllm.values import StepResult, Tool, ToolError
from tests.waiting import PATIENCE

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


# Answers that a server cannot send unless they are read

TEXT = "A text. " * 500
CHUNKS = 6000
LENGTH = CHUNKS * len(TEXT)
LONG = Reply([*[chat_chunk(TEXT)] * CHUNKS, chat_finish(), DONE])


def assert_held_back(server: Loopback) -> None:
    """Check that most of the first answer is not sent yet, though a whole second one has come on the same loop."""
    first, second = server.connections
    assert second.bytes_sent > LENGTH
    assert first.bytes_sent < LENGTH * 0.6


# Steps

Model = Callable[[Any, Any], AsyncIterator[Event]]


def stepped(model: Model, *tools: Tool, **options: Any) -> list[Event]:
    options = {"timeout": PATIENCE, "tool_timeout": PATIENCE, **options}
    return list(rxllm.stream_step(model, "Hi", tools=tools, **options).pipe(ops.verify()))


def result(events: list[Event]) -> StepResult:
    assert isinstance(events[-1], StepCompleted)
    return events[-1].result


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


# Tools that refuse what a model dictates

WRITTEN = 500
"""The number of pieces that a `Dictation` would write. None of them may be written after a veto."""


def refusing(outcome: Any = None, *, after: int = 0, **flags: Any) -> Tool:
    """A tool that reads so many pieces, and then fails or halts with `outcome`."""

    @tool(eager=True, **flags)
    async def save(path: str, text: rxllm.Stream[str]) -> Any:
        pieces = 0
        while pieces < after:
            async for _ in text:
                pieces += 1
                if pieces == after:
                    break
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return save


NO = ToolError("handler_raised", "not there")


class Dictation:
    """A model that says something, and then dictates. It counts what it writes, and notes when it is stopped."""

    def __init__(self, *before: Event, id: str = "c1", after: tuple[Event, ...] = ()) -> None:
        self.before, self.id, self.after = before, id, after
        self.written, self.is_closed = 0, False

    async def write(self, request: Any, call: Any) -> AsyncIterator[Event]:
        if request.messages[-1].role == "tool":
            yield TextDelta("Well then.")
            return
        try:
            for event in self.before:
                yield event
            yield ToolCallStarted(self.id, "save")
            yield ToolCallDelta(self.id, '{"path": "a", "text": "')
            for event in self.after:
                yield event
            for _ in range(WRITTEN):
                yield ToolCallDelta(self.id, "x")
                self.written += 1
                await asyncio.sleep(0)
            raw = json.dumps({"path": "a", "text": "x" * WRITTEN})
            yield ToolCallDelta(self.id, '"}')
            yield ToolCallCompleted(self.id, "save", json.loads(raw), raw)
        finally:
            self.is_closed = True


def of_chat(pieces: list[str]) -> list[bytes]:
    """The frames of a response of OpenAI's chat API that says something and calls `save`."""

    def call(**function: str) -> bytes:
        own = {"id": "call_1", "type": "function"} if "name" in function else {}
        return chat_event({"tool_calls": [{"index": 0, **own, "function": function}]})

    begun = [chat_chunk("I save it. "), call(name="save", arguments="")]
    return [*begun, *(call(arguments=piece) for piece in pieces), chat_finish("tool_calls"), DONE]


def pieces_of(text: str, path: str = "/etc/passwd") -> list[str]:
    whole = json.dumps({"path": path, "text": text})
    return [whole[:20], *whole[20:-2], whole[-2:]]


@tool(eager=True)
async def save(path: str, text: rxllm.Stream[str]) -> str:
    """A tool that refuses a path."""
    if path.startswith("/"):
        raise ToolError("handler_raised", f"{path} is not in the folder")
    return "".join([piece async for piece in text])

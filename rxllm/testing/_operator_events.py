"""The rule of operators from events to events: what they say of lawful ones agrees with itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rxllm.adapters import Fake
from rxllm.events import EVENT_CLASSES, TextCompleted, TextDelta
from rxllm.pipelines import stream
from rxllm.testing._consistent import inconsistency
from rxllm.testing._events import events as lawful
from rxllm.testing._events import played
from rxllm.testing._rules import expect
from rxllm.testing._trial import Make, tried
from rxllm.values import StreamError, ToolCall, Usage, tool


def consistent(make: Make, events: Sequence[Any] | None) -> None:
    """Of an operator from events to events: what it says of lawful ones agrees with itself."""
    for items in _lawful_inputs() if events is None else [list(events)]:
        said = tried(make, items)[0].values
        if all(isinstance(item, EVENT_CLASSES) for item in (*items, *said)):
            found = inconsistency(said)
            expect(found is None or inconsistency(items) is not None, f"{found}")


def _lawful_inputs() -> list[list[Any]]:
    call = ToolCall("c1", "add", {"x": 1})
    pieces = [("tool_call_delta", {"id": "c2", "name": "add", "arguments_delta": each}) for each in ('{"x"', ": 2}")]
    blocks = [TextDelta("Hel", "a"), TextDelta("lo", "a"), TextCompleted("Hello", "a"), TextDelta("World", "b")]
    add = tool(name="add", handler=_add)
    chat = stream(Fake(["Let me ", "see", call], ["It is ", "2"]), "What is 1 + 1?", tools=[add])
    return [
        lawful("Hel", "lo", thinking=("h", "m"), usage=Usage(3, 2)),
        lawful("a", ("thinking", "b"), "c", *pieces, "d"),
        lawful(*blocks, TextCompleted("World", "b"), call),
        lawful("Hel", "lo", StreamError("truncated")),
        played(chat),
    ]


def _add(arguments: dict[str, Any]) -> int:
    return arguments["x"] + 1

"""The rules of operators on events: what they say agrees with itself, and no error gets lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from rxllm.adapters import Fake
from rxllm.events import EVENT_CLASSES, ErrorEvent, MessageCompleted, TextCompleted, TextDelta
from rxllm.pipelines import stream
from rxllm.testing._event_checks import inconsistency
from rxllm.testing._events import events as lawful
from rxllm.testing._events import played
from rxllm.testing._rule_table import expect
from rxllm.testing._virtual_time import EVERY, Make, tried
from rxllm.values import StreamError, ToolCall, Usage, tool


def consistent(make: Make, events: Sequence[Any] | None) -> None:
    """Of an operator from events to events: what it says of lawful ones agrees with itself."""
    for items in _lawful_inputs() if events is None else [list(events)]:
        said = tried(make, items)[0].values
        if all(isinstance(item, EVENT_CLASSES) for item in (*items, *said)):
            found = inconsistency(said)
            expect(found is None or inconsistency(items) is not None, f"{found}")


def error_event(make: Make, items: list[Any]) -> None:
    """Of an operator on events: it does not complete as if nothing had failed."""
    if not all(isinstance(item, EVENT_CLASSES) for item in items):
        return
    whole = list(takewhile(lambda item: not isinstance(item, MessageCompleted | ErrorEvent), items))
    error = StreamError("truncated", "a planted error")
    for before in (whole[:1], whole):
        trial, _ = tried(make, [*before, ErrorEvent(error)])
        at = (len(before) + 1) * EVERY
        completed = [tick for tick, kind, _ in trial.ends if kind == "end" and tick >= at]
        passed = any(_tells(what, error) for _, _, what in trial.notes)
        expect(passed or not completed, f"one that came after {len(before)} events was lost, and it completed")


def _tells(value: Any, error: StreamError) -> bool:
    return getattr(value, "error", None) == error or error.message in repr(value)


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

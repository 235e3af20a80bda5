"""AG-UI's frames, the npm package that reads them, and tools that wait for a client."""

from __future__ import annotations

from typing import Any

from reactivex import from_iterable

import rxllm
from rxllm import (
    Event,
    Fake,
    Stream,
    ToolCall,
    Usage,
    ask_user,
    tool,
    web,
)
from rxllm import operators as ops
from tests.laws import scripts
from tests.web import clients


def client(events: list[Event]) -> list[Event]:
    return list(Stream.of(from_iterable(events)).pipe(web.for_client()))


def framed(events: list[Event], **options: Any) -> list[Any]:
    encode = web.encode("ag-ui", **{"thread_id": "thread", "run_id": "run", "messages": [], **options})
    return list(Stream.of(from_iterable(events)).pipe(encode))


def again(frames: list[Any]) -> list[Event]:
    return list(Stream.of(from_iterable(frames)).pipe(web.decode("ag-ui")))


def judged(streams: list[list[Any]], messages: list[Any] | None = None, cut: int | None = None) -> list[Any]:
    """What the client makes of streams of frames; before each it has `messages`."""
    bodies = [b"".join(map(web.sse, frames)).decode() for frames in streams]
    return [clients.run("ag_ui", {"body": body, "messages": messages or [], "cut": cut}) for body in bodies]


def run(model: Any, **options: Any) -> list[Event]:
    return list(rxllm.stream(model, "Hi", **options).pipe(ops.errors_as_events(), web.for_client()))


@tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


@tool(manual=True)
def locate() -> str:
    return ""


@tool
def ask(question: str) -> Any:
    return ask_user(question, choices=["a", "b"])


def add_twice() -> list[Event]:
    turn = [("thinking", "Hm."), "I add.", ToolCall("a", "add", {"x": 1}), ToolCall("b", "add", {"x": 2}), Usage(1, 2)]
    return run(Fake(turn, ["Done.", Usage(3, 4)]), tools=scripts.TOOLS)

"""What every tool executor keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from rxllm.adapters import Fake
from rxllm.events import (
    AskUserRequested,
    Event,
    ToolExecutionCompleted,
    ToolHalt,
    ToolResultEncoded,
)
from rxllm.pipelines import stream_step
from rxllm.testing._observe import SECONDS, hear
from rxllm.testing._rule_table import check, expect
from rxllm.values import Tool, ToolCall, ToolContext, ToolError, ask_user, halt, tool

EXECUTOR_RULES: dict[str, str] = {
    "result": "what it returns is what the tool returns",
    "context": "the tool is given the call's context",
    "failure": "what the tool raises is the call's ToolError, and the chat goes on",
    "halt": "a tool that halts, halts",
    "question": "a tool that asks the user, asks",
    "several": "calls at the same time have nothing in common",
    "arguments": "the tool is given the call's arguments, as they came",
    "timeout": "a tool that hangs is a ToolError after tool_timeout, and nothing waits for it",
}
"""The rules of `assert_executor`, by name."""

Executor = Callable[[Tool, Any, ToolContext], Any]


def assert_executor(executor: Executor, *, without: Collection[str] = ()) -> None:
    """Check that ``executor(tool, arguments, context)`` runs tools as rxllm does: see `EXECUTOR_RULES`.

    >>> assert_executor(lambda tool, arguments, context: tool.bind(arguments, context)())

    `without` names the rules to leave out: ``context`` where a tool runs out of its reach, ``several`` where one runs
    at a time, ``timeout`` where the executor has a limit of its own, ``halt`` and ``question`` where tools cannot
    return objects of rxllm's; ``result``, ``failure`` and ``arguments`` never.

    It may be asynchronous. Raises ``AssertionError``, which names every broken rule and says how, and ``ValueError``
    for a rule in `without` that is none.
    """
    __tracebackhide__ = True
    check(EXECUTOR_RULES, _RULES, without, executor)


def _events(executor: Executor, tools: list[Tool], *calls: ToolCall, **options: Any) -> list[Event]:
    step = stream_step(Fake(list(calls)), "Hi", tools=tools, tool_executor=executor, **options)
    told = hear(step)
    expect(told.error is None, f"the step failed: {told.error!r}")
    return told.events


def _one(executor: Executor, handler: Callable[[Any], Any], kind: type[Any], **options: Any) -> Any:
    """The one event of `kind` when a tool with this handler is called."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    made = tool(name="f", description="A tool.", schema=schema, handler=handler)
    events = _events(executor, [made], ToolCall("c", "f", {"x": 1}), **options)
    found = [event for event in events if isinstance(event, kind)]
    expect(len(found) == 1, f"there were {len(found)} {kind.__name__} in {events!r}")
    return found[0]


def _result(executor: Executor) -> None:
    for result in ("sunny", {"sum": 42}, None):
        completed = _one(executor, lambda arguments, result=result: result, ToolExecutionCompleted)
        expect((completed.result, completed.error) == (result, None), f"{result!r} became {completed!r}")

    async def later(arguments: Any) -> Any:
        return arguments["x"] + 1

    expect(_one(executor, later, ToolExecutionCompleted).result == 2, "an asynchronous handler's was another")


def _context(executor: Executor) -> None:
    @tool
    def whoami(x: int, context: ToolContext) -> str:
        """Says who calls."""
        return f"{context.context['user']} {x}"

    events = _events(executor, [whoami], ToolCall("c", "whoami", {"x": 1}), context={"user": "ada"})
    told = [event.content for event in events if isinstance(event, ToolResultEncoded)]
    expect(told == ["ada 1"], f"the tool said {told}")


def _failure(executor: Executor) -> None:
    def fail(arguments: Any) -> Any:
        raise ValueError("no such city")

    error = _one(executor, fail, ToolExecutionCompleted).error
    expect(isinstance(error, ToolError) and error.reason == "handler_raised", f"it was {error!r}")
    content = _one(executor, fail, ToolResultEncoded).content
    expect("no such city" in content, f"the model was told {content!r}")


def _halt(executor: Executor) -> None:
    halted = _one(executor, lambda arguments: halt("enough", 42), ToolHalt)
    expect((halted.reason, halted.result) == ("enough", 42), f"it was {halted!r}")


def _question(executor: Executor) -> None:
    asked = _one(executor, lambda arguments: ask_user("Which?"), AskUserRequested)
    expect(asked.question == "Which?", f"it was {asked!r}")


def _several(executor: Executor) -> None:
    both = threading.Barrier(2)

    def meet(arguments: Any) -> Any:
        both.wait(SECONDS / 2)
        return arguments["x"]

    made = tool(name="f", description="A tool.", handler=meet)
    calls = [ToolCall(f"c{x}", "f", {"x": x}) for x in (1, 2)]
    events = _events(executor, [made], *calls, max_concurrency=2)
    results = {event.id: event.result for event in events if isinstance(event, ToolExecutionCompleted)}
    expect(results == {"c1": 1, "c2": 2}, f"their results were {results}")


def _arguments(executor: Executor) -> None:
    received: list[Any] = []
    arguments = {"x": 1, "of": [1, {"a": 2}]}
    keep = tool(name="f", description="A tool.", handler=received.append)
    _events(executor, [keep], ToolCall("c", "f", arguments))
    expect(received == [arguments], f"it was given {received} instead of {[arguments]}")


def _timeout(executor: Executor) -> None:
    released = threading.Event()
    try:
        completed = _one(
            executor, lambda arguments: released.wait(2 * SECONDS), ToolExecutionCompleted, tool_timeout=0.05
        )
    finally:
        released.set()
    error = completed.error
    expect(isinstance(error, ToolError) and error.reason == "timeout", f"it was {completed!r}")


_RULES: dict[str, Callable[[Any], None]] = {
    "result": _result,
    "context": _context,
    "failure": _failure,
    "halt": _halt,
    "question": _question,
    "several": _several,
    "arguments": _arguments,
    "timeout": _timeout,
}

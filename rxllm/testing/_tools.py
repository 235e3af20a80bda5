"""What every tool executor and every encoder of results keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from copy import deepcopy
from typing import Any

from rxllm.adapters import Fake
from rxllm.events import (
    AskUserRequested,
    Event,
    ToolCallCompleted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolResultEncoded,
)
from rxllm.pipelines import stream_step
from rxllm.testing._told import SECONDS, hear
from rxllm.values import Tool, ToolCall, ToolContext, ToolError, ask_user, halt, tool

EXECUTOR_RULES: dict[str, str] = {
    "result": "what it returns is what the tool returns",
    "context": "the tool is given the call's context",
    "failure": "what the tool raises is the call's ToolError, and the chat goes on",
    "halt": "a tool that halts, halts",
    "question": "a tool that asks the user, asks",
    "several": "calls at the same time have nothing in common",
    "arguments": "the arguments stay as they were",
    "timeout": "a tool that hangs is a ToolError after tool_timeout, and nothing waits for it",
}
"""The rules of `assert_executor`, by name."""

ENCODER_RULES: dict[str, str] = {
    "text": "it gives text for whatever a tool may return",
    "error": "a failed tool's words are in it",
    "stable": "equal results give equal text",
    "pure": "the result stays as it was",
}
"""The rules of `assert_encoder`, by name."""

RESULTS: tuple[Any, ...] = (
    "sunny",
    "",
    "naïve ☃ \u0000",
    0,
    -1.5,
    True,
    None,
    [1, [2, None]],
    (1, "two"),
    {"city": "Lima", "days": [{"high": 21.5}]},
    {},
)
"""What tools return."""

Executor = Callable[[Tool, Any, ToolContext], Any]


def assert_executor(executor: Executor, *, without: Collection[str] = ()) -> None:
    """Check that ``executor(tool, arguments, context)`` runs tools as rxllm does: see `EXECUTOR_RULES`.

    >>> assert_executor(lambda tool, arguments, context: tool.bind(arguments, context)())

    It may be asynchronous. Raises ``AssertionError``, which names every broken rule and says how, and ``ValueError``
    for a rule in `without` that is none.
    """
    _check(EXECUTOR_RULES, _EXECUTOR_RULES, without, executor)


def assert_encoder(encoder: Callable[[Any], str], *, without: Collection[str] = ()) -> None:
    """Check that ``encoder(result)`` gives text that a model can be told: see `ENCODER_RULES`.

    >>> import json
    >>> assert_encoder(json.dumps)

    Raises as `assert_executor` does.
    """
    _check(ENCODER_RULES, _ENCODER_RULES, without, encoder)


def _check(
    sentences: dict[str, str], rules: dict[str, Callable[[Any], None]], without: Collection[str], given: Any
) -> None:
    if unknown := sorted(set(without) - set(sentences)):
        raise ValueError(f"no such rule: {', '.join(unknown)}; there are {', '.join(sentences)}")
    broken: list[str] = []
    for name, sentence in sentences.items():
        if name not in without:
            try:
                rules[name](given)
            except AssertionError as error:
                broken.append(f"{name}: {sentence}, but {error}")
    if broken:
        raise AssertionError("\n".join(broken))


# Executors


def _events(executor: Executor, tools: list[Tool], *calls: ToolCall, **options: Any) -> list[Event]:
    step = stream_step(Fake(list(calls)), "Hi", tools=tools, tool_executor=executor, **options)
    told = hear(step)
    _expect(told.error is None, f"the step failed: {told.error!r}")
    return told.events


def _one(executor: Executor, handler: Callable[[Any], Any], kind: type[Any], **options: Any) -> Any:
    """The one event of `kind` when a tool with this handler is called."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    made = tool(name="f", description="A tool.", schema=schema, handler=handler)
    events = _events(executor, [made], ToolCall("c", "f", {"x": 1}), **options)
    found = [event for event in events if isinstance(event, kind)]
    _expect(len(found) == 1, f"there were {len(found)} {kind.__name__} in {events!r}")
    return found[0]


def _result(executor: Executor) -> None:
    for result in ("sunny", {"sum": 42}, None):
        completed = _one(executor, lambda arguments, result=result: result, ToolExecutionCompleted)
        _expect((completed.result, completed.error) == (result, None), f"{result!r} became {completed!r}")

    async def later(arguments: Any) -> Any:
        return arguments["x"] + 1

    _expect(_one(executor, later, ToolExecutionCompleted).result == 2, "an asynchronous handler's was another")


def _context(executor: Executor) -> None:
    @tool
    def whoami(x: int, context: ToolContext) -> str:
        """Says who calls."""
        return f"{context.context['user']} {x}"

    events = _events(executor, [whoami], ToolCall("c", "whoami", {"x": 1}), context={"user": "ada"})
    told = [event.content for event in events if isinstance(event, ToolResultEncoded)]
    _expect(told == ["ada 1"], f"the tool said {told}")


def _failure(executor: Executor) -> None:
    def fail(arguments: Any) -> Any:
        raise ValueError("no such city")

    error = _one(executor, fail, ToolExecutionCompleted).error
    _expect(isinstance(error, ToolError) and error.reason == "handler_raised", f"it was {error!r}")
    content = _one(executor, fail, ToolResultEncoded).content
    _expect("no such city" in content, f"the model was told {content!r}")


def _halt(executor: Executor) -> None:
    halted = _one(executor, lambda arguments: halt("enough", 42), ToolHalt)
    _expect((halted.reason, halted.result) == ("enough", 42), f"it was {halted!r}")


def _question(executor: Executor) -> None:
    asked = _one(executor, lambda arguments: ask_user("Which?"), AskUserRequested)
    _expect(asked.question == "Which?", f"it was {asked!r}")


def _several(executor: Executor) -> None:
    both = threading.Barrier(2)

    def meet(arguments: Any) -> Any:
        both.wait(SECONDS / 2)
        return arguments["x"]

    made = tool(name="f", description="A tool.", handler=meet)
    calls = [ToolCall(f"c{x}", "f", {"x": x}) for x in (1, 2)]
    events = _events(executor, [made], *calls, max_concurrency=2)
    results = {event.id: event.result for event in events if isinstance(event, ToolExecutionCompleted)}
    _expect(results == {"c1": 1, "c2": 2}, f"their results were {results}")


def _arguments(executor: Executor) -> None:
    def count(arguments: Any) -> int:
        return len(arguments)

    given = {"x": 1, "of": [1, {"a": 2}]}
    events = _events(executor, [tool(name="f", description="A tool.", handler=count)], ToolCall("c", "f", given))
    for event in events:
        if isinstance(event, ToolCallCompleted | ToolExecutionStarted):
            _expect(event.arguments == given, f"{given} became {event.arguments}")


def _timeout(executor: Executor) -> None:
    released = threading.Event()
    try:
        completed = _one(
            executor, lambda arguments: released.wait(2 * SECONDS), ToolExecutionCompleted, tool_timeout=0.05
        )
    finally:
        released.set()
    error = completed.error
    _expect(isinstance(error, ToolError) and error.reason == "timeout", f"it was {completed!r}")


_EXECUTOR_RULES: dict[str, Callable[[Any], None]] = {
    "result": _result,
    "context": _context,
    "failure": _failure,
    "halt": _halt,
    "question": _question,
    "several": _several,
    "arguments": _arguments,
    "timeout": _timeout,
}


# Encoders


def _encoded(encoder: Callable[[Any], Any], result: Any) -> Any:
    try:
        return encoder(result)
    except Exception as error:
        raise AssertionError(f"for {result!r} it raised {error!r}") from error


def _text(encoder: Callable[[Any], Any]) -> None:
    for result in deepcopy(RESULTS):
        encoded = _encoded(encoder, result)
        _expect(isinstance(encoded, str), f"for {result!r} it gave {encoded!r}")


def _error(encoder: Callable[[Any], Any]) -> None:
    encoded = _encoded(encoder, {"error": "ValueError: no such city"})
    _expect("no such city" in str(encoded), f"it gave {encoded!r}")


def _stable(encoder: Callable[[Any], Any]) -> None:
    for result in RESULTS:
        first, second = (_encoded(encoder, deepcopy(result)) for _ in range(2))
        _expect(first == second, f"for {result!r} it gave {first!r}, then {second!r}")


def _pure(encoder: Callable[[Any], Any]) -> None:
    for result in map(deepcopy, RESULTS):
        before = deepcopy(result)
        _encoded(encoder, result)
        _expect(result == before, f"{before!r} became {result!r}")


_ENCODER_RULES: dict[str, Callable[[Any], None]] = {
    "text": _text,
    "error": _error,
    "stable": _stable,
    "pure": _pure,
}


def _expect(condition: bool, why: str) -> None:
    if not condition:
        raise AssertionError(why)

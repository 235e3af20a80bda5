"""The rules for tool executors and result encoders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from copy import deepcopy
from typing import Any, TypeVar

from rxllm.adapters import Fake
from rxllm.events import AskUserRequested, Event, ToolExecutionCompleted, ToolHalt, ToolResultEncoded
from rxllm.pipelines import stream_step
from rxllm.testing._rules import SECONDS, RuleTable, expect, observe
from rxllm.values import Tool, ToolCall, ToolContext, ToolError, ask_user, halt, tool

E = TypeVar("E", bound=Event)

ENCODER_RULES = RuleTable()
"""Maps each rule's name to its text."""

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
"""Tool results of various types, which are used to test an encoder."""

Encoder = Callable[[Any], str]


def assert_encoder(encoder: Callable[[Any], str], *, without: Collection[str] = ()) -> None:
    """Check that a result encoder follows the `ENCODER_RULES`.

    >>> import json
    >>> assert_encoder(json.dumps)

    ``encoder(result)`` must turn any tool result into text for the model. `without` names the rules to omit. Omit
    ``text`` if your tools return only one kind of result. Omit ``error`` if the model must not see errors. Omit
    ``stable`` if the text contains the time. Never omit ``pure``.

    Raises the same errors as ``assert_executor``.
    """
    __tracebackhide__ = True
    ENCODER_RULES.check(encoder, without)


def _encoded(encoder: Encoder, result: Any) -> Any:
    try:
        return encoder(result)
    except Exception as error:
        raise AssertionError(f"for {result!r} it raised {error!r}") from error


@ENCODER_RULES.rule("text", "it returns text for every kind of tool result")
def _text(encoder: Encoder) -> None:
    for result in deepcopy(RESULTS):
        encoded = _encoded(encoder, result)
        expect(isinstance(encoded, str), f"for {result!r} it returned {encoded!r}")


@ENCODER_RULES.rule("error", "the text contains the error message of a failed tool")
def _error(encoder: Encoder) -> None:
    encoded = _encoded(encoder, {"error": "ValueError: no such city"})
    expect("no such city" in str(encoded), f"it returned {encoded!r}")


@ENCODER_RULES.rule("stable", "equal results give equal text")
def _stable(encoder: Encoder) -> None:
    for result in RESULTS:
        first, second = (_encoded(encoder, deepcopy(result)) for _ in range(2))
        expect(first == second, f"for {result!r} it returned {first!r}, then {second!r}")


@ENCODER_RULES.rule("pure", "it does not change the result")
def _pure(encoder: Encoder) -> None:
    for result in map(deepcopy, RESULTS):
        before = deepcopy(result)
        _encoded(encoder, result)
        expect(result == before, f"{before!r} became {result!r}")


Executor = Callable[[Tool, Any, ToolContext], Any]

EXECUTOR_RULES = RuleTable()
"""Maps each rule's name to its text."""


def assert_executor(executor: Executor, *, without: Collection[str] = ()) -> None:
    """Check that a tool executor follows the `EXECUTOR_RULES`.

    >>> assert_executor(lambda tool, arguments, context: tool.bind(arguments, context)())

    ``executor(tool, arguments, context)`` must run tools as rxllm itself does. `without` names the rules to omit. Omit
    ``context`` if your tools cannot receive the context. Omit ``several`` if only one tool runs at a time. Omit
    ``timeout`` if the executor has its own time limit. Omit ``halt`` and ``question`` if tools cannot return rxllm's
    objects. Never omit ``result``, ``failure`` or ``arguments``.

    The executor may be asynchronous. Raises an ``AssertionError`` with the reason for each broken rule. Raises
    ``ValueError`` for an unknown rule in `without`.
    """
    __tracebackhide__ = True
    EXECUTOR_RULES.check(executor, without)


def _events(executor: Executor, tools: list[Tool], *calls: ToolCall, **options: Any) -> list[Event]:
    """Return the events of a step in which the model makes these `calls`."""
    observed = observe(stream_step(Fake(list(calls)), "Hi", tools=tools, tool_executor=executor, **options))
    expect(observed.error is None, f"the step failed: {observed.error!r}")
    return observed.events


def _event(executor: Executor, handler: Callable[[Any], Any], kind: type[E], **options: Any) -> E:
    """Run a step that calls a tool whose handler is `handler`, and return the step's only event of the class `kind`."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    function = tool(name="f", description="A tool.", schema=schema, handler=handler)
    events = _events(executor, [function], ToolCall("c", "f", {"x": 1}), **options)
    matching = [event for event in events if isinstance(event, kind)]
    expect(len(matching) == 1, f"there were {len(matching)} {kind.__name__} events in {events!r}")
    return matching[0]


@EXECUTOR_RULES.rule("result", "it returns what the tool returns")
def _result(executor: Executor) -> None:
    for result in ("sunny", {"sum": 42}, None):
        completed = _event(executor, lambda arguments, result=result: result, ToolExecutionCompleted)
        expect((completed.result, completed.error) == (result, None), f"{result!r} became {completed!r}")

    async def later(arguments: Any) -> Any:
        return arguments["x"] + 1

    result = _event(executor, later, ToolExecutionCompleted).result
    expect(result == 2, f"an asynchronous handler returned 2, but the result was {result!r}")


@EXECUTOR_RULES.rule("context", "the tool gets the call's context")
def _context(executor: Executor) -> None:
    @tool
    def whoami(x: int, context: ToolContext) -> str:
        """Return the name of the caller."""
        return f"{context.context['user']} {x}"

    events = _events(executor, [whoami], ToolCall("c", "whoami", {"x": 1}), context={"user": "ada"})
    results = [event.content for event in events if isinstance(event, ToolResultEncoded)]
    expect(results == ["ada 1"], f"the tool returned {results} for the user 'ada'")


@EXECUTOR_RULES.rule("failure", "the tool's exception becomes the call's ToolError, and the chat continues")
def _failure(executor: Executor) -> None:
    def fail(arguments: Any) -> Any:
        raise ValueError("no such city")

    error = _event(executor, fail, ToolExecutionCompleted).error
    expect(isinstance(error, ToolError) and error.reason == "handler_raised", f"the call's error was {error!r}")
    content = _event(executor, fail, ToolResultEncoded).content
    expect("no such city" in content, f"the model got {content!r}")


@EXECUTOR_RULES.rule("halt", "if a tool returns a Halt, the chat stops")
def _halt(executor: Executor) -> None:
    event = _event(executor, lambda arguments: halt("enough", 42), ToolHalt)
    expect((event.reason, event.result) == ("enough", 42), f"the event was {event!r}")


@EXECUTOR_RULES.rule("question", "if a tool asks the user a question, the chat stops with that question")
def _question(executor: Executor) -> None:
    event = _event(executor, lambda arguments: ask_user("Which?"), AskUserRequested)
    expect(event.question == "Which?", f"the event was {event!r}")


@EXECUTOR_RULES.rule("several", "concurrent calls share nothing")
def _several(executor: Executor) -> None:
    both = threading.Barrier(2)

    def meet(arguments: Any) -> Any:
        both.wait(SECONDS / 2)
        return arguments["x"]

    function = tool(name="f", description="A tool.", handler=meet)
    calls = [ToolCall(f"c{x}", "f", {"x": x}) for x in (1, 2)]
    events = _events(executor, [function], *calls, max_concurrency=2)
    results = {event.id: event.result for event in events if isinstance(event, ToolExecutionCompleted)}
    expect(results == {"c1": 1, "c2": 2}, f"their results were {results}")


@EXECUTOR_RULES.rule("arguments", "the tool gets the call's arguments unchanged")
def _arguments(executor: Executor) -> None:
    received: list[Any] = []
    arguments = {"x": 1, "of": [1, {"a": 2}]}
    keep = tool(name="f", description="A tool.", handler=received.append)
    _events(executor, [keep], ToolCall("c", "f", arguments))
    expect(received == [arguments], f"it got {received} instead of {[arguments]}")


@EXECUTOR_RULES.rule("timeout", "a tool that hangs fails with a ToolError after tool_timeout, and nothing waits for it")
def _timeout(executor: Executor) -> None:
    released = threading.Event()

    def hang(arguments: Any) -> None:
        released.wait(2 * SECONDS)

    try:
        completed = _event(executor, hang, ToolExecutionCompleted, tool_timeout=0.05)
    finally:
        released.set()
    error = completed.error
    expect(isinstance(error, ToolError) and error.reason == "timeout", f"the event was {completed!r}")

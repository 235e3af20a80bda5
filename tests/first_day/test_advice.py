"""Every line of the table of advice: a user's mistake raises it, its code parses, and what it names is there."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, get_overloads

import pytest
import reactivex

import rxllm
from rxllm import Engine, Fake, ToolCall, operators, testing, tool
from rxllm.values import FilePart
from rxllm.values.advice import ADVICE, ANY, codes, filled
from tests.tables import assert_rows

FAKE = Fake("Hello")
ENGINE = Engine(FAKE)
STREAM: Any = rxllm.generate(ENGINE, "Hi")
EVENTS: Any = rxllm.stream_generate(ENGINE, "Hi")
TURN = rxllm.session.start(ENGINE, "Hi").run()
CALL = "generate(...)"

VALUES: dict[str, Any] = {
    "Response": rxllm.generate(ENGINE, "Hi").run(),
    "StepResult": rxllm.step(ENGINE, "Hi").run(),
    "ChatResult": rxllm.chat(ENGINE, "Hi").run(),
    "Turn": TURN,
    "Session": TURN.session,
    "Thread": TURN.session.thread,
    "Message": rxllm.user("Hi"),
    "ToolCall": ToolCall("c1", "add"),
    "Usage": rxllm.Usage(),
    "_Event": rxllm.MessageStarted(rxllm.user("Hi")),
    "Image": rxllm.Image.from_url("https://example.org/a.png"),
    "Stream attributes": EVENTS,
    "Engine": ENGINE,
}
"""A value of every class whose attributes have a section."""

MODULES: dict[str, Any] = {"rxllm": rxllm, "rxllm.operators": operators}


def file_part(*, mime_type: str = "", data: bytes = b"", url: str = "", name: str = "", **others: Any) -> FilePart:
    """Return a part as one writes it, with an entry for each argument."""
    return FilePart({"mime_type": "text/csv", "data": b"a,b", **others})


TAKERS: dict[str, Callable[..., Any]] = {
    "call": partial(rxllm.chat, FAKE, "Hi"),
    "Engine(...)": partial(Engine, FAKE),
    "HTTPBase(...)": rxllm.OpenAIChat,
    "Fake(...)": Fake,
    "Budget(...)": rxllm.Budget,
    "tool(...)": partial(tool, name="add"),
    "FilePart(...)": file_part,
    "web.chat(...)": partial(rxllm.web.chat, FAKE, rxllm.session.MemorySessions()),
}
"""What takes the options of every section of options."""

LACKING: dict[str, Callable[[], Any]] = {
    "partials": lambda: operators.partials(),
    "parsed": lambda: operators.parsed(),
    "Cassette": lambda: testing.Cassette("answers.jsonl"),
    "Stream.of": lambda: rxllm.Stream.of([1, 2]),
    "timeout": lambda: rxllm.OpenAIChat(timeout=rxllm.Timeouts(first=10)),
}
"""Calls that lack an argument, or have one of the wrong kind."""

NOT_RUN: dict[str, tuple[Callable[[], Any], dict[str, str]]] = {
    "result": (lambda: STREAM.output_text, {"call": CALL, "attribute": "output_text"}),
    "operator": (lambda: EVENTS.text, {"operator": "text"}),
    "attribute": (lambda: EVENTS.upper, {}),
    "item": (lambda: STREAM["choices"], {"call": CALL}),
    "sum": (lambda: STREAM + "!", {"call": CALL}),
    "mapping": (lambda: dict(STREAM), {"call": CALL}),
    "json": (lambda: json.dumps(STREAM, default=lambda value: next(iter(vars(value).values())).json), {}),
    "thread": (lambda: rxllm.chat(FAKE, STREAM), {}),
    "message": (lambda: rxllm.chat(FAKE, [STREAM]), {}),
    "tools": (lambda: rxllm.chat(FAKE, "Hi", tools=STREAM), {}),
    "setting": (lambda: Engine(FAKE, operators=STREAM), {}),
}
"""What is done with a stream in place of its result, and the words that the message then has."""

ENTRIES = [
    (place, name, text)
    for place, entries in ADVICE.items()
    for names, text in entries.items()
    for name in names.split()
]


def mistake(place: str, name: str) -> Callable[[], Any]:
    """Return what a user writes who needs the advice."""
    if place == "Stream":
        return NOT_RUN[name][0]
    if place == "arguments":
        return LACKING[name]
    if place in TAKERS:
        return partial(TAKERS[place], **{"wholly_different" if name == ANY else name: 5})
    return partial(getattr, (VALUES | MODULES)[place], name)


def words(place: str, name: str) -> dict[str, Any]:
    """Return what stands in the message for the placeholders of the text."""
    if place == "Stream":
        return NOT_RUN[name][1]
    option = "wholly_different" if name == ANY else name
    return {"name": option, "owner": "OpenAIChat", "value": 5, "data": 5, "it": "it", "count": 5, "attempts": 6}


def remedy(place: str, name: str, text: str) -> str:
    shown = filled(text.replace("`", ""), **words(place, name))
    if place in TAKERS and shown.isidentifier():
        return f"(did you mean {shown!r}?)"
    return shown


def test_every_place_is_tried_here() -> None:
    assert set(ADVICE) == {*VALUES, *MODULES, *TAKERS, "Stream", "arguments"}
    assert {name for place, name, _ in ENTRIES if place == "Stream"} == set(NOT_RUN)
    assert {name for place, name, _ in ENTRIES if place == "arguments"} == set(LACKING)


def test_a_name_has_one_piece_of_advice_at_a_place() -> None:
    counts = Counter((place, name) for place, name, _ in ENTRIES)
    assert [entry for entry, count in counts.items() if count > 1] == []


def test_every_mistake_raises_its_advice() -> None:
    assert_rows(ENTRIES, check_mistake)


def check_mistake(place: str, name: str, text: str) -> None:
    with pytest.raises((AttributeError, TypeError, rxllm.LLMError)) as caught:
        mistake(place, name)()
    message = str(caught.value)
    assert remedy(place, name, text) in message
    assert "`" not in message
    assert "{name}" not in message


def test_the_code_of_every_advice_parses_and_names_only_what_is_there() -> None:
    assert_rows(ENTRIES, check_codes)


def check_codes(place: str, name: str, text: str) -> None:
    for code in codes(filled(text, **words(place, name))):
        check_code(place, code)
    if place in TAKERS and text.isidentifier():
        assert text in options_of(TAKERS[place])


def test_advice_has_its_code_between_backticks_and_is_for_names_that_are_not_in_use() -> None:
    assert_rows(ENTRIES, check_text_and_name)


def check_text_and_name(place: str, name: str, text: str) -> None:
    prose = "".join(text.split("`")[::2])
    assert text.count("`") % 2 == 0
    assert "rxllm." not in prose
    assert "(" not in prose.replace("(did you mean", "")
    if place in VALUES | MODULES:
        assert name not in dir((VALUES | MODULES)[place])
    if place in TAKERS:
        assert name not in options_of(TAKERS[place])


# The code of a text

THEIRS = {
    "stream": EVENTS,
    "engine": ENGINE,
    "event": rxllm.TextDelta("Hi"),
    "response": rxllm.generate(ENGINE, "Hi").run(),
    "logging": logging,
    "ops": operators,
    "rxllm": rxllm,
    "reactivex": reactivex,
}
"""What the names in code stand for, besides those of rxllm."""

PLACEHOLDERS = {
    *("adapter", "City", "items", "store", "subscription"),
    *(
        "budget",
        "check",
        "fn",
        "function",
        "grace",
        "halted",
        "message",
        "name",
        "other",
        "path",
        "question",
        "request",
    ),
    *("requests", "save", "text", "thread", "tools", "type", "url", "while_open"),
}
"""Names in code that stand for what the user has."""


def check_code(place: str, code: str) -> None:
    """Parse `code`, look up all that it names, and compare the arguments of its calls with the signatures."""
    for node in ast.walk(ast.parse(completed(code))):
        match node:
            case ast.ImportFrom():
                assert all(hasattr(rxllm, alias.name) for alias in node.names)
            case ast.Assign(targets=[ast.Name(id=option)]) if place in TAKERS:
                assert option in options_of(TAKERS[place]) | options_of(rxllm.chat) | options_of(Engine)
            case ast.Attribute() | ast.Name(ctx=ast.Load()):
                look_up(place, node)
            case ast.Call():
                check_arguments(look_up(place, node.func), node)
            case _:
                pass


def completed(code: str) -> str:
    """Return `code` as a program: a decorator with its function, a method with its stream, an await where it may be."""
    if code.startswith("@"):
        return f"{code}\ndef function(): ..."
    if code.startswith("."):
        return f"stream{code}"
    return f"async def function():\n    {code}" if "await" in code or "return" in code else code


UNKNOWN = object()
"""What a name of the user's stands for."""


def look_up(place: str, node: ast.expr) -> Any:
    """Return what `node` names; an attribute or a name that is not there fails the test."""
    match node:
        case ast.Name(id=name):
            return UNKNOWN if name in PLACEHOLDERS else named(place, name)
        case ast.Attribute(value=owner, attr=name):
            found = look_up(place, owner)
            is_field = name in getattr(found, "__dataclass_fields__", ())
            return UNKNOWN if found is UNKNOWN or is_field else getattr(found, name)
        case ast.Call(func=function):
            found = look_up(place, function)
            returns_stream = found is not UNKNOWN and str(inspect.signature(found).return_annotation)[:6] == "Stream"
            return STREAM if returns_stream else UNKNOWN
        case ast.Await() | ast.Subscript():
            return UNKNOWN
        case _:
            raise AssertionError(ast.dump(node))


def named(place: str, name: str) -> Any:
    if name in THEIRS:
        return THEIRS[name]
    places = (VALUES.get(place), MODULES.get(place), rxllm, builtins)
    return next(getattr(there, name) for there in places if hasattr(there, name))


def check_arguments(function: Any, call: ast.Call) -> None:
    if function is UNKNOWN:
        return
    keywords = {keyword.arg for keyword in call.keywords}
    assert keywords <= options_of(function)
    if not any(isinstance(argument, ast.Constant) and argument.value is ... for argument in call.args):
        inspect.signature(function).bind_partial(*call.args)


def options_of(function: Any) -> set[str]:
    """Return the names of the arguments that `function` takes by keyword."""
    is_beside_adapter = isinstance(function, partial) and function.func is Engine
    function = function.func if isinstance(function, partial) else function
    parameters = [*inspect.signature(function).parameters.values()]
    if parameters[-1:] and parameters[-1].annotation == "Never":  # it takes no other arguments
        parameters.pop()
    elif parameters[-1:] and parameters[-1].kind is parameters[-1].VAR_KEYWORD and not is_beside_adapter:
        forms = get_overloads(function) or [rxllm.chat, rxllm.OpenAIChat]  # others pass them on to these
        parameters += [parameter for form in forms for parameter in inspect.signature(form).parameters.values()]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return {parameter.name for parameter in parameters if parameter.kind not in by_place}


@pytest.mark.parametrize(
    "code",
    ["rxllm.runtime.use_transport", "rxllm.generat(engine)", "rxllm.Budget(token=1)", "output_txt", "gate(", "mx"],
)
def test_a_wrong_piece_of_code_is_found(code: str) -> None:
    with pytest.raises((AssertionError, AttributeError, StopIteration, SyntaxError)):
        check_code("Response", code)

"""A whole float is an int wherever the schema that was sent says integer, as it is to JSON Schema."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from rxllm import Fake, Stream, Tool, ToolCall, ToolError, chat, generate, json_schema, stream_generate, tool
from rxllm import operators as ops
from rxllm.values import ToolContext, ValidationError
from rxllm.values.schemas import is_wrapped
from rxllm.values.whole_numbers import with_ints


@dataclass
class Point:
    x: int
    y: float = 0.0
    label: Any = None


@dataclass
class Line:
    points: list[Point]
    widths: dict[str, int]
    width: int | None = None


class Struct(msgspec.Struct):
    n: int


class Renamed(msgspec.Struct, rename="camel"):
    first_number: int


class Array(msgspec.Struct, array_like=True):
    n: int
    x: float


class Circle(msgspec.Struct, tag=True):
    radius: int


class Square(msgspec.Struct, tag=True):
    side: float


class Pair(NamedTuple):
    n: int
    x: float


class Typed(TypedDict):
    n: int
    m: NotRequired[int]


class Model(pydantic.BaseModel):
    n: int
    points: list[Point] = []


class Strict(pydantic.BaseModel, strict=True):
    n: Annotated[int, pydantic.Field(ge=1)]


class Tree(pydantic.BaseModel):
    n: int
    children: list[Tree] = []


class Level(enum.IntEnum):
    LOW = 1


VALUES: list[tuple[Any, str, Any]] = [
    (int, "4.0", 4),
    (int, "120000.0", 120000),
    (int, "4e0", 4),
    (int, "-0.0", 0),
    (int, "1e22", 10**22),
    (int | None, "5.0", 5),
    (int | str, "5.0", 5),
    (list[int], "[1.0, 2]", [1, 2]),
    (set[int], "[1.0]", {1}),
    (tuple[int, ...], "[1.0]", (1,)),
    (tuple[float, int], "[1.0, 2.0]", (1.0, 2)),
    (dict[str, int], '{"a": 1.0}', {"a": 1}),
    (dict[str, list[dict[str, int]]], '{"a": [{"b": 1.0}]}', {"a": [{"b": 1}]}),
    (Literal[1, 2], "1.0", 1),
    (Literal["a", 2] | None, "2.0", 2),
    (Level, "1.0", Level.LOW),
    (Point, '{"x": 4.0, "y": 4.0, "label": 4.0}', Point(4, 4.0, 4.0)),
    (list[Point], '[{"x": 4.0}, {"x": 5}]', [Point(4), Point(5)]),
    (Line, '{"points": [{"x": 1.0}], "widths": {"a": 2.0}, "width": 3.0}', Line([Point(1)], {"a": 2}, 3)),
    (Struct, '{"n": 4.0}', Struct(4)),
    (Renamed, '{"firstNumber": 4.0}', Renamed(4)),
    (Array, "[4.0, 4.0]", Array(4, 4.0)),
    (Circle | Square, '{"type": "Circle", "radius": 2.0}', Circle(2)),
    (Circle | Square, '{"type": "Square", "side": 2.0}', Square(2.0)),
    (Pair, "[4.0, 4.0]", Pair(4, 4.0)),
    (Typed, '{"n": 4.0, "m": 5.0}', {"n": 4, "m": 5}),
    (Model, '{"n": 4.0, "points": [{"x": 4.0}]}', Model(n=4, points=[Point(4)])),
    (Strict, '{"n": 4.0}', Strict(n=4)),
    (Strict | None, '{"n": 4.0}', Strict(n=4)),
    (Tree, '{"n": 1.0, "children": [{"n": 2.0, "children": [{"n": 3.0}]}]}',
     Tree(n=1, children=[Tree(n=2, children=[Tree(n=3)])])),
    (Annotated[int, msgspec.Meta(ge=1)], "4.0", 4),
    (float, "4.0", 4.0),
    (int | float, "4.0", 4.0),
]  # fmt: skip

WRONG: list[tuple[Any, str]] = [
    (int, "4.5"),
    (list[int], "[1.0, 4.5]"),
    (Point, '{"x": 4.5}'),
    (Typed, '{"n": 4.5}'),
    (Model, '{"n": 4.5}'),
    (Strict, '{"n": 0.0}'),
    (Literal[1, 2], "3.0"),
    (int, '"4.0"'),
    (str, "4.0"),
    (bool, "1.0"),
]


def ids(rows: list[Any]) -> list[str]:
    return [f"{getattr(hint, '__name__', hint)} {text}" for hint, text, *_ in rows]


def parsed(hint: Any, text: str) -> Any:
    return generate(Fake(text), "Hi", response_format=hint).run().parsed


@pytest.mark.parametrize(("hint", "text", "value"), VALUES, ids=ids(VALUES))
def test_a_whole_float_in_a_typed_answer_is_an_int(hint: Any, text: str, value: Any) -> None:
    assert repr(parsed(hint, text)) == repr(value)
    assert repr(parsed(hint, f"```json\n{text}\n```")) == repr(value)
    if is_wrapped(hint):
        assert repr(parsed(hint, f'{{"value": {text}}}')) == repr(value)


@pytest.mark.parametrize(("hint", "text", "value"), VALUES, ids=ids(VALUES))
def test_a_whole_float_in_a_tool_s_arguments_is_an_int(hint: Any, text: str, value: Any) -> None:
    received: list[Any] = []

    def plain(n: Any) -> str:
        received.append(n)
        return "done"

    plain.__annotations__["n"] = hint
    call = ToolCall("c1", "plain", f'{{"n": {text}}}')  # pyright: ignore[reportArgumentType]
    result = chat(Fake(call, "Hello"), "Hi", tools=[plain]).run()
    assert repr(received) == repr([value]), result.thread


@pytest.mark.parametrize(("hint", "text", "value"), VALUES, ids=ids(VALUES))
def test_a_whole_float_in_an_element_or_a_partial_is_an_int(hint: Any, text: str, value: Any) -> None:
    (item,) = list(stream_generate(Fake(f"[{text}]"), "Hi").pipe(ops.items(hint)))
    assert repr(item) == repr(value)
    *_, last = list(stream_generate(Fake(f"[{text}]"), "Hi").pipe(ops.partials(list[hint])))
    assert repr(last.value) == repr([value])
    assert repr(last[0].value) == repr(value)


@pytest.mark.parametrize(("hint", "text"), WRONG, ids=ids(WRONG))
def test_any_other_number_stays_an_error(hint: Any, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parsed(hint, text)
    assert caught.value.reason == "invalid_output"

    def plain(n: Any) -> None: ...

    plain.__annotations__["n"] = hint
    call = ToolCall("c1", "plain", {"n": json.loads(text)})
    with pytest.raises(ToolError, match="the arguments are invalid"):
        tool(plain).bind(call.arguments, ToolContext(call))


def test_the_error_names_what_is_wrong_besides_whole_floats() -> None:
    with pytest.raises(ValidationError, match="y: Expected `float`, got `str`") as caught:
        parsed(Point, '{"x": 4.0, "y": "far"}')
    assert [path for path, _ in caught.value.errors] == [("y",)]


def test_a_handler_and_an_executor_get_ints_too() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}}}
    received: list[Any] = []
    made = Tool("plain", schema=schema, handler=lambda arguments: received.append(arguments))
    call = ToolCall("c1", "plain", {"n": 4.0, "x": 4.0})
    chat(Fake(call, "Hello"), "Hi", tools=[made]).run()
    chat(Fake(call, "Hello"), "Hi", tools=[made], tool_executor=lambda tool, a, context: received.append(a)).run()
    assert [repr(arguments) for arguments in received] == ["{'n': 4, 'x': 4.0}"] * 2


def test_arguments_that_an_approver_writes_are_read_in_the_same_way() -> None:
    @tool(approval=True)
    def plain(n: int) -> int:
        return n

    call = ToolCall("c1", "plain", {"n": 1})
    result = chat(Fake(call, "Hello"), "Hi", tools=[plain], approve=lambda call: {"n": 4.0}).run()
    assert result.steps[0].tool_results[0].text == "4"


@pytest.mark.sockets
def test_items_of_a_streamed_argument_are_ints() -> None:
    received: list[Any] = []

    @tool(eager=True)
    async def plain(ns: Stream[int]) -> str:
        received.extend([n async for n in ns])
        return "done"

    script = [("tool_call_delta", {"id": "c1", "name": "plain", "arguments_delta": '{"ns": [1.0, 2]}'})]
    chat(Fake(scripts=[script, ["Hello"]]), "Hi", tools=[plain]).run()
    assert repr(received) == "[1, 2]"


def test_an_answer_to_a_json_schema_has_ints_where_the_schema_says_so() -> None:
    nested = {"type": "object", "properties": {"n": {"$ref": "#/$defs/deep"}}}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "n": {"type": ["integer", "null"]},
            "x": {"type": "number"},
            "both": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
            "one": {"const": 1},
            "deep": {"type": "array", "items": {"$ref": "#/$defs/deep"}},
            "rest": {"type": "object", "additionalProperties": {"allOf": [{"type": "integer"}]}},
        },
        "$defs": {"deep": {"oneOf": [{"type": "integer"}, nested]}},
    }
    text = '{"n": 1.0, "x": 1.0, "both": 1.0, "one": 1.0, "deep": [1.0, {"n": {"n": 2.0}}], "rest": {"a": 3.0}}'
    expected = {"n": 1, "x": 1.0, "both": 1.0, "one": 1, "deep": [1, {"n": {"n": 2}}], "rest": {"a": 3}}
    assert repr(parsed(json_schema("answer", schema, strict=False), text)) == repr(expected)


def test_data_without_whole_floats_is_passed_on_as_it_is() -> None:
    data = {"a": [1, 2.5, "4.0", None, float("inf")]}
    assert with_ints(data, {"properties": {"a": {"items": {"type": "integer"}}}}) is data


def endless(depth: int) -> dict[str, Any]:
    return {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}


def wide(depth: int) -> dict[str, Any]:
    branches = [{"properties": {"a": {"anyOf": [{"$ref": "#"}] * depth}}} for _ in range(depth)]
    return {"anyOf": branches}


@pytest.mark.parametrize("make", [endless, wide])
def test_a_schema_that_refers_to_itself_or_branches_without_end_leaves_the_data(
    make: Callable[[int], dict[str, Any]],
) -> None:
    data: Any = 4.0
    for _ in range(50):
        data = {"a": data}
    assert with_ints(data, make(3_000)) == data

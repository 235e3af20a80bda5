from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from rxllm import serializer
from rxllm.values import (
    FunctionTool,
    Halt,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ValidationError,
    ask_user,
    halt,
    tool,
)

CONTEXT = ToolContext(ToolCall("call_1", "weather"))


@dataclass
class Place:
    city: str
    zip: int | None = None


@tool
def weather(
    place: Place,
    unit: Literal["c", "f"] = "c",
    days: int | None = None,
    *,
    context: ToolContext,
) -> str:
    """Say what the weather
    will be.

    The forecast is made up.

    Args:
        place: Where,
            and in which country.
        unit (str): Celsius: c, or Fahrenheit.

    Returns:
        days: not a parameter's description.
    """
    return f"{place.city} {unit} {days} {context.tool_call.id}"


def test_a_function_s_name_docstring_and_hints_are_the_tool() -> None:
    assert isinstance(weather, FunctionTool)
    assert weather.name == "weather"
    returns = "Returns:\n    days: not a parameter's description."
    assert weather.description == f"Say what the weather\nwill be.\n\nThe forecast is made up.\n\n{returns}"
    assert weather.schema["type"] == "object"
    assert weather.schema["required"] == ["place"]
    assert list(weather.schema["properties"]) == ["place", "unit", "days"]


def test_hints_become_json_schema() -> None:
    properties = weather.schema["properties"]
    assert properties["place"]["$ref"] == "#/$defs/Place"
    assert weather.schema["$defs"]["Place"]["required"] == ["city"]
    assert properties["unit"]["enum"] == ["c", "f"]
    assert properties["days"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def test_the_args_section_describes_the_parameters() -> None:
    properties = weather.schema["properties"]
    assert properties["place"]["description"] == "Where, and in which country."
    assert properties["unit"]["description"] == "Celsius: c, or Fahrenheit."
    assert "description" not in properties["days"]


def test_arguments_are_converted_and_the_context_is_filled_in() -> None:
    assert weather.bind({"place": {"city": "Oslo"}, "days": 2}, CONTEXT)() == "Oslo c 2 call_1"


def test_arguments_that_nobody_asked_for_are_left_out() -> None:
    assert weather.bind({"place": {"city": "Oslo"}, "mood": "good"}, CONTEXT)() == "Oslo c None call_1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "place"), ({"place": {"city": 5}}, r"place\.city"), ({"place": {"city": "Oslo"}, "unit": "k"}, "unit")],
)
def test_arguments_that_do_not_fit_are_a_typed_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError, match=message) as caught:
        weather.bind(arguments, CONTEXT)
    assert (caught.value.reason, caught.value.tool_name, caught.value.tool_call_id) == (
        "invalid_arguments",
        "weather",
        "call_1",
    )


def test_the_tool_is_still_the_function() -> None:
    assert weather(Place("Oslo"), "f", context=CONTEXT) == "Oslo f None call_1"


def test_an_optional_context_is_filled_in_too() -> None:
    @tool
    def whoami(context: ToolContext | None = None) -> str:
        return context.tool_call.id if context else "nobody"

    assert whoami.schema["properties"] == {}
    assert whoami.bind({}, CONTEXT)() == "call_1"
    assert whoami() == "nobody"


def test_mutable_defaults_are_the_function_s_own() -> None:
    @tool
    def count(items: list[str] = []) -> int:  # noqa: B006
        return len(items)

    assert count.bind({}, CONTEXT)() == 0
    assert count.bind({"items": ["a"]}, CONTEXT)() == 1


def test_an_async_function_gives_its_coroutine() -> None:
    @tool
    async def later(x: int) -> int:
        return x + 1

    assert asyncio.run(later.bind({"x": 1}, CONTEXT)()) == 2


def test_a_tool_without_parameters() -> None:
    @tool
    def now() -> str:
        return "noon"

    assert now.schema == {"type": "object", "properties": {}, "required": []}
    assert now.description == ""
    assert now.bind({}, CONTEXT)() == "noon"


def test_a_lambda_has_no_name_for_a_tool() -> None:
    with pytest.raises(ValidationError, match=r"a lambda has no name; use def") as caught:
        tool(lambda x: x)
    assert (caught.value.reason, caught.value.errors) == ("invalid_tool", ((("name",), "required"),))


def test_a_lambda_is_a_tool_under_the_name_it_is_given() -> None:
    double = tool(name="double", description="Double x.", approval=True)(lambda x: 2 * x)
    assert (double.name, double.description, double.approval, double(4)) == ("double", "Double x.", True, 8)
    assert double.schema["required"] == ["x"]
    with pytest.raises(TypeError, match=r"the tool 'many' cannot have the parameter \*args"):
        tool(name="many")(lambda *args: args)


def test_a_parameter_s_class_may_have_the_tool_s_name() -> None:
    def place(place: Place) -> str:
        return place.city

    place.__name__ = "Place"
    assert tool(place).schema["required"] == ["place"]


def test_the_decorator_takes_flags() -> None:
    @tool(manual=True)
    def ask(x: int) -> None: ...

    @tool(approval=True)
    def delete(x: int) -> None: ...

    assert (ask.manual, ask.approval, delete.manual, delete.approval) == (True, False, False, True)


def test_what_the_model_cannot_give_is_refused() -> None:
    def positional(*args: int) -> None: ...
    def keywords(**kwargs: int) -> None: ...
    def only(x: int, /) -> None: ...

    for function in (positional, keywords, only):
        with pytest.raises(TypeError, match="passes arguments by name"):
            tool(function)


def test_a_type_without_a_schema_is_refused() -> None:
    def apply(fn: Callable[[], int]) -> None: ...

    with pytest.raises(TypeError, match="'apply' has a parameter whose type has no JSON schema"):
        tool(apply)


# Tools from pieces


def test_a_tool_from_pieces() -> None:
    made = tool(name="add", description="Adds.", schema={"type": "object"}, manual=True, metadata={"a": 1})
    assert made == Tool("add", "Adds.", {"type": "object"}, manual=True, metadata={"a": 1})
    assert tool(name="add").schema == {"type": "object", "properties": {}}


def test_a_handler_of_one_parameter_gets_the_arguments() -> None:
    assert tool(name="f", handler=lambda arguments: arguments["x"]).bind({"x": 1}, CONTEXT)() == 1
    assert tool(name="f", handler=lambda arguments, y=2: (arguments, y)).bind({}, CONTEXT)() == ({}, 2)
    assert tool(name="f", handler=dict).bind({"x": 1}, CONTEXT)() == {"x": 1}


def test_a_handler_of_two_parameters_gets_the_context_too() -> None:
    assert tool(name="f", handler=lambda arguments, context: context).bind({}, CONTEXT)() is CONTEXT


def test_a_handler_that_names_the_context_gets_it_there() -> None:
    def handle(arguments: dict[str, Any], *, context: ToolContext) -> str:
        return context.tool_call.id

    assert tool(name="f", handler=handle).bind({}, CONTEXT)() == "call_1"


def test_a_tool_without_a_handler_cannot_run() -> None:
    with pytest.raises(ToolError, match="has no handler") as caught:
        Tool("f").bind({}, CONTEXT)
    assert caught.value.reason == "not_found"


@pytest.mark.parametrize("flag", ["manual", "approval"])
def test_flags_are_true_or_false(flag: str) -> None:
    for wrong in (None, 1, "yes"):
        options: dict[str, Any] = {flag: wrong}
        with pytest.raises(TypeError, match=flag):
            tool(name="f", **options)


@pytest.mark.parametrize("timeout", [2.5, 600, None])
def test_a_tool_has_a_timeout_of_its_own(timeout: float | None) -> None:
    @tool(timeout=timeout)
    def plain() -> None: ...

    @tool(name="named", timeout=timeout)
    def other() -> None: ...

    pieces = tool(name="pieces", timeout=timeout)
    assert [made.timeout for made in (plain, other, pieces)] == [timeout] * 3


def test_no_timeout_is_not_the_same_as_none_that_is_set_in_json_too() -> None:
    tools = [Tool("f"), Tool("f", timeout=None), Tool("f", timeout=2), Tool("f", timeout=2.5)]
    assert len({tool.timeout for tool in tools}) == 4
    texts = [serializer.to_json(made) for made in tools]
    assert ["timeout" in text for text in texts] == [False, True, True, True]
    assert [serializer.from_json(text, Tool) for text in texts] == tools
    assert tools[0].timeout == "default"


@pytest.mark.parametrize("timeout", [0, -1.0, "30", True, float("nan"), float("inf"), ()])
def test_a_timeout_that_is_no_time_is_refused(timeout: Any) -> None:
    with pytest.raises(ValidationError, match="timeout must be a positive number of seconds, or None for no limit"):
        tool(name="f", timeout=timeout)
    with pytest.raises(ValidationError) as caught:
        tool(timeout=timeout)(weather.handler or print)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_tool", ("timeout",))


def test_what_other_libraries_call_a_timeout_is_explained() -> None:
    with pytest.raises(ValidationError, match=r"tool has no option 'tool_timeout' .did you mean 'timeout'"):
        tool(name="f", tool_timeout=1)  # type: ignore[call-overload]


# Halts


def test_a_tool_ends_the_chat_by_what_it_returns() -> None:
    assert halt("enough", 42) == Halt("enough", 42)
    assert ask_user("Which?", choices=[1, 2]) == Halt("ask_user", question="Which?", opts={"choices": [1, 2]})


@pytest.mark.parametrize(
    ("positional", "pieces", "given"),
    [
        ((), {"description": "weather by city", "schema": {"type": "object"}}, "description, schema"),
        ((), {"name": None, "handler": print}, "handler"),
        (("weather",), {}, "'weather'"),
    ],
)
def test_pieces_without_a_name_are_refused(positional: tuple[Any, ...], pieces: dict[str, Any], given: str) -> None:
    with pytest.raises(ValidationError) as caught:
        tool(*positional, **pieces)
    assert caught.value.reason == "invalid_tool"
    assert caught.value.errors == ((("name",), "required"),)
    assert f"received only {given}; write tool(name=" in caught.value.message


@pytest.mark.parametrize(
    ("pieces", "given", "remedy"),
    [
        ({"name": "boom"}, "name", "write tool(name='boom')(print)"),
        ({"description": "Break."}, "description", "write tool(description='Break.')(print)"),
        (
            {"name": "boom", "description": "x" * 200},
            "description, name",
            f"write tool(name='boom', description='{'x' * 38}…)(print)",
        ),
        ({"schema": {"type": "object"}}, "schema", "write tool(name='...', schema={...}, handler=print)"),
    ],
)
def test_a_function_is_named_by_a_second_call(pieces: dict[str, Any], given: str, remedy: str) -> None:
    with pytest.raises(ValidationError) as caught:
        tool(print, **pieces)
    assert caught.value.message == f"tool(function) does not take {given}; {remedy}"
    assert sorted(caught.value.errors) == sorted(((name,), "not_allowed") for name in pieces)

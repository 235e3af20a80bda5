"""What a model is shown whose template knows no tools."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rxllm.adapters.local.tools import ANSWER, ANSWERS, CALL, call_schema, must_call, write_tools_as_text
from rxllm.values import Message, Request, Tool, ToolCall, assistant, system, tool, tool_result, user


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return city


SUM = Message("assistant", tool_calls=(ToolCall("call_0", "add", {"a": 1, "b": 2}),))


def said(request: Request) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in write_tools_as_text(request).messages]


def test_without_tools_the_request_is_as_it_was() -> None:
    request = Request((system("Be brief."), user("Hi")), temperature=0.5)
    assert write_tools_as_text(request) == request
    assert not must_call(request)


def test_tools_are_shown_by_example_and_a_call_is_all_that_can_come() -> None:
    request = Request((system("Be brief."), user("1 + 2?")), tools=(add, weather), max_tokens=9)
    plain = write_tools_as_text(request)
    assert must_call(request)
    assert said(request) == [
        ("system", f"Be brief.\n{CALL}"),
        ("user", "The weather in a city."),
        ("assistant", '{"name": "weather", "arguments": {}}'),
        ("user", "Add two numbers."),
        ("assistant", '{"name": "add", "arguments": {}}'),
        ("user", "1 + 2?"),
    ]
    assert (plain.tools, plain.temperature, plain.seed, plain.max_tokens) == ((), 0.0, 0, 9)
    assert isinstance(plain.response_format, dict)
    assert plain.response_format["schema"] == call_schema((add, weather))


@pytest.mark.parametrize("tools", [(add, weather), (weather, add)])
@pytest.mark.parametrize(
    ("question", "last"),
    [("How is the weather?", "The weather in a city."), ("2+2", "Add two numbers."), ("Add them", "Add two numbers.")],
)
def test_the_example_that_fits_the_question_comes_last(tools: tuple[Tool, ...], question: str, last: str) -> None:
    assert said(Request((user(question),), tools=tools))[-3] == ("user", last)


def test_a_parameter_may_have_several_types() -> None:
    half = Tool("half", "Half of it", {"type": "object", "properties": {"x": {"type": ["number", "null"]}}})
    assert said(Request((user("Halve 3"),), tools=(add, half)))[-3] == ("user", "Add two numbers.")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ["add", "weather"]),
        ("auto", ["add", "weather"]),
        ("required", ["add", "weather"]),
        ("none", []),
        ("add", ["add"]),
        ({"type": "function", "function": {"name": "weather"}}, ["weather"]),
    ],
)
def test_the_tools_that_may_be_called(choice: Any, names: list[str]) -> None:
    request = Request((user("Hi"),), tools=(add, weather), tool_choice=choice)
    assert must_call(request) == bool(names)
    shown = write_tools_as_text(request).response_format
    assert shown == (None if not names else {**shown, "schema": call_schema(_named(names))})  # type: ignore[dict-item]


def _named(names: list[str]) -> tuple[Tool, ...]:
    return tuple(each for each in (add, weather) if each.name in names)


def test_results_are_facts_and_the_reply_is_text() -> None:
    messages = (user("1 + 2?"), SUM, tool_result("call_0", "3"))
    request = Request(messages, tools=(add,), response_format="text")
    assert not must_call(request)
    assert said(request) == [
        ("system", ANSWER),
        *((message.role, message.text) for message in ANSWERS),
        ("user", "Question: 1 + 2?\n\nFact: add 1 2 is 3"),
    ]
    assert write_tools_as_text(request).response_format == "text"


@pytest.mark.parametrize("result", ['{"temp_c": 21, "sky": "sunny"}', {"temp_c": 21, "sky": "sunny"}])
def test_a_result_that_is_an_object_is_said_in_words(result: str | dict[str, Any]) -> None:
    call = Message("assistant", tool_calls=(ToolCall("c", "get_weather", {"city": "Paris"}),))
    request = Request((user("Weather?"), call, tool_result("c", result)))
    assert said(request)[-1] == ("user", "Question: Weather?\n\nFact: weather Paris is temp c: 21, sky: sunny")


def test_earlier_turns_are_calls_before_a_call_and_answers_before_an_answer() -> None:
    first = (user("1 + 2?"), SUM, tool_result("call_0", "3"), assistant("It is 3."))
    request = Request((*first, user("And in Rome?")), tools=(weather,))
    assert said(request)[-3:] == [
        ("user", "1 + 2?"),
        ("assistant", '{"name": "add", "arguments": {"a": 1, "b": 2}}'),
        ("user", "And in Rome?"),
    ]
    call = Message("assistant", tool_calls=(ToolCall("call_1", "weather", {"city": "Rome"}),))
    answered = Request((*first, user("And in Rome?"), call, tool_result("call_1", "hot")), tools=(weather,))
    assert said(answered)[-3:] == [
        ("user", "1 + 2?"),
        ("assistant", "It is 3."),
        ("user", "Question: And in Rome?\n\nFact: weather Rome is hot"),
    ]


class Place(msgspec.Struct):
    name: str
    tags: list[str]


@tool
def visit(place: Place) -> str:
    """Visit a place."""
    return place.name


def test_shared_definitions_are_where_references_look_for_them() -> None:
    schema = call_schema((visit, Tool("now")))
    place = {"name": {"type": "string", "maxLength": 200}}
    assert schema["$defs"]["visit_Place"]["properties"]["name"] == place["name"]
    assert schema["$defs"]["visit_Place"]["properties"]["tags"]["maxItems"] == 8
    visiting, now = (each["properties"]["arguments"] for each in schema["anyOf"])
    assert visiting["properties"]["place"] == {"$ref": "#/$defs/visit_Place"}
    assert now == {"type": "object", "properties": {}, "additionalProperties": False}

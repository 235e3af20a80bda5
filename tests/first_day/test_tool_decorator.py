"""The decorator with arguments, and two tools of one name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import rxllm
from rxllm import Engine, EngineError, Fake, Tool, ToolCall, ValidationError, tool


@tool(description="Say how warm a city is.")
def weather(city: str) -> str:
    """Look a city up in our table."""
    return f"warm in {city}"


@tool(name="remove_file", approval=True)
def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


@tool(name="add_two", description="Add.")
def add(a: int, b: int) -> int:
    return a + b


def test_a_description_and_a_name_are_the_decorators() -> None:
    assert (weather.name, weather.description) == ("weather", "Say how warm a city is.")
    assert (remove.name, remove.description, remove.approval) == ("remove_file", "Remove a file.", True)
    assert (add.name, add.description, add.approval) == ("add_two", "Add.", False)
    assert add(1, 2) == 3
    assert add.schema["required"] == ["a", "b"]


def test_a_chat_runs_them_by_their_names() -> None:
    fake = Fake(ToolCall("c1", "add_two", {"a": 1, "b": 2}), "3")
    result = rxllm.chat(fake, "What is 1 + 2?", tools=[weather, add]).run()
    assert result.thread.messages[2].text == "3"
    assert [tool.name for tool in fake.requests[0].tools] == ["weather", "add_two"]


@pytest.mark.parametrize("made", [weather, remove, add])
def test_they_are_pickled_by_their_place(made: Any) -> None:
    assert pickle.loads(pickle.dumps(made)) is made


def test_it_works_in_a_class_and_as_a_call() -> None:
    class Shop:
        @tool(name="price_of", description="Look up a price.")
        def price(self, product: str) -> int:
            return len(product)

    result = rxllm.chat(Fake(ToolCall("c1", "price_of", {"product": "tea"}), "3"), "Hi", tools=[Shop().price]).run()
    assert result.thread.messages[2].text == "3"
    plain = tool(description="Put it in lower case.")(str.lower.__get__("ABC"))
    assert plain.description == "Put it in lower case."
    by_value = pickle.loads(pickle.dumps(tool(description="another text")(_sub)))
    assert (by_value.description, by_value(5, 3)) == ("another text", 2)


def _sub(a: int, b: int) -> int:
    return a - b


def test_a_tool_with_a_schema_or_a_handler_is_not_a_decorator() -> None:
    for made in (tool(name="a", handler=_sub), tool(name="a", schema={"type": "object"}), Tool("a", handler=_sub)):
        with pytest.raises(
            TypeError, match="the tool 'a' already has a schema or handler, so it cannot decorate a function"
        ):
            made(_sub)
    with pytest.raises(TypeError, match="the tool 'a' has no function to call; pass handler=function"):
        tool(name="a")(1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"needs_approval": True}, "tool has no option 'needs_approval' (did you mean 'approval'?)"),
        ({"name": "x", "requires_approval": True}, "tool has no option 'requires_approval' (did you mean 'approval'?)"),
        ({"name": "x", "parameters": {}}, "tool has no option 'parameters' (did you mean 'schema'?)"),
        ({"name": "x", "func": print}, "tool has no option 'func' (did you mean 'handler'?)"),
        ({"nmae": "weather"}, "tool has no option 'nmae' (did you mean 'name'?)"),
        ({"colour": "red"}, "tool has no option 'colour'; it takes name, description, schema, handler, manual, "),
    ],
)
def test_an_unknown_option_is_answered(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValidationError) as caught:
        tool(**options)
    assert caught.value.reason == "invalid_tool"
    assert caught.value.message.startswith(remedy)


def named_add(sign: int) -> Any:
    def add(a: int, b: int) -> int:
        return a + sign * b

    return add


def test_two_tools_of_one_name_in_one_list_are_refused() -> None:
    first, second = named_add(1), named_add(-1)
    place = f"{__name__}.named_add.<locals>.add"
    fault = f"must have different names, but {place} and {place} are both named 'add'; rename one of them"
    for ask in (rxllm.generate, rxllm.chat):
        with pytest.raises(ValidationError) as caught:
            ask(Fake("x"), "Hi", tools=[first, second])
        assert caught.value.reason == "invalid_option"
        assert fault in str(caught.value)
    for make in (lambda: Engine(Fake("x"), tools=[first, second]), lambda: Engine(Fake("x")).with_tools(first, second)):
        with pytest.raises(EngineError, match="an engine's tools must have different names"):
            make()


def test_the_same_tool_twice_and_a_call_s_tool_over_the_engine_s_are_taken() -> None:
    first, second = named_add(1), named_add(-1)
    fake = Fake("x")
    rxllm.generate(Engine(fake, tools=[first, first]), "Hi", tools=[second, second]).run()
    assert [made.handler for made in fake.requests[0].tools] == [second]

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from rxllm import Engine, EngineError, Fake, RetryPolicy, Tool, aclose, tool
from rxllm.engine import as_engine, merge_tools


def test_an_engine_begins_with_nothing() -> None:
    engine = Engine()
    assert (engine.adapter, engine.model, engine.tools, engine.params, engine.context) == (None, None, (), {}, {})
    assert (engine.operators, engine.observers, engine.retry, engine.metadata) == ((), (), "default", {})
    assert (engine.image_adapter, engine.tool_executor, engine.tool_result_encoder) == (None, None, None)


def test_an_engine_is_frozen_and_has_no_key() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Engine().model = "other"  # type: ignore[misc]
    assert not any("key" in spec.name for spec in dataclasses.fields(Engine))


def test_sequences_become_tuples() -> None:
    given: Any = {"tools": [tool(name="a")], "operators": [lambda source: source], "observers": [print]}
    engine = Engine(**given)
    assert all(isinstance(getattr(engine, name), tuple) for name in given)


def test_each_with_gives_a_new_engine() -> None:
    a, b, other = tool(name="a"), tool(name="b"), tool(name="a", description="other")
    first = Engine(Fake("Hi"), model="small", tools=(a,), params={"seed": 1}, context={"x": 1})
    assert first.with_model("large").model == "large"
    assert first.with_tools(b, other).tools == (other, b)
    assert first.with_params(seed=2, temperature=0.0).params == {"seed": 2, "temperature": 0.0}
    assert first.with_context(y=2).context == {"x": 1, "y": 2}
    assert first.with_operators(_one, _two).with_operators(_one).operators == (_one, _two, _one)
    assert (first.model, first.tools, first.params, first.context) == ("small", (a,), {"seed": 1}, {"x": 1})
    assert (first.operators, first.with_model("large").adapter) == ((), first.adapter)


def test_merged_tools_have_unique_names() -> None:
    a, b, c = (Tool(name) for name in "abc")
    again = Tool("a", "again")
    assert merge_tools([a, b], [c, again]) == (again, b, c)


def test_an_adapter_is_an_engine_and_an_engine_is_itself() -> None:
    fake, engine = Fake("Hi"), Engine(retry=RetryPolicy())
    assert as_engine(fake).adapter is fake
    assert as_engine(engine) is engine
    assert as_engine(None).adapter is None


def test_a_name_is_a_provider_and_a_model() -> None:
    engine = Engine.from_model("openai:gpt-5")
    assert (type(engine.adapter).__name__, engine.model) == ("OpenAIChat", "gpt-5")
    assert Engine.from_model("openai").model is None
    assert Engine.from_model("openai:ft:mine").model == "ft:mine"


def test_an_unknown_provider_names_those_there_are() -> None:
    with pytest.raises(EngineError) as caught:
        Engine.from_model("nobody:m")
    assert (caught.value.reason, caught.value.provider) == ("unknown_provider", "nobody")
    assert "local" in caught.value.message
    assert "openai" in caught.value.message


def test_closing_reaches_the_adapter_where_it_has_something_to_close() -> None:
    closed: list[int] = []

    class Closing:
        async def aclose(self) -> None:
            closed.append(1)

    asyncio.run(aclose(Engine(Closing())))
    asyncio.run(aclose(Closing()))
    asyncio.run(aclose(Fake("Hi")))
    assert closed == [1, 1]


def _one(source: Any) -> Any:
    return source


def _two(source: Any) -> Any:
    return source

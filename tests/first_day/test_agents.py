"""First-time mistakes with agents, budgets and functions that prepare requests: the error says what to write."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import Budget, Engine, EngineError, Fake, ValidationError, compact_thread, trim_thread

engine = Engine(Fake("Roses are red."))


@pytest.mark.parametrize("entry", [engine, engine.as_tool])
def test_an_engine_among_the_tools_becomes_an_agent_by_as_tool(entry: Any) -> None:
    remedy = 'make an agent with engine.as_tool(name="...", description="...")'
    with pytest.raises(ValidationError) as caught:
        rxllm.chat(Fake("Hi"), "Hi", tools=[entry])
    assert remedy in caught.value.message
    with pytest.raises(EngineError) as caught_by_engine:
        Engine(Fake("Hi"), tools=[entry])
    assert remedy in caught_by_engine.value.message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: engine.as_tool(), "as_tool: missing a required argument: 'name'; write engine.as_tool(name="),  # type: ignore[call-arg]
        (lambda: engine.as_tool("poet"), "as_tool: too many positional arguments, got 'poet'; write engine.as_tool("),  # type: ignore[call-arg,misc]
        (lambda: trim_thread(8000), "trim_thread: too many positional arguments, got 8000; write trim_thread(tokens="),  # type: ignore[call-arg,misc]
        (lambda: trim_thread(), "trim_thread: missing a required argument: 'tokens'; write trim_thread(tokens=8000)"),  # type: ignore[call-arg]
        (lambda: compact_thread(engine), "compact_thread: missing a required argument: 'at'; write compact_thread("),  # type: ignore[call-arg]
    ],
)
def test_arguments_that_do_not_fit_get_an_example(call: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).replace("keyword-only ", "").startswith(message)  # as Python 3.12 adds


def test_an_error_inside_the_function_keeps_its_words() -> None:
    with pytest.raises(EngineError, match="did you mean 'max_turns'"):
        engine.as_tool(name="poet", max_turn=3)  # type: ignore[call-arg]


def test_a_function_that_makes_one_to_prepare_is_not_one_to_prepare() -> None:
    wrong = r"prepare\[0\] must be a function that takes a request, not <function trim_thread"
    with pytest.raises(EngineError, match=wrong):
        Engine(Fake("Hi"), prepare=[trim_thread])


def test_a_budget_is_an_operator() -> None:
    with pytest.raises(EngineError, match=r"as an operator: operators=\[rxllm.operators.budget\(Budget\(tokens=3"):
        Engine(Fake("Hi"), budget=Budget(tokens=3))  # type: ignore[call-arg]
    with pytest.raises(EngineError, match=r"operators=\[rxllm.operators.budget\(tokens=1000\)\]\), or pass a rxllm"):
        rxllm.chat(Fake("Hi"), "Hi", budget=Budget(tokens=3))  # type: ignore[call-arg]


def test_a_budget_of_dollars_is_usd() -> None:
    with pytest.raises(EngineError, match=r"Budget has no option 'dollars'; write usd=\.\.\."):
        Budget(dollars=3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="tokens is required if usd is None"):
        Budget()

"""What a call costs, with a price of your own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rxllm import Engine, Fake, ToolCall, Usage, ValidationError, chat, generate
from rxllm import operators as ops


def test_a_price_returns_the_usage_with_its_costs() -> None:
    price = ops.cost(price=lambda usage: replace(usage, total_cost=usage.total * 0.001))
    usage = generate(Engine(Fake(["Hi", Usage(10, 5)]), operators=[price]), "Hello").run().usage
    assert usage.total_cost == pytest.approx(0.015)


@pytest.mark.parametrize("returned", [3.5, None, {"total_cost": 1.0}])
def test_a_price_that_returns_something_else_is_told_what_to_return(returned: Any) -> None:
    engine = Engine(Fake(["Hi", Usage(10, 5)]), operators=[ops.cost(price=lambda usage: returned)])
    with pytest.raises(ValidationError) as caught:
        generate(engine, "Hello").run().raise_for_error()
    assert caught.value.reason == "invalid_option"
    assert f"price must return a Usage, not {returned!r}; write lambda usage: dataclasses.replace(" in str(caught.value)


PRICE = ops.cost(price=lambda usage: replace(usage, total_cost=usage.total * 0.001))


def test_a_budget_in_dollars_halts_the_chat_and_leaves_a_response_that_ends() -> None:
    def search(what: str) -> str:
        return "nothing"

    model = Fake(["Let me look.", ToolCall("c0", "search", {"what": "x"}), Usage(100, 50)], "Found.")
    engine = Engine(model, operators=[PRICE, ops.budget(usd=0.16)])
    result = chat(engine, "Search!", tools=[search], max_tokens=10).run()
    assert (result.halted_reason, len(result.steps), result.output_text) == ("budget", 1, "Let me look.")

    whole = Engine(Fake(["Hi", Usage(100, 50)]), operators=[PRICE, ops.budget(usd=0.1)])
    response = generate(whole, "Hello", max_tokens=10).run()
    assert (response.output_text, response.finish_reason) == ("Hi", "stop")

"""What rxllm itself changes in a conversation costs no thought, or says what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import rxllm
from tests.adapters.anthropic.binding import BindingServer, say, think, use
from tests.adapters.anthropic.test_refused_thoughts import engine, sent_thoughts

pytestmark = pytest.mark.sockets


@rxllm.tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


def test_a_structured_answer_after_tools_keeps_every_thought():
    @dataclass
    class Sum:
        value: int

    turns = [think("one"), use("c1", x=1, y=2)], [think("two"), say("It is 3.")], [think("three"), say('{"value": 3}')]
    with BindingServer(*turns) as server:
        options = {"tools": [add], "response_format": Sum, "structured_finalize": True}
        result = rxllm.chat(engine(server), "What is 1 + 2?", **options).run()
    assert (server.refuses, result.output_text, len(server.requests)) == ([], '{"value": 3}', 3)
    assert [sent_thoughts(body) for body in server.bodies] == [[], ["one"], ["one", "two"]]
    assert server.bodies[-1]["tool_choice"] == {"type": "none"}


def test_a_forbidden_call_keeps_every_thought_too():
    turns = [think("one"), say("It is 3.")], [think("two"), use("c1", x=1, y=2)], [think("three"), say("{}")]
    with BindingServer(*turns) as server:
        form = rxllm.json_schema("sum", {"type": "object"})
        rxllm.chat(engine(server), "1 + 2?", tools=[add], response_format=form, structured_finalize=True).run()
    assert (server.refuses, sent_thoughts(server.bodies[-1])) == ([], ["one", "two"])

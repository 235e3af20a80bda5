from __future__ import annotations

from rxllm import operators as ops
from rxllm.events import ToolCallCompleted, ToolCallDelta, ToolCallStarted
from rxllm.testing.marbles import check
from rxllm.values import ToolCall


def test_finished_calls_come_at_their_completion() -> None:
    check(
        ops.tool_calls(),
        "-s-d-c-|",
        "^------!",
        "-----C-|",
        s=ToolCallStarted("c1", "add"),
        d=ToolCallDelta("c1", '{"a":1}'),
        c=ToolCallCompleted("c1", "add", {"a": 1}, '{"a":1}'),
        C=ToolCall("c1", "add", {"a": 1}, '{"a":1}'),
    )


def test_the_providers_own_and_unfinished_calls_are_nobodys_to_answer() -> None:
    check(
        ops.tool_calls(),
        "-s-i-b-|",
        "^------!",
        "-----B-|",
        s=ToolCallCompleted("c1", "search", {}, "{}", {"server": True}),
        i=ToolCallCompleted("c2", "add", {}, '{"a', {"error": "incomplete"}),
        b=ToolCallCompleted("c3", "add", {}, "[]", {"error": "not_an_object"}),
        B=ToolCall("c3", "add", {}, "[]", {"error": "not_an_object"}),
    )

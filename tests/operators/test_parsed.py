from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, Literal, Never, NewType

import pydantic
import pytest

from rxllm import Fake, ToolCall, Usage, ValidationError, json_schema, stream, stream_generate, tool
from rxllm import operators as ops
from rxllm.events import ErrorEvent, TextDelta
from rxllm.testing import assert_operator, events
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check
from rxllm.values import StreamError
from tests.operators.scripts import said, through


@dataclass
class City:
    name: str
    people: int = 0


class Town(pydantic.BaseModel):
    name: str


class Other:
    """What no JSON is read as."""


def test_the_value_comes_at_the_end() -> None:
    check(
        ops.parsed(City),
        "-a-b-|",
        "^----!",
        "-----(1|)",
        **{"a": TextDelta('{"name": "Li'), "b": TextDelta('ma", "people": 3}'), "1": City("Lima", 3)},
    )


def test_it_keeps_the_rules_of_operators() -> None:
    assert_operator(lambda: ops.parsed(list[int]), events=said(["[1", ", 2]"]))


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (City, '```json\n{"name": "Lima"}\n```', City("Lima")),
        (Town, '{"name": "Ulm"}', Town(name="Ulm")),
        (list[Town], '[{"name": "Ulm"}]', [Town(name="Ulm")]),
        (dict[str, Town | None], '{"a": {"name": "Ulm"}, "b": null}', {"a": Town(name="Ulm"), "b": None}),
        (pydantic.TypeAdapter(list[Town]).validate_json, '[{"name": "Ulm"}]', [Town(name="Ulm")]),
        (partial(int, base=16), "ff", 255),
        (list[City], '```\n[{"name": "Lima"}]\n```', [City("Lima")]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (int | str, '"a"', "a"),
        (bool, "false", False),
        (Any, "[null]", [None]),
        (json_schema("n", {"type": "array"}), "[1]", [1]),
        ({"type": "json_object"}, '{"a": 1}', {"a": 1}),
        (lambda text: text.upper(), "hi", "HI"),
        (str.upper, "hi", "HI"),
        (len, "hi", 2),
        (methodcaller("upper"), "hi", "HI"),
        (NewType("Metres", int), "3", 3),
        (Literal["a"], '"a"', "a"),
    ],
)
def test_what_it_may_be(wanted: Any, text: str, value: Any) -> None:
    assert through(ops.parsed(wanted), said([text])) == [value]


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (City, '{"name": 1}'),
        (Town, "{}"),
        (list[Town], "[{}]"),
        (list[Other], "[{}]"),
        (list[int], "[1"),
        (int, "many"),
        (bool, "0"),
        (int, ""),
    ],
)
def test_what_does_not_fit_keeps_the_text(wanted: Any, text: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        through(ops.parsed(wanted), events(text, usage=Usage(3, 1)))
    assert refusal.value.reason == "invalid_output"
    assert refusal.value.metadata == {"text": text, "finish_reason": "stop", "usage": Usage(3, 1)}


def test_an_exception_of_the_function_says_so() -> None:
    with pytest.raises(ValidationError, match="ZeroDivisionError") as refusal:
        through(ops.parsed(lambda text: 1 / 0), said(["[1]"]))
    assert refusal.value.metadata["text"] == "[1]"


def test_a_response_that_asks_for_tools_is_no_answer() -> None:
    with pytest.raises(ValidationError, match="calls tools instead") as refusal:
        through(ops.parsed(int), events("42", ToolCall("c1", "add", {})))
    assert refusal.value.metadata["text"] == "42"


def test_a_stream_that_failed_ends_with_its_error() -> None:
    error = StreamError("truncated")
    check(ops.parsed(int), "-a-e-|", "^----!", "-----X", a=TextDelta("4"), e=ErrorEvent(error), X=error)


def test_of_a_chat_it_is_the_final_answer() -> None:
    add = tool(name="add", handler=lambda arguments: 42)
    fake = Fake(["Let me see", ToolCall("c1", "add", {})], ["4", "2"])
    assert played(stream(fake, "Hi", tools=[add]).pipe(ops.parsed(int))) == [42]
    stopped = Fake(["Let me see", ToolCall("c1", "add", {})])
    with pytest.raises(ValidationError, match="calls tools instead"):
        played(stream(stopped, "Hi", tools=[add], max_turns=1).pipe(ops.parsed(int)))


def test_it_runs_on_a_stream() -> None:
    assert stream_generate(Fake('{"name": "Lima"}'), "Where?").pipe(ops.parsed(City)).run() == City("Lima")


@pytest.mark.parametrize("wanted", ["text", "json", {"type": "text"}, 3, [int], Never])
def test_a_type_that_is_none_is_refused(wanted: Any) -> None:
    with pytest.raises(ValidationError, match="type") as refusal:
        ops.parsed(wanted)
    assert refusal.value.reason == "invalid_option"

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import Fake, ToolCall, ValidationError, stream, tool
from rxllm import operators as ops
from rxllm.events import ErrorEvent, StepRestarted, TextDelta
from rxllm.testing import assert_operator
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check
from rxllm.values import StreamError, TextAt
from tests.operators.scripts import pieces, said, through
from tests.operators.test_partials import json_values

VALUES: dict[str, Any] = {
    "a": TextDelta('{"items": [{"name": "Li'),
    "b": TextDelta('ma"}, {"name": "Os'),
    "c": TextDelta('lo"}]}'),
    "1": TextAt(("items", 0, "name"), "Li"),
    "2": TextAt(("items", 0, "name"), "ma"),
    "3": TextAt(("items", 1, "name"), "Os"),
    "4": TextAt(("items", 1, "name"), "lo"),
}


def texts(path: tuple[str | int, ...], *deltas: str) -> list[tuple[tuple[str | int, ...], str]]:
    return [(piece.path, piece.text) for piece in through(ops.text_at(*path), said(deltas))]


def test_pieces_come_as_they_arrive_each_with_its_path() -> None:
    check(ops.text_at("items", "*", "name"), "-a---b---c-|", "^----------!", "-1---(23)4-|", **VALUES)


def test_a_dispose_ends_it() -> None:
    check(ops.text_at("items", "*", "name"), "-a--b--c-|", "^--!", "-1--", **VALUES)


def test_a_streamed_error_is_raised() -> None:
    error = StreamError("truncated")
    check(ops.text_at("items", 0, "name"), "-a-e|", "^--!", "-1-X", **VALUES | {"e": ErrorEvent(error), "X": error})


def test_it_keeps_the_rules_of_operators() -> None:
    assert_operator(lambda: ops.text_at("a"), events=said(['{"a": "b', "c", '"}']))


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("a",), [(("a",), "x")]),
        (("*",), [(("a",), "x"), (("*",), "!")]),
        (("b", 1), [(("b", 1), "z")]),
        (("b", "*"), [(("b", 0), "y"), (("b", 1), "z")]),
        (("b", -1), []),
        (("b", "1"), []),
        (("*", "*"), [(("b", 0), "y"), (("b", 1), "z"), (("c", "a"), "deep")]),
        (("*", "a"), [(("c", "a"), "deep")]),
        (("c", "a", "a"), []),
        (("n",), []),
        ((), []),
    ],
)
def test_a_path_is_keys_and_indexes_and_a_star_is_any(path: tuple[str | int, ...], found: list[Any]) -> None:
    assert texts(path, '{"a": "x", "b": ["y", "z"], "c": {"a": "deep"}, "n": 1, "e": "", "*": "!"}') == found


def test_without_a_path_it_is_the_string_at_the_top() -> None:
    assert texts((), '"a', 'b"') == [((), "a"), ((), "b")]


def test_pieces_are_without_escapes_wherever_those_are_cut() -> None:
    text = json.dumps({"a": 'é"\\\n😀/'})
    whole = "".join(piece for _, piece in texts(("a",), *text))
    assert whole == 'é"\\\n😀/'
    assert [piece for _, piece in texts(("a",), *text)] == ["é", '"', "\\", "\n", "😀", "/"]


def test_a_fence_is_no_part_of_it() -> None:
    assert texts(("a",), "``", '`json\n{"a": "b', '"}\n```') == [(("a",), "b")]


@pytest.mark.parametrize("text", ["Hello", '{"a": "b', "[1] x", '{"a": "\\x"}'])
def test_text_that_is_no_json_is_an_error_at_the_end_which_keeps_it(text: str) -> None:
    with pytest.raises(ValidationError, match="not JSON") as refusal:
        texts(("a",), *text)
    assert refusal.value.reason == "invalid_output"
    assert refusal.value.metadata == {"text": text}


def test_a_restart_begins_anew() -> None:
    events = [TextDelta('{"a": "b'), StepRestarted("again", 2), TextDelta('{"a": "'), TextDelta('c"}')]
    assert [piece.text for piece in through(ops.text_at("a"), events)] == ["b", "c"]


def test_each_message_of_a_chat_begins_anew_and_what_goes_with_calls_is_not_read() -> None:
    look = tool(name="look", handler=lambda arguments: "42")
    fake = Fake(["[not JSON", ToolCall("c1", "look", {})], ['["4', '2"]'])
    seen = played(stream(fake, "Hi", tools=[look]).pipe(ops.text_at(0)))
    assert seen == [TextAt((0,), "4"), TextAt((0,), "2")]


@pytest.mark.parametrize("wrong", [None, 1.5, True, ["a"], b"a"])
def test_a_path_of_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="keys and indexes") as refusal:
        ops.text_at("a", wrong)
    assert refusal.value.reason == "invalid_option"


@given(json_values, st.booleans(), st.sampled_from([None, 1]), st.data())
def test_the_pieces_join_to_the_strings_however_they_were_cut(
    value: Any, ascii: bool, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    depth = data.draw(st.integers(0, 3))
    joined: dict[tuple[str | int, ...], str] = {}
    for path, piece in texts(("*",) * depth, *data.draw(pieces(text))):
        joined[path] = joined.get(path, "") + piece
    assert list(joined.items()) == [item for item in strings(json.loads(text), ()) if len(item[0]) == depth]


def strings(value: Any, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], str]]:
    """The strings in `value` that are not empty, with their paths."""
    if isinstance(value, str):
        return [(path, value)] if value else []
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict | list):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))  # pyright: ignore
    return [found for key, item in items for found in strings(item, (*path, key))]

"""Parts of a JSON answer while it arrives: the items of an array, the text of a string."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable

from rxllm import Fake, ToolCall, ValidationError, stream, tool
from rxllm import operators as ops
from rxllm.events import ErrorEvent, StepRestarted, TextDelta
from rxllm.operators._json_scanner import ArraySplitter
from rxllm.testing import assert_operator
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check
from rxllm.values import StreamError, TextAt
from tests.operators.scripts import pieces, said, through
from tests.operators.support import json_values

# items


@dataclass
class City:
    name: str


class Town(pydantic.BaseModel):
    name: str


VALUES: dict[str, Any] = {
    "a": TextDelta('{"cities": [{"name": "Li'),
    "b": TextDelta('ma"}, {"na'),
    "c": TextDelta('me": "Oslo"}]'),
    "d": TextDelta(', "more": false}'),
    "1": City("Lima"),
    "2": City("Oslo"),
}


def items(text: str, *path: str, wanted: Any = None) -> list[Any]:
    return through(ops.items(wanted, *path), said(text))


def test_an_element_comes_when_it_is_complete() -> None:
    check(ops.items(City, "cities"), "-a-b-c-d-|", "^--------!", "---1-2---|", **VALUES)


def test_a_dispose_ends_it() -> None:
    check(ops.items(City, "cities"), "-a-b-c-d-|", "^---!", "---1", **VALUES)


def test_take_releases_the_source() -> None:
    check(lambda source: source.pipe(ops.items(City, "cities")).take(1), "-a-b-c-|", "^--!", "---(1|)", **VALUES)


def test_a_streamed_error_is_raised() -> None:
    error = StreamError("truncated")
    check(ops.items(City, "cities"), "-a-b-e-|", "^----!", "---1-X", **VALUES | {"e": ErrorEvent(error), "X": error})


def test_it_keeps_the_rules_of_operators() -> None:
    assert_operator(lambda: ops.items(int), events=said(["[1", ", 2", "3, 4]"]))


def test_scalars_come_with_what_follows_them_and_strings_at_once() -> None:
    events = [TextDelta(piece) for piece in ("[1", "2", ', "a', '"', ", tr", "ue", "]")]
    check(
        ops.items(),
        "abcdefg|",
        "^------!",
        "--12--3|",
        **dict(zip("abcdefg", events, strict=True)) | {"1": 12, "2": "a", "3": True},
    )


def test_where_the_array_may_be() -> None:
    assert items("[]") == items('{"a": []}', "a") == []
    assert items('{"x": {"a": [1]}, "a": {"b": [2], "c": 3}, "b": [4]}', "a", "b") == [2]
    assert items('{"a": "b", "b": ["a", ["b"], {"b": [1]}]}', "b") == ["a", ["b"], {"b": [1]}]
    assert items('{"\\u0061\\"": [1]}', 'a"') == [1]
    assert items("\n```json\n[1, 2]\n```") == items(" " * 100 + "[1, 2]") == [1, 2]


@pytest.mark.parametrize("text", ["[1, 2", "Hello [1]", "[1 2]", "[1,,2]", "[1]]", '{"a": 1}', '"[1]"', "[1}"])
def test_what_has_no_array_ends_with_an_error_that_keeps_the_text(text: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        items(text)
    assert refusal.value.reason == "invalid_output"
    assert refusal.value.metadata["text"] in text


@pytest.mark.parametrize("text", ['{"b": [1]}', '{"a": {"b": [1]}}', '[{"a": [1]}]', '{"a": 1}'])
def test_an_array_elsewhere_is_none(text: str) -> None:
    with pytest.raises(ValidationError, match="no array at a") as refusal:
        items(text, "a")
    assert refusal.value.metadata == {"text": text}


def test_an_element_may_be_a_model_of_pydantic_s() -> None:
    said_so = said(['[{"name": "Ulm"}, ', "null]"])
    assert through(ops.items(Town | None), said_so) == [Town(name="Ulm"), None]
    with pytest.raises(ValidationError, match=r"element 1: .*Town") as refusal:
        through(ops.items(Town), said_so)
    assert refusal.value.metadata["index"] == 1


def test_an_element_that_does_not_fit_is_named() -> None:
    told: list[Any] = []
    errors: list[Any] = []
    from_iterable(said(["[1, ", '"two", 3]'])).pipe(ops.items(int)).subscribe(told.append, errors.append)
    assert told == [1]
    assert errors[0].reason == "invalid_output"
    assert errors[0].metadata == {"text": '"two"', "index": 1}
    assert "element 1" in errors[0].message


def test_an_element_that_a_function_refuses_is_named() -> None:
    with pytest.raises(ValidationError, match="element 0 cannot be parsed: ZeroDivisionError"):
        items("[1]", wanted=lambda text: 1 / 0)


def test_nothing_said_is_nothing() -> None:
    assert items("") == items("  \n") == []


def test_each_message_begins_anew_and_what_goes_with_calls_is_not_read() -> None:
    look = tool(name="look", handler=lambda arguments: "42")
    fake = Fake(["Well, [or] ", ToolCall("c1", "look", {})], ["[4", "2]"])
    assert played(stream(fake, "Hi", tools=[look]).pipe(ops.items(int))) == [42]
    events = [TextDelta("[1, 2"), StepRestarted("again", 2), TextDelta("[3]")]
    assert through(ops.items(int), events) == [1, 3]


@given(st.lists(json_values, max_size=5), st.sampled_from([(), ("a",), ("a", "b"), ('"\\',)]), st.booleans(), st.data())
def test_the_elements_are_the_array_however_it_was_cut(
    elements: list[Any], path: tuple[str, ...], ascii: bool, data: st.DataObject
) -> None:
    document: Any = elements
    for key in reversed(path):
        document = {"x": ["a", {"a": [1]}], "y": "a", key: document, "z": {"a": [2], "b": [3]}}
    text = json.dumps(document, ensure_ascii=ascii, indent=data.draw(st.sampled_from([None, 1])))
    assert through(ops.items(None, *path), said(data.draw(pieces(text)))) == elements


@given(st.text(alphabet='[]{},:"\\ab1 ', max_size=30), st.data())
def test_any_text_at_all_is_cut_the_same(text: str, data: st.DataObject) -> None:
    whole, cut = ArraySplitter(("a",)), ArraySplitter(("a",))
    told = [element for piece in data.draw(pieces(text)) for element in cut.feed(piece)]
    assert told == list(whole.feed(text))
    assert cut.found == whole.found


@pytest.mark.parametrize("bad", [({"type": "text"},), (3,), (int, 1), (int, "a", None)])
def test_invalid_arguments_are_refused(bad: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError, match=r"type|path") as refusal:
        ops.items(*bad)
    assert refusal.value.reason == "invalid_option"


def test_a_key_in_the_place_of_the_type_is_told_where_it_goes() -> None:
    given: Any = "tags"
    with pytest.raises(ValidationError, match=r"items\(None, 'tags'\)"):
        ops.items(given)


# text_at


TEXT_AT_VALUES: dict[str, Any] = {
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
    check(ops.text_at("items", "*", "name"), "-a---b---c-|", "^----------!", "-1---(23)4-|", **TEXT_AT_VALUES)


def test_a_dispose_ends_it_of_text_at() -> None:
    check(ops.text_at("items", "*", "name"), "-a--b--c-|", "^--!", "-1--", **TEXT_AT_VALUES)


def test_a_streamed_error_is_raised_of_text_at() -> None:
    error = StreamError("truncated")
    check(
        ops.text_at("items", 0, "name"),
        "-a-e|",
        "^--!",
        "-1-X",
        **TEXT_AT_VALUES | {"e": ErrorEvent(error), "X": error},
    )


def test_it_keeps_the_rules_of_operators_of_text_at() -> None:
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

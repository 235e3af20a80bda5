from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

import jiter
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import EngineError, Fake, ToolCall, ValidationError, stream, tool
from rxllm import operators as ops
from rxllm.events import ErrorEvent, MessageStarted, StepRestarted, TextDelta, ToolCallStarted
from rxllm.testing import assert_operator, events
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check
from rxllm.values import Message, StreamError
from tests.operators.scripts import pieces, said, through

VALUES: dict[str, Any] = {
    "a": TextDelta('{"name": "Li'),
    "b": TextDelta('ma", "n": 1'),
    "c": TextDelta("2}"),
    "1": {"name": "Li"},
    "2": {"name": "Lima", "n": 1},
    "3": {"name": "Lima", "n": 12},
}

texts = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def values(*deltas: str) -> list[Any]:
    return through(ops.partial_json(), said(deltas))


def test_the_value_grows_with_the_text() -> None:
    check(ops.partial_json(), "-a-b-c-|", "^------!", "-1-2-3-|", **VALUES)


def test_a_dispose_ends_it() -> None:
    check(ops.partial_json(), "-a-b-c-|", "^---!", "-1-2", **VALUES)


def test_a_streamed_error_is_raised() -> None:
    error = StreamError("truncated")
    check(ops.partial_json(), "-a-e|", "^--!", "-1-X", **VALUES | {"e": ErrorEvent(error), "X": error})


def test_it_keeps_the_rules_of_operators() -> None:
    assert_operator(ops.partial_json, events=said(['{"a": [1', ", 2], ", '"b": "c"}']))


def test_nothing_comes_before_there_is_a_value() -> None:
    assert values(" ", "\n", "t", "r", "ue") == [True]
    assert values() == values(" ") == []


def test_a_value_that_did_not_change_does_not_come_again() -> None:
    assert values("[", "1", " ", ",", " ", "2", "]") == [[], [1], [1, 2]]


def test_a_fence_is_no_part_of_it() -> None:
    assert values("``", "`js", "on\n[1", "]\n``", "`") == [[1]]
    assert values("```", '\n{"a": "```"}', "\n```\n") == [{"a": "```"}]


@pytest.mark.parametrize("text", ["Hello", "[1, 2", '{"a": "b', "[1] and so on", "[NaN]", "[1]]", '"\ud83d"'])
def test_text_that_is_no_json_is_an_error_at_the_end_which_keeps_it(text: str) -> None:
    with pytest.raises(ValidationError, match="not JSON") as refusal:
        values(*text)
    assert refusal.value.reason == "invalid_output"
    assert refusal.value.metadata == {"text": text}


def test_a_restart_begins_anew() -> None:
    told = through(ops.partial_json(), [TextDelta("[1, "), StepRestarted("again", 2), TextDelta("[2"), TextDelta("]")])
    assert told == [[1], [2]]


def test_each_message_of_a_chat_begins_anew_and_what_goes_with_calls_is_not_read() -> None:
    look = tool(name="look", handler=lambda arguments: "42")
    fake = Fake(["[not JSON", ToolCall("c1", "look", {})], ["[4", "2]"])
    assert played(stream(fake, "Hi", tools=[look]).pipe(ops.partial_json())) == [[4], [42]]
    begun = [TextDelta("[1]"), MessageStarted(Message("assistant")), TextDelta("[2]")]
    assert through(ops.partial_json(), begun) == [[1], [2]]


def test_the_calls_of_the_provider_s_own_tools_change_nothing() -> None:
    searched = [ToolCallStarted("c1", "search", {"server": True}), TextDelta("[1]")]
    assert through(ops.partial_json(), searched) == [[1]]
    assert through(ops.partial_json(), events("no JSON", ToolCall("c1", "look", {}))) == []


@given(json_values, st.booleans(), st.sampled_from([None, 2]), st.data())
def test_the_last_value_is_the_whole_however_it_was_cut(
    value: Any, ascii: bool, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    told = values(*data.draw(pieces(text)))
    assert told[-1] == value
    assert all(_grows(before, after) for before, after in pairwise(told))


def _grows(before: Any, after: Any) -> bool:
    """Whether `after` goes on where `before` was; a number may become any other."""
    match before, after:
        case dict(), dict():
            return before.keys() <= after.keys() and all(_grows(before[key], after[key]) for key in before)
        case list(), list():
            return len(before) <= len(after) and all(map(_grows, before, after))
        case str(), str():
            return after.startswith(before)
        case _:
            return type(before) is type(after)


@pytest.mark.parametrize("size", [1_000, 32_000])
def test_the_cost_is_linear(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    read: list[int] = []

    from_json = jiter.from_json

    def counting(data: bytes, **options: Any) -> Any:
        read.append(len(data))
        return from_json(data, **options)

    monkeypatch.setattr(jiter, "from_json", counting)
    deltas = ['{"text": "', *["word "] * size, '"}']
    told = values(*deltas)
    assert told[-1] == {"text": "word " * size}
    assert len(told) - 1 <= len(read) < 800
    assert sum(read) < 70 * 5 * size


def test_at_first_every_delta_is_shown() -> None:
    assert len(values("[", *["1, "] * 15, "1]")) == 17


def test_without_jiter_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jiter", None)
    with pytest.raises(EngineError, match=r"rxllm\[json\]") as refusal:
        ops.partial_json()
    assert refusal.value.reason == "missing_dependency"


def test_what_it_gives_does_not_change_afterwards() -> None:
    told = values('{"a": [1, ', "2]", "}")
    assert [msgspec.json.encode(value) for value in told] == [b'{"a":[1]}', b'{"a":[1,2]}']

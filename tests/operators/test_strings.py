"""Operators of text take strings too, and give back strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reactivex
from reactivex import operators as rx

from rxllm import Fake, Stream, StreamError, TextDelta, stream_generate
from rxllm import operators as ops
from rxllm.testing import assert_operator

PIECES = ["My key is sk-", "12", "345, ok? Dr. No is ", "", "here. Ru", "n!"]

OPERATORS: dict[str, tuple[Callable[[], Any], str]] = {
    "words": (ops.words, "".join(PIECES)),
    "sentences": (ops.sentences, "".join(PIECES)),
    "smooth": (lambda: ops.smooth(0.01), "".join(PIECES)),
    "smooth(0)": (lambda: ops.smooth(0), "".join(PIECES)),
    "guard": (lambda: ops.guard(lambda text: None), "".join(PIECES)),
    "redact": (lambda: ops.redact(r"sk-\d+", "[key]"), "My key is [key], ok? Dr. No is here. Run!"),
}

every_operator = pytest.mark.parametrize("name", OPERATORS)


@every_operator
def test_strings_are_one_text_however_they_are_cut(name: str) -> None:
    make, expected = OPERATORS[name]
    for pieces in (PIECES, ["".join(PIECES)], list("".join(PIECES))):
        items = list(Stream.of(reactivex.from_iterable(pieces)).pipe(make()))
        assert all(type(item) is str for item in items)
        assert "".join(items) == expected


@every_operator
def test_they_come_as_the_deltas_of_events_do(name: str) -> None:
    make = OPERATORS[name][0]
    events = Stream.of(reactivex.from_iterable(map(TextDelta, PIECES))).pipe(make())
    deltas = events.pipe(rx.map(lambda item: item.delta if isinstance(item, TextDelta) else item))
    texts = Stream.of(reactivex.from_iterable(PIECES)).pipe(make())
    assert "".join(texts) == "".join(Stream.of(deltas))


@pytest.mark.parametrize("name", ["words", "sentences", "guard", "redact"])
def test_the_rules_of_operators_hold_for_strings(name: str) -> None:
    assert_operator(OPERATORS[name][0], events=["One. ", "Two, ", "three."])


def test_behind_text_they_hide_what_they_should() -> None:
    answer = stream_generate(Fake(["It is sk-", "123", "."]), "Hi")
    assert "".join(answer.pipe(ops.text(), ops.redact(r"sk-\d+", "[key]"))) == "It is [key]."


def test_a_guard_of_strings_fails_with_its_error() -> None:
    checked = Stream.of(reactivex.of("One. ", "A secret. ", "Two.")).pipe(ops.guard(lambda text: "secret" not in text))
    items: list[str] = []
    with pytest.raises(StreamError) as caught:
        items.extend(checked)
    assert caught.value.reason == "guard_tripped"


def test_strings_and_events_in_one_stream_are_refused() -> None:
    mixed: list[list[Any]] = [["a", TextDelta("b")], [TextDelta("a"), "b"]]
    for items in mixed:
        with pytest.raises(StreamError, match=r"redact\(\) takes (events|strings), not \w+: the stream began with"):
            list(Stream.of(reactivex.from_iterable(items)).pipe(ops.redact("x")))
    with pytest.raises(StreamError, match=r"redact\(\) takes events, not int"):
        list(Stream.of(reactivex.of(1)).pipe(ops.redact("x")))

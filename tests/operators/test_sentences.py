from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import operators as ops
from rxllm.events import ErrorEvent, TextCompleted, TextDelta
from rxllm.testing.marbles import check
from rxllm.values import StreamError
from tests.operators.scripts import TEXTS, pieces, recorded, said, texts, through


def sentences(*deltas: str) -> list[str]:
    return through(ops.sentences(), said(deltas))


def test_a_sentence_comes_when_the_next_one_begins() -> None:
    check(
        ops.sentences(),
        "-a-b-c-d-|",
        "^--------!",
        "-----1-2-|",
        a=TextDelta("Hi the"),
        b=TextDelta("re. "),
        c=TextDelta("How are you?"),
        d=TextCompleted("Hi there. How are you?"),
        **{"1": "Hi there. ", "2": "How are you?"},
    )


def test_what_is_left_comes_when_the_stream_ends_without_a_completion() -> None:
    check(ops.sentences(), "-a-|", "^--!", "---(1|)", **{"a": TextDelta("Hi. "), "1": "Hi. "})


def test_a_dispose_ends_it() -> None:
    check(ops.sentences(), "-a-b-|", "^--!", "----", a=TextDelta("Hi. "), b=TextDelta("Oh."))


def test_a_streamed_error_is_raised_without_the_sentence_it_cut_off() -> None:
    error = StreamError("truncated")
    values = {"a": TextDelta("Hi. Oh"), "e": ErrorEvent(error), "1": "Hi. ", "X": error}
    check(ops.sentences(), "-a-e|", "^--!", "-1-X", **values)


@pytest.mark.parametrize(
    "expected",
    [
        ["Hello. ", "How are you? ", "Fine! ", "So…  ", "Good."],
        ["It is 3.14, or v2.0.1. ", "See example.com now."],
        ["Dr. Jones and Mrs. King met J. S. Bach, e.g. in the U.S. army. ", "Then I. ", "Or so."],
        ['"Really?" she said. ', '"Yes." ', "He left. ", "(So it was.) ", "**Done.** ", "End"],
        ["Wait... what? ", "No!? ", "Yes."],
        ["1. First item\n", "2. Second one. ", "It is long.\n\n", "- a bullet\n", "# Title\n", "the text"],
        ["你好。", "他说\uff1a“走吧\uff01”", "真的吗\uff1f\uff01", "是。 ", "好"],
        ["これは「はい。」", "です。", "本当\uff1f", "うん"],
        ["كيف حالك؟ ", "أنا بخير. ", "شكرا\u06d4 ", "نعم"],
        ["नमस्ते। ", "ठीक है॥ ", "अच्छा"],
        ["  \n Hello. ", "You"],
        ["no capital. but a dot goes on"],
    ],
)
def test_where_sentences_end(expected: list[str]) -> None:
    assert sentences("".join(expected)) == expected
    assert sentences(*"".join(expected)) == expected


def test_a_number_after_a_gap_is_not_an_item_s() -> None:
    assert sentences("foo", " " * 60 + "12. ", "The") == ["foo" + " " * 60 + "12. ", "The"]


@given(st.data(), texts())
def test_the_sentences_are_the_text_however_it_was_cut(data: st.DataObject, text: str) -> None:
    told = sentences(*data.draw(pieces(text)))
    assert "".join(told) == text
    assert told == sentences(text)


def test_recorded_texts_character_by_character() -> None:
    for text in (*TEXTS, *recorded()):
        told = sentences(*text)
        assert "".join(told) == text
        assert told == sentences(text)

"""Text in words and in sentences."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxllm import operators as ops
from rxllm.events import ErrorEvent, StepRestarted, TextCompleted, TextDelta, ThinkingDelta, ToolCallDelta
from rxllm.operators._words_and_sentences import split_words
from rxllm.testing.marbles import check
from rxllm.values import StreamError
from tests.operators.scripts import TEXTS, pieces, recorded, said, texts, through

# words


def words(*deltas: str) -> list[str]:
    return through(ops.words(), said(deltas))


def test_a_word_comes_when_the_next_one_begins() -> None:
    check(
        ops.words(),
        "-a-b-t-c-d-e|",
        "^-----------!",
        "---1-----2-3|",
        a=TextDelta("Hel"),
        b=TextDelta("lo w"),
        t=ThinkingDelta("hm"),
        c=TextDelta("orld"),
        d=TextDelta("  again"),
        e=TextCompleted("Hello world  again"),
        **{"1": "Hello ", "2": "world  ", "3": "again"},
    )


def test_what_is_left_comes_when_the_stream_ends_without_a_completion() -> None:
    check(
        ops.words(),
        "-a-b-|",
        "^----!",
        "---1-(2|)",
        a=TextDelta("Hi"),
        b=TextDelta(" you"),
        **{"1": "Hi ", "2": "you"},
    )


@pytest.mark.timeout(600)
@pytest.mark.judges
@given(st.data(), st.sampled_from([ops.words, ops.sentences]))
@settings(max_examples=20)
def test_an_endless_word_is_cut_at_the_same_places_however_it_comes(data: Any, make: Any) -> None:
    unit = data.draw(st.sampled_from(["x", " ", "é", "\n"]))
    text = "Hi, " + unit * 25_000 + " you. And"
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    deltas = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    segments = through(make(), said(deltas))
    assert "".join(segments) == text
    assert max(map(len, segments)) <= 10_000
    assert segments == through(make(), said([text]))


def test_blocks_are_not_run_together() -> None:
    told = through(ops.words(), [TextDelta("Hi"), TextCompleted("Hi"), TextDelta("you"), TextCompleted("you")])
    assert told == ["Hi", "you"]


def test_a_dispose_ends_it() -> None:
    check(
        ops.words(),
        "-a-b-c-|",
        "^---!",
        "---1",
        a=TextDelta("a "),
        b=TextDelta("b "),
        c=TextDelta("c "),
        **{"1": "a "},
    )


def test_a_streamed_error_is_raised_without_the_word_it_cut_off() -> None:
    error = StreamError("truncated")
    check(
        ops.words(),
        "-a-e|",
        "^--!",
        "-1-X",
        **{"a": TextDelta("Hi wor"), "e": ErrorEvent(error), "1": "Hi ", "X": error},
    )


def test_an_error_of_the_source_passes_without_the_word_it_cut_off() -> None:
    error = ValueError("no")
    check(ops.words(), "-a-X", "^--!", "-1-X", **{"a": TextDelta("Hi wor"), "1": "Hi ", "X": error})


def test_what_a_restart_makes_void_does_not_come() -> None:
    events = [TextDelta("Hi wor"), StepRestarted("again", 2), TextDelta("Hi you"), TextCompleted("Hi you")]
    assert through(ops.words(), events) == ["Hi ", "you"]


def test_only_text_is_cut() -> None:
    assert through(ops.words(), [ToolCallDelta("c", "{} "), ThinkingDelta("a b c")]) == []


def test_white_space_belongs_to_the_word_before() -> None:
    assert words("  Hello \n\n wide\tworld ") == ["  Hello \n\n ", "wide\t", "world "]
    assert words("  \n ") == ["  \n "]
    assert words() == words("") == []


def test_a_script_without_spaces_is_cut_into_characters() -> None:
    assert words("我是GPT\uff0c你好。") == ["我", "是", "GPT\uff0c", "你", "好。"]
    assert words("カタカナ") == ["カ", "タ", "カ", "ナ"]
    assert words("ขอบคุณ") == ["ข", "อ", "บ", "คุ", "ณ"]


def test_a_character_is_never_cut() -> None:
    assert words("か\u3099が゚ 漢\U000e0100字") == ["か\u3099", "が゚ ", "漢\U000e0100", "字"]
    assert words("👩‍👩‍👧👍🏽 🇩🇪🇫🇷") == ["👩‍👩‍👧👍🏽 ", "🇩🇪🇫🇷"]


def test_letters_that_stand_on_one_another_are_not_cut() -> None:
    assert words("\u1780\u17d2\u1780\u1780") == ["\u1780\u17d2\u1780", "\u1780"]
    assert words("\u0e01\u0e33\u0e01") == ["\u0e01\u0e33", "\u0e01"]


def test_quotes_and_brackets_stay_with_what_they_hold() -> None:
    assert words("他说「走吧」。") == ["他", "说", "「走", "吧」。"]


@given(st.data(), texts())
def test_the_words_are_the_text_however_it_was_cut(data: st.DataObject, text: str) -> None:
    told = words(*data.draw(pieces(text)))
    assert "".join(told) == text
    assert told == words(text)


@given(st.text(alphabet="ab.\n\t -") | texts())
def test_a_text_that_is_whole_is_cut_the_same(text: str) -> None:
    assert split_words(text) == words(text)


def test_recorded_texts_character_by_character() -> None:
    for text in (*TEXTS, *recorded()):
        told = words(*text)
        assert "".join(told) == text
        assert told == words(text)


# sentences


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


def test_what_is_left_comes_when_the_stream_ends_without_a_completion_of_sentences() -> None:
    check(ops.sentences(), "-a-|", "^--!", "---(1|)", **{"a": TextDelta("Hi. "), "1": "Hi. "})


def test_a_dispose_ends_it_of_sentences() -> None:
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


def test_recorded_texts_character_by_character_of_sentences() -> None:
    for text in (*TEXTS, *recorded()):
        told = sentences(*text)
        assert "".join(told) == text
        assert told == sentences(text)

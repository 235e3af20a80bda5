from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from rxllm import EngineError, Fake, StreamCollector, ToolCall, ValidationError, stream, tool
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallDelta,
)
from rxllm.operators._redact import Redactor
from rxllm.testing import assert_operator, events, strategies
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check
from rxllm.values import Message, SourcePart, StreamError, TextPart, ThinkingPart
from tests.operators.scripts import TEXTS, pieces, recorded, said, texts, through

KEY = r"sk-\w{5,}"


def redacted(*deltas: str, pattern: Any = KEY, **options: Any) -> str:
    told = through(ops.redact(pattern, "#", **options), said(deltas))
    shown = "".join(event.delta for event in told if isinstance(event, TextDelta))
    completed, message = told[-2:]
    assert isinstance(completed, TextCompleted)
    assert isinstance(message, MessageCompleted)
    assert completed.text == message.message.text == shown
    return shown


def test_a_match_over_several_deltas_is_replaced_once() -> None:
    check(
        ops.redact(KEY),
        "-a-b-c-d-C-M-|",
        "^------------!",
        "-1-----2-3-4-|",
        a=TextDelta("my key is sk-"),
        b=TextDelta("123"),
        c=TextDelta("45"),
        d=TextDelta(", ok?"),
        C=TextCompleted("my key is sk-12345, ok?"),
        M=MessageCompleted(Message("assistant", "my key is sk-12345, ok?"), "stop"),
        **{
            "1": TextDelta("my key is "),
            "2": TextDelta("[redacted], ok?"),
            "3": TextCompleted("my key is [redacted], ok?"),
            "4": MessageCompleted(Message("assistant", "my key is [redacted], ok?"), "stop"),
        },
    )


def test_a_dispose_ends_it() -> None:
    check(ops.redact(KEY), "-a-b-|", "^--!", "-1-", a=TextDelta("my sk-"), b=TextDelta("1"), **{"1": TextDelta("my ")})


def test_what_cannot_be_a_match_is_not_held_back() -> None:
    deltas = ["Well, s", "k", "-", "no", " ok. ", "Fine"]
    told = through(ops.redact(KEY), said(deltas))
    assert [event.delta for event in told if isinstance(event, TextDelta)] == ["Well, ", "sk-no ok. ", "Fine"]


def test_what_is_held_back_comes_at_the_end_of_its_block() -> None:
    told = through(ops.redact(KEY), said(["it was sk-"]))
    assert [type(event) for event in told[1:]] == [TextDelta, TextDelta, TextCompleted, MessageCompleted]
    assert redacted("it was sk-") == "it was sk-"
    error = ErrorEvent(StreamError("truncated"))
    assert through(ops.redact(KEY), [TextDelta("sk-"), error]) == [TextDelta("sk-"), error]
    assert through(ops.redact(KEY), [TextDelta("sk-")]) == [TextDelta("sk-")]


def test_an_error_of_the_source_passes_without_what_is_held_back() -> None:
    check(
        ops.redact(KEY),
        "-a-X",
        "^--!",
        "-1-X",
        a=TextDelta("my sk-12345"),
        X=ValueError("no"),
        **{"1": TextDelta("my ")},
    )


def test_what_a_restart_makes_void_does_not_come() -> None:
    told = through(ops.redact(KEY), [TextDelta("a sk-"), StepRestarted("again", 2), TextDelta("b ")])
    assert told == [TextDelta("a "), StepRestarted("again", 2), TextDelta("b ")]


def test_blocks_are_told_apart() -> None:
    told = through(
        ops.redact(KEY, "#"),
        [
            ThinkingDelta("sk-", "t"),
            TextDelta("sk-", "1"),
            TextDelta("sk-123", "2"),
            TextDelta("45", "2"),
            TextDelta("no ", "1"),
            TextCompleted("sk-12345", "2"),
            TextCompleted("sk-no "),
            ThinkingDelta("abcde", "t"),
            ThinkingCompleted("sk-abcde", id="t"),
        ],
    )
    assert told == [
        TextDelta("sk-no ", "1"),
        TextDelta("#", "2"),
        TextCompleted("#", "2"),
        TextCompleted("sk-no "),
        ThinkingDelta("#", "t"),
        ThinkingCompleted("#", id="t"),
    ]


def test_changed_thinking_loses_its_signature_and_other_thinking_keeps_it() -> None:
    kept = ThinkingCompleted("fine", "sig", {"a": 1}, "2")
    told = through(ops.redact(KEY, "#"), [ThinkingCompleted("sk-12345", "sig", {"a": 1}, "1"), kept])
    assert told == [ThinkingCompleted("#", id="1"), kept]


def test_messages_in_parts_are_rewritten() -> None:
    parts = (
        ThinkingPart("sk-12345", "sig"),
        ThinkingPart("a", "sig"),
        SourcePart({}),
        TextPart("b sk-12345", {"x": 1}),
    )
    (told,) = through(ops.redact(KEY, "#"), [MessageCompleted(Message("assistant", parts))])
    assert told.message.content == (
        ThinkingPart("#"),
        ThinkingPart("a", "sig"),
        SourcePart({}),
        TextPart("b #", {"x": 1}),
    )


def test_calls_stay_as_they_are() -> None:
    said = [ToolCallDelta("c1", '"sk-12345"'), *events(ToolCall("c1", "add", {"key": "sk-12345"}))]
    assert through(ops.redact(KEY), said) == said


def test_the_answers_in_results_are_rewritten_and_the_user_s_words_are_not() -> None:
    add = tool(name="add", handler=lambda arguments: "sk-22222")
    fake = Fake(["see sk-", "11111 ", ToolCall("c1", "add", {})], ["it is ", "sk-33333"])
    told = played(stream(fake, "Use sk-00000", tools=[add]).pipe(ops.redact(KEY, "#")))
    steps = [event.result for event in told if isinstance(event, StepCompleted)]
    (chat,) = [event.result for event in told if isinstance(event, ChatCompleted)]
    assert [step.response.output_text for step in steps] == ["see # ", "it is #"]
    assert chat.steps == tuple(steps)
    assert chat.final_response == steps[-1].response
    assert [message.text for message in chat.thread] == ["Use sk-00000", "see # ", "sk-22222", "it is #"]
    assert steps[-1].thread == chat.thread
    assert _fold(told).to_chat_result() == chat


def test_it_keeps_the_rules_of_operators() -> None:
    assert_operator(lambda: ops.redact("l+o?|W"))


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (re.compile("SECRET", re.IGNORECASE), "a Secret b", "a # b"),
        ("(?i)secret|secrets are", "Secrets are", "#s are"),
        (r"\bfoo\b", "foo food foo", "# food #"),
        (r"foo(?!bar)", "foobar foobaz", "foobar #baz"),
        (r"(?<=key: )\w+", "the key: abc, key abc", "the key: #, key abc"),
        (r"a(b+c)?", "abb abbc", "#bb #"),
        (r"\d{3}-\d{4}", "555-12 555-1234 5", "555-12 # 5"),
        ("ab|abcd", "abcd ab", "#cd #"),
        (r"[\w.]+@\w+\.\w+", "mail me.you@example.com now", "mail # now"),
        ("foo$", "foo foo", "foo #"),
        ("foo$", "foo\nbar foo\n", "foo\nbar #\n"),
        (r"foo\B", "foobar foo", "#bar foo"),
        ("ab|xabcd", "xab xabcd", "x# #"),
        ("秘密", "这是秘密。", "这是#。"),
        (r"(?s)<k>.*?</k>", "a <k>b\nc</k> d", "a # d"),
    ],
)
def test_patterns(pattern: Any, text: str, expected: str) -> None:
    assert redacted(text, pattern=pattern) == expected
    assert redacted(*text, pattern=pattern) == expected


def test_no_more_than_max_match_is_held_back() -> None:
    told = through(ops.redact("<.*>", max_match=8), [TextDelta(letter) for letter in "a <0123456789>"])
    assert "".join(event.delta for event in told) == "a <0123456789>"
    held = through(ops.redact("<.*>", max_match=8), [TextDelta("a <0123456"), StepRestarted("again", 2)])
    assert held[0] == TextDelta("a ")
    shown = through(ops.redact("<.*>", max_match=8), [TextDelta("a <01234567"), StepRestarted("again", 2)])
    assert shown[0] == TextDelta("a <01234567")


def test_a_match_that_is_longer_counts_if_it_was_one_early() -> None:
    assert redacted("sk-" + "x" * 100, max_match=10) == "#"
    assert redacted(*("sk-" + "x" * 100), max_match=10) == "#"
    assert redacted("<" + "x" * 100 + ">", pattern="<.*>", max_match=10) == "<" + "x" * 100 + ">"


def test_what_a_pattern_looks_at_is_limited_too() -> None:
    for text in ("foo" + "x" * 30 + "bar", "foo\nbar"):
        for pattern, most in ((r"foo(?=.*bar)", 16), ("foo$", 3)):
            assert redacted(text, pattern=pattern, max_match=most) == text
            assert redacted(*text, pattern=pattern, max_match=most) == text


def test_the_replacement_is_taken_as_it_is() -> None:
    assert through(ops.redact("(a)", r"\1\g<0>"), [TextDelta("a")]) == [TextDelta(r"\1\g<0>")]


PATTERNS = [
    (KEY, 256),
    (r"[\w.+-]+@[\w-]+\.\w+", 30),
    (r"a(b+c)?", 16),
    (r"foo(?!bar)", 10),
    (r"\bfoo\b|\d+", 10),
    (r"foo(?=.*bar)", 16),
    (r"foo(?!.*bar)", 12),
    ("foo$", 4),
    ("(?m)foo$", 4),
    ("ab|xabcd", 9),
    (r"(?<=key: )\w+", 20),
    (r"x{3,}", 5),
    (r"(?i)secret|secrets are", 20),
    (r"foo\B", 5),
    (r"(?m)^a.*$", 9),
    (r"ab|abcd|bcde", 6),
    (r"(?s)<k>.*?</k>", 12),
    (r"(?>x+)y|xz", 6),
    ("[。.]+", 3),
]
_bits = [
    "sk-abcde12345",
    "me@ex.com",
    "abbc",
    "foobar",
    "key: pass",
    "xxxxxxx",
    "Secrets are",
    "<k>hi</k>",
    "xabc",
    "foo\n",
    " ",
]


@given(st.data(), st.sampled_from(PATTERNS), texts() | st.lists(st.sampled_from([*_bits, *"abfxyz .。"])).map("".join))
def test_how_the_text_was_cut_makes_no_difference(data: st.DataObject, pattern: tuple[str, int], text: str) -> None:
    source, most = pattern
    assert redacted(*data.draw(pieces(text)), pattern=source, max_match=most) == redacted(
        text, pattern=source, max_match=most
    )


@given(st.sampled_from(PATTERNS), st.lists(st.sampled_from([*_bits, *"abfxyz ."])).map("".join))
def test_what_is_settled_is_what_re_would_replace(pattern: tuple[str, int], text: str) -> None:
    assert redacted(text, pattern=pattern[0], max_match=10_000) == re.sub(pattern[0], "#", text)


def test_recorded_texts_character_by_character() -> None:
    word = r"\b(?:the|I|der|的)\b|\d+"
    for text in (*TEXTS, *recorded()):
        assert redacted(*text, pattern=word) == regex.sub(word, "#", text)


@given(strategies.lawful_events)
def test_a_pattern_that_never_matches_leaves_the_fold_alone(given: list[Event]) -> None:
    told = through(ops.redact("\x00\x01never"), given)
    assert _fold(told).to_response() == _fold(given).to_response()


def _fold(events: list[Any]) -> StreamCollector:
    state = StreamCollector(None)
    for event in events:
        state = state.apply_event(event)
    return state


def test_a_long_text_costs_no_more_for_each_delta() -> None:
    redactor = Redactor(regex.compile(KEY), "#", 256)
    for _ in range(1000):
        redactor.feed("word sk-no ")
    assert len(redactor._text) <= 512


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pattern", {"pattern": "(unclosed"}),
        ("pattern", {"pattern": "a*"}),
        ("pattern", {"pattern": 3}),
        ("pattern", {"pattern": None}),
        ("pattern", {"pattern": re.compile(b"a")}),
        ("replacement", {"pattern": "a", "replacement": None}),
        ("max_match", {"pattern": "a", "max_match": 0}),
        ("max_match", {"pattern": "a", "max_match": 1.5}),
        ("max_match", {"pattern": "a", "max_match": True}),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=name) as refusal:
        ops.redact(**options)
    assert refusal.value.reason == "invalid_option"


def test_without_regex_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(EngineError, match=r"rxllm\[redact\]") as refusal:
        ops.redact("a")
    assert refusal.value.reason == "missing_dependency"


@pytest.mark.parametrize("before", [ops.text, ops.words])
def test_a_key_in_what_is_no_event_does_not_pass(before: Any) -> None:
    told: list[Any] = []
    piped = stream(Fake("my key is sk-12345"), "Hi").pipe(before(), ops.redact(KEY), ops.tap(told.append))
    with pytest.raises(StreamError) as caught:
        list(piped)
    assert told == []
    assert "sk-" not in repr(caught.value)

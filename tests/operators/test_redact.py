"""Text that is changed or masked while it streams."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable

from rxllm import Engine, EngineError, Fake, StreamCollector, ToolCall, ValidationError, generate, stream, tool
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
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
from rxllm.values import Message, ProviderPart, SourcePart, StreamError, TextPart, ThinkingPart
from tests.operators.scripts import TEXTS, pieces, recorded, said, texts, through

# redact


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


@pytest.mark.parametrize("delta", ["a" * 40, "a" * 5_000])
def test_a_match_that_grows_is_not_read_again_with_each_delta(delta: str) -> None:
    class Counting:
        """A pattern that counts the characters that it could read."""

        pattern, read = KEY, 0
        compiled = regex.compile(KEY)

        def __getattr__(self, name: str) -> Any:
            def call(text: str, at: int = 0, end: int | None = None, **options: Any) -> Any:
                self.read += min(len(text), len(text) if end is None else end) - at
                return getattr(self.compiled, name)(text, at, *([] if end is None else [end]), **options)

            return call

    def read(length: int) -> int:
        pattern = Counting()
        redactor = Redactor(pattern, "#", 256)
        pieces = [redactor.feed(piece) for piece in ["sk-", *[delta] * (length // len(delta)), " ok"]]
        assert "".join([*pieces, redactor.close()]) == "# ok"
        return pattern.read

    assert read(80_000) <= 2.5 * read(40_000)


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
def test_invalid_arguments_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=name) as refusal:
        ops.redact(**options)
    assert refusal.value.reason == "invalid_option"


def test_without_regex_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(EngineError, match=r"rxllm\[redact\]") as refusal:
        ops.redact("a")
    assert refusal.value.reason == "missing_dependency"


# map_text


HI = Message("assistant", "Hi")
VALUES: dict[str, Any] = {
    "H": TextDelta("h"),
    "I": TextDelta("i"),
    "B": TextCompleted("hi"),
    "M": MessageCompleted(Message("assistant", "hi"), "stop"),
    "h": TextDelta("H"),
    "i": TextDelta("I"),
    "b": TextCompleted("HI"),
    "m": MessageCompleted(Message("assistant", "HI"), "stop"),
}


def mapped(given: list[Event], fn: Callable[[str], str] = str.upper) -> list[Event]:
    return played(from_iterable(given).pipe(ops.map_text(fn)))


def folded(given: list[Event]) -> StreamCollector:
    state = StreamCollector()
    for event in given:
        state = state.apply_event(event)
    return state


def test_deltas_completions_and_the_message_are_rewritten() -> None:
    check(
        ops.map_text(str.upper),
        "-H-I-B-M-|",
        "^--------!",
        "-h-i-b-m-|",
        **VALUES,
    )


def test_other_events_pass_as_they_are() -> None:
    check(
        ops.map_text(str.upper),
        "-s-t-e|",
        "^-----!",
        "-s-t-e|",
        s=MessageStarted(Message("assistant")),
        t=ThinkingDelta("hm"),
        e=ErrorEvent(StreamError("truncated")),
    )


def test_a_block_without_deltas_is_mapped_whole() -> None:
    check(
        ops.map_text(str.upper),
        "-B-M-|",
        "^----!",
        "-b-m-|",
        **VALUES,
    )


def test_a_message_that_no_event_told_is_mapped_whole() -> None:
    check(
        ops.map_text(str.upper),
        "-M-|",
        "^--!",
        "-m-|",
        **VALUES,
    )


def test_a_message_of_parts_that_no_event_told_is_mapped_part_by_part() -> None:
    parts = (TextPart("hi"), SourcePart({"url": "u"}), TextPart(""), ProviderPart("p", {}))
    (told,) = mapped([MessageCompleted(Message("assistant", parts), "stop")])
    assert isinstance(told, MessageCompleted)
    assert told.message.content == (TextPart("HI"), *parts[1:])


def test_a_delta_that_becomes_empty_is_left_out() -> None:
    check(
        ops.map_text(lambda text: text.replace("i", "")),
        "-H-I-B-M-|",
        "^--------!",
        "-H---c-m-|",
        **{
            **VALUES,
            "c": TextCompleted("h"),
            "m": MessageCompleted(Message("assistant", "h"), "stop"),
        },
    )


def test_a_text_that_vanishes_delta_by_delta_is_not_there_whole() -> None:
    short = lambda text: text if len(text) > 1 else ""  # noqa: E731
    told = mapped(events("H", "i"), short)
    assert folded(told).to_response().output_text == ""
    assert told[-1] == MessageCompleted(Message("assistant", ""), "stop")


def test_an_exception_of_the_function_ends_the_stream() -> None:
    failure = ValueError("no")

    def fail(text: str) -> str:
        raise failure

    check(
        ops.map_text(fail),
        "-s-H-I-|",
        "^--!",
        "-s-X",
        X=failure,
        s=MessageStarted(Message("assistant")),
        **VALUES,
    )


def test_dispose_releases_the_source() -> None:
    check(
        ops.map_text(str.upper),
        "-H-I-B-M-|",
        "^---!     ",
        "-h-i-----",
        **VALUES,
    )


def test_blocks_are_told_apart_by_their_ids() -> None:
    given = events(
        TextDelta("a", "1"), TextDelta("b", "2"), TextCompleted("b", "2"), TextCompleted("a", "1"), TextDelta("c")
    )
    told = mapped([*given[:-2], TextCompleted("c"), *given[-1:]])
    assert [event.text for event in told if isinstance(event, TextCompleted)] == ["B", "A", "C"]


def test_a_restart_begins_anew() -> None:
    told = mapped([TextDelta("a"), StepRestarted("late", 2), TextDelta("b"), TextCompleted("b")])
    assert told[-1] == TextCompleted("B")


@given(strategies.lawful_events, st.sampled_from([str.upper, lambda text: text[1:], lambda text: text + "!"]))
def test_all_agree_on_every_lawful_response(given: list[Event], fn: Callable[[str], str]) -> None:
    told = mapped(given, fn)
    assert played(from_iterable(told).pipe(ops.verify())) == told
    assert folded(told).message.metadata == folded(given).message.metadata


def empty(event: Event) -> bool:
    """Whether it is a delta without text, which `map_text` leaves out, also an agent's."""
    return empty(event.event) if isinstance(event, Nested) else isinstance(event, TextDelta) and not event.delta


@given(strategies.event_lists)
def test_any_events_pass(given: list[Event]) -> None:
    told = mapped(given, lambda text: text)
    kept = [event for event in given if not empty(event)]
    assert [type(event) for event in told] == [type(event) for event in kept]


@given(st.lists(st.text(min_size=1, max_size=3), max_size=6))
def test_a_function_of_letters_does_not_see_the_cuts(pieces: list[str]) -> None:
    rot = lambda text: "".join(chr((ord(letter) + 1) % 0xD800) for letter in text)  # noqa: E731
    assert folded(mapped(events(*pieces), rot)).to_response().output_text == rot("".join(pieces))


def test_the_fold_is_the_same_without_deltas() -> None:
    told = mapped(events("Hel", "lo", thinking="hm", tool_calls=[ToolCall("c1", "add", {"x": 1})]))
    without = [event for event in told if not isinstance(event, TextDelta | ThinkingDelta)]
    assert folded(told).to_response() == folded(without).to_response()
    assert folded(told).to_response().output_text == "HELLO"


@tool
def add(x: int) -> int:
    """Add one."""
    return x + 1


def chat() -> list[Event]:
    fake = Fake(["Let me ", "see", ToolCall("c1", "add", {"x": 1})], ["It is ", "2"])
    return played(stream(fake, "It is 2", tools=[add]))


def test_the_results_of_a_chat_are_rewritten() -> None:
    given = chat()
    told = mapped(given)
    steps = [event.result for event in told if isinstance(event, StepCompleted)]
    (result,) = (event.result for event in told if isinstance(event, ChatCompleted))
    assert [step.response.output_text for step in steps] == ["LET ME SEE", "IT IS 2"]
    assert result.steps == tuple(steps)
    assert result.final_response == steps[-1].response
    assert result.thread == steps[-1].thread
    assert [message.text for message in result.thread] == ["It is 2", "LET ME SEE", "2", "IT IS 2"]
    assert folded(told).to_chat_result() == result


def test_a_chats_result_alone_is_rewritten_too() -> None:
    given = [event for event in chat() if isinstance(event, ChatCompleted)]
    (told,) = mapped(given)
    assert isinstance(told, ChatCompleted)
    assert [message.text for message in told.result.thread] == ["It is 2", "LET ME SEE", "2", "IT IS 2"]
    assert told.result.final_response == told.result.steps[-1].response


def test_what_was_said_before_is_not_rewritten() -> None:
    before = [Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Again")]
    told = mapped(played(stream(Fake("Hello"), before)))
    (result,) = (event.result for event in told if isinstance(event, ChatCompleted))
    assert [message.text for message in result.thread] == ["Hi", "Hello", "Again", "HELLO"]


def test_among_the_engines_operators_the_chat_goes_on_with_the_new_text() -> None:
    fake = Fake(["Let me see", ToolCall("c1", "add", {"x": 1})], "It is 2")
    engine = Engine(fake, tools=(add,), operators=(ops.map_text(str.upper),))
    played(stream(engine, "Hi"))
    assert [message.text for message in fake.requests[1].messages] == ["Hi", "LET ME SEE", "2"]


def test_a_failed_response_keeps_its_mapped_text() -> None:
    told = mapped(events("Hel", StreamError("truncated")))
    assert folded(told).to_response().output_text == "HEL"
    assert isinstance(told[-1], ErrorEvent)


def test_generate_gives_the_mapped_response() -> None:
    response = generate(Engine(Fake(["a", "b"]), operators=(ops.map_text(str.upper),)), "Hi").run()
    assert response.message == replace(HI, content="AB")


@pytest.mark.parametrize("fn", [str.upper, lambda text: "", lambda text: f"[{text}]"])
def test_it_keeps_every_rule(fn: Callable[[str], str]) -> None:
    assert_operator(lambda: ops.map_text(fn))


@pytest.mark.parametrize("fn", [None, "upper", 3])
def test_a_function_is_wanted(fn: Any) -> None:
    with pytest.raises(ValidationError, match="fn"):
        ops.map_text(fn)


def test_a_function_that_gives_no_text_is_told() -> None:
    length: Any = len
    with pytest.raises(TypeError, match=r"map_text\(fn\): fn must return a string, not 2"):
        mapped([TextDelta("hi")], length)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable

from rxllm import Engine, Fake, StreamCollector, ToolCall, ValidationError, generate, stream, tool
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
    ThinkingDelta,
)
from rxllm.testing import assert_operator, events, strategies
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check
from rxllm.values import Message, ProviderPart, SourcePart, StreamError, TextPart

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

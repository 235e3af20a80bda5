"""Events of the right class that hold the wrong things: adapters' bugs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import reduce
from typing import Any, cast

import pytest
import reactivex
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable

from rxllm import Event, Message, Request, StreamError, Thread, chat, generate, stream_generate
from rxllm import events as events_module
from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import (
    ErrorEvent,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    RawChunk,
    SourceAdded,
    StepCompleted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.testing import strategies
from rxllm.values import Call, ProviderPart, Response, StepResult, Usage
from tests.tables import assert_rows

Any_: Any = None
BAD: list[Any] = [
    TextDelta(Any_),
    TextDelta(cast(Any, b"bytes")),
    TextDelta("said", cast(Any, 5)),
    TextDelta("said", cast(Any, ["unhashable"])),
    TextCompleted(Any_),
    TextCompleted("said", cast(Any, 5)),
    ThinkingDelta(Any_),
    ThinkingDelta("said", cast(Any, {})),
    ThinkingCompleted(Any_),
    ThinkingCompleted("said", cast(Any, 1)),
    ThinkingCompleted("said", None, cast(Any, "data")),
    ToolCallStarted(Any_, "f"),
    ToolCallStarted("c9", Any_),
    ToolCallStarted("c9", "f", Any_),
    ToolCallDelta(cast(Any, 7), "{}"),
    ToolCallDelta("c9", Any_),
    ToolCallCompleted(cast(Any, 7), "f", {}, "{}"),
    ToolCallCompleted("c9", "f", Any_, "{}"),
    ToolCallCompleted("c9", "f", cast(Any, [1]), "[1]"),
    ToolCallCompleted("c9", "f", {}, Any_),
    ToolCallCompleted("c9", "f", {}, "{}", Any_),
    MessageStarted(Any_),
    MessageStarted(Message("assistant", metadata=Any_)),
    MessageCompleted(Any_),
    MessageCompleted(cast(Any, "Hello")),
    MessageCompleted(Message("assistant", Any_)),
    MessageCompleted(Message("assistant", ("part",)), "stop"),  # type: ignore[arg-type]
    MessageCompleted(Message("assistant", tool_calls=cast(Any, [None]))),
    MessageCompleted(Message("assistant", "Hello"), cast(Any, "end_turn")),
    MessageCompleted(Message("assistant", "Hello"), "stop", None, Any_),
    UsageUpdated(Any_),
    UsageUpdated(cast(Any, {"input_tokens": 1})),
    UsageUpdated(Usage(cast(Any, "many"))),
    UsageUpdated(Usage(1, extra=Any_)),
    RawChunk("usage", {"input_tokens": "many"}),
    RawChunk(Any_, {}),
    SourceAdded(Any_),
    FileAdded(cast(Any, "a.png")),
    ErrorEvent(Any_),
    ErrorEvent(cast(Any, ValueError("x"))),
    ToolResultEncoded("c9", Any_),
]

START = MessageStarted(Message("assistant"))
END = MessageCompleted(Message("assistant", (ProviderPart("p", {}),)), "stop")


def generator(*said: Event) -> Any:
    async def adapter(request: Request, call: Call) -> AsyncIterator[Event]:
        for event in said:
            yield event

    return adapter


def observable(*said: Event) -> Any:
    class Mine:
        def stream(self, request: Request, call: Call) -> Any:
            return reactivex.of(*said)

    return Mine()


@pytest.mark.parametrize("adapter", [generator, observable])
def test_a_malformed_event_ends_the_stream_and_the_text_is_kept(adapter: Any) -> None:
    assert_rows([(adapter, bad) for bad in BAD], check_ended)


def check_ended(adapter: Any, bad: Any) -> None:
    said = (START, TextDelta("Hello"), bad, TextDelta("never"))
    *before, last = played(adapter(*said))
    assert isinstance(last, ErrorEvent)
    assert isinstance(last.error, StreamError)
    assert last.error.reason == "malformed_event"
    assert type(bad).__name__ in last.error.message
    assert before == [START, TextDelta("Hello", "block_0"), TextCompleted("Hello", "block_0")]
    response = generate(adapter(*said), "Hi").run()
    assert (response.output_text, response.finish_reason, response.error) == ("Hello", "error", last.error)


@pytest.mark.parametrize("counters", [{"a": 1}, {1: 2}])
@pytest.mark.parametrize("adapter", [generator, observable])
def test_unknown_counters_end_an_adapters_stream_though_the_fold_raises_for_them(adapter: Any, counters: Any) -> None:
    response = generate(adapter(START, TextDelta("Hello"), RawChunk("usage", counters)), "Hi").run()
    assert isinstance(response.error, StreamError)
    assert (response.output_text, response.error.reason) == ("Hello", "malformed_event")
    assert "unknown counters" in response.error.message


@pytest.mark.parametrize("adapter", [generator, observable])
def test_an_earlier_form_of_a_raw_chunk_enters_as_the_event_that_replaces_it(adapter: Any) -> None:
    part, usage = ProviderPart("p", {}), RawChunk("usage", {"input_tokens": 3})
    others = [Nested(("c",), usage), RawChunk("frame", 1)]
    said = (START, usage, usage, UsageUpdated(Usage(4)), usage, RawChunk("any", part), *others, END)
    current = [UsageUpdated(Usage(3)), UsageUpdated(Usage(4)), UsageUpdated(Usage(3)), PartAdded(part)]
    others[0] = Nested(("c",), UsageUpdated(Usage(3)))
    entered = list(stream_generate(adapter(*said), "Hi", include_raw_chunks=True))
    assert entered == [START, *current, *others, END]
    folded = reduce(StreamCollector.apply_event, said, StreamCollector())  # by hand, without the border
    assert folded.to_response() == generate(adapter(*said), "Hi").run()


def played(adapter: Any) -> list[Event]:
    return list(stream_generate(adapter, "Hi"))


@pytest.mark.parametrize("adapter", [generator, observable])
def test_it_may_be_the_first(adapter: Any) -> None:
    first, last = played(adapter(TextDelta(Any_)))
    assert first == START
    assert isinstance(last, ErrorEvent)
    assert last.error.reason == "malformed_event"


@pytest.mark.parametrize("adapter", [generator, observable])
def test_open_blocks_are_closed_before_it(adapter: Any) -> None:
    said = played(adapter(START, ToolCallStarted("c", "f"), ToolCallDelta("c", '{"a'), TextDelta(Any_)))
    assert said[3] == ToolCallCompleted("c", "f", {}, '{"a', {"error": "incomplete"})
    assert isinstance(said[-1], ErrorEvent)
    assert len(said) == 5


def test_a_value_that_is_no_event_ends_an_observable_too() -> None:
    *before, last = played(observable(START, TextDelta("Hello"), cast(Any, "text")))
    assert before[-1] == TextCompleted("Hello", "block_0")
    assert isinstance(last, ErrorEvent)
    assert last.error.reason == "malformed_event"


@pytest.mark.parametrize("adapter", [generator, observable])
def test_a_chat_ends_with_the_error(adapter: Any) -> None:
    result = chat(adapter(START, TextDelta("Hello"), TextDelta(Any_)), "Hi").run()
    assert (result.halted_reason, result.output_text) == ("error", "Hello")


def test_the_source_is_left() -> None:
    ended: list[str] = []

    class Mine:
        def stream(self, request: Request, call: Call) -> Any:
            source: Any = reactivex.concat(reactivex.of(START, TextDelta(Any_)), reactivex.never())
            return source.finally_action(lambda: ended.append("left"))

    assert isinstance(played(Mine())[-1], ErrorEvent)
    assert ended == ["left"]


STATES = {
    "at first": StreamCollector(Thread()),
    "in a message": StreamCollector(Thread()).apply_event(START).apply_event(TextDelta("Hello")),
    "after a step": StreamCollector(Thread()).apply_event(
        StepCompleted(StepResult(Thread(), Response(Message("assistant", "Hello"), "Hello")))
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_the_fold_is_as_it_was(name: str) -> None:
    assert_rows([(name, bad) for bad in (*BAD, None, "text", 5)], check_unchanged)


def check_unchanged(name: str, bad: Any) -> None:
    state = STATES[name]
    after = state.apply_event(bad)
    assert after == state
    assert after.to_response() == state.to_response()
    assert after.to_step_result() == state.to_step_result()
    assert after.to_chat_result() == state.to_chat_result()
    assert after.apply_event(TextDelta("!")).current_text == state.apply_event(TextDelta("!")).current_text
    deltas = [bad] if isinstance(bad, TextDelta | ThinkingDelta | ToolCallDelta) else []
    assert state.apply_deltas(deltas).to_response() == state.to_response()


@given(strategies.lawful_events, st.lists(st.tuples(st.integers(0, 100), st.sampled_from(BAD)), max_size=5))
def test_a_fold_is_the_same_without_malformed_events(lawful: list[Event], bad: list[tuple[int, Any]]) -> None:
    events = list(lawful)
    for place, event in bad:
        events.insert(place % (len(events) + 1), event)
    assert _folded(events) == _folded(lawful)


def _folded(events: list[Event]) -> StreamCollector:
    state = StreamCollector(Thread())
    for event in events:
        state = state.apply_event(event)
    return state


def test_verify_ends_with_it() -> None:
    assert_rows([(bad,) for bad in BAD], check_verified)


def check_verified(bad: Any) -> None:
    seen: list[Event] = []
    errors: list[Exception] = []
    from_iterable([START, TextDelta("Hello"), bad]).pipe(ops.verify()).subscribe(seen.append, errors.append)
    (error,) = errors
    assert isinstance(error, StreamError)
    assert (error.reason, error.event_index) == ("malformed_event", 2)
    assert len(seen) == 2


def test_a_counter_may_be_any_number() -> None:
    class Tokens(int):
        pass

    for usage in (Usage(Tokens(3), cast(Any, True)), Usage(total_cost=0.5)):
        assert StreamCollector().apply_event(UsageUpdated(usage)).usage == usage


def test_an_unknown_counter_still_raises_in_the_fold() -> None:
    with pytest.raises(TypeError):
        StreamCollector().apply_event(RawChunk("usage", {"prompt_tokens": 3}))


def test_every_class_is_checked() -> None:
    for cls in events_module.EVENT_CLASSES:
        empty = cls(*[object()] * len(cls.__struct_fields__))
        assert StreamCollector().apply_event(empty) == StreamCollector() or cls.__name__ in ("Custom", "RawChunk")

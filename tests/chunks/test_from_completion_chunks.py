"""The completion dialect as events: lawful whatever comes, and the same as its own fold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject, concat, from_iterable, throw
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import AdapterError, StreamError, Usage
from rxllm import operators as ops
from rxllm.chunks import CompletionChunk, ToolCallDelta, collect_completion, from_completion_chunks
from rxllm.chunks._from_chunks import events_of
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    TextCompleted,
    TextDelta,
    ToolCallCompleted,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.events import ToolCallDelta as CallDelta
from rxllm.runtime import Stream
from rxllm.testing import OPERATOR_RULES, assert_operator
from rxllm.testing.marbles import START, Spy, check, cold, record
from rxllm.values import Message
from tests.chunks.completions import completions, replies
from tests.wire.lawful import lawful

text, final = CompletionChunk.text, CompletionChunk.final_chunk
STARTED = MessageStarted(Message("assistant"))
U1 = Usage(3, 4, total_tokens=7)


def call(index: int, *rest: Any) -> CompletionChunk:
    return CompletionChunk(tool_calls=(ToolCallDelta(index, *rest),))


def events(*chunks: Any, error: Exception | None = None) -> list[Event]:
    source = from_iterable(chunks)
    return list((source if error is None else concat(source, throw(error))).pipe(from_completion_chunks()))


# One response


def test_text() -> None:
    assert events(text("H"), text(""), text("i"), final(U1, "length")) == [
        STARTED,
        TextDelta("H", "block_0"),
        TextDelta("i", "block_0"),
        UsageUpdated(U1),
        TextCompleted("Hi", "block_0"),
        MessageCompleted(Message("assistant", "Hi"), "length", "length"),
    ]


def test_calls_are_closed_at_the_end() -> None:
    emitted = events(call(0, "a", "add", '{"x"'), call(1, "b", "sub"), call(0, None, None, ": 1}"), final(None, None))
    assert emitted[1:-1] == [
        ToolCallStarted("a", "add"),
        CallDelta("a", '{"x"'),
        ToolCallStarted("b", "sub"),
        CallDelta("a", ": 1}"),
        ToolCallCompleted("a", "add", {"x": 1}, '{"x": 1}'),
        ToolCallCompleted("b", "sub", {}, ""),
    ]
    assert emitted[-1].finish_reason == "tool_calls"


def test_a_gap_in_the_indexes_is_no_call() -> None:
    emitted = events(text("Hi"), call(10**9, "z", "f", "{}"), final(None, "tool_calls"))
    assert [event.id for event in emitted if isinstance(event, ToolCallCompleted)] == ["z"]


def test_a_call_whose_id_never_comes_gets_one() -> None:
    emitted = events(call(0, None, "f", "{}"), final(None, None))
    assert [event.id for event in emitted if isinstance(event, ToolCallCompleted)] == ["call_0"]


def test_what_comes_after_a_final_chunk_still_counts() -> None:
    emitted = events(final(None, "length"), text("Hi"), final(U1, None), final(None, None))
    assert [type(event).__name__ for event in emitted] == [
        "MessageStarted",
        "TextDelta",
        "UsageUpdated",
        "TextCompleted",
        "MessageCompleted",
    ]
    assert emitted[-1].finish_reason == "length"


def test_usage_is_cumulative_and_takes_nothing_back() -> None:
    emitted = events(
        CompletionChunk(usage=Usage(input_tokens=9)),
        CompletionChunk(usage=Usage(input_tokens=9)),
        CompletionChunk(usage=Usage(input_tokens=0, output_tokens=2, extra={"x": 1})),
        final(Usage(output_tokens=5, total_cost=0.5), "stop"),
    )
    assert [event.usage for event in emitted if isinstance(event, UsageUpdated)] == [
        Usage(9),
        Usage(9, 2, extra={"x": 1}),
        Usage(9, 5, total_cost=0.5, extra={"x": 1}),
    ]


@pytest.mark.parametrize(
    ("chunk", "reason", "raw"),
    [
        (final(None, None), "stop", None),
        (final(None, "content_filter"), "content_filter", "content_filter"),
        (CompletionChunk(finish_reason="length"), "length", "length"),
        (CompletionChunk(finish_reason="tool_use"), "tool_calls", "tool_use"),  # type: ignore[arg-type]
        (CompletionChunk(finish_reason="eos"), "other", "eos"),  # type: ignore[arg-type]
    ],
)
def test_finish_reasons(chunk: CompletionChunk, reason: str, raw: str | None) -> None:
    last = events(text("Hi"), chunk)[-1]
    assert (last.finish_reason, last.raw_finish_reason) == (reason, raw)


# Failures


def test_a_source_that_ends_without_a_final_chunk_is_truncated() -> None:
    emitted = events(text("Hi"), call(0, "a", "f", "{"))
    assert emitted[2] == TextCompleted("Hi", "block_0")
    assert emitted[-2] == ToolCallCompleted("a", "f", {}, "{", {"error": "incomplete"})
    assert emitted[-1].error.reason == "truncated"
    assert [type(event) for event in events()] == [MessageStarted, ErrorEvent]


def test_an_exception_is_the_last_event_with_all_closed() -> None:
    failure = ZeroDivisionError("by nought")
    emitted = events(text("Hi"), call(0, "a", "f", "{"), error=failure)
    assert [type(event).__name__ for event in emitted] == [
        "MessageStarted",
        "TextDelta",
        "TextCompleted",
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallCompleted",
        "ErrorEvent",
    ]
    assert emitted[-2].metadata == {"error": "incomplete"}
    error = emitted[-1].error
    assert (type(error), error.reason, error.__cause__) == (StreamError, "adapter_error", failure)
    assert "ZeroDivisionError: by nought" in error.message


def test_a_typed_error_after_the_first_chunk_is_an_event_as_it_is() -> None:
    error = AdapterError("rate_limited", retry_after=2.0)
    assert events(text("Hi"), error=error)[-1].error is error


def test_a_typed_error_before_the_first_chunk_is_raised() -> None:
    error, seen = AdapterError("authentication_failed"), list[Any]()
    throw(error).pipe(from_completion_chunks()).subscribe(seen.append, seen.append)
    assert seen == [error]


def test_any_other_exception_before_the_first_chunk_is_an_event() -> None:
    emitted = events(error=OSError("no line"))
    assert [type(event) for event in emitted] == [MessageStarted, ErrorEvent]
    assert emitted[-1].error.reason == "adapter_error"


def test_what_is_no_chunk_is_an_error_and_lets_go_of_the_source() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-a-?-a-|", {"a": text("Hi"), "?": "Hi"})
    recorded = record(scheduler, lambda: source.pipe(from_completion_chunks()))
    assert [(tick, kind) for tick, kind, _ in recorded[-2:]] == [(3, "next"), (3, "end")]
    assert recorded[-2][2].error.reason == "malformed_event"
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 3)]


@pytest.mark.parametrize(
    ("chunk", "field"),
    [
        (CompletionChunk(3), "delta"),
        (CompletionChunk({"a": 1}), "delta"),
        (CompletionChunk(usage="stop"), "usage"),
        (CompletionChunk(tool_calls=("add",)), "tool_calls"),
        (CompletionChunk(tool_calls=None), "tool_calls"),
        (call(0, "c1", "add", {"a": 1}), "arguments_delta"),
        (call(0, 7, "add"), "id"),
    ],
)
def test_a_chunk_of_wrong_types_is_an_error_that_names_the_field(chunk: Any, field: str) -> None:
    emitted = events(text("Hi"), chunk, final(None, "stop"))
    lawful(emitted)
    assert [type(event) for event in emitted[-2:]] == [TextCompleted, ErrorEvent]
    assert emitted[-1].error.reason == "malformed_event"
    assert field in emitted[-1].error.message
    collected = from_iterable([text("Hi"), chunk, final(None, "stop")]).pipe(collect_completion())
    with pytest.raises(StreamError, match=field) as caught:
        collected.run()
    assert (caught.value.reason, caught.value.metadata["response"].content) == ("malformed_event", "Hi")


class Broken:
    """A reader that raises where it is told to."""

    started = True
    ended = False

    def __init__(self, *broken: str) -> None:
        self.broken = broken

    def feed(self, chunk: Any) -> list[Event]:
        return self._give("feed", TextDelta("Hi"))

    def close(self) -> list[Event]:
        return self._give("close", TextCompleted("Hi"))

    def fail(self, error: Exception) -> list[Event]:
        return self._give("fail", ErrorEvent(StreamError("adapter_error", str(error))))

    def _give(self, name: str, event: Event) -> list[Event]:
        if name in self.broken:
            raise TypeError(name)
        return [event]


@pytest.mark.parametrize("where", ["feed", "close"])
def test_what_a_reader_raises_is_the_last_event(where: str) -> None:
    emitted = list(from_iterable([1]).pipe(events_of(lambda: Broken(where))))
    assert emitted[-1] == ErrorEvent(StreamError("adapter_error", where))


@pytest.mark.parametrize("where", ["feed", "close"])
def test_a_reader_that_cannot_even_fail_ends_the_stream_too(where: str) -> None:
    with pytest.raises(TypeError, match="fail"):
        from_iterable([1]).pipe(events_of(lambda: Broken(where, "fail"))).run()
    with pytest.raises(TypeError, match="fail"):
        throw(OSError("no line")).pipe(events_of(lambda: Broken("fail"))).run()


@pytest.mark.parametrize("chunk", [text("Hi"), CompletionChunk(delta=None), final(U1, "stop")])  # type: ignore[arg-type]
def test_a_subscriber_s_own_exception_is_delivered_once(chunk: CompletionChunk) -> None:
    failure, seen = ValueError("the subscriber's"), list[Exception]()

    def refuse(event: Event) -> None:
        raise failure

    from_iterable([chunk]).pipe(from_completion_chunks()).subscribe(refuse, seen.append)
    assert seen == [failure]


# As a stream


def test_events_come_at_once() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-a-b--c--|", {"a": text("a"), "b": text("b"), "c": final(U1, "stop")})
    recorded = record(scheduler, lambda: source.pipe(from_completion_chunks()))
    assert [(tick, kind if kind == "end" else type(what).__name__) for tick, kind, what in recorded] == [
        (1, "MessageStarted"),
        (1, "TextDelta"),
        (3, "TextDelta"),
        (6, "UsageUpdated"),
        (9, "TextCompleted"),
        (9, "MessageCompleted"),
        (9, "end"),
    ]
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 9)]


def test_dispose_reaches_the_source_at_once() -> None:
    check(
        from_completion_chunks(),
        "--------a-|",
        "^----!",
        "------",
        a=text("a"),
    )


def test_a_second_subscription_starts_afresh() -> None:
    piped = from_iterable([text("Hi"), call(0, "a", "f", "{}"), final(U1, None)]).pipe(from_completion_chunks())
    assert list(piped) == list(piped)


def test_it_gives_a_stream_and_passes_the_scheduler_on() -> None:
    scheduler, spy = TestScheduler(), Spy()
    stream = spy.pipe(from_completion_chunks())
    stream.subscribe(scheduler=scheduler)
    assert isinstance(stream, Stream)
    assert spy.scheduler is scheduler


@pytest.mark.parametrize("rule", [rule for rule in OPERATOR_RULES if rule != "errors"])
def test_it_keeps_what_every_operator_keeps(rule: str) -> None:
    assert_operator(
        from_completion_chunks, events=[text("H"), text("i"), call(0, "a", "f"), final(U1, None)], only=[rule]
    )


def test_a_source_that_ends_while_an_event_is_delivered_is_waited_for() -> None:
    source, emitted = Subject(), list[Any]()

    def hear(event: Event) -> None:
        emitted.append(event)
        if isinstance(event, MessageStarted):
            source.on_next(final(None, "length"))
            source.on_completed()

    source.pipe(from_completion_chunks()).subscribe(hear, emitted.append, lambda: emitted.append("end"))
    source.on_next(text("Hi"))
    message = MessageCompleted(Message("assistant", "Hi"), "length", "length")
    assert emitted == [STARTED, TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0"), message, "end"]


# Properties


@given(st.lists(completions(), max_size=8), st.sampled_from([None, OSError("no line"), StreamError("timeout")]))
def test_whatever_comes_the_events_are_lawful(chunks: list[CompletionChunk], error: Exception | None) -> None:
    if chunks or not isinstance(error, StreamError):
        lawful(events(*chunks, error=error))


@given(replies())
def test_a_well_behaved_model_gives_the_same_both_ways(chunks: list[CompletionChunk]) -> None:
    source = from_iterable(chunks)
    completion = source.pipe(collect_completion()).run()
    response = source.pipe(from_completion_chunks(), ops.to_response()).run()
    assert response.output_text == (completion.content or "")
    assert [(c.id, c.name, c.raw_arguments) for c in response.message.tool_calls] == [
        (c.id, c.name, c.arguments) for c in completion.tool_calls
    ]
    if completion.finish_reason not in ("stop", "other"):
        assert response.finish_reason == completion.finish_reason

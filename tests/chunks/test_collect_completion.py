"""The fold of the completion dialect, and what it keeps that a plain loop over the chunks loses."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable, concat, from_iterable, throw
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import AdapterError, LLMError, StreamError, Usage, serializer
from rxllm.chunks import CompletionChunk, CompletionResponse, CompletionToolCall, ToolCallDelta, collect_completion
from rxllm.runtime import Stream
from rxllm.testing import OPERATOR_RULES, assert_operator
from rxllm.testing.marbles import START, Spy, check, cold, record
from tests.chunks.completions import completions, deltas

text, final = CompletionChunk.text, CompletionChunk.final_chunk
U1, U2 = Usage(3, 4, total_tokens=7), Usage(5, 6)
ZEROS = Usage(0, 0, total_tokens=0)


def collected(*chunks: CompletionChunk) -> CompletionResponse:
    return from_iterable(chunks).pipe(collect_completion()).run()


def calls(*pieces: ToolCallDelta) -> CompletionResponse:
    return collected(*(CompletionChunk(tool_calls=(piece,)) for piece in pieces))


def failed(source: Observable[Any]) -> LLMError:
    with pytest.raises(LLMError) as caught:
        source.pipe(collect_completion()).run()
    return caught.value


# What was asked of it


def test_stream_collection_produces_correct_responses() -> None:
    response = collected(text("Hel"), text(""), text("lo"), final(U1, "length"))
    assert response == CompletionResponse("Hello", (), "length", U1)


def test_tool_call_deltas_are_assembled_correctly() -> None:
    response = collected(
        CompletionChunk("Let me see. ", (ToolCallDelta(0, "a", "add", '{"x"'), ToolCallDelta(1, "b", "sub"))),
        CompletionChunk(tool_calls=(ToolCallDelta(1, arguments_delta="{}"), ToolCallDelta(0, arguments_delta=": 1}"))),
        final(U1, "tool_calls"),
    )
    assert response.tool_calls == (CompletionToolCall("a", "add", '{"x": 1}'), CompletionToolCall("b", "sub", "{}"))
    assert (response.content, response.finish_reason) == ("Let me see. ", "tool_calls")


def test_final_chunk_usage_is_captured() -> None:
    assert collected(text("Hi"), final(U1, "stop")).usage == U1


# Vectors


@pytest.mark.parametrize(
    ("pieces", "kept", "dropped"),
    [
        ([(0, "a", "f", "{"), (0, None, None, "}")], [("a", "f", "{}")], []),
        ([(2, "c", "g", "")], [("c", "g", "")], []),
        ([(0, None, "f", "{}")], [], [("", "f", "{}")]),
        ([(0, "", "f", "{}")], [], [("", "f", "{}")]),
        ([(0, "a", "f", ""), (0, "", None, "{}")], [], [("", "f", "{}")]),
        ([(0, "a", None, "not JSON")], [("a", "", "not JSON")], []),
        ([(0, "a", "f", ""), (0, "b", "g", "")], [("b", "g", "")], []),
        ([(1, "b", "g", "2"), (0, "a", "f", "1")], [("a", "f", "1"), ("b", "g", "2")], []),
        ([(4, None, None, "lost"), (1, "b", "g", "2")], [("b", "g", "2")], [("", "", "lost")]),
        ([(10**9, "z", "f", "{}"), (0, "a", "f", "1")], [("a", "f", "1"), ("z", "f", "{}")], []),
    ],
)
def test_calls(pieces: Sequence[Any], kept: Sequence[Any], dropped: Sequence[Any]) -> None:
    response = calls(*(ToolCallDelta(*piece) for piece in pieces))
    assert response.tool_calls == tuple(CompletionToolCall(*fields) for fields in kept)
    assert response.dropped == tuple(CompletionToolCall(*fields) for fields in dropped)


@pytest.mark.parametrize(
    ("chunks", "usage", "reason"),
    [
        ([], ZEROS, "stop"),
        ([final(None, None)], ZEROS, "stop"),
        ([final(U1, "length"), final(None, None)], ZEROS, "stop"),
        ([final(None, None), final(U1, "length")], U1, "length"),
        ([final(U1, "length"), final(U2, "stop")], U2, "stop"),
        ([CompletionChunk(usage=U1, finish_reason="length")], ZEROS, "stop"),
        ([final(U1, "length"), CompletionChunk(usage=U2, finish_reason="error")], U1, "length"),
    ],
)
def test_the_last_final_chunk_says_usage_and_reason(chunks: Sequence[Any], usage: Usage, reason: str) -> None:
    response = collected(*chunks)
    assert (response.usage, response.finish_reason) == (usage, reason)


def test_reading_goes_on_after_a_final_chunk() -> None:
    assert collected(text("a"), final(U1, "stop"), text("b")) == CompletionResponse("ab", (), "stop", U1)


def test_no_chunk_at_all() -> None:
    assert collected() == CompletionResponse(None, (), "stop", ZEROS, "")


def test_a_gap_takes_no_room() -> None:
    source = from_iterable([CompletionChunk(tool_calls=(ToolCallDelta(10**9, "a", "f", "{}"),))])
    tracemalloc.start()
    try:
        response = source.pipe(collect_completion()).run()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert response.tool_calls == (CompletionToolCall("a", "f", "{}"),)


# Errors


def test_an_error_keeps_what_had_come() -> None:
    error = AdapterError("rate_limited", provider="acme", retry_after=2.0, metadata={"x": 1})
    raised = failed(concat(from_iterable([text("Hel"), text("lo"), final(U1, "length")]), throw(error)))
    assert isinstance(raised, AdapterError)
    assert (raised.reason, raised.provider, raised.retry_after) == ("rate_limited", "acme", 2.0)
    assert raised.metadata == {"x": 1, "response": CompletionResponse("Hello", (), "error", U1)}
    assert raised.__cause__ is error
    assert error.metadata == {"x": 1}


def test_an_exception_is_the_cause_of_a_stream_error() -> None:
    failure = ZeroDivisionError("by nought")
    raised = failed(concat(from_iterable([text("Hi")]), throw(failure)))
    assert (type(raised), raised.reason, raised.__cause__) == (StreamError, "adapter_error", failure)
    assert "ZeroDivisionError: by nought" in raised.message
    assert raised.metadata["response"] == CompletionResponse("Hi", finish_reason="error")


def test_an_error_before_the_first_chunk_keeps_an_empty_response() -> None:
    assert failed(throw(StreamError("timeout"))).metadata["response"] == CompletionResponse(finish_reason="error")


def test_what_is_no_chunk_is_an_error() -> None:
    raised = failed(from_iterable([text("Hi"), "there", text("!")]))
    assert (type(raised), raised.reason) == (StreamError, "malformed_event")
    assert "'there'" in raised.message
    assert raised.metadata["response"].content == "Hi"


def test_the_error_can_be_stored_and_sent() -> None:
    raised = failed(concat(from_iterable([text("Hi")]), throw(StreamError("truncated"))))
    assert serializer.from_json(serializer.to_json(raised)) == raised
    assert pickle.loads(pickle.dumps(raised)) == raised


# As a stream


A, B, END = text("a"), CompletionChunk("b", (ToolCallDelta(0, "c", "f", "{}"),)), final(U1, "tool_calls")


def test_one_response_when_the_source_completes() -> None:
    whole = CompletionResponse("ab", (CompletionToolCall("c", "f", "{}"),), "tool_calls", U1)
    check(
        collect_completion(),
        "-a-b-c--|",
        "^-------!",
        "--------(R|)",
        a=A,
        b=B,
        c=END,
        R=whole,
    )


def test_dispose_reaches_the_source_at_once() -> None:
    check(
        collect_completion(),
        "-a-b-c--|",
        "^---!",
        "-----",
        a=A,
        b=B,
        c=END,
    )


def test_what_is_no_chunk_lets_go_of_the_source() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-a-?-a-|", {"a": A, "?": None})
    [(tick, kind, error)] = record(scheduler, lambda: source.pipe(collect_completion()))
    assert (tick, kind, error.reason) == (3, "error", "malformed_event")
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 3)]


def test_it_gives_a_stream_and_passes_the_scheduler_on() -> None:
    scheduler, spy = TestScheduler(), Spy()
    stream = spy.pipe(collect_completion())
    stream.subscribe(scheduler=scheduler)
    assert isinstance(stream, Stream)
    assert spy.scheduler is scheduler


def test_a_subscriber_s_exception_is_delivered_once() -> None:
    failure, seen = ValueError("the subscriber's"), list[Exception]()

    def refuse(response: Any) -> None:
        raise failure

    from_iterable([A]).pipe(collect_completion()).subscribe(refuse, seen.append)
    assert seen == [failure]


@pytest.mark.parametrize("rule", [rule for rule in OPERATOR_RULES if rule != "errors"])
def test_it_keeps_what_every_operator_keeps(rule: str) -> None:
    assert_operator(collect_completion, events=[A, B, END], only=[rule])


# Properties


@given(st.lists(completions(), max_size=8))
def test_text_is_joined_and_nothing_is_lost(chunks: list[CompletionChunk]) -> None:
    response = collected(*chunks)
    pieces = [delta for chunk in chunks for delta in chunk.tool_calls]
    assert (response.content or "") == "".join(chunk.delta for chunk in chunks)
    every = [*response.tool_calls, *response.dropped]
    assert len(every) == len({delta.index for delta in pieces})
    assert sum(len(call.arguments) for call in every) == sum(len(delta.arguments_delta) for delta in pieces)
    assert all(call.id for call in response.tool_calls)
    assert not any(call.id for call in response.dropped)


@given(st.lists(deltas(), max_size=8), st.data())
def test_how_deltas_are_packed_into_chunks_does_not_matter(pieces: list[ToolCallDelta], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(pieces)))
    packed = collected(CompletionChunk(tool_calls=tuple(pieces[:cut])), CompletionChunk(tool_calls=tuple(pieces[cut:])))
    assert packed == calls(*pieces)


@given(st.lists(completions(), max_size=6), st.integers(0, 6))
def test_the_partial_response_is_the_fold_of_what_had_come(chunks: list[CompletionChunk], cut: int) -> None:
    raised = failed(concat(from_iterable(chunks[:cut]), throw(StreamError("truncated"))))
    whole = collected(*chunks[:cut])
    partial = raised.metadata["response"]
    assert (partial.content, partial.tool_calls, partial.dropped, partial.usage) == (
        whole.content,
        whole.tool_calls,
        whole.dropped,
        whole.usage,
    )

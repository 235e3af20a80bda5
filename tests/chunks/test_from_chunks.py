"""Chunks as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import reactivex
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable, from_iterable
from reactivex.subject import Subject
from reactivex.testing import TestScheduler

from rxllm import (
    AdapterError,
    ErrorEvent,
    Event,
    FileAdded,
    Message,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    Response,
    SourceAdded,
    StreamError,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCall,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageUpdated,
    chunks,
)
from rxllm import operators as ops
from rxllm.chunks import StreamChunk, from_chunks, meta, text, thinking, tool_call
from rxllm.testing import marbles
from rxllm.values import FilePart, Image, ImagePart, ProviderPart, SourcePart, TextPart, ThinkingPart
from tests.chunks.anything import any_chunks
from tests.wire.lawful import lawful

STARTED = MessageStarted(Message("assistant"))
BROKEN = ValueError("broken")


def fragment(index: Any, piece: Any) -> StreamChunk:
    return meta({"tool_call_args": {"index": index, "fragment": piece}})


def events(*items: Any, messages: Sequence[Message] = ()) -> list[Event]:
    """The events of chunks, of which an exception is the source's failure; they are lawful."""
    steps = [reactivex.throw(item) if isinstance(item, Exception) else reactivex.of(item) for item in items]
    emitted = list(reactivex.concat(*steps).pipe(from_chunks(messages)))
    lawful(emitted)
    return emitted


def response(*items: Any) -> Response[Any]:
    return from_iterable(events(*items)).pipe(ops.to_response()).run()


def completed(*items: Any, **options: Any) -> list[ToolCallCompleted]:
    return [event for event in events(*items, **options) if isinstance(event, ToolCallCompleted)]


def done(text: str = "", reason: Any = "stop", raw: str | None = None, **more: Any) -> MessageCompleted:
    return MessageCompleted(Message("assistant", text, **more), reason, raw)


CALL = ToolCallCompleted("c1", "add", {"a": 1}, '{"a":1}')
VALUES: dict[str, Any] = {
    "t": text("Hi"),
    "c": tool_call("add", metadata={"id": "c1"}),
    "d": fragment(0, '{"a":1}'),
    "u": meta({"usage": {"input_tokens": 5}}),
    "f": meta({"finish_reason": "tool_use"}),
    "e": meta({"error": {"message": "overloaded"}}),
    "S": STARTED,
    "T": TextDelta("Hi", "block_0"),
    "U": TextCompleted("Hi", "block_0"),
    "B": ToolCallStarted("c1", "add"),
    "D": ToolCallDelta("c1", '{"a":1}'),
    "N": UsageUpdated(Usage(input_tokens=5)),
    "C": CALL,
    "I": ToolCallCompleted("c1", "add", {}, "", {"error": "incomplete"}),
    "M": MessageCompleted(Message("assistant", "Hi", tool_calls=(CALL.tool_call,)), "tool_calls", "tool_use"),
    "H": done("Hi"),
    "E": ErrorEvent(StreamError("adapter_error", "the chunk source failed: ValueError: broken")),
    "O": ErrorEvent(StreamError("adapter_error", "overloaded")),
    "K": ErrorEvent(StreamError("truncated")),
}


def check(source: str, subscribed: str, expected: str, **values: Any) -> None:
    marbles.check(from_chunks(), source, subscribed, expected, **{**VALUES, **values})


class TestMarbles:
    def test_each_chunk_is_passed_on_at_once(self) -> None:
        check(
            "--t-----c-----d--u--f-------|",
            "^---------------------------!",
            "--(ST)--(UB)--D--N----------(CM|)",
        )

    def test_a_failure_closes_what_is_open(self) -> None:
        check("--t-----c-----X", "^-------------!", "--(ST)--(UB)--(IE|)", X=BROKEN)

    def test_an_error_of_rxllm_stays_what_it_is(self) -> None:
        check("--t-----X", "^-------!", "--(ST)--(UK|)", X=StreamError("truncated"))

    def test_an_error_of_rxllm_before_the_first_chunk_is_raised(self) -> None:
        check("--X", "^-!", "--X", X=AdapterError("rate_limited"))

    def test_another_error_before_the_first_chunk_is_an_event(self) -> None:
        check("--X", "^-!", "--(SE|)", X=BROKEN)

    def test_an_error_in_the_stream_ends_it_and_leaves_the_source(self) -> None:
        check("--t-----e--t--|", "^-------!", "--(ST)--(UO|)")

    def test_nothing_at_all_is_an_empty_message(self) -> None:
        check("---|", "^--!", "---(SZ|)", Z=done())

    def test_a_dispose_reaches_the_source_at_once(self) -> None:
        check("--t-------c---|", "^-----!", "--(ST)----")

    def test_the_scheduler_is_passed_on(self) -> None:
        spy, scheduler = marbles.Spy(), TestScheduler()
        spy.pipe(from_chunks()).subscribe(scheduler=scheduler)
        assert spy.scheduler is scheduler


class TestWeaknesses:
    """What the normaliser that this one follows gets wrong, (a) to (j)."""

    def test_a_one_completion_however_many_metas(self) -> None:
        interim = [meta({"usage": {"input_tokens": 3}}), meta({"keepalive?": True, "provider_event": "ping"})]
        details = meta({"reasoning_details": [{"text": "Hm"}]})
        emitted = events(
            *interim, text("Hi"), details, meta({"usage": {"output_tokens": 2}}), meta({"finish_reason": "stop"})
        )
        assert [type(event) for event in emitted].count(MessageCompleted) == 1
        assert isinstance(emitted[-1], MessageCompleted)
        assert emitted[-1].metadata == {"reasoning_details": [{"text": "Hm"}]}

    def test_b_an_interim_meta_does_not_end_the_answer(self) -> None:
        items = [meta({"usage": {"input_tokens": 3}}), text("Hi"), meta({"finish_reason": "end_turn"}), text(" there")]
        assert response(*items).output_text == "Hi there"

    def test_c_usage_is_cumulative_and_counted_once(self) -> None:
        items = [meta({"usage": {"input_tokens": 9, "output_tokens": 1}}), text("Hi")]
        last = meta({"usage": {"input_tokens": 9, "output_tokens": 20}})
        emitted = [event.usage for event in events(*items, last, last) if isinstance(event, UsageUpdated)]
        assert emitted == [Usage(input_tokens=9, output_tokens=1), Usage(input_tokens=9, output_tokens=20)]
        assert response(*items, last).usage == emitted[-1]

    def test_d_a_ping_in_the_middle_of_a_call_tears_nothing(self) -> None:
        items = [tool_call("add", metadata={"id": "c1", "index": 0, "start": True}), fragment(0, '{"a"')]
        ping = meta({"keepalive?": True, "provider_event": "ping"})
        assert response(*items, ping, fragment(0, ":1}")).tool_calls == (ToolCall("c1", "add", {"a": 1}, '{"a":1}'),)

    def test_e_without_a_final_meta_nothing_is_lost(self) -> None:
        answer = response(text("Hi"), tool_call("add", {"a": 1}, {"id": "c1"}))
        assert (answer.output_text, answer.finish_reason, answer.raw_finish_reason) == ("Hi", "tool_calls", None)
        assert answer.tool_calls[0].arguments == {"a": 1}

    def test_f_no_event_waits_for_the_next_chunk(self) -> None:
        source, emitted = Subject[StreamChunk](), list[Event]()
        source.pipe(from_chunks()).subscribe(emitted.append)
        for i, piece in enumerate("abc"):
            source.on_next(text(piece))
            assert emitted[1:] == [TextDelta(letter, "block_0") for letter in "abc"[: i + 1]]

    def test_g_leaving_cancels_the_source(self) -> None:
        left: list[str] = []
        source = reactivex.never().start_with(text("Hi")).finally_action(lambda: left.append("left"))
        subscription = source.pipe(from_chunks()).subscribe()
        assert not left
        subscription.dispose()
        assert left == ["left"]
        source.pipe(from_chunks(), ops.only(TextDelta)).take(1).run()
        assert left == ["left", "left"]

    def test_h_whole_arguments_are_kept(self) -> None:
        (call,) = completed(tool_call("add", {"a": 1}, {"id": "c1"}), meta({"finish_reason": "stop"}))
        assert call == CALL

    @pytest.mark.parametrize(
        "chunk",
        [
            fragment(0, None),
            meta({"tool_call_args": None}),
            meta({"tool_call_args": "x"}),
            StreamChunk("meta", metadata=None),  # type: ignore[arg-type]
            StreamChunk("content"),
            StreamChunk("thinking", metadata=None),  # type: ignore[arg-type]
            StreamChunk("tool_call", name="f", arguments=None, metadata=None),  # type: ignore[arg-type]
        ],
    )
    def test_i_what_is_nothing_raises_nothing(self, chunk: StreamChunk) -> None:
        assert response(text("Hi"), chunk).output_text == "Hi"

    @pytest.mark.parametrize("kind", ["content", "thinking"])
    @pytest.mark.parametrize("value", [3, {"a": 1}, b"Hi"])
    def test_i_text_that_is_no_string_is_not_swallowed(self, kind: str, value: Any) -> None:
        emitted = events(text("Hi"), StreamChunk(kind, text=value))
        assert emitted[-2] == TextCompleted("Hi", "block_0")
        assert isinstance(emitted[-1], ErrorEvent)
        assert emitted[-1].error.reason == "malformed_event"
        assert repr(value) in emitted[-1].error.message

    @pytest.mark.parametrize("error", [ValueError("x"), StopIteration("x"), AssertionError(), AdapterError("timeout")])
    def test_j_whatever_is_raised_ends_in_one_error_event(self, error: Exception) -> None:
        emitted = events(text("Hi"), error)
        assert isinstance(emitted[-1], ErrorEvent)
        assert emitted[-1].error is error or emitted[-1].error.__cause__ is error
        assert response(text("Hi"), error).output_text == "Hi"


class TestItsModelsOwn:
    """The tests of the normaliser that this one follows."""

    def test_the_documented_example(self) -> None:
        final = meta({"finish_reason": "stop", "usage": {"input_tokens": 10, "output_tokens": 5}})
        assert events(text("Hello"), final) == [
            STARTED,
            TextDelta("Hello", "block_0"),
            UsageUpdated(Usage(input_tokens=10, output_tokens=5)),
            TextCompleted("Hello", "block_0"),
            done("Hello", "stop", "stop"),
        ]

    def test_the_documented_example_is_made_of_plain_mappings(self) -> None:
        usage = {"input_tokens": 10, "output_tokens": 5}
        mappings = [
            {"type": "content", "text": "Hello"},
            {"type": "meta", "metadata": {"finish_reason": "stop", "usage": usage}},
        ]
        response = from_iterable(mappings).pipe(from_chunks(), ops.to_response()).run()
        assert (response.output_text, response.finish_reason, response.usage) == ("Hello", "stop", Usage(10, 5))

    def test_content(self) -> None:
        assert TextDelta("Hi", "block_0") in events(text("Hi"))

    def test_thinking(self) -> None:
        assert events(thinking("Hm"))[1:3] == [ThinkingDelta("Hm", "block_0"), ThinkingCompleted("Hm", id="block_0")]

    def test_a_call_whose_opening_brace_is_missing(self) -> None:
        items = [tool_call("add", metadata={"id": "c1", "index": 0}), fragment(0, '"a":'), fragment(0, "1}")]
        assert completed(*items) == [CALL]

    def test_a_call_whose_opening_brace_is_there(self) -> None:
        items = [tool_call("add", metadata={"id": "c1", "index": 0}), fragment(0, "  "), fragment(0, '{"a":1}')]
        assert completed(*items)[0].arguments == {"a": 1}

    def test_meta_ends_as_done(self) -> None:
        assert events(meta({"finish_reason": "stop"}))[-1] == done("", "stop", "stop")

    def test_an_unknown_type_is_a_raw_chunk_and_the_stream_goes_on(self) -> None:
        emitted = events(StreamChunk("sound", text="la"), text("Hi"))
        assert emitted[1] == RawChunk("sound", {"type": "sound", "text": "la"})
        assert emitted[2] == TextDelta("Hi", "block_0")

    def test_a_whole_stream(self) -> None:
        items = [thinking("Hm"), text("I will."), tool_call("add", metadata={"id": "c1"}), fragment(0, '{"a":1}')]
        last = meta({"finish_reason": "tool_calls", "usage": {"input_tokens": 1, "output_tokens": 2}})
        answer = response(*items, last)
        assert answer.message is not None
        assert answer.message.parts[:2] == (ThinkingPart("Hm"), TextPart("I will."))
        assert answer.tool_calls == (CALL.tool_call,)
        assert (answer.finish_reason, answer.usage.total) == ("tool_calls", 3)

    def test_malformed_arguments_are_told_and_never_an_empty_object(self) -> None:
        (call,) = completed(tool_call("add", metadata={"id": "c1"}), fragment(0, "{oops"))
        assert (call.arguments, call.raw_arguments, call.metadata) == ({}, "{oops", {"error": "invalid_json"})

    def test_no_fragments(self) -> None:
        assert completed(tool_call("add", metadata={"id": "c1"})) == [ToolCallCompleted("c1", "add", {}, "")]

    def test_an_exception_before_the_first_chunk(self) -> None:
        assert isinstance(events(BROKEN)[-1], ErrorEvent)

    def test_an_exception_after_a_delta(self) -> None:
        assert [type(event) for event in events(text("Hi"), BROKEN)[1:]] == [TextDelta, TextCompleted, ErrorEvent]


class TestCalls:
    def test_expected_fragments_that_never_come_are_told(self) -> None:
        (call,) = completed(tool_call("add", metadata={"id": "c1", "start": True}))
        assert (call.arguments, call.metadata) == ({}, {"error": "missing_fragments"})

    def test_an_empty_fragment_is_one(self) -> None:
        (call,) = completed(tool_call("now", metadata={"id": "c1", "start": True}), fragment(0, ""))
        assert (call.arguments, call.metadata) == ({}, {})

    def test_raw_arguments_are_the_first_fragment_and_their_marks_are_dropped(self) -> None:
        marks = {"raw_arguments": "{", "invalid_arguments": True, "unparseable_arguments": True}
        items = [tool_call("add", {}, {"id": "c1", **marks}), fragment(0, '"a":1}')]
        assert completed(*items) == [CALL]

    def test_a_fragment_before_its_call(self) -> None:
        items = [fragment(0, '{"a"'), tool_call("add", metadata={"id": "c1", "index": 0}), fragment(0, ":1}")]
        assert completed(*items) == [CALL]

    def test_a_fragment_without_a_call_does_not_vanish(self) -> None:
        assert RawChunk("tool_call_args", {"index": 7, "fragment": "{}"}) in events(fragment(7, "{"), fragment(7, "}"))

    def test_a_nameless_call_does_not_vanish(self) -> None:
        emitted = events(StreamChunk("tool_call", arguments={"a": 1}))
        assert emitted[1] == RawChunk("tool_call", {"type": "tool_call", "arguments": {"a": 1}})

    def test_fragments_belong_to_the_latest_call_of_their_index(self) -> None:
        items = [tool_call("a"), fragment(0, '{"x":1}'), tool_call("b"), fragment(0, '{"y":2}')]
        assert [call.arguments for call in completed(*items)] == [{"x": 1}, {"y": 2}]

    def test_parallel_calls_interleave(self) -> None:
        items = [tool_call("a", metadata={"index": 0}), tool_call("b", metadata={"index": 1})]
        pieces = zip('{"x":1}', '{"y":2}', strict=True)
        interleaved = [fragment(i, piece) for pair in pieces for i, piece in enumerate(pair)]
        assert [call.arguments for call in completed(*items, *interleaved)] == [{"x": 1}, {"y": 2}]

    def test_missing_ids_are_unique_in_the_thread(self) -> None:
        message = Message("assistant", tool_calls=(ToolCall("call_0", "a"), ToolCall("call_3", "b")))
        ids = [call.id for call in completed(tool_call("a"), tool_call("b"), tool_call("c"), messages=[message])]
        assert ids == ["call_2", "call_4", "call_5"]

    def test_a_repeated_id_is_made_unique(self) -> None:
        items = [tool_call("a", metadata={"id": "c1"}), tool_call("b", metadata={"id": "c1"})]
        assert [call.id for call in completed(*items)] == ["c1", "call_1"]

    def test_what_the_provider_runs_is_shown_and_never_to_be_run(self) -> None:
        answer = response(tool_call("search", {}, {"id": "c1", "builtin?": True}))
        assert (answer.tool_calls, answer.finish_reason) == ((), "stop")
        assert answer.message is not None
        assert answer.message.tool_calls[0].metadata == {"server": True}

    def test_metadata_of_a_call_may_come_late_or_early(self) -> None:
        late = meta({"tool_call_metadata": {"index": 0, "metadata": {"thought_signature": "s"}}})
        for either in ([tool_call("add"), late], [late, tool_call("add")]):
            assert completed(*either)[0].metadata == {"thought_signature": "s"}

    def test_arguments_may_be_text(self) -> None:
        assert completed(tool_call("add", '{"a":1}', {"id": "c1"})) == [CALL]

    def test_arguments_without_a_json_form_are_told(self) -> None:
        (call,) = completed(tool_call("add", {"a": object}, {"id": "c1"}))
        assert call.metadata == {"error": "invalid_json"}


class TestMeta:
    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            ("stop", "stop"),
            ("completed", "stop"),
            ("end_turn", "stop"),
            ("tool_calls", "tool_calls"),
            ("tool_use", "tool_calls"),
            ("length", "length"),
            ("max_tokens", "length"),
            ("max_output_tokens", "length"),
            ("content_filter", "content_filter"),
            ("error", "error"),
            ("cancelled", "other"),
            ("incomplete", "other"),
            ("unknown", "other"),
            ("whatever", "other"),
        ],
    )
    def test_finish_reasons(self, raw: str, reason: str) -> None:
        answer = response(text("Hi"), meta({"finish_reason": raw}), meta({"finish_reason": None}))
        assert (answer.finish_reason, answer.raw_finish_reason) == (reason, raw)

    def test_usage_after_the_finish_reason_counts(self) -> None:
        answer = response(meta({"finish_reason": "stop"}), meta({"usage": {"input_tokens": 5, "total_tokens": 99}}))
        assert (answer.usage.input_tokens, answer.usage.total) == (5, 99)

    def test_the_response_has_its_identity(self) -> None:
        answer = response(text("Hi"), meta({"response_id": "r1", "model": "m1"}))
        assert (answer.id, answer.model) == ("r1", "m1")
        assert events(meta({"response_id": "r1"}))[0] == MessageStarted(Message("assistant", metadata={"id": "r1"}))

    def test_annotations_are_sources_once(self) -> None:
        cited = [{"url": "a"}, {"url": "b"}, {"url": "a"}]
        emitted = events(text("Hi"), meta({"annotations": cited}), text(" you"))
        assert [event.source for event in emitted if isinstance(event, SourceAdded)] == [{"url": "a"}, {"url": "b"}]
        assert TextCompleted("Hi you", "block_0") in emitted

    def test_logprobs_are_of_the_message(self) -> None:
        last = events(meta({"logprobs": [1]}), meta({"logprobs": [2]}))[-1]
        assert isinstance(last, MessageCompleted)
        assert last.metadata == {"logprobs": [1, 2]}

    def test_unknown_keys_do_not_vanish(self) -> None:
        assert RawChunk("meta", {"phase": "x"}) in events(meta({"phase": "x", "terminal?": True}))

    @pytest.mark.parametrize(
        ("error", "message"), [("overloaded", "overloaded"), ({"message": "m"}, "m"), ({"code": 1}, "{'code': 1}")]
    )
    def test_an_error_in_the_stream(self, error: Any, message: str) -> None:
        emitted = events(text("Hi"), meta({"finish_reason": "error", "error": error, "usage": {"input_tokens": 1}}))
        assert emitted[-3:] == [
            UsageUpdated(Usage(input_tokens=1)),
            TextCompleted("Hi", "block_0"),
            ErrorEvent(StreamError("adapter_error", message)),
        ]


class TestParts:
    def test_a_signature_ends_its_block(self) -> None:
        items = [thinking("a"), thinking("b", {"signature": "s", "provider": "p"}), thinking("c")]
        assert [event for event in events(*items) if isinstance(event, ThinkingCompleted)] == [
            ThinkingCompleted("ab", "s", {"provider": "p"}, id="block_0"),
            ThinkingCompleted("c", id="block_1"),
        ]

    def test_whole_parts(self) -> None:
        parts = [
            TextPart("a"),
            ThinkingPart("b", "s", {"provider": "p"}),
            FilePart({"mime_type": "audio/pcm", "data": b"c"}),
            ImagePart(Image.from_url("https://example.com/d.png")),
            ImagePart(Image.from_base64("ZQ==", "image/png")),
            SourcePart({"url": "f"}),
            ProviderPart("p", {"g": 1}),
        ]
        message = response(*map(chunks.content_part, parts)).message
        assert message is not None
        files = [event.file for event in events(*map(chunks.content_part, parts)) if isinstance(event, FileAdded)]
        assert [file["mime_type"] for file in files] == ["audio/pcm", "image/*", "image/png"]
        assert files[2]["data"] == b"e"
        replaced = {3: FilePart(files[1]), 4: FilePart(files[2])}
        assert message.parts == tuple(replaced.get(i, part) for i, part in enumerate(parts))

    def test_what_is_only_for_the_stream_is_shown_raw(self) -> None:
        chunk = thinking("Hm", {"stream_only?": True})
        assert events(chunk, text("Hi"))[1].kind == "thinking"  # type: ignore[union-attr]
        message = response(chunk, text("Hi")).message
        assert message is not None
        assert message.parts == (TextPart("Hi"),)


class TestSubscribers:
    def test_a_subscribers_exception_is_its_own(self) -> None:
        """A source that tells its subscriber of the subscriber's exception must not see it turned into an event."""
        emitted: list[Any] = []

        def subscribe(observer: Any, scheduler: Any = None) -> None:
            try:
                observer.on_next(text("Hi"))
            except Exception as error:
                observer.on_error(error)

        def on_next(event: Event) -> None:
            emitted.append(type(event))
            raise BROKEN

        Observable(subscribe).pipe(from_chunks()).subscribe(on_next, emitted.append)
        assert emitted == [MessageStarted, BROKEN]

    def test_what_is_no_chunk_fails_the_stream(self) -> None:
        emitted = events(text("Hi"), {"content": "Ho"})
        assert isinstance(emitted[-1], ErrorEvent)
        assert emitted[-1].error.reason == "malformed_event"
        assert "is not a StreamChunk" in emitted[-1].error.message

    def test_it_can_be_subscribed_again(self) -> None:
        message = Message("assistant", tool_calls=(ToolCall("call_0", "a"),))
        piped = from_iterable([text("Hi"), tool_call("add")]).pipe(from_chunks(iter([message])))
        first, second = list(piped), list(piped)
        assert first == second
        assert ToolCallStarted("call_1", "add") in second


@given(st.lists(any_chunks, max_size=8), st.booleans())
def test_any_chunks_are_a_lawful_stream(items: list[StreamChunk], fails: bool) -> None:
    emitted = events(*items, *([BROKEN] if fails else []))
    again = events(*items, *([BROKEN] if fails else []))
    assert emitted == again


# Plain mappings


def test_chunks_are_given_as_plain_mappings_too() -> None:
    mappings = [
        {"type": "content", "text": "Hello"},
        {"type": "tool_call", "name": "add", "metadata": {"id": "c1", "index": 0}},
        {"type": "meta", "metadata": {"tool_call_args": {"index": 0, "fragment": '{"a": 1}'}}},
        {"type": "meta", "metadata": {"finish_reason": "tool_use", "usage": {"input_tokens": 10, "output_tokens": 5}}},
    ]
    chunks_ = [StreamChunk(**chunk) for chunk in mappings]
    assert list(from_iterable(mappings).pipe(from_chunks())) == list(from_iterable(chunks_).pipe(from_chunks()))
    response = from_iterable(mappings).pipe(from_chunks(), ops.to_response()).run()
    assert (response.output_text, response.tool_calls[0].arguments, response.usage) == ("Hello", {"a": 1}, Usage(10, 5))


@given(st.lists(any_chunks, max_size=8))
def test_any_chunks_give_the_same_events_as_mappings(items: list[StreamChunk]) -> None:
    plain = from_iterable([msgspec.structs.asdict(chunk) for chunk in items])
    assert list(plain.pipe(from_chunks())) == list(from_iterable(items).pipe(from_chunks()))


@pytest.mark.parametrize("other", [{"text": "Hi"}, {"type": "content", "txt": "Hi"}, {}])
def test_other_mappings_are_malformed(other: Any) -> None:
    (error,) = reactivex.of(other).pipe(from_chunks(), ops.only(ErrorEvent))
    assert isinstance(error.error, StreamError)
    assert error.error.reason == "malformed_event"
    assert "type, text, name, arguments, metadata, content_part" in error.error.message

"""The accumulator, scenario by scenario as its model's own tests have them, and its golden vectors."""

from __future__ import annotations

import copy
import logging
import pickle
from functools import reduce
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable

from rxllm import Message, ToolCall, chunks
from rxllm.chunks import ChunkAccumulator, StreamChunk, meta, text, thinking, tool_call
from rxllm.values import FilePart, Image, ImagePart, TextPart, ThinkingPart
from tests.chunks.anything import any_chunks


def fold(*items: StreamChunk) -> ChunkAccumulator:
    return ChunkAccumulator().reduce(items)


def calls(*items: StreamChunk) -> list[dict[str, Any]]:
    return fold(*items).finalize_tool_calls_for_response()


def fragment(index: Any, piece: Any) -> StreamChunk:
    return meta({"tool_call_args": {"index": index, "fragment": piece}})


def lost(reason: str, **more: Any) -> dict[str, Any]:
    return {**more, "error": ("args_lost", reason)}


class TestText:
    def test_01_text_is_joined(self) -> None:
        assert fold(text("Hel"), text("lo")).finalize_text() == "Hello"

    def test_02_empty_text_leaves_the_state(self) -> None:
        empty = ChunkAccumulator()
        assert empty.push(text("")) is empty


class TestThinking:
    def test_03_thinking_is_kept_apart(self) -> None:
        state = fold(thinking("Hm"), text("Hi"), thinking("."))
        assert (state.finalize_text(), state.finalize_thinking()) == ("Hi", "Hm.")


class TestToolCalls:
    def test_04_the_providers_id_is_kept(self) -> None:
        assert calls(tool_call("add", {}, {"id": "c9"}))[0]["id"] == "c9"

    def test_05_a_missing_id_is_made_of_the_position(self) -> None:
        items = [tool_call("a"), tool_call("b", {}, {"id": "call_2"}), tool_call("c"), tool_call("d")]
        assert [call["id"] for call in calls(*items)] == ["call_0", "call_2", "call_3", "call_4"]

    def test_06_a_call_without_a_name_is_left_out(self) -> None:
        empty = ChunkAccumulator()
        assert empty.push(StreamChunk("tool_call", arguments={"a": 1})) is empty
        assert calls(StreamChunk("tool_call", metadata={"name": "add"}))[0]["name"] == "add"

    def test_07_builtin_is_passed_on(self) -> None:
        assert calls(tool_call("search", {}, {"id": "c1", "builtin?": True})) == [
            {"id": "c1", "name": "search", "arguments": {}, "builtin?": True}
        ]


class TestMeta:
    def test_08_fragments_are_joined_per_index(self) -> None:
        items = [
            tool_call("a", {}, {"index": 0}),
            tool_call("b", {}, {"index": 1}),
            fragment(0, '{"x"'),
            fragment(1, '{"y"'),
            fragment(0, ":1}"),
            fragment(1, ":2}"),
        ]
        assert [call["arguments"] for call in calls(*items)] == [{"x": 1}, {"y": 2}]

    def test_09_reasoning_details_keep_their_order_over_chunks(self) -> None:
        state = fold(meta({"reasoning_details": [{"n": 1}, {"n": 2}]}), meta({"reasoning_details": [{"n": 3}]}))
        assert state.finalize_reasoning_details() == [{"n": 1}, {"n": 2}, {"n": 3}]

    def test_10_logprobs_keep_their_order_over_chunks(self) -> None:
        state = fold(meta({"logprobs": [1, 2]}), meta({"logprobs": [3]}), meta({"logprobs": "none"}))
        assert state.finalize_logprobs() == [1, 2, 3]


class TestForResponse:
    def test_11_fragments_are_decoded_and_the_index_dropped(self) -> None:
        items = [tool_call("add", {}, {"id": "c1", "index": 2}), fragment(2, '{"x":1}')]
        assert calls(*items) == [{"id": "c1", "name": "add", "arguments": {"x": 1}}]

    def test_12_bad_json_keeps_the_calls_own_arguments_and_is_marked_and_told(self, caplog: Any) -> None:
        items = [tool_call("add", {"d": 1}, {"id": "c1"}), fragment(0, "{oops")]
        assert calls(*items) == [
            {"id": "c1", "name": "add", "arguments": {"d": 1}, "metadata": lost("json_decode_error")}
        ]
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("rxllm", logging.WARNING)
        details = {"tool_name": "add", "tool_call_id": "c1", "reason": "json_decode_error", "json_bytes": 5}
        assert record.lost == details

    def test_13_the_log_has_the_bytes_but_not_the_secret(self, caplog: Any) -> None:
        calls(tool_call("add", {}, {"id": "c1"}), fragment(0, '{"password": "hunter2"'))
        assert "json_bytes=22" in caplog.text
        assert "hunter2" not in caplog.text
        assert "hunter2" not in str(vars(caplog.records[0]))

    def test_14_direct_arguments_are_not_missing(self, caplog: Any) -> None:
        assert "metadata" not in calls(tool_call("add", {"x": 1}))[0]
        assert not caplog.records

    def test_15_the_calls_own_metadata_are_kept_and_control_keys_dropped(self) -> None:
        control = {
            "id": "c1",
            "index": 0,
            "name": "other",
            "builtin?": False,
            "start": False,
            "expects_arg_fragments": False,
            "args_fragment_expected?": False,
            "done_at_unix_nano": 1,
        }
        kept = {"thought_signature": "s", "segment_type": "x"}
        assert calls(tool_call("add", {}, {**control, **kept})) == [
            {"id": "c1", "name": "add", "arguments": {}, "metadata": kept}
        ]

    @pytest.mark.parametrize("key", ["start", "expects_arg_fragments", "args_fragment_expected?"])
    def test_16_expected_but_missing_fragments_are_marked_and_told(self, key: str, caplog: Any) -> None:
        assert calls(tool_call("add", {}, {key: True}))[0]["metadata"] == lost("missing_fragments")
        assert [record.lost["reason"] for record in caplog.records] == ["missing_fragments"]
        assert "metadata" not in calls(tool_call("add", {}, {key: "yes"}))[0]

    def test_17_nothing_gives_an_empty_list(self) -> None:
        assert calls() == []


class TestMessage:
    def test_18_none_when_there_is_nothing(self) -> None:
        assert fold().finalize_message() is None

    def test_19_a_message_of_text(self) -> None:
        assert fold(text("H"), text("i")).finalize_message() == Message("assistant", "Hi")

    def test_20_calls_are_tool_calls(self) -> None:
        message = fold(tool_call("add", {"x": 1}, {"id": "c1"})).finalize_message()
        assert message == Message("assistant", "", tool_calls=(ToolCall("c1", "add", {"x": 1}, '{"x":1}'),))

    def test_21_what_the_provider_runs_is_marked(self) -> None:
        message = fold(tool_call("search", {}, {"id": "c1", "builtin?": True})).finalize_message()
        assert message is not None
        assert message.tool_calls[0].metadata == {"server": True}

    def test_22_metadata_are_on_the_call(self) -> None:
        message = fold(tool_call("add", {}, {"id": "c1", "thought_signature": "s"})).finalize_message()
        assert message is not None
        assert message.tool_calls[0].metadata == {"thought_signature": "s"}


def test_23_reduce_is_repeated_push() -> None:
    items = [
        text("a"),
        thinking("b"),
        tool_call("c", {}, {"index": 0}),
        fragment(0, "{}"),
        meta({"finish_reason": "x"}),
    ]
    assert fold(*items) == reduce(ChunkAccumulator.push, items, ChunkAccumulator())


class TestFinishReason:
    def test_24_one(self) -> None:
        assert fold(meta({"finish_reason": "end_turn"})).finalize_finish_reason() == "end_turn"

    def test_25_the_latest_wins(self) -> None:
        assert fold(meta({"finish_reason": "a"}), meta({"finish_reason": "b"})).finalize_finish_reason() == "b"

    def test_26_none_overwrites_nothing(self) -> None:
        assert fold(meta({"finish_reason": "a"}), meta({"finish_reason": None})).finalize_finish_reason() == "a"

    def test_27_none_without_one(self) -> None:
        assert fold(text("Hi")).finalize_finish_reason() is None


class TestUsage:
    def test_28_counters_and_their_total(self) -> None:
        usage = fold(meta({"usage": {"input_tokens": 5, "output_tokens": 2, "cached_tokens": 1}})).finalize_usage()
        assert usage == {
            "input_tokens": 5,
            "output_tokens": 2,
            "cached_tokens": 1,
            "total_tokens": 7,
            "input": 5,
            "output": 2,
        }

    def test_29_the_larger_number_counts(self) -> None:
        usages = [{"input_tokens": 5, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 9}]
        usage = fold(*(meta({"usage": usage}) for usage in usages)).finalize_usage()
        assert usage is not None
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (5, 9, 14)

    def test_30_none_without_usage(self) -> None:
        assert fold(meta({"usage": "much"}), text("Hi")).finalize_usage() is None

    def test_a_counter_of_none_says_nothing(self) -> None:
        usage = fold(meta({"usage": {"input_tokens": 5}}), meta({"usage": {"input_tokens": None}})).finalize_usage()
        assert usage is not None
        assert usage["input_tokens"] == 5


class TestOrder:
    def test_31_fifty_calls_for_the_response(self) -> None:
        assert [call["name"] for call in calls(*(tool_call(f"t{i}") for i in range(50)))] == [
            f"t{i}" for i in range(50)
        ]

    def test_32_ten_calls_of_a_message(self) -> None:
        message = fold(*(tool_call(f"t{i}") for i in range(10))).finalize_message()
        assert message is not None
        assert [call.name for call in message.tool_calls] == [f"t{i}" for i in range(10)]

    def test_33_twenty_reasoning_details(self) -> None:
        state = fold(*(meta({"reasoning_details": [i]}) for i in range(20)))
        assert state.finalize_reasoning_details() == list(range(20))

    def test_34_ten_logprobs_of_one_chunk(self) -> None:
        assert fold(meta({"logprobs": list(range(10))})).finalize_logprobs() == list(range(10))


class TestLaterFixes:
    def test_an_empty_fragment_means_the_calls_own_arguments(self, caplog: Any) -> None:
        items = [tool_call("add", {"d": 1}, {"id": "c1", "start": True}), fragment(0, "")]
        assert calls(*items) == [{"id": "c1", "name": "add", "arguments": {"d": 1}}]
        assert not caplog.records

    def test_raw_arguments_are_the_first_fragment(self) -> None:
        items = [tool_call("add", {}, {"raw_arguments": "{"}), fragment(0, '"x":1}')]
        assert calls(*items)[0]["arguments"] == {"x": 1}

    def test_annotations_are_given_once(self) -> None:
        state = fold(meta({"annotations": [{"u": 1}, {"u": 2}, {"u": 1}]}), meta({"annotations": [{"u": 2}]}))
        assert state.finalize_annotations() == [{"u": 1}, {"u": 2}]

    def test_whole_parts_keep_their_place(self) -> None:
        image = ImagePart(Image.from_url("https://example.com/a.png"))
        items = [text("a"), text("b"), thinking("c"), text("d"), chunks.content_part(image), text("e")]
        state = fold(*items)
        assert state.finalize_content_parts() == [image]
        ordered = [TextPart("ab"), ThinkingPart("c"), TextPart("d"), image, TextPart("e")]
        assert state.finalize_ordered_content() == ordered
        without = [TextPart("abd"), image, TextPart("e")]
        assert state.finalize_ordered_content(include_thinking=False) == without
        assert state.finalize_message() == Message("assistant", tuple(without))

    def test_a_file_alone_is_a_message(self) -> None:
        file = FilePart({"mime_type": "image/png", "url": "x"})
        assert fold(chunks.content_part(file)).finalize_message() == Message("assistant", (file,))

    def test_what_is_only_for_the_stream_is_not_kept(self) -> None:
        only = {"stream_only?": True}
        state = fold(thinking("Hm", only), chunks.content_part(FilePart({}), only), text("Hi"))
        assert (state.finalize_thinking(), state.finalize_content_parts()) == ("", [])

    def test_metadata_of_an_index_join_its_calls(self) -> None:
        update = {"index": 1, "metadata": {"thought_signature": "s", "id": "other"}}
        items = [tool_call("a", {}, {"index": 0}), tool_call("b", {}, {"index": 1, "kept": 1})]
        result = calls(*items, meta({"tool_call_metadata": update}))
        assert "metadata" not in result[0]
        assert result[1]["metadata"] == {"kept": 1, "thought_signature": "s"}


def arguments(*items: StreamChunk) -> tuple[list[Any], list[Any]]:
    """The arguments for the response, and the text of those for the message."""
    message = fold(*items).finalize_message()
    return [c["arguments"] for c in calls(*items)], [c.raw_arguments for c in message.tool_calls] if message else []


class TestGoldenVectors:
    def test_a_whole_call(self) -> None:
        assert calls(tool_call("a", {"x": 1}, {"id": "i"})) == [{"id": "i", "name": "a", "arguments": {"x": 1}}]

    def test_a_fragment_before_its_call(self) -> None:
        assert arguments(fragment(0, '{"x":'), tool_call("a", {}, {"index": 0}), fragment(0, "1}"))[0] == [{"x": 1}]

    def test_both_indexes_default_to_zero(self) -> None:
        assert arguments(tool_call("a", {"d": 1}), meta({"tool_call_args": {"fragment": "{}"}}))[0] == [{}]

    def test_calls_of_one_index_share_their_fragments(self) -> None:
        items = [tool_call("a", {}, {"index": 0}), tool_call("b", {}, {"index": 0}), fragment(0, '{"x":1}')]
        assert arguments(*items)[0] == [{"x": 1}, {"x": 1}]

    def test_the_order_is_that_of_arrival(self) -> None:
        assert [c["name"] for c in calls(tool_call("b", {}, {"index": 1}), tool_call("a", {}, {"index": 0}))] == [
            "b",
            "a",
        ]

    def test_a_started_call_without_fragments(self) -> None:
        (call,) = calls(tool_call("a", {"d": 1}, {"start": True}))
        assert (call["arguments"], call["metadata"]) == ({"d": 1}, lost("missing_fragments"))

    def test_the_two_contracts_differ_over_bad_json(self, caplog: Any) -> None:
        items = [tool_call("a", {"d": 1}), fragment(0, "nope")]
        message = fold(*items).finalize_message()
        assert message is not None
        assert message.tool_calls == (ToolCall("call_0", "a", {"d": 1}, '{"d":1}'),)
        assert not caplog.records
        assert (calls(*items)[0]["arguments"], calls(*items)[0]["metadata"]) == ({"d": 1}, lost("json_decode_error"))

    def test_a_fragment_without_a_call(self) -> None:
        assert (calls(fragment(7, "{}")), fold(fragment(7, "{}")).finalize_message()) == ([], None)

    def test_arguments_that_are_a_list(self) -> None:
        assert arguments(tool_call("a"), fragment(0, "[1]")) == ([[1]], ["[1]"])

    def test_arguments_that_are_a_number(self) -> None:
        assert arguments(tool_call("a"), fragment(0, "3")) == ([3], ["{}"])

    def test_an_empty_fragment(self) -> None:
        assert "metadata" not in calls(tool_call("a"), fragment(0, ""))[0]

    def test_a_finish_reason_of_none(self) -> None:
        state = fold(meta({"finish_reason": "stop"}), meta({"finish_reason": None}))
        assert state.finalize_finish_reason() == "stop"

    def test_the_total_is_counted_anew(self) -> None:
        usage = fold(meta({"usage": {"input_tokens": 5, "total_tokens": 99}})).finalize_usage()
        assert usage == {"input_tokens": 5, "total_tokens": 5, "input": 5, "output": 0}

    def test_thinking_alone_is_no_message(self) -> None:
        state = fold(thinking("x"))
        assert (state.finalize_message(), state.finalize_thinking()) == (None, "x")

    def test_an_unknown_type_leaves_the_state(self) -> None:
        state = fold(text("Hi"))
        assert state.push(StreamChunk("sound", text="la")) is state
        assert state.push("la") is state  # type: ignore[arg-type]


class TestSiblings:
    """What the tests of the neighbouring modules say."""

    def test_parallel_fragments_interleave(self) -> None:
        items = [tool_call("a", {}, {"index": 0, "start": True}), tool_call("b", {}, {"index": 1, "start": True})]
        pieces = zip('{"x":1}', '{"y":2}', strict=True)
        interleaved = [fragment(i, piece) for pair in pieces for i, piece in enumerate(pair)]
        assert arguments(*items, *interleaved)[0] == [{"x": 1}, {"y": 2}]

    def test_a_late_chunk_of_zeros_takes_nothing_back(self) -> None:
        zeros = {"input_tokens": 0, "output_tokens": 0}
        usage = fold(meta({"usage": {"input_tokens": 5, "output_tokens": 7}}), meta({"usage": zeros})).finalize_usage()
        assert usage is not None
        assert (usage["input_tokens"], usage["output_tokens"]) == (5, 7)

    def test_a_call_without_fragments_has_empty_arguments(self) -> None:
        assert arguments(tool_call("a"))[0] == [{}]

    def test_a_generator_of_chunks_is_reduced(self) -> None:
        assert ChunkAccumulator().reduce(text(piece) for piece in "Hi").finalize_text() == "Hi"

    def test_an_index_of_none_is_an_index(self) -> None:
        items = [tool_call("a", {}, {"index": None}), fragment(None, '{"x":1}'), tool_call("b"), fragment(0, '{"y":2}')]
        assert arguments(*items)[0] == [{"x": 1}, {"y": 2}]


def finalized(state: ChunkAccumulator) -> Any:
    return copy.deepcopy(
        [
            state.finalize_text(),
            state.finalize_thinking(),
            state.finalize_ordered_content(),
            state.finalize_tool_calls_for_response(),
            state.finalize_message(),
            state.finalize_usage(),
            state.finalize_finish_reason(),
            state.finalize_logprobs(),
            state.finalize_reasoning_details(),
            state.finalize_annotations(),
        ]
    )


@given(st.lists(any_chunks, max_size=8))
def test_any_chunk_is_accepted_and_reduce_is_repeated_push(items: list[StreamChunk]) -> None:
    state = ChunkAccumulator()
    for chunk in items:
        state = state.push(chunk)
    assert finalized(state) == finalized(ChunkAccumulator().reduce(items))
    assert state == ChunkAccumulator().reduce(items)
    repr(state)


@given(st.lists(any_chunks, min_size=1, max_size=6), st.lists(any_chunks, max_size=4))
def test_push_never_changes_an_earlier_state(items: list[StreamChunk], others: list[StreamChunk]) -> None:
    states = [ChunkAccumulator()]
    for chunk in items:
        states.append(states[-1].push(chunk))
    before = [finalized(state) for state in states]
    for state in states:  # forks
        state.reduce(others)
    assert [finalized(state) for state in states] == before


def test_scan_can_be_subscribed_again() -> None:
    scanned = from_iterable([text("a"), text("b")]).scan(ChunkAccumulator.push, ChunkAccumulator())
    emitted = [[state.finalize_text() for state in _all(scanned)] for _ in range(3)]
    assert emitted == [["a", "ab"]] * 3


def test_interleaved_subscriptions_of_one_scan_do_not_meet() -> None:
    start = ChunkAccumulator()
    one, other = start.push(text("a")), start.push(text("x"))
    one, other = one.push(text("b")), other.push(text("y"))
    assert (one.finalize_text(), other.finalize_text(), start.finalize_text()) == ("ab", "xy", "")


@pytest.mark.parametrize("chunk", [text("a"), thinking("a"), fragment(0, "a"), meta({"logprobs": [1]})])
def test_a_push_copies_nothing(chunk: StreamChunk) -> None:
    """O(1) a chunk: successive states share one log."""
    first = ChunkAccumulator().push(chunk)
    later = first.reduce([chunk] * 1000)
    assert later.log is first.log
    assert (first.length, later.length) == (1, 1001)


def test_states_pickle() -> None:
    longer = fold(text("a")).push(text("b"))
    shorter = fold(text("a"))
    assert pickle.loads(pickle.dumps(longer)) == longer
    assert pickle.loads(pickle.dumps(shorter)) == shorter
    assert longer != shorter


def _all(source: Any) -> list[Any]:
    emitted: list[Any] = []
    source.subscribe(emitted.append)
    return emitted


class TestState:
    """The fields of the state can be read while it grows."""

    def test_an_empty_one(self) -> None:
        assert fields(ChunkAccumulator()) == {
            "text_content": "",
            "thinking_content": "",
            "tool_calls": [],
            "arg_fragments": {},
            "reasoning_details": [],
            "logprobs": [],
            "finish_reason": None,
            "usage": None,
        }

    def test_a_full_one(self) -> None:
        state = fold(
            thinking("Hm."),
            text("Hel"),
            tool_call("add", {"a": 1}, {"id": "c1", "index": 1, "start": True, "note": "n"}),
            text("lo"),
            fragment(1, '{"a"'),
            tool_call("search", None, {"builtin?": True}),
            fragment(1, ": 2}"),
            meta({"reasoning_details": ["r"], "logprobs": [-0.1], "finish_reason": "end_turn"}),
            meta({"usage": {"input_tokens": 3, "output_tokens": 2}}),
        )
        assert fields(state) == {
            "text_content": "Hello",
            "thinking_content": "Hm.",
            "tool_calls": [
                {
                    "id": "c1",
                    "name": "add",
                    "arguments": {"a": 1},
                    "index": 1,
                    "expects_arg_fragments": True,
                    "metadata": {"note": "n"},
                },
                {"id": "call_1", "name": "search", "arguments": {}, "index": 0, "builtin?": True},
            ],
            "arg_fragments": {1: '{"a": 2}'},
            "reasoning_details": ["r"],
            "logprobs": [-0.1],
            "finish_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, "input": 3, "output": 2},
        }

    def test_an_earlier_state_still_reads_as_it_was(self) -> None:
        earlier = fold(text("Hel"))
        earlier.push(text("lo")).push(tool_call("add"))
        assert (earlier.text_content, earlier.tool_calls) == ("Hel", [])


def fields(state: ChunkAccumulator) -> dict[str, Any]:
    names = ("text_content", "thinking_content", "tool_calls", "arg_fragments")
    names += ("reasoning_details", "logprobs", "finish_reason", "usage")
    return {name: getattr(state, name) for name in names}


class TestPlainMappings:
    def test_they_are_chunks(self) -> None:
        mappings = [{"type": "content", "text": "Hi"}, {"type": "meta", "metadata": {"finish_reason": "stop"}}]
        assert ChunkAccumulator().reduce(mappings) == fold(text("Hi"), meta({"finish_reason": "stop"}))

    @given(st.lists(any_chunks, max_size=8))
    def test_any_chunks_fold_the_same(self, items: list[StreamChunk]) -> None:
        assert ChunkAccumulator().reduce([msgspec.structs.asdict(chunk) for chunk in items]) == fold(*items)

    @pytest.mark.parametrize("other", [{}, {"text": "Hi"}, {"type": "content", "txt": "Hi"}, {3: "content"}])
    def test_other_mappings_leave_the_state(self, other: Any) -> None:
        empty = ChunkAccumulator()
        assert empty.push(other) is empty

"""Which call a delta belongs to, when a call starts, and what it is called."""

import pytest

from rxllm.events import ToolCallCompleted, ToolCallDelta, ToolCallStarted
from rxllm.values import Message, StreamError, ToolCall
from rxllm.wire.tool_calls import CallTracker


def calls(*deltas, taken=(), failed=False):
    """Id, name and raw arguments of every call that these deltas make."""
    tracker = CallTracker(taken)
    events = [event for delta in deltas for event in tracker.feed(*delta)] + tracker.close(failed=failed)
    return [(e.id, e.name, e.raw_arguments) for e in events if isinstance(e, ToolCallCompleted)]


def completed(*deltas, failed=False):
    tracker = CallTracker()
    for delta in deltas:
        tracker.feed(*delta)
    (event,) = (event for event in tracker.close(failed=failed) if isinstance(event, ToolCallCompleted))
    return event


def test_interleaved_calls_are_told_apart_by_index():
    deltas = [(0, "a", "f", ""), (1, "b", "g", ""), (0, None, None, "{}"), (1, None, None, '{"x":1}')]
    assert calls(*deltas) == [("a", "f", "{}"), ("b", "g", '{"x":1}')]


def test_an_index_reused_with_a_new_id_is_a_new_call():
    assert calls((0, "a", "f", "{}"), (0, "b", "f", '{"x":1}')) == [("a", "f", "{}"), ("b", "f", '{"x":1}')]


def test_an_id_invented_for_every_delta_is_no_new_call():
    assert calls((0, "a", "f", '{"x"'), (0, "b", None, ":1}")) == [("a", "f", '{"x":1}')]


def test_a_missing_index_follows_the_id():
    deltas = [(None, "a", "f", '{"x"'), (-1, "b", "g", "{"), (None, "a", None, ":1}"), (None, "b", None, "}")]
    assert calls(*deltas) == [("a", "f", '{"x":1}'), ("b", "g", "{}")]


def test_without_index_and_id_the_latest_call_goes_on():
    assert calls((None, "a", "f", '{"x"'), (None, "", "", ":1}")) == [("a", "f", '{"x":1}')]


def test_without_index_and_id_a_name_after_whole_arguments_is_a_new_call():
    assert calls((None, None, "f", "{}"), (None, None, "f", "{}")) == [("call_0", "f", "{}"), ("call_1", "f", "{}")]
    assert calls((None, None, "f", '{"x"'), (None, None, "f", ":1}")) == [("call_0", "f", '{"x":1}')]
    assert calls((None, None, "f", ""), (None, None, "g", "{}")) == [("call_0", "f", ""), ("call_1", "g", "{}")]


def test_empty_ids_on_later_deltas_change_nothing():
    assert calls((0, "a", "f", ""), (0, "", "", '{"x"'), (0, "", None, ":1}")) == [("a", "f", '{"x":1}')]


def test_a_name_sent_on_every_delta_is_not_joined():
    assert calls((0, "a", "f", '{"x"'), (0, "a", "f", ":1}")) == [("a", "f", '{"x":1}')]


def test_a_late_id_is_waited_for():
    tracker = CallTracker()
    assert tracker.feed(0, None, "f", '{"x"') == []
    assert tracker.feed(0, "a", None, None) == [ToolCallStarted("a", "f"), ToolCallDelta("a", '{"x"')]
    assert tracker.feed(0, "later", None, ":1}") == [ToolCallDelta("a", ":1}")]


def test_calls_start_in_their_order():
    tracker = CallTracker()
    assert tracker.feed(0, None, "f", "{}") == []
    assert tracker.feed(1, "b", "g", "{}") == []
    started = [event.id for event in tracker.feed(0, "a", None, None) if isinstance(event, ToolCallStarted)]
    assert started == ["a", "b"]


def test_an_id_that_never_comes_is_counted():
    assert calls((0, None, "f", "{}"), (1, "", "g", "{}")) == [("call_0", "f", "{}"), ("call_1", "g", "{}")]
    assert calls((0, None, "f", "{}"), taken=["x", "y"]) == [("call_2", "f", "{}")]
    assert calls((0, None, "f", "{}"), taken=["call_1"]) == [("call_2", "f", "{}")]


def test_a_repeated_id_is_replaced():
    assert calls((0, "a", "f", "{}"), (1, "a", "g", "{}")) == [("a", "f", "{}"), ("call_1", "g", "{}")]
    assert calls((0, "a", "f", "{}"), taken=["a"]) == [("call_1", "f", "{}")]


def test_the_thread_says_which_ids_are_taken():
    said = [Message("assistant", tool_calls=(ToolCall("call_0", "f"),))]
    tracker = CallTracker.after(said)
    tracker.feed(0, None, "f", "{}")
    assert tracker.close()[0] == ToolCallStarted("call_1", "f")


def test_arguments_as_an_object_are_written_as_json():
    assert calls((0, "a", "f", {"x": [1]})) == [("a", "f", '{"x":[1]}')]


def test_no_arguments_are_an_empty_object():
    assert completed((0, "a", "f", None)) == ToolCallCompleted("a", "f", {}, "")


def test_arguments_that_are_no_object_are_kept_and_named():
    for raw in ('{"x":', "[1]", '"x"', "nonsense"):
        assert completed((0, "a", "f", raw)) == ToolCallCompleted("a", "f", {}, raw, {"error": "invalid_json"})


def test_calls_of_a_failed_stream_are_incomplete():
    event = completed((0, "a", "f", '{"x":'), failed=True)
    assert event == ToolCallCompleted("a", "f", {}, '{"x":', {"error": "incomplete"})


def test_a_wire_may_complete_a_call_by_itself():
    tracker = CallTracker()
    tracker.feed(3, "a", "f", "{}", {"server": True})
    assert tracker.complete(3) == [ToolCallCompleted("a", "f", {}, "{}", {"server": True})]
    assert tracker.complete(9) == tracker.close() == []


# Calls that come in turn


def in_turn(*deltas):
    tracker = CallTracker(in_turn=True)
    return [event for delta in deltas for event in tracker.feed(*delta)], tracker


def test_a_whole_call_is_complete_when_another_begins():
    events, tracker = in_turn((0, "a", "f", '{"x"'), (0, None, None, ":1}"), (1, "b", "g", ""))
    assert events[3:] == [ToolCallCompleted("a", "f", {"x": 1}, '{"x":1}'), ToolCallStarted("b", "g")]
    assert [event.id for event in tracker.close()] == ["b"]


def test_a_whole_call_is_complete_when_text_begins_and_not_before():
    events, tracker = in_turn((0, "a", "f", "{}"))
    assert [type(event) for event in events] == [ToolCallStarted, ToolCallDelta]
    assert tracker.leave() == [ToolCallCompleted("a", "f", {}, "{}")]
    assert tracker.leave() == tracker.close() == []


def test_a_call_that_is_not_whole_waits_for_the_rest():
    deltas = [(0, "a", "f", '{"x"'), (1, "b", "g", '{"y":2}'), (0, None, None, ":1}"), (1, None, None, None)]
    events, tracker = in_turn(*deltas)
    completed_calls = [event for event in events + tracker.close() if isinstance(event, ToolCallCompleted)]
    assert [(event.id, event.arguments) for event in completed_calls] == [("b", {"y": 2}), ("a", {"x": 1})]


@pytest.mark.parametrize("more", ["", " \n", None, '{"x":1}', {"x": 1}])
def test_what_adds_nothing_to_a_complete_call_is_no_error(more):
    _, tracker = in_turn((0, "a", "f", '{"x":1}'), (1, "b", "g", "{}"))
    assert tracker.feed(0, "a", "f", more) == [ToolCallCompleted("b", "g", {}, "{}")]


def test_what_adds_to_a_complete_call_is_an_error():
    _, tracker = in_turn((0, "a", "f", "{}"), (1, "b", "g", "{}"))
    with pytest.raises(StreamError, match="the call a was complete, and gets more arguments: x"):
        tracker.feed(0, None, None, "x")


@pytest.mark.parametrize("arguments", ['{"p":1}', "{}", {"p": 1}])
@pytest.mark.parametrize("turn", [True, False])
def test_arguments_that_come_twice_count_once(arguments, turn):
    tracker = CallTracker(in_turn=turn)
    for _ in range(2):
        tracker.feed(0, "a", "f", arguments)
    (event,) = tracker.close()
    assert event.arguments == ({} if arguments == "{}" else {"p": 1})

"""Whatever a decoder reports, in whatever order, the events are lawful."""

from hypothesis import given
from hypothesis import strategies as st

from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.values import AdapterError, Message, StreamError, Usage
from rxllm.wire.event_order import Blocks
from tests.wire.lawful import lawful

REPORTS = [
    ("text", "a"),
    ("text", ""),
    ("text", "b", "block"),
    ("refusal", "no"),
    ("thinking", "t"),
    ("thinking", "u", "block"),
    ("sign", "signature"),
    ("call", 0, "a", "f", "{}"),
    ("call", 0, None, None, "}"),
    ("call", 1, None, "g", "{"),
    ("call", None, "b", "h", "{}", {"server": True}),
    ("complete_call", 0),
    ("source", {"url": "u"}),
    ("file", {"mime_type": "image/png", "url": "u"}),
    ("raw", "chunk", {}),
    ("usage", Usage(input_tokens=1)),
    ("usage", Usage(input_tokens=2)),
    ("finish", "stop", "stop"),
    ("finish", "length", "length"),
    ("error", AdapterError("unknown")),
    ("close_block",),
]


def said(*reports):
    blocks = Blocks()
    for name, *arguments in reports:
        getattr(blocks, name)(*arguments)
    return blocks.take()


def kinds(events):
    return [type(event) for event in events]


@given(st.lists(st.sampled_from(REPORTS), max_size=15), st.booleans())
def test_any_reports_are_lawful(reports, over):
    blocks = Blocks()
    for name, *arguments in reports:
        getattr(blocks, name)(*arguments)
    blocks.end(over=over)
    lawful(blocks.take())


def test_one_kind_closes_the_other():
    events = said(("thinking", "t"), ("text", "a"), ("call", 0, "a", "f", "{}"), ("text", "b"))
    assert events[1:] == [
        ThinkingDelta("t", "block_0"),
        ThinkingCompleted("t", id="block_0"),
        TextDelta("a", "block_1"),
        TextCompleted("a", "block_1"),
        ToolCallStarted("a", "f"),
        ToolCallDelta("a", "{}"),
        TextDelta("b", "block_2"),
    ]


def test_blocks_of_other_ids_are_other_blocks():
    assert said(("text", "a", "x"), ("text", "b", "y"))[1:] == [
        TextDelta("a", "x"),
        TextCompleted("a", "x"),
        TextDelta("b", "y"),
    ]


def test_a_block_without_an_id_is_counted_and_its_deltas_and_completion_have_its_id():
    ids = [event.id for event in said(("text", "a"), ("text", "b"), ("thinking", "t"), ("text", "c", "x"))[1:]]
    assert ids == ["block_0", "block_0", "block_0", "block_1", "block_1", "x"]


def test_a_block_closed_by_hand_is_another_one():
    assert said(("text", "a"), ("close_block",), ("text", "b"))[1:] == [
        TextDelta("a", "block_0"),
        TextCompleted("a", "block_0"),
        TextDelta("b", "block_1"),
    ]


def test_ids_of_whole_events_are_not_given_again():
    events = said(("event", ThinkingDelta("t", "block_0")), ("event", ThinkingCompleted("t", id="block_0")))
    assert [event.id for event in events] == ["block_0", "block_0"]
    blocks = Blocks()
    blocks.event(ThinkingCompleted("t", id="block_0"))
    blocks.text("a")
    assert blocks.take()[-1] == TextDelta("a", "block_1")


def test_a_source_waits_for_the_end_of_its_block():
    events = said(("text", "a"), ("source", {"url": "u"}), ("text", "b"), ("finish", "stop", "stop"), ("end",))
    assert kinds(events)[1:5] == [TextDelta, TextDelta, TextCompleted, SourceAdded]


def test_a_signature_without_thinking_is_an_empty_block():
    assert said(("sign", None, {"data": "x"}), ("text", "a"))[1] == ThinkingCompleted(
        "", None, {"data": "x"}, id="block_0"
    )


def test_usage_is_said_once_per_change():
    one, two = Usage(input_tokens=1), Usage(input_tokens=2)
    assert said(("usage", one), ("usage", one), ("usage", two))[1:] == [UsageUpdated(one), UsageUpdated(two)]


def test_an_error_closes_what_is_open():
    error = AdapterError("unknown")
    events = said(("text", "a"), ("call", 0, "a", "f", "{"), ("error", error), ("text", "late"), ("end",))
    assert events[-2:] == [ToolCallCompleted("a", "f", {}, "{", {"error": "incomplete"}), ErrorEvent(error)]


def test_an_end_without_a_finish_is_truncated():
    assert said(("text", "a"), ("end",))[-2:] == [TextCompleted("a", "block_0"), ErrorEvent(_TRUNCATED)]
    assert said(("end",)) == [MessageStarted(Message("assistant")), ErrorEvent(_TRUNCATED)]


_TRUNCATED = StreamError("truncated", "the stream ended without a finish reason or an end marker")


def test_the_finish_reason_is_derived():
    call = ("call", 0, "a", "f", "{}")
    server = ("call", 0, "a", "f", "{}", {"server": True})
    for reports, reason in [
        ([call, ("finish", "stop", "stop")], "tool_calls"),
        ([call, ("finish", "length", "length")], "length"),
        ([server, ("finish", "stop", "stop")], "stop"),
        ([("finish", "tool_calls", "tool_calls"), ("finish", "stop", "stop")], "tool_calls"),
        ([("refusal", "no"), ("finish", "stop", "stop")], "content_filter"),
    ]:
        terminal = said(*reports, ("end",))[-1]
        assert isinstance(terminal, MessageCompleted)
        assert terminal.finish_reason == reason


def test_what_comes_late_is_in_the_completed_message():
    blocks = Blocks()
    blocks.start(id="", model="m")
    blocks.start(id="r", model="other")
    blocks.end(over=True)
    started, completed = blocks.take()
    assert started == MessageStarted(Message("assistant", metadata={"model": "m"}))
    assert isinstance(completed, MessageCompleted)
    assert completed.message.metadata == {"id": "r", "model": "m"}


def test_raw_comes_after_the_start():
    assert kinds(said(("raw", "chunk", {}))) == [MessageStarted, RawChunk]


def test_a_refusal_is_a_block_of_its_own_and_marked() -> None:
    for id in (None, "m"):
        blocks = Blocks()
        blocks.text("Well. ", id)
        blocks.refusal("No", id)
        blocks.refusal(".", id)
        blocks.text(" So.", id)
        blocks.end(over=True)
        *_, end = events = blocks.take()
        lawful(events)
        texts = [(event.text, event.refusal) for event in events if isinstance(event, TextCompleted)]
        assert texts == [("Well. ", False), ("No.", True), (" So.", False)]
        assert [event.refusal for event in events if isinstance(event, TextDelta)] == [False, True, True, False]
        assert (end.message.text, end.finish_reason) == ("Well. No. So.", "content_filter")

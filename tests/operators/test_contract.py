"""What every operator keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from reactivex import Observable, from_iterable
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    TextCompleted,
    TextDelta,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from rxllm.runtime import Stream
from rxllm.testing import assert_operator, events
from rxllm.testing.marbles import START, cold, record
from rxllm.values import (
    ChatResult,
    Message,
    StreamError,
    Thread,
    ToolCall,
    Usage,
    ValidationError,
    halt,
    tool,
)
from tests.operators.contracts import OPERATORS, STEP, THREAD

EVENTS: list[Event] = [
    MessageStarted(Message("assistant")),
    TextDelta("H"),
    TextDelta("i"),
    TextCompleted("Hi"),
    MessageCompleted(Message("assistant", "Hi"), "stop"),
]


EXCEPTIONS: dict[str, set[str]] = {
    "fallback": {"errors"},  # it is there to go on after one
    "hedge": {"errors"},  # it asks again when the first stream has failed
    "items": {"ends_with_source"},  # what the source says is no JSON
    "merge_labelled": {"errors"},  # a stream that fails does not end the others
    "only": {"error_event"},  # it keeps what it is asked for, and nothing else
    "partials": {"ends_with_source"},  # what the source says is no JSON
    "keep_latest": {"reentrant"},  # what comes while another is being delivered replaces what waits
    "race": {"errors"},  # the other stream may still win
    "rate_limited": {"apart"},  # it is there to hold back what is subscribed at the same time
    "share_folded": {"afresh", "apart"},  # it is there to share one call
    "timed": {"at_once"},  # the items have other times then
    "smooth": {"at_once"},  # what comes at once is put together
    "snapshots": {"at_once"},  # what comes at once is one snapshot
    "text_at": {"ends_with_source"},  # what the source says is no JSON
}
"""The rules of the kit that an operator rightly breaks, by its name in `OPERATORS`; say why."""

every_operator = pytest.mark.parametrize("name", OPERATORS)


def test_every_operator_is_here() -> None:
    assert {name.partition(",")[0] for name in OPERATORS} == {*ops.__all__, "merge_labelled"}
    assert ops.__all__ == sorted(ops.__all__)


@every_operator
def test_it_gives_a_stream(name: str) -> None:
    assert isinstance(OPERATORS[name]()(from_iterable(EVENTS)), Stream)


def of_steps(make: Callable[[], Any]) -> Callable[[], Any]:
    """An operator that takes steps, for the sources of the kit, which are responses."""
    return lambda: lambda source: source.pipe(ops.run_tools(thread=THREAD), make())


@every_operator
def test_it_keeps_every_rule(name: str) -> None:
    make = of_steps(OPERATORS[name]) if name == "repeat_until_halt" else OPERATORS[name]
    assert_operator(make, without=EXCEPTIONS.get(name, ()))


@pytest.mark.parametrize(
    "name", ["filter_deltas", "include_raw_chunks", "redact", "map_text", "usage", "verify", "conflate"]
)
def test_what_acts_on_agents_keeps_every_rule_there(name: str) -> None:
    response = [*events("Hello", ("raw_chunk", 1), usage=Usage(3, 2), thinking="lull")]
    nested = [Nested(("c1",), event) for event in [*response, *STEP]]
    before = [*events(tool_calls=[ToolCall("c1", "ask")]), ToolExecutionStarted("c1", "ask", {})]
    ended = ChatCompleted(ChatResult(Thread(), STEP[0].response))
    chat = [*before, *nested, Nested(("c1",), ended), ToolExecutionCompleted("c1", "ask", "l"), *STEP, ended]
    assert_operator(OPERATORS[name], events=chat)


def test_run_tools_keeps_every_rule_while_tools_run() -> None:
    tools = [
        tool(name="add", handler=lambda arguments: arguments["x"] + 1),
        tool(name="stop", handler=lambda _: halt("x")),
    ]
    calls = [ToolCall("c1", "add", {"x": 1}), ToolCall("c2", "stop"), ToolCall("c3", "add", {"y": 1})]
    assert_operator(lambda: ops.run_tools(tools, thread=THREAD), events=events("Let me see", tool_calls=calls))


@pytest.mark.parametrize("make", [ops.text, ops.thinking, ops.tool_calls, ops.usage, ops.raise_errors])
def test_no_partial_result_reaches_a_consumer_without_its_error(make: Callable[[], Any]) -> None:
    scheduler = TestScheduler()
    error = StreamError("truncated")
    source = cold(scheduler, "-a-e-|", {"a": EVENTS[1], "e": ErrorEvent(error)})
    assert record(scheduler, lambda: source.pipe(make()))[-1] == (3, "error", error)
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 3)]


def test_usage_begins_at_nothing_for_each_subscription() -> None:
    from rxllm.events import UsageUpdated

    piped = from_iterable([UsageUpdated(Usage(1, 1))]).pipe(ops.usage())
    assert _all(piped) == _all(piped) == [Usage(1, 1)]


def _all(source: Observable[Any]) -> list[Any]:
    return list(Stream.of(source))


ANYTHING = {
    *("circuit_breaker", "continue_with", "errors_as_events", "fallback", "hedge", "lift"),
    *("merge_labelled", "only", "race", "raise_errors", "rate_limited", "restart", "stall_warning", "tap"),
    *("retry_before_content", "time_limits"),
    *("timed", "trace", "filter_deltas", "filter_deltas, idle", "include_raw_chunks", "include_raw_chunks, idle"),
    *("time_limits, idle", "budget", "cost", "conflate", "gate", "journaled", "keep_latest", "map_async"),
}
"""What takes items of any kind, or leaves what is no event alone without harm."""


STRINGS = {"guard", "redact", "sentences", "smooth", "words"}
"""What takes strings as well, but not both in one stream."""


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - ANYTHING))
@pytest.mark.parametrize("item", ["my key is sk-1", b"", Usage(1, 1), TextDelta])
def test_what_takes_events_refuses_anything_else(name: str, item: Any) -> None:
    with pytest.raises(StreamError) as caught:
        _all(from_iterable([item, *EVENTS]).pipe(OPERATORS[name]()))
    assert caught.value.reason == "malformed_event"
    if isinstance(item, str) and name in STRINGS:
        assert caught.value.message.startswith(f"{name}() takes strings, not MessageStarted: ")
    elif name != "verify":
        assert caught.value.message.startswith(f"{name}() takes events, not {type(item).__name__}: ")
        assert "sk-1" not in caught.value.message


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - ANYTHING))
def test_what_takes_events_refuses_anything_else_among_them(name: str) -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-a-x-a-|", {"a": EVENTS[0], "x": "text"})
    time, kind, error = record(scheduler, lambda: source.pipe(OPERATORS[name]()))[-1]
    assert (time, kind, error.reason) == (3, "error", "malformed_event")
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 3)]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda given: ops.to_session(given), "session"),
        (lambda given: ops.to_step_result(given), "thread"),
        (lambda given: ops.scan_collect(given), "thread"),
        (lambda given: ops.run_tools(given), "tools"),
        (lambda given: ops.run_tools([given]), "tools"),
        (lambda given: ops.run_tools(thread=given), "thread"),
        (lambda given: ops.filter_deltas(text=given), "text"),
        (lambda given: ops.filter_deltas(tool=given), "tool"),
        (lambda given: ops.filter_deltas(thinking=given), "thinking"),
        (lambda given: ops.include_raw_chunks(given), "include"),
    ],
)
def test_an_option_of_another_kind_is_refused_at_once(make: Callable[[Any], Any], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make(3)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))

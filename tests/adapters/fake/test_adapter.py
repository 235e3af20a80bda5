"""The scripted model."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import (
    AdapterError,
    Engine,
    ErrorEvent,
    Event,
    Fake,
    Message,
    MessageCompleted,
    MessageStarted,
    RawChunk,
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
    ValidationError,
    generate,
    request,
    stream_generate,
    tool_result,
    user,
)
from rxllm.adapters.fake import _WORDS
from tests.waiting import turns, until, wait_until
from tests.wire.lawful import apart, lawful

START = MessageStarted(Message("assistant"))


def events(fake: Fake, asked: Any = "Hi") -> list[Event]:
    return list(stream_generate(fake, asked, retry=False, include_raw_chunks=True))


def end(text: str = "", reason: Any = "stop", raw: str | None = None, **fields: Any) -> MessageCompleted:
    return MessageCompleted(Message("assistant", text, **fields), reason, raw)


HELLO = [START, TextDelta("Hello", "block_0"), TextCompleted("Hello", "block_0"), end("Hello")]


@pytest.mark.parametrize(
    "fake",
    [
        lambda: Fake("Hello"),
        lambda: Fake(("text", "Hello")),
        lambda: Fake(["Hello"]),
        lambda: Fake(script=["Hello"]),
        lambda: Fake(scripts=[["Hello"]]),
        lambda: Fake(lambda request: "Hello"),
        lambda: Fake(lambda request: [("text", "Hello")]),
        lambda: Fake([START, *HELLO[1:]]),
    ],
)
def test_the_ways_to_say_hello(fake: Any) -> None:
    assert events(fake()) == HELLO


def test_thinking_comes_in_a_block_of_its_own() -> None:
    assert events(Fake([("thinking", "hm"), "Hello"]))[:5] == [
        START,
        ThinkingDelta("hm", "block_0"),
        ThinkingCompleted("hm", id="block_0"),
        TextDelta("Hello", "block_1"),
        TextCompleted("Hello", "block_1"),
    ]


@given(st.lists(st.sampled_from(["Hel", "lo", ("thinking", "hm"), ToolCall("c9", "f"), ("raw_chunk", 1)])))
def test_every_block_has_an_id_of_its_own(script: list[Any]) -> None:
    played = events(Fake(script))
    lawful(played)
    apart(played)


@pytest.mark.parametrize(
    "piece",
    [
        ToolCall("c9", "f", {"x": 1}),
        ("tool_call", {"id": "c9", "name": "f", "arguments": {"x": 1}}),
        ("tool_call", {"id": "c9", "name": "f", "raw_arguments": '{"x":1}'}),
    ],
)
def test_a_whole_call(piece: Any) -> None:
    played = events(Fake(piece))
    assert played[1:4] == [
        ToolCallStarted("c9", "f"),
        ToolCallDelta("c9", '{"x":1}'),
        ToolCallCompleted("c9", "f", {"x": 1}, '{"x":1}'),
    ]
    assert isinstance(played[-1], MessageCompleted)
    assert played[-1].finish_reason == "tool_calls"


def test_a_call_in_pieces() -> None:
    pieces: list[Any] = [
        ("tool_call_delta", {"id": "c9", "name": "f", "arguments_delta": '{"x"'}),
        ("tool_call_delta", {"id": "c9", "arguments_delta": ":1}"}),
    ]
    assert events(Fake(pieces))[1:5] == [
        ToolCallStarted("c9", "f"),
        ToolCallDelta("c9", '{"x"'),
        ToolCallDelta("c9", ":1}"),
        ToolCallCompleted("c9", "f", {"x": 1}, '{"x":1}'),
    ]


@pytest.mark.parametrize("piece", [Usage(input_tokens=3), ("usage", {"input_tokens": 3})])
def test_usage(piece: Any) -> None:
    assert events(Fake([piece, "Hello"]))[1] == UsageUpdated(Usage(input_tokens=3))
    assert generate(Fake([piece, "Hello"]), "Hi").run().usage.input_tokens == 3


def test_raw_chunks() -> None:
    played = events(Fake([("raw_chunk", {"a": 1}), ("raw_chunk", ("ping", None)), "Hello"]))
    assert played[1:3] == [RawChunk("chunk", {"a": 1}), RawChunk("ping", None)]


def test_an_event_is_itself() -> None:
    odd = MessageCompleted(Message("assistant", "odd"), "length")
    assert events(Fake([TextDelta("odd"), TextCompleted("odd"), odd]))[-1] == odd


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("rate_limited", AdapterError("rate_limited", provider="fake")),
        (StreamError("truncated"), StreamError("truncated")),
        (KeyError("x"), StreamError("adapter_error", "KeyError: 'x'", provider="fake")),
    ],
)
def test_an_error_ends_the_stream(reason: Any, expected: Any) -> None:
    played = events(Fake(["Hel", ("error", reason), "never"]))
    assert played == [START, TextDelta("Hel", "block_0"), TextCompleted("Hel", "block_0"), ErrorEvent(expected)]


def test_a_finish_reason_ends_the_stream() -> None:
    assert events(Fake(["Hello", ("finish", "length"), "never"]))[-1] == end("Hello", "length", "length")
    assert events(Fake(["Hello", ("finish", "odd")]))[-1] == end("Hello", "other", "odd")


def test_an_exception_first_is_the_calls_failure() -> None:
    for error in (AdapterError("timeout"), KeyError("x")):
        with pytest.raises(type(error)):
            events(Fake([error, "never"]))


def test_an_exception_later_is_an_error_event() -> None:
    played = events(Fake(["Hel", KeyError("x"), "never"]))
    assert isinstance(played[-1], ErrorEvent)
    assert isinstance(played[-1].error, StreamError)
    assert played[-1].error.reason == "adapter_error"


def test_a_function_sees_the_request() -> None:
    shout = Fake(lambda request: request.messages[-1].text.upper())
    assert [generate(shout, text).run().output_text for text in ("a", "b")] == ["A", "B"]


def test_one_turn_answers_every_call_and_several_are_used_up() -> None:
    one, two = Fake("a"), Fake("a", "b")
    assert [generate(one, "Hi").run().output_text for _ in range(3)] == ["a", "a", "a"]
    assert [generate(two, "Hi").run().output_text for _ in range(2)] == ["a", "b"]
    with pytest.raises(AdapterError, match="2 turns") as caught:
        generate(two, "Hi").run()
    assert caught.value.reason == "no_scripted_response"


def test_several_scripts() -> None:
    fake = Fake(scripts=[["a"], [("text", "b"), "c"]])
    assert [generate(fake, "Hi").run().output_text for _ in range(2)] == ["a", "bc"]


def test_each_subscription_plays_afresh() -> None:
    call = stream_generate(Fake("Hello"), "Hi")
    assert list(call) == list(call) == HELLO


def test_requests_are_remembered() -> None:
    fake = Fake("Hello")
    assert fake.requests == []
    call = generate(Engine(fake, model="m"), "Hi", temperature=0.5)
    assert fake.requests == []
    call.run()
    generate(fake, request("again")).run()
    assert [(asked.messages[-1].text, asked.model, asked.temperature) for asked in fake.requests] == [
        ("Hi", "m", 0.5),
        ("again", None, None),
    ]
    assert repr(fake) == "Fake(1 turns, 2 requests)"


def test_ids_are_unique_in_the_thread() -> None:
    def ids(asked: Any, *calls: ToolCall) -> list[str]:
        return [event.id for event in events(Fake(list(calls)), asked) if isinstance(event, ToolCallCompleted)]

    first = ToolCall("c0", "f", {})
    assert len(set(ids("Hi", first, first))) == 2
    thread = [user("Hi"), Message("assistant", "", tool_calls=(first,)), tool_result("c0", "1")]
    assert ids(thread, first) != ["c0"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fake(),
        lambda: Fake("a", script=["b"]),
        lambda: Fake(script=["a"], scripts=[["b"]]),
        lambda: Fake(42),
        lambda: Fake(("txet", "a")),
        lambda: Fake(("text",)),
        lambda: Fake(["a", None]),
        lambda: Fake(script=[("text", "a", "b")]),
        lambda: Fake(("text", 5)),
        lambda: Fake(("delay", "soon")),
        lambda: Fake(("usage", {"tokens": 3})),
        lambda: Fake(("tool_call", {"nom": "f"})),
        lambda: Fake(("tool_call_delta", "x")),
        lambda: Fake(("tool_call_delta", {"id": "c9", "arguments": "{}"})),
        lambda: Fake(("delay", -1)),
        lambda: Fake(("delay", float("nan"))),
        lambda: Fake("a", ["b", ("error", "nope")]),
        lambda: Fake(script=["a", ("error", 429)]),
        lambda: Fake(scripts=[["a"], [("error", ["timeout"])]]),
        lambda: Fake(("a", "b")),
    ],
)
def test_a_script_that_means_nothing_is_refused_when_it_is_made(make: Any) -> None:
    with pytest.raises(ValidationError, match=r"script item|in exactly one way") as caught:
        make()
    assert caught.value.reason == "invalid_option"


@pytest.mark.parametrize(
    ("piece", "remedy"),
    [
        (("error", "nope"), "or one of authentication_failed, content_filter, .*, unsupported_feature$"),
        (("error", "rate_limit"), r"unsupported_feature \(did you mean 'rate_limited'\?\)$"),
        (("delay", "soon"), "a delay must be a non-negative number of seconds"),
        (("tool_call_delta", {"arguments": ""}), "the fields of a delta are arguments_delta, id, name$"),
        (("txet", "a"), "a tuple must start with one of text, thinking, .*, finish; put several pieces in a list$"),
    ],
)
def test_an_invalid_piece_is_told_what_it_might_be(piece: Any, remedy: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Fake(["a", piece])
    assert re.match(re.escape(f"{piece!r} is not a valid script item; ") + ".*" + remedy, caught.value.message)


def test_every_reason_of_an_adapter_error_can_be_scripted() -> None:
    for reason in AdapterError.REASONS:
        assert events(Fake(["a", ("error", reason)]))[-1] == ErrorEvent(AdapterError(reason, provider="fake"))


@pytest.mark.parametrize("turn", [42, ["a", ("error", "nope")]])
def test_a_function_whose_turn_means_nothing_is_an_error_of_the_call(turn: Any) -> None:
    fake = Fake(lambda request: turn)
    with pytest.raises(ValidationError, match="script item"):
        generate(fake, "Hi").run()
    assert len(fake.requests) == 1


def test_help_lists_every_piece() -> None:
    told = inspect.getdoc(Fake) or ""
    assert [word for word in _WORDS if f'("{word}", ' not in told] == []
    for named in ("ToolCall", "Usage", "an exception", "an event"):
        assert re.search(rf"(?m)^(a )?`?{named}", told)


def test_delays_are_on_the_subscriptions_scheduler() -> None:
    scheduler = TestScheduler()
    fake = Fake([("delay", 10), "Hel", ("delay", 30), "lo"])
    seen = scheduler.start(lambda: stream_generate(fake, "Hi", retry=False))
    at = [(message.time, type(message.value.value).__name__) for message in seen.messages[:-1]]
    assert at == [
        (200, "MessageStarted"),
        (210, "TextDelta"),
        (240, "TextDelta"),
        (240, "TextCompleted"),
        (240, "MessageCompleted"),
    ]
    assert seen.messages[-1] == ReactiveTest.on_completed(240)


def test_dispose_during_a_delay_plays_no_more() -> None:
    scheduler = TestScheduler()
    seen = scheduler.start(lambda: stream_generate(Fake(["a", ("delay", 100), "b"]), "Hi"), disposed=250)
    assert [type(message.value.value).__name__ for message in seen.messages] == ["MessageStarted", "TextDelta"]


def test_real_delays_without_a_loop() -> None:
    """However short: on the portal then."""
    for pause in (0, 0.001):
        for _ in range(20):
            done, heard = threading.Event(), list[str]()
            call = generate(Fake([("delay", pause), "Hel", ("delay", pause), "lo"]), "Hi")
            call.subscribe(lambda response, to=heard: to.append(response.output_text), on_completed=done.set)
            wait_until(done.is_set)
            assert heard == ["Hello"]


def test_the_end_of_the_loop_ends_a_delay_as_it_ends_a_call() -> None:
    errors: list[Exception] = []

    events: list[Event] = []

    async def main() -> None:
        stream_generate(Fake(["Hel", ("delay", 60), "lo"]), "Hi").subscribe(events.append, errors.append)
        await until(lambda: any(isinstance(event, TextDelta) for event in events))
        await turns()

    asyncio.run(main())
    assert errors == [StreamError("cancelled", "the event loop ended the call")]


def test_it_plays_at_once_where_there_is_no_loop() -> None:
    heard: list[Event] = []
    stream_generate(Fake("Hello"), "Hi").subscribe(heard.append)
    assert heard == HELLO


def test_it_plays_on_a_loop() -> None:
    async def main() -> None:
        fake = Fake(["Hel", ("delay", 0.001), "lo"])
        assert (await generate(fake, "Hi")).output_text == "Hello"
        assert "".join([e.delta async for e in stream_generate(fake, "Hi") if isinstance(e, TextDelta)]) == "Hello"

    asyncio.run(main())


def test_take_stops_it() -> None:
    played: list[Event] = []
    heard: list[Event] = []
    source = stream_generate(Fake([str(i) for i in range(1000)]), "Hi")
    source.do_action(played.append).take(1).subscribe(heard.append)
    assert (len(heard), len(played)) == (1, 1)


def test_a_raising_subscriber_is_told_once() -> None:
    told: list[Exception] = []
    heard: list[Event] = []

    def on_next(event: Event) -> None:
        heard.append(event)
        raise KeyError("mine")

    stream_generate(Fake("Hello"), "Hi").subscribe(on_next, told.append)
    assert ([repr(error) for error in told], len(heard)) == (["KeyError('mine')"], 1)


@pytest.mark.judges
def test_a_long_script_does_not_recurse() -> None:
    many = 5000
    fake = Fake([piece for i in range(many) for piece in (("delay", 0), "x")])
    assert len(generate(fake, "Hi").run().output_text) == many

"""What counts as an adapter, and what is added to the plainest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import reactivex
from reactivex import from_iterable

from rxllm import (
    AdapterError,
    Engine,
    EngineError,
    ErrorEvent,
    Event,
    Fake,
    Message,
    MessageCompleted,
    MessageStarted,
    PartAdded,
    Request,
    StepRestarted,
    StreamError,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageUpdated,
    generate,
    stream_generate,
)
from rxllm import operators as ops
from rxllm.values import Call, ProviderPart, TextPart

START = MessageStarted(Message("assistant"))


def events(adapter: Any) -> list[Event]:
    return list(stream_generate(adapter, "Hi", retry=False))


def says(*said: Any) -> Any:
    """An async generator function that yields these; an exception it raises."""

    async def adapter(request: Request, call: Call) -> AsyncIterator[Event]:
        for each in said:
            if isinstance(each, Exception):
                raise each
            yield each

    return adapter


def test_a_part_for_the_provider_interrupts_no_block() -> None:
    part = ProviderPart("p", {})
    response = generate(says(TextDelta("Hel"), PartAdded(part), TextDelta("lo")), "Hi").run()
    assert response.message is not None
    assert response.message.parts == (TextPart("Hello"), part)


UNCHECKED: dict[str, list[Event]] = {
    "block_text": [TextDelta("Hi", "b"), TextCompleted("Ho", "b")],
    "call_order": [ToolCallDelta("c", "{}")],
    "usage_changed": [UsageUpdated(Usage(1)), UsageUpdated(Usage(1))],
}


@pytest.mark.parametrize("rule", UNCHECKED)
def test_what_the_border_does_not_check_enters_as_it_is(rule: str) -> None:
    class Mine:
        def stream(self, request: Request, call: Call) -> Any:
            return from_iterable([START, *UNCHECKED[rule]])

    assert events(says(START, *UNCHECKED[rule]))[: len(UNCHECKED[rule]) + 1] == [START, *UNCHECKED[rule]]
    assert events(Mine()) == [START, *UNCHECKED[rule]]
    with pytest.raises(StreamError, match=f"unlawful: {rule}"):
        list(stream_generate(Mine(), "Hi").pipe(ops.verify()))


def test_the_bookends_are_filled_in() -> None:
    assert events(says(TextDelta("Hel"), TextDelta("lo"))) == [
        START,
        TextDelta("Hel", "block_0"),
        TextDelta("lo", "block_0"),
        TextCompleted("Hello", "block_0"),
        MessageCompleted(Message("assistant", "Hello"), "stop"),
    ]


def test_what_it_says_itself_is_not_said_twice() -> None:
    end = MessageCompleted(Message("assistant", "a"), "length")
    whole = [START, TextDelta("a", "block_0"), TextCompleted("a", "block_0"), end]
    assert events(says(START, TextDelta("a"), TextCompleted("a"), end, TextDelta("never"))) == whole


def test_a_block_is_completed_before_the_next_one_begins() -> None:
    assert events(says(ThinkingDelta("hm"), TextDelta("a", "1"), TextDelta("b", "2")))[1:7] == [
        ThinkingDelta("hm", "block_0"),
        ThinkingCompleted("hm", id="block_0"),
        TextDelta("a", "1"),
        TextCompleted("a", "1"),
        TextDelta("b", "2"),
        TextCompleted("b", "2"),
    ]


def test_calls_give_the_finish_reason() -> None:
    call = ToolCallCompleted("c0", "f", {}, "{}")
    assert events(says(ToolCallStarted("c0", "f"), call))[-1].finish_reason == "tool_calls"  # type: ignore[union-attr]
    server = ToolCallCompleted("c0", "f", {}, "{}", {"server": True})
    assert events(says(ToolCallStarted("c0", "f", {"server": True}), server))[-1].finish_reason == "stop"  # type: ignore[union-attr]


def test_nothing_said_is_an_empty_message() -> None:
    assert events(says()) == [START, MessageCompleted(Message("assistant", ""), "stop")]


@pytest.mark.parametrize("error", [AdapterError("timeout"), KeyError("x")])
def test_a_failure_before_the_first_event(error: Exception) -> None:
    with pytest.raises(type(error)):
        events(says(error))


class Plays:
    """An object adapter of these events."""

    def __init__(self, *events: Event) -> None:
        self.events = events

    def stream(self, request: Request, call: Call) -> Any:
        return from_iterable(self.events)


END = MessageCompleted(Message("assistant"), "stop")


def ids(adapter: Any) -> list[str | None]:
    of_blocks = (TextDelta, TextCompleted, ThinkingDelta, ThinkingCompleted)
    return [event.id for event in events(adapter) if isinstance(event, of_blocks)]


@pytest.mark.parametrize("adapter", [says, Plays])
def test_a_block_without_an_id_gets_one(adapter: Any) -> None:
    thought = [ThinkingDelta("hm"), ThinkingCompleted("hm")]
    text = [TextDelta("H"), UsageUpdated(Usage(output_tokens=1)), TextDelta("i"), TextCompleted("Hi")]
    assert ids(adapter(START, *thought, *text, TextCompleted("."), END)) == [
        *("block_0", "block_0"),
        *("block_1", "block_1", "block_1"),
        "block_2",
    ]


@pytest.mark.parametrize("adapter", [says, Plays])
def test_an_event_without_an_id_belongs_to_the_latest_open_block_of_its_kind(adapter: Any) -> None:
    played = events(adapter(START, TextDelta("a", "x"), TextDelta("b"), TextCompleted("ab"), END))
    assert played[1:4] == [TextDelta("a", "x"), TextDelta("b", "x"), TextCompleted("ab", "x")]


def test_blocks_of_an_object_adapter_may_be_interleaved() -> None:
    begun = (START, TextDelta("a", "x"), ThinkingDelta("t"), TextDelta("b", "y"))
    ended = (TextCompleted("b"), ThinkingCompleted("t"), TextCompleted("a"), TextCompleted("c"), END)
    assert ids(Plays(*begun, *ended)) == ["x", "block_0", "y", "y", "block_0", "x", "block_1"]


def test_a_restarted_step_has_no_open_blocks() -> None:
    played = ids(Plays(START, TextDelta("a"), StepRestarted("timeout", 1), START, TextDelta("b"), END))
    assert played == ["block_0", "block_1"]


@pytest.mark.parametrize("adapter", [says, Plays])
def test_text_before_the_blocks_of_another_adapter_is_kept(adapter: Any) -> None:
    note = (TextDelta("Note: "), TextCompleted("Note: "))
    forwarded = (TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0"))
    everything = adapter(START, *note, *forwarded, END)
    assert ids(everything) == ["block_0", "block_0", "block_1", "block_1"]
    assert generate(everything, "Hi").run().output_text == "Note: Hi"


@pytest.mark.parametrize("adapter", [says, Plays])
def test_text_after_the_blocks_of_another_adapter_is_kept(adapter: Any) -> None:
    forwarded = (TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0"))
    everything = adapter(START, *forwarded, TextDelta("."), TextCompleted("."), END)
    assert ids(everything) == ["block_0", "block_0", "block_1", "block_1"]
    assert generate(everything, "Hi").run().output_text == "Hi."


def test_a_failure_after_the_first_event() -> None:
    played = events(says(TextDelta("Hel"), KeyError("x")))
    assert played[:-1] == [START, TextDelta("Hel", "block_0"), TextCompleted("Hel", "block_0")]
    assert isinstance(played[-1], ErrorEvent)
    assert isinstance(played[-1].error, StreamError)
    assert (played[-1].error.reason, "KeyError" in played[-1].error.message) == ("adapter_error", True)
    assert isinstance(played[-1].error.__cause__, KeyError)
    assert events(says(TextDelta("a"), AdapterError("timeout")))[-1] == ErrorEvent(AdapterError("timeout"))


def test_it_is_told_the_request_and_the_call() -> None:
    told: list[tuple[Request, Call]] = []

    async def adapter(request: Request, call: Call) -> AsyncIterator[Event]:
        told.append((request, call))
        yield TextDelta("Hello")

    generate(Engine(adapter, model="m"), "Hi", request_id="r1", api_key="k", timeout=3.0, metadata={"a": 1}).run()
    ((request, call),) = told
    assert (request.model, request.messages[0].text) == ("m", "Hi")
    assert (call.request_id, call.api_key, call.timeout, call.metadata) == ("r1", "k", 3.0, {"a": 1})
    assert "k'" not in repr(call)


def test_it_is_closed_when_it_is_left() -> None:
    closed: list[str] = []

    async def adapter(request: Request, call: Call) -> AsyncIterator[Event]:
        try:
            while True:
                yield TextDelta("x")
        finally:
            closed.append("yes")

    stream_generate(adapter, "Hi").take(5).run()
    for _ in range(1000):
        if closed:
            break
        reactivex.timer(0.001).run()
    assert closed == ["yes"]


def test_an_object_with_stream() -> None:
    class Mine:
        def stream(self, request: Request, call: Call) -> Any:
            return reactivex.of(
                START, TextDelta("a"), TextCompleted("a"), MessageCompleted(Message("assistant", "a"), "stop")
            )

    assert generate(Mine(), "Hi").run().output_text == "a"


def test_an_object_whose_stream_is_a_generator() -> None:
    class Mine:
        provider = "mine"

        async def stream(self, request: Request, call: Call) -> AsyncIterator[Event]:
            yield TextDelta(call.request_id)

    assert generate(Mine(), "Hi", request_id="r1").run().output_text == "r1"


async def only_request(request: Request) -> AsyncIterator[Event]:
    yield TextDelta("x")


async def too_many(request: Request, call: Call, more: int) -> AsyncIterator[Event]:
    yield TextDelta("x")


class OnlyRequest:
    async def stream(self, request: Request) -> AsyncIterator[Event]:
        yield TextDelta("x")


@pytest.mark.parametrize("adapter", [only_request, too_many, OnlyRequest()])
def test_a_generator_of_other_arguments_is_told_which_they_are(adapter: Any) -> None:
    with pytest.raises(EngineError, match=r"cannot be called with \(request, call\): (too many|missing)") as caught:
        generate(adapter, "Hi").run()
    assert caught.value.reason == "missing_stream_adapter"


def test_a_generator_where_an_observable_belongs_names_what_makes_it_one() -> None:
    with pytest.raises(EngineError, match="from_async_iter"):
        generate(Gives(only_request(Request())), "Hi").run()


async def no_generator(request: Request, call: Call) -> None: ...


def no_async(request: Request, call: Call) -> Any:
    yield TextDelta("x")


class Gives:
    """An adapter that gives something else than an Observable."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def stream(self, request: Request, call: Call) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        (None, "missing_adapter"),
        (42, "missing_stream_adapter"),
        (object(), "missing_stream_adapter"),
        (no_generator, "missing_stream_adapter"),
        (no_async, "missing_stream_adapter"),
        (Fake, "missing_stream_adapter"),
        (Gives(None), "missing_stream_adapter"),
        (Gives([TextDelta("a")]), "missing_stream_adapter"),
        ("nobody:model", "unknown_provider"),
    ],
)
def test_what_is_no_adapter_is_a_typed_error(adapter: Any, reason: str) -> None:
    with pytest.raises(EngineError) as caught:
        generate(adapter, "Hi").run()
    assert caught.value.reason == reason
    assert caught.value.message


@pytest.mark.parametrize("given", ["text", None, 3])
def test_what_is_no_event_is_refused_by_name(given: object) -> None:
    async def adapter(request: Request, call: Call) -> AsyncIterator[Any]:
        yield given

    with pytest.raises(StreamError, match=r"is not an event; for text, yield TextDelta"):
        generate(adapter, "Hi", retry=False).run()

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from reactivex import Observable
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Engine, Fake, Request, StreamError, ToolCall, Usage
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.runtime import RetryPolicy, Stream
from rxllm.testing.marbles import record
from rxllm.values import Call, Progress
from tests.waiting import turns

RICH = [
    ("thinking", "hm"),
    "Hel",
    "lo",
    ("raw_chunk", {"x": 1}),
    Usage(3, 2),
    ToolCall("c1", "add", {"a": 1}),
]


def kinds(source: Stream[Event]) -> list[type[Event]]:
    return [type(event) for event in source]


def test_a_response_is_the_fold_of_its_stream() -> None:
    streamed = rxllm.stream_generate(Fake(RICH), "Hi").pipe(ops.to_response())
    response = rxllm.generate(Fake(RICH), "Hi").run()
    assert streamed.run() == response
    assert (response.output_text, response.usage, response.finish_reason) == ("Hello", Usage(3, 2), "tool_calls")


def test_only_the_adapters_events_are_seen() -> None:
    assert kinds(rxllm.stream_generate(Fake(RICH), "Hi")) == [
        MessageStarted,
        ThinkingDelta,
        ThinkingCompleted,
        TextDelta,
        TextDelta,
        UsageUpdated,
        TextCompleted,
        ToolCallStarted,
        ToolCallDelta,
        ToolCallCompleted,
        MessageCompleted,
    ]


@pytest.mark.parametrize(
    ("option", "dropped"),
    [("emit_text_deltas", TextDelta), ("emit_tool_deltas", ToolCallDelta), ("emit_thinking", ThinkingDelta)],
)
def test_presentation_options_drop_deltas_and_change_no_result(option: str, dropped: type[Event]) -> None:
    options: dict[str, Any] = {option: False}
    assert dropped not in kinds(rxllm.stream_generate(Fake(RICH), "Hi", **options))
    assert rxllm.generate(Fake(RICH), "Hi", **options).run() == rxllm.generate(Fake(RICH), "Hi").run()


def test_raw_chunks_come_where_they_are_asked_for() -> None:
    assert RawChunk not in kinds(rxllm.stream_generate(Fake(RICH), "Hi"))
    assert RawChunk in kinds(rxllm.stream_generate(Fake(RICH), "Hi", include_raw_chunks=True))


def test_on_event_sees_the_adapters_events_unfiltered() -> None:
    seen: list[Event] = []
    source = rxllm.stream_generate(Fake(RICH), "Hi", on_event=seen.append, emit_text_deltas=False)
    shown = list(source)
    assert {TextDelta, RawChunk} <= {type(event) for event in seen}
    assert [event for event in seen if not isinstance(event, TextDelta | RawChunk)] == shown


def test_an_exception_of_on_event_is_the_streams_error() -> None:
    def refuse(event: Event) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        rxllm.generate(Fake("Hi"), "Hello", on_event=refuse).run()


def test_the_engines_operators_are_applied_in_order_and_change_the_result() -> None:
    def suffix(text: str) -> Any:
        def change(event: Event) -> Event:
            match event:
                case TextDelta(delta=delta):
                    return TextDelta(delta + text)
                case TextCompleted(text=whole):
                    return TextCompleted(whole + text)
                case _:
                    return event

        return lambda source: source.map(change)

    seen: list[Event] = []
    engine = Engine(Fake("Hi"), operators=[suffix("1")]).with_operators(suffix("2"))  # type: ignore[arg-type]
    assert rxllm.generate(engine, "Hello", on_event=seen.append).run().output_text == "Hi12"
    assert TextDelta("Hi12") in seen


def test_what_the_adapter_may_know_of_the_call() -> None:
    calls: list[Call] = []

    class Listening:
        def stream(self, request: Request, call: Call) -> Observable[Event]:
            calls.append(call)
            return Fake("Hi").stream(request, call)

    told: list[Any] = []
    engine = Engine(Listening(), observers=(told.append,))
    options: dict[str, Any] = {"api_key": "secret", "timeout": 3.0, "metadata": {"a": 1}, "include_raw_chunks": True}
    rxllm.generate(engine, "Hi", request_id="r1", **options).run()
    rxllm.generate(engine, "Hi").run()
    plain = replace(calls[0], observers=(), retry=None, on_reattached=None, on_lost=None, on_retry=None)
    assert plain == Call("r1", "secret", 3.0, True, {"a": 1})
    told.clear()
    for tell in calls[0].observers:
        tell("what the adapter has to tell")
    assert told == ["what the adapter has to tell"]
    assert len(calls[1].request_id) == 22
    assert "secret" not in repr(calls[0])


def test_each_subscription_has_a_request_id_of_its_own() -> None:
    ids: list[str] = []

    class Listening:
        def stream(self, request: Request, call: Call) -> Observable[Event]:
            ids.append(call.request_id)
            return Fake("Hi").stream(request, call)

    source = rxllm.generate(Listening(), "Hi")
    source.run()
    source.run()
    assert len(set(ids)) == 2


# Errors


def test_a_call_that_fails_before_its_first_event_is_raised() -> None:
    failure = AdapterError("authentication_failed")
    with pytest.raises(AdapterError) as caught:
        rxllm.generate(Fake(failure), "Hi").run()
    assert caught.value == failure


def test_a_stream_that_fails_on_its_way_is_a_response() -> None:
    response = rxllm.generate(Fake(["Hal", Usage(3, 1), ("error", "provider_unavailable")]), "Hi").run()
    assert (response.finish_reason, response.output_text, response.usage) == ("error", "Hal", Usage(3, 1))
    assert isinstance(response.error, AdapterError)
    assert response.error.reason == "provider_unavailable"


def test_an_adapter_may_be_a_plain_async_generator() -> None:
    async def adapter(request: Request, call: Call) -> Any:
        yield TextDelta(request.messages[-1].text.upper())

    assert rxllm.generate(adapter, "hi").run().output_text == "HI"


# Retry, in virtual time


def test_a_call_is_made_again_before_its_first_content() -> None:
    scheduler = TestScheduler()
    fake = Fake(AdapterError("rate_limited", retry_after=7.0), ["Hel", "lo"])
    policy = RetryPolicy(jitter=0.0)
    notes = record(scheduler, lambda: rxllm.generate(fake, "Hi", retry=policy))
    assert [(tick, kind) for tick, kind, _ in notes] == [(7, "next"), (7, "end")]
    assert len(fake.requests) == 2


def test_without_retry_the_first_failure_is_the_last() -> None:
    fake = Fake(AdapterError("rate_limited"), "Hello")
    with pytest.raises(AdapterError):
        rxllm.generate(fake, "Hi", retry=False).run()
    assert len(fake.requests) == 1


def test_the_calls_retry_wins_over_the_engines() -> None:
    fake = Fake(AdapterError("rate_limited"), "Hello")
    with pytest.raises(AdapterError):
        rxllm.generate(Engine(fake, retry=True), "Hi", retry=False).run()


# generate_many


def shout(request: Request) -> Any:
    text = request.messages[-1].text
    return ValueError(text) if text == "bug" else AdapterError("invalid_request") if text == "no" else text.upper()


def test_many_responses_come_in_the_requests_order() -> None:
    delays = {"a": 3.0, "b": 1.0, "c": 2.0}
    fake = Fake(lambda request: [("delay", delays[request.messages[-1].text]), request.messages[-1].text])
    notes = record(TestScheduler(), lambda: rxllm.generate_many(fake, list("abc")))
    assert [(tick, what.output_text) for tick, kind, what in notes if kind == "next"] == [(3, "a"), (3, "b"), (3, "c")]


def test_or_as_they_finish() -> None:
    delays = {"a": 3.0, "b": 1.0, "c": 2.0}
    fake = Fake(lambda request: [("delay", delays[request.messages[-1].text]), request.messages[-1].text])
    notes = record(TestScheduler(), lambda: rxllm.generate_many(fake, list("abc"), ordered=False))
    assert [(tick, what.output_text) for tick, kind, what in notes if kind == "next"] == [(1, "b"), (2, "c"), (3, "a")]


def test_no_more_are_asked_at_once_than_allowed() -> None:
    scheduler = TestScheduler()
    asked: list[float] = []

    def turn(request: Request) -> Any:
        asked.append(scheduler.clock - 200)
        return [("delay", 10.0), "Hi"]

    record(scheduler, lambda: rxllm.generate_many(Fake(turn), list("abcde"), concurrency=2))
    assert asked == [0, 0, 10, 10, 20]


def test_eight_are_asked_at_once_by_default() -> None:
    fake = Fake(lambda request: [("delay", 10.0), "Hi"])
    record(TestScheduler(), lambda: rxllm.generate_many(fake, ["x"] * 20), disposed=5)
    assert len(fake.requests) == 8


def test_as_they_finish_each_says_which_request_it_answers_also_a_failed_one() -> None:
    delays = {"a": 3.0, "no": 1.0, "c": 2.0}

    def turn(request: Request) -> Any:
        text = request.messages[-1].text
        return [("delay", delays[text]), AdapterError("invalid_request") if text == "no" else text]

    requests = list(delays)
    notes = record(TestScheduler(), lambda: rxllm.generate_many(Fake(turn), requests, ordered=False))
    responses = [what for _, kind, what in notes if kind == "next"]
    assert [requests[response.metadata["request_index"]] for response in responses] == ["no", "c", "a"]
    assert [response.error is not None for response in responses] == [True, False, False]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("is_journaled", [False, True])
def test_run_and_await_return_all_in_the_requests_order(tmp_path: Path, ordered: bool, is_journaled: bool) -> None:
    delays = {"a": 0.03, "no": 0.01, "c": 0.02}

    def turn(request: Request) -> Any:
        text = request.messages[-1].text
        return [("delay", delays[text]), AdapterError("invalid_request") if text == "no" else text]

    async def awaited() -> list[Any]:
        return await many

    journal = tmp_path / "answers.jsonl" if is_journaled else None
    many = rxllm.generate_many(Fake(turn), list(delays), ordered=ordered, journal=journal, retry=False)
    ids = {id: id.upper() for id in delays}
    for responses in (many.run(), asyncio.run(awaited()), rxllm.run(many)):
        assert [response.output_text for response in responses] == ["a", "", "c"]
        assert [response.error is not None for response in responses] == [False, True, False]
    assert [response.metadata["request_id"] for response in rxllm.generate_many(Fake("Hi"), ids).run()] == list(ids)


def test_in_order_a_response_is_the_one_of_its_request_alone() -> None:
    (response,) = rxllm.generate_many(Fake("Hi"), ["a"])
    assert response == rxllm.generate(Fake("Hi"), "a").run()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failure_is_a_response_and_the_others_go_on(ordered: bool) -> None:
    responses = list(rxllm.generate_many(Fake(shout), ["a", "no", "bug", "b"], ordered=ordered, retry=False))
    assert [response.output_text for response in responses] == ["A", "", "", "B"]
    assert [response.finish_reason for response in responses] == ["stop", "error", "error", "stop"]
    assert responses[1].error == AdapterError("invalid_request")
    assert isinstance(responses[2].error, StreamError)
    assert "bug" in responses[2].error.message


def test_a_request_that_nobody_can_answer_is_a_failure_too() -> None:
    responses = list(rxllm.generate_many(Fake("Hi"), ["a", [], "b"]))
    assert [response.finish_reason for response in responses] == ["stop", "error", "stop"]


@pytest.mark.parametrize("ordered", [True, False])
def test_progress_is_told_as_requests_end_and_sums_what_they_used(ordered: bool) -> None:
    delays = {"a": 3.0, "b": 1.0, "c": 2.0}

    def turn(request: Request) -> Any:
        text = request.messages[-1].text
        return [("delay", delays[text]), Usage(2, 1), *([AdapterError("timeout")] if text == "c" else [text])]

    told: list[Progress] = []
    source = rxllm.generate_many(Fake(turn), list("abc"), ordered=ordered, on_progress=told.append, retry=False)
    for _ in range(2):  # each subscription counts anew
        record(TestScheduler(), lambda: source)
        took = [(1.0, 1.0), (1.0, 1.0), (3.0, 3.0)]  # in the order b, c, a; c fails
        assert told == [Progress(k, int(k > 1), 3, Usage(2 * k, k), 0, 0, *took[k - 1]) for k in (1, 2, 3)]
        told.clear()


def test_progress_has_percentiles_of_the_seconds_of_answers_with_their_retries() -> None:
    failed = set[str]()

    def turn(request: Request) -> Any:
        text = request.messages[-1].text
        if text == "10" and text not in failed:
            failed.add(text)
            return AdapterError("provider_unavailable")
        return [("delay", float(text)), "Hi"]

    told: list[Progress] = []
    retry = RetryPolicy(max_attempts=2, base_delay=4.0, jitter=0.0)
    limit = ops.rate_limited(concurrent=1)  # whose waits do not count
    source = rxllm.generate_many(
        Engine(Fake(turn), operators=[limit]), map(str, range(1, 21)), on_progress=told.append, retry=retry
    )
    record(TestScheduler(), lambda: source)
    assert (told[-1].retries, told[-1].seconds_p50, told[-1].seconds_p95) == (1, 12.0, 20.0)


def test_progress_has_no_seconds_of_answers_in_the_journal(tmp_path: Path) -> None:
    for count in (2, 0):
        told: list[Progress] = []
        rxllm.generate_many(Fake("Hi"), ["a", "b"], journal=tmp_path / "out", on_progress=told.append).run()
        assert [one.seconds_p95 is not None for one in told] == [bool(count)] * 2


def test_progress_that_was_stored_before_it_had_seconds_can_be_read() -> None:
    data = (
        b"\x80\x04\x95#\x01\x00\x00\x00\x00\x00\x00\x8c\x16rxllm.values.responses\x94\x8c\x08Progress\x94\x93\x94("
        b"K\x03K\x01K\n\x8c\x12rxllm.values.usage\x94\x8c\x05Usage\x94\x93\x94)\x81\x94}\x94(\x8c\x0cinput_tokens\x94"
        b"K\x14\x8c\routput_tokens\x94K\x04\x8c\x13cached_input_tokens\x94N\x8c\x18cache_write_input_tokens\x94N\x8c"
        b"\x10reasoning_tokens\x94N\x8c\x0ctotal_tokens\x94N\x8c\ninput_cost\x94N\x8c\x0boutput_cost\x94N\x8c\ntotal_cost"
        b"\x94G?\xe0\x00\x00\x00\x00\x00\x00\x8c\ntool_usage\x94}\x94\x8c\x05extra\x94}\x94ubK\x02K\x01t\x94R\x94."
    )
    stored = Progress(3, 1, 10, Usage(20, 4, total_cost=0.5), 2, 1)
    assert pickle.loads(data) == stored
    text = b'{"done":3,"failed":1,"total":10,"usage":{"input_tokens":20,"output_tokens":4,"total_cost":0.5},'
    assert msgspec.json.decode(text + b'"journaled":2,"retries":1}', type=Progress) == stored
    assert pickle.loads(pickle.dumps(Progress(3, 1, 10, Usage(), 2, 1, 0.5, 0.75))).seconds_p95 == 0.75


def test_an_exception_of_on_progress_is_the_subscriber_s() -> None:
    def refuse(progress: Progress) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        rxllm.generate_many(Fake("Hi"), ["a", "b"], on_progress=refuse).run()
    with pytest.raises(rxllm.ValidationError, match="on_progress"):
        rxllm.generate_many(Fake("Hi"), ["a"], on_progress="print")  # type: ignore[arg-type]


def test_many_of_none_is_empty() -> None:
    assert list(rxllm.generate_many(Fake("Hi"), [])) == []


def test_an_iterator_of_requests_serves_every_subscription() -> None:
    source = rxllm.generate_many(Fake(shout), iter(["a", "b"]))
    assert [response.output_text for response in source] == ["A", "B"]
    assert [response.output_text for response in source] == ["A", "B"]


@pytest.mark.parametrize(
    ("asked", "index", "said"),
    [
        (["a", 5, "b"], 1, "requests.1 must be text, a message, a list of messages, a Thread or .*, not 5"),
        (iter(["a", "b", None]), 2, "requests.2 must be .*, not None"),
        (
            ["a", [{"role": "user", "text": "hi"}]],
            1,
            "requests.1.messages.0 has 'text', which is not a field",
        ),
        ([{"role": "human", "content": "hi"}], 0, "requests.0.role must be one of .*, not 'human'"),
    ],
)
def test_an_invalid_request_raises_at_the_call_and_is_named(asked: Any, index: int, said: str) -> None:
    with pytest.raises(rxllm.ValidationError, match=said) as caught:
        rxllm.generate_many(Fake("Hi"), asked)
    assert (caught.value.reason, caught.value.errors[0][0][:2]) == ("invalid_thread", ("requests", index))


@pytest.mark.parametrize(
    "alone",
    ["Hi", {"role": "user", "content": "Hi"}, rxllm.user("Hi"), rxllm.Thread((rxllm.user("Hi"),)), rxllm.request("Hi")],
)
def test_one_request_is_not_many(alone: Any) -> None:
    with pytest.raises(
        rxllm.ValidationError, match="requests must be a list or other iterable; for a single request, use generate"
    ):
        rxllm.generate_many(Fake("Hi"), alone)


@pytest.mark.parametrize("none", [None, 5, print])
def test_anything_but_a_list_of_requests_raises_at_the_call(none: Any) -> None:
    with pytest.raises(rxllm.ValidationError, match=r"requests must be a list or other iterable, .*, not ") as caught:
        rxllm.generate_many(Fake("Hi"), none)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", ("requests",))


def test_the_error_of_an_iterator_of_requests_comes_back_as_it_is() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        rxllm.generate_many(Fake("Hi"), broken())


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "8", None, True])
def test_a_concurrency_that_makes_no_sense_raises_at_the_call(concurrency: Any) -> None:
    with pytest.raises(rxllm.ValidationError, match="concurrency"):
        rxllm.generate_many(Fake("Hi"), ["a"], concurrency=concurrency)


def test_nothing_is_asked_before_subscribe_nor_after_dispose() -> None:
    fake = Fake(lambda request: [("delay", 10.0), "Hi"])
    source = rxllm.generate_many(fake, ["x"] * 10, concurrency=2)
    assert fake.requests == []
    notes = record(TestScheduler(), lambda: source, disposed=15)
    assert (len(fake.requests), [kind for _, kind, _ in notes]) == (4, ["next", "next"])


@pytest.mark.parametrize("ordered", [True, False])
def test_a_subscriber_that_raises_gets_it_once(ordered: bool) -> None:
    failure = ValueError("no")
    errors: list[Exception] = []

    def refuse(response: Any) -> None:
        raise failure

    async def main() -> None:
        source = rxllm.generate_many(Fake([("delay", 0.001), "Hi"]), ["a", "b", "c"], ordered=ordered, concurrency=1)
        ended = asyncio.Event()
        source.subscribe(refuse, lambda error: (errors.append(error), ended.set()))
        await ended.wait()
        await turns()

    asyncio.run(main())
    assert errors == [failure]


def test_an_error_event_alone_is_a_response() -> None:
    response = rxllm.generate(Fake([ErrorEvent(StreamError("truncated"))]), "Hi", retry=False).run()
    assert response.error == StreamError("truncated")

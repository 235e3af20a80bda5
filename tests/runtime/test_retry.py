"""Retry, in virtual time: what is asked again, when, and what of it is seen."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable
from reactivex.testing import ReactiveTest, TestScheduler

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
    RawChunk,
    Request,
    RetryPolicy,
    StreamError,
    TextCompleted,
    TextDelta,
    Usage,
    UsageUpdated,
    ValidationError,
    generate,
    stream_generate,
)
from rxllm.telemetry import RetryAttempt
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.values import Call
from tests.runtime.support import model
from tests.waiting import PATIENCE

on_next, on_error, on_completed = ReactiveTest.on_next, ReactiveTest.on_error, ReactiveTest.on_completed
subscribe = ReactiveTest.subscribe

START = MessageStarted(Message("assistant"))
USAGE = UsageUpdated(Usage(input_tokens=3))
HELLO = [
    TextDelta("Hello", "block_0"),
    TextCompleted("Hello", "block_0"),
    MessageCompleted(Message("assistant", "Hello"), "stop"),
]
BUSY = AdapterError("rate_limited")
POLICY = RetryPolicy(max_attempts=3, base_delay=50, max_delay=80, jitter=0, max_retry_after=500)


class Scripted:
    """An adapter whose calls play in virtual time, one observable after another."""

    def __init__(self, scheduler: TestScheduler, *scripts: list[Any]) -> None:
        self.calls = [scheduler.create_cold_observable(*script) for script in scripts]
        self.asked = 0

    def stream(self, request: Request, call: Call) -> Observable[Event]:
        self.asked += 1
        return self.calls[self.asked - 1]


def answer(at: int = 10) -> list[Any]:
    return [on_next(at, START), *(on_next(at + 1, event) for event in HELLO), on_completed(at + 2)]


def played(*scripts: list[Any], policy: Any = POLICY, disposed: float = 5000) -> tuple[list[Any], list[list[Any]]]:
    """What a subscriber sees, from 200 on, and when each call was subscribed and left."""
    scheduler = TestScheduler()
    adapter = Scripted(scheduler, *scripts)
    seen = scheduler.start(lambda: stream_generate(adapter, "Hi", retry=policy), disposed=disposed)
    return seen.messages, [call.subscriptions for call in adapter.calls]


def at(time: int, *events: Event) -> list[Any]:
    return [on_next(time, event) for event in events]


def test_a_failure_before_the_first_content_is_retried_after_the_backoff() -> None:
    seen, calls = played([on_error(10, BUSY)], [on_next(5, START), on_error(10, BUSY)], answer())
    # 210 + 50, + 10 + 80 (100 is more than max_delay), + 10
    assert seen == [*at(361, START, *HELLO), on_completed(362)]
    assert calls == [[subscribe(200, 210)], [subscribe(260, 270)], [subscribe(350, 362)]]


def test_an_error_event_before_the_first_content_is_retried() -> None:
    cut = ErrorEvent(StreamError("truncated"))
    seen, calls = played([on_next(5, START), on_next(10, cut), on_completed(11)], answer())
    assert seen == [*at(271, START, *HELLO), on_completed(272)]
    assert calls == [[subscribe(200, 211)], [subscribe(260, 272)]]


def test_events_after_a_retried_error_event_are_not_seen() -> None:
    cut = ErrorEvent(StreamError("truncated"))
    seen, calls = played([on_next(5, START), on_next(10, cut), on_next(12, USAGE), on_error(20, BUSY)], answer())
    assert seen == [*at(271, START, *HELLO), on_completed(272)]
    assert calls == [[subscribe(200, 220)], [subscribe(260, 272)]]


def test_after_the_first_content_nothing_is_retried() -> None:
    cut = ErrorEvent(StreamError("truncated"))
    seen, calls = played([on_next(10, START), on_next(20, HELLO[0]), on_next(30, cut), on_completed(31)])
    assert seen == [*at(220, START, HELLO[0]), on_next(230, cut), on_completed(231)]
    seen, calls = played([on_next(10, START), on_next(20, HELLO[0]), on_error(30, BUSY)])
    assert seen == [*at(220, START, HELLO[0]), on_error(230, BUSY)]
    assert calls == [[subscribe(200, 230)]]


@pytest.mark.parametrize(
    "content",
    [HELLO[0], RawChunk("strange", {}), MessageCompleted(Message("assistant"), "stop")],
    ids=lambda e: type(e).__name__,
)
def test_prelude_is_held_back_until_the_first_content_in_order(content: Event) -> None:
    raw = RawChunk("usage", {"input_tokens": 9})
    script = [on_next(10, START), on_next(20, raw), on_next(30, USAGE), on_next(40, content), on_completed(41)]
    scheduler = TestScheduler()
    adapter = Scripted(scheduler, script)
    stream = stream_generate(adapter, "Hi", retry=POLICY, include_raw_chunks=True)
    said = START, UsageUpdated(Usage(9)), USAGE, content
    assert scheduler.start(lambda: stream).messages == [*at(240, *said), on_completed(241)]


def test_without_retry_nothing_is_held_back() -> None:
    seen, _ = played([on_next(10, START), on_next(20, HELLO[0]), on_completed(21)], policy=False)
    assert seen == [on_next(210, START), on_next(220, HELLO[0]), on_completed(221)]


@pytest.mark.parametrize("last", [BUSY, AdapterError("timeout"), StreamError("truncated")], ids=repr)
def test_the_last_failure_is_passed_on_as_it_came(last: Exception) -> None:
    first = [on_error(10, BUSY)]
    seen, _ = played(first, first, [on_next(5, START), on_error(10, last)])
    assert seen == [on_next(360, START), on_error(360, last)]
    assert seen[-1].value.exception is last
    event = ErrorEvent(last)  # pyright: ignore[reportArgumentType]
    seen, _ = played(first, first, [on_next(5, START), on_next(10, event), on_completed(11)])
    assert seen == [*at(360, START, event), on_completed(361)]


@pytest.mark.parametrize(
    "error",
    [AdapterError("authentication_failed"), AdapterError("invalid_request"), EngineError("missing_key"), KeyError("x")],
    ids=repr,
)
def test_an_error_that_would_come_again_is_not_retried(error: Exception) -> None:
    seen, calls = played([on_error(10, error)])
    assert seen == [on_error(210, error)]
    assert len(calls) == 1


def test_retry_after_is_kept_to() -> None:
    _, calls = played([on_error(10, AdapterError("rate_limited", retry_after=300))], answer())
    assert calls == [[subscribe(200, 210)], [subscribe(510, 522)]]


def test_a_longer_retry_after_than_allowed_is_passed_on() -> None:
    error = AdapterError("rate_limited", retry_after=501)
    assert played([on_error(10, error)])[0] == [on_error(210, error)]


def test_jitter_only_adds() -> None:
    policy = RetryPolicy(base_delay=1.0, jitter=0.5)
    delays = [policy.delay(BUSY, 1) for _ in range(200)]
    assert 1.0 <= min(delays) < max(delays) <= 1.5


def test_the_backoff_doubles_up_to_its_end() -> None:
    policy = RetryPolicy(jitter=0)
    assert [policy.delay(BUSY, attempt) for attempt in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_dispose_during_the_wait_asks_no_more() -> None:
    seen, calls = played([on_error(10, BUSY)], answer(), disposed=240)
    assert seen == []
    assert calls == [[subscribe(200, 210)], []]


def test_dispose_during_a_later_attempt_leaves_it() -> None:
    seen, calls = played([on_error(10, BUSY)], answer(at=100), disposed=300)
    assert (seen, calls) == ([], [[subscribe(200, 210)], [subscribe(260, 300)]])


def test_each_subscription_has_its_own_attempts() -> None:
    scheduler = TestScheduler()
    failing = [on_error(10, BUSY)]
    adapter = Scripted(scheduler, failing, failing, failing, failing, failing, answer())
    stream = stream_generate(adapter, "Hi", retry=POLICY)
    first, second = scheduler.create_observer(), scheduler.create_observer()
    scheduler.schedule_absolute(200, lambda *_: stream.subscribe(first, scheduler=scheduler))
    scheduler.schedule_absolute(1000, lambda *_: stream.subscribe(second, scheduler=scheduler))
    scheduler.start()
    assert first.messages == [on_error(360, BUSY)]
    assert second.messages == [*at(1161, START, *HELLO), on_completed(1162)]


def test_an_adapter_that_raises_at_a_later_attempt_is_an_error() -> None:
    """It has no more observables then."""
    seen, _ = played([on_error(10, BUSY)])
    assert [message.value.kind for message in seen] == ["E"]
    assert isinstance(seen[0].value.exception, IndexError)


def test_a_retry_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rxllm")
    played([on_error(10, BUSY)], answer())
    (record,) = caplog.records
    assert record.name == "rxllm"
    assert "attempt 1" in record.getMessage()
    assert "50.0 s" in record.getMessage()


@pytest.mark.sockets
def test_over_the_wire(caplog: pytest.LogCaptureFixture) -> None:
    busy = Reply.of_json({"error": {"message": "busy"}}, 503)
    with Loopback([busy, Reply([]), Reply(chat("Hello"))]) as server:
        quick = RetryPolicy(base_delay=0, jitter=0)
        assert generate(model(server), "Hi", retry=quick).run().output_text == "Hello"
        assert len(server.requests) == 3
        assert len({request.body for request in server.requests}) == 1
    assert caplog.records[0].getMessage().startswith("attempt 1 of openai failed (busy (openai, model m))")


@pytest.mark.sockets
def test_the_servers_retry_after_over_the_wire() -> None:
    """In milliseconds, and asked for in vain where it is too long."""
    limited = Reply.of_json({"error": {"message": "busy"}}, 429, retry_after_ms="30")
    with Loopback([limited, Reply(chat("Hello"))]) as server:
        policy = RetryPolicy(base_delay=0, jitter=0)
        assert generate(model(server), "Hi", retry=policy).run().output_text == "Hello"
    with Loopback([limited]) as server:
        with pytest.raises(AdapterError) as caught:
            generate(model(server), "Hi", retry=RetryPolicy(max_retry_after=0.02)).run()
        assert (caught.value.retry_after, len(server.requests)) == (0.03, 1)


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry_after": "-3"}, 0.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "9", "retry_after_ms": "250"}, 0.25),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    with Loopback(Reply.of_json({"error": {"message": "busy"}}, 429, **headers)) as server:
        with pytest.raises(AdapterError) as caught:
            generate(model(server), "Hi").run()
        assert caught.value.retry_after == seconds


@pytest.mark.sockets
def test_a_date_is_waited_for() -> None:
    date = {"retry_after": "Wed, 21 Oct 2026 07:28:01 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    told: list[RetryAttempt] = []

    async def app(world: World) -> float:
        server = world.serve([Reply.of_json({}, 503, **date), Reply(chat("Hello"))])
        engine = replace(model(server), observers=(lambda each: isinstance(each, RetryAttempt) and told.append(each),))
        assert (await generate(engine, "Hi", retry={"base_delay": 0.0, "jitter": 0.0})).output_text == "Hello"
        return asyncio.get_running_loop().time()

    assert simulate(app, faults=()).value == pytest.approx(1.0, abs=0.1)
    assert [each.delay for each in told] == [1.0]


def test_retry_after_may_be_ignored() -> None:
    policy = RetryPolicy(base_delay=20, jitter=0, respect_retry_after=False)
    _, calls = played([on_error(10, AdapterError("rate_limited", retry_after=999))], answer(), policy=policy)
    assert calls == [[subscribe(200, 210)], [subscribe(230, 242)]]


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 10), st.integers(1, 2000), st.none() | st.floats(0, 60))
def test_a_delay_is_the_computed_one_and_at_most_the_jitter_more(
    base: float, top: float, jitter: float, attempt: int, asked: float | None
) -> None:
    """Law 27."""
    policy = RetryPolicy(base_delay=base, max_delay=top, jitter=jitter)
    computed = max(asked or 0.0, min(top, base * 2.0 ** min(attempt - 1, 64)))
    delay = policy.delay(AdapterError("rate_limited", retry_after=asked), attempt)
    assert computed <= delay <= computed + jitter


# A policy as a mapping


def tries(engine: Any = "default", call: Any = None) -> int:
    """How often a model that is always busy is asked."""
    fake = Fake([AdapterError("timeout")])
    opts: dict[str, Any] = {} if call is None else {"retry": call}
    with pytest.raises(AdapterError):
        generate(Engine(fake, retry=engine), "Hi", **opts).run()
    return len(fake.requests)


QUICK = {"base_delay": 0.0, "jitter": 0.0}


@pytest.mark.parametrize(
    ("engine", "call", "expected"),
    [
        ({**QUICK, "max_attempts": 2}, None, 2),
        (False, {**QUICK, "max_attempts": 4}, 4),
        (False, QUICK, 3),
        ({**QUICK, "max_attempts": 2}, {"max_attempts": 5}, 5),
        (RetryPolicy(max_attempts=4, **QUICK), {"max_delay": 1.0}, 4),
        ({"max_attempts": 5}, QUICK, 5),
        ({"max_attempts": 5}, False, 1),
        ({"max_attempts": 1}, None, 1),
        ({**QUICK, "retry_on": ["rate_limited"]}, None, 1),
        ({**QUICK, "retry_on": "timeout"}, None, 3),
        ({}, QUICK, 3),
    ],
)
def test_a_mapping_is_laid_over_the_engines_policy(engine: Any, call: Any, expected: int) -> None:
    assert tries(engine, call) == expected


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"max_tries": 5}, "max_tries"),
        ({1: 5}, "1"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"base_delay": -1}, "base_delay"),
        ({"max_delay": float("nan")}, "max_delay"),
        ({"jitter": "0"}, "jitter"),
        ({"max_retry_after": float("inf")}, "max_retry_after"),
        ({"retry_on": {"bad_luck"}}, "retry_on"),
        ({"retry_on": 429}, "retry_on"),
        ({"respect_retry_after": 1}, "respect_retry_after"),
    ],
)
def test_what_makes_no_sense_raises_at_the_call(wrong: Any, name: str) -> None:
    for engine, opts in (
        (Engine(Fake("Hi")), {"retry": wrong}),
        (Engine(Fake("Hi"), retry=wrong), {}),
        (Engine(Fake("Hi")).with_params(retry=wrong), {}),
    ):
        with pytest.raises(ValidationError) as caught:
            generate(engine, "Hi", **opts)
        assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", ("retry", name))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"invalid_output"}, "retry.retry_on cannot contain 'invalid_output'; the valid reasons are adapter_error, "),
        (
            {"timeout", "rate_limit"},
            r"cannot contain 'rate_limit' \(did you mean 'rate_limited'\?\); the valid reasons are ",
        ),
        ("truncate", r"cannot contain 'truncate' \(did you mean 'truncated'\?\); the valid reasons are "),
        (429, "cannot contain 429; the valid reasons are "),
        ([503, "b", "a"], "cannot contain 'a', 'b', 503; the valid reasons are "),
    ],
)
def test_a_reason_that_is_none_is_told_which_there_are(given: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        RetryPolicy(retry_on=given)
    for reason in AdapterError.REASONS | StreamError.REASONS:
        assert re.search(rf"the valid reasons are .*\b{reason}\b", str(caught.value))


def test_no_attempt_at_all_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"max_attempts must be an integer >= 1 \(including the first"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(ValidationError, match="max_attempts must be an integer >= 1"):
        generate(Fake("Hi"), "Hi", retry={"max_attempts": 0})


@pytest.mark.parametrize("retry", [5, "always", [3]])
def test_an_engine_s_retry_of_another_kind_is_refused(retry: Any) -> None:
    with pytest.raises(ValidationError, match="retry must be a RetryPolicy, a mapping of its fields, True, False or"):
        generate(Engine(Fake("Hi"), retry=retry), "Hi").run()


def test_a_misspelt_field_is_refused_with_its_name() -> None:
    with pytest.raises(
        ValidationError, match=r"max_atempts is unknown \(did you mean 'max_attempts'\?\); the fields are"
    ):
        generate(Fake("Hi"), "Hi", retry={"max_atempts": 2})
    with pytest.raises(TypeError, match="max_atempts"):
        RetryPolicy(max_atempts=2)  # pyright: ignore[reportCallIssue]


def test_on_a_thread_without_a_loop() -> None:
    """A plain subscription has no scheduler: the waits are on the portal, and none is lost."""
    import threading

    for _ in range(50):
        done = threading.Event()
        fake = Fake(*[AdapterError("timeout")] * 3, "Hello")
        policy = RetryPolicy(max_attempts=4, base_delay=0, jitter=0)
        generate(fake, "Hi", retry=policy).subscribe(lambda response, done=done: done.set())
        assert done.wait(PATIENCE)

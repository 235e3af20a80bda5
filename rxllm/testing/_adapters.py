"""What every chat adapter keeps, as a suite for pytest.

The refusals, timeouts and clean-ups of ``AdapterConformance`` are driven by a service that does as a `Script` says: the
suite knows nothing else of the adapter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import reduce
from typing import Any, ClassVar

import pytest
from reactivex import Observable
from reactivex.disposable import SingleAssignmentDisposable
from reactivex.scheduler import ImmediateScheduler

from rxllm import operators as ops
from rxllm.adapters import as_adapter
from rxllm.collector import StreamCollector
from rxllm.engine import Engine
from rxllm.events import ErrorEvent, Event, MessageStarted, TextDelta, ToolCallStarted
from rxllm.pipelines import generate, stream_generate
from rxllm.runtime import Stream, Timeouts
from rxllm.testing._served import REQUEST_ID, Script, Served
from rxllm.testing._told import SECONDS, Told, assert_survives_json, becomes, hear
from rxllm.values import (
    AdapterError,
    Call,
    LLMError,
    Message,
    Request,
    Response,
    StreamError,
    Thread,
    Tool,
    ToolCall,
    tool_result,
    user,
)

TEXTS = ("Two, ", "three ", "and five.")
CALLS = (ToolCall("call_a", "f", {"x": 1}), ToolCall("call_b", "f", {"x": 2}))
TOOL = Tool("f", "A tool.", {"type": "object", "properties": {"x": {"type": "integer"}}})
RETRY_AFTER = 0.5

REASONS = (
    "authentication_failed",
    "rate_limited",
    "timeout",
    "network_error",
    "invalid_request",
    "context_length_exceeded",
    "content_filter",
    "provider_unavailable",
    "malformed_response",
    "unsupported_feature",
    "unknown",
)

each_reason = pytest.mark.parametrize("reason", REASONS)


class AdapterConformance:
    """A subclass says in `serving` how a service is set up that answers as a `Script` says; pytest runs the rest::

        class TestMine(AdapterConformance):
            @contextmanager
            def serving(self, script):
                with service(script) as running:
                    yield Served(Mine(running.url), running.count_calls, running.count_hang_ups)

    `reasons` are those by which the service can refuse a call; the cases of others are skipped. `breaks` is the reason
    of an error inside its streams. `silence` is how long a call waits for a service that says nothing more, `patience`
    the time in which a service must see that it was left, `seconds` the time after which a stream counts as hanging,
    all in seconds. For an adapter that speaks HTTP there is ``HTTPAdapterConformance``.
    """

    model: ClassVar[str] = "conformance"
    reasons: ClassVar[Collection[str]] = REASONS
    breaks: ClassVar[str] = "rate_limited"
    silence: float = 1.0
    patience: float = 0.5
    seconds: float = SECONDS

    def serving(self, script: Script) -> AbstractContextManager[Served]:
        """An adapter whose service answers each call as `script` says.

        A refusal has the request id `REQUEST_ID`, and asks to wait for as long as the script's error does.
        """
        raise NotImplementedError

    # One answer

    def test_an_answer(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            response = self.answer(served)
        assert response.output_text == "".join(TEXTS)
        assert (response.finish_reason, response.error) == ("stop", None)

    @each_reason
    def test_an_answer_that_is_refused_has_its_reason(self, reason: str) -> None:
        with self.serving(self.refusal(reason)) as served:
            told = self.hear(generate(self.engine(served), "Hi", **self.waiting(reason)))
        self.raised(told.error, reason)
        assert told.events == []

    def test_a_rate_limit_says_how_long_to_wait(self) -> None:
        error = AdapterError("rate_limited", retry_after=RETRY_AFTER, request_id=REQUEST_ID)
        with self.serving(Script(error=error)) as served:
            told = self.hear(generate(self.engine(served), "Hi"))
        assert self.raised(told.error, "rate_limited").retry_after == RETRY_AFTER

    def test_a_refusal_keeps_the_providers_request_id(self) -> None:
        with self.serving(self.refusal("invalid_request")) as served:
            told = self.hear(generate(self.engine(served), "Hi"))
        assert self.raised(told.error, "invalid_request").request_id == REQUEST_ID

    def test_a_timeout_is_accepted(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            response = self.answer(served, timeout=self.seconds)
        assert response.output_text == "".join(TEXTS)

    # A stream

    @each_reason
    def test_a_stream_that_cannot_begin_says_nothing_but_its_error(self, reason: str) -> None:
        with self.serving(self.refusal(reason)) as served:
            told = self.hear(self.stream(served, **self.waiting(reason)))
        self.raised(told.error, reason)
        assert (told.events, told.completed, len(told.errors)) == ([], 0, 1)

    def test_text_comes_in_its_pieces(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            events = self.events(served)
        assert tuple(event.delta for event in events if isinstance(event, TextDelta)) == TEXTS

    def test_an_error_inside_the_stream_keeps_what_came(self) -> None:
        self.broken(AdapterError(self.breaks))

    def test_a_cancelled_stream_keeps_what_came(self) -> None:
        self.broken(StreamError("cancelled"))

    def test_silence_inside_the_stream_is_a_timeout(self) -> None:
        self.broken(StreamError("timeout"), timeout=Timeouts(idle=self.silence))

    def test_a_stream_without_its_end_is_truncated(self) -> None:
        self.broken(StreamError("truncated"))

    def test_a_stream_that_is_left_after_two_events_is_cleaned_up_once(self) -> None:
        took: list[float] = []
        for _ in range(3):
            with self.serving(Script(TEXTS, stalls=True)) as served:
                told = self.hear(self.stream(served).take(2))
                assert (len(told.events), told.completed) == (2, 1)
                took.append(self.seen(served))
        # A shared machine may hold up one of three.
        assert statistics.median(took) <= self.patience, f"the service saw it after {took} s"

    # What rxllm adds

    def test_nothing_happens_before_subscribe(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            stream = self.bare(served)
            assert served.asked() == 0, "the service was asked before anybody had subscribed"
            self.hear(stream)
            assert served.asked() == 1

    def test_each_subscription_is_a_call_of_its_own(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            stream = self.bare(served).pipe(ops.verify())
            first, second = self.hear(stream), self.hear(stream)
            assert served.asked() == 2
        assert (first.errors, second.errors) == ([], [])
        assert first.events == second.events

    def test_an_answer_is_the_fold_of_its_stream(self) -> None:
        with self.serving(Script(TEXTS, CALLS)) as served:
            folded = reduce(StreamCollector.apply_event, self.events(served), StreamCollector())
            assert self.answer(served) == folded.to_response()

    def test_calls_are_whole(self) -> None:
        with self.serving(Script(calls=CALLS)) as served:
            response = self.answer(served)
        assert [(call.name, call.arguments) for call in response.tool_calls] == [("f", {"x": 1}), ("f", {"x": 2})]
        assert response.finish_reason == "tool_calls"

    def test_the_ids_of_calls_are_unique_in_the_thread(self) -> None:
        taken = [call.id for call in CALLS]
        earlier = [user("Hi"), Message("assistant", "", tool_calls=CALLS), *(tool_result(id, "1") for id in taken)]
        with self.serving(Script(calls=CALLS)) as served:
            events = self.events(served, Thread(tuple(earlier)))
        ids = [event.id for event in events if isinstance(event, ToolCallStarted)]
        assert len({*ids, *taken}) == 4, f"of the ids {ids} some are taken by earlier calls: {taken}"

    def test_raw_chunks_leave_the_stream_lawful(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            assert isinstance(self.events(served, include_raw_chunks=True)[0], MessageStarted)

    def test_events_survive_json(self) -> None:
        for script in (Script(TEXTS, CALLS), Script(TEXTS, error=AdapterError(self.breaks))):
            with self.serving(script) as served:
                for event in self.events(served):
                    assert_survives_json(event)

    def test_a_call_that_is_left_before_its_first_byte_is_cleaned_up(self) -> None:
        with self.serving(Script(stalls=True)) as served:
            ends: list[Any] = []
            events: list[Event] = []
            subscription = self.stream(served).subscribe(events.append, ends.append, lambda: ends.append(None))
            assert becomes(lambda: served.asked() == 1, self.seconds), "the service was never asked"
            subscription.dispose()
            before = list(events)
            self.seen(served)
        assert (events, ends) == (before, [])

    def test_a_call_can_be_left_from_inside_on_next(self) -> None:
        subscription, ends = SingleAssignmentDisposable(), list[Any]()

        def leave(event: Event) -> None:
            if isinstance(event, TextDelta):
                subscription.dispose()

        with self.serving(Script(TEXTS, stalls=True)) as served:
            source = self.stream(served)
            subscription.disposable = source.subscribe(leave, ends.append, lambda: ends.append(None))
            self.seen(served)
        assert ends == []

    def test_a_scheduler_is_accepted(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            alone = self.events(served)
            assert self.hear(self.stream(served), scheduler=ImmediateScheduler.singleton()).events == alone

    # What the cases share

    asking: ClassVar[str] = "Call f, twice."

    def engine(self, served: Served) -> Engine:
        """The adapter, with no retries."""
        return Engine(served.adapter, model=self.model, retry=False)

    @property
    def request(self) -> Request:
        """What a call is asked, as an adapter sees it."""
        return Request((user(self.asking),), model=self.model, tools=(TOOL,))

    def bare(self, served: Served) -> Stream[Event]:
        """What the adapter itself gives, with nothing around it."""
        return Stream.of(as_adapter(served.adapter).stream(self.request, Call(request_id="r")))

    def hear(self, source: Observable[Any], **how: Any) -> Told:
        """All that `source` says until it ends."""
        return hear(source, seconds=self.seconds, **how)

    def answer(self, served: Served, **options: Any) -> Response[Any]:
        """The response of one call that does not fail."""
        told = self.hear(generate(self.engine(served), self.asking, tools=[TOOL], **options))
        assert told.error is None, repr(told.error)
        return told.events[-1]

    def stream(self, served: Served, request: Any = asking, **options: Any) -> Stream[Event]:
        """The stream of one call, held to the rules of ``operators.verify``."""
        return stream_generate(self.engine(served), request, tools=[TOOL], **options).pipe(ops.verify())

    def events(self, served: Served, request: Any = asking, **options: Any) -> list[Event]:
        """The events of one call that does not raise."""
        told = self.hear(self.stream(served, request, **options))
        assert told.error is None, repr(told.error)
        return told.events

    def refusal(self, reason: str) -> Script:
        """The script of a refusal, if the service knows it."""
        if reason not in self.reasons:
            pytest.skip(f"the service has no words for {reason}")
        return Script(error=AdapterError(reason, request_id=REQUEST_ID))

    def waiting(self, reason: str) -> dict[str, Any]:
        """The options of a call that fails by `reason`: where nothing is to come, the wait can be short."""
        return {"timeout": self.silence / 5} if reason == "timeout" else {}

    def raised(self, error: Exception | None, reason: str) -> AdapterError:
        """The error, which is an `AdapterError` of that reason."""
        assert isinstance(error, AdapterError), f"{error!r} is no AdapterError"
        assert error.reason == reason, repr(error)
        return error

    def broken(self, error: LLMError, **options: Any) -> None:
        """A stream that says something, then fails: the error is its last event, and what came is kept."""
        with self.serving(Script(TEXTS, error=error)) as served:
            events = self.events(served, **options)
        assert isinstance(events[-1], ErrorEvent), repr(events[-1])
        assert (type(events[-1].error), events[-1].error.reason) == (type(error), error.reason)
        response = reduce(StreamCollector.apply_event, events, StreamCollector()).to_response()
        assert (response.output_text, response.finish_reason) == ("".join(TEXTS), "error")

    def seen(self, served: Served) -> float:
        """The seconds until the service sees that it was left, once."""
        began = time.monotonic()
        assert becomes(lambda: served.left() > 0, self.seconds), "the service never saw that it was left"
        took = time.monotonic() - began
        assert served.left() == 1
        return took

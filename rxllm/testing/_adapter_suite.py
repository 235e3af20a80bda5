"""What every chat adapter keeps, as a suite for pytest.

The refusals, timeouts and clean-ups of ``AdapterConformance`` are driven by a service that does as a `Script` says: the
suite knows nothing else of the adapter.
"""

from __future__ import annotations

import statistics
from dataclasses import fields
from functools import reduce
from typing import Any

import pytest
from reactivex.disposable import SingleAssignmentDisposable
from reactivex.scheduler import ImmediateScheduler

from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import Event, MessageStarted, TextDelta, ThinkingDelta, ToolCallStarted
from rxllm.pipelines import generate, stream_generate
from rxllm.runtime import Timeouts
from rxllm.testing._observe import assert_survives_json, becomes
from rxllm.testing._rule_table import expect_same
from rxllm.testing._script import REQUEST_ID, Script
from rxllm.testing._scripted_run import CALLS, REASONS, RETRY_AFTER, TEXTS, THOUGHTS, USAGE, AdapterSuite, unfailing
from rxllm.testing._sent_rules import KEY, MESSAGES, OPTIONS, SENT_RULES, TEMPERATURE, TOOLS, expect_sent
from rxllm.values import AdapterError, FinishReason, Message, StreamError, Thread, tool_result, user

each_reason = pytest.mark.parametrize("reason", REASONS)
each_sent = pytest.mark.parametrize("rule", SENT_RULES)


class AdapterConformance(AdapterSuite):
    """A subclass says in `serving` how a service is set up that answers as a `Script` says; pytest runs the rest::

        class TestMine(AdapterConformance):
            without = {"thinking": "the service has none"}

            @contextmanager
            def serving(self, script):
                with service(script) as running:
                    yield Served(Mine(running.url), running.count_calls, running.count_hang_ups)

    `reasons` are those by which the service can refuse a call; the cases of others are skipped. `breaks` is the reason
    of an error inside its streams. `silence` is how long a call waits for a service that says nothing more, `patience`
    the time in which a service must see that it was left, `seconds` the time after which a stream counts as hanging,
    all in seconds. For an adapter that speaks HTTP there is ``HTTPAdapterConformance``.

    `without` names what the service rightly lacks, and says why; those cases are skipped:

    ======================  ============================================  ==========================================
    name                    the case                                      leave it out where
    ======================  ============================================  ==========================================
    ``calls``               tool calls are whole, under ids of their own  the service knows no tools
    ``thinking``            thinking comes in its pieces                  the model shows none
    ``usage``               the tokens that are counted arrive            the service counts none
    ``length``              the finish reason ``length`` arrives          the service does not say why it ends
    ``content_filter``      the finish reason ``content_filter`` arrives  it has no filter, or refuses by an error
    ``cancelled``           a stream that ends as cancelled keeps all     the service has no words for that
    ======================  ============================================  ==========================================

    and, with the same names and reasons, the ``sends_`` rules of ``assert_adapter``.
    """

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

    def test_usage_arrives(self) -> None:
        with self.needed("usage"), self.serving(Script(TEXTS, usage=USAGE)) as served:
            usage = self.answer(served).usage
            assert (usage.input_tokens, usage.output_tokens) == (USAGE.input_tokens, USAGE.output_tokens)

    @pytest.mark.parametrize("reason", ["length", "content_filter"])
    def test_a_finish_reason_arrives(self, reason: FinishReason) -> None:
        with self.needed(reason), self.serving(Script(TEXTS, finish_reason=reason)) as served:
            assert self.answer(served).finish_reason == reason

    # What is asked

    @each_sent
    def test_what_is_asked_is_sent(self, rule: str) -> None:
        with self.needed(rule), self.serving(Script(TEXTS)) as served:
            if served.requests is None:
                pytest.skip("the service does not show its requests: see Served")
            asked: dict[str, Any] = {"temperature": TEMPERATURE, "options": OPTIONS, "api_key": KEY}
            unfailing(self.hear(stream_generate(self.engine(served), MESSAGES, tools=TOOLS, **asked)))
            expect_sent(rule, served.requests())

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
        expect_same("the text", TEXTS, [event.delta for event in events if isinstance(event, TextDelta)])

    def test_thinking_comes_in_its_pieces(self) -> None:
        with self.needed("thinking"), self.serving(Script(TEXTS, thinking=THOUGHTS)) as served:
            events = self.events(served)
            deltas = [event for event in events if isinstance(event, ThinkingDelta | TextDelta)]
            wanted = [*map(ThinkingDelta, THOUGHTS), *map(TextDelta, TEXTS)]
            expect_same("the stream", wanted, deltas, lambda event: (type(event), getattr(event, "delta", None)))

    def test_an_error_inside_the_stream_keeps_what_came(self) -> None:
        self.broken(AdapterError(self.breaks))

    def test_a_cancelled_stream_keeps_what_came(self) -> None:
        with self.needed("cancelled"):
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
        expect_same("the second call", unfailing(first), unfailing(second))

    def test_an_answer_is_the_fold_of_its_stream(self) -> None:
        with self.serving(self.whole) as served:
            folded = reduce(StreamCollector.apply_event, self.events(served), StreamCollector()).to_response()
            answer = self.answer(served)
        for spec in fields(answer):
            expect_same(f"the answer's {spec.name}", [getattr(folded, spec.name)], [getattr(answer, spec.name)])

    def test_calls_are_whole(self) -> None:
        with self.needed("calls"), self.serving(Script(calls=CALLS)) as served:
            response = self.answer(served)
            said = [(call.name, call.arguments) for call in response.tool_calls]
            expect_same("the list of calls", [(call.name, call.arguments) for call in CALLS], said)
            assert response.finish_reason == "tool_calls"

    def test_the_ids_of_calls_are_unique_in_the_thread(self) -> None:
        taken = [call.id for call in CALLS]
        earlier = [user("Hi"), Message("assistant", "", tool_calls=CALLS), *(tool_result(id, "1") for id in taken)]
        with self.needed("calls"), self.serving(Script(calls=CALLS)) as served:
            events = self.events(served, Thread(tuple(earlier)))
            ids = [event.id for event in events if isinstance(event, ToolCallStarted)]
            assert len(ids) == len(CALLS), f"there were {len(ids)} calls and not {len(CALLS)}"
            assert len({*ids, *taken}) == 4, f"of the ids {ids} some are taken by earlier calls: {taken}"

    def test_raw_chunks_leave_the_stream_lawful(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            assert isinstance(self.events(served, include_raw_chunks=True)[0], MessageStarted)

    def test_events_survive_json(self) -> None:
        for script in (self.whole, Script(TEXTS, error=AdapterError(self.breaks))):
            with self.serving(script) as served:
                for event in self.all_events(served):
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
            told = self.hear(self.stream(served), scheduler=ImmediateScheduler.singleton())
        expect_same("what came with a scheduler", alone, told.events)

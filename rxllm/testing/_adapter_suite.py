"""`AdapterConformance`, a pytest suite for chat adapters."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from reactivex.disposable import SingleAssignmentDisposable

from rxllm.engine import Engine
from rxllm.events import ErrorEvent, Event, TextDelta, ThinkingDelta, ToolCallStarted
from rxllm.http import Timeouts
from rxllm.testing._adapter_rules import ADAPTER_RULES
from rxllm.testing._adapter_run import (
    CALLS,
    REQUEST_ID,
    SENT_RULES,
    TEXTS,
    THOUGHTS,
    TOOL,
    USAGE,
    Script,
    ScriptedRun,
    Served,
    missing,
)
from rxllm.testing._rules import SECONDS, becomes, check_names, clip, expect_same, report
from rxllm.testing.event_checks import expect_json, fold
from rxllm.values import AdapterError, FinishReason, LLMError, Message, StreamError, Thread, tool_result, user

if TYPE_CHECKING:
    import pytest
else:
    try:
        import pytest
    except ModuleNotFoundError:

        class _Missing:
            """Stands in for pytest when it is not installed."""

            mark = SimpleNamespace(parametrize=lambda *parameters: lambda test: test)

            def __getattr__(self, name: str) -> Any:
                message = f"the rxllm.testing suites need pytest ({name}): pip install pytest"
                raise ModuleNotFoundError(message, name="pytest")

        pytest = _Missing()

__all__ = ["pytest"]


REASONS = tuple(sorted(AdapterError.REASONS - {"no_scripted_response"}))

RETRY_AFTER = 0.5

SCRIPT_RULES = ("calls", "thinking", "usage", "length", "content_filter", "cancelled")
"""The names that a suite's `without` may contain in addition to the adapter rules."""

each_reason = pytest.mark.parametrize("reason", REASONS)


class AdapterConformance:
    """A test suite that runs a chat adapter against a scripted service.

    It checks the `ADAPTER_RULES` and runs further cases. In a subclass, define `serving`, which starts a service that
    follows a `Script`::

        class TestMine(AdapterConformance):
            without = {"thinking": "the service has none"}

            @contextmanager
            def serving(self, script):
                with service(script) as running:
                    yield Served(Mine(running.url), running.count_calls, running.count_hang_ups)

    `reasons` lists the reasons for which the service can refuse a call. Cases for other reasons are skipped. `breaks`
    is the reason that is reported if a stream fails midway. Three attributes are times in seconds: `silence` is the
    timeout to use when the service stops sending, `patience` is how long the service may take to notice a disconnect,
    and `seconds` is the maximum duration of a stream. For an adapter that uses HTTP, subclass
    ``HTTPAdapterConformance`` instead.

    `without` maps the names of cases to reasons for omitting them:

    ==================  ============================================  ========================================
    name                what is tested                                when to omit it
    ==================  ============================================  ========================================
    ``calls``           tool calls are complete and have unique ids   if the service does not support tools
    ``thinking``        thinking arrives piece by piece               if the service does not support thinking
    ``usage``           the token counts arrive                       if it does not report token counts
    ``length``          the finish reason ``length`` arrives          if the service does not report it
    ``content_filter``  the finish reason ``content_filter`` arrives  if it has no filter, or refuses the call
    ``cancelled``       a cancelled stream loses no events            if it cannot report a cancellation
    ==================  ============================================  ========================================

    `without` may also contain rules from ``assert_adapter``.
    """

    model: ClassVar[str] = "conformance"
    reasons: ClassVar[Collection[str]] = REASONS
    breaks: ClassVar[str] = "rate_limited"
    without: ClassVar[Mapping[str, str]] = {}
    silence: float = 1.0
    patience: float = 0.5
    seconds: float = SECONDS

    def serving(self, script: Script) -> AbstractContextManager[Served]:
        """Return a context manager that starts a service and yields a `Served`.

        The service follows `script` in every call. A refusal must include the request id `REQUEST_ID` and the
        ``retry_after`` of the script's error.
        """
        missing(self, "serving")

    # Helpers for the cases

    @contextmanager
    def running(self, script: Script) -> Generator[ScriptedRun]:
        """Start the service, and yield a `ScriptedRun` whose engine does not retry."""
        with self.serving(script) as served:
            engine = Engine(served.adapter, model=self.model, retry=False)
            yield ScriptedRun(engine, "Call f, twice.", {"tools": [TOOL]}, self.seconds, served)

    @property
    def whole(self) -> Script:
        """A script that uses every feature that the service supports."""
        return Script(
            TEXTS,
            () if "calls" in self.without else CALLS,
            thinking=() if "thinking" in self.without else THOUGHTS,
            usage=None if "usage" in self.without else USAGE,
        )

    @contextmanager
    def needed(self, rule: str) -> Generator[None]:
        """Skip the case if `without` names `rule`."""
        check_names(self.without, dict.fromkeys((*SCRIPT_RULES, *ADAPTER_RULES)))
        if rule in self.without:
            reasons: Any = self.without  # `without` may also be a set
            pytest.skip(f"{rule}: {reasons[rule] if isinstance(reasons, Mapping) else 'omitted by the suite'}")
        try:
            yield
        except AssertionError as error:
            hooks = (
                f"Do the suite's hooks send everything in the script that the {rule} case needs? "
                if rule in SCRIPT_RULES
                else ""
            )
            if rule in (*SCRIPT_RULES, *SENT_RULES):
                error.add_note(f"{hooks}If the service cannot do this, omit the case: without = {{{rule!r}: 'why'}}")
            raise

    def refusal(self, reason: str) -> Script:
        """Return a script that refuses the call for this `reason`."""
        if reason not in self.reasons:
            pytest.skip(f"the suite's `reasons` do not include {reason}")
        return Script(error=AdapterError(reason, request_id=REQUEST_ID))

    def waiting(self, reason: str) -> dict[str, Any]:
        """Return the options to pass to a call that is expected to fail with `reason`."""
        return {"timeout": self.silence / 5} if reason == "timeout" else {}

    def expect_reason(self, error: Exception | None, reason: str) -> AdapterError:
        """Check that `error` is an ``AdapterError`` with this `reason`, and return the error."""
        assert isinstance(error, AdapterError), f"{error!r} is not an AdapterError"
        assert error.reason == reason, repr(error)
        return error

    def refused_answer(self, script: Script, reason: str) -> AdapterError:
        """Make a call that must be refused, and return its error."""
        with self.running(script) as run:
            observed = run.observe(run.generate(**self.waiting(reason)))
        assert observed.events == []
        return self.expect_reason(observed.error, reason)

    def broken(self, error: LLMError, **options: Any) -> None:
        """Check that a stream that fails midway keeps its text and ends with `error`."""
        with self.running(Script(TEXTS, error=error)) as run:
            events = run.all_events(**options)
        for event in events:
            expect_json(event)
        assert isinstance(events[-1], ErrorEvent), (
            f"the last event is {clip(events[-1])}, not an ErrorEvent with {error!r}"
        )
        assert (type(events[-1].error), events[-1].error.reason) == (type(error), error.reason)
        response = fold(events)
        assert (response.output_text, response.finish_reason) == ("".join(TEXTS), "error")

    def seconds_until_left(self, run: ScriptedRun) -> float:
        """Return how many seconds the service takes to notice that the client has disconnected."""
        left, began = run.served.left, time.monotonic()
        assert becomes(lambda: left() > 0, self.seconds), "the service never noticed that the client had disconnected"
        took = time.monotonic() - began
        assert left() == 1
        return took

    # The adapter rules

    @pytest.mark.parametrize("rule", ADAPTER_RULES)
    def test_it_keeps_the_rule(self, rule: str) -> None:
        __tracebackhide__ = True
        with self.needed(rule), self.running(self.whole) as run:
            if rule in SENT_RULES and run.sent is None:
                pytest.skip("this service does not expose its requests: see Served")
            report(ADAPTER_RULES.broken(run, [rule]))

    # Complete answers

    def test_an_answer(self) -> None:
        with self.running(Script(TEXTS)) as run:
            response = run.answer()
        assert response.output_text == "".join(TEXTS)
        assert (response.finish_reason, response.error) == ("stop", None)

    @each_reason
    def test_an_answer_that_is_refused_has_its_reason(self, reason: str) -> None:
        self.refused_answer(self.refusal(reason), reason)

    def test_a_rate_limit_says_how_long_to_wait(self) -> None:
        error = AdapterError("rate_limited", retry_after=RETRY_AFTER, request_id=REQUEST_ID)
        assert self.refused_answer(Script(error=error), "rate_limited").retry_after == RETRY_AFTER

    def test_a_refusal_keeps_the_providers_request_id(self) -> None:
        error = self.refused_answer(self.refusal("invalid_request"), "invalid_request")
        assert error.request_id == REQUEST_ID

    def test_a_timeout_is_accepted(self) -> None:
        with self.running(Script(TEXTS)) as run:
            assert run.answer(timeout=self.seconds).output_text == "".join(TEXTS)

    def test_usage_arrives(self) -> None:
        with self.needed("usage"), self.running(Script(TEXTS, usage=USAGE)) as run:
            usage = run.answer().usage
            assert (usage.input_tokens, usage.output_tokens) == (USAGE.input_tokens, USAGE.output_tokens)

    @pytest.mark.parametrize("reason", ["length", "content_filter"])
    def test_a_finish_reason_arrives(self, reason: FinishReason) -> None:
        with self.needed(reason), self.running(Script(TEXTS, finish_reason=reason)) as run:
            assert run.answer().finish_reason == reason

    def test_calls_are_whole(self) -> None:
        with self.needed("calls"), self.running(Script(calls=CALLS)) as run:
            response = run.answer()
            calls = [(call.name, call.arguments) for call in response.tool_calls]
            expect_same("the list of calls", [(call.name, call.arguments) for call in CALLS], calls)
            assert response.finish_reason == "tool_calls"

    def test_an_answer_is_the_fold_of_its_stream(self) -> None:
        with self.running(self.whole) as run:
            folded, answer = fold(run.events()), run.answer()
        for spec in fields(answer):
            expect_same(f"the answer's {spec.name}", [getattr(folded, spec.name)], [getattr(answer, spec.name)])

    # Streams

    def test_nothing_happens_before_subscribe(self) -> None:
        with self.running(Script(TEXTS)) as run:
            stream = run.bare()
            assert run.served.asked() == 0, "the service was called before the first subscription"
            run.observe(stream)
            assert run.served.asked() == 1

    def test_each_subscription_is_a_call_of_its_own(self) -> None:
        with self.running(Script(TEXTS)) as run:
            stream = run.bare()
            for _ in range(2):
                run.observe(stream)
            assert run.served.asked() == 2

    @each_reason
    def test_a_stream_that_cannot_begin_says_nothing_but_its_error(self, reason: str) -> None:
        with self.running(self.refusal(reason)) as run:
            observed = run.observe(run.verified(**self.waiting(reason)))
        self.expect_reason(observed.error, reason)
        assert (observed.events, observed.completed, len(observed.errors)) == ([], 0, 1)

    def test_text_comes_in_its_pieces(self) -> None:
        with self.running(Script(TEXTS)) as run:
            events = run.events()
        expect_same("the text", TEXTS, [event.delta for event in events if isinstance(event, TextDelta)])

    def test_thinking_comes_in_its_pieces(self) -> None:
        with self.needed("thinking"), self.running(Script(TEXTS, thinking=THOUGHTS)) as run:
            deltas = [event for event in run.events() if isinstance(event, ThinkingDelta | TextDelta)]
            wanted = [*map(ThinkingDelta, THOUGHTS), *map(TextDelta, TEXTS)]
            expect_same("the stream", wanted, deltas, lambda event: (type(event), getattr(event, "delta", None)))

    def test_the_ids_of_calls_are_unique_in_the_thread(self) -> None:
        taken = [call.id for call in CALLS]
        earlier = [user("Hi"), Message("assistant", "", tool_calls=CALLS), *(tool_result(id, "1") for id in taken)]
        with self.needed("calls"), self.running(Script(calls=CALLS)) as run:
            events = run.events(request=Thread(tuple(earlier)))
            ids = [event.id for event in events if isinstance(event, ToolCallStarted)]
            assert len(ids) == len(CALLS), f"there were {len(ids)} calls instead of {len(CALLS)}"
            assert len({*ids, *taken}) == 4, f"some of the ids {ids} belong to earlier calls: {taken}"

    def test_an_error_inside_the_stream_keeps_what_came(self) -> None:
        try:
            self.broken(AdapterError(self.breaks))
        except (AssertionError, KeyError) as error:
            hint = f"The script's error has the reason {self.breaks!r}. If your service fails for another reason, set"
            error.add_note(f"{hint} the suite's `breaks` to one of {', '.join(REASONS)}")
            raise

    def test_a_cancelled_stream_keeps_what_came(self) -> None:
        with self.needed("cancelled"):
            self.broken(StreamError("cancelled"))

    def test_silence_inside_the_stream_is_a_timeout(self) -> None:
        self.broken(StreamError("timeout"), timeout=Timeouts(idle=self.silence))

    def test_a_stream_without_its_end_is_truncated(self) -> None:
        self.broken(StreamError("truncated"))

    # Calls that the client ends early

    def test_a_stream_that_is_left_after_two_events_is_cleaned_up_once(self) -> None:
        took: list[float] = []
        for _ in range(3):
            with self.running(Script(TEXTS, stalls=True)) as run:
                observed = run.observe(run.verified().take(2))
                assert (len(observed.events), observed.completed) == (2, 1)
                took.append(self.seconds_until_left(run))
        # A busy machine may delay one of the calls.
        assert statistics.median(took) <= self.patience, f"the service noticed the client's disconnect after {took} s"

    def test_a_call_that_is_left_before_its_first_byte_is_cleaned_up(self) -> None:
        events, ends = list[Event](), list[Any]()
        with self.running(Script(stalls=True)) as run:
            calls = run.served.asked
            subscription = run.verified().subscribe(events.append, ends.append, lambda: ends.append(None))
            assert becomes(lambda: calls() == 1, self.seconds), "the service was never called"
            subscription.dispose()
            before = list(events)
            self.seconds_until_left(run)
        assert (events, ends) == (before, [])

    def test_a_call_can_be_left_from_inside_on_next(self) -> None:
        subscription, ends = SingleAssignmentDisposable(), list[Any]()

        def leave(event: Event) -> None:
            if isinstance(event, TextDelta):
                subscription.dispose()

        with self.running(Script(TEXTS, stalls=True)) as run:
            stream = run.verified()
            subscription.disposable = stream.subscribe(leave, ends.append, lambda: ends.append(None))
            self.seconds_until_left(run)
        assert ends == []

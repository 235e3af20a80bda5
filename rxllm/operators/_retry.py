"""Operators that turn errors into events and back, and that retry or restart a stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from reactivex import Observable, abc

from rxllm.collector import StreamCollector
from rxllm.events import Custom, ErrorEvent, Event, StepCompleted, StepRestarted
from rxllm.operators._event_operators import handle_each, operate
from rxllm.runtime import OnRetry, Plan, Retry, RetryPolicy, Stream, attempting, policy_argument, retrying
from rxllm.values import LLMError
from rxllm.values.argument_checks import check_function

log = logging.getLogger("rxllm")

ABANDONED = "step_abandoned"
"""The name of the `Custom` event that precedes a ``StepRestarted``. Its data holds the abandoned ``response``."""


def raise_errors() -> Callable[[Observable[Event]], Stream[Event]]:
    """Turn an ``ErrorEvent`` into an ``on_error``.

    ::

        source             --a--b--error--|
        raise_errors()     --a--b--X

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake(["Hi", ("error", "timeout")]), "Hello").pipe(raise_errors()).run()
    Traceback (most recent call last):
    rxllm.AdapterError: adapter error (fake): timeout
    """

    def throw(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        def on_event(event: Event) -> None:
            if isinstance(event, ErrorEvent):
                on_error(event.error)
            else:
                on_next(event)

        return on_event

    return handle_each(throw)


def errors_as_events() -> Callable[[Observable[Event]], Stream[Event]]:
    """Turn an ``LLMError`` into an ``ErrorEvent``.

    ::

        source                 --a--b--X
        errors_as_events()     --a--b--(error)|

    >>> from rxllm import AdapterError, Fake, stream_generate
    >>> list(stream_generate(Fake(AdapterError("unknown")), "Hello").pipe(errors_as_events()))
    [ErrorEvent(error=AdapterError('unknown', 'adapter error: unknown'))]

    Other exceptions are passed on.
    """

    def subscribe(
        source: Observable[Event], observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        delivering = False  # stays True if the subscriber raises an exception

        def on_next(event: Event) -> None:
            nonlocal delivering
            delivering = True
            observer.on_next(event)
            delivering = False

        def on_error(error: Exception) -> None:
            if isinstance(error, LLMError) and not delivering:
                observer.on_next(ErrorEvent(error))
                observer.on_completed()
            else:
                observer.on_error(error)

        return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)

    return operate(subscribe)


def retry_before_content(
    policy: Retry = "default", *, on_retry: OnRetry | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Retry a stream that fails before its first content.

    ::

        source                    --start--X
        again                              ---start--H---------i--end--|
        retry_before_content()    -------------------(start,H)-i--end--|        (the events before X are dropped)

    >>> from rxllm import Fake, Request, operators as ops, user
    >>> from rxllm.values import Call
    >>> busy = Fake([("error", "rate_limited")], ["Hello"])
    >>> answer = busy.stream(Request((user("Hi"),)), Call())
    >>> answer.pipe(retry_before_content({"base_delay": 0, "jitter": 0}), ops.to_text()).run()
    'Hello'

    `policy` is a `RetryPolicy`, a mapping with its fields, or False for no retries. An attempt's events are held back
    until its first content arrives. Every event except ``MessageStarted``, ``UsageUpdated`` and ``ErrorEvent`` counts
    as content. If the attempt fails before then and the policy allows it, a new request is sent. The last failure is
    passed on unchanged. Before each wait, ``on_retry(attempt, delay, error)`` is called. `delay` is in seconds.

    ``rxllm.stream_generate`` and the other functions of ``rxllm`` already apply this operator, before the engine's own
    ``operators``. If you also apply it yourself, each attempt of your operator runs the engine's operators again,
    including any fallback or budget. Your operator acts after the built-in retries, unless ``retry=False`` turns those
    off.

    A stream's method ``.retry`` also starts again after the first content, as ``restart`` does, and without a wait.

    Raises ``ValidationError("invalid_option")`` if an argument is invalid.
    """
    rules = policy_argument(policy)
    if on_retry is not None:
        check_function("on_retry", on_retry)
    return lambda source: retrying(lambda: source, rules, on_retry)


def restart(policy: Retry = "default") -> Callable[[Observable[Event]], Stream[Event]]:
    """Restart a response that fails midway.

    ::

        source       --start--H--X
        again                    ---start--H------------------------------i--end--|
        restart()    ---------(start,H)----(abandoned,restarted,start,H)--i--end--|

    >>> from rxllm import Fake, StepRestarted, generate, stream_generate, Engine, operators as ops
    >>> torn = Fake(["Hel", ("error", "timeout")], ["Hello"])
    >>> generate(Engine(torn, operators=[restart({"base_delay": 0})]), "Hi").run().output_text
    'Hello'
    >>> torn = Fake(["Hel", ("error", "timeout")], ["Hello"])
    >>> stream_generate(torn, "Hi").pipe(restart({"base_delay": 0}), ops.only(StepRestarted)).run()
    StepRestarted(reason='timeout', attempt=2)

    A restart sends a new request. Two events precede the new attempt's content.
    ``Custom("step_abandoned", {"response": ...})`` preserves the abandoned response. ``StepRestarted`` makes folds
    discard everything earlier in the step, including usage. If the new attempt produces no content, neither event is
    emitted, and the earlier content is kept.

    `policy` is a `RetryPolicy` or a mapping with its fields. If the first attempt fails before any content, retrying is
    left to the engine. If the policy allows no further attempt, the last error is passed on. A refusal restarts the
    response only if ``"content_filter"`` is in the policy's `retry_on`; ``ops.fallback`` asks another model instead.

    Use this operator for a single response, in an engine's operators or after ``stream_generate`` or ``stream_step``. A
    failure after a ``StepCompleted`` does not trigger a restart. ``ops.text`` leaves out what the new attempt repeats.

    Raises ``ValidationError("invalid_option")`` if `policy` is invalid.
    """
    rules = policy_argument(policy)
    if rules.max_attempts <= 1:
        return Stream.of
    return lambda source: attempting(lambda: _Restarting(source, rules))


class Restarts:
    """Keeps the events of each attempt, and announces an attempt that replaces another one's content."""

    def __init__(self) -> None:
        self._events: list[Event] = []  # The current attempt's events.
        self._standing: list[Event] | None = None  # The events of the latest attempt that produced content.
        self.is_announced = False  # Whether a restart has been announced.

    def record(self, source: Observable[Event]) -> Observable[Event]:
        self._events = []
        return source.do_action(self._events.append)

    @property
    def has_content(self) -> bool:
        return self._standing is not None

    @property
    def is_over(self) -> bool:
        """Whether the step is complete, so that nothing can replace its content."""
        return any(isinstance(event, StepCompleted) for event in self._events)

    def announce(self, reason: str, attempt: int) -> Iterable[Event]:
        """Return the events that precede the content of the current attempt."""
        abandoned, self._standing = self._standing, self._events
        if abandoned is None:
            return ()
        self.is_announced = True
        state = reduce(StreamCollector.apply_event, abandoned, StreamCollector())
        data: dict[str, Any] = {"response": state.to_response()}
        return Custom(ABANDONED, data), StepRestarted(reason, attempt)


class _Restarting(Plan):
    late = True

    def __init__(self, source: Observable[Event], rules: RetryPolicy) -> None:
        self._source = source
        self._rules = rules
        self._restarts = Restarts()
        self._reason = ""

    def source(self, attempt: int) -> Observable[Event]:
        return self._restarts.record(self._source)

    def again(self, error: Exception, attempt: int) -> float | None:
        if not self._restarts.has_content or self._restarts.is_over or not self._rules.allows(error, attempt):
            return None
        assert isinstance(error, LLMError)
        self._reason = error.reason
        seconds = self._rules.delay(error, attempt)
        log.warning("attempt %d failed after its first content (%s); restarting in %.1f s", attempt, error, seconds)
        return seconds

    def opens(self, attempt: int) -> Iterable[Event]:
        return self._restarts.announce(self._reason, attempt)

    def name(self, attempt: int) -> str:
        return f"attempt {attempt}"

    def note(self, times: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}  # the `StepRestarted` event announces the attempt

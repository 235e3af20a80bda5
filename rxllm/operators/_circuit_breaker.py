"""A circuit breaker, which stops calling a provider that keeps failing."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.events import ErrorEvent, Event
from rxllm.operators._event_operators import operate
from rxllm.runtime import RetryPolicy, Stream, is_prelude, stopwatch
from rxllm.values import AdapterError, StreamError
from rxllm.values.argument_checks import check, check_count, check_function, is_positive

log = logging.getLogger("rxllm")

State = Literal["closed", "open", "half_open"]
Verdict = Literal["fine", "failed", "unknown"]

_FAILURES = RetryPolicy().retry_on


def circuit_breaker(
    failures: int = 5,
    *,
    within: float = 60.0,
    cooldown: float = 30.0,
    on_change: Callable[[State], object] | None = None,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Refuse calls for a while after repeated failures.

    ::

        calls                --X   --X                    --H--i--end--|
        circuit_breaker(2)   --X   --X   X   X   X        --H--i--end--|
        state                closed  open.............half_open,closed

    >>> from rxllm import AdapterError, Engine, Fake, generate
    >>> down = Fake(AdapterError("provider_unavailable"))
    >>> engine = Engine(down, operators=[circuit_breaker(1, on_change=print)], retry=False)
    >>> for _ in range(2):
    ...     try: generate(engine, "Hi").run()
    ...     except AdapterError as error: print(error)
    open
    adapter error: provider_unavailable
    the circuit is open: the next call is allowed in 30 s
    >>> len(down.requests)
    1

    The circuit opens when `failures` calls in a row have failed within `within` seconds. After `cooldown` seconds, a
    trial call is allowed. All subscriptions to the operator share one circuit, even on different threads. An engine and
    its copies share the circuit too. A refused call does not subscribe to its source. It fails with
    ``AdapterError("provider_unavailable")``. The error's `retry_after` is the number of seconds until the next trial.

    During a trial call, the circuit is ``half_open``. The circuit closes when the trial receives content, and opens
    again if the trial fails. If the trial is disposed, the next call becomes the trial. An error counts as a failure if
    it would be retried by default. Any other ``AdapterError`` or ``StreamError`` shows that the provider works, and so
    does a refusal. Errors of other classes are ignored. ``on_change(state)`` is called for each change. Its exceptions
    are logged.

    Raises ``ValidationError("invalid_option")`` for invalid arguments.
    """
    check_count("failures", failures)
    check("within", within, is_positive(within), "a positive number of seconds")
    check("cooldown", cooldown, is_positive(cooldown), "a positive number of seconds")
    if on_change is not None:
        check_function("on_change", on_change)
    circuit = Circuit(failures, within, cooldown, on_change)  # shared by all subscriptions

    def subscribe(
        source: Observable[Event], observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        now = stopwatch(scheduler)
        permit = circuit.enter(now())
        if isinstance(permit, AdapterError):
            observer.on_error(permit)
            return Disposable()

        def on_next(event: Event) -> None:
            if isinstance(event, ErrorEvent):
                circuit.report(permit, _verdict(event.error), now())
            elif permit.is_trial and not is_prelude(event):
                circuit.record_content(permit)
            observer.on_next(event)

        def on_error(error: Exception) -> None:
            circuit.report(permit, _verdict(error), now())
            observer.on_error(error)

        def on_completed() -> None:
            circuit.report(permit, "fine", now())
            observer.on_completed()

        subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(lambda: circuit.report(permit, "unknown", now())))

    return operate(subscribe)


def _verdict(error: Exception) -> Verdict:
    if not isinstance(error, AdapterError | StreamError):
        return "unknown"
    return "failed" if error.reason in _FAILURES else "fine"


class _Permit:
    """The permit for one call. For a trial call, `is_trial` is True until the call receives content."""

    def __init__(self, is_trial: bool) -> None:
        self.is_trial = is_trial
        self.is_reported = False


class Circuit:
    """The state of a circuit breaker. It can be used from any thread.

    =============  ========================================  ==========================================================
    current state  effect on a new call                      change to the next state
    =============  ========================================  ==========================================================
    closed         The call goes through.                    Opens when `failures` calls in a row have failed within
                                                             `within` seconds.
    open           The call is refused.                      Becomes half_open at the first call after the cooldown.
    half_open      The call becomes the trial. It is         Closes when the trial succeeds; opens when it fails.
                   refused if a trial is already running.
    =============  ========================================  ==========================================================
    """

    def __init__(
        self, failures: int, within: float, cooldown: float, on_change: Callable[[State], object] | None
    ) -> None:
        self._limit = failures
        self._within = within
        self._cooldown = cooldown
        self._on_change = on_change
        self._guard = threading.Lock()
        self._state: State = "closed"
        self._failures: deque[float] = deque(maxlen=failures)
        self._open_until = 0.0
        self._trial: _Permit | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled circuit starts closed in its new process, because clocks differ between processes.
        return Circuit, (self._limit, self._within, self._cooldown, self._on_change)

    def enter(self, now: float) -> _Permit | AdapterError:
        with self._guard:
            before = self._state
            if before == "closed":
                return _Permit(is_trial=False)
            if now < self._open_until or self._trial is not None:
                return self._refusal(self._open_until - now)
            self._state = "half_open"
            permit = self._trial = _Permit(is_trial=True)
        self._announce_change(before)
        return permit

    def record_content(self, permit: _Permit) -> None:
        """Record that a trial call has started to receive content, and close the circuit."""
        with self._guard:
            before = self._state
            permit.is_trial = False
            if permit is self._trial:
                self._close()
        self._announce_change(before)

    def report(self, permit: _Permit, verdict: Verdict, now: float) -> None:
        """Record the outcome of a call. Only the first outcome of each call counts."""
        with self._guard:
            if permit.is_reported:
                return
            permit.is_reported = True
            before = self._state
            if permit is self._trial:
                self._trial = None
                if verdict == "fine":
                    self._close()
                elif verdict == "failed":
                    self._open(now)
            elif before == "closed" and verdict == "fine":
                self._failures.clear()
            elif before == "closed" and verdict == "failed":
                self._failures.append(now)
                if len(self._failures) == self._limit and now - self._failures[0] <= self._within:
                    self._open(now)
        self._announce_change(before)

    def _close(self) -> None:
        self._state, self._trial = "closed", None
        self._failures.clear()

    def _open(self, now: float) -> None:
        self._state, self._open_until = "open", now + self._cooldown

    def _refusal(self, remaining: float) -> AdapterError:
        if remaining > 0:
            seconds, when = remaining, f"the next call is allowed in {remaining:.3g} s"
        else:  # If the trial fails, the whole cooldown begins again.
            seconds, when = self._cooldown, f"a trial call is running; try again in {self._cooldown:.3g} s"
        message = f"the circuit is {self._state}: {when}"
        return AdapterError("provider_unavailable", message, retry_after=seconds, metadata={"circuit": self._state})

    def _announce_change(self, before: State) -> None:
        state = self._state
        if state == before:
            return
        log.warning("the circuit is %s", state)
        if self._on_change is not None:
            try:
                self._on_change(state)
            except Exception as error:
                log.warning("on_change(%r) failed", state, exc_info=error)

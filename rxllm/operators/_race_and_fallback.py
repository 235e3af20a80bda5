"""Operators for unreliable providers."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm import runtime
from rxllm.adapters import as_adapter, connect
from rxllm.events import ErrorEvent, Event
from rxllm.operators._event_operators import operate
from rxllm.runtime import EngineCall, RetryPolicy, Stream, attempting, engine_call, is_prelude, provider_name, stopwatch
from rxllm.runtime.stream_arguments import check_streams
from rxllm.values import AdapterError, StreamError
from rxllm.values.argument_checks import (
    check,
    check_count,
    check_function,
    explains_call,
    invalid_option,
    is_positive,
    must_be,
)

if TYPE_CHECKING:
    from rxllm.engine import Engine

log = logging.getLogger("rxllm")


def race(*others: Observable[Event]) -> Callable[[Observable[Event]], Stream[Event]]:
    """Keep the first stream to emit content, and dispose of the rest.

    ``a.pipe(ops.race(b, c))`` is the same as ``rxllm.race(a, b, c)``. In the result's metadata, the source is stream 0.

    Raises ``ValidationError("invalid_option")`` if `others` is empty, or if one of them is not an Observable.
    """
    check_streams("others", others)
    return lambda source: runtime.race(source, *others)


@explains_call("ops.hedge(after=2) in a pipe, or rxllm.hedge(stream, after)")
def hedge(after: float) -> Callable[[Observable[Event]], Stream[Event]]:
    """Subscribe again if no content arrives within `after` seconds.

    The first subscription to emit content wins. ``stream.pipe(ops.hedge(after=2))`` is the same as
    ``rxllm.hedge(stream, after=2)``. To hedge every call of an engine, write
    ``Engine(adapter, operators=[ops.hedge(after=2)])``.

    Raises ``ValidationError("invalid_option")`` if `after` is not a positive number.
    """
    check("after", after, is_positive(after), "a positive number of seconds")
    return lambda source: runtime.hedge(source, after)


def fallback(
    *engines: Engine | str | Observable[Event] | Any, when: Callable[[Exception], bool] | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Try the next engine when a stream fails before its first content.

    ::

        source            --start--X
        second                     ---start--H---------i--end--|
        fallback(second)  -------------------(start,H)-i--end--|

    >>> from rxllm import AdapterError, Engine, Fake, generate, stream_generate
    >>> down = Fake(AdapterError("provider_unavailable"))
    >>> response = generate(Engine(down, operators=[fallback(Fake("Hello"))], retry=False), "Hi").run()
    >>> response.output_text, response.metadata["fallback"]["answered_by"]
    ('Hello', 'Fake')
    >>> stream_generate(down, "Hi", retry=False).pipe(fallback(stream_generate(Fake("Hello"), "Hi"))).run().message.text
    'Hello'

    In an engine's operators, pass engines, adapters, or names such as ``"provider:model"``. Each fallback engine
    receives the messages, the tools, the response format, and settings such as the temperature from the original
    request. It keeps its own key, model (if set), pass-through ``options``, retry policy and operators. Settings that
    its model does not accept (see ``rxllm.models``) are left out, with a warning in the log; the response's
    ``metadata["settings_left_out"]`` names them. In a pipe, pass Observables of events instead.

    The events of a failed attempt are dropped. After a fallback, the response has the metadata
    ``{"fallback": {"answered_by": ..., "errors": (...)}}``. If every attempt fails, the last error is raised, with
    earlier errors as notes. ``when(error)`` decides whether to fall back. By default, every error except
    ``StreamError("cancelled")`` triggers a fallback.

    Raises ``ValidationError("invalid_option")`` if `engines` is empty or contains an item of the wrong type. Raises
    ``EngineError("unknown_provider")`` for an unknown provider. In a pipe, raises ``ValidationError`` unless all
    `engines` are streams.
    """
    if not engines:
        raise invalid_option("engines", "must not be empty: write fallback(engine)")
    if when is not None:
        check_function("when", when)
    alternatives = [_Alternative.of(engine, index) for index, engine in enumerate(engines)]

    def operator(source: Observable[Event]) -> Stream[Event]:
        call = engine_call()
        sources = [source, *(alternative.events(call) for alternative in alternatives)]
        first = _full_name(call.provider, call.request.model) if call else "the first"
        names = [first, *(alternative.name for alternative in alternatives)]
        return attempting(lambda: _Fallback(sources, names, when or _is_failure))

    return operator


@dataclass(frozen=True)
class _Alternative:
    engine: Any
    model: str | None
    name: str

    @classmethod
    def of(cls, engine: Any, index: int) -> _Alternative:
        if isinstance(engine, Observable):
            return cls(engine, None, f"stream {index + 1}")
        if isinstance(engine, str):
            provider, _, model = engine.partition(":")
            return cls(connect(provider, model), model or None, engine)
        adapter = getattr(engine, "adapter", engine)
        try:
            as_adapter(adapter)
        except Exception as error:
            expected = "engines, adapters, model names or streams"
            raise invalid_option("engines", must_be(expected, engine)) from error
        model = getattr(engine, "model", None) if adapter is not engine else None
        return cls(engine, None, _full_name(provider_name(adapter), model))

    def events(self, call: EngineCall | None) -> Observable[Event]:
        if isinstance(self.engine, Observable):
            return self.engine  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if call is None:
            fault = (
                f"cannot include the engine {self.name!r} when fallback(...) is used in a pipe; pass a stream, as in "
                "fallback(stream_generate(engine, question))"
            )
            raise invalid_option("engines", fault)
        return call.ask(self.engine, self.model)


class _Fallback:
    late = False

    def __init__(
        self, sources: list[Observable[Event]], names: list[str], is_failure: Callable[[Exception], bool]
    ) -> None:
        self._sources = sources
        self._names = names
        self._is_failure = is_failure
        self._failures: list[str] = []

    def source(self, attempt: int) -> Observable[Event]:
        return self._sources[attempt - 1]

    def again(self, error: Exception, attempt: int) -> float | None:
        if attempt < len(self._sources) and self._is_failure(error):
            log.warning("%s failed (%s); falling back to %s", self._names[attempt - 1], error, self._names[attempt])
            self._failures.append(f"{self._names[attempt - 1]}: {error!r}")
            return 0.0
        for failure in self._failures:
            if failure not in getattr(error, "__notes__", ()):  # Tests may raise the same error twice.
                error.add_note(failure)
        return None

    def opens(self, attempt: int) -> Iterable[Event]:
        return ()

    def name(self, attempt: int) -> str:
        return self._names[attempt - 1]

    def note(self, times: Mapping[str, Any]) -> Mapping[str, Any]:
        answered_by = self._names[len(self._failures)]
        return {"fallback": {"answered_by": answered_by, "errors": tuple(self._failures), **times}}


def _is_failure(error: Exception) -> bool:
    return not (isinstance(error, StreamError) and error.reason == "cancelled")


def _full_name(provider: str, model: str | None) -> str:
    return f"{provider}:{model}" if model else provider


# Stop calling a provider that keeps failing


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
    it would be retried by default. Any other ``AdapterError`` or ``StreamError`` shows that the provider works. Errors
    of other classes are ignored. ``on_change(state)`` is called for each change. Its exceptions are logged.

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

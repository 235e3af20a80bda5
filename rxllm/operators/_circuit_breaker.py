"""Stop calling a provider that keeps failing."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.events import ErrorEvent, Event
from rxllm.operators._shared.circuit import Circuit, State, Verdict
from rxllm.operators._shared.operate import operate
from rxllm.runtime import RetryPolicy, Stream, is_prelude, stopwatch
from rxllm.values import AdapterError, StreamError
from rxllm.values.argument_checks import check, check_count, check_function, is_positive

_FAILURES = RetryPolicy().retry_on


def circuit_breaker(
    failures: int = 5,
    *,
    within: float = 60.0,
    cooldown: float = 30.0,
    on_change: Callable[[State], object] | None = None,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """After `failures` in a row `within` so many seconds, fail calls at once; after `cooldown` seconds let one try.

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
    the circuit is open: calls are tried again in 30 s
    >>> len(down.requests)
    1

    All subscriptions of one operator share its state, in any thread: all calls of an engine and of its copies. A
    refused call does not subscribe its source; it gets ``AdapterError("provider_unavailable")`` with the seconds until
    the next trial as `retry_after`. The first content of that trial (``half_open``) closes the circuit, its failure
    opens it again, and if it is disposed the next call is the trial. Failures are the errors that are retried by
    default, raised or streamed; other errors show that the provider is there. ``on_change(state)`` is called at every
    change; its exceptions are logged.

    Raises ``ValidationError("invalid_option")`` for options that make no sense.
    """
    check_count("failures", failures)
    check("within", within, is_positive(within), "a number of seconds above 0")
    check("cooldown", cooldown, is_positive(cooldown), "a number of seconds above 0")
    if on_change is not None:
        check_function("on_change", on_change)
    circuit = Circuit(failures, within, cooldown, on_change)  # outside of subscribe: the calls share it

    def subscribe(
        source: Observable[Event], observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        now = stopwatch(scheduler)
        permit = circuit.enter(now())
        if isinstance(permit, AdapterError):
            observer.on_error(permit)
            return Disposable()
        is_trial = permit.is_trial

        def on_next(event: Event) -> None:
            nonlocal is_trial
            if isinstance(event, ErrorEvent):
                circuit.report(permit, _verdict(event.error), now())
            elif is_trial and not is_prelude(event):
                is_trial = False
                circuit.recovered(permit)
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

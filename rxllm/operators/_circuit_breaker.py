"""Ask no more for a while."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.events import ErrorEvent, Event
from rxllm.operators._shared.circuit import Circuit, Passage, State, Verdict
from rxllm.runtime import RetryPolicy, Stream, is_prelude, stopwatch
from rxllm.values import AdapterError, StreamError, ValidationError
from rxllm.values.arguments import is_positive

_COUNTED = RetryPolicy().retry_on


def circuit_breaker(
    failures: int = 5,
    *,
    within: float = 60.0,
    cooldown: float = 30.0,
    on_change: Callable[[State], object] | None = None,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """After `failures` in a row `within` some seconds, calls fail at once; after `cooldown` one tries again.

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
    the circuit is open: it is tried again in 30 s
    >>> len(down.requests)
    1

    One operator has one state, which all its subscriptions share, in any thread: all calls of an engine and of its
    copies. A call that fails at once does not subscribe its source; it gets ``AdapterError("provider_unavailable")``
    with the seconds until the next try as `retry_after`. Then, ``half_open``, a single call is let through: its first
    content closes the circuit, its failure opens it again, and if it is disposed the next call tries. Failures are
    errors that retry is for, by default, raised or streamed; others say that the provider is there.
    ``on_change(state)`` is told of every change; what it raises is logged.

    Raises ``ValidationError("invalid_option")`` for options that make no sense.
    """
    seconds = "must be a number of seconds above 0, not"
    faults = {
        "failures": None if _is_count(failures) else f"must be a whole number of at least 1, not {failures!r}",
        "within": None if is_positive(within) else f"{seconds} {within!r}",
        "cooldown": None if is_positive(cooldown) else f"{seconds} {cooldown!r}",
        "on_change": None if on_change is None or callable(on_change) else f"must be a function, not {on_change!r}",
    }
    if errors := [((name,), what) for name, what in faults.items() if what is not None]:
        raise ValidationError("invalid_option", errors=errors)
    circuit = Circuit(failures, within, cooldown, on_change)  # outside of subscribe: it is what the calls share

    def operator(source: Observable[Event]) -> Stream[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            now = stopwatch(scheduler)
            passage = circuit.enter(now())
            if isinstance(passage, AdapterError):
                observer.on_error(passage)
                return Disposable()
            return _through(circuit, passage, now, source, observer, scheduler)

        return Stream(subscribe)

    return operator


def _through(
    circuit: Circuit,
    passage: Passage,
    now: Callable[[], float],
    source: Observable[Event],
    observer: abc.ObserverBase[Event],
    scheduler: abc.SchedulerBase | None,
) -> abc.DisposableBase:
    tries = passage.tries

    def on_next(event: Event) -> None:
        nonlocal tries
        if isinstance(event, ErrorEvent):
            circuit.report(passage, _verdict(event.error), now())
        elif tries and not is_prelude(event):
            tries = False
            circuit.recovered(passage)
        observer.on_next(event)

    def on_error(error: Exception) -> None:
        circuit.report(passage, _verdict(error), now())
        observer.on_error(error)

    def on_completed() -> None:
        circuit.report(passage, "fine", now())
        observer.on_completed()

    subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
    return CompositeDisposable(subscription, Disposable(lambda: circuit.report(passage, "unknown", now())))


def _verdict(error: Exception) -> Verdict:
    if not isinstance(error, AdapterError | StreamError):
        return "unknown"
    return "failed" if error.reason in _COUNTED else "fine"


def _is_count(held: object) -> bool:
    return isinstance(held, int) and not isinstance(held, bool) and held >= 1

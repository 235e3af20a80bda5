"""Observe streams in bounded time, whatever thread or loop the test runs on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxllm.testing._rule_table import clip, expect

T = TypeVar("T")

SECONDS = 30.0
"""How long a stream may take before it counts as hanging."""


class HangingError(AssertionError):
    """A function has not returned in time."""


def in_time(function: Callable[[], T], seconds: float) -> T:
    """Call ``function()`` on a thread of its own, in the caller's context, and return its result or raise its error.

    Raises `HangingError` if that takes longer than `seconds`; the thread is left behind, since nothing can end it.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    _in_thread(run)
    if not wait([future], seconds).done:
        raise HangingError(f"it did not come back in {seconds} s")
    return future.result()


def _in_thread(function: Callable[[], None]) -> None:
    threading.Thread(target=copy_context().run, args=(function,), daemon=True).start()


@dataclass
class Observed:
    """What a subscriber has received."""

    events: list[Any] = field(default_factory=list[Any])
    errors: list[Exception] = field(default_factory=list[Exception])
    completed: int = 0
    ended: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def error(self) -> Exception | None:
        return self.errors[0] if self.errors else None

    def expect_events(self) -> list[Any]:
        """Return the events. Raise ``AssertionError``, with the call's error as its cause, if it failed."""
        __tracebackhide__ = True
        expect(self.error is None, f"the call failed with {self.error!r}", self.error)
        expect(bool(self.events), "the call completed without any event")
        return self.events

    def subscribe(
        self, source: Observable[Any], scheduler: abc.SchedulerBase | None, on_next: Callable[[Any], None]
    ) -> abc.DisposableBase:
        def receive(event: Any) -> None:
            self.events.append(event)
            on_next(event)

        def fail(error: Exception) -> None:
            self.errors.append(error)
            self.ended.set()

        def complete() -> None:
            self.completed += 1
            self.ended.set()

        try:
            return source.subscribe(receive, fail, complete, scheduler=scheduler)
        except Exception as error:
            fail(error)
            return Disposable()


def observe(source: Observable[Any], **options: Any) -> Observed:
    """Return all that `source` emits until it ends; the `options` are those of `observe_all`."""
    (observed,) = observe_all([source], **options)
    return observed


def observe_all(
    sources: list[Observable[Any]],
    *,
    seconds: float = SECONDS,
    scheduler: abc.SchedulerBase | None = None,
    on_next: Callable[[Any], None] = lambda event: None,
) -> list[Observed]:
    """Subscribe to all `sources` at once, and return what they emit until they have ended.

    Raises ``AssertionError`` (`ends`) if that takes longer than `seconds`.
    """
    all_observed = [Observed() for _ in sources]
    subscriptions: list[abc.DisposableBase] = []
    deadline = time.monotonic() + seconds

    def subscribe() -> None:
        for source, observed in zip(sources, all_observed, strict=True):
            subscriptions.append(observed.subscribe(source, scheduler, on_next))

    _in_thread(subscribe)  # it has no loop, so that the streams run on the portal's
    if not all(observed.ended.wait(max(0.0, deadline - time.monotonic())) for observed in all_observed):
        for subscription in subscriptions:
            subscription.dispose()
        emitted = "; ".join(f"{len(one.events)} events, the last {clip(one.events[-1:])}" for one in all_observed)
        raise AssertionError(f"ends: the stream has not ended after {seconds} s, and has emitted {emitted}")
    return all_observed


def becomes(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True

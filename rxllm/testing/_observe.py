"""Streams listened to in bounded time, whatever thread or loop the test runs on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxllm import serializer
from rxllm.testing._rule_table import clip
from rxllm.values import LLMError

T = TypeVar("T")

SECONDS = 30.0
"""How long a stream may take before it counts as hanging."""


class HangingError(AssertionError):
    """What was called did not come back."""


def in_time(do: Callable[[], T], seconds: float) -> T:
    """What ``do()`` gives or raises, called on a thread of its own in the caller's context.

    Raises `HangingError` if that takes longer than `seconds`; the thread is left behind, since nothing can end it.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(do())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    if not wait([future], seconds).done:
        raise HangingError(f"it did not come back in {seconds} s")
    return future.result()


@dataclass
class Told:
    """What a subscriber has been told."""

    events: list[Any] = field(default_factory=list[Any])
    errors: list[Exception] = field(default_factory=list[Exception])
    completed: int = 0

    @property
    def error(self) -> Exception | None:
        return self.errors[0] if self.errors else None


def fail(rule: str, why: str) -> NoReturn:
    """Raises ``AssertionError``, which begins with the rule that is broken."""
    raise AssertionError(f"{rule}: {why}")


def hear(
    source: Observable[Any],
    *,
    seconds: float = SECONDS,
    scheduler: abc.SchedulerBase | None = None,
    on_next: Callable[[Any], None] = lambda event: None,
) -> Told:
    """All that `source` says until it ends; ``on_next`` is called for each item.

    Raises ``AssertionError`` (`ends`) if that takes longer than `seconds`.
    """
    (told,) = hear_all([source], seconds=seconds, scheduler=scheduler, on_next=on_next)
    return told


def hear_all(
    sources: list[Observable[Any]],
    *,
    seconds: float = SECONDS,
    scheduler: abc.SchedulerBase | None = None,
    on_next: Callable[[Any], None] = lambda event: None,
) -> list[Told]:
    """The same for several at once."""
    ends = [threading.Event() for _ in sources]
    heard = [Told() for _ in sources]
    held: list[abc.DisposableBase] = []
    deadline = time.monotonic() + seconds

    def listen() -> None:  # on a thread of its own, that has no loop: the streams run on the portal's
        for source, told, end in zip(sources, heard, ends, strict=True):
            held.append(_subscribe(source, told, end, scheduler, on_next))

    threading.Thread(target=copy_context().run, args=(listen,), daemon=True).start()
    if not all(end.wait(max(0.0, deadline - time.monotonic())) for end in ends):
        for subscription in held:
            subscription.dispose()
        said = "; ".join(f"{len(told.events)} events, the last {clip(told.events[-1:])}" for told in heard)
        fail("ends", f"the stream has not ended after {seconds} s, and has said {said}")
    return heard


def _subscribe(
    source: Observable[Any],
    told: Told,
    end: threading.Event,
    scheduler: abc.SchedulerBase | None,
    on_next: Callable[[Any], None],
) -> abc.DisposableBase:
    def hear(event: Any) -> None:
        told.events.append(event)
        on_next(event)

    def fail(error: Exception) -> None:
        told.errors.append(error)
        end.set()

    def complete() -> None:
        told.completed += 1
        end.set()

    try:
        return source.subscribe(hear, fail, complete, scheduler=scheduler)
    except Exception as error:
        fail(error)
        return Disposable()


def assert_survives_json(event: Any) -> None:
    """Raises ``AssertionError`` if `event` has no JSON form, or comes back as another."""
    try:
        again = serializer.from_json(serializer.to_json(event))
    except LLMError as error:
        raise AssertionError(f"{clip(event)} has no JSON form: {error}") from error
    if again != event:
        raise AssertionError(f"{clip(event)} came back as {clip(again)}")


def becomes(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True

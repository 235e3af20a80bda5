"""Hold a source back from inside an operator: a gate of its own in front of the reader's.

An operator that keeps items waiting subscribes to its source with `paced`, behind a `Hold`. The source then waits while
either is full: the operator, or the reader behind it. What the operator delivers is delivered outside, so that calls
made there wait for the reader alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxllm.runtime._back_pressure import Gate, current_gate
from rxllm.runtime._stream import Stream

T = TypeVar("T")


class Hold(Gate):
    """A gate that is full while ``is_full()``, and while the reader's is; its owner calls `open` when it has room.

    `waiting` are the reader's items. ``before_tools(start)`` of its owner, if any, delays tools; see `Gate`.
    """

    def __init__(
        self, is_full: Callable[[], bool], before_tools: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        super().__init__(1)
        self._is_full = is_full
        self._before_tools = before_tools
        self._reader = current_gate.get()
        if self._reader is not None:
            self.waiting = self._reader.waiting

    @property
    def full(self) -> bool:
        return self._is_full() or (self._reader is not None and self._reader.full)

    def when_open(self, wake: Callable[[], None]) -> None:
        reader = self._reader
        with self._guard:
            self._sleepers.append(wake if reader is None else lambda: reader.when_open(wake))
        if not self._is_full():
            self.open()

    def when_idle(self, wake: Callable[[], None]) -> None:
        (super() if self._reader is None else self._reader).when_idle(wake)

    def before_tools(self, start: Callable[[], None]) -> None:
        reader = self._reader
        following = start if reader is None else lambda: reader.before_tools(start)
        if self._before_tools is None:
            following()
        else:
            self._before_tools(following)


class _Outside(abc.ObserverBase[Any]):
    """An observer that is called with the gate of its subscription, whatever gate its source is behind."""

    __slots__ = ("_gate", "_observer")

    def __init__(self, observer: abc.ObserverBase[Any]) -> None:
        self._observer = observer
        self._gate = current_gate.get()

    def on_next(self, value: Any) -> None:
        token = current_gate.set(self._gate)  # as `behind`, which takes longer, for every event
        try:
            self._observer.on_next(value)
        finally:
            current_gate.reset(token)

    def on_error(self, error: Exception) -> None:
        with behind(self._gate):
            self._observer.on_error(error)

    def on_completed(self) -> None:
        with behind(self._gate):
            self._observer.on_completed()


@contextlib.contextmanager
def behind(gate: Gate | None) -> Generator[None]:
    """Make sources subscribed inside wait for `gate`, if any."""
    token = current_gate.set(gate)
    try:
        yield
    finally:
        current_gate.reset(token)


def paced(source: Observable[T], gate: Gate | None) -> Stream[T]:
    """Return `source`, subscribed to behind `gate`, which its subscriber does not see. Behind None it never waits."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        subscriber = _Outside(observer)
        with behind(gate):
            return source.subscribe(subscriber, scheduler=scheduler)

    return Stream(subscribe)

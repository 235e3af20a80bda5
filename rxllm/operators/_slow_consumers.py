"""Operators for consumers that are slower than their source."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxllm.collector import DELTAS
from rxllm.events import Nested, ToolCallDelta, with_text
from rxllm.operators._event_operators import operate
from rxllm.runtime import Backlog, Gate, Stream, clock, current_gate, schedule_in
from rxllm.runtime.back_pressure import HELD_BACK
from rxllm.values.argument_checks import call_fault, check, check_function

T = TypeVar("T")


def conflate(join: Callable[[T, T], T] | None = None) -> Callable[[Observable[T]], Stream[T]]:
    """Join adjacent deltas or strings while the consumer is busy.

    ::

        source         --H-e-l-l-o--end--|
        conflate()     --H-----(ello)-end|        (the consumer was busy with H)

    >>> import asyncio
    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> async def slow_reader():
    ...     events = stream_generate(Fake(["H", "e", "l", "l", "o"]), "Hi").pipe(conflate())
    ...     async for event in events:
    ...         await asyncio.sleep(0.001)        # slow work
    ...         if isinstance(event, TextDelta): print(event.delta)
    >>> asyncio.run(slow_reader())
    Hello

    A consumer is busy in two cases:

    - Its iterator (``for``, ``async for``, ``to_iter``, ``to_async_iter``) has not yet taken all items.
    - Its ``on_next`` is running.

    Strings are joined, and so are deltas of the same block or tool call. Other items wait in order. When the consumer
    is free again, it receives all waiting items as a batch. A fast consumer receives every item unchanged. So does a
    consumer that only puts items into a queue or starts a task for each. Waiting items are emitted before the end or an
    error.

    ``join(waiting, item)`` combines two items of any kind, so that only one item waits:

    >>> import operator
    >>> import reactivex
    >>> reactivex.range(5).map(lambda number: [number]).pipe(conflate(operator.add)).to_list().run()
    [[0], [1], [2], [3], [4]]

    If `join` raises, the stream ends with that exception. To keep only the newest item, use `keep_latest`.

    Raises ``ValidationError("invalid_option")`` unless `join` is a function that takes two items.
    """
    if join is None:
        return operate(lambda source, observer, scheduler: _JoiningTexts(observer, scheduler).start(source))
    check_function("join", join)
    check("join", join, call_fault(join, None, None) is None, "a function that takes two items")
    return operate(lambda source, observer, scheduler: _JoiningAll(join, observer, scheduler).start(source))


def keep_latest() -> Callable[[Observable[T]], Stream[T]]:
    """Keep only the newest item while the consumer is busy.

    ::

        source            --1-2-3-4-5-6-7--|
        keep_latest()     --1-----4-----7--|        (the consumer works six ticks on an item)

    >>> import asyncio
    >>> from rxllm import from_async_iter, to_async_iter
    >>> async def readings():
    ...     for number in range(100):
    ...         yield number
    ...         await asyncio.sleep(0)
    >>> async def slow_reader():
    ...     async with to_async_iter(from_async_iter(readings).pipe(keep_latest())) as items:
    ...         async for item in items:
    ...             await asyncio.sleep(0.05)        # slow work
    ...             print(item)
    >>> asyncio.run(slow_reader())
    0
    99

    A consumer is busy in two cases:

    - Its iterator (``for``, ``async for``, ``to_iter``, ``to_async_iter``) has not yet requested the next item.
    - Its ``on_next`` is running.

    The source is never slowed down. A fast consumer receives every item. So does a consumer that only puts items into a
    queue or starts a task for each. The last item before the end or an ``on_error`` is always emitted. For deltas, use
    `conflate`, which loses nothing.
    """
    return operate(lambda source, observer, scheduler: _KeepingLatest[T](observer, scheduler).start(source))


class _WhileBusy(Backlog[T, T]):
    """Base class that holds items while the consumer is busy.

    `_count` is the number of waiting items. When this number reaches `_most`, the items are emitted even if the
    consumer is busy.
    """

    _most: float = HELD_BACK

    def __init__(self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None) -> None:
        super().__init__(observer, scheduler)
        self._gate = current_gate()
        self._clock = clock(scheduler) if self._gate is not None else None
        self._count = 0

    @abstractmethod
    def _add(self, item: T) -> None:
        """Add `item` to the waiting items."""

    @abstractmethod
    def _take(self) -> Iterable[T]:
        """Remove and return the waiting items."""

    def _is_free(self, gate: Gate) -> bool:
        return gate.idle

    def _when_free(self, gate: Gate, wake: Callable[[], None]) -> None:
        """Call `wake` once the consumer is ready for an item."""
        gate.when_idle(wake)

    def _on_next(self, item: T) -> None:
        with self._lock:
            if not (self._count or self._delivering or (self._gate is not None and not self._is_free(self._gate))):
                self._deliver(item)
                if not self._count:
                    return
            else:
                if not self._count and self._gate is not None:
                    self._when_free(self._gate, self._schedule_release)
                self._count += 1
                try:
                    self._add(item)
                except Exception as error:  # the user's `join` raised an exception
                    self._on_error(error)
                    return
            if self._delivering:
                return
            if self._gate is None or self._count >= self._most or self._is_free(self._gate):
                self._release()

    def _schedule_release(self) -> None:
        # The consumer may use another thread, but deliveries must happen on the clock's thread.
        if self._clock is not None and not self._timer.is_disposed:
            schedule_in(self._timer, self._clock, self.wake)

    def _release(self) -> None:
        while self._count and not self._delivering:
            for item in self._take_all():
                self._deliver(item)

    def _take_all(self) -> Iterable[T]:
        if not self._count:
            return ()
        self._count = 0
        return self._take()


class _JoiningTexts(_WhileBusy[T]):
    def __init__(self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None) -> None:
        super().__init__(observer, scheduler)
        self._items: list[tuple[T, list[str]]] = []

    def _add(self, item: T) -> None:
        text = text_of(item)
        if text is not None and self._items and continues(self._items[-1][0], item):
            self._items[-1][1].append(text)
        else:
            self._items.append((item, [] if text is None else [text]))

    def _take(self) -> list[T]:
        items: list[Any] = [join_texts(item, texts) if len(texts) > 1 else item for item, texts in self._items]
        self._items.clear()
        return items


class _JoiningAll(_WhileBusy[T]):
    def __init__(
        self, join: Callable[[T, T], T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> None:
        super().__init__(observer, scheduler)
        self._join = join
        self._items: list[T] = []  # at most one

    def _add(self, item: T) -> None:
        self._items[:] = [self._join(self._items[0], item) if self._items else item]

    def _take(self) -> list[T]:
        items, self._items = self._items, []
        return items


class _KeepingLatest(_WhileBusy[T]):
    _most = math.inf
    _latest: T

    def _add(self, item: T) -> None:
        self._latest = item

    def _take(self) -> tuple[T]:
        return (self._latest,)

    def _is_free(self, gate: Gate) -> bool:
        return gate.requested

    def _when_free(self, gate: Gate, wake: Callable[[], None]) -> None:
        gate.when_requested(wake)


def text_of(item: Any) -> str | None:
    """Return the text of a delta or string, or None if `item` is neither.

    Hidden thinking has none: if it were joined, its estimate would be lost.
    """
    if type(item) is Nested:
        return text_of(item.event)
    if type(item) in DELTAS and getattr(item, "estimated_tokens", None) is None:
        return item.arguments_delta if type(item) is ToolCallDelta else item.delta
    return item if type(item) is str else None


def continues(last: Any, item: Any) -> bool:
    """Return whether `item` continues the text of `last`."""
    if type(last) is not type(item) or text_of(last) is None:
        return False
    if type(item) is Nested:
        return last.path == item.path and continues(last.event, item.event)
    return type(item) is str or last.id == item.id


def join_texts(item: Any, texts: Iterable[str]) -> Any:
    if type(item) is Nested:
        return Nested(item.path, join_texts(item.event, texts))
    text = "".join(texts)
    if type(item) is str:
        return text
    return ToolCallDelta(item.id, text) if type(item) is ToolCallDelta else with_text(item, text)

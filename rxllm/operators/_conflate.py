"""Join items for a slow consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxllm.operators._shared.busy_consumer import WhileBusy
from rxllm.operators._shared.join_deltas import continues, joined, text_of
from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream
from rxllm.values.argument_checks import call_fault, check, check_function

T = TypeVar("T")

MOST = 1024
"""At most so many items wait; then they pass, and the consumer's buffer slows the source down."""


def conflate(join: Callable[[T, T], T] | None = None) -> Callable[[Observable[T]], Stream[T]]:
    """Join adjacent deltas, or strings, while the consumer is busy; nothing is lost, and the order stays.

    ::

        source         --H-e-l-l-o--end--|
        conflate()     --H-----(ello)-end|        (the consumer was busy with H)

    >>> import asyncio
    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> async def slow_reader():
    ...     events = stream_generate(Fake(["H", "e", "l", "l", "o"]), "Hi").pipe(conflate())
    ...     async for event in events:
    ...         await asyncio.sleep(0.001)        # its work
    ...         if isinstance(event, TextDelta): print(event.delta)
    >>> asyncio.run(slow_reader())
    Hello

    A consumer is busy

    - while its iterator (``for``, ``async for``, ``to_iter``, ``to_async_iter``) has items left to take;
    - while its ``on_next`` runs.

    Then deltas of the same block or tool call become one, and so do strings, which are the pieces of a text; other
    items wait behind them. When the consumer has taken everything, it gets the waiting batch; so it is never further
    behind than one batch, and a quick consumer gets every item unchanged. A consumer that only passes items on, to a
    queue or a task, never counts as busy. The end and ``on_error`` release waiting items first.

    With ``join(waiting, item)``, a function of two items, all that waits becomes one item, whatever the items are:

    >>> import operator
    >>> import reactivex
    >>> reactivex.range(5).map(lambda number: [number]).pipe(conflate(operator.add)).to_list().run()
    [[0], [1], [2], [3], [4]]

    An exception of `join` ends the stream. `keep_latest` drops all but the newest.

    Raises ``ValidationError("invalid_option")`` for a `join` that is not a function of two items.
    """
    if join is None:
        return operate(lambda source, observer, scheduler: _JoiningTexts(observer, scheduler).start(source))
    check_function("join", join)
    check("join", join, call_fault(join, None, None) is None, "a function of two items")
    return operate(lambda source, observer, scheduler: _JoiningAll(join, observer, scheduler).start(source))


class _JoiningTexts(WhileBusy[T]):
    """Each waiting item has a list of the texts that join to its own."""

    _most = MOST

    def __init__(self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None) -> None:
        super().__init__(observer, scheduler)
        self._items: list[tuple[T, list[str]]] = []

    def _add(self, item: T) -> None:
        text = text_of(item)
        if text is not None and self._items and continues(self._items[-1][0], item):
            self._items[-1][1].append(text)
        else:
            self._items.append((item, [] if text is None else [text]))

    def _take_all(self) -> list[T]:
        items: list[Any] = [joined(item, texts) if len(texts) > 1 else item for item, texts in self._items]
        self._items.clear()
        return items


class _JoiningAll(WhileBusy[T]):
    """At most one item waits: all of them, joined."""

    _most = MOST

    def __init__(
        self, join: Callable[[T, T], T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> None:
        super().__init__(observer, scheduler)
        self._join = join
        self._items: list[T] = []

    def _add(self, item: T) -> None:
        self._items[:] = [self._join(self._items[0], item) if self._items else item]

    def _take_all(self) -> list[T]:
        items, self._items = self._items, []
        return items

"""Give a slow consumer the newest item alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable

from rxllm.operators._shared.busy_consumer import WhileBusy
from rxllm.operators._shared.operate import operate
from rxllm.runtime import Gate, Stream

T = TypeVar("T")


def keep_latest() -> Callable[[Observable[T]], Stream[T]]:
    """Drop the items that come while the consumer is busy, all but the newest.

    ::

        source            --1-2-3-4-5-6-7--|
        keep_latest()     --1-----4-----7--|        (an item is worked on for six ticks)

    >>> import asyncio
    >>> from rxllm import from_async_iter, to_async_iter
    >>> async def readings():
    ...     for number in range(100):
    ...         yield number
    ...         await asyncio.sleep(0)
    >>> async def slow_reader():
    ...     async with to_async_iter(from_async_iter(readings).pipe(keep_latest())) as items:
    ...         async for item in items:
    ...             await asyncio.sleep(0.05)        # its work
    ...             print(item)
    >>> asyncio.run(slow_reader())
    0
    99

    A consumer is busy

    - until its iterator (``for``, ``async for``, ``to_iter``, ``to_async_iter``) asks for the next item: what it then
      gets is not older than that moment, however long it has worked;
    - while its ``on_next`` runs.

    The source is never slowed down. A quick consumer gets every item. The last item before the end always comes, and
    so does the last one before an ``on_error``. A consumer that only passes items on, to a queue or a task, never
    counts as busy. Deltas need their neighbours: `conflate` joins them.
    """
    return operate(lambda source, observer, scheduler: _KeepingLatest[T](observer, scheduler).start(source))


class _KeepingLatest(WhileBusy[T]):
    _latest: T

    def _add(self, item: T) -> None:
        self._latest = item

    def _take_all(self) -> tuple[T]:
        return (self._latest,)

    def _is_free(self, gate: Gate) -> bool:
        return gate.requested

    def _when_free(self, gate: Gate, wake: Callable[[], None]) -> None:
        gate.when_requested(wake)

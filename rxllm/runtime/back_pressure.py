"""Make sources wait for a slow reader.

Reactivex has no back-pressure. If a consumer buffers items, it sets a `Gate` in the context while it subscribes.
Sources find the gate no matter which operators are in between, and stop reading while it is full.

=============  =======================  ========================================================================
gate state     waiting items            behaviour of sources
=============  =======================  ========================================================================
open           fewer than `maxsize`     they keep reading
full           `maxsize` or more        they sleep in `wait` until at most ``maxsize // 2`` items are left
idle           none                     they keep reading; the functions passed to `when_idle` are called
requested      none, and the reader is  they keep reading; the functions passed to `when_requested` are called
               waiting for an item
=============  =======================  ========================================================================

Readers also wait for the function that was passed to `finally_result`; see `Endings`. ``dispose()`` does not wait for
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.runtime.context_variables import ErrorListener, Reader, current_reader
from rxllm.runtime.portal import running_loop


class Endings:
    """The functions that a reader waits for once it has stopped reading."""

    def __init__(self) -> None:
        self._running: dict[Future[None], None] = {}
        self._is_expected = False

    def expect(self) -> None:
        """Record that a function may have to run when the subscription is disposed."""
        self._is_expected = True

    def begin(self) -> Callable[[], None]:
        """Make the reader wait until the returned function is called."""
        ending = Future[None]()
        # Mark the future as running, so that it is not cancelled if the reader's wait is cancelled.
        ending.set_running_or_notify_cancel()
        self._running[ending] = None

        def end() -> None:
            if self._running.pop(ending, ending) is None:
                ending.set_result(None)

        return end

    async def wait(self) -> None:
        """Wait for the functions to return, but for at most a minute."""
        if running := list(self._running):
            await asyncio.wait(map(asyncio.wrap_future, running), timeout=60)

    def wait_blocking(self, loop: asyncio.AbstractEventLoop) -> None:
        """Block until the functions have returned, but for at most two minutes."""
        if self._is_expected and running_loop() is not loop:
            # The operator ``take`` completes the reader just before it disposes of the source.
            has_turned = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(has_turned.set)
                has_turned.wait(timeout=60)
        wait(list(self._running), timeout=60)


MAX_WAITING = 64
"""The default number of unread items at which a source starts to wait."""

HELD_BACK = 1024
"""The default limit on the number of items that are held back."""

LIMIT = 65_536
"""The default number of unread items at which a source is cut off if it cannot wait."""


class Gate:
    """A gate between a source and its reader.

    The gate is closed while `maxsize` or more items are waiting. Sources that wait for it to open are woken when no
    more than ``maxsize // 2`` items are left.
    """

    def __init__(self, maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"maxsize must be at least 1, not {maxsize}")
        self.waiting: deque[Any] = deque()
        self._maxsize = maxsize
        self._sleepers: list[Callable[[], None]] = []
        self._idlers: list[Callable[[], None]] = []
        self._suppliers: list[Callable[[], None]] = []
        self._requested = True  # a reader wants its first item as soon as it subscribes
        self._guard = threading.Lock()

    @property
    def full(self) -> bool:
        return len(self.waiting) >= self._maxsize

    @property
    def idle(self) -> bool:
        return not self.waiting

    def take(self) -> Any:
        """Return the oldest item.

        Raises ``IndexError`` if no item is waiting.
        """
        self._requested = False
        item = self.waiting.popleft()
        if self._sleepers and len(self.waiting) <= self._maxsize // 2:
            self.open()
        if self._idlers and self._is_idle():
            self._wake(self._idlers)
        return item

    @property
    def requested(self) -> bool:
        """Whether the reader is waiting for an item."""
        return self._is_requested()

    def request(self) -> None:
        """Record that the reader is waiting for an item."""
        self._requested = True
        if self._suppliers:
            self._wake(self._suppliers)

    def open(self) -> None:
        """Wake all sources that are waiting for the gate."""
        self._wake(self._sleepers)

    def when_open(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as the gate is open.

        `wake` may be called from any thread, even before this method returns.
        """
        self._add(self._sleepers, wake)
        if self._has_room():  # check after `_add`, so that no call to `take` is missed
            self.open()

    def when_idle(self, wake: Callable[[], None]) -> None:
        """Call `wake` as soon as no item is waiting; see `when_open`."""
        self._add(self._idlers, wake)
        if self._is_idle():
            self._wake(self._idlers)

    def before_tools(self, start: Callable[[], None]) -> None:
        """Call `start`, which runs the tools of a step. A `Hold` can delay this."""
        start()

    def when_requested(self, wake: Callable[[], None]) -> None:
        """Call `wake` as soon as the reader wants an item; see `when_open`."""
        self._add(self._suppliers, wake)
        if self._is_requested():
            self._wake(self._suppliers)

    def _has_room(self) -> bool:
        return len(self.waiting) < self._maxsize

    def _is_idle(self) -> bool:
        return not self.waiting

    def _is_requested(self) -> bool:
        return self._requested and not self.waiting

    def _add(self, sleepers: list[Callable[[], None]], wake: Callable[[], None]) -> None:
        # Each source must be woken in its own context.
        wake_in_context = partial(contextvars.copy_context().run, wake)
        with self._guard:
            sleepers.append(wake_in_context)

    def _wake(self, sleepers: list[Callable[[], None]]) -> None:
        with self._guard:
            wakes = sleepers.copy()
            sleepers.clear()
        for wake in wakes:
            wake()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        opened = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(opened.set)

        self.when_open(wake)
        await opened.wait()


@contextlib.contextmanager
def read_by(gate: Gate | None, listener: ErrorListener, endings: Endings | None = None) -> Generator[None]:
    """Set the reader for the subscriptions in the ``with`` block.

    Sources wait for `gate`. If it is None, they never wait. `listener` receives unhandled errors. `endings` contains
    the functions that the reader waits for once it has stopped reading.
    """
    token = current_reader.set(Reader(gate, listener, endings))
    try:
        yield
    finally:
        current_reader.reset(token)


def as_read(items: Iterable[Any]) -> Observable[Any]:
    """Emit `items`. While the reader's gate is full, wait, so that any number of items can be read."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        gate, unread, subscription = current_reader.get().gate, iter(items), CompositeDisposable()

        def emit(*_: Any) -> None:
            try:
                while not subscription.is_disposed:
                    if gate is not None and gate.full:
                        gate.when_open(emit)
                        return
                    if (item := next(unread, _END)) is _END:
                        observer.on_completed()
                        return
                    observer.on_next(item)
            except Exception as error:
                observer.on_error(error)

        subscription.add((scheduler or CurrentThreadScheduler.singleton()).schedule(emit))
        return subscription

    return Observable(subscribe)


_END = object()

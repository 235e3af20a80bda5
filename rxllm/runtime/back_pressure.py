"""Back-pressure: a source waits while its reader is behind, and a reader waits for the end of a stream that it left.

Reactivex has no notion of demand, so a consumer that buffers, such as an iterator, puts a `Gate` into the `Reader`, a
context variable, while it subscribes. Sources find it through any chain of operators, and stop reading while the gate
is full.

=========  ====================  =====================================================================
gate       waiting items         sources
=========  ====================  =====================================================================
open       fewer than `maxsize`  continue to read
full       `maxsize` or more     sleep in `wait` until half of the items, or fewer, are left
idle       none                  continue to read; the functions passed to `when_idle` are called
requested  none, and the reader  continue to read; the functions passed to `when_requested` are called
           sleeps
=========  ====================  =====================================================================

Dispose returns at once, so an operator that calls a function on dispose (`finally_result`) calls it later. ``run``,
``await`` and an iterator's ``with`` block wait for that function; see `Endings`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from rxllm.runtime.context_variables import ErrorListener, Reader, current_reader
from rxllm.runtime.portal import running_loop


class Endings:
    """The functions that one reader waits for after it has left its stream. Thread-safe."""

    def __init__(self) -> None:
        self._running: dict[Future[None], None] = {}
        self._is_expected = False

    def expect(self) -> None:
        """Note, at the subscription, that a function may be called on dispose."""
        self._is_expected = True

    def begin(self) -> Callable[[], None]:
        """Make the reader wait until the returned function is called."""
        ending = Future[None]()
        ending.set_running_or_notify_cancel()  # a running future is not cancelled together with a reader's wait
        self._running[ending] = None

        def end() -> None:
            if self._running.pop(ending, ending) is None:
                ending.set_result(None)

        return end

    async def wait(self) -> None:
        """Wait in a coroutine, for a minute at most."""
        if running := list(self._running):
            await asyncio.wait(map(asyncio.wrap_future, running), timeout=60)

    def wait_blocking(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait on a user's thread, for two minutes at most; the stream ran on `loop`."""
        if self._is_expected and running_loop() is not loop:
            # An operator such as `take` wakes the reader first and then disposes its source, in the same turn.
            has_turned = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(has_turned.set)
                has_turned.wait(timeout=60)
        wait(list(self._running), timeout=60)


MAX_WAITING = 64
"""The default number of items that may wait for an iterator before its source stops reading."""

HELD_BACK = 1024
"""How many items an operator holds back by default before its source waits or a busy consumer gets them anyway."""

LIMIT = 65_536
"""The default number of items that may wait before a source that cannot wait is cut off."""


class Gate:
    """A gate that is full while `maxsize` items are `waiting`, and opens once half of them are taken. Thread-safe.

    It is not a `Backlog`, because the reader takes the items and the source waits.
    """

    def __init__(self, maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"maxsize must be at least 1, not {maxsize}")
        self.waiting: deque[Any] = deque()
        self._maxsize = maxsize
        self._sleepers: list[Callable[[], None]] = []
        self._idlers: list[Callable[[], None]] = []
        self._suppliers: list[Callable[[], None]] = []
        self._requested = True  # a reader subscribes when it wants its first item
        self._guard = threading.Lock()

    @property
    def full(self) -> bool:
        return len(self.waiting) >= self._maxsize

    @property
    def idle(self) -> bool:
        return not self.waiting

    def take(self) -> Any:
        """Return the oldest item. Raises ``IndexError`` if none is waiting."""
        self._requested = False
        item = self.waiting.popleft()
        if self._sleepers and len(self.waiting) <= self._maxsize // 2:
            self.open()
        if self._idlers and self._is_idle():
            self._wake(self._idlers)
        return item

    @property
    def requested(self) -> bool:
        """Whether the reader sleeps until an item arrives."""
        return self._is_requested()

    def request(self) -> None:
        """Note that the reader sleeps until an item arrives."""
        self._requested = True
        if self._suppliers:
            self._wake(self._suppliers)

    def open(self) -> None:
        """Wake all sources that wait for the gate."""
        self._wake(self._sleepers)

    def when_open(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when the gate is open, now or later, on any thread, in the context of this call."""
        self._add(self._sleepers, wake)
        if self._has_room():  # the check follows the append, so that no `take` is missed
            self.open()

    def when_idle(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as `when_open` does, when no item waits."""
        self._add(self._idlers, wake)
        if self._is_idle():
            self._wake(self._idlers)

    def before_tools(self, start: Callable[[], None]) -> None:
        """Call `start`, which runs a step's tools, once the step is released: now, unless an operator checks it."""
        start()

    def when_requested(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as `when_open` does, when the reader sleeps until an item arrives."""
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
        # A woken source resumes in the context of its own subscription, not of the reader that takes an item.
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
        """Wait until the gate is open."""
        loop = asyncio.get_running_loop()
        opened = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(opened.set)

        self.when_open(wake)
        await opened.wait()


@contextlib.contextmanager
def read_by(gate: Gate | None, listener: ErrorListener, endings: Endings | None = None) -> Generator[None]:
    """Make sources subscribed to in the block wait for `gate`, if any, and pass unhandled errors to `listener`.

    `endings`, if any, collects the functions that are called after the reader has left.
    """
    token = current_reader.set(Reader(gate, listener, endings))
    try:
        yield
    finally:
        current_reader.reset(token)

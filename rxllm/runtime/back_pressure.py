"""Back-pressure: a source waits while the reader of its stream is behind, or is still ending one that it left.

Dispose returns at once, so an operator that calls a function then (`finally_result`) calls it later. Whoever reads the
stream, with ``run``, ``await`` or an iterator's block, goes on when that is done.

Reactivex has no demand, so a consumer that buffers (an iterator) puts a `Gate` into the `Reader`, a context variable,
while it subscribes. Sources capture it there, through any chain of operators, and stop reading while the gate is full.

=========  ====================  =====================================================================
gate       items waiting         sources
=========  ====================  =====================================================================
open       fewer than `maxsize`  read on
full       `maxsize` or more     sleep in `wait` until half of the items, or fewer, are left
idle       none                  read on; the functions passed to `when_idle` are called
requested  none, and the reader  read on; the functions passed to `when_requested` are called
           sleeps
=========  ====================  =====================================================================
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
    """What one reader waits for. Thread-safe."""

    def __init__(self) -> None:
        self._running: dict[Future[None], None] = {}
        self._is_expected = False

    def expect(self) -> None:
        """Note, when the stream is subscribed to, that something may begin as it is disposed."""
        self._is_expected = True

    def begin(self) -> Callable[[], None]:
        """Make the reader wait until the result is called."""
        ending = Future[None]()
        ending.set_running_or_notify_cancel()  # a reader that is cancelled while it waits does not cancel the others
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
        """Wait on a thread of the user's, for a minute or two at most; the stream ran on `loop`."""
        if self._is_expected and running_loop() is not loop:
            # An operator such as `take` wakes the reader first and then disposes its source, in the same turn.
            has_turned = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(has_turned.set)
                has_turned.wait(timeout=60)
        wait(list(self._running), timeout=60)


MAX_WAITING = 64
"""How many items may wait for an iterator before its source stops reading, by default."""

HELD_BACK = 1024
"""How many items an operator holds back, by default, before its source waits, or before they pass a busy consumer."""

LIMIT = 65_536
"""How many items may wait before a source that does not wait is cut off, by default."""


class Gate:
    """Closed while `maxsize` items are `waiting`, and open again when half of them are taken. Thread-safe.

    It is not a `Backlog`, since the reader takes the items, and the source waits.
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
        """Return the oldest item. Raise ``IndexError`` when none waits."""
        self._requested = False
        item = self.waiting.popleft()
        if self._sleepers and len(self.waiting) <= self._maxsize // 2:
            self.open()
        if self._idlers and self._is_idle():
            self._wake(self._idlers)
        return item

    @property
    def requested(self) -> bool:
        """Whether the reader sleeps until an item comes."""
        return self._is_requested()

    def request(self) -> None:
        """Note that the reader sleeps until an item comes."""
        self._requested = True
        if self._suppliers:
            self._wake(self._suppliers)

    def open(self) -> None:
        """Wake everyone who waits for the gate."""
        self._wake(self._sleepers)

    def when_open(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, on some thread, in the context of this call, when the gate is open: now, or later."""
        self._add(self._sleepers, wake)
        if self._has_room():  # after the append, so that no `take` between the two is missed
            self.open()

    def when_idle(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as `when_open` does, when nothing waits: now, or later."""
        self._add(self._idlers, wake)
        if self._is_idle():
            self._wake(self._idlers)

    def before_tools(self, start: Callable[[], None]) -> None:
        """Call `start`, which runs a step's tools, once the step may be seen: now, unless an operator checks it."""
        start()

    def when_requested(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as `when_open` does, when the reader sleeps until an item comes: now, or later."""
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
        # What is woken goes on for its subscription, behind its gate, and not for whoever takes an item.
        woken = partial(contextvars.copy_context().run, wake)
        with self._guard:
            sleepers.append(woken)

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
    """Make sources subscribed inside wait for `gate`, if any, and pass `listener` the errors that nobody handles.

    `endings`, if any, are told what is to be done after the reader has left.
    """
    token = current_reader.set(Reader(gate, listener, endings))
    try:
        yield
    finally:
        current_reader.reset(token)

"""Back-pressure: a source waits while the reader of its stream is behind.

Reactivex has no demand, so a consumer that buffers (an iterator) puts a `Gate` into a context variable while it
subscribes. Sources capture it there, through any chain of operators, and stop reading while the gate is full.

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
from functools import partial
from typing import Any

from rxllm.runtime._endings import Endings, current_endings
from rxllm.runtime._unhandled import ErrorListener, error_listener

current_gate: contextvars.ContextVar[Gate | None] = contextvars.ContextVar("rxllm_gate", default=None)


MAX_WAITING = 64
"""How many items may wait for an iterator before its source stops reading, by default."""

LIMIT = 65_536
"""How many items may wait before a source that does not wait is cut off, by default."""


class Gate:
    """Closed while `maxsize` items are `waiting`, and open again when half of them are taken. Thread-safe."""

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
    outer_gate, outer_listener = current_gate.set(gate), error_listener.set(listener)
    outer_endings = current_endings.set(endings)
    try:
        yield
    finally:
        current_endings.reset(outer_endings)
        current_gate.reset(outer_gate)
        error_listener.reset(outer_listener)

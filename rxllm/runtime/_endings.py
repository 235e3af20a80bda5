"""What is still to be done after a stream was left, and the reader who waits for it.

Dispose returns at once, so an operator that calls a function then (`finally_result`) calls it later. Whoever reads the
stream, with ``run``, ``await`` or an iterator's block, goes on when that is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from rxllm.runtime._portal import running_loop


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


current_endings: contextvars.ContextVar[Endings | None] = contextvars.ContextVar("rxllm_endings", default=None)

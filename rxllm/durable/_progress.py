"""Limit how much tool progress is written to a log."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rxllm.events import Custom, Event, Nested, RawChunk, TextDelta, ThinkingDelta, ToolCallDelta, ToolProgress

BURST = 64 * 1024
"""The number of bytes of progress that a tool call may write before it is slowed down."""

RATE = 4 * 1024
"""The number of bytes of progress that a tool call may write per second after its initial burst."""

LOOK_SECONDS = 0.25

_PASSING = (TextDelta, ThinkingDelta, ToolCallDelta, RawChunk, Custom)
"""The types of events that may be written while earlier progress is still being held back."""


class ProgressLimit:
    """Encodes and writes events, and limits the rate at which progress is written.

    The methods can be called from any thread, and a lock keeps the events in order. The object must be created on an
    event loop, which will run its timer.
    """

    def __init__(self, encode: Callable[[Event], bytes], write: Callable[[bytes], None]) -> None:
        self._encode, self._write, self._loop = encode, write, asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._room: dict[tuple[str, ...], tuple[float, float]] = {}  # (number of bytes left, time of that count)
        self._waiting: dict[tuple[str, ...], bytes] = {}
        self._is_timed = False

    def pass_on(self, event: Event) -> None:
        path, inner = (event.path, event.event) if isinstance(event, Nested) else ((), event)
        with self._guard:
            if isinstance(inner, ToolProgress):
                self._waiting[*path, inner.id] = self._encode(event)
                self._release()
                return
            if not isinstance(inner, _PASSING):
                self._release_all()
            self._write(self._encode(event))

    def flush(self) -> None:
        with self._guard:
            self._release_all()

    def _release_all(self) -> None:
        for data in self._waiting.values():
            self._write(data)
        self._waiting.clear()

    def _release(self) -> None:
        now = time.monotonic()
        for key, data in [*self._waiting.items()]:
            room, since = self._room.get(key, (BURST, now))
            room = min(BURST, room + (now - since) * RATE)
            if room > 0:
                room -= len(data)
                self._write(self._waiting.pop(key))
            self._room[key] = room, now
        if self._waiting and not self._is_timed:
            self._is_timed = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._loop.call_later, LOOK_SECONDS, self._look)

    def _look(self) -> None:
        with self._guard:
            self._is_timed = False
            self._release()

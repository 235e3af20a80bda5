"""Waiting in tests: for the thing itself, with a generous bound, and never for a time.

`wait_until` is for threads, `until` for coroutines. The bound only ends a wait that is in vain; no test is about it.
To show that something does *not* happen, make something else happen that must come after it, and look then: another
request on the same loop, `turns` of the loop, or the next item of a stream.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from rxllm.testing.loopback import Pause

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which a wait is in vain."""


def wait_until(look: Callable[[], T], accept: Callable[[T], object] = bool) -> T:
    """Wait until ``accept(look())``, and return it. Raises ``AssertionError`` with what was seen last."""
    give_up = time.monotonic() + PATIENCE
    while not accept(seen := look()):
        if time.monotonic() > give_up:
            raise _in_vain(look, seen)
        time.sleep(0.001)
    return seen


async def until(look: Callable[[], T | Awaitable[T]], accept: Callable[[T], object] = bool) -> T:
    """Let the event loop run until ``accept(look())``, and return it. Raises as `wait_until` does.

    What `look` returns is awaited if it can be.
    """
    give_up = time.monotonic() + PATIENCE
    while not accept(seen := await _awaited(look())):
        if time.monotonic() > give_up:
            raise _in_vain(look, seen)
        await asyncio.sleep(0.001)
    return seen


async def turns(count: int = 50) -> None:
    """Let the event loop turn `count` times: whatever is ready runs, and what that makes ready, and so on."""
    for _ in range(count):
        await asyncio.sleep(0)


def pauses(until: Callable[[], object]) -> Iterator[Pause]:
    """Yield pauses until ``until()``: a gate in the body of a `Loopback`'s reply."""
    while not until():
        yield Pause(0.001)


def blocks_in(module: str) -> bool:
    """Return whether the main thread blocks, in a function of `module` or in one that such a function has called."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    if frame.f_code.co_name != "wait":  # of a threading.Event
        return False
    while frame is not None and frame.f_globals["__name__"] != module:
        frame = frame.f_back
    return frame is not None


async def _awaited(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value


def _in_vain(look: Callable[[], object], seen: object) -> AssertionError:
    try:
        source = inspect.getsource(look).strip()
    except (OSError, TypeError):
        source = repr(look)
    return AssertionError(f"after {PATIENCE:g} s there is still {seen!r:.500}, which was seen by: {source}")

"""The work that a call takes, which is the same on every machine, instead of its time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(act: Callable[[], Any]) -> int:
    """Return how many instructions of Python `act` takes. Those of compiled code are not counted."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def assert_linear(act: Callable[[int], Any], size: int) -> None:
    """Check that ``act(2 * size)`` takes no more than twice the steps of ``act(size)``."""
    act(1)  # what is done once
    once, twice = steps(lambda: act(size)), steps(lambda: act(2 * size))
    assert twice <= 2.1 * once, (once, twice)

"""What a place in a pipe sees."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Trace(msgspec.Struct, frozen=True):
    """One thing that passed: `kind`, `at` how many seconds from the subscription, `count` items before it, and what.

    `item` is the item, or the error; None for the other kinds.
    """

    kind: Literal["subscribe", "next", "error", "end", "dispose"]
    at: float
    count: int
    item: Any = None

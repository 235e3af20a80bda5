"""A fault is a path and what is wrong there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

from rxllm.values.errors import Path

Fault = tuple[Path, str]


def each_of(name: str, items: Any, faults_of: Callable[[Any], Iterator[Fault]]) -> Iterator[Fault]:
    """Those of all `items` of the field `name`, which must be a tuple."""
    if not isinstance(items, tuple):
        yield (name,), "wrong_type"
        return
    for i, item in enumerate(cast(tuple[Any, ...], items)):
        yield from (((name, i, *path), what) for path, what in faults_of(item))


def number_faults(name: str, held: Any, is_allowed: Callable[[float], bool], what: str) -> Iterator[Fault]:
    """`what`, for a number that is not allowed; None always is."""
    if held is None:
        return
    if isinstance(held, bool) or not isinstance(held, int | float):
        yield (name,), "wrong_type"
    elif math.isnan(held) or not is_allowed(held):
        yield (name,), what


def whole_faults(name: str, held: Any, is_allowed: Callable[[float], bool], what: str) -> Iterator[Fault]:
    """The same of whole numbers."""
    if isinstance(held, float):
        yield (name,), "wrong_type"
    else:
        yield from number_faults(name, held, is_allowed, what)

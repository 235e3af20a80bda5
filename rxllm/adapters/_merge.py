"""What a caller says besides, laid over a request's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def merge(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` over `body`, objects into objects; an option of None takes a field out.

    >>> merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": None, "e": 4}})
    {'a': {'b': 1, 'e': 4}, 'd': 3}
    """
    merged = dict(body)
    for name, held in options.items():
        under = merged.get(name)
        if isinstance(held, Mapping) and isinstance(under, Mapping):
            held = merge(cast(Mapping[str, Any], under), cast(Mapping[str, Any], held))
        merged[name] = held
        if held is None:
            del merged[name]
    return merged

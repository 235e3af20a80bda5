"""Functions that recognize the names of secrets and mask their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

MASK = "[key]"

DEPTH = 100
"""The maximum number of levels to search for secrets. Each level takes two stack frames."""

TOO_DEEP = "[nested too deeply]"

_NAME = re.compile(r"key(?!word|board)|token(?!s|iz)|secret|passw|pwd|credential|auth(?!ors?$)|signature|^sig$|cookie")


def is_secret_name(name: object) -> bool:
    """Whether `name` looks like the name of a secret.

    >>> [name for name in ("x-api-key", "Authorization", "max_tokens", "author") if is_secret_name(name)]
    ['x-api-key', 'Authorization']
    """
    return isinstance(name, str) and _NAME.search(name.lower()) is not None


def masked(value: Any) -> Any:
    """Return `value` with secrets masked. A secret is an item whose name passes `is_secret_name`.

    >>> masked({"options": {"extra_headers": {"api-key": "abc", "x-title": "Mine"}}})
    {'options': {'extra_headers': {'api-key': '[key]', 'x-title': 'Mine'}}}
    """
    return mapped(value, lambda item: item, lambda name, item: MASK if is_secret_name(name) else item)


def mapped(
    value: Any,
    change: Callable[[Any], Any],
    entry: Callable[[Any, Any], Any] = lambda name, item: item,
    depth: int = DEPTH,
    memo: dict[int, tuple[Any, Any]] | None = None,
) -> Any:
    """Return `value` with each scalar replaced with ``change(scalar)``.

    An item that has a name is first replaced with ``entry(name, item)``. A part that is nested too deeply, or that
    contains itself, becomes a placeholder.
    """
    if not isinstance(value, Mapping | list | tuple):
        return change(value)
    memo, key = {} if memo is None else memo, id(cast(object, value))
    if key in memo:
        return memo[key][1]
    memo[key] = value, TOO_DEEP  # keeps a reference to `value`, so that its id stays unique
    if not depth:
        return TOO_DEEP

    def inner(item: Any) -> Any:
        return mapped(item, change, entry, depth - 1, memo)

    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        result: Any = {inner(name): inner(entry(name, item)) for name, item in pairs}
    else:
        items = cast(Any, value)
        if len(items) == 2 and isinstance(items[0], str):
            items = items[0], entry(*items)
        result = [inner(item) for item in items]
        result = tuple(result) if isinstance(value, tuple) else result
    memo[key] = value, result
    return result

"""Which names stand for secrets, and how a value is shown without them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

MASK = "[key]"

_NAME = re.compile(r"key(?!word|board)|token(?!s|iz)|secret|passw|pwd|credential|auth(?!ors?$)|signature|^sig$|cookie")


def is_secret_name(name: object) -> bool:
    """Whether a header, an option or a part of a query called `name` holds a secret.

    >>> [name for name in ("x-api-key", "Authorization", "max_tokens", "author") if is_secret_name(name)]
    ['x-api-key', 'Authorization']
    """
    return isinstance(name, str) and _NAME.search(name.lower()) is not None


def masked(value: Any) -> Any:
    """Return `value` with a mask in place of everything, at any depth, that stands under the name of a secret.

    >>> masked({"options": {"extra_headers": {"api-key": "abc", "x-title": "Mine"}}})
    {'options': {'extra_headers': {'api-key': '[key]', 'x-title': 'Mine'}}}
    """
    match value:
        case Mapping():
            pairs = cast(Mapping[Any, Any], value).items()
            return {name: MASK if is_secret_name(name) else masked(entry) for name, entry in pairs}
        case (str() as name, _) if is_secret_name(name):
            return name, MASK
        case list() | tuple():
            items = [masked(item) for item in cast(Iterable[Any], value)]
            return tuple(items) if isinstance(value, tuple) else items
        case _:
            return value

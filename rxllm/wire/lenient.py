"""Read JSON that does not fit its type: field by field, so that an odd field takes nothing else with it.

This is the second reading of a frame, after the typed decoder has refused it.
"""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin

import msgspec

from rxllm.values.argument_checks import shorten
from rxllm.values.json_text import json_bytes, json_text


class Odd(NamedTuple):
    """A value that does not fit, and was left out."""

    path: tuple[str | int, ...]
    value: Any
    wanted: str

    @property
    def name(self) -> str:
        """The name of the field, or of the list that the value is in."""
        return next((str(step) for step in reversed(self.path) if isinstance(step, str)), "")

    def __str__(self) -> str:
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).lstrip(".")
        return f"{place or 'the frame'} is not {self.wanted}: {shorten(json_text(self.value), 100)}"


def read_leniently(data: Any, shape: Any) -> tuple[Any, list[Odd]]:
    """Read parsed JSON `data` as `shape`, a type that msgspec knows. Return it with the values that do not fit.

    A value that does not fit is left out: a field keeps its default, and a list loses an item. Strings are accepted as
    numbers. If `data` itself does not fit, the result is None.

    >>> class Piece(msgspec.Struct):
    ...     id: str | None = None
    ...     text: str | None = None
    ...     usage: dict[str, int] | None = None
    >>> read_leniently({"id": "a", "text": "Hi", "usage": [3]}, Piece)
    (Piece(id='a', text='Hi', usage=None), [Odd(path=('usage',), value=[3], wanted='an object')])
    """
    odd: list[Odd] = []
    value = _read(data, shape, (), odd)
    return (None if value is _UNFIT else value), odd


_UNFIT = object()


def _read(data: Any, shape: Any, path: tuple[str | int, ...], odd: list[Odd]) -> Any:
    kinds = _kinds(shape)
    for kind in kinds:
        origin = get_origin(kind) or kind
        if kind is msgspec.Raw:
            return msgspec.Raw(json_bytes(data))
        if isinstance(data, dict) and isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            return _read_struct(cast(dict[str, Any], data), kind, path, odd)
        if isinstance(data, list) and origin is list:
            (inner,) = get_args(kind) or (Any,)
            items = (_read(item, inner, (*path, i), odd) for i, item in enumerate(cast(list[Any], data)))
            return [item for item in items if item is not _UNFIT]
    try:
        return msgspec.convert(data, shape, strict=False)
    except msgspec.ValidationError:
        odd.append(Odd(path, data, _wanted(kinds)))
        return _UNFIT


def _read_struct(data: dict[str, Any], shape: type[msgspec.Struct], path: tuple[str | int, ...], odd: list[Odd]) -> Any:
    fields = {
        name: value
        for name, wire_name, kind in _fields(shape)
        if wire_name in data and (value := _read(data[wire_name], kind, (*path, wire_name), odd)) is not _UNFIT
    }
    return shape(**fields)


@cache
def _fields(shape: type[msgspec.Struct]) -> list[tuple[str, str, Any]]:
    return [(field.name, field.encode_name, field.type) for field in msgspec.structs.fields(shape)]


@cache
def _kinds(shape: Any) -> tuple[Any, ...]:
    return get_args(shape) if get_origin(shape) in (Union, UnionType) else (shape,)


_WORDS = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}


def _wanted(kinds: tuple[Any, ...]) -> str:
    words = [_WORDS.get(get_origin(kind) or kind, "an object") for kind in kinds if kind is not type(None)]
    return " or ".join(dict.fromkeys(words))

"""Decode JSON data to values and errors; the other half of ``values._encode.encode``.

Each annotation has one reader, made when it is first needed. A reader raises ``ValidationError("invalid_request")``,
with the path, for data that does not fit the annotation.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import repeat
from operator import itemgetter
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from rxllm.values._json import check_encodable
from rxllm.values.errors import ERROR_CLASSES, LLMError, ValidationError

T = TypeVar("T")
Reader = Callable[[Any], Any]

VALUE_CLASSES: dict[str, type[Any]] = {}
"""The classes of values by name; ``values._encode.value`` adds each."""

may_name_files: ContextVar[bool] = ContextVar("rxllm_may_name_files", default=False)
"""Whether the data that is decoded here may name files of this machine, which the program would read and send."""

_NAMES = {"id", "tool_call_id", "pending_tool_call_id", "request_id", "run_id", "tool_name", "name", "kind"}
"""The fields that name something: they go into stores, headers and logs, so they must be text that these can hold."""

_OWN_TAGS = ("tuple", "map", "float", "bytes")


def decode(data: Any) -> Any:
    """Return what ``encode`` wrote. Raises ``ValidationError("invalid_request")`` for other data."""
    # No more frames than `encode` needs, so that whatever was nested deeply and could be written can be read.
    match data:
        case list():
            return decode_items(cast(list[Any], data), repeat(decode))
        case {"$": "tuple", "items": list()}:
            return tuple(decode_items(data["items"], repeat(decode)))
        case {"$": _}:
            return _decode_tagged(cast(dict[str, Any], data))
        case dict():
            return dict(_read_pairs(cast(dict[str, Any], data).items(), repeat(decode)))
        case _:
            return data


def decode_items(items: Iterable[Any], readers: Iterable[Reader]) -> list[Any]:
    """Return `items`, each read by its reader."""
    return list(map(itemgetter(1), _read_pairs(enumerate(items), readers)))


def decode_value(cls: type[T], data: Mapping[str, Any]) -> T:
    """Return the value of class `cls` with these fields; unknown fields are left out."""
    required, readers = _plan(cls)
    arguments = decode_fields(cls, required, readers, data)
    cast(Any, cls)._check_decoded(arguments)
    return _construct(cls, arguments)


def decode_error(cls: type[LLMError], data: Mapping[str, Any]) -> LLMError:
    """Return the error of class `cls` with these fields; unknown fields are left out."""
    reason = data.get("reason")
    if "reason" in data and not (isinstance(reason, str) and reason in cls.REASONS):
        raise wrong("unknown", f"{cls.__name__} has no reason {brief(reason)}", "reason")
    return _construct(cls, decode_fields(cls, ("reason",), readers_of(cls.__init__), data))


def decode_fields(
    cls: type, required: Iterable[str], readers: Mapping[str, Reader], data: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of `data` that have a reader. Raises ``ValidationError`` if one is missing or does not fit."""
    missing = [((name,), "missing") for name in required if name not in data]
    if missing:
        message = f"{cls.__name__} lacks {', '.join(path[0] for path, _ in missing)}"
        raise ValidationError("invalid_request", message, errors=missing)
    known = [(name, data[name]) for name in readers if name in data]
    check_encodable("invalid_request", **{name: text for name, text in known if name in _NAMES and type(text) is str})
    return dict(_read_pairs(known, (readers[name] for name, _ in known)))


@cache
def readers_of(source: Any) -> dict[str, Reader]:
    """Return a reader for each annotation of a class or a function."""
    return {name: _reader(hint) for name, hint in get_type_hints(source).items() if name != "return"}


def wrong(fault: str, message: str, *path: str | int) -> ValidationError:
    """Return the error for data that cannot be decoded."""
    return ValidationError("invalid_request", message, errors=[(path, fault)])


def brief(item: Any) -> str:
    """Return the repr of `item` if it is plain and short, otherwise the name of its class."""
    return repr(item) if isinstance(item, str | int | float | None) and len(repr(item)) < 60 else type(item).__name__


@cache
def _plan(cls: type[Any]) -> tuple[tuple[str, ...], dict[str, Reader]]:
    """Return the names of the required fields, and a reader for each field."""
    specs, readers = fields(cls), readers_of(cls)
    required = (spec.name for spec in specs if spec.default is MISSING and spec.default_factory is MISSING)
    return tuple(required), {spec.name: readers[spec.name] for spec in specs}


def _construct(cls: Callable[..., T], arguments: dict[str, Any]) -> T:
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise wrong("malformed_struct", str(error)) from error


def _read_pairs(items: Iterable[tuple[Any, Any]], readers: Iterable[Reader]) -> Iterable[tuple[Any, Any]]:
    key: Any = None
    try:
        for (key, item), read in zip(items, readers, strict=False):
            yield key, read(item)
    except ValidationError as error:
        raise error.under(key) from None
    except RecursionError:
        raise wrong("too_deep", "nested too deeply", key) from None


def _decode_tagged(data: dict[str, Any]) -> Any:
    match data:
        case {"$": str(name)} if name in VALUE_CLASSES:
            return decode_value(VALUE_CLASSES[name], data)
        case {"$": str(name)} if name in ERROR_CLASSES:
            return decode_error(ERROR_CLASSES[name], data)
        case {"$": "map", "items": list()}:
            return _decode_map(data["items"])
        case {"$": "float", "value": "nan" | "inf" | "-inf" as text}:
            return (
                math.nan if text == "nan" else float(text)
            )  # one NaN object, so that data that is read twice is equal
        case {"$": "bytes", "base64": str(text)}:
            return _decode_bytes(text)
        case {"$": str(name)} if name in _OWN_TAGS:
            raise wrong("malformed_struct", f"a {name} lacks its fields")
        case _:
            raise wrong("unknown_type_tag", f"the type {brief(data['$'])} is not known")


def _decode_map(pairs: list[Any]) -> dict[Any, Any]:
    if not all(isinstance(pair, list) and len(cast(list[Any], pair)) == 2 for pair in pairs):
        raise wrong("malformed_struct", "the items of a map must be pairs of a key and a value")
    keys = decode_items((key for key, _ in pairs), repeat(decode))
    try:
        named = [(str(key), item) for key, (_, item) in zip(keys, pairs, strict=True)]
        items = [item for _, item in _read_pairs(named, repeat(decode))]
        return dict(zip(keys, items, strict=True))
    except TypeError as error:
        raise wrong("malformed_struct", f"a map has a key that is not hashable: {error}") from error


def _decode_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise wrong("invalid_base64", "bytes must be base64 text") from error


@cache
def _reader(hint: Any) -> Reader:
    """Return the function that reads data annotated with `hint`.

    An object without a ``"$"`` is read as the value class of the annotation, and an array as a tuple.
    """
    options = _options(hint)
    bases = tuple(_base(option) for option in options)
    if object in bases:
        return decode
    words = frozenset(word for option in options if get_origin(option) is Literal for word in get_args(option))
    plain = frozenset(base for base in bases if base in (str, int, float, bool, NoneType))
    classes = [] if dict in bases else [base for base in bases if is_dataclass(base)]
    sequence = next((_sequence_reader(get_args(option)) for option in options if _base(option) is tuple), None)

    def read(data: Any) -> Any:
        if type(data) in plain or (isinstance(data, str) and data in words):
            return data
        if len(classes) == 1 and isinstance(data, dict) and "$" not in data:
            return decode_value(classes[0], cast(dict[str, Any], data))
        if sequence is not None and (items := _items_of(data)) is not None:
            return sequence(items)
        decoded = decode(data)
        if isinstance(decoded, bases) or (isinstance(decoded, int) and float in bases):
            return decoded
        fault = "unknown" if words and isinstance(decoded, str) else "wrong_type"
        raise wrong(fault, f"must be {hint_text(hint)}, not {brief(decoded)}")

    return read


def hint_text(hint: Any) -> str:
    """Return an annotation as a message names it.

    >>> hint_text(tuple[str, ...] | int | None), hint_text(Literal["high", "low"])
    ('tuple[str, ...] or int or None', 'one of high, low')
    """
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if len(_options(hint)) > 1:
        return " or ".join(map(hint_text, _options(hint)))
    if hint is NoneType:
        return "None"
    return re.sub(r"[a-z_]+[.]", "", str(hint)) if get_args(hint) else hint.__name__


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


class _NoData:
    """A class without instances: no data is one."""


def _base(option: Any) -> type:
    """Return the class of the data that fits `option`; ``object`` for any data."""
    base = get_origin(option) or option
    if base is Literal:
        return _NoData
    if base is Iterable:  # in the arguments of an error
        return tuple
    return base if isinstance(base, type) and option is not Any else object


def _sequence_reader(hints: tuple[Any, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Return the reader of the items of a tuple with these hints: ``tuple[int, str]`` or ``tuple[int, ...]``."""
    readers = [_reader(hint) for hint in hints if hint is not ...]
    is_fixed = len(readers) == len(hints) and len(hints) > 1

    def read(items: list[Any]) -> tuple[Any, ...]:
        if is_fixed and len(items) != len(readers):
            raise wrong("wrong_type", f"must be {len(readers)} items, not {len(items)}")
        return tuple(decode_items(items, readers if is_fixed else repeat(readers[0])))

    return read


def _items_of(data: Any) -> list[Any] | None:
    match data:
        case list() | {"$": "tuple", "items": list()}:
            return cast(list[Any], data if isinstance(data, list) else data["items"])
        case _:
            return None

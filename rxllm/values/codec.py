"""The codec that converts values, errors and events to JSON data and back.

It has five layers, and each layer calls the layers below it:

=================  ============================  ===============  ====================================================
layer              encoder                       decoder          what the layer adds
=================  ============================  ===============  ====================================================
JSON text          ``serializer.to_json``        ``from_json``    the text itself, written by Python's ``json``
top level          ``serializer.to_data``        ``from_data``    the format's version (``"v"``); lists of objects
event              ``serializer._write_event``   ``_read_event``  the name of the event type (``"type"``)
any other object   `encode`, `encode_result`     `decode`         the name of the class or type (``"$"``, see below)
fields             `encode_fields`               `decode_fields`  the fields by name, omitting those that equal their
                                                                  default
=================  ============================  ===============  ====================================================

A value's ``to_dict`` and ``from_dict`` methods use only the fields layer.

These objects become JSON objects that have the key ``"$"``:

====================================  ============================================
Python object                         encoded as
====================================  ============================================
a value or an error                   ``{"$": "Message", "role": "user", ...}``
a tuple in free-form data             ``{"$": "tuple", "items": [...]}``
bytes                                 ``{"$": "bytes", "base64": "..."}``
NaN and the infinities                ``{"$": "float", "value": "nan"}``
a mapping that has the key ``"$"``,   ``{"$": "map", "items": [[key, value], ...]}``
or a key that is not a string
====================================  ============================================

The decoder rejects an object whose ``"$"`` is unknown, because ignoring the object would lose data. An invalid field
raises ``ValidationError("invalid_request")``.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import count, repeat
from numbers import Integral, Real
from types import EllipsisType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from rxllm.values.errors import ERROR_CLASSES, LLMError, ValidationError
from rxllm.values.json_text import check_encodable, json_data, python_number

D = TypeVar("D")

Writer = Callable[[Any], Any]
Reader = Callable[[Any], Any]

VALUE_CLASSES: dict[str, type[Any]] = {}
may_name_files: ContextVar[bool] = ContextVar("rxllm_may_name_files", default=False)
"""Whether decoded images may refer to local files. If so, untrusted JSON can make the program read any file."""

_NAMES = {"id", "tool_call_id", "pending_tool_call_id", "request_id", "run_id", "tool_name", "name", "kind"}
"""The fields that hold a name or an id. Their text must be encodable as UTF-8."""

_RESULTS = ("halt_result", "ask_user_opts")
"""The metadata keys whose values are encoded as tool results."""

_OWN_TAGS = ("tuple", "map", "float", "bytes")


def encode(item: Any, is_result: bool = False) -> Any:
    """Return JSON data for `item`.

    If `is_result` is True, models, datetimes and sets are accepted too. An object that has no JSON form raises
    ``ValidationError("not_serializable")``.
    """
    match item:  # only values have `_written_fields`
        case None | bool() | int() | str():
            return item
        case float():
            return float(item) if math.isfinite(item) else {"$": "float", "value": float.__repr__(item)}
        case list():
            return encode_items(cast(list[Any], item), is_result)
        case tuple():
            return {"$": "tuple", "items": encode_items(cast(tuple[Any, ...], item), is_result)}
        case bytes():
            return {"$": "bytes", "base64": base64.b64encode(item).decode()}
        case dict():
            return _encode_mapping(cast(dict[Any, Any], item), is_result)
        case _ if (written := getattr(type(item), "_written_fields", None)) is not None:  # pyright: ignore
            return {"$": type(item).__name__, **encode_fields(item, written)}
        case LLMError():
            return {"$": type(item).__name__, **{k: at(k, encode, v) for k, v in item.fields().items()}}
        case Mapping():
            return _encode_mapping(cast(Mapping[Any, Any], item), is_result)
        case Integral() | Real():
            return encode(python_number(item))
        case _ if is_result and (plain := _plain(item)) is not item:
            return encode(plain)
        case _:
            name = type(item).__name__
            raise not_serializable(
                f"{name} has no JSON form, so the field that contains it must be None; "
                "set the field with dataclasses.replace"
            )


def encode_result(item: Any) -> Any:
    """Return a tool's result as JSON data. Any models, datetimes and sets in it become plain data."""
    return encode(item, is_result=True)


def encode_metadata(metadata: Mapping[str, Any]) -> Any:
    """Return JSON data for metadata, which can contain tool results."""
    has_results = "halt_result" in metadata or "ask_user_opts" in metadata
    return _encode_mapping(metadata, results=_RESULTS) if has_results else encode(metadata)


class WrittenField(NamedTuple):
    name: str
    write: Writer
    default: Any

    @classmethod
    def of(cls, spec: Any, write: Writer) -> Self:
        """Return the `WrittenField` for `spec`, which is a field of a dataclass or a msgspec Struct."""
        return cls(spec.name, write, spec.default_factory() if callable(spec.default_factory) else spec.default)

    def is_default(self, item: Any) -> bool:
        """Whether `item` equals the default. Here, unlike in Python, True does not equal 1."""
        default = self.default
        return (type(item) is type(default) or type(default) is dict) and item == default

    def encode(self, item: Any) -> Any:
        """Return JSON data for `item`. The path in an error starts with the field's name."""
        return at(self.name, self.write, item)


def encode_fields(item: Any, written: Iterable[WrittenField]) -> dict[str, Any]:
    """Return JSON data for the `written` fields of `item`, omitting fields that have their default value."""
    data: dict[str, Any] = {}
    for field in written:
        entry = getattr(item, field.name)
        if not field.is_default(entry):
            data[field.name] = entry if type(entry) is str else field.encode(entry)
    return data


def encode_items(items: Iterable[Any], is_result: bool = False) -> list[Any]:
    return [at(i, encode, item, is_result) for i, item in enumerate(items)]


def at(key: str | int, encode_one: Any, *item: Any) -> Any:
    """Return ``encode_one(*item)``. If it raises an error, put `key` at the start of the error's path."""
    try:
        return encode_one(*item)
    except ValidationError as error:
        raise error.under(key) from None


def not_serializable(message: str, *path: str) -> ValidationError:
    """Return the error to raise for an object that has no JSON form."""
    return ValidationError("not_serializable", message, errors=[(path, "not_serializable")])


def _encode_mapping(mapping: Mapping[Any, Any], is_result: bool = False, results: Collection[str] = ()) -> Any:
    """Encode `mapping`. The values of the keys listed in `results` are encoded as tool results."""
    if is_result:
        mapping = {_plain_key(key): item for key, item in mapping.items()}
    entries = {k: at(str(k), encode, v, is_result or k in results) for k, v in mapping.items()}
    if "$" not in mapping and all(isinstance(key, str) for key in mapping):
        return entries
    return {"$": "map", "items": [[at(str(k), encode, k), entry] for k, entry in entries.items()]}


def _plain_key(key: Any) -> Any:
    """Convert a mapping's key to a form that can be encoded. Dates, Decimals and enums become plain data."""
    match key:
        case None | str() | bytes() | Real():
            return key
        case tuple():
            return tuple(map(_plain_key, cast(tuple[Any, ...], key)))
        case _:
            plain = _plain(key)
            return key if isinstance(plain, dict | list) else plain


def _plain(item: Any) -> Any:
    """Return JSON data for `item`, or `item` itself if it has no JSON form."""
    try:
        return json_data(item)
    except ValidationError:
        return item


def encode_sequence(items: Any) -> Any:
    """Return JSON data for the value of a tuple field."""
    return encode_items(cast(tuple[Any, ...], items)) if isinstance(items, tuple) else encode(items)


def decode(data: Any) -> Any:
    """Return the object that `encode` converted to `data`.

    Raises ``ValidationError("invalid_request")`` if `encode` could not have produced `data`.
    """
    # This uses fewer stack frames than `encode`, so it can read any data that `encode` can write, however deep.
    match data:
        case list():
            return decode_each(count(), cast(list[Any], data), repeat(decode))
        case {"$": "tuple", "items": list()}:
            return tuple(decode_each(count(), data["items"], repeat(decode)))
        case {"$": _}:
            return _decode_tagged(cast(dict[str, Any], data))
        case dict():
            entries = cast(dict[str, Any], data)
            return dict(zip(entries, decode_each(entries, entries.values(), repeat(decode)), strict=True))
        case _:
            return data


def decode_each(keys: Iterable[Any], items: Iterable[Any], readers: Iterable[Reader]) -> list[Any]:
    """Decode each item with its own reader. The path in an error starts with the item's key."""
    decoded: list[Any] = []
    key: Any = None
    try:
        for key, item, read in zip(keys, items, readers, strict=False):  # noqa: B007 - errors use `key`
            decoded.append(read(item))
    except ValidationError as error:
        raise error.under(key) from None
    except RecursionError:
        raise wrong("too_deep", "nested too deeply", key) from None
    return decoded


def decode_value(cls: type[D], data: Mapping[str, Any]) -> D:
    """Return an instance of `cls` made from the fields in `data`. Unknown fields are ignored."""
    required, readers = _plan(cls)
    arguments = decode_fields(cls, required, readers, data)
    cast(Any, cls)._check_decoded(arguments)
    return _construct(cls, arguments)


def decode_error(cls: type[LLMError], data: Mapping[str, Any]) -> LLMError:
    """Return an error of the class `cls` made from the fields in `data`. Unknown fields are ignored."""
    reason = data.get("reason")
    if "reason" in data and not (isinstance(reason, str) and reason in cls.REASONS):
        raise wrong("unknown", f"{brief(reason)} is not a valid reason for {cls.__name__}", "reason")
    return _construct(cls, decode_fields(cls, ("reason",), readers_of(cls.__init__), data))


def decode_fields(
    cls: type, required: Iterable[str], readers: Mapping[str, Reader], data: Mapping[str, Any]
) -> dict[str, Any]:
    """Decode the fields in `data`, leaving out unknown fields.

    Raises ``ValidationError`` if a field is invalid or a required field is missing.
    """
    missing = [((name,), "missing") for name in required if name not in data]
    if missing:
        message = f"{cls.__name__} lacks {', '.join(path[0] for path, _ in missing)}"
        raise ValidationError("invalid_request", message, errors=missing)
    known = {name: data[name] for name in readers if name in data}
    texts = {name: text for name, text in known.items() if name in _NAMES and type(text) is str}
    check_encodable("invalid_request", **texts)
    return dict(zip(known, decode_each(known, known.values(), map(readers.__getitem__, known)), strict=True))


@cache
def readers_of(source: Any) -> dict[str, Reader]:
    """Return a reader for each annotated field or parameter of `source`, by name."""
    return {name: _reader(hint) for name, hint in get_type_hints(source).items() if name != "return"}


def wrong(fault: str, message: str, *path: str | int) -> ValidationError:
    """Return the error to raise for data that cannot be decoded."""
    return ValidationError("invalid_request", message, errors=[(path, fault)])


def brief(item: Any) -> str:
    """Return the repr of a scalar if it is short. For anything else, return the name of its class."""
    return repr(item) if isinstance(item, str | int | float | None) and len(repr(item)) < 60 else type(item).__name__


@cache
def _plan(cls: type[Any]) -> tuple[tuple[str, ...], dict[str, Reader]]:
    """Return the names of the fields that `cls` requires, and a reader for each of its fields."""
    specs, readers = fields(cls), readers_of(cls)
    required = (spec.name for spec in specs if spec.default is MISSING and spec.default_factory is MISSING)
    return tuple(required), {spec.name: readers[spec.name] for spec in specs}


def _construct(cls: Callable[..., D], arguments: dict[str, Any]) -> D:
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise wrong("malformed_struct", str(error)) from error


def _decode_tagged(data: dict[str, Any]) -> Any:
    match data:
        case {"$": str(name)} if name in VALUE_CLASSES:
            return decode_value(VALUE_CLASSES[name], data)
        case {"$": str(name)} if name in ERROR_CLASSES:
            return decode_error(ERROR_CLASSES[name], data)
        case {"$": "map", "items": list()}:
            return _decode_map(data["items"])
        case {"$": "float", "value": "nan" | "inf" | "-inf" as text}:
            # Always return the same NaN object, so that reading the same data twice gives equal values.
            return math.nan if text == "nan" else float(text)
        case {"$": "bytes", "base64": str(text)}:
            return _decode_bytes(text)
        case {"$": str(name)} if name in _OWN_TAGS:
            raise wrong("malformed_struct", f"an object of type {name!r} has missing or invalid fields")
        case _:
            raise wrong("unknown_type_tag", f"the type {brief(data['$'])} is unknown")


def _decode_map(pairs: list[Any]) -> dict[Any, Any]:
    if not all(isinstance(pair, list) and len(cast(list[Any], pair)) == 2 for pair in pairs):
        raise wrong("malformed_struct", "each item of a map must be a [key, value] pair")
    keys = decode_each(count(), (key for key, _ in pairs), repeat(decode))
    items = decode_each(map(str, keys), (item for _, item in pairs), repeat(decode))
    try:
        return dict(zip(keys, items, strict=True))
    except TypeError as error:
        raise wrong("malformed_struct", f"a map has an unhashable key: {error}") from error


def _decode_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise wrong("invalid_base64", "bytes must be encoded as base64 text") from error


@cache
def _reader(hint: Any) -> Reader:
    """Return a function that reads JSON data as the type `hint`.

    A JSON object without ``"$"`` becomes an instance of the annotated class. A JSON array becomes a tuple if the type
    is a tuple.
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
    """Describe a type annotation for an error message.

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


def _base(option: Any) -> type:
    """Return the class that decoded data must have to match the type `option`, or ``object`` if any class may match."""
    base = get_origin(option) or option
    if base is Literal:
        return EllipsisType
    if base is Iterable:  # the type of ``ValidationError.errors``
        return tuple
    return base if isinstance(base, type) and option is not Any else object


def _sequence_reader(hints: tuple[Any, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    readers = [_reader(hint) for hint in hints if hint is not ...]
    is_fixed = len(readers) == len(hints) and len(hints) > 1

    def read(items: list[Any]) -> tuple[Any, ...]:
        if is_fixed and len(items) != len(readers):
            raise wrong("wrong_type", f"must have {len(readers)} items, not {len(items)}")
        return tuple(decode_each(count(), items, readers if is_fixed else repeat(readers[0])))

    return read


def _items_of(data: Any) -> list[Any] | None:
    match data:
        case list() | {"$": "tuple", "items": list()}:
            return cast(list[Any], data if isinstance(data, list) else data["items"])
        case _:
            return None

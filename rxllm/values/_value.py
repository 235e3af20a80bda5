"""What every value is: a frozen dataclass whose JSON is exact.

``encode`` and ``decode`` are the one place where values, errors and the free-form data inside them become JSON data
and come back equal. Whatever JSON cannot say by itself is an object with a ``"$"``:

====================================  =======================================
a value or an error                   ``{"$": "Message", "role": "user", ...}``
a tuple in free-form data             ``{"$": "tuple", "items": [...]}``
bytes                                 ``{"$": "bytes", "base64": "..."}``
NaN and the infinities                ``{"$": "float", "value": "nan"}``
a mapping with a key that is no       ``{"$": "map", "items": [[key, value], ...]}``
string, or with the key ``"$"``
====================================  =======================================

Fields that hold their default are left out. An unknown ``"$"`` is kept as plain data, so that a newer writer does not
break an older reader.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from dataclasses_json import DataClassJsonMixin, config  # pyright: ignore[reportUnknownVariableType]

from rxllm.values.errors import ERROR_CLASSES, LLMError, ValidationError

T = TypeVar("T", bound="Value")

VALUE_CLASSES: dict[str, type[Value]] = {}


class Value(DataClassJsonMixin):
    """Base of the values: a list given for a tuple becomes one, and the repr names only what differs from a default."""

    sequence_fields: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for name in self.sequence_fields:
            held = getattr(self, name)
            if isinstance(held, list):
                object.__setattr__(self, name, tuple(cast(list[Any], held)))

    def __repr__(self) -> str:
        shown = [f"{spec.name}={held!r}" for spec, held in _held(self) if spec.repr and not _is_default(spec, held)]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass that ``decode`` knows by its name, each field with exact JSON."""
    made = dataclass(frozen=True, repr=False)(cls)
    specs = fields(cast(Any, made))
    made.sequence_fields = frozenset(spec.name for spec in specs if "tuple[" in str(spec.type))
    for spec in specs:
        encode_one = _encode_sequence if spec.name in made.sequence_fields else encode
        spec.metadata = MappingProxyType(
            config(encoder=partial(_at, spec.name, encode_one), decoder=decode, exclude=partial(_is_default, spec))
        )  # pyright: ignore[reportUnknownArgumentType]
    VALUE_CLASSES[made.__name__] = made
    return made


def encode(item: Any) -> Any:
    """JSON data for `item`.

    Raises ``ValidationError("not_serializable")``, with the path, for anything that is neither a value, an error nor
    plain data (a function, an open file, ...).
    """
    match item:
        case None | bool() | int() | str():
            return item
        case float():
            return item if math.isfinite(item) else {"$": "float", "value": repr(item)}
        case list():
            return encode_items(cast(list[Any], item))
        case tuple():
            return {"$": "tuple", "items": encode_items(cast(tuple[Any, ...], item))}
        case bytes():
            return {"$": "bytes", "base64": base64.b64encode(item).decode()}
        case Value():
            return {"$": type(item).__name__, **cast(dict[str, Any], item.to_dict())}  # pyright: ignore[reportUnknownMemberType]
        case LLMError():
            return {"$": type(item).__name__, **{k: _at(k, encode, v) for k, v in item.fields().items()}}
        case Mapping():
            return _encode_mapping(cast(Mapping[Any, Any], item))
        case _:
            message = f"{type(item).__name__} has no JSON form: keep it out of values that are stored or sent"
            raise ValidationError("not_serializable", message, errors=[((), "not_serializable")])


def encode_items(items: Iterable[Any]) -> list[Any]:
    return [_at(i, encode, each) for i, each in enumerate(items)]


def decode(data: Any) -> Any:
    """The value that ``encode`` wrote. Raises ``ValidationError("invalid_request")`` where a field is missing or wrong."""
    if isinstance(data, list):
        return [decode(each) for each in cast(list[Any], data)]
    if not isinstance(data, dict):
        return data
    match cast(dict[str, Any], data):
        case {"$": "tuple", "items": items}:
            return tuple(decode(items))
        case {"$": "map", "items": pairs}:
            return {k: v for k, v in decode(pairs)}
        case {"$": "float", "value": str(text)}:
            return float(text)
        case {"$": "bytes", "base64": str(text)}:
            return _decode_bytes(text)
        case {"$": str(name), **rest} if name in VALUE_CLASSES:
            return _decode_value(VALUE_CLASSES[name], rest)
        case {"$": str(name), **rest} if name in ERROR_CLASSES:
            return ERROR_CLASSES[name].from_fields({k: decode(v) for k, v in rest.items()})
        case plain:
            return {k: decode(v) for k, v in plain.items()}


def _decode_value(cls: type[Value], data: dict[str, Any]) -> Value:
    required = (spec for spec in fields(cast(Any, cls)) if spec.default is MISSING and spec.default_factory is MISSING)
    missing = [((spec.name,), "missing") for spec in required if spec.name not in data]
    if missing:
        message = f"a {cls.__name__} lacks {', '.join(path[0] for path, _ in missing)}"
        raise ValidationError("invalid_request", message, errors=missing)
    return cls.from_dict(data)  # pyright: ignore[reportUnknownMemberType]


def _decode_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValidationError(
            "invalid_request", "bytes that are not base64", errors=[((), "invalid_base64")]
        ) from error


def _encode_mapping(mapping: Mapping[Any, Any]) -> Any:
    if "$" in mapping or not all(isinstance(key, str) for key in mapping):
        return {"$": "map", "items": [[encode(k), _at(str(k), encode, v)] for k, v in mapping.items()]}
    return {k: _at(k, encode, v) for k, v in mapping.items()}


def _at(key: str | int, encode_one: Any, item: Any) -> Any:
    try:
        return encode_one(item)
    except ValidationError as error:
        raise error.under(key) from None


def _held(item: Value) -> list[tuple[Field[Any], Any]]:
    return [(spec, getattr(item, spec.name)) for spec in fields(cast(Any, item))]


def _encode_sequence(held: Any) -> Any:
    # A plain array: the field itself says that it is a tuple.
    return encode_items(cast(tuple[Any, ...], held)) if isinstance(held, tuple) else encode(held)


def _is_default(spec: Field[Any], held: Any) -> bool:
    if spec.default is not MISSING:
        return type(held) is type(spec.default) and held == spec.default
    return spec.default_factory is not MISSING and held == spec.default_factory()

"""What every value is: a dataclass that is set once, and whose JSON is exact.

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
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache, partial
from itertools import repeat
from operator import attrgetter
from types import MappingProxyType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from dataclasses_json import DataClassJsonMixin, config  # pyright: ignore[reportUnknownVariableType]

from rxllm.values.errors import ERROR_CLASSES, LLMError, ValidationError

T = TypeVar("T", bound="Value")

VALUE_CLASSES: dict[str, type[Value]] = {}


class Value(DataClassJsonMixin):
    """Base of the values: a list given for a tuple becomes one, and the repr names only what differs from a default."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    sequence_fields: ClassVar[frozenset[str]] = frozenset()
    compared: ClassVar[Any]

    def __post_init__(self) -> None:
        for name in self.sequence_fields:
            held = getattr(self, name)
            if isinstance(held, list):
                object.__setattr__(self, name, tuple(cast(list[Any], held)))

    # Once for all of them: a frozen dataclass compiles its own, half a dozen, and the import waits for that.

    def __setattr__(self, name: str, held: object) -> None:
        own = vars(self)
        if name in own or name not in self.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        own[name] = held

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self.compared(self) == self.compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.compared(self))

    def __repr__(self) -> str:
        shown = [f"{spec.name}={held!r}" for spec, held in _held(self) if spec.repr and not _is_default(spec, held)]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make `cls` a dataclass that ``decode`` knows by its name, each field with exact JSON."""
    made = dataclass(eq=False, repr=False)(cls)
    specs = fields(cast(Any, made))
    made.sequence_fields = frozenset(spec.name for spec in specs if "tuple[" in str(spec.type))
    made.compared = attrgetter(*(spec.name for spec in specs))
    for spec in (spec for spec in specs if not spec.metadata):  # an inherited one has it already
        encode_one = _encode_sequence if spec.name in made.sequence_fields else encode
        spec.metadata = MappingProxyType(
            config(  # pyright: ignore[reportUnknownArgumentType]
                encoder=partial(at, spec.name, encode_one),
                decoder=partial(_decode_field, made, spec.name),
                exclude=partial(_is_default, spec),
            )
        )
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
            return item if math.isfinite(item) else {"$": "float", "value": float.__repr__(item)}
        case list():
            return encode_items(cast(list[Any], item))
        case tuple():
            return {"$": "tuple", "items": encode_items(cast(tuple[Any, ...], item))}
        case bytes():
            return {"$": "bytes", "base64": base64.b64encode(item).decode()}
        case Value():
            return {"$": type(item).__name__, **cast(dict[str, Any], item.to_dict())}  # pyright: ignore[reportUnknownMemberType]
        case LLMError():
            return {"$": type(item).__name__, **{k: at(k, encode, v) for k, v in item.fields().items()}}
        case Mapping():
            return _encode_mapping(cast(Mapping[Any, Any], item))
        case _:
            name = type(item).__name__
            message = (
                f"{name} has no JSON form: replace it by None, with dataclasses.replace, in what is stored or sent"
            )
            raise ValidationError("not_serializable", message, errors=[((), "not_serializable")])


def encode_items(items: Iterable[Any]) -> list[Any]:
    return [at(i, encode, each) for i, each in enumerate(items)]


def decode(data: Any) -> Any:
    """The value that ``encode`` wrote. Raises ``ValidationError("invalid_request")`` where it cannot be one."""
    match data:
        case list():
            return _decode_items(cast(list[Any], data))
        case {"$": "tuple", "items": list()}:
            return tuple(_decode_items(data["items"]))
        case {"$": "map", "items": list()}:
            return _decode_pairs(data["items"])
        case {"$": "float", "value": "nan" | "inf" | "-inf" as text}:
            return math.nan if text == "nan" else float(text)  # one NaN for all, so that what is read twice is equal
        case {"$": "bytes", "base64": str(text)}:
            return _decode_bytes(text)
        case {"$": str(name), **rest} if name in VALUE_CLASSES:
            return decode_value(VALUE_CLASSES[name], cast(dict[str, Any], rest))
        case {"$": str(name), **rest} if name in ERROR_CLASSES:
            return _decode_error(ERROR_CLASSES[name], cast(dict[str, Any], rest))
        case dict():
            return {k: at(k, decode, v) for k, v in cast(dict[str, Any], data).items()}
        case _:
            return data


def decode_as(hint: Any, data: Any) -> Any:
    """`decode` for a place annotated with `hint`: an object without a ``"$"`` is the value class that belongs there.

    Raises ``ValidationError("invalid_request")`` where the data does not fit the annotation.
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    bases = [get_origin(option) or option for option in options]
    if isinstance(data, dict) and "$" not in data and dict not in bases:
        classes = [base for base in bases if isinstance(base, type) and issubclass(base, Value)]
        if len(classes) == 1:
            return decode_value(classes[0], cast(dict[str, Any], data))
    if isinstance(data, list) and tuple in bases:
        each, *others = get_args(options[bases.index(tuple)])
        hints = repeat(each) if others == [...] else (each, *others)
        items = zip(hints, cast(list[Any], data), strict=False)
        return tuple(at(i, partial(decode_as, one), item) for i, (one, item) in enumerate(items))
    decoded = decode(data)
    if not any(_fits(option, decoded) for option in options):
        what = "unknown" if Literal in bases and isinstance(decoded, str) else "wrong_type"
        meant = " or ".join(str(o) if get_args(o) else o.__name__ for o in options)
        raise _wrong(what, f"{_brief(decoded)} is not {re.sub(r'[a-z_]+[.]', '', meant)}")
    return decoded


def decode_value(cls: type[T], data: dict[str, Any]) -> T:
    """The value of class `cls` with these fields; unknown ones are left out."""
    specs = fields(cast(Any, cls))
    required = (spec for spec in specs if spec.default is MISSING and spec.default_factory is MISSING)
    check_missing(cls, [spec.name for spec in required], data)
    for name in (spec.name for spec in specs if spec.name in data and data[spec.name] is None):
        at(name, partial(decode_as, type_hints(cls)[name]), None)
    return cls.from_dict(data)  # pyright: ignore[reportUnknownMemberType]


def check_missing(cls: type, required: Iterable[str], data: dict[str, Any]) -> None:
    missing = [((name,), "missing") for name in required if name not in data]
    if missing:
        message = f"{cls.__name__} lacks {', '.join(path[0] for path, _ in missing)}"
        raise ValidationError("invalid_request", message, errors=missing)


@cache
def type_hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _decode_field(cls: type, name: str, data: Any) -> Any:
    return at(name, partial(decode_as, type_hints(cls)[name]), data)


def _fits(option: Any, item: Any) -> bool:
    base = get_origin(option) or option
    if base is Literal:
        return item in get_args(option)
    if option is Any or not isinstance(base, type) or (isinstance(item, dict) and "$" in item):
        return True
    return isinstance(item, int | float if base is float else base)


def _decode_items(items: list[Any]) -> list[Any]:
    return [at(i, decode, each) for i, each in enumerate(items)]


def _decode_pairs(pairs: list[Any]) -> dict[Any, Any]:
    try:
        return {decode(k): at(str(k), decode, v) for k, v in pairs}
    except (TypeError, ValueError) as error:
        raise _wrong("malformed_struct", "a map whose items are not pairs of a key and a value") from error


def _decode_error(cls: type[LLMError], data: dict[str, Any]) -> LLMError:
    check_missing(cls, ["reason"], data)
    try:
        return cls.from_fields({k: at(k, decode, v) for k, v in data.items()})
    except (TypeError, ValueError) as error:
        path = ("reason",) if data["reason"] not in list(cls.REASONS) else ()
        raise ValidationError(
            "invalid_request", str(error), errors=[(path, "unknown" if path else "malformed_struct")]
        ) from error


def _decode_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _wrong("invalid_base64", "bytes that are not base64") from error


def _wrong(what: str, message: str) -> ValidationError:
    return ValidationError("invalid_request", message, errors=[((), what)])


def _brief(item: Any) -> str:
    return repr(item) if isinstance(item, str | int | float | None) and len(repr(item)) < 60 else type(item).__name__


def _encode_mapping(mapping: Mapping[Any, Any]) -> Any:
    if "$" in mapping or not all(isinstance(key, str) for key in mapping):
        return {"$": "map", "items": [[at(str(k), encode, k), at(str(k), encode, v)] for k, v in mapping.items()]}
    return {k: at(k, encode, v) for k, v in mapping.items()}


def at(key: str | int, encode_one: Any, item: Any) -> Any:
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

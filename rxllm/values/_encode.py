"""The base class of all values, a frozen dataclass with exact JSON, and ``encode``, which writes that JSON data.

``encode`` here and ``decode`` in ``values._decode`` are the one place where values, errors and the free-form data
inside them become JSON data and come back equal. What JSON cannot express by itself is an object with a ``"$"``:

====================================  =======================================
a value or an error                   ``{"$": "Message", "role": "user", ...}``
a tuple in free-form data             ``{"$": "tuple", "items": [...]}``
bytes                                 ``{"$": "bytes", "base64": "..."}``
NaN and the infinities                ``{"$": "float", "value": "nan"}``
a mapping with a key that is not a    ``{"$": "map", "items": [[key, value], ...]}``
string, or with the key ``"$"``
====================================  =======================================

What a tool returns may be anything that JSON can hold: `encode_result` writes a model or a dataclass as its JSON data.
Fields that hold their default are left out. An unknown ``"$"`` is refused, because ignoring it would lose data.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import partial
from numbers import Integral, Real
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from dataclasses_json import DataClassJsonMixin, config  # pyright: ignore[reportUnknownVariableType]

from rxllm.values._decode import VALUE_CLASSES, decode_value
from rxllm.values._json import json_data, python_number
from rxllm.values.argument_checks import no_attribute
from rxllm.values.drawing import drawn
from rxllm.values.errors import LLMError, ValidationError

T = TypeVar("T", bound="Value")


class Value(DataClassJsonMixin):
    """Base class of the values: lists become tuples where the field is a tuple; the repr leaves out defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _sequence_fields: ClassVar[frozenset[str]] = frozenset()
    _encoders: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """What writes a field, if not `encode`."""
    _compared: ClassVar[Any]
    _other_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What other libraries call an attribute, and what to write for it here; an ``AttributeError`` says so."""

    def __post_init__(self) -> None:
        for name in self._sequence_fields:
            items = getattr(self, name)
            if isinstance(items, list):
                object.__setattr__(self, name, tuple(cast(list[Any], items)))

    _repr_html_ = drawn

    @classmethod
    def _check_decoded(cls, arguments: Mapping[str, Any]) -> None:
        """Raise ``ValidationError("invalid_request")`` if JSON must not have these fields."""

    # Defined once for all values: each frozen dataclass would compile half a dozen methods, which slows the import.

    def __setattr__(self, name: str, new: object) -> None:
        attributes = vars(self)
        if name in attributes or name not in self.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        attributes[name] = new

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    if not TYPE_CHECKING:  # a type checker reports unknown attributes itself

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            raise no_attribute(f"{cls.__name__!r} object", name, dir(self), cls._other_names)

    @classmethod
    def from_dict(cls, kvs: Any, *, infer_missing: bool = False) -> Self:
        """Return the value with these fields.

        Raises ``ValidationError("invalid_request")``, with the path, for fields that do not fit.
        """
        return decode_value(cls, kvs)

    def __eq__(self, other: object) -> bool:
        return self._compared(self) == self._compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared(self))

    def __repr__(self) -> str:
        pairs = ((spec, getattr(self, spec.name)) for spec in fields(cast(Any, self)))
        shown = [f"{spec.name}={item!r}" for spec, item in pairs if spec.repr and not _is_default(spec, item)]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make `cls` a dataclass whose fields have exact JSON, and which ``decode`` knows by its name."""
    cls = dataclass(eq=False, repr=False)(cls)
    target = cast(Any, cls)
    specs = fields(target)
    target._sequence_fields = frozenset(spec.name for spec in specs if "tuple[" in str(spec.type))
    target._compared = attrgetter(*(spec.name for spec in specs if spec.compare))
    for spec in (spec for spec in specs if not spec.metadata):  # an inherited field already has it
        default = _encode_sequence if spec.name in target._sequence_fields else encode
        encode_field = target._encoders.get(spec.name, default)
        spec.metadata = MappingProxyType(
            config(  # pyright: ignore[reportUnknownArgumentType]
                encoder=partial(at, spec.name, encode_field),
                exclude=partial(_is_default, spec),
            )
        )
    VALUE_CLASSES[cls.__name__] = cls
    return cls


def encode(item: Any) -> Any:
    """Return JSON data for `item`.

    Raises ``ValidationError("not_serializable")``, with the path, for anything that is not a value, an error or plain
    data (a function, an open file, ...).
    """
    match item:
        case None | bool() | int() | str():
            return item
        case float():
            return float(item) if math.isfinite(item) else {"$": "float", "value": float.__repr__(item)}
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
        case Integral() | Real():
            return encode(python_number(item))
        case _:
            name = type(item).__name__
            raise not_serializable(f"{name} has no JSON form; use dataclasses.replace to put None in its place")


def encode_result(item: Any) -> Any:
    """Return JSON data for what a tool returned: plain data as `encode` does, a model, a datetime, a set, ... as JSON.

    What is written so comes back as that data: a dict, a string, a list. Raises as `encode` does.
    """
    return encode(_plain(item))


def encode_metadata(metadata: Mapping[str, Any]) -> Any:
    """Return JSON data for the metadata of a result or a session, which may hold what a tool returned."""
    returned = {name: _plain(metadata[name]) for name in ("halt_result", "ask_user_opts") if name in metadata}
    return encode({**metadata, **returned} if returned else metadata)


def _plain(item: Any) -> Any:
    match item:
        case None | bool() | int() | float() | str() | bytes() | Value() | LLMError():
            return item
        case list():
            return [_plain(entry) for entry in cast(list[Any], item)]
        case tuple():
            return tuple(_plain(entry) for entry in cast(tuple[Any, ...], item))
        case Mapping():
            return {_plain_key(key): _plain(entry) for key, entry in cast(Mapping[Any, Any], item).items()}
        case _:
            try:
                return json_data(item)
            except ValidationError:  # `encode` refuses it, with its path
                return item


def _plain_key(key: Any) -> Any:
    plain = _plain(key)
    return key if isinstance(plain, dict | list) else plain


def encode_items(items: Iterable[Any]) -> list[Any]:
    return [at(i, encode, item) for i, item in enumerate(items)]


def at(key: str | int, encode_one: Any, item: Any) -> Any:
    """Return ``encode_one(item)``; an error it raises gets `key` at the front of its paths."""
    try:
        return encode_one(item)
    except ValidationError as error:
        raise error.under(key) from None


def not_serializable(message: str, *path: str) -> ValidationError:
    """Return the error for data that has no JSON."""
    return ValidationError("not_serializable", message, errors=[(path, "not_serializable")])


def _encode_mapping(mapping: Mapping[Any, Any]) -> Any:
    if "$" in mapping or not all(isinstance(key, str) for key in mapping):
        return {"$": "map", "items": [[at(str(k), encode, k), at(str(k), encode, v)] for k, v in mapping.items()]}
    return {k: at(k, encode, v) for k, v in mapping.items()}


def _encode_sequence(items: Any) -> Any:
    # A plain array: the field itself says that it is a tuple.
    return encode_items(cast(tuple[Any, ...], items)) if isinstance(items, tuple) else encode(items)


def _is_default(spec: Field[Any], item: Any) -> bool:
    if spec.default is not MISSING:
        return type(item) is type(spec.default) and item == spec.default
    return spec.default_factory is not MISSING and item == spec.default_factory()

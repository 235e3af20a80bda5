"""What every value is: a dataclass that is set once, and whose JSON is exact.

``encode`` here and ``decode`` in ``values._decode`` are the one place where values, errors and the free-form data
inside them become JSON data and come back equal. Whatever JSON cannot say by itself is an object with a ``"$"``:

====================================  =======================================
a value or an error                   ``{"$": "Message", "role": "user", ...}``
a tuple in free-form data             ``{"$": "tuple", "items": [...]}``
bytes                                 ``{"$": "bytes", "base64": "..."}``
NaN and the infinities                ``{"$": "float", "value": "nan"}``
a mapping with a key that is no       ``{"$": "map", "items": [[key, value], ...]}``
string, or with the key ``"$"``
====================================  =======================================

Fields that hold their default are left out. An unknown ``"$"`` is refused: what it stands for would be lost.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
)

from dataclasses_json import DataClassJsonMixin, config  # pyright: ignore[reportUnknownVariableType]

from rxllm.values.errors import LLMError, ValidationError

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

    @classmethod
    def from_dict(cls, kvs: Any, *, infer_missing: bool = False) -> Self:
        """The value of these fields. Raises ``ValidationError("invalid_request")`` for others, with the path."""
        from rxllm.values._decode import decode_value

        return decode_value(cls, kvs)

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

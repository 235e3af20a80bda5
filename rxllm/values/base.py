"""`Value`, the base class of all values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from dataclasses_json import (
    DataClassJsonMixin,  # pyright: ignore[reportUnknownVariableType]
    config,  # pyright: ignore[reportUnknownVariableType]
)

from rxllm.values.advice import no_field
from rxllm.values.codec import (
    VALUE_CLASSES,
    WrittenField,
    decode_value,
    encode,
    encode_fields,
    encode_metadata,
    encode_sequence,
)
from rxllm.values.drawing import drawn

T = TypeVar("T", bound="Value")


class Value(DataClassJsonMixin):
    """The base class of all values, which are frozen dataclasses.

    A list that is passed for a tuple field becomes a tuple. The repr omits fields that have their default value.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _sequence_fields: ClassVar[frozenset[str]] = frozenset()
    _encoders: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"metadata": encode_metadata}
    """Special encoders for some of the fields, by field name."""
    _written_fields: ClassVar[tuple[WrittenField, ...]] = ()
    _compared: ClassVar[Any]

    def __post_init__(self) -> None:
        for name in self._sequence_fields:
            items = getattr(self, name)
            if isinstance(items, list):
                object.__setattr__(self, name, tuple(cast(list[Any], items)))

    _repr_html_ = drawn

    def to_dict(self, encode_json: bool = False) -> dict[str, Any]:
        """Return the fields as JSON data, omitting fields that have their default value.

        Raises ``ValidationError("not_serializable")`` if a field contains something that has no JSON form.
        """
        return encode_fields(self, self._written_fields)

    @classmethod
    def from_dict(cls, kvs: Any, *, infer_missing: bool = False) -> Self:
        """Return a value made from the fields in `kvs`.

        Raises ``ValidationError("invalid_request")`` if a field is invalid or missing.
        """
        return decode_value(cls, kvs)

    @classmethod
    def _check_decoded(cls, arguments: Mapping[str, Any]) -> None:
        """Raise an error if JSON is not allowed to contain a value with these fields."""

    # All values share the methods below, because compiling them separately for each class is slow.

    def __setattr__(self, name: str, new: object) -> None:
        attributes = vars(self)
        if name in attributes or name not in self.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        attributes[name] = new

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    if not TYPE_CHECKING:  # type checkers report unknown attributes on their own

        def __getattr__(self, name: str) -> Any:
            raise no_field(type(self), name)

    def __eq__(self, other: object) -> bool:
        return self._compared(self) == self._compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared(self))

    def __repr__(self) -> str:
        specs = self.__dataclass_fields__
        pairs = ((field, getattr(self, field.name)) for field in self._written_fields if specs[field.name].repr)
        shown = [f"{field.name}={item!r}" for field, item in pairs if not field.is_default(item)]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Turn `cls` into a dataclass that can be read from JSON."""
    cls = dataclass(eq=False, repr=False)(cls)
    target = cast(Any, cls)
    specs = fields(target)
    target._sequence_fields = frozenset(spec.name for spec in specs if "tuple[" in str(spec.type))
    target._compared = attrgetter(*(spec.name for spec in specs if spec.compare))
    target._written_fields = tuple(_written_field(target, spec) for spec in specs)
    VALUE_CLASSES[cls.__name__] = cls
    return cls


def _written_field(cls: Any, spec: Field[Any]) -> WrittenField:
    write = encode_sequence if spec.name in cls._sequence_fields else encode
    field = WrittenField.of(spec, cls._encoders.get(spec.name, write))
    # dataclasses_json needs this metadata if a user's own dataclass contains this value.
    if not spec.metadata:
        own = config(encoder=field.encode, exclude=field.is_default)  # pyright: ignore[reportUnknownVariableType]
        spec.metadata = MappingProxyType(own)  # pyright: ignore[reportUnknownArgumentType]
    return field

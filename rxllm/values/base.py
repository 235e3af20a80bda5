"""`Value`, the base class of all values: frozen dataclasses, equal by their fields, with exact JSON (see the codec)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, dataclass_transform

from rxllm.values.argument_checks import no_attribute
from rxllm.values.codec import JSONValue, add_class
from rxllm.values.drawing import drawn

T = TypeVar("T", bound="Value")


class Value(JSONValue):
    """Base class of the values: lists become tuples where the field is a tuple; the repr leaves out defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _sequence_fields: ClassVar[frozenset[str]] = frozenset()
    _compared: ClassVar[Any]
    _other_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Other libraries' names of attributes, and what to write here; an ``AttributeError`` repeats it."""

    def __post_init__(self) -> None:
        for name in self._sequence_fields:
            items = getattr(self, name)
            if isinstance(items, list):
                object.__setattr__(self, name, tuple(cast(list[Any], items)))

    _repr_html_ = drawn

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

    def __eq__(self, other: object) -> bool:
        return self._compared(self) == self._compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared(self))

    def __repr__(self) -> str:
        pairs = [(spec, getattr(self, spec.name)) for spec in self._written]
        shown = [f"{spec.name}={item!r}" for spec, item in pairs if spec.is_shown and not spec.is_default(item)]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make `cls` a dataclass whose fields have exact JSON, and which ``decode`` knows by its name."""
    cls = dataclass(eq=False, repr=False)(cls)
    target = cast(Any, cls)
    specs = fields(target)
    target._sequence_fields = frozenset(spec.name for spec in specs if "tuple[" in str(spec.type))
    target._compared = attrgetter(*(spec.name for spec in specs if spec.compare))
    add_class(cls, target._sequence_fields)
    return cls

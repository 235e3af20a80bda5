"""What a type says about JSON that grows: the types of its parts, and which strings show before they are whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from rxllm.values._json import UNREADABLE, read_json
from rxllm.values._pydantic import cached_by_type
from rxllm.values._schema import decoder

_QUALIFIERS = ("Required", "NotRequired", "ReadOnly")


class Shape:
    """What may be at one place: `grows` is whether a string there shows before it is whole."""

    def __init__(self, hint: Any) -> None:
        self.hint = hint
        self._names: dict[str, str] = {}  # of the fields, by their keys in JSON
        self._known: dict[str | int, list[Any]] = {}  # the hints of fields, and of a tuple's items
        self._others: dict[type, list[Any]] = {str: [], int: []}  # of any other key, and of any other item
        self._children: dict[str | int | type, Shape] = {}
        self._decode: Any = None
        options = list(_options(hint))
        self.grows = any(map(_grows, options))
        for option in options:
            with suppress(Exception):  # a name that cannot be resolved is reported by the parser
                self._add(option)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.hint,)  # its decoder cannot be pickled

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields; none if any key may come."""
        return () if self._others[str] else tuple(dict.fromkeys(self._names.values()))

    def name(self, key: str) -> str:
        """Return the name of the field that has this key in JSON; another key is its own name."""
        return self._names.get(key, key)

    def child(self, key: str | int) -> Shape:
        """Return what may be at a field, a key or an index."""
        other = str if isinstance(key, str) else int
        place = key if key in self._known else other
        shape = self._children.get(place)
        if shape is None:
            hints = self._known.get(key) or self._others[other] or [Any]
            shape = self._children[place] = shape_of(hints[0] if len(hints) == 1 else Union[tuple(hints)])  # noqa: UP007
        return shape

    def read(self, raw: str) -> Any:
        """Return the value in whole JSON text; plain JSON where it is not of this type, which the end will refuse."""
        try:
            self._decode = self._decode or decoder(self.hint)
            return self._decode(raw)
        except Exception:  # of a misfit, or of a type that nothing can read on its own
            return plain(raw)

    def _add(self, option: Any) -> None:
        cls, args = get_origin(option) or option, get_args(option)
        if not isinstance(cls, type):
            return
        if fields := _fields(cls, args):
            for key, (name, hint) in fields.items():
                self._names[key] = name
                hints = self._known.setdefault(name, [])
                hints += [] if hint in hints else [hint]
            if getattr(cls, "model_config", {}).get("extra") == "allow":
                self._others[str].append(Any)
        elif hasattr(cls, "_fields"):  # a NamedTuple is an array
            for index, hint in enumerate(_hints(cls, args).values()):
                self._known.setdefault(index, []).append(hint)
        elif issubclass(cls, Mapping):
            self._others[str].append(args[1] if len(args) > 1 else Any)
        elif cls is tuple and ... not in args:
            for index, hint in enumerate(args):
                self._known.setdefault(index, []).append(hint)
        elif args:
            self._others[int].append(args[0])


shape_of = cached_by_type(Shape)


def _again(hint: Any) -> Shape:
    return shape_of(hint)


def plain(raw: str) -> Any:
    """Return the JSON value of whole text; None for text that cannot be read."""
    try:
        return read_json(raw)
    except UNREADABLE:
        return None


def _options(hint: Any) -> Iterator[Any]:
    """Yield the types that a value of this type may have: the members of a union, without what annotates them."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for option in get_args(hint):
            yield from _options(option)
    elif origin is Annotated:
        yield from _options(get_args(hint)[0])
    elif (meant := getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)) is not None:
        yield from _options(meant)  # of a NewType, of a type alias
    elif getattr(hint, "__pydantic_root_model__", False):
        yield from _options(hint.__pydantic_fields__["root"].annotation)
    else:
        yield hint


def _grows(option: Any) -> bool:
    if option in (Any, object) or isinstance(option, TypeVar):
        return True
    return isinstance(option, type) and issubclass(option, str) and not issubclass(option, Enum)


def _fields(cls: Any, args: tuple[Any, ...]) -> dict[str, tuple[str, Any]]:
    """Return the name and type of each field that is a key of an object, by that key."""
    if models := cast("dict[str, Any] | None", getattr(cls, "__pydantic_fields__", None)):
        return {key: (name, _annotation(field)) for name, field in models.items() for key in _keys(name, field)}
    if issubclass(cls, msgspec.Struct):
        if cls.__struct_config__.array_like:
            return {}
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        hints = _hints(cls, args)
        return {key: (name, hints[name]) for key, name in names}
    if hasattr(cls, "__required_keys__") or hasattr(cls, "__dataclass_fields__"):  # a TypedDict, a dataclass
        return {name: (name, _unqualified(hint)) for name, hint in _hints(cls, args).items()}
    return {}


def _annotation(field: Any) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation  # pyright: ignore


def _keys(name: str, field: Any) -> Iterator[str]:
    """Yield the keys that a field of pydantic's may have in JSON."""
    alias = field.validation_alias
    choices = [alias] if isinstance(alias, str) else getattr(alias, "choices", [])
    yield from (choice for choice in choices if isinstance(choice, str))
    yield name  # where `populate_by_name` allows it


def _hints(cls: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    arguments = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    return {name: _substituted(hint, arguments) for name, hint in hints.items()} if arguments else hints


def _substituted(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    if hint in arguments:
        return arguments[hint]
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(arguments.get(parameter, parameter) for parameter in parameters)] if parameters else hint


def _unqualified(hint: Any) -> Any:
    """Return what a field of a TypedDict is, without ``Required[...]`` and the like."""
    is_qualified = getattr(get_origin(hint), "_name", "") in _QUALIFIERS
    return _unqualified(get_args(hint)[0]) if is_qualified else hint

"""`Value`, the base class of all values: a frozen dataclass with exact JSON, which is encoded and decoded here.

``encode`` turns values, errors and the free-form data inside them into JSON data, and ``decode`` makes equal ones of
it. Data that JSON cannot express by itself is an object with a ``"$"``:

====================================  =======================================
a value or an error                   ``{"$": "Message", "role": "user", ...}``
a tuple in free-form data             ``{"$": "tuple", "items": [...]}``
bytes                                 ``{"$": "bytes", "base64": "..."}``
NaN and the infinities                ``{"$": "float", "value": "nan"}``
a mapping with a key that is not a    ``{"$": "map", "items": [[key, value], ...]}``
string, or with the key ``"$"``
====================================  =======================================

Fields that hold their default are left out. An unknown ``"$"`` is refused, because ignoring it would lose data. A tool
may return any data: `encode_result` writes a model or a dataclass as its JSON data.

Each annotation has one reader, made when it is first needed. A reader raises ``ValidationError("invalid_request")``,
with the path, for data that does not fit the annotation.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, is_dataclass
from functools import cache, partial
from itertools import repeat
from numbers import Integral, Real
from operator import attrgetter, itemgetter
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from dataclasses_json import (
    DataClassJsonMixin,  # pyright: ignore[reportUnknownVariableType]
    config,  # pyright: ignore[reportUnknownVariableType]
)

from rxllm.values.argument_checks import no_attribute
from rxllm.values.drawing import drawn
from rxllm.values.errors import ERROR_CLASSES, LLMError, ValidationError
from rxllm.values.json_text import check_encodable, json_data, python_number

D = TypeVar("D")
T = TypeVar("T", bound="Value")


Reader = Callable[[Any], Any]

VALUE_CLASSES: dict[str, type[Any]] = {}
"""The classes of values by name; ``value`` adds each."""

may_name_files: ContextVar[bool] = ContextVar("rxllm_may_name_files", default=False)
"""Whether the data that is decoded here may name files of this machine, which the program would read and send."""

_NAMES = {"id", "tool_call_id", "pending_tool_call_id", "request_id", "run_id", "tool_name", "name", "kind"}
"""The fields that name something: they go into stores, headers and logs, so they must be text that these can hold."""

_OWN_TAGS = ("tuple", "map", "float", "bytes")


class Value(DataClassJsonMixin):
    """Base class of the values: lists become tuples where the field is a tuple; the repr leaves out defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _sequence_fields: ClassVar[frozenset[str]] = frozenset()
    _encoders: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """The functions that write fields in place of `encode`."""
    _compared: ClassVar[Any]
    _other_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Other libraries' names of attributes, and what to write here; an ``AttributeError`` repeats it."""

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


# Encoding


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

    Decoding returns that data: a dict, a string, a list. Raises as `encode` does.
    """
    return encode(_plain(item))


def encode_metadata(metadata: Mapping[str, Any]) -> Any:
    """Return JSON data for the metadata of a result or a session, with the results of tools in it."""
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
    # A plain array is enough: the annotation of the field makes it a tuple.
    return encode_items(cast(tuple[Any, ...], items)) if isinstance(items, tuple) else encode(items)


def _is_default(spec: Field[Any], item: Any) -> bool:
    if spec.default is not MISSING:
        return type(item) is type(spec.default) and item == spec.default
    return spec.default_factory is not MISSING and item == spec.default_factory()


# Decoding


def decode(data: Any) -> Any:
    """Return what ``encode`` wrote. Raises ``ValidationError("invalid_request")`` for other data."""
    # This takes no more frames than `encode`, so that deeply nested data that was written can be read.
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


def decode_value(cls: type[D], data: Mapping[str, Any]) -> D:
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


def _construct(cls: Callable[..., D], arguments: dict[str, Any]) -> D:
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
            # One NaN object makes data that is read twice equal.
            return math.nan if text == "nan" else float(text)
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
    if base is Iterable:  # an argument of ValidationError
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

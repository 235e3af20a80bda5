"""JSON for every value, error and event: what is read back equals what was written.

A value or an error is the object that ``rxllm.values`` describes, ``{"$": "Message", "role": "user", ..., "v": 1}``; an
event is flat, ``{"type": "text_delta", "delta": "Hi", "v": 1}``. The ``"v"`` is at the root alone. Fields that hold
their default are left out, unknown fields are skipped.

Everything that is wrong with a text is a ``ValidationError("invalid_request")`` whose `errors` say where and what:

======================  ==========================  ===================================================
``("json",)``           ``malformed``               it is no JSON
``("format",)``         ``missing_type_tag``        an object without ``"$"`` or ``"type"``, and no `type`
``("format",)``         ``unknown_type_tag``        nothing is called that
``("format",)``         ``type_mismatch``           another class than `type`
``("data",)``           ``malformed_struct``        no object where one belongs
``("v",)``              ``unknown_version``         a newer rxllm has written it
``(*path, field)``      ``missing``, ``unknown``,   a field; ``unknown`` is a word outside a closed set
                        ``wrong_type``, ``invalid_base64``, ``unknown_type_tag``, ``malformed_struct``,
                        ``too_deep``
======================  ==========================  ===================================================
"""

from __future__ import annotations

import json
from functools import cache, partial
from itertools import repeat
from typing import Any, Never, TypeVar, cast, get_args, get_origin, overload

import msgspec

from rxllm.events import EVENT_CLASSES, EVENT_TAGS, Event
from rxllm.values import LLMError, ValidationError, Value
from rxllm.values._base import VALUE_CLASSES, at, encode
from rxllm.values._decode import brief, decode_error, decode_fields, decode_items, decode_value, readers_of
from rxllm.values._json import is_encodable
from rxllm.values.errors import ERROR_CLASSES

VERSION = 1

T = TypeVar("T")


def to_json(value: Value | LLMError | Event | list[Any]) -> str:
    """The JSON of a value, an error, an event, or a list of them.

    >>> from rxllm.values import user
    >>> to_json(user("Hi"))
    '{"$": "Message", "role": "user", "content": "Hi", "v": 1}'

    Raises ``ValidationError("not_serializable")``, with the path, where something inside is no data.
    """
    try:
        data = _write_root(value)
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
        # Half a character must be escaped, or no file could hold it.
        return text if is_encodable(text) else json.dumps(data, allow_nan=False)
    except RecursionError as error:
        message = f"{type(value).__name__} is nested too deeply, or holds itself"
        raise ValidationError("not_serializable", message, errors=[((), "not_serializable")]) from error
    except ValueError as error:
        message = f"{type(value).__name__} holds a number that is too long: {error}"
        raise ValidationError("not_serializable", message, errors=[((), "not_serializable")]) from error


@overload
def from_json(text: str | bytes) -> Any: ...
@overload
def from_json(text: str | bytes, type: type[T]) -> T: ...
def from_json(text: str | bytes, type: Any = None) -> Any:
    """What `to_json` wrote.

    `type` says what a text without a tag is, and is checked where there is one; ``list[Message]`` reads an array.

    >>> from rxllm.values import Message
    >>> from_json('{"role": "user", "content": "Hi"}', Message)
    Message('user', 'Hi')

    Raises ``ValidationError("invalid_request")``; this module's page lists what its `errors` say.
    """
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _wrong("json", "malformed", f"malformed JSON: {error}") from error
    try:
        return _read_root(data, type)
    except RecursionError:
        raise _wrong("data", "too_deep", "nested too deeply") from None


def _write_root(item: Any) -> Any:
    match item:
        case list():
            return [at(i, _write_root, each) for i, each in enumerate(cast(list[Any], item))]
        case Value() | LLMError():
            return {**encode(item), "v": VERSION}
        case msgspec.Struct() if type(item) in EVENT_CLASSES:
            return {**_write_event(cast(Event, item)), "v": VERSION}
        case _:
            message = f"{type(item).__name__} is no value, error or event"
            raise ValidationError("not_serializable", message, errors=[((), "not_serializable")])


def _write_event(event: Event) -> dict[str, Any]:
    written: dict[str, Any] = {"type": event.__struct_config__.tag}
    for spec in _fields(type(event)):
        held = getattr(event, spec.name)
        if spec.required or held != _default(spec):
            written[spec.name] = at(spec.name, encode, held)
    return written


@cache
def _fields(cls: type[Event]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(cls)


def _default(spec: msgspec.structs.FieldInfo) -> Any:
    return spec.default if spec.default_factory is msgspec.NODEFAULT else spec.default_factory()


def _read_root(data: Any, wanted: Any) -> Any:
    if isinstance(data, list) and (wanted is None or get_origin(wanted) is list):
        read = partial(_read_root, wanted=next(iter(get_args(wanted)), None))
        return decode_items(cast(list[Any], data), repeat(read))
    wanted = get_origin(wanted) or wanted  # Response[City] is read as a Response
    if wanted is not None and not _is_known(wanted):
        raise _wrong("format", "unknown_type_tag", f"{wanted!r} is no class of values, errors or events")
    if not isinstance(data, dict):
        if wanted is None:
            raise _wrong("format", "missing_type_tag", "neither an object nor an array")
        raise _wrong("data", "malformed_struct", f"a {wanted.__name__} is an object")
    return _read_object(cast(dict[str, Any], data), wanted)


def _read_object(data: dict[str, Any], wanted: Any) -> Any:
    version = data.get("v", VERSION)
    if version != VERSION:
        message = f"written in version {version!r}; this rxllm reads version {VERSION}"
        raise _wrong("v", "unknown_version", message)
    cls: type[Any] = _class_of(data, wanted)
    if wanted is not None and not issubclass(cls, wanted):
        raise _wrong("format", "type_mismatch", f"expected {wanted.__name__}, found {cls.__name__}")
    if cls in EVENT_CLASSES:
        return _read_event(cls, data)
    return decode_value(cls, data) if issubclass(cls, Value) else decode_error(cls, data)


def _class_of(data: dict[str, Any], wanted: Any) -> type[Any]:
    if "$" in data:
        tag = data["$"]
        cls = (VALUE_CLASSES.get(tag) or ERROR_CLASSES.get(tag)) if isinstance(tag, str) else None
    elif "type" in data and (wanted is None or wanted in EVENT_CLASSES or _event_class(data["type"])):
        tag = data["type"]
        cls = _event_class(tag)
    elif wanted is not None and wanted not in (Value, LLMError):
        return wanted
    else:
        raise _wrong("format", "missing_type_tag", 'an object with neither "$" nor "type"; say its type')
    if cls is None:
        raise _wrong("format", "unknown_type_tag", f"nothing is called {brief(tag)}")
    return cls


def _event_class(tag: Any) -> type[Event] | None:
    return EVENT_TAGS.get(tag) if isinstance(tag, str) else None


def _read_event(cls: type[Event], data: dict[str, Any]) -> Event:
    required = (spec.name for spec in _fields(cls) if spec.required)
    return cls(**decode_fields(cls, required, readers_of(cls), data))


def _is_known(wanted: Any) -> bool:
    return isinstance(wanted, type) and (wanted in EVENT_CLASSES or issubclass(wanted, Value | LLMError))


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")


def _wrong(where: str, what: str, message: str) -> ValidationError:
    return ValidationError("invalid_request", message, errors=[((where,), what)])

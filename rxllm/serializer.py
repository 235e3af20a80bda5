"""Convert values, errors and events to JSON and back.

They are read back as equal objects, with one exception: an object that a tool created, such as its result or a
``halt_result``, is read back as plain data. In such an object, models, dataclasses and events become JSON objects,
datetimes, decimals, enums and paths become text, and sets become lists. In the `result` of a ``ToolExecutionCompleted``
or a ``ToolHalt``, a note such as ``[image/png, 5000 bytes]`` replaces each image and file. The data itself is in the
`parts` of the ``ToolResultEncoded`` or the ``ToolHalt``.

An obsolete ``RawChunk`` is read as the event that has replaced it; see ``rxllm.events.current_form``.

A value or an error contains the name of its class, as in ``{"$": "Message", "role": "user", ..., "v": 1}``. An event
contains its type, as in ``{"type": "text_delta", "delta": "Hi", "v": 1}``. Only the outermost object contains the
version, ``"v"``; if the text is an array, each of its objects does. Default values are omitted. When an object is read,
unknown fields are skipped.

If text cannot be read, ``ValidationError("invalid_request")`` is raised. Each of its `errors` has a path and a code:

======================  ==========================  ===================================================
path                    code                        meaning
======================  ==========================  ===================================================
``("json",)``           ``malformed``               The text is not JSON.
``("format",)``         ``missing_type_tag``        The object has neither ``"$"`` nor ``"type"``, and no
                                                    `type` was passed.
``("format",)``         ``unknown_type_tag``        No class has this name.
``("format",)``         ``type_mismatch``           The class is not the `type` that was passed.
``("data",)``           ``malformed_struct``        The data is not an object.
``("v",)``              ``unknown_version``         This version of rxllm cannot read the version of
                                                    the text.
``(*path, field)``      ``unknown``                 The field accepts only certain words, and this is not
                                                    one of them.
``(*path, field)``      any other code              The field is invalid.
======================  ==========================  ===================================================

The other codes for a field are ``missing``, ``wrong_type``, ``invalid_base64``, ``unknown_type_tag``,
``malformed_struct``, ``too_deep`` and ``local_file``. Ids and names must not contain lone surrogates.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from itertools import count, repeat
from pathlib import Path, PurePath
from typing import Any, Never, TypeVar, cast, get_args, get_origin, overload

import msgspec

from rxllm.collector.parsed import Read, chat_with_parsed, step_with_parsed, with_parsed
from rxllm.events import (
    EVENT_CLASSES,
    EVENT_TAGS,
    AskUserRequested,
    Event,
    Nested,
    RawChunk,
    ToolExecutionCompleted,
    ToolHalt,
    ToolProgress,
    current_form,
    unparsed,
)
from rxllm.values import ChatResult, LLMError, Response, StepResult, Turn, ValidationError, Value, reader
from rxllm.values.argument_checks import shown
from rxllm.values.codec import (
    VALUE_CLASSES,
    Reader,
    Writer,
    WrittenField,
    at,
    brief,
    decode_each,
    decode_error,
    decode_fields,
    decode_value,
    encode,
    encode_fields,
    encode_items,
    encode_result,
    may_name_files,
    not_serializable,
    readers_of,
    wrong,
)
from rxllm.values.errors import ERROR_CLASSES
from rxllm.values.json_text import is_encodable
from rxllm.values.result_parts import with_notes

VERSION = 1

_RESULTS = {
    (AskUserRequested, "opts"),
    (ToolProgress, "data"),
}
"""The fields that can contain a tool's own objects."""

_NOTED = {(ToolExecutionCompleted, "result"), (ToolHalt, "result")}
"""The fields that can contain a tool's own objects, and in which notes stand for images and files."""

T = TypeVar("T")


def to_json(value: Value | LLMError | Event | list[Any]) -> str:
    """Convert a value, an error, an event or a list to JSON text.

    >>> from rxllm.values import user
    >>> to_json(user("Hi"))
    '{"$": "Message", "role": "user", "content": "Hi", "v": 1}'

    Raises ``ValidationError("not_serializable")`` if `value` contains an object that JSON cannot represent. The error
    contains the path to that object.
    """
    try:
        data = to_data(value)
        text = _write_text(data)
        # Escape text that contains a lone surrogate, because such text cannot be written to a file.
        return text if is_encodable(text) else json.dumps(data, allow_nan=False)
    except RecursionError as error:
        raise _too_deep(value) from error
    except ValueError as error:
        raise not_serializable(f"{type(value).__name__} holds a number that is too long: {error}") from error


def to_data(value: Value | LLMError | Event | list[Any]) -> Any:
    """Return the dicts, lists and scalars that `to_json` writes.

    >>> from rxllm.events import TextDelta
    >>> to_data(TextDelta("Hi"))
    {'type': 'text_delta', 'delta': 'Hi', 'v': 1}

    Raises the same errors as `to_json`.
    """
    try:
        return _write_root(value)
    except RecursionError as error:
        raise _too_deep(value) from error


def _too_deep(value: object) -> ValidationError:
    return not_serializable(f"{type(value).__name__} is nested too deeply, or contains itself")


@overload
def from_json(text: str | bytes, *, response_format: Any = None, local_files: bool = False) -> Any: ...
@overload
def from_json(text: str | bytes, type: type[T], *, response_format: Any = None, local_files: bool = False) -> T: ...
def from_json(text: str | bytes, type: Any = None, *, response_format: Any = None, local_files: bool = False) -> Any:
    """Convert the output of `to_json` back to a value, error, event or list.

    `type` is the class to read. You need `type` only if the text has neither ``"$"`` nor ``"type"``. If the text has
    one of them, `type` must agree with it. To read an array of messages, pass ``list[Message]``.

    >>> from rxllm.values import Message
    >>> from_json('{"role": "user", "content": "Hi"}', Message)
    Message('user', 'Hi')

    Unknown fields are skipped, so a misspelled field is not an error:

    >>> from rxllm.values import Session
    >>> from_json('{"bogus": 1}', Session) == Session()
    True

    By default, the `parsed` field is plain data. If you pass the call's `response_format`, `parsed` becomes the typed
    object again:

    >>> from dataclasses import dataclass
    >>> from rxllm.values import Response
    >>> @dataclass
    ... class City:
    ...     name: str
    >>> text = to_json(Response(output_text='{"name": "Lima"}', parsed=City("Lima")))
    >>> from_json(text).parsed, from_json(text, response_format=City).parsed
    ({'name': 'Lima'}, City(name='Lima'))

    Images from ``Image.from_file`` are rejected, because untrusted text could name any local file. If your program
    wrote the text itself, pass ``local_files=True``.

    Raises ``ValidationError("invalid_request")`` if the text cannot be read. Raises
    ``ValidationError("invalid_output")`` if a response does not match `response_format`. If the response belongs to a
    `StepResult` or a `ChatResult`, the ``invalid_output`` error is not raised. It is stored in the response's `error`,
    and, for a `ChatResult`, in the result's `error` as well.
    """
    if not isinstance(text, str | bytes | bytearray):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _not_a_text(text)
    try:
        text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        data = _read_text(text)
    except (ValueError, RecursionError) as error:
        if isinstance(text, str) and text.endswith((".json", ".jsonl")):
            raise _not_a_text(Path(text)) from None
        raise wrong("malformed", f"malformed JSON: {error}", "json") from None
    return from_data(data, type, response_format=response_format, local_files=local_files)


def _not_a_text(argument: Any) -> ValidationError:
    remedy = "from_data(...)"
    if isinstance(argument, PurePath):
        remedy = f"from_json(Path({shown(str(argument))}).read_text())"
        argument = str(argument)
    return wrong("malformed", f"from_json takes JSON as text, not {shown(argument)}; write {remedy}", "json")


@overload
def from_data(data: Any, *, response_format: Any = None, local_files: bool = False) -> Any: ...
@overload
def from_data(data: Any, type: type[T], *, response_format: Any = None, local_files: bool = False) -> T: ...
def from_data(data: Any, type: Any = None, *, response_format: Any = None, local_files: bool = False) -> Any:
    """Convert the output of `to_data` back to a value, error, event or list; see `from_json`."""
    read = reader(response_format)
    token = may_name_files.set(local_files)
    try:
        value = _read_root(data, type)
    except RecursionError:
        raise wrong("too_deep", "nested too deeply", "data") from None
    finally:
        may_name_files.reset(token)
    return value if read is None else _with_parsed(value, read)


def _with_parsed(value: Any, read: Read) -> Any:
    match value:
        case list():
            return [_with_parsed(item, read) for item in cast(list[Any], value)]
        case Response():
            return with_parsed(cast(Response[Any], value), read)
        case StepResult():
            return step_with_parsed(cast(StepResult[Any], value), read)
        case ChatResult():
            return chat_with_parsed(cast(ChatResult[Any], value), read)
        case Turn():
            return replace(value, result=_with_parsed(value.result, read))
        case _:
            return value


def _write_root(item: Any) -> Any:
    match item:
        case list():
            return [at(i, _write_root, entry) for i, entry in enumerate(cast(list[Any], item))]
        case Value() | LLMError():
            return {**encode(item), "v": VERSION}
        case msgspec.Struct() if type(item) in EVENT_CLASSES:
            return {**_write_event(cast(Event, item)), "v": VERSION}
        case _:
            raise not_serializable(f"{type(item).__name__} is not a value, an error or an event")


def _write_event(event: Event) -> dict[str, Any]:
    event = unparsed(event)
    return {"type": event.__struct_config__.tag, **encode_fields(event, _written_fields(type(event)))}


@cache
def _written_fields(cls: type[Event]) -> tuple[WrittenField, ...]:
    return tuple(WrittenField.of(spec, _writer(cls, spec.name)) for spec in msgspec.structs.fields(cls))


def _writer(cls: type[Event], field: str) -> Writer:
    if cls is Nested:
        return _write_event if field == "event" else encode_items
    if (cls, field) in _NOTED:
        return _write_noted
    if field == "parts":
        return encode_items
    return _write_result if (cls, field) in _RESULTS else encode


def _write_result(item: Any) -> Any:
    # A tool may report or return the events of a stream.
    return _write_event(item) if type(item) in EVENT_CLASSES else encode_result(item)


def _write_noted(item: Any) -> Any:
    # The data itself is in the event's `parts`, or in those of `ToolResultEncoded`.
    return _write_result(with_notes(item))


def _read_root(data: Any, expected: Any) -> Any:
    if isinstance(data, list) and (expected is None or get_origin(expected) is list):
        read = partial(_read_root, expected=next(iter(get_args(expected)), None))
        return decode_each(count(), cast(list[Any], data), repeat(read))
    expected = get_origin(expected) or expected  # Response[City] is read as a Response
    if expected is not None and not _is_known(expected):
        raise wrong("unknown_type_tag", f"{expected!r} is not the class of a value, an error or an event", "format")
    if not isinstance(data, dict):
        if expected is None:
            raise wrong("missing_type_tag", "must be an object or an array", "format")
        raise wrong("malformed_struct", f"a {expected.__name__} must be an object", "data")
    return _read_object(cast(dict[str, Any], data), expected)


def _read_object(data: dict[str, Any], expected: Any) -> Any:
    version = data.get("v", VERSION)
    if version != VERSION:
        message = f"the data has version {version!r}, but this version of rxllm reads only version {VERSION}"
        raise wrong("unknown_version", message, "v")
    cls: type[Any] = _class_of(data, expected)
    if expected is not None and not issubclass(cls, expected):
        raise wrong("type_mismatch", f"expected {expected.__name__}, found {cls.__name__}", "format")
    if cls in EVENT_CLASSES:
        return _read_event(cls, data)
    return decode_value(cls, data) if issubclass(cls, Value) else decode_error(cls, data)


def _class_of(data: dict[str, Any], expected: Any) -> type[Any]:
    if "$" in data:
        tag = data["$"]
        cls = (VALUE_CLASSES.get(tag) or ERROR_CLASSES.get(tag)) if isinstance(tag, str) else None
    elif "type" in data and (expected is None or expected in EVENT_CLASSES or _event_class(data["type"])):
        tag = data["type"]
        cls = _event_class(tag)
    elif expected is not None and expected not in (Value, LLMError):
        return expected
    else:
        raise wrong("missing_type_tag", 'the object has neither "$" nor "type"; pass its class as type=', "format")
    if cls is None:
        raise wrong("unknown_type_tag", f"unknown type {brief(tag)}", "format")
    return cls


def _event_class(tag: Any) -> type[Event] | None:
    return EVENT_TAGS.get(tag) if isinstance(tag, str) else None


def _read_event(cls: type[Event], data: dict[str, Any]) -> Event:
    event = cls(**decode_fields(cls, *_read_fields(cls), data))
    if cls is not RawChunk:
        return event
    try:
        return current_form(event)
    except TypeError:  # the chunk has an unknown counter, which is reported when the event is folded
        return event


@cache
def _read_fields(cls: type[Event]) -> tuple[tuple[str, ...], dict[str, Reader]]:
    """Return the names of an event's required fields, and a function to read each field."""
    required = tuple(spec.name for spec in msgspec.structs.fields(cls) if spec.required)
    return required, {**readers_of(cls), "event": _read_nested} if cls is Nested else readers_of(cls)


def _read_nested(data: Any) -> Event:
    cls = _event_class(cast(dict[str, Any], data).get("type")) if isinstance(data, dict) else None
    if cls is None or cls is Nested:
        raise wrong("unknown_type_tag" if isinstance(data, dict) else "malformed_struct", "must be an event")
    return _read_event(cls, cast(dict[str, Any], data))


def _is_known(expected: Any) -> bool:
    return isinstance(expected, type) and (expected in EVENT_CLASSES or issubclass(expected, Value | LLMError))


def _refuse_constant(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")


# With these arguments, ``json.dumps`` and ``json.loads`` would create a new encoder or decoder on every call.
_write_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_read_text = json.JSONDecoder(parse_constant=_refuse_constant).decode

"""Structured answers: JSON schemas made from types for the model, and typed values read from its text.

===========================================  =========================  ============================================
`response_format`                            its JSON schema            how the answer is read and validated
===========================================  =========================  ============================================
a dataclass, ``TypedDict``, msgspec Struct   msgspec's, made strict     by msgspec
a type with parts from pydantic, or a        pydantic's, made strict    by pydantic, which is imported only then
union that msgspec cannot read
any other type: ``list[City]``, ``bool``,    an object with             the `value` of that object; an answer that
``Literal["a", "b"]``, an enum, a union      one field `value`          is the bare value is read too
``json_schema(...)``, OpenAI's own form      unchanged                  as JSON, checked by jsonschema-rs; without
                                                                        it unchecked, with one warning
``{"type": "json_object"}``                  none                       as JSON, which must be an object
``"text"``                                   none                       not read
===========================================  =========================  ============================================

Providers that enforce a schema want an object at its top, hence `value`; see
https://platform.openai.com/docs/guides/structured-outputs#root-objects-must-not-be-anyof-and-must-be-an-object.
Strict schemas are what these providers require: objects are closed, every property is required, there is
no ``default``, ``title``, ``oneOf`` or ``discriminator``, and nothing beside a ``$ref``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import UnionType
from typing import Any, Union, cast, get_origin

import msgspec

from rxllm.values.argument_checks import invalid_option
from rxllm.values.errors import Path, ValidationError
from rxllm.values.json_text import (
    UNREADABLE,
    brings_pydantic,
    cached_adapter,
    cached_by_type,
    decode_json,
    described,
    faults_of,
    parts_of,
)
from rxllm.values.requests import json_schema
from rxllm.values.schema_checks import schema_faults

ResponseFormat = str | Mapping[str, Any] | type[Any] | UnionType
"""A call's ``response_format``, see above."""

_NAMES_TO_SCHEMAS = ("properties", "$defs", "patternProperties")
_DATA = ("enum", "const", "examples", "required", "type")
_LEFT_OUT = ("default", "title", "discriminator")
_BESIDE_THE_SCHEMA = {"strict", "description"}
_SHOWN = 200


def is_type(value: Any) -> bool:
    """Whether `value` is a class, an alias such as ``list[int]``, a union, or another type that `typing` makes.

    >>> [is_type(value) for value in (int, list[int], int | None, len, "int")]
    [True, True, True, False, False]
    """
    return isinstance(value, type) or get_origin(value) is not None or type(value).__module__ == "typing"


def as_response_format(value: Any) -> Any:
    """Return `value` as a `Request` takes it: types and OpenAI's own form as ``json_schema(...)``, others unchanged.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class City:
    ...     name: str
    >>> as_response_format(City)["schema"]["properties"]
    {'name': {'type': 'string'}}

    Raises ``ValidationError("invalid_option")`` for a type that has no JSON schema.
    """
    return _format_of(value) if is_type(value) else _flatten(value)


def _flatten(value: Any) -> Any:
    """Return OpenAI's form of a schema without its inner object; anything else unchanged.

    `strict` is False by default in that form, see
    https://platform.openai.com/docs/api-reference/chat/create#chat_create-response_format.
    """
    match value:
        case {"type": "json_schema", "json_schema": {"name": str(name), "schema": Mapping(), **rest}, **others} if (
            not others and rest.keys() <= _BESIDE_THE_SCHEMA
        ):
            description = {"description": text} if (text := rest.get("description")) else {}
            schema = {**description, **value["json_schema"]["schema"]}
            return json_schema(name, schema, strict=bool(rest.get("strict")))
        case _:
            return value


def reader(response_format: Any) -> Callable[[str], Any] | None:
    """Return the function that reads an answer in this format; None if the answer is plain text.

    The function raises ``ValidationError("invalid_output")``. A function as `response_format` is returned unchanged.
    """
    response_format = _flatten(response_format)
    match response_format:
        case {"type": "json_schema", "schema": Mapping()}:
            return partial(_read_json, response_format["schema"])
        case {"type": "json_object"}:
            return _read_object
        case None | str() | Mapping():
            return None
        case _:
            if not is_type(response_format):
                return response_format
            decode = decoder(response_format)
            return partial(_read_answer, decode) if is_wrapped(response_format) else decode


def decoder(hint: Any) -> Callable[[str], Any]:
    """Return the function that reads JSON text as the type `hint`, not wrapped in an object.

    The function raises ``ValidationError("invalid_output")``. Raises msgspec's error for a type that JSON cannot hold.
    """
    return partial(_decode_type, _decode_of(hint), hint)


def unfenced(text: str) -> str:
    """Return `text` without the Markdown code fence that small models put around their JSON.

    >>> unfenced("```json\\n[1]\\n```")
    '[1]'
    """
    inner = text.strip()
    if len(inner) < 6 or not (inner.startswith("```") and inner.endswith("```")):
        return inner
    return re.sub(r"\Ajson\b", "", inner[3:-3], flags=re.IGNORECASE).strip()


def is_wrapped(hint: Any) -> bool:
    """Whether an answer of this type comes as the `value` of an object; the bare value is accepted too."""
    try:
        schema = _own_schema(hint)
    except ValidationError:  # the type can be read, but not requested
        return False
    return bool(schema) and schema.get("type") != "object"


@cached_by_type
def _format_of(hint: Any) -> dict[str, Any]:
    schema = _own_schema(hint)
    if not schema:
        fault = f"{hint!r} does not describe the answer; write {{'type': 'json_object'}} for any JSON object"
        raise invalid_option("response_format", fault)
    strict = _make_strict(_wrap(schema) if is_wrapped(hint) else schema)
    name = "answer" if is_wrapped(hint) else re.sub(r"[^A-Za-z0-9_-]", "_", getattr(hint, "__name__", "answer"))[:64]
    return json_schema(name, strict, strict=_is_closed(strict))


@cached_by_type
def _own_schema(hint: Any) -> dict[str, Any]:
    try:
        return _inline_root(_schema_of(hint))
    except Exception as error:  # errors from msgspec or pydantic, or a NameError in a type hint
        fault = f"{hint!r} has no JSON schema: {str(error).splitlines()[-1]}"
        remedy = "write a @dataclass, a TypedDict or a pydantic model, with fields that JSON can express"
        raise invalid_option("response_format", f"{fault}; {remedy}") from None


def _wrap(schema: dict[str, Any]) -> dict[str, Any]:
    value = {name: child for name, child in schema.items() if name != "$defs"}
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {"value": value}, **shared}


def _schema_of(hint: Any) -> dict[str, Any]:
    if _is_for_pydantic(hint):
        return cached_adapter(hint).json_schema()
    (root,), components = msgspec.json.schema_components([hint], ref_template="#/$defs/{name}")
    return {**root, "$defs": components} if components else root


def _inline_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with an object at its root instead of a reference to one."""
    if "$ref" not in schema:
        return schema
    shared = dict(schema["$defs"])
    name = schema["$ref"].removeprefix("#/$defs/")
    root = shared[name]
    if f'"{schema["$ref"]}"'.encode() not in msgspec.json.encode(shared):
        del shared[name]
    return {**root, "$defs": shared} if shared else root


def _make_strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_make_strict(item) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    strict: dict[str, Any] = {}
    for name, value in cast(dict[str, Any], schema).items():
        if name in _NAMES_TO_SCHEMAS:
            strict[name] = {key: _make_strict(child) for key, child in value.items()}
        elif name not in _LEFT_OUT:
            strict["anyOf" if name == "oneOf" else name] = value if name in _DATA else _make_strict(value)
    if "properties" in strict:
        strict |= {"required": list(strict["properties"]), "additionalProperties": False}
    if "$ref" in strict and len(strict) > 1:
        strict = {"anyOf": [{"$ref": strict.pop("$ref")}], **strict}
    return strict


def _is_closed(schema: Any) -> bool:
    """Whether `schema` has no open part: no mapping with arbitrary keys, no value or list of any type."""
    is_list_of_any = schema.get("type") == "array" and not schema.get("items")
    is_open = schema == {} or is_list_of_any or schema.get("additionalProperties", False) is not False
    return not is_open and all(_is_closed(child) for child in _children(schema))


def _children(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in schema.items():
        if name in _NAMES_TO_SCHEMAS:
            yield from value.values()
        elif name not in _DATA:
            yield from (child for child in (value if isinstance(value, list) else [value]) if isinstance(child, dict))  # pyright: ignore


def _decode_text(text: str) -> Any:
    try:
        return decode_json(unfenced(text))
    except UNREADABLE as error:
        raise _invalid_output("JSON", [((), str(error))]) from None


def _read_object(text: str) -> Any:
    data = _decode_text(text)
    if not isinstance(data, dict):
        raise _invalid_output("a JSON object", [((), f"{data!r:.{_SHOWN}} is not of type 'object'")])
    return cast(Any, data)


def _read_json(schema: Mapping[str, Any], text: str) -> Any:
    data = _decode_text(text)
    faults = schema_faults(schema, data)
    if faults:
        raise _invalid_output("valid under its schema", faults)
    return data


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    value: msgspec.Raw


def _read_answer(decode: Callable[[str], Any], text: str) -> Any:
    """Return the `value` of the object in `text`; `text` may also be the bare value."""
    try:
        wrapped = msgspec.json.decode(unfenced(text), type=_Wrapped)
    except Exception:  # half a surrogate pair does not raise a DecodeError
        return decode(text)
    try:
        return decode(bytes(wrapped.value).decode())
    except ValidationError as error:
        try:
            return decode(text)  # a class may have a single field called `value`
        except ValidationError:
            raise error from error.__cause__


def _decode_type(decode: Callable[[str], Any], hint: Any, text: str) -> Any:
    try:
        return decode(unfenced(text))
    except Exception as error:  # a validator of the class may raise anything
        if fault := _cut_off(text):
            raise _invalid_output("complete JSON", [((), fault)]) from None
        raise _invalid_output(_type_name(hint), faults_of(error)) from error


def _cut_off(text: str) -> str:
    """Return the fault of JSON that breaks off at the end of `text`; "" if it is complete."""
    try:
        msgspec.json.decode(unfenced(text))
    except UNREADABLE as error:
        return str(error) if text.strip() and "truncated" in str(error) else ""
    return ""


def _type_name(hint: Any) -> str:
    if not isinstance(hint, type):
        return repr(hint)
    return f"{'an' if hint.__name__[0] in 'aeioAEIO' else 'a'} {hint.__name__}"


def _invalid_output(expected: str, faults: list[tuple[Path, str]]) -> ValidationError:
    return ValidationError("invalid_output", f"the answer is not {expected}: {described(faults)}", errors=faults)


@cached_by_type
def _decode_of(hint: Any) -> Callable[[str], Any]:
    return cached_adapter(hint).validate_json if _is_for_pydantic(hint) else _msgspec_decoder(hint).decode


def _msgspec_decoder(hint: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(hint, dec_hook=_decode_other)


def _decode_other(cls: Any, value: Any) -> Any:
    """Return `value` as a pydantic model. For other classes return `value` itself, which msgspec then refuses."""
    validate = getattr(cls, "model_validate_json", None)
    return value if validate is None else validate(msgspec.json.encode(value))


@cached_by_type
def _is_for_pydantic(hint: Any) -> bool:
    """Whether pydantic reads `hint`: it has a part from pydantic, or a union of objects that msgspec cannot read.

    msgspec reads all types that contain a Struct.
    """
    parts = list(parts_of(hint))
    if any(isinstance(part, type) and issubclass(part, msgspec.Struct) for part in parts):
        return False
    if not brings_pydantic(hint) and not _is_union_of_objects(hint, parts):
        return False
    try:
        cached_adapter(hint)
    except Exception:  # pydantic is not installed, or does not support a part
        return False
    return True


def _is_union_of_objects(hint: Any, parts: list[Any]) -> bool:
    if not any(get_origin(part) in (Union, UnionType) for part in parts):
        return False
    try:
        _msgspec_decoder(hint)
    except Exception:  # an error of msgspec, or a NameError in a hint
        return True
    return False

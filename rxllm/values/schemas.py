"""Functions that make JSON schemas from types, and parse answers into these types.

===========================================  ==========================  ===========================================
`response_format`                            JSON schema                 reading the answer
===========================================  ==========================  ===========================================
a dataclass, ``TypedDict``, msgspec Struct   made by msgspec, then       msgspec reads and validates it
                                             made strict
a type that uses pydantic, or a union that   made by pydantic, then      pydantic reads and validates it; pydantic
msgspec cannot read                          made strict                 is imported only in this case
any other type: ``list[City]``, ``bool``,    an object with the single   the answer is the object's `value`; a bare
``Literal["a", "b"]``, an enum, a union      field `value`               value is accepted too
``json_schema(...)``, OpenAI's own format    the given schema            jsonschema-rs checks the JSON; if it is not
                                                                         installed, a warning is logged once
``{"type": "json_object"}``                  none                        the answer must be a JSON object
``"text"``                                   none                        the answer is not parsed
===========================================  ==========================  ===========================================

Providers require an object at the root. Any other type becomes the field `value` of an object; see
https://platform.openai.com/docs/guides/structured-outputs#root-objects-must-not-be-anyof-and-must-be-an-object.

A strict schema requires all properties and allows no others. It has no ``default``, ``title``, ``oneOf`` or
``discriminator``. An object that has a ``$ref`` has no other keys. Adapters leave out what their provider's strict mode
does not accept, such as most formats.
"""

from __future__ import annotations

import json
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
from rxllm.values.whole_numbers import has_whole_float, with_ints

ResponseFormat = str | Mapping[str, Any] | type[Any] | UnionType
"""A call's ``response_format``; see the table above."""

_NAMES_TO_SCHEMAS = ("properties", "$defs", "patternProperties")
_DATA = ("enum", "const", "examples", "required", "type")
_LEFT_OUT = ("default", "title", "discriminator")
_BESIDE_THE_SCHEMA = {"strict", "description"}
_SHOWN = 200


def is_type(value: Any) -> bool:
    """Whether `value` is a type, such as ``list[int]`` or a union.

    >>> [is_type(value) for value in (int, list[int], int | None, len, "int")]
    [True, True, True, False, False]
    """
    return isinstance(value, type) or get_origin(value) is not None or type(value).__module__ == "typing"


def as_response_format(value: Any) -> Any:
    """Convert a type or OpenAI's own format to ``json_schema(...)``.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class City:
    ...     name: str
    >>> as_response_format(City)["schema"]["properties"]
    {'name': {'type': 'string'}}

    Any other value is returned unchanged. Raises ``ValidationError("invalid_option")`` for a type that has no JSON
    schema.
    """
    return _format_of(value) if is_type(value) else _flatten(value)


def _flatten(value: Any) -> Any:
    """Convert OpenAI's own format to ``json_schema(...)``.

    In OpenAI's format, `strict` is False by default; see
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
    """Return the function that parses an answer, or None if the answer is plain text.

    The function raises ``ValidationError("invalid_output")`` if the answer does not match `response_format`. If
    `response_format` is itself a function, that function is returned.
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
    """Return a function that reads JSON text as the type `hint`.

    The function raises ``ValidationError("invalid_output")`` if the text does not match `hint`. `decoder` itself
    raises msgspec's error if JSON cannot express the type.
    """
    return partial(_decode_type, _decode_of(hint), hint)


def unfenced(text: str) -> str:
    """Return `text` without the Markdown code fence around it, if there is one.

    >>> unfenced("```json\\n[1]\\n```")
    '[1]'
    """
    inner = text.strip()
    if len(inner) < 6 or not (inner.startswith("```") and inner.endswith("```")):
        return inner
    return re.sub(r"\Ajson\b", "", inner[3:-3], flags=re.IGNORECASE).strip()


def is_wrapped(hint: Any) -> bool:
    """Whether an answer of this type must be wrapped in an object with the single field ``value``."""
    try:
        schema = _own_schema(hint)
    except ValidationError:  # the type can be read, but has no schema
        return False
    return bool(schema) and schema.get("type") != "object"


@cached_by_type
def _format_of(hint: Any) -> dict[str, Any]:
    schema = _own_schema(hint)
    if not schema:
        fault = f"{hint!r} does not describe the answer; to allow any JSON object, write {{'type': 'json_object'}}"
        raise invalid_option("response_format", fault)
    strict = _make_strict(_wrap(schema) if is_wrapped(hint) else schema)
    name = "answer" if is_wrapped(hint) else re.sub(r"[^A-Za-z0-9_-]", "_", getattr(hint, "__name__", "answer"))[:64]
    return json_schema(name, strict, strict=_is_closed(strict))


@cached_by_type
def _own_schema(hint: Any) -> dict[str, Any]:
    try:
        return _inline_root(_schema_of(hint))
    except Exception as error:  # an error that msgspec or pydantic raises, or a NameError
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
    """Replace a ``$ref`` at the root of `schema` with the schema that it refers to."""
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
    """Whether the schema fixes the keys of all objects and the types of all list items."""
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
    return with_ints(data, schema)


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    value: msgspec.Raw


def _read_answer(decode: Callable[[str], Any], text: str) -> Any:
    """Decode an answer, which may be wrapped in an object with the single field ``value``."""
    try:
        wrapped = msgspec.json.decode(unfenced(text), type=_Wrapped)
    except Exception:  # a DecodeError or, for a lone surrogate, a UnicodeEncodeError
        return decode(text)
    try:
        return decode(bytes(wrapped.value).decode())
    except ValidationError as error:
        try:
            return decode(text)  # for a class whose only field is called `value`
        except ValidationError:
            raise error from error.__cause__


def _decode_type(decode: Callable[[str], Any], hint: Any, text: str) -> Any:
    try:
        return decode(unfenced(text))
    except Exception as error:  # a validator can raise any error
        if fault := _cut_off(text):
            raise _invalid_output("complete JSON", [((), fault)]) from None
        refused = error
    if (text_with_ints := _with_ints(hint, text)) is not None:
        return _decode_type(decode, hint, text_with_ints)
    raise _invalid_output(_type_name(hint), faults_of(refused)) from refused


def _with_ints(hint: Any, text: str) -> str | None:
    """Return the JSON `text` with ints in place of whole floats, or None if there is nothing to replace."""
    try:
        data, schema = decode_json(unfenced(text)), _own_schema(hint)
    except (*UNREADABLE, ValidationError):  # not JSON, or a type that has no schema
        return None
    changed = json.dumps(with_ints(data, schema))  # unlike msgspec, `json` writes ints of any size
    return changed if has_whole_float(data) and changed != json.dumps(data) else None


def _cut_off(text: str) -> str:
    """Return the JSON parser's error message if `text` is cut off, and "" otherwise."""
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
    """Convert `value` to `cls` if `cls` is a pydantic model. Otherwise, return `value`, which msgspec then rejects."""
    validate = getattr(cls, "model_validate_json", None)
    return value if validate is None else validate(msgspec.json.encode(value))


@cached_by_type
def _is_for_pydantic(hint: Any) -> bool:
    """Whether pydantic must decode answers of this type, because msgspec cannot."""
    parts = list(parts_of(hint))
    if any(isinstance(part, type) and issubclass(part, msgspec.Struct) for part in parts):
        return False
    if not brings_pydantic(hint) and not _is_union_of_objects(hint, parts):
        return False
    try:
        cached_adapter(hint)
    except Exception:  # pydantic is not installed, or does not support the type
        return False
    return True


def _is_union_of_objects(hint: Any, parts: list[Any]) -> bool:
    if not any(get_origin(part) in (Union, UnionType) for part in parts):
        return False
    try:
        _msgspec_decoder(hint)
    except Exception:  # an error that msgspec raises, or a NameError
        return True
    return False

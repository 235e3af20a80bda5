"""Structured answers: from a class to the JSON schema for the model, and from the model's text to a value.

===========================================  =========================  ============================================
`response_format`                            its JSON schema            how the answer is read and validated
===========================================  =========================  ============================================
a dataclass, ``TypedDict``, msgspec Struct   msgspec's, made strict     by msgspec
a pydantic model or dataclass                pydantic's, made strict    by pydantic, which only the user imports
``json_schema(...)``                         unchanged                  as JSON; by jsonschema: if that is not
                                                                        installed, the log says so once
``{"type": "json_object"}``                  none                       as JSON, which must be an object
``"text"``                                   none                       not read
===========================================  =========================  ============================================

Strict means what providers require that enforce a schema: objects are closed, every property is required, there is
no ``default``, ``title``, ``oneOf`` or ``discriminator``, and nothing beside a ``$ref``.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any, cast, get_origin, is_typeddict

import msgspec

from rxllm.values._faults import described, faults_of
from rxllm.values._json import UNREADABLE
from rxllm.values._pydantic import class_adapter, is_pydantic
from rxllm.values._request import json_schema
from rxllm.values.argument_checks import invalid_option
from rxllm.values.errors import Path, ValidationError

ResponseFormat = str | Mapping[str, Any] | type[Any]
"""A call's ``response_format``, see above."""

log = logging.getLogger("rxllm")

_NAMES_TO_SCHEMAS = ("properties", "$defs", "patternProperties")
_DATA = ("enum", "const", "examples", "required", "type")
_LEFT_OUT = ("default", "title", "discriminator")
_SHOWN = 200


def is_format_class(value: Any) -> bool:
    """Whether `value` is a class with fields for the answer, or an alias of a generic one."""
    cls = get_origin(value) or value
    if not isinstance(cls, type):
        return False
    known = dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_typeddict(cast(Any, cls))
    return known or is_pydantic(cast(type[Any], cls))


def as_response_format(value: Any) -> Any:
    """Return `value` as a `Request` takes it: a class as its ``json_schema(...)``, anything else unchanged.

    >>> @dataclasses.dataclass
    ... class City:
    ...     name: str
    >>> as_response_format(City)["schema"]["properties"]
    {'name': {'type': 'string'}}

    Raises ``ValidationError("invalid_option")`` for a class that has no JSON schema.
    """
    return _format_of(value) if is_format_class(value) else value


def reader(response_format: Any) -> Callable[[str], Any] | None:
    """Return the function that reads an answer in this format; None if the answer is plain text.

    It raises ``ValidationError("invalid_output")``. A function is its own reader.
    """
    match response_format:
        case {"type": "json_schema", "schema": Mapping()}:
            return partial(_read_json, response_format["schema"])
        case {"type": "json_object"}:
            return _read_object
        case None | str() | Mapping():
            return None
        case _:
            return partial(_read_class, response_format) if is_format_class(response_format) else response_format


def schema_faults(schema: Mapping[str, Any], data: Any) -> list[tuple[Path, str]]:
    """Return where `data` does not fit the JSON `schema`, according to jsonschema.

    If jsonschema is not installed, there are no faults, and the log says so once. Raises jsonschema's own errors for an
    invalid `schema`. Nothing is fetched.
    """
    try:
        jsonschema, referencing = import_module("jsonschema"), import_module("referencing")
    except ImportError:
        _warn_unchecked()
        return []
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator.check_schema(schema)
    errors = validator(schema, registry=referencing.Registry()).iter_errors(data)
    return [(tuple(error.absolute_path), error.message[:_SHOWN]) for error in errors]


@cache
def _warn_unchecked() -> None:
    unchecked = "answers in the format json_schema(...), and arguments of tools with a schema"
    log.warning(
        "jsonschema is not installed, so these are not checked: %s. Try: pip install 'rxllm[schema]'", unchecked
    )


def unfenced(text: str) -> str:
    """Return `text` without the Markdown code fence that small models put around their JSON.

    >>> unfenced("```json\\n[1]\\n```")
    '[1]'
    """
    inner = text.strip()
    if len(inner) < 6 or not (inner.startswith("```") and inner.endswith("```")):
        return inner
    return re.sub(r"\Ajson\b", "", inner[3:-3], flags=re.IGNORECASE).strip()


@lru_cache(maxsize=256)
def _format_of(cls: type[Any]) -> dict[str, Any]:
    try:
        schema = _strict(_rooted(_schema_of(cls)))
    except Exception as error:  # msgspec's and pydantic's own, and the NameError of a hint that cannot be resolved
        raise invalid_option("response_format", f"{cls!r} has no JSON schema: {error}") from error
    name = re.sub(r"[^A-Za-z0-9_-]", "_", cls.__name__)[:64]
    return json_schema(name, schema, strict=_is_closed(schema))


def _schema_of(cls: type[Any]) -> dict[str, Any]:
    if is_pydantic(cls):
        return class_adapter(cls).json_schema()
    (root,), components = msgspec.json.schema_components([cls], ref_template="#/$defs/{name}")
    return {**root, "$defs": components}


def _rooted(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with an object at its root instead of a reference to one."""
    if "$ref" not in schema:
        return schema
    shared = dict(schema["$defs"])
    name = schema["$ref"].removeprefix("#/$defs/")
    root = shared[name]
    if f'"{schema["$ref"]}"'.encode() not in msgspec.json.encode(shared):
        del shared[name]
    return {**root, "$defs": shared} if shared else root


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(item) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    strict: dict[str, Any] = {}
    for name, value in cast(dict[str, Any], schema).items():
        if name in _NAMES_TO_SCHEMAS:
            strict[name] = {key: _strict(child) for key, child in value.items()}
        elif name not in _LEFT_OUT:
            strict["anyOf" if name == "oneOf" else name] = value if name in _DATA else _strict(value)
    if "properties" in strict:
        strict |= {"required": list(strict["properties"]), "additionalProperties": False}
    if "$ref" in strict and len(strict) > 1:
        strict = {"anyOf": [{"$ref": strict.pop("$ref")}], **strict}
    return strict


def _is_closed(schema: Any) -> bool:
    """Whether nothing in `schema` is open: no mapping with arbitrary keys, no value of any type."""
    is_open = schema == {} or schema.get("additionalProperties", False) is not False
    return not is_open and all(_is_closed(child) for child in _children(schema))


def _children(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in schema.items():
        if name in _NAMES_TO_SCHEMAS:
            yield from value.values()
        elif name not in _DATA:
            yield from (child for child in (value if isinstance(value, list) else [value]) if isinstance(child, dict))  # pyright: ignore


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(unfenced(text))
    except UNREADABLE as error:
        raise _invalid_output("JSON", [((), str(error))]) from error


def _read_object(text: str) -> Any:
    data = _decoded(text)
    if not isinstance(data, dict):
        raise _invalid_output("a JSON object", [((), f"{data!r:.{_SHOWN}} is not of type 'object'")])
    return cast(Any, data)


def _read_json(schema: Mapping[str, Any], text: str) -> Any:
    data = _decoded(text)
    faults = schema_faults(schema, data)
    if faults:
        raise _invalid_output("valid under its schema", faults)
    return data


def _read_class(cls: type[Any], text: str) -> Any:
    inner = unfenced(text)
    try:
        return class_adapter(cls).validate_json(inner) if is_pydantic(cls) else msgspec.json.decode(inner, type=cls)
    except Exception as error:  # a validator of the class may raise anything
        raise _invalid_output(f"a {cls.__name__}", faults_of(error)) from error


def _invalid_output(expected: str, faults: list[tuple[Path, str]]) -> ValidationError:
    return ValidationError("invalid_output", f"the answer is not {expected}: {described(faults)}", errors=faults)

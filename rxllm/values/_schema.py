"""Structured answers: from a class to the JSON schema that a model is asked for, and from its text to a value.

===========================================  =========================  ============================================
a `response_format`                          its JSON schema            how the answer is read and validated
===========================================  =========================  ============================================
a dataclass, ``TypedDict``, msgspec Struct   msgspec's, made strict     by msgspec
a pydantic model or dataclass                pydantic's, made strict    by pydantic, which only the user imports
``json_schema(...)``                         as given                   as JSON; by jsonschema: where that is not
                                                                        installed, the log says so once
``{"type": "json_object"}``                  none                       as JSON, which must be an object
``"text"``                                   none                       not at all
===========================================  =========================  ============================================

Strict is what providers that bind the answer to a schema ask for: objects are closed, every property is required,
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

from rxllm.values._json import UNREADABLE
from rxllm.values._request import json_schema
from rxllm.values.arguments import invalid_option
from rxllm.values.errors import Path, ValidationError

ResponseFormat = str | Mapping[str, Any] | type[Any]
"""What a call's ``response_format`` may be, see above."""

log = logging.getLogger("rxllm")

_NAMES_TO_SCHEMAS = ("properties", "$defs", "patternProperties")
_DATA = ("enum", "const", "examples", "required", "type")
_LEFT_OUT = ("default", "title", "discriminator")
_SHOWN = 200


def is_format_class(held: Any) -> bool:
    """Whether `held` is a class, or a generic one's alias, that has fields to answer with."""
    cls = get_origin(held) or held
    if not isinstance(cls, type):
        return False
    known = dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_typeddict(cast(Any, cls))
    return known or _is_pydantic(cast(type[Any], cls))


def as_response_format(wanted: Any) -> Any:
    """`wanted` as a `Request` holds it: a class as its ``json_schema(...)``, anything else as it is.

    >>> @dataclasses.dataclass
    ... class City:
    ...     name: str
    >>> as_response_format(City)["schema"]["properties"]
    {'name': {'type': 'string'}}

    Raises ``ValidationError("invalid_option")`` for a class that has no JSON schema.
    """
    return _format_of(wanted) if is_format_class(wanted) else wanted


def reader(wanted: Any) -> Callable[[str], Any] | None:
    """The function that reads an answer in the format `wanted`; None where it is just text.

    It raises ``ValidationError("invalid_output")``. A function is its own reader.
    """
    match wanted:
        case {"type": "json_schema", "schema": Mapping()}:
            return partial(_read_json, wanted["schema"])
        case {"type": "json_object"}:
            return _read_object
        case None | str() | Mapping():
            return None
        case _:
            return partial(_read_class, wanted) if is_format_class(wanted) else wanted


def schema_faults(schema: Mapping[str, Any], data: Any) -> list[tuple[Path, str]]:
    """Where `data` breaks the JSON `schema`, as jsonschema says; nothing, and a line in the log, where that is missing.

    Raises jsonschema's own errors for a `schema` that is none. Nothing is fetched.
    """
    try:
        jsonschema, referencing = import_module("jsonschema"), import_module("referencing")
    except ImportError:
        _tell_unchecked()
        return []
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator.check_schema(schema)
    found = validator(schema, registry=referencing.Registry()).iter_errors(data)
    return [(tuple(each.absolute_path), each.message[:_SHOWN]) for each in found]


@cache
def _tell_unchecked() -> None:
    what = "answers in the format json_schema(...), and arguments of tools that were given a schema"
    log.warning("jsonschema is not installed, so these are not checked: %s. Try: pip install 'rxllm[schema]'", what)


def described(faults: list[tuple[Path, str]]) -> str:
    """The `faults` in one line."""
    return "; ".join(f"{'.'.join(map(str, path))}: {what}" if path else what for path, what in faults)


def unfenced(text: str) -> str:
    """`text` without the Markdown code fence that small models put round their JSON.

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
    except Exception as error:  # msgspec's and pydantic's own, and the NameError of a hint that cannot be read
        why = f"{cls!r} has no JSON schema: {error}"
        raise invalid_option("response_format", why) from error
    name = re.sub(r"[^A-Za-z0-9_-]", "_", cls.__name__)[:64]
    return json_schema(name, schema, strict=_is_closed(schema))


def _schema_of(cls: type[Any]) -> dict[str, Any]:
    if _is_pydantic(cls):
        return _adapter(cls).json_schema()
    (root,), components = msgspec.json.schema_components([cls], ref_template="#/$defs/{name}")
    return {**root, "$defs": components}


def _rooted(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with an object at its root, not a reference to one."""
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
        return [_strict(each) for each in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for name, held in cast(dict[str, Any], schema).items():
        if name in _NAMES_TO_SCHEMAS:
            made[name] = {each: _strict(of) for each, of in held.items()}
        elif name not in _LEFT_OUT:
            made["anyOf" if name == "oneOf" else name] = held if name in _DATA else _strict(held)
    if "properties" in made:
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    if "$ref" in made and len(made) > 1:
        made = {"anyOf": [{"$ref": made.pop("$ref")}], **made}
    return made


def _is_closed(schema: Any) -> bool:
    """Whether nothing in `schema` is open: no mapping of any keys, no value of any type."""
    is_open = schema == {} or schema.get("additionalProperties", False) is not False
    return not is_open and all(_is_closed(each) for each in _children(schema))


def _children(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name, held in schema.items():
        if name in _NAMES_TO_SCHEMAS:
            yield from held.values()
        elif name not in _DATA:
            yield from (each for each in (held if isinstance(held, list) else [held]) if isinstance(each, dict))  # pyright: ignore


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(unfenced(text))
    except UNREADABLE as error:
        raise _no_answer("JSON", [((), str(error))]) from error


def _read_object(text: str) -> Any:
    data = _decoded(text)
    if not isinstance(data, dict):
        raise _no_answer("a JSON object", [((), f"{data!r:.{_SHOWN}} is not of type 'object'")])
    return cast(Any, data)


def _read_json(schema: Mapping[str, Any], text: str) -> Any:
    data = _decoded(text)
    faults = schema_faults(schema, data)
    if faults:
        raise _no_answer("what the schema asks for", faults)
    return data


def _read_class(cls: type[Any], text: str) -> Any:
    inner = unfenced(text)
    try:
        return _adapter(cls).validate_json(inner) if _is_pydantic(cls) else msgspec.json.decode(inner, type=cls)
    except Exception as error:  # a validator of the class may raise anything
        raise _no_answer(f"a {cls.__name__}", _faults_of(error)) from error


def _faults_of(error: Any) -> list[tuple[Path, str]]:
    if hasattr(error, "errors"):
        return [(tuple(each["loc"]), each["msg"]) for each in error.errors(include_url=False, include_context=False)]
    what, _, where = str(error).partition(" - at `$")
    steps = re.findall(r"[^.\[\]`]+", where)
    return [(tuple(int(step) if step.isdigit() else step for step in steps), what)]


def _no_answer(wanted: str, faults: list[tuple[Path, str]]) -> ValidationError:
    return ValidationError("invalid_output", f"the answer is not {wanted}: {described(faults)}", errors=faults)


def _is_pydantic(cls: type[Any]) -> bool:
    return hasattr(get_origin(cls) or cls, "__pydantic_validator__")


@lru_cache(maxsize=256)
def _adapter(cls: type[Any]) -> Any:
    return import_module("pydantic").TypeAdapter(cls)

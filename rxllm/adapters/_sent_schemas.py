"""Change JSON schemas to what providers accept.

A provider's strict mode accepts a part of JSON Schema, and refuses a request with anything else. Words that only narrow
what is allowed, such as ``"format": "uri"``, are left out of the schema that is sent. The answer is checked against the
whole schema anyway.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

_log = logging.getLogger("rxllm")

_COMBINED = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_WITHOUT_ARGUMENTS = frozenset({"type", "properties", "required", "additionalProperties"})
_NOTES = frozenset({"title", "description", "$schema", "$id", "$comment", "$defs", "definitions"})


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's schema as an object that has ``properties``, without which OpenAI refuses it.

    >>> object_schema({})
    {'type': 'object', 'properties': {}}

    A schema that combines or refers to others stays as it is, because some servers would read only the properties.
    """
    given = {name: value for name, value in schema.items() if value is not None}
    return given if given.keys() & _COMBINED else {"type": "object", "properties": {}, **given}


def takes_arguments(schema: Mapping[str, Any]) -> bool:
    """Whether a tool with this schema can be called with arguments.

    >>> [takes_arguments(schema) for schema in ({"type": "object"}, {"anyOf": []}, {"additionalProperties": {}})]
    [False, True, True]
    """
    is_open = schema.get("additionalProperties", False) is not False
    has_fields = bool(schema.get("properties") or schema.get("required"))
    return has_fields or is_open or bool(schema.keys() - _WITHOUT_ARGUMENTS - _NOTES)


class Subset(NamedTuple):
    """The part of JSON Schema that a provider accepts."""

    words: frozenset[str]
    values: Mapping[str, Iterable[Any]]
    """The accepted values, for words of which not every value is accepted."""
    closed: bool = True
    """Whether every object must forbid additional properties."""


_COMMON = frozenset(
    (
        *("type", "title", "description", "enum", "items", "anyOf", "$ref", "$defs", "definitions"),
        *("properties", "required", "additionalProperties"),
    )
)
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_BOUNDS = ("minimum", "maximum", "minItems", "maxItems")

OPENAI = Subset(
    _COMMON | {"const", "format", "pattern", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", *_BOUNDS},
    {"format": _FORMATS},
)
"""https://developers.openai.com/api/docs/guides/structured-outputs#supported-schemas"""

ANTHROPIC = Subset(_COMMON | {"const", "format", "minItems"}, {"format": (*_FORMATS, "uri"), "minItems": (0, 1)})
"""https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations, without the simple
patterns, which Anthropic's own SDKs leave out too."""

GEMINI = Subset(
    _COMMON | {"$id", "$anchor", "format", "prefixItems", "propertyOrdering", *_BOUNDS},
    {"format": ("date-time", "date", "time")},
    closed=False,
)
"""https://ai.google.dev/api/generate-content#GenerationConfig (``responseJsonSchema``), and for the formats
https://ai.google.dev/gemini-api/docs/structured-output#json_schema_support."""

_NAMES_TO_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties")
_DATA = ("enum", "const", "required", "type", "propertyOrdering")
_KEPT = ("allOf", "patternProperties")
"""Words that stay even where they are not accepted, because a schema without them would describe something else."""

_LOOKS_AROUND = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<?[=!]|\(\?P=|\\[1-9k])")


def narrowed(schema: Any, subset: Subset) -> Any:
    """Return what `subset` accepts of `schema`.

    >>> narrowed({"type": "string", "format": "uri", "minLength": 1}, OPENAI)
    {'type': 'string'}

    ``oneOf`` becomes ``anyOf``. Where they are not accepted, ``const`` becomes ``enum``, and ``prefixItems`` becomes
    ``items`` that allow each of the types.
    """
    if isinstance(schema, list):
        return [narrowed(item, subset) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    narrow: dict[str, Any] = {}
    for name, value in _replaced(cast(dict[str, Any], schema), subset).items():
        if name not in subset.words and name not in _KEPT:
            continue
        if value not in subset.values.get(name, (value,)) or (name == "pattern" and _LOOKS_AROUND.search(value)):
            continue
        if name in _NAMES_TO_SCHEMAS:
            narrow[name] = {key: narrowed(child, subset) for key, child in value.items()}
        else:
            narrow[name] = value if name in _DATA else narrowed(value, subset)
    is_open = subset.closed and narrow.get("type") == "object" and "additionalProperties" not in narrow
    return {"additionalProperties": False, **narrow} if is_open else narrow


def _replaced(schema: dict[str, Any], subset: Subset) -> dict[str, Any]:
    """Return `schema` with other words for those that `subset` does not accept."""
    if "oneOf" in schema and "anyOf" not in schema:
        schema = {**schema, "anyOf": schema["oneOf"]}
    if "const" in schema and "const" not in subset.words:
        schema = {**schema, "enum": [schema["const"]]}
    if "prefixItems" in schema and "prefixItems" not in subset.words:
        kinds = [kind for place, kind in enumerate(schema["prefixItems"]) if kind not in schema["prefixItems"][:place]]
        schema = {**schema, "items": {"anyOf": kinds}}
    return schema


def for_openai(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the fields ``schema`` and ``strict``. `strict` is False for a schema that strict mode cannot express."""
    if strict:
        narrow = narrowed(schema, OPENAI)
        if narrow.get("type") == "object" and _is_strict(narrow):
            return {"schema": narrow, "strict": True}
        _log.debug("a schema is sent with strict=False, because OpenAI's strict mode does not accept it")
    return {"schema": schema, "strict": False}


def _is_strict(schema: Any) -> bool:
    """Whether the schema fixes all types, and the keys of all objects, as OpenAI requires."""
    if not isinstance(schema, dict):
        return False
    node = cast(dict[str, Any], schema)
    properties = node.get("properties", {})
    if not node.keys() & {"type", "anyOf", "$ref", "enum", "const"} or not node.keys() <= OPENAI.words:
        return False
    if node.get("type") == "object":
        is_closed = node["additionalProperties"] is False and "properties" in node
        if not is_closed or properties.keys() != {*node.get("required", ())}:
            return False
    if node.get("type") == "array" and "items" not in node:
        return False
    shared = (*node.get("$defs", {}).values(), *node.get("definitions", {}).values())
    items = (node["items"],) if "items" in node else ()
    return all(map(_is_strict, (*properties.values(), *shared, *node.get("anyOf", ()), *items)))

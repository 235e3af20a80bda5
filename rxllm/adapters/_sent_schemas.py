"""Change JSON schemas to what providers accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    return bool(schema.get("properties")) or is_open or bool(schema.keys() - _WITHOUT_ARGUMENTS - _NOTES)

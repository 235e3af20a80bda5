"""What is checked of a server's JSON schemas.

Patterns and references of a hostile schema could keep the event loop for ever; an honest server checks them itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from rxllm.mcp._protocol import Json, object_of

MOST = 1_000
"""How many required fields are looked for."""

_CHECKED = ("const", "enum", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "type")


def flat_schema(schema: Json, names: Iterable[str]) -> Json:
    """Return the part of an object's `schema` that takes a moment to check: the fields with these `names`, flat."""
    properties, required = object_of(schema.get("properties")), schema.get("required", [])
    return {
        "type": "object",
        "properties": {name: _field(object_of(properties[name])) for name in names if name in properties},
        "required": required[:MOST] if isinstance(required, list) else required,
    }


def _field(schema: Json) -> Json:
    own = {name: schema[name] for name in _CHECKED if name in schema}
    options = schema.get("oneOf", schema.get("anyOf"))
    if isinstance(options, list):
        own["anyOf"] = [_field(object_of(option)) for option in cast(list[Any], options)]
    if "items" in schema:
        own["items"] = _field(object_of(schema["items"]))
    return own

"""What the request builders of all wires share: the response format, faulty fields, image URLs, merged options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rxllm.values import Image, Request, ValidationError
from rxllm.values.argument_checks import must_be

_SCHEMA_FIELDS = ("type", "name", "description", "strict", "schema")


def response_format(request: Request) -> dict[str, Any] | None:
    """Return the format of the answer that `request` asks for.

    ===========================================  ===================================================================
    ``request.response_format``                  result
    ===========================================  ===================================================================
    None, ``"text"``, ``{"type": "text"}``       None
    ``{"type": "json_object"}``                  ``{"type": "json_object"}``
    ``{"type": "json_schema", "schema": ...}``   ``{"type": "json_schema", "name": ..., "schema": ...}``; `name` is
                                                 ``"answer"`` where it is missing; `strict` and `description` are
                                                 copied where they are set
    ===========================================  ===================================================================

    Raise ``ValidationError("invalid_request")`` for anything else. A format that only one provider has goes into
    ``Request.options``.

    >>> response_format(Request(response_format={"type": "json_schema", "schema": {}, "strict": True}))
    {'name': 'answer', 'type': 'json_schema', 'strict': True, 'schema': {}}
    """
    match request.response_format:
        case None | "text" | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema", "schema": Mapping()} as wanted:
            return {"name": "answer", **{name: wanted[name] for name in _SCHEMA_FIELDS if name in wanted}}
        case other:
            raise invalid_field("response_format", other, "'text', {'type': 'json_object'} or json_schema(...)")


def invalid_field(name: str, value: object, expected: str) -> ValidationError:
    """Return the error for a request whose field `name` is not what is `expected`.

    >>> invalid_field("reasoning_effort", "ultra", "none, low or high").errors
    ((('reasoning_effort',), "must be none, low or high, not 'ultra'"),)
    """
    return ValidationError("invalid_request", errors=[((name,), must_be(expected, value))])


def image_url(image: Image) -> str:
    """Return the URL of `image`: its own, or a data URI."""
    return str(image.data) if image.source == "url" else image.to_data_uri()


def merge(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` laid over `body`, objects field by field; an option of None removes the field.

    >>> merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": None, "e": 4}})
    {'a': {'b': 1, 'e': 4}, 'd': 3}
    """
    merged = dict(body)
    for name, value in options.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = merge(cast(Mapping[str, Any], below), cast(Mapping[str, Any], value))
        merged[name] = value
        if value is None:
            del merged[name]
    return merged

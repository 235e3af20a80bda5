"""Arguments that are sent as headers too, so that what is between can route by them: ``x-mcp-header`` in a schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from rxllm.mcp._http import header_text
from rxllm.mcp._protocol import object_of

KEY = "x-mcp-header"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES = ("string", "integer", "boolean")
_DATA = ("default", "examples", "const", "enum")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")

Path = tuple[str, ...]


def parameter_headers(schema: Mapping[str, Any]) -> dict[Path, str]:
    """Return the names of the headers of the parameters in `schema`, by the path of properties that leads to each.

    Raises ``ValueError`` for one that the specification forbids; the tool must not be used then.
    """
    headers: dict[Path, str] = {}
    for path, place in _places(schema, ()):
        token = place[KEY]
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token) or place.get("type") not in _TYPES:
            raise ValueError(f"{KEY} must be the name of a header, on a string, an integer or a boolean property")
        if (name := f"mcp-param-{token.lower()}") in headers.values():
            raise ValueError(f"{KEY} {token[:80]!r} is there twice")
        headers[path] = name
    return headers


def _places(place: Any, path: Path | None) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """Yield each schema with the `KEY`, and its path of properties, which is None behind other keywords."""
    if isinstance(place, list):
        for item in cast(list[Any], place):
            yield from _places(item, None)
    if KEY in (place := object_of(place)):
        yield path, place
    for keyword, inner in place.items():
        if keyword in _BY_NAME:
            for name, item in object_of(inner).items():
                yield from _places(item, (*path, name) if keyword == "properties" and path is not None else None)
        elif keyword not in _DATA:
            yield from _places(inner, None)


def mirrored(headers: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a call with these `arguments`; an argument that is absent or null has none."""
    found = {name: _at(arguments, path) for path, name in headers.items()}
    return {name: header_text(text) for name, text in found.items() if text is not None}


def _at(argument: Any, path: Path) -> str | None:
    for name in path:
        argument = object_of(argument).get(name)
    if isinstance(argument, bool):
        return str(argument).lower()
    return str(argument) if isinstance(argument, str | int | float) else None

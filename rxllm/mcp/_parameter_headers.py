"""Arguments that are sent as headers too, so that what is between can route by them: ``x-mcp-header`` in a schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from rxllm.mcp._http import header_text

KEY = "x-mcp-header"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES = ("string", "integer", "boolean")
_DATA = ("default", "examples", "const", "enum")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")

Path = tuple[str, ...]


def parameter_headers(schema: Mapping[str, Any]) -> dict[Path, str]:
    """Return the headers of the parameters in `schema`, by the path of properties that leads to each.

    Raises ``ValueError`` for one that the specification forbids; the tool must not be used then.
    """
    headers: dict[Path, str] = {}
    for path, place in _places(schema):
        if KEY not in place:
            continue
        token = place[KEY]
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token) or place.get("type") not in _TYPES:
            raise ValueError(f"{KEY} must be the name of a header, on a string, an integer or a boolean property")
        if token.lower() in (other.lower() for other in headers.values()):
            raise ValueError(f"{KEY} {token[:80]!r} is there twice")
        headers[path] = token
    return headers


def _places(schema: Mapping[str, Any]) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """Yield each schema in `schema`, with its path of properties, or None where another keyword is on the way."""
    stack: list[tuple[Path | None, Any]] = [((), schema)]
    while stack:
        path, place = stack.pop()
        if isinstance(place, list):
            stack += ((None, item) for item in cast(list[Any], place))
        if not isinstance(place, dict):
            continue
        place = cast(Mapping[str, Any], place)
        yield path, place
        for keyword, inner in place.items():
            if keyword in _BY_NAME and isinstance(inner, dict):
                is_chain = keyword == "properties" and path is not None
                named = cast(Mapping[str, Any], inner).items()
                stack += (((*path, name) if is_chain and path is not None else None, item) for name, item in named)
            elif keyword not in _DATA:
                stack.append((None, inner))


def mirrored(headers: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a call with these `arguments`; an argument that is absent or null has none."""
    found = ((token, _at(arguments, path)) for path, token in headers.items())
    return {f"mcp-param-{token.lower()}": header_text(_text(item)) for token, item in found if item is not None}


def _at(arguments: Any, path: Path) -> str | int | float | None:
    for name in path:
        arguments = cast(Mapping[str, Any], arguments).get(name) if isinstance(arguments, Mapping) else None
    return arguments if isinstance(arguments, str | int | float) else None


def _text(item: str | int | float) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)

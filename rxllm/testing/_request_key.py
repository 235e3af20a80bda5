"""What a cassette knows a request by: its JSON without secrets and volatile fields; and how two of them differ."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, cast

from rxllm.adapters.http_base import HTTPBase
from rxllm.http.secrets import secrets_in, without
from rxllm.serializer import to_json
from rxllm.testing._rule_table import near_the_difference
from rxllm.values import Call, Request, Tool
from rxllm.values.argument_checks import masked
from rxllm.values.json_text import is_encodable

_SHOWN = 5
"""How many differences a message shows."""


def secrets_of(adapter: Any, request: Request, call: Call) -> list[str]:
    """Return the keys and other secrets of a call, as far as they are known before it is sent."""
    if isinstance(adapter, HTTPBase):
        return adapter._secrets(request, call, None)  # pyright: ignore[reportPrivateUsage]
    sources = {"api_key": call.api_key, "headers": call.headers, "options": request.options}
    return list(secrets_in(sources))


def described(request: Request, provider: str, raw: bool, secrets: list[str]) -> dict[str, Any]:
    """Return what the model sees of `request` as JSON data, with a hash for bytes and a mask for `secrets`."""
    tools = tuple(Tool(tool.name, tool.description, tool.schema, metadata=tool.metadata) for tool in request.tools)
    data: dict[str, Any] = json.loads(
        to_json(replace(request, tools=tools, options=masked(request.options), metadata={}))
    )
    data = {"provider": provider, **{name: entry for name, entry in data.items() if name not in ("$", "v")}}
    return without(_hashed(data | ({"raw": True} if raw else {})), secrets)


def _hashed(data: Any) -> Any:
    match data:
        case {"$": "bytes", "base64": str(text)}:
            return {"$": "bytes", "sha256": _sha256(base64.b64decode(text))}
        case {"$": "Image", "source": "base64", "data": str(text)}:
            return {**cast(dict[str, Any], data), "data": f"sha256:{_sha256(text)}"}
        case dict():
            return {name: _hashed(entry) for name, entry in cast(dict[str, Any], data).items()}
        case list():
            return [_hashed(entry) for entry in cast(list[Any], data)]
        case str() if data.startswith("data:") and ";base64," in data:
            kind, _, text = data.partition(";base64,")
            return f"{kind};sha256,{_sha256(text)}"
        case _:
            return data


def _sha256(content: str | bytes) -> str:
    return hashlib.sha256(content.encode(errors="replace") if isinstance(content, str) else content).hexdigest()


def key_of(description: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal descriptions."""
    return json.dumps(description, sort_keys=True)


def head_line(description: Mapping[str, Any]) -> str:
    """Return the line before a recording."""
    text = json.dumps({"request": description}, ensure_ascii=False)
    return f"{text if is_encodable(text) else json.dumps({'request': description})}\n"


def nearest(recorded: list[Mapping[str, Any]], description: Mapping[str, Any]) -> list[str]:
    """Return how `description` differs from the most similar of `recorded`, a line for each difference."""
    text = key_of(description)

    def distance(other: Mapping[str, Any]) -> tuple[int, float]:
        return len(list(_differences("", other, description))), -SequenceMatcher(
            None, key_of(other), text
        ).quick_ratio()

    lines = list(_differences("", min(recorded, key=distance), description))
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    match old, new:
        case dict(), dict():
            before, after = cast(dict[str, Any], old), cast(dict[str, Any], new)
            pairs = [(name, before.get(name, _NOTHING), after.get(name, _NOTHING)) for name in before | after]
        case list(), list():
            both = zip_longest(cast(list[Any], old), cast(list[Any], new), fillvalue=_NOTHING)
            pairs = [(str(index), *pair) for index, pair in enumerate(both)]
        case _:
            if old != new:
                recorded, now = near_the_difference(repr(old), repr(new))
                yield f"{path}: recorded {recorded}, now {now}"
            return
    for name, one, other in pairs:
        yield from _differences(f"{path}.{name}" if path else name, one, other)

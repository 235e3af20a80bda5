"""What Gemini says of where its text comes from, as sources: in its own words, each with a ``"type"`` and, if it has
one, a ``"url"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from rxllm.adapters._gemini_chunks import Candidate


def sources_of(candidate: Candidate) -> Iterable[dict[str, Any]]:
    """The sources of one chunk; the same ones may come again with the next.

    A grounding chunk's type is its kind (``web``, ``maps``, ``retrievedContext``, ``image``); a ``grounding_support``
    says which bytes of the text which of those chunks bear out, by their positions.
    """
    grounding = candidate.grounding_metadata or {}
    for chunk in _dicts(grounding, "groundingChunks"):
        for kind, held in chunk.items():
            if isinstance(held, dict):
                yield _source(kind, cast(dict[str, Any], held), "uri", "sourceUri")
    for support in _dicts(grounding, "groundingSupports"):
        yield {"type": "grounding_support", **support}
    for names in ("citations", "citationSources"):
        for citation in _dicts(candidate.citation_metadata or {}, names):
            yield _source("citation", citation, "uri")
    for page in _dicts(candidate.url_context_metadata or {}, "urlMetadata"):
        yield _source("url_context", page, "retrievedUrl")


def _source(kind: str, held: Mapping[str, Any], *names: str) -> dict[str, Any]:
    url = next((held[name] for name in names if held.get(name)), None)
    rest = {name: value for name, value in held.items() if name not in names}
    return {"type": kind, **({"url": url} if url else {}), **rest}


def _dicts(held: Mapping[str, Any], name: str) -> Iterable[dict[str, Any]]:
    found = held.get(name)
    each = cast(list[Any], found) if isinstance(found, list) else []
    return (cast(dict[str, Any], one) for one in each if isinstance(one, dict))

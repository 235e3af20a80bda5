"""What somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def hint(name: str, known: Iterable[str]) -> str:
    """What to say behind a `name` that is not `known`; nothing where none of those is near.

    >>> hint("opnai", ["openai", "ollama"])
    " (did you mean 'openai'?)"
    """
    from difflib import get_close_matches  # for the unlucky alone

    near = get_close_matches(name.lower(), list(known), n=1, cutoff=0.7)
    return f" (did you mean {near[0]!r}?)" if near else ""

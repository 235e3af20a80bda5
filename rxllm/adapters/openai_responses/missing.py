"""Find the text of a finished item that its deltas did not contain.

The texts themselves are compared, because some servers send wrong indices. The work grows with the length of the texts:
deltas and texts that differ again and again are compared only `_MOST_LOOKS` times.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

MOST_PARTS = 10_000
"""The maximum number of parts of an item."""

_MOST_LOOKS = 100
_COMPARED = 1_000
"""How many characters are compared to find the part that the deltas continue with."""


def missing_texts(streamed: str, texts: Sequence[str]) -> list[str]:
    """Return the part of each final text that the deltas, which are joined in `streamed`, did not contain.

    >>> missing_texts("One and tw", ["One and two", "Three"])
    ['o', 'Three']
    """
    texts = list(texts)
    joined, starts = "".join(texts), [0, *accumulate(map(len, texts))]
    at, looks = 0, _MOST_LOOKS
    looked_at, later = -1, 0  # the last `at` that was looked for, and the last part that begins with what follows `at`
    rests: list[str] = []
    for place, text in enumerate(texts, 1):
        length = len(streamed) - at
        rest = ""
        if streamed.startswith(text, at):
            at += len(text)
        elif length <= len(text) and text.startswith(streamed[at:]):
            rest, at = text[length:], len(streamed)
        elif at != looked_at and not looks:
            pass
        else:
            if at != looked_at:
                looked_at, looks = at, looks - 1
                begun = streamed[at : at + _COMPARED]
                parts = range(len(texts) - 1, place - 1, -1) if length <= len(joined) else ()
                later = next((part for part in parts if joined.startswith(begun, starts[part])), 0)
            if later >= place:
                rest = text
            elif looks:  # the deltas already contained this text, perhaps worded differently
                looks -= 1
                found = streamed.find(text, at)
                at = found + len(text) if 0 <= found < len(streamed) - len(text) else at
        rests.append(rest)
    return rests

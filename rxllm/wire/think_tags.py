"""Split ``<think>...</think>`` at the beginning of an answer from its text.

Servers that do not know a model's format leave the tags in the text.
"""

from __future__ import annotations

from collections.abc import Iterator

OPENING, CLOSING = "<think>", "</think>"
MOST_SPACES = 1000


class ThinkTags:
    """Splits the text of one answer, however it is cut into pieces.

    >>> tags = ThinkTags()
    >>> [*tags.feed("<thi"), *tags.feed("nk>Hm.</th"), *tags.feed("ink>\\n\\nHi"), *tags.feed("!"), *tags.flush()]
    [(True, 'Hm.'), (False, 'Hi'), (False, '!')]

    Each item says whether the piece is thinking. Tags anywhere else are text.
    """

    def __init__(self) -> None:
        self._state: str = "start"  # then "thinking", "between" and "text"
        self._held: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the rest of the answer is text."""
        return self._state == "text"

    def feed(self, text: str) -> Iterator[tuple[bool, str]]:
        text, self._held = self._held + text, ""
        if self._state == "start":
            begun = text.lstrip()
            if begun.startswith(OPENING):
                self._state, text = "thinking", begun[len(OPENING) :]
            elif OPENING.startswith(begun) and len(text) < MOST_SPACES:
                self._held = text
                return
            else:
                self._state = "text"
        if self._state == "thinking":
            thought, closing, text = text.partition(CLOSING)
            if closing:
                self._state = "between"
            else:
                kept = next(n for n in range(len(CLOSING) - 1, -1, -1) if thought.endswith(CLOSING[:n]))
                thought, self._held = thought[: len(thought) - kept], CLOSING[:kept]
            if thought:
                yield True, thought
        if self._state == "between":
            text = text.lstrip()
            self._state = "text" if text else "between"
        if self._state == "text" and text:
            yield False, text

    def flush(self) -> Iterator[tuple[bool, str]]:
        """Return what was held back, because it could have been a part of a tag. The rest of the answer is text."""
        if self._held:
            yield self._state == "thinking", self._held
        self._state, self._held = "text", ""

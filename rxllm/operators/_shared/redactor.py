"""Replace a pattern in text that arrives in pieces.

A place in the text is *open* while a match may begin there that reaches, or looks, beyond the text so far; a partial
match of ``regex`` tells. The text before the first open place is settled: its matches are replaced, the rest passes.

A place that stays open for `max_match` characters is given up, unless it matches already: then the match may grow to
any length. So a longer match counts if its first `max_match` characters contain one, however the text is cut.
"""

from __future__ import annotations

import re
from typing import Any

_LOOKS_AHEAD = re.compile(r"\(\?[=!]")
_AT_THE_END = re.compile(r"\$|\\B")  # a partial match does not reveal what these become


class Redactor:
    """Text in, settled text out; `close` returns the rest and resets.

    `pattern` is compiled by ``regex``. The last `max_match` settled characters are kept, for look-behinds.
    """

    def __init__(self, pattern: Any, replacement: str, max_match: int) -> None:
        self._pattern = pattern
        self._replacement = replacement
        self._max = max_match
        self._looks_ahead = _LOOKS_AHEAD.search(pattern.pattern) is not None
        self._margin = max_match + 1 if _AT_THE_END.search(pattern.pattern) else 0
        self._text = ""
        self._at = 0  # everything before it has been returned

    def feed(self, text: str) -> str:
        self._text += text
        settled = self._settle(final=False)
        begin = max(0, self._at - self._max)
        self._text, self._at = self._text[begin:], self._at - begin
        return settled

    def close(self) -> str:
        settled = self._settle(final=True)
        self._text, self._at = "", 0
        return settled

    def whole(self, text: str) -> str:
        """Return `text`, which is complete, redacted."""
        redactor = Redactor(self._pattern, self._replacement, self._max)
        redactor._text = text
        return redactor.close()

    def _settle(self, *, final: bool) -> str:
        text, at, settled = self._text, self._at, list[str]()
        while True:
            first = self._pattern.search(text, at, partial=not final)
            end = len(text) if final else self._first_open(text, at, first)
            match = self._match(text, at, end) if first is not None else None
            if match is None:
                break
            settled += (text[at : match.start()], self._replacement)
            at = match.end()
        self._at = end
        return "".join((*settled, text[at:end]))

    def _first_open(self, text: str, at: int, first: Any) -> int:
        beyond = max(at, len(text) - self._margin)
        if first is None:
            return beyond
        # `search` prefers a match to a partial one, even if that begins earlier.
        places = range(first.start() if first.partial else at, beyond)
        return next((place for place in places if self._is_open(text, place)), beyond)

    def _is_open(self, text: str, at: int) -> bool:
        if self._pattern.fullmatch(text, at, partial=True) is None:
            return False
        return len(text) - at <= self._max or self._begins(text, at)

    def _begins(self, text: str, at: int) -> bool:
        return self._pattern.match(text, at, at + self._max) is not None

    def _match(self, text: str, at: int, end: int) -> Any:
        while at < end:
            match = self._pattern.search(text, at)
            if match is None or match.start() >= end:
                return None
            if match.end() > match.start() and self._counts(text, match):
                return match
            at = match.start() + 1
        return None

    def _counts(self, text: str, match: Any) -> bool:
        within = match.end() - match.start() <= self._max and not self._looks_ahead
        return within or self._begins(text, match.start())

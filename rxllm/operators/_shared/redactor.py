"""A pattern replaced in text that comes in pieces.

A place in the text is *open* while a match may begin there that reaches, or looks, beyond what has come; ``regex`` can
tell, by a partial match. All before the first open place is settled: matches there are replaced and the rest passes.

A place that has been open for `max_match` characters is given up, unless there is a match already: that one is waited
for, however long it gets. So a longer match counts if its first `max_match` characters held one, in whatever pieces
the text came.
"""

from __future__ import annotations

import re
from typing import Any

_LOOKS_AHEAD = re.compile(r"\(\?[=!]")
_AT_THE_END = re.compile(r"\$|\\B")  # a partial match does not tell what these may still become


class Redactor:
    """Text in, settled text out; `close` gives what is left, and makes it as new.

    `pattern` is one of ``regex``. As much of the text before is kept as `max_match`, for what looks behind.
    """

    def __init__(self, pattern: Any, replacement: str, max_match: int) -> None:
        self._pattern = pattern
        self._replacement = replacement
        self._max = max_match
        self._looks_ahead = _LOOKS_AHEAD.search(pattern.pattern) is not None
        self._held = max_match + 1 if _AT_THE_END.search(pattern.pattern) else 0
        self._text = ""
        self._at = 0  # what is before it has been given out

    def feed(self, text: str) -> str:
        self._text += text
        shown = self._settle(final=False)
        begin = max(0, self._at - self._max)
        self._text, self._at = self._text[begin:], self._at - begin
        return shown

    def close(self) -> str:
        shown = self._settle(final=True)
        self._text, self._at = "", 0
        return shown

    def whole(self, text: str) -> str:
        """`text`, which is all there is."""
        return Redactor(self._pattern, self._replacement, self._max)._all(text)

    def _all(self, text: str) -> str:
        self._text = text
        return self.close()

    def _settle(self, *, final: bool) -> str:
        text, at, shown = self._text, self._at, list[str]()
        while True:
            found = self._pattern.search(text, at, partial=not final)
            end = len(text) if final else self._first_open(text, at, found)
            match = self._match(text, at, end) if found is not None else None
            if match is None:
                break
            shown += (text[at : match.start()], self._replacement)
            at = match.end()
        self._at = end
        return "".join((*shown, text[at:end]))

    def _first_open(self, text: str, at: int, found: Any) -> int:
        beyond = max(at, len(text) - self._held)
        if found is None:
            return beyond
        # Of matches and parts of matches, `search` prefers matches.
        places = range(found.start() if found.partial else at, beyond)
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

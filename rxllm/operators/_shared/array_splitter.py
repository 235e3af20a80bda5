"""Split the elements of an array from JSON text that arrives in pieces.

The splitter tracks strings, escapes and depth, and looks at every character once. It does not check the grammar: a
parser reads each element, and the whole text at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from rxllm.operators._shared.answer_text import FENCE

_MARK = re.compile(r'["{}\[\],]')
_IN_STRING = re.compile(r'["\\]')
_LONGEST_HEAD = 64


class ArraySplitter:
    """Text in, the texts of finished elements out; the array is at the top, or at the end of the keys in `path`.

    ``_on_path`` counts the open containers on the way to the array, ``_level`` all that must be, with the array itself.
    """

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self.found: bool = False
        self._path = path
        self._level = len(path) + 1
        self._depth: int = 0
        self._on_path: int = 0
        self._head: str | None = ""  # the text before the first container
        self._ended = False
        self._in_string = self._escaped = False
        self._key: str | None = None
        self._pending: list[str] | None = None  # pieces of the current element or key

    def feed(self, text: str) -> Iterator[str]:
        if self._head is not None:
            text = self._begin(text)
        at = since = 0
        while at < len(text) and not self._ended:
            if self._in_string:
                at = self._to_end_of_string(text, at)
                if not self._in_string:
                    yield from self._string_ended(text, since, at)
                    since = at if self._depth == self._on_path else since
                continue
            mark = _MARK.search(text, at)
            if mark is None:
                break
            at, before = mark.end(), mark.start()
            match mark[0]:
                case '"':
                    self._in_string = True
                    if self._depth == self._on_path < self._level:
                        self._pending, since = [], before
                case "{" | "[" as opening:
                    if self._opened(opening):
                        self._pending, since = [], at
                case ",":
                    if self._depth == self._on_path == self._level:
                        yield from self._element(text, since, before)
                        self._pending, since = [], at
                case _:
                    yield from self._closed(text, since, at)
                    if self._depth == self._on_path == self._level:
                        since = at
        if self._pending is not None:
            self._pending.append(text[since:])

    def _begin(self, text: str) -> str:
        head = f"{self._head}{text}"
        start = FENCE.match(head)
        end = start.end() if start else 0
        if head[end : end + 1] in ("{", "["):
            self._head = None
            return head[end:]
        head = head.strip()
        self._ended = len(head) > _LONGEST_HEAD  # not JSON, or JSON without an array
        self._head = None if self._ended else head
        return ""

    def _to_end_of_string(self, text: str, at: int) -> int:
        if self._escaped:
            at, self._escaped = at + 1, False
        while mark := _IN_STRING.search(text, at):
            if mark[0] == '"':
                self._in_string = False
                return mark.end()
            at = mark.end() + 1
        self._escaped = at > len(text)
        return len(text)

    def _string_ended(self, text: str, since: int, at: int) -> Iterator[str]:
        if self._depth != self._on_path:
            return
        if self._on_path == self._level:
            yield from self._element(text, since, at)
            self._pending = []
        else:
            self._key = _decoded(self._take(text, since, at))

    def _opened(self, opening: str) -> bool:
        """Enter a container; return whether it is the array."""
        key_matches = self._on_path == 0 or self._key in self._path[self._on_path - 1 : self._on_path]
        wanted = "[" if self._on_path == len(self._path) else "{"
        if self._depth == self._on_path < self._level and key_matches and opening == wanted:
            self._on_path += 1
        self._depth += 1
        begins = self._depth == self._on_path == self._level
        self.found = self.found or begins
        return begins

    def _closed(self, text: str, since: int, at: int) -> Iterator[str]:
        if self._depth == self._on_path:
            if self._on_path == self._level:
                yield from self._element(text, since, at - 1)
            self._on_path -= 1
        self._depth -= 1
        self._ended = self._depth <= 0
        if self._depth == self._on_path == self._level:
            yield from self._element(text, since, at)
            self._pending = []

    def _element(self, text: str, since: int, at: int) -> Iterator[str]:
        if element := self._take(text, since, at).strip():
            yield element

    def _take(self, text: str, since: int, at: int) -> str:
        pending, self._pending = self._pending or [], None
        return "".join((*pending, text[since:at]))


def _decoded(text: str) -> str | None:
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return None

"""The elements of an array in JSON text that comes in pieces.

It follows strings, escapes and depth, and looks at every character once. It checks no grammar: each element is read by
itself, and the whole text at the end, with a parser.
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
    """Text in, the texts of finished elements out: of the array at the top, or at the end of the keys in `path`.

    `on` is how many of the open containers lie on the way there, `level` how many must, the array itself included.
    """

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self.found: bool = False
        self._path = path
        self._level = len(path) + 1
        self._depth: int = 0
        self._on: int = 0
        self._head: str | None = ""  # what came before the first container
        self._ended = False
        self._in_string = self._escaped = False
        self._key: str | None = None
        self._kept: list[str] | None = None  # of the element or key that is being read

    def feed(self, text: str) -> Iterator[str]:
        if self._head is not None:
            text = self._begin(text)
        at = since = 0
        while at < len(text) and not self._ended:
            if self._in_string:
                at = self._to_end_of_string(text, at)
                if not self._in_string:
                    yield from self._string_ended(text, since, at)
                    since = at if self._depth == self._on else since
                continue
            mark = _MARK.search(text, at)
            if mark is None:
                break
            at, before = mark.end(), mark.start()
            match mark[0]:
                case '"':
                    self._in_string = True
                    if self._depth == self._on < self._level:
                        self._kept, since = [], before
                case "{" | "[" as opening:
                    if self._opened(opening):
                        self._kept, since = [], at
                case ",":
                    if self._depth == self._on == self._level:
                        yield from self._element(text, since, before)
                        self._kept, since = [], at
                case _:
                    yield from self._closed(text, since, at)
                    if self._depth == self._on == self._level:
                        since = at
        if self._kept is not None:
            self._kept.append(text[since:])

    def _begin(self, text: str) -> str:
        head = f"{self._head}{text}"
        start = FENCE.match(head)
        end = start.end() if start else 0
        if head[end : end + 1] in ("{", "["):
            self._head = None
            return head[end:]
        head = head.strip()
        self._ended = len(head) > _LONGEST_HEAD  # it is no JSON, or none with an array
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
        if self._depth != self._on:
            return
        if self._on == self._level:
            yield from self._element(text, since, at)
            self._kept = []
        else:
            self._key = _decoded(self._take(text, since, at))

    def _opened(self, opening: str) -> bool:
        """Whether the array begins here."""
        on_the_way = self._on == 0 or self._key in self._path[self._on - 1 : self._on]
        wanted = "[" if self._on == len(self._path) else "{"
        if self._depth == self._on < self._level and on_the_way and opening == wanted:
            self._on += 1
        self._depth += 1
        begins = self._depth == self._on == self._level
        self.found = self.found or begins
        return begins

    def _closed(self, text: str, since: int, at: int) -> Iterator[str]:
        if self._depth == self._on:
            if self._on == self._level:
                yield from self._element(text, since, at - 1)
            self._on -= 1
        self._depth -= 1
        self._ended = self._depth <= 0
        if self._depth == self._on == self._level:
            yield from self._element(text, since, at)
            self._kept = []

    def _element(self, text: str, since: int, at: int) -> Iterator[str]:
        if element := self._take(text, since, at).strip():
            yield element

    def _take(self, text: str, since: int, at: int) -> str:
        kept, self._kept = self._kept or [], None
        return "".join((*kept, text[since:at]))


def _decoded(text: str) -> str | None:
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return None

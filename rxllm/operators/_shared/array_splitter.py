"""Split the elements of an array from JSON text that arrives in pieces.

The way to the array is followed here, the array is split by the wire's `JSONArrayDecoder`. Every character is looked at
once. The grammar is not checked: a parser reads each element, and the whole text at the end.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import msgspec

from rxllm.operators._shared.answer_text import FENCE
from rxllm.wire.json_array import JSONArrayDecoder

_MARK = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_LONGEST_HEAD = 64


class ArraySplitter:
    """Text in, the texts of finished elements out; the array is at the top, or at the end of the keys in `path`."""

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self._way = _Way(path)
        self._array: JSONArrayDecoder | None = None

    @property
    def found(self) -> bool:
        """Whether the array has begun."""
        return self._array is not None

    def feed(self, text: str) -> Iterator[str]:
        if self._array is None:
            rest = self._way.feed(text)
            if rest is None:
                return
            self._array = JSONArrayDecoder(max_frame=sys.maxsize)
            text = rest
        for element in self._array.feed(text.encode("utf-8", "surrogatepass")):
            if stripped := element.decode("utf-8", "surrogatepass").strip():
                yield stripped


class _Way:
    """The way to the array: `feed` returns None, and then the text from the bracket that opens the array.

    ``_on_path`` counts the open containers on the way, ``_depth`` all that are open.
    """

    def __init__(self, path: tuple[str, ...]) -> None:
        self._path = path
        self._depth: int = 0
        self._on_path: int = 0
        self._head: str | None = ""  # the text before the first container
        self._ended = False
        self._in_string = self._escaped = False
        self._key: str | None = None
        self._pending: list[str] | None = None  # pieces of the current key

    def feed(self, text: str) -> str | None:
        if self._head is not None:
            text = self._begin(text)
        at = since = 0
        while at < len(text) and not self._ended:
            if self._in_string:
                at = self._to_end_of_string(text, at)
                if not self._in_string and self._pending is not None:
                    self._key = _decoded("".join((*self._pending, text[since:at])))
                    self._pending = None
                continue
            mark = _MARK.search(text, at)
            if mark is None:
                break
            at = mark.end()
            match mark[0]:
                case '"':
                    self._in_string = True
                    if self._depth == self._on_path:
                        self._pending, since = [], mark.start()
                case "{" | "[" as opening:
                    if self._opens_array(opening):
                        return text[mark.start() :]
                case _:
                    self._on_path -= self._depth == self._on_path
                    self._depth -= 1
                    self._ended = self._depth <= 0
        if self._pending is not None:
            self._pending.append(text[since:])
        return None

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

    def _opens_array(self, opening: str) -> bool:
        """Enter a container; return whether it is the array."""
        is_next = self._on_path == 0 or self._key == self._path[self._on_path - 1]
        is_last = self._on_path == len(self._path)
        if self._depth == self._on_path and is_next and opening == ("[" if is_last else "{"):
            if is_last:
                return True
            self._on_path += 1
        self._depth += 1
        return False


def _decoded(text: str) -> str | None:
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return None

"""Split the elements of an array from JSON text that arrives in pieces.

`JSONScanner` finds the array, the wire's `JSONArrayDecoder` splits it: every character is looked at once. The grammar
is not checked: a parser reads each element, and the whole text at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rxllm.operators._shared.json_scanner import JSONScanner, Key, PathMatch
from rxllm.wire.json_array import JSONArrayDecoder


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
    """The way to the array: `feed` returns None, and then the text from the bracket that opens the array."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self._scanner = JSONScanner(self)
        self._place = PathMatch(path)
        self._length = 0
        self._start: int | None = None

    def feed(self, text: str) -> str | None:
        before = self._length
        self._length += len(text)
        self._scanner.feed(text)
        return None if self._start is None else text[self._start - before :]

    def on_open(self, kind: str, key: Key, at: int) -> None:
        if self._place.enter(key) and kind == "[":
            self._start = at
            self._scanner.stop()

    def on_text(self, raw: str) -> None:
        pass

    def on_close(self, at: int) -> None:
        self._place.leave()

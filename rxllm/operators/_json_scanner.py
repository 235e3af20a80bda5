"""Scan JSON that arrives in pieces.

=============  ==================================  ==================================================
state          character                           next state
=============  ==================================  ==================================================
head           white space or a Markdown fence     head
head           the first character of a value      value
value          ``{``                               first key
value          ``[``                               first value
value          ``"``                               in text
value          any other character                 in scalar
first value    ``]``                               after a value
first value    any other character                 value
first key      ``}``                               after a value
first key      ``"``                               in key
key            ``"``                               in key
in key         ``"``                               colon
colon          ``:``                               value
in text        ``"``                               after a value
in scalar      white space, ``,``, ``]`` or ``}``  after a value
after a value  ``,``                               key in an object, value in an array
after a value  ``}`` or ``]``                      after a value
=============  ==================================  ==================================================

White space between these characters is skipped. The end of the outermost value and any syntax error lead to `ended`.
The rest of the text is then skipped.

Each character is scanned once. The scanner does not check the whole grammar, because the elements and the whole text
are parsed later.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from rxllm.values.json_text import unescaped
from rxllm.wire.framing import JSONArrayDecoder

_FENCE = re.compile(r"\s*(?:```(?:json)?\s*)?", re.IGNORECASE)
"""Matches the white space and the Markdown fence that small models put before JSON."""

_LONGEST_HEAD = 64
_SPACE = " \t\r\n"
_SPACES = re.compile(r"[ \t\r\n]*+")
_HEX = "[0-9a-fA-F]"
_HALF = rf"[dD][89abAB]{_HEX}{{2}}"
_WHOLE = rf"(?:[0-9abce-fABCE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}})"
_ESCAPE = rf'\\(?:["\\/bfnrt]|u(?:{_HALF}\\u[dD][c-fC-F]{_HEX}{{2}}|{_WHOLE}))'
_PLAIN = r'[^"\\\x00-\x1f\ud800-\udfff]*+'
_TEXT = re.compile(f"{_PLAIN}(?:{_ESCAPE}{_PLAIN})*+")
# an incomplete escape or surrogate pair at the end
_CUT = re.compile(rf"\\(?:u(?:{_HEX}{{0,3}}|{_HALF}(?:\\(?:u{_HEX}{{0,3}})?)?))?\Z")
_IN_SCALAR = re.compile(r"[^ \t\r\n,\]}]*+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null|NaN|-?Infinity")
_BEGINS = frozenset('{["-0123456789tfnNI')

Key = str | int
"""The key or index of a value, or "" for the outermost value."""


class Sink(Protocol):
    """The handlers that a scanner calls. Positions are in characters."""

    def on_open(self, kind: str, key: Key, at: int) -> None:
        """Handle the start of a value.

        `kind` is ``{``, ``[`` or ``"``. For a number or a literal such as ``true``, `kind` is an empty string.
        """
        ...

    def on_text(self, raw: str) -> None:
        """Handle a piece of the open string. Its escape sequences are complete, but not decoded."""
        ...

    def on_close(self, at: int) -> None:
        """Handle the end of the innermost open value."""
        ...


class PathMatch:
    """Compares the keys of the open values with a path. A None in the path matches any key."""

    def __init__(self, path: Sequence[Key | None]) -> None:
        self._wanted = ("", *path)
        self._keys: list[Key] = []  # The key of each open value.
        self._matching = 0  # The number of leading keys that match.

    def enter(self, key: Key) -> bool:
        depth = len(self._keys)
        self._keys.append(key)
        if self._matching < depth or depth >= len(self._wanted) or self._wanted[depth] not in (key, None):
            return False
        self._matching += 1
        return self._matching == len(self._wanted)

    def leave(self) -> None:
        self._keys.pop()
        self._matching = min(self._matching, len(self._keys))

    @property
    def path(self) -> tuple[Key, ...]:
        return tuple(self._keys[1:])


class JSONScanner:
    """Calls the methods of `sink` for each value. `at` is the number of characters scanned so far."""

    def __init__(self, sink: Sink) -> None:
        self.at = 0
        self._sink = sink
        self._state = self._head
        self._containers: list[str] = []
        self._counts: list[int] = []  # the number of elements in each open container
        self._key: Key = ""
        self._pending = ""  # Text that is read again when more arrives, such as half an escape.
        self._parts: list[str] = []  # The pieces of the key or scalar that is being read.

    def feed(self, text: str) -> None:
        text, self._pending = self._pending + text, ""
        at = 0
        while at < len(text):
            at = self._state(text, at)
        self.at += len(text) - len(self._pending)

    def close(self) -> None:
        """End the outermost value if it is a number or a word such as ``true``, because no character marks its end."""
        if self._state == self._in_scalar and not self._containers:
            self._end_scalar(self.at)

    def stop(self) -> None:
        self._state = self._ended

    def _head(self, text: str, at: int) -> int:
        fence = _FENCE.match(text)
        start = fence.end() if fence else 0
        has_fence = text[:start].strip() and text[start - 1].isspace()
        if has_fence or text[start : start + 1] in _BEGINS:
            self._state = self._value
            return start
        self._pending = text.lstrip()
        if len(self._pending) > _LONGEST_HEAD:  # prose, not JSON
            self._pending, self._state = "", self._ended
        return len(text)

    def _value(self, text: str, at: int) -> int:
        if text[at] in _SPACE and (at := _after_spaces(text, at)) == len(text):
            return at
        kind = text[at] if text[at] in '{["' else ""
        if self._containers and self._containers[-1] == "[":
            self._key = self._counts[-1]
            self._counts[-1] += 1
        key = self._key
        match kind:
            case '"':
                self._state = self._in_text
            case "":
                self._state = self._in_scalar
            case _:
                self._containers.append(kind)
                self._counts.append(0)
                self._state = self._first_key if kind == "{" else self._first_value
        self._sink.on_open(kind, key, self.at + at)
        return at + len(kind)

    def _first_value(self, text: str, at: int) -> int:
        if text[at] in _SPACE:
            return _after_spaces(text, at)
        if text[at] == "]":
            return self._close(at)
        self._state = self._value
        return at

    def _first_key(self, text: str, at: int) -> int:
        return self._close(at) if text[at] == "}" else self._next_key(text, at)

    def _next_key(self, text: str, at: int) -> int:
        if text[at] in _SPACE:
            return _after_spaces(text, at)
        self._state = self._in_key if text[at] == '"' else self._ended
        return at + 1

    def _in_key(self, text: str, at: int) -> int:
        end = self._end_of_text(text, at)
        self._parts.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == '"':
            self._key = unescaped("".join(self._parts))
            self._parts.clear()
            self._state = self._colon
            return end + 1
        return len(text)

    def _colon(self, text: str, at: int) -> int:
        if text[at] in _SPACE:
            return _after_spaces(text, at)
        self._state = self._value if text[at] == ":" else self._ended
        return at + 1

    def _in_text(self, text: str, at: int) -> int:
        end = self._end_of_text(text, at)
        if end > at:
            self._sink.on_text(text[at:end])
        if text[end : end + 1] == '"':
            self._close_value(self.at + end + 1)
            return end + 1
        return len(text)

    def _end_of_text(self, text: str, at: int) -> int:
        found = _TEXT.match(text, at)
        end = found.end() if found else at
        if end < len(text) and text[end] != '"':
            self._pending = text[end:]
            if not _CUT.match(text, end):
                self.stop()
        return end

    def _in_scalar(self, text: str, at: int) -> int:
        found = _IN_SCALAR.match(text, at)
        end = found.end() if found else at
        self._parts.append(text[at:end])
        if end < len(text):
            self._end_scalar(self.at + end)
        return end

    def _end_scalar(self, at: int) -> None:
        is_whole = _SCALAR.fullmatch("".join(self._parts))
        self._parts.clear()
        if is_whole:
            self._close_value(at)
        else:
            self.stop()

    def _after(self, text: str, at: int) -> int:
        if text[at] in _SPACE:
            return _after_spaces(text, at)
        is_object = self._containers[-1] == "{"
        if text[at] == ",":
            self._state = self._next_key if is_object else self._value
        elif text[at] == ("}" if is_object else "]"):
            return self._close(at)
        else:
            self.stop()
        return at + 1

    def _ended(self, text: str, at: int) -> int:
        return len(text)

    def _close(self, at: int) -> int:
        self._containers.pop()
        self._counts.pop()
        self._close_value(self.at + at + 1)
        return at + 1

    def _close_value(self, at: int) -> None:
        self._state = self._after if self._containers else self._ended
        self._sink.on_close(at)


def _after_spaces(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    return found.end() if found else at


class ArraySplitter:
    """Splits the array at `path` into its elements, as text."""

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self.found = False  # whether the array has begun
        self._scanner = JSONScanner(self)
        self._place = PathMatch(path)
        self._length = 0
        self._start = 0
        self._array = JSONArrayDecoder(max_frame=sys.maxsize)

    def feed(self, text: str) -> Iterator[str]:
        if not self.found:
            before = self._length
            self._length += len(text)
            self._scanner.feed(text)
            if not self.found:
                return
            text = text[self._start - before :]
        for element in self._array.feed(text.encode("utf-8", "surrogatepass")):
            if stripped := element.decode("utf-8", "surrogatepass").strip():
                yield stripped

    def on_open(self, kind: str, key: Key, at: int) -> None:
        if self._place.enter(key) and kind == "[":
            self.found, self._start = True, at
            self._scanner.stop()

    def on_text(self, raw: str) -> None:
        pass

    def on_close(self, at: int) -> None:
        self._place.leave()

"""Scan JSON that arrives in pieces: what opens and closes, where, the text of its strings, the elements of an array.

=============  ==============================  ==================================================================
state          on                              goes to
=============  ==============================  ==================================================================
head           the first character of a value  value; white space and a Markdown fence before it are skipped
value          ``{``, ``[``, ``"``, other      first key, first value, in text, in scalar: something opens
first value    ``]``, other                    what follows a value: the array closes; value
first key      ``}``, ``"``                    what follows a value: the object closes; in key
key            ``"``                           in key
in key         ``"``                           colon
colon          ``:``                           value
in text        ``"``                           what follows a value: the string closes
in scalar      white space, ``,]}``            what follows a value: a number or a word closes
after a value  ``,``, ``}`` or ``]``           key or value; what follows a value: the container closes
ended          anything                        nothing: the value at the top has closed
any            anything else                   ended, as nothing after a fault can be told
=============  ==============================  ==================================================================

Each character is scanned once, and nesting is a list, so neither length nor depth changes what a character costs. The
scanner does not validate the text: a parser reads the whole of it in the end.

`JSONScanner` finds the array, the wire's `JSONArrayDecoder` splits it: every character is looked at once. The grammar
is not checked: a parser reads each element, and the whole text at the end.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from rxllm.values.json_text import unescaped
from rxllm.wire.json_array import JSONArrayDecoder

_FENCE = re.compile(r"\s*(?:```(?:json)?\s*)?", re.IGNORECASE)
"""What may precede the JSON: small models put a Markdown code fence round it."""

_LONGEST_HEAD = 64
_SPACE = " \t\r\n"
_SPACES = re.compile(r"[ \t\r\n]*+")
_HEX = "[0-9a-fA-F]"
_HALF = rf"[dD][89abAB]{_HEX}{{2}}"
_ESCAPE = rf'\\(?:["\\/bfnrt]|u(?:{_HALF}\\u[dD][c-fC-F]{_HEX}{{2}}|(?![dD][89a-fA-F]){_HEX}{{4}}))'
_PLAIN = r'[^"\\\x00-\x1f\ud800-\udfff]*+'
_TEXT = re.compile(f"{_PLAIN}(?:{_ESCAPE}{_PLAIN})*+")
# An escape, or a surrogate pair, that breaks off.
_CUT = re.compile(rf"\\(?:u(?:{_HEX}{{0,3}}|{_HALF}(?:\\(?:u{_HEX}{{0,3}})?)?))?\Z")
_IN_SCALAR = re.compile(r"[^ \t\r\n,\]}]*+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null|NaN|-?Infinity")
_BEGINS = frozenset('{["-0123456789tfnNI')

Key = str | int
"""Where a value is in its container; "" for the value at the top."""


class Sink(Protocol):
    """Takes what the scanner finds. Positions are counted in characters from the start of the text."""

    def on_open(self, kind: str, key: Key, at: int) -> None:
        """A value begins: an object ``{``, an array ``[``, a string ``"``, or "" for a number or a word."""
        ...

    def on_text(self, raw: str) -> None:
        """A piece of the open string, with its escapes, none of which is cut."""
        ...

    def on_close(self, at: int) -> None:
        """The innermost value that is open ends before `at`."""
        ...


class PathMatch:
    """Tells a sink where it is at the end of a path: of keys and indexes, and None for any."""

    def __init__(self, path: Sequence[Key | None]) -> None:
        self._wanted = ("", *path)
        self._keys: list[Key] = []  # of what is open
        self._matching = 0  # how many of these, from the first, are wanted

    def enter(self, key: Key) -> bool:
        """Take what opens; return whether it is at the end of the path."""
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
        """The keys and indexes that lead here."""
        return tuple(self._keys[1:])


class JSONScanner:
    """Text in; calls to the `sink` out. `at` is how many characters are behind it, less an escape cut off or broken."""

    def __init__(self, sink: Sink) -> None:
        self.at = 0
        self._sink = sink
        self._state = self._head
        self._containers: list[str] = []
        self._counts: list[int] = []  # of the elements that have begun
        self._key: Key = ""
        self._pending = ""  # of a head, or of an escape that is cut off
        self._parts: list[str] = []  # of a key or a scalar

    def feed(self, text: str) -> None:
        text, self._pending = self._pending + text, ""
        at = 0
        while at < len(text):
            at = self._state(text, at)
        self.at += len(text) - len(self._pending)

    def close(self) -> None:
        """Close a number or word at the top, which nothing follows."""
        if self._state == self._in_scalar and not self._containers:
            self._end_scalar(self.at)

    def stop(self) -> None:
        """Scan no further."""
        self._state = self._ended

    def _head(self, text: str, at: int) -> int:
        fence = _FENCE.match(text)
        start = fence.end() if fence else 0
        is_over = text[:start].strip() and text[start - 1].isspace()  # the fence
        if is_over or text[start : start + 1] in _BEGINS:
            self._state = self._value
            return start
        self._pending = text.lstrip()
        if len(self._pending) > _LONGEST_HEAD:  # prose
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
        """Return where the string in `text` goes on: at its quote, at the end, or at what is cut off or no text."""
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
        """Close a container at its bracket."""
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

"""Read a JSON answer as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, Generic, TypeVar, overload

from reactivex import Observable

from rxllm.collector.parsed import Read
from rxllm.events import Event
from rxllm.operators._event_operators import Fold, lift
from rxllm.operators._fold import final_answer, invalid_output, parse_json, parsed_value, text_parser
from rxllm.operators._json_scanner import ArraySplitter, JSONScanner, Key, PathMatch
from rxllm.operators._select import AnswerText
from rxllm.runtime import Stream
from rxllm.values import Partial, TextAt, ValidationError, is_type
from rxllm.values.advice import advice
from rxllm.values.argument_checks import check, invalid_option, must_be
from rxllm.values.json_text import unescaped
from rxllm.values.partials import Node, Pieces, Shape, shape_of
from rxllm.values.schemas import is_wrapped

T = TypeVar("T")


@overload
def partials(type: type[T], /) -> Callable[[Observable[Event]], Stream[Partial[T]]]: ...
@overload
def partials(type: UnionType, /) -> Callable[[Observable[Event]], Stream[Partial[Any]]]: ...
def partials(type: Any = ..., /) -> Callable[[Observable[Event]], Stream[Partial[Any]]]:
    """Emit a growing `Partial` of the JSON answer.

    ::

        source           --{"name": "Li--ma", "size": 1--2}--end--|
        partials(City)   --name: Li------name: Lima------size: 12-(done|)

    >>> from dataclasses import dataclass
    >>> from rxllm import Fake, stream_generate
    >>> @dataclass
    ... class City:
    ...     name: str
    ...     size: int
    >>> for city in stream_generate(Fake(['{"name": "Li', 'ma", "size": 1', "2}"]), "Hi").pipe(partials(City)):
    ...     print(city["name"].state, city["name"].text, city["size"].state, city["size"].value, city.value)
    growing Li missing None None
    done Lima missing None None
    done Lima done 12 None
    done Lima done 12 City(name='Lima', size=12)

    `type` is a dataclass, a TypedDict, a pydantic model, ``list[City]`` and so on. A partial is emitted for each delta
    that adds to the value. The last partial is complete. Every part of the value has a state (see `Partial`).
    ``partials(object)`` accepts any JSON, and the `so_far` of its partials is plain data. The cost of a partial does
    not depend on the length of the text.

    At the end, the whole answer is parsed as in `parsed`. If that fails, the stream ends with
    ``ValidationError("invalid_output")``. Partials do not show anything that follows a syntax error. A Markdown fence
    around the JSON is skipped. An ``ErrorEvent`` becomes ``on_error``. Each message of a chat begins a new value. If a
    key is repeated, its last value counts.

    Raises ``ValidationError("invalid_option")`` unless JSON can be parsed into `type`.
    """
    if type is ...:
        raise TypeError(f"partials() needs a type; write {advice('arguments', 'partials')}")
    check("type", type, is_type(type), "a type that JSON can be parsed into")
    read = text_parser("type", type)
    return lift(lambda: _Partials[Any](type, read))


class _Partials(Generic[T]):
    def __init__(self, hint: Any, read: Read) -> None:
        self._hint = hint
        self._read = read
        self._fold = Fold("partials")
        self._answer = AnswerText("partials", self._begin)

    def _begin(self) -> _Growing:
        self._growing = _Growing(self._hint)
        return self._growing

    def feed(self, event: Event) -> Iterable[Partial[T]]:
        self._fold.add(event)
        return self._answer.feed(event)

    def close(self) -> Iterable[Partial[T]]:
        response = final_answer(self._fold.state)
        value = parsed_value(response, self._read)
        if str(self._growing.text) != response.output_text:  # The deltas do not add up to the completed text.
            list(self._begin().feed(response.output_text))
        return (self._growing.done(value),)


class _Growing:
    def __init__(self, hint: Any) -> None:
        self.text = Pieces()
        self._shape = shape_of(hint)
        self._is_wrapped = is_wrapped(hint)
        self._scanner = JSONScanner(self)
        self._root: Node | None = None
        self._path: list[tuple[Node, Shape]] = []  # the open values, outermost first
        self._changed = False

    def feed(self, text: str) -> Iterable[Partial[Any]]:
        self.text.append(text)
        self._changed = False
        self._scanner.feed(text)
        root = self._value()
        at = self._scanner.at
        if not self._changed or root is None or not root.shows(self._shape, at):
            return ()
        return (Partial(self.text, root, self._shape, at, "growing"),)

    def close(self) -> Iterable[Partial[Any]]:
        return ()

    def done(self, value: Any) -> Partial[Any]:
        self._scanner.close()
        return Partial(self.text, self._value(), self._shape, self._scanner.at, "done", value)

    def on_open(self, kind: str, key: Key, at: int) -> None:
        node, shape = Node(kind, at), self._shape
        if not self._path:
            self._root = node
        else:
            parent, outer = self._path[-1]
            is_value = self._is_wrapped and parent is self._root and key == "value" and not parent.children
            name = outer.name(key) if isinstance(key, str) else key
            parent.add(node, key, name)
            shape = shape if is_value else outer.child(name)
        self._path.append((node, shape))
        self._changed |= node.shows(shape, at)

    def on_text(self, raw: str) -> None:
        self._changed |= self._path[-1][1].grows

    def on_close(self, at: int) -> None:
        node, shape = self._path.pop()
        is_part = bool(self._path) and node is not self._value()
        # The answer as a whole is complete only when the stream ends.
        self._changed |= is_part or not node.shows(shape, at)
        node.end = at

    def _value(self) -> Node | None:
        """Return the root value, or its field `value` if the answer is wrapped in an object."""
        root = self._root
        if root is None or not self._is_wrapped or root.kind != "{":
            return root
        if not root.children and root.end > self._scanner.at:
            return None
        return root.children[0] if root.keys == ["value"] else root


def text_at(*path: str | int) -> Callable[[Observable[Event]], Stream[TextAt]]:
    """Emit the strings at `path` in the JSON answer.

    ::

        source                        --{"items": [{"name": "Li--ma"}, {"name": "Os--lo"}]}--|
        text_at("items", "*", "name") --Li-----------------------(ma,Os)-------------lo------|   (0: Lima, 1: Oslo)

    >>> from rxllm import Fake, stream_generate
    >>> answer = stream_generate(Fake(['{"items": [{"name": "Li', 'ma"}, {"name": "Os', 'lo"}]}']), "Two cities?")
    >>> for piece in answer.pipe(text_at("items", "*", "name")):
    ...     print(piece.path, piece.text)
    ('items', 0, 'name') Li
    ('items', 0, 'name') ma
    ('items', 1, 'name') Os
    ('items', 1, 'name') lo

    `path` consists of keys and indexes. ``"*"`` matches any key or index. In an answer to
    ``response_format=list[City]``, the path begins with ``"value"``. Each piece contains its exact path. JSON escapes
    are decoded. Empty strings and values that are not strings are skipped. A Markdown fence around the JSON is skipped.
    An ``ErrorEvent`` becomes ``on_error``. If the JSON is invalid or incomplete, the stream ends with
    ``ValidationError("invalid_output")``. The error's metadata holds the text. Each message of a chat is a new answer.
    Text after a message's first tool call is skipped.

    Raises ``ValidationError("invalid_option")`` if `path` is invalid.
    """
    fits = all(isinstance(key, str | int) and not isinstance(key, bool) for key in path)  # pyright: ignore[reportUnnecessaryIsInstance]
    check("path", path, fits, "keys and indexes, or '*' for any")
    return lift(lambda: AnswerText("text_at", lambda: _TextAt(path)))


class _TextAt:
    def __init__(self, path: tuple[str | int, ...]) -> None:
        self._scanner = JSONScanner(self)
        self._place = PathMatch([None if key == "*" else key for key in path])
        self._parts: list[str] = []
        self._path: tuple[Key, ...] | None = None  # the path of the open string; None if the string is not wanted
        self._found: list[TextAt] = []

    def feed(self, text: str) -> Iterable[TextAt]:
        self._parts.append(text)
        self._found = []
        self._scanner.feed(text)
        return self._found

    def close(self) -> Iterable[TextAt]:
        text = "".join(self._parts)
        if text.strip():
            parse_json(text)
        return ()

    def on_open(self, kind: str, key: Key, at: int) -> None:
        is_wanted = self._place.enter(key) and kind == '"'
        self._path = self._place.path if is_wanted else None

    def on_text(self, raw: str) -> None:
        if self._path is not None:
            self._found.append(TextAt(self._path, unescaped(raw)))

    def on_close(self, at: int) -> None:
        self._place.leave()


@overload
def items(type: None = None, /, *path: str) -> Callable[[Observable[Event]], Stream[Any]]: ...
@overload
def items(type: type[T] | Callable[[str], T], /, *path: str) -> Callable[[Observable[Event]], Stream[T]]: ...
@overload
def items(type: Mapping[str, Any] | UnionType, /, *path: str) -> Callable[[Observable[Event]], Stream[Any]]: ...
def items(type: Any = None, /, *path: str) -> Callable[[Observable[Event]], Stream[Any]]:
    """Emit each element of the JSON array in the answer.

    ::

        source                   --{"cities": [{"name"--: "Lima"}, {"na--me": "Oslo"}]}--end--|
        items(City, "cities")    -----------------------City("Lima")-----City("Oslo")---------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["[2, ", "3, 5", "]"]), "Three primes?").pipe(items(int)))
    [2, 3, 5]
    >>> list(stream_generate(Fake(['{"primes": [2, ', "3]}"]), "Two primes?").pipe(items(int, "primes")))
    [2, 3]

    `type` can be anything that `parsed` accepts. If `type` is None, elements are plain JSON. `path` holds the keys that
    lead to the array. In an answer to ``response_format=list[City]``, the path is ``"value"``. A Markdown fence around
    the JSON is skipped. An ``ErrorEvent`` becomes ``on_error``. Each message of a chat is a new answer. Text after a
    message's first tool call is skipped.

    An element that cannot be parsed as `type` ends the stream with ``ValidationError("invalid_output")``. The error's
    metadata holds the element's text and `index`. The stream also fails if the complete answer is not JSON or has no
    array at `path`. The metadata then holds the whole text.

    Raises ``ValidationError("invalid_option")`` if `type` or `path` is invalid.
    """
    if isinstance(type, str):
        fault = f"{must_be('a type', type)}; for plain JSON at that key, write items(None, {type!r})"
        raise invalid_option("type", fault)
    read = text_parser("type", type, is_element=True)
    check("path", path, all(isinstance(key, str) for key in path), "strings: the keys that lead to the array")  # pyright: ignore[reportUnnecessaryIsInstance]
    return lift(lambda: AnswerText("items", lambda: _Items(read, path)))


class _Items:
    def __init__(self, read: Callable[[str], Any], path: tuple[str, ...]) -> None:
        self._read = read
        self._path = path
        self._splitter = ArraySplitter(path)
        self._parts: list[str] = []
        self._index = 0

    def feed(self, text: str) -> Iterable[Any]:
        self._parts.append(text)
        for element in self._splitter.feed(text):
            yield self._item(element)
            self._index += 1

    def close(self) -> Iterable[Any]:
        text = "".join(self._parts)
        if text.strip():
            parse_json(text)
            if not self._splitter.found:
                place = ".".join(self._path)
                raise invalid_output(f"there is no array at {place}" if place else "the answer is not an array", text)
        return ()

    def _item(self, element: str) -> Any:
        try:
            return self._read(element)
        except ValidationError as error:
            if error.reason != "invalid_output":
                raise
            message = f"element {self._index}: {error.message}"
            metadata = {"text": element, "index": self._index}
            raise ValidationError(error.reason, message, errors=error.errors, metadata=metadata) from error.__cause__
        except Exception as error:
            why = f"element {self._index} cannot be parsed: {type(error).__name__}: {error}"
            raise invalid_output(why, element, index=self._index) from error

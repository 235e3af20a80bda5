"""Read a JSON answer while it grows: as plain data, as a typed value, the text at a path, the elements of an array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import UnionType
from typing import Any, Generic, TypeVar, overload

from reactivex import Observable

from rxllm.collector.parsed import Read
from rxllm.events import Event
from rxllm.operators._event_operators import Fold, lift
from rxllm.operators._fold import final_answer, invalid_output, parse_json, parsed_value, text_parser
from rxllm.operators._json_scanner import FENCE, ArraySplitter, JSONScanner, Key, PathMatch
from rxllm.operators._select import AnswerText
from rxllm.runtime import Stream
from rxllm.values import EngineError, Partial, TextAt, ValidationError, is_type
from rxllm.values.argument_checks import check, invalid_option, must_be
from rxllm.values.json_text import unescaped
from rxllm.values.partials import Node, Pieces, Shape, shape_of
from rxllm.values.schemas import is_wrapped

T = TypeVar("T")

SHARE = 64
"""The text is parsed again when it has grown by 1/64 of its length, which keeps the total cost linear."""

_NOTHING = object()


def partial_json() -> Callable[[Observable[Event]], Stream[Any]]:
    """Emit the JSON value so far each time it has grown; the last one is complete.

    ::

        source             --{"name": "Li----ma", "tags": [----------------"old"]}----------------------------|
        partial_json()     --{"name": "Li"}--{"name": "Lima", "tags": []}--{"name": "Lima", "tags": ["old"]}--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(['{"name": "Li', 'ma", "tags": [', '"old"]}']), "Hi").pipe(partial_json()))
    [{'name': 'Li'}, {'name': 'Lima', 'tags': []}, {'name': 'Lima', 'tags': ['old']}]

    Strings grow, and so may a number until the character after it arrives. Each parse begins at the start of the text,
    and happens when the text has grown by 1/64: at first for every delta, at 6,400 characters every 100 characters. A
    Markdown fence around the JSON is ignored. An ``ErrorEvent`` becomes ``on_error``. Text that is not JSON or ends
    early becomes ``ValidationError("invalid_output")`` at the end, whose metadata keeps the text. In a chat each
    message starts afresh, and the text beside a message's tool calls is not read.

    Raises ``EngineError("missing_dependency")`` without ``rxllm[json]``.
    """
    try:
        read = import_module("jiter").from_json
    except ImportError as error:
        message = "partial_json() needs jiter: pip install 'rxllm[json]'"
        raise EngineError("missing_dependency", message) from error
    return lift(lambda: AnswerText("partial_json", lambda: _GrowingData(read)))


class _GrowingData:
    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read
        self._parts: list[str] = []
        self._length = 0
        self._next_length = 0  # of the text that is parsed next
        self._last: Any = _NOTHING

    def feed(self, text: str) -> Iterable[Any]:
        self._parts.append(text)
        self._length += len(text)
        if self._length < self._next_length:
            return ()
        self._next_length = self._length + 1 + self._length // SHARE
        text = self._text()
        fence = FENCE.match(text)
        start = fence.end() if fence else 0
        try:
            value = self._read(text[start:].encode(), partial_mode="trailing-strings", allow_inf_nan=False)
        except ValueError:  # the value has not begun; or the text is not JSON, which `close` reports
            return ()
        return self._if_new(value)

    def close(self) -> Iterable[Any]:
        text = self._text()
        return self._if_new(parse_json(text)) if text.strip() else ()

    def _text(self) -> str:
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def _if_new(self, value: Any) -> Iterable[Any]:
        if value == self._last:
            return ()
        self._last = value
        return (value,)


@overload
def partials(type: type[T], /) -> Callable[[Observable[Event]], Stream[Partial[T]]]: ...
@overload
def partials(type: UnionType, /) -> Callable[[Observable[Event]], Stream[Partial[Any]]]: ...
def partials(type: Any, /) -> Callable[[Observable[Event]], Stream[Partial[Any]]]:
    """Emit the answer, which is JSON, as a `Partial` of `type` after each delta that adds to it; the last one is done.

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

    `type` is a ``response_format`` that is a type: a dataclass, a TypedDict, a pydantic model, ``list[City]``. Every
    part of it has a state, at every depth; see `Partial`. A partial is a view of the text, which is read once, so it
    costs the same whatever there is by then.

    The answer is done when the stream ends and `parsed` takes it: the value is the same, and so is the error,
    ``ValidationError("invalid_output")``, for an answer that does not fit. Of text that is not JSON nothing shows from
    its first fault on. A Markdown fence round the JSON is skipped. An ``ErrorEvent`` becomes ``on_error``. In a chat
    each message begins anew. A key that the model repeats begins anew too.

    Raises ``ValidationError("invalid_option")`` for what is not a type, or a type that JSON cannot be.
    """
    check("type", type, is_type(type), "a type that JSON can be parsed as")
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
        if str(self._growing.text) != response.output_text:  # blocks that were completed otherwise than they grew
            list(self._begin().feed(response.output_text))
        return (self._growing.done(value),)


class _Growing:
    """The JSON text of one message, and where in it each value stands."""

    def __init__(self, hint: Any) -> None:
        self.text = Pieces()
        self._shape = shape_of(hint)
        self._is_wrapped = is_wrapped(hint)
        self._scanner = JSONScanner(self)
        self._root: Node | None = None
        self._path: list[tuple[Node, Shape]] = []  # what is open
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
        self._changed |= is_part or not node.shows(shape, at)  # the answer itself is done with the stream
        node.end = at

    def _value(self) -> Node | None:
        """Return the answer, which may be the `value` of an object: its one field, as far as can be told."""
        root = self._root
        if root is None or not self._is_wrapped or root.kind != "{":
            return root
        if not root.children and root.end > self._scanner.at:
            return None
        return root.children[0] if root.keys == ["value"] else root


def text_at(*path: str | int) -> Callable[[Observable[Event]], Stream[TextAt]]:
    """Emit the pieces of the strings at `path` in the JSON answer as they arrive, with the path of each.

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

    `path` is keys and indexes; ``"*"`` is any of either. In the answer to ``response_format=list[City]`` it begins with
    ``"value"``. The pieces are plain text without JSON's escapes; an empty string has none, and neither has a value
    there that is no string. A Markdown fence round the JSON is skipped. An ``ErrorEvent`` becomes ``on_error``. Text
    that is not JSON or ends early becomes ``ValidationError("invalid_output")`` at the end, whose metadata keeps the
    text. In a chat each message begins anew, and the text of a message after its first tool call is skipped.

    Raises ``ValidationError("invalid_option")`` for a `path` of anything else.
    """
    fits = all(isinstance(key, str | int) and not isinstance(key, bool) for key in path)  # pyright: ignore[reportUnnecessaryIsInstance]
    check("path", path, fits, "keys and indexes, or '*' for any")
    return lift(lambda: AnswerText("text_at", lambda: _TextAt(path)))


class _TextAt:
    def __init__(self, path: tuple[str | int, ...]) -> None:
        self._scanner = JSONScanner(self)
        self._place = PathMatch([None if key == "*" else key for key in path])
        self._parts: list[str] = []
        self._path: tuple[Key, ...] | None = None  # of the open string, if it is wanted
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
    """Emit the elements of the JSON array in the answer, each as soon as it is complete, validated as `type`.

    ::

        source                   --{"cities": [{"name"--: "Lima"}, {"na--me": "Oslo"}]}--end--|
        items(City, "cities")    -----------------------City("Lima")-----City("Oslo")---------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["[2, ", "3, 5", "]"]), "Three primes?").pipe(items(int)))
    [2, 3, 5]
    >>> list(stream_generate(Fake(['{"primes": [2, ', "3]}"]), "Two primes?").pipe(items(int, "primes")))
    [2, 3]

    `type` is as in `parsed`; without it, elements are plain JSON. `path` is the keys that lead to the array; in the
    answer to ``response_format=list[City]`` it is ``"value"``. A Markdown
    fence round the JSON is skipped. An ``ErrorEvent`` becomes ``on_error``. An element that does not fit ends the
    stream with ``ValidationError("invalid_output")``, whose metadata keeps its text and `index`; so does, at the end,
    text that is not JSON, ends too early or has no such array, with the whole text. In a chat each message begins anew,
    and the text of a message after its first tool call is skipped.

    Raises ``ValidationError("invalid_option")`` for a `type` or `path` that makes no sense.
    """
    if isinstance(type, str):
        fault = f"{must_be('a type', type)}; for plain JSON at that key write items(None, {type!r})"
        raise invalid_option("type", fault)
    read = text_parser("type", type, is_element=True)
    check("path", path, all(isinstance(key, str) for key in path), "strings, the keys to the array")  # pyright: ignore[reportUnnecessaryIsInstance]
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
                place = f"at {'.'.join(self._path)}" if self._path else "here"
                raise invalid_output(f"there is no array {place}", text)
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
            why = f"element {self._index} does not parse: {type(error).__name__}: {error}"
            raise invalid_output(why, element, index=self._index) from error

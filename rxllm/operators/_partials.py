"""Emit the answer as a typed value that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, Generic, TypeVar, overload

from reactivex import Observable

from rxllm.collector.parsed import Read
from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.answer_text import AnswerText
from rxllm.operators._shared.event_operators import Fold
from rxllm.operators._shared.json_scanner import JSONScanner, Key
from rxllm.operators._shared.parse_answer import final_answer, parsed_value, text_parser
from rxllm.runtime import Stream
from rxllm.values import Partial, is_type
from rxllm.values.argument_checks import check
from rxllm.values.partial_json import Node, Pieces, Shape, shape_of
from rxllm.values.schemas import is_wrapped

T = TypeVar("T")


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

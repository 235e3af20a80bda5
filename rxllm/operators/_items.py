"""The elements of a JSON array as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.answer_text import AnswerText, no_answer, whole
from rxllm.operators._shared.array_splitter import ArraySplitter
from rxllm.operators._shared.read_as import read_as
from rxllm.runtime import Stream
from rxllm.values import ValidationError
from rxllm.values.arguments import invalid_option

T = TypeVar("T")


@overload
def items(type: None = None, /, *path: str) -> Callable[[Observable[Event]], Stream[Any]]: ...
@overload
def items(type: type[T] | Callable[[str], T], /, *path: str) -> Callable[[Observable[Event]], Stream[T]]: ...
@overload
def items(type: Mapping[str, Any] | UnionType, /, *path: str) -> Callable[[Observable[Event]], Stream[Any]]: ...
def items(type: Any = None, /, *path: str) -> Callable[[Observable[Event]], Stream[Any]]:
    """The elements of the JSON array that the answer is, each as soon as it is complete, validated as `type`.

    ::

        source         --{"cities": [{"name"--: "Lima"}, {"na--me": "Oslo"}]}--end--|
        items(City, "cities")     ----------City("Lima")-----City("Oslo")-----------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["[2, ", "3, 5", "]"]), "Three primes?").pipe(items(int)))
    [2, 3, 5]
    >>> list(stream_generate(Fake(['{"primes": [2, ', "3]}"]), "Two primes?").pipe(items(int, "primes")))
    [2, 3]

    `type` is as in `parsed`; without it, elements are plain JSON. With a `path` the array is the value at the end of
    these keys. A Markdown fence round the JSON is no part of it. An ``ErrorEvent`` becomes ``on_error``. An element
    that does not fit ends the stream with ``ValidationError("invalid_output")``, whose metadata keeps its text and its
    `index`; so does, at the end, text that is no JSON, ends too early or has no such array, kept whole. In a chat each
    message begins anew, and what a message says beside its calls of tools is not read.

    Raises ``ValidationError("invalid_option")`` for a `type` or `path` that makes no sense.
    """
    if isinstance(type, str):
        raise invalid_option(
            "type", f"must be a type, not {type!r}; for plain JSON at that key it is items(None, {type!r})"
        )
    read = read_as("type", type)
    if not all(isinstance(key, str) for key in path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_option("path", f"must be keys, which are strings, not {path!r}")
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
            whole(text)
            if not self._splitter.found:
                raise no_answer(f"there is no array {'at ' + '.'.join(self._path) if self._path else 'here'}", text)
        return ()

    def _item(self, element: str) -> Any:
        kept = {"index": self._index}
        try:
            return self._read(element)
        except ValidationError as error:
            if error.reason != "invalid_output":
                raise
            metadata = {"text": element, **kept}
            raise ValidationError(
                error.reason, f"element {self._index}: {error.message}", errors=error.errors, metadata=metadata
            ) from error.__cause__
        except Exception as error:
            why = f"element {self._index} does not parse: {type(error).__name__}: {error}"
            raise no_answer(why, element, **kept) from error

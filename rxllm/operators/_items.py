"""Emit the elements of a JSON array as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.answer_text import AnswerText
from rxllm.operators._shared.array_splitter import ArraySplitter
from rxllm.operators._shared.parse_answer import invalid_output, parse_json, text_parser
from rxllm.runtime import Stream
from rxllm.values import ValidationError
from rxllm.values.argument_checks import check, invalid_option, must_be

T = TypeVar("T")


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

"""JSON that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.answer_text import FENCE, AnswerText
from rxllm.operators._shared.parse_answer import parse_json
from rxllm.runtime import Stream
from rxllm.values import EngineError

SHARE = 64
"""The text is read again when it has grown by one part in so many; that keeps the whole cost linear."""

_NOTHING = object()


def partial_json() -> Callable[[Observable[Event]], Stream[Any]]:
    """The JSON value that the text is so far, each time that it has grown; the last one is whole.

    ::

        source             --{"name": "Li--ma", "tags": [--"old"]}--|
        partial_json()     --{"name": "Li"}--{"name": "Lima", "tags": []}--{"name": "Lima", "tags": ["old"]}--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(['{"name": "Li', 'ma", "tags": [', '"old"]}']), "Hi").pipe(partial_json()))
    [{'name': 'Li'}, {'name': 'Lima', 'tags': []}, {'name': 'Lima', 'tags': ['old']}]

    Strings grow, and so may a number until what follows it has come. Reading begins at the start each time, so it is
    done whenever the text has grown by a 64th: at first with every delta, in a text of 6,400 characters with every
    hundred. A Markdown fence round the JSON is no part of it. An ``ErrorEvent`` becomes ``on_error``, and text that is
    no JSON, or ends too early, becomes ``ValidationError("invalid_output")`` at the end, whose metadata keeps the text.
    In a chat each message begins anew, and what a message says beside its calls of tools is not read.

    Needs ``rxllm[json]``; without it ``EngineError("missing_dependency")`` is raised.
    """
    try:
        read = import_module("jiter").from_json
    except ImportError as error:
        message = "partial_json() needs jiter: pip install 'rxllm[json]'"
        raise EngineError("missing_dependency", message) from error
    return lift(lambda: AnswerText("partial_json", lambda: _Growing(read)))


class _Growing:
    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read
        self._parts: list[str] = []
        self._length = 0
        self._next = 0
        self._last: Any = _NOTHING

    def feed(self, text: str) -> Iterable[Any]:
        self._parts.append(text)
        self._length += len(text)
        if self._length < self._next:
            return ()
        self._next = self._length + 1 + self._length // SHARE
        said = self._said()
        start = FENCE.match(said)
        try:
            value = self._read(
                said[start.end() if start else 0 :].encode(), partial_mode="trailing-strings", allow_inf_nan=False
            )
        except ValueError:  # nothing of the value has come; or it is no JSON, which the end will tell
            return ()
        return self._new(value)

    def close(self) -> Iterable[Any]:
        said = self._said()
        return self._new(parse_json(said)) if said.strip() else ()

    def _said(self) -> str:
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def _new(self, value: Any) -> Iterable[Any]:
        if value == self._last:
            return ()
        self._last = value
        return (value,)

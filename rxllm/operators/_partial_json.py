"""Read JSON while it grows."""

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
    return lift(lambda: AnswerText("partial_json", lambda: _Growing(read)))


class _Growing:
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

"""Emit the text of strings in a JSON answer as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.answer_text import AnswerText
from rxllm.operators._shared.json_scanner import JSONScanner, Key, PathMatch
from rxllm.operators._shared.parse_answer import parse_json
from rxllm.runtime import Stream
from rxllm.values import TextAt
from rxllm.values.argument_checks import check
from rxllm.values.json_text import unescaped


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

"""Write the commands of a shell call as JSON while they arrive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rxllm.values.json_text import json_text


class Commands:
    """Turns pieces of commands into pieces of ``{"commands":[...``.

    >>> commands = Commands()
    >>> commands.feed(0, "ls"), commands.feed(0, "ls -a", is_whole=True), commands.feed(1, "pwd")
    ('{"commands":["ls', ' -a"', ',"pwd')

    JSON contains one command after the other, so the pieces of a command wait until all earlier commands are whole.
    """

    def __init__(self) -> None:
        self._current = 0
        self._length = 0  # how much of the current command is written
        self._is_open = False
        self._waiting: defaultdict[int, list[tuple[str, bool]]] = defaultdict(list)

    def feed(self, index: int, text: str, *, is_whole: bool = False) -> str:
        """Return the JSON that can be written now. `text` is a piece of a command or, if `is_whole`, all of it."""
        if index >= self._current:
            self._waiting[index].append((text, is_whole))
        return "".join(self._write())

    def _write(self) -> Iterator[str]:
        while pieces := self._waiting.pop(self._current, None):
            for text, is_whole in pieces:
                if not self._is_open:
                    yield ',"' if self._current else '{"commands":["'
                    self._is_open = True
                added = text[self._length :] if is_whole else text
                self._length += len(added)
                yield json_text(added)[1:-1]
                if is_whole:
                    yield '"'
                    self._current, self._length, self._is_open = self._current + 1, 0, False
                    break
            else:
                return

    def close(self) -> str:
        """Return what ends the JSON after the last piece."""
        return '"]}' if self._is_open else "]}"

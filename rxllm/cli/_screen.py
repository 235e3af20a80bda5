"""What is printed of a stream: its text on standard output, all else on standard error."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rxllm import EngineError, LLMError, serializer
from rxllm.events import Custom, Event, FileAdded, MessageCompleted, TextDelta, ThinkingDelta, ToolCallCompleted

_CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {*map(ord, "\n\t")}, "\ufffd") | {ord("\r"): ""}
"""What a terminal would obey: a model must not move the cursor, set the title or fill the clipboard."""

_LOCAL = "; or name another model, --model provider:name: the command providers lists the providers"


def plain(text: str) -> str:
    """Return `text` on one line, without what controls a terminal.

    >>> plain("a\\nb\\x1b[2J")
    'a b\ufffd[2J'
    """
    return " ".join(text.split()).translate(_CONTROLS)


def report(error: Exception) -> None:
    """Print `error` with its remedy, on one line."""
    message = error.message if isinstance(error, LLMError) else f"{type(error).__name__}: {error} (see --debug)"
    if isinstance(error, EngineError) and (error.reason, error.provider) == ("missing_dependency", "local"):
        message += _LOCAL
    print(f"rxllm: {plain(message)}", file=sys.stderr, flush=True)


class Screen:
    """Standard output and standard error, and which of them have an unfinished line."""

    def __init__(self, *, events: bool, text: bool) -> None:
        self._events = events
        self._text = text
        self._unfinished = set[TextIO]()

    def draw(self, event: Event) -> None:
        """Print what there is to see of `event`, or with `events` its JSON."""
        if self._events:
            if not (isinstance(event, Custom) and event.name == "session_turn"):  # the session before the call
                print(serializer.to_json(event), flush=True)
            return
        match event:
            case TextDelta(delta=text) if self._text:
                self._write(sys.stdout, text.translate(_CONTROLS) if sys.stdout.isatty() else text)
            case ThinkingDelta(delta=text):
                dim = "\x1b[2m{}\x1b[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else "{}"
                self._write(sys.stderr, dim.format(text.translate(_CONTROLS)))
            case ToolCallCompleted():  # the provider's own, such as a search
                self._note(f"{event.tool_call!r}")
            case FileAdded(file=file):
                self._note(f"a file that is not shown: {file.get('mime_type')}")
            case MessageCompleted(finish_reason="length" | "content_filter" as reason):
                self._note(f"the answer is not complete: {reason}")
            case _:
                pass

    def interrupt(self) -> None:
        """Note that the terminal has shown the user's ``^C``."""
        if sys.stderr.isatty() and not any(stream.isatty() for stream in self._unfinished):
            self._unfinished.add(sys.stderr)

    def end_lines(self) -> None:
        """Finish the lines that are being written."""
        for stream in [*self._unfinished]:
            print(file=stream, flush=True)
        self._unfinished.clear()

    def _note(self, text: str) -> None:
        self._write(sys.stderr, "\n" if sys.stderr in self._unfinished else "")
        self._write(sys.stderr, f"{plain(text)}\n")

    def _write(self, stream: TextIO, text: str) -> None:
        # Both may be the same terminal. A pipe or a file gets no line break that is not in the text.
        for other in [other for other in self._unfinished if other is not stream and other.isatty()]:
            print(file=other, flush=True)
            self._unfinished.discard(other)
        if text:  # noted first: Ctrl-C may come as soon as it is printed
            (self._unfinished.discard if text.endswith("\n") else self._unfinished.add)(stream)
        print(text, end="", file=stream, flush=True)

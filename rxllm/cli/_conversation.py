"""The commands ``ask`` and ``chat``, which print answers as they arrive."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TextIO, cast

from reactivex import from_iterable

import rxllm
from rxllm import ChatResult, Engine, EngineError, Event, LLMError, Message, Session, Thread, serializer, session
from rxllm import operators as ops
from rxllm.events import Custom, FileAdded, MessageCompleted, TextDelta, ThinkingDelta, ToolCallCompleted

_CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {*map(ord, "\n\t")}, "\ufffd") | {ord("\r"): ""}
"""Replacements for control characters, which a model could use to move the cursor or write to the clipboard."""

_LOCAL = "; or choose another model with --model provider:name (python -m rxllm providers lists the providers)"


def plain(text: str) -> str:
    """Return `text` on one line, without control characters.

    >>> plain("a\\nb\\x1b[2J")
    'a b\ufffd[2J'
    """
    return " ".join(text.split()).translate(_CONTROLS)


def report(error: Exception) -> None:
    """Print `error` and its remedy on one line."""
    message = error.message if isinstance(error, LLMError) else f"{type(error).__name__}: {error} (see --debug)"
    if isinstance(error, EngineError) and (error.reason, error.provider) == ("missing_dependency", "local"):
        message += _LOCAL
    print(f"rxllm: {plain(message)}", file=sys.stderr, flush=True)


class Screen:
    """Writes to standard output and standard error, and remembers which of them has an unfinished line."""

    def __init__(self, *, events: bool, text: bool) -> None:
        self._events = events
        self._text = text
        self._unfinished = set[TextIO]()

    def draw(self, event: Event) -> None:
        """Print the visible part of `event` or, with ``--events``, the event as JSON."""
        if self._events:
            if not (isinstance(event, Custom) and event.name == "session_turn"):  # this event contains a whole session
                print(serializer.to_json(event), flush=True)
            return
        match event:
            case TextDelta(delta=text) if self._text:
                self._write(sys.stdout, text.translate(_CONTROLS) if sys.stdout.isatty() else text)
            case ThinkingDelta(delta=text):
                dim = "\x1b[2m{}\x1b[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else "{}"
                self._write(sys.stderr, dim.format(text.translate(_CONTROLS)))
            case ToolCallCompleted():  # a provider's tool, such as a search
                self._note(f"{event.tool_call!r}")
            case FileAdded(file=file):
                self._note(f"a file has arrived but is not shown: {file.get('mime_type')}")
            case MessageCompleted(finish_reason="length" | "content_filter" as reason):
                self._note(f"the answer is incomplete: {reason}")
            case _:
                pass

    def interrupt(self) -> None:
        """Mark the line on standard error as unfinished, since the terminal has echoed ``^C``."""
        if sys.stderr.isatty() and not any(stream.isatty() for stream in self._unfinished):
            self._unfinished.add(sys.stderr)

    def end_lines(self) -> None:
        """End each unfinished line."""
        for stream in [*self._unfinished]:
            print(file=stream, flush=True)
        self._unfinished.clear()

    def _note(self, text: str) -> None:
        self._write(sys.stderr, "\n" if sys.stderr in self._unfinished else "")
        self._write(sys.stderr, f"{plain(text)}\n")

    def _write(self, stream: TextIO, text: str) -> None:
        # Both streams may go to the same terminal. Line breaks are added only on a terminal.
        for other in [other for other in self._unfinished if other is not stream and other.isatty()]:
            print(file=other, flush=True)
            self._unfinished.discard(other)
        if text:  # update the set before printing, which Ctrl-C may interrupt
            (self._unfinished.discard if text.endswith("\n") else self._unfinished.add)(stream)
        print(text, end="", file=stream, flush=True)


def ask(options: Namespace) -> int:
    """Answer one question: the prompt, followed by any piped text."""
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    text = "\n\n".join(part for part in (" ".join(options.prompt), piped) if part)
    if not text and not options.file:
        print('rxllm: no question was given: write ask "...", or pipe text in', file=sys.stderr)
        return 2
    result = _Conversation(options).reply(rxllm.user(text, *options.file))
    return 130 if result.halted_reason == "cancelled" else 0


def chat(options: Namespace) -> int:
    """Answer each line that the user types. Ctrl-C stops an answer. Ctrl-D, or Ctrl-C twice, ends the program."""
    conversation, is_interrupted = _Conversation(options), False
    files: list[str] = options.file
    while True:
        try:
            if text := _line().strip():
                result = conversation.reply(rxllm.user(text, *files))
                is_interrupted, files = result.halted_reason == "cancelled", []
        except EOFError:
            break
        except KeyboardInterrupt:  # at the prompt; `reply` handles Ctrl-C during an answer
            if is_interrupted:
                break
            is_interrupted = True
            print("\npress Ctrl-C again, or Ctrl-D, to quit", file=sys.stderr)
        except LLMError as error:
            if options.debug or not sys.stdin.isatty():
                raise
            report(error)
    if sys.stdin.isatty():
        print(file=sys.stderr)  # end the prompt's line
    return 0


class _Conversation:
    """A session, with the engine that answers and the screen that prints."""

    def __init__(self, options: Namespace) -> None:
        self._schema = options.json
        params = {"response_format": self._schema, "temperature": options.temperature}
        self._engine = Engine.from_model(options.model, params=params)
        self._session = Session(thread=Thread() + rxllm.system(options.system) if options.system else Thread())
        self._prints_json = self._schema is not None and not options.events
        self._screen = Screen(events=options.events, text=not self._prints_json)

    def reply(self, message: Message) -> ChatResult:
        """Print the answer to `message`, and return its result (``cancelled`` after Ctrl-C) or raise its error."""
        seen: list[Event] = []
        try:
            with rxllm.to_iter(session.stream_reply(self._engine, self._session, message)) as events:
                for event in events:
                    seen.append(event)
                    self._screen.draw(event)
        except KeyboardInterrupt:
            self._screen.interrupt()  # the events so far are folded into a cancelled turn
        finally:
            self._screen.end_lines()
        turn = rxllm.run(from_iterable(seen).pipe(ops.to_session(self._session, parse=self._schema, keep_partial=True)))
        # After an error, the user can try again with the next message.
        self._session = replace(turn.session, status="idle") if turn.session.status == "error" else turn.session
        result = cast(ChatResult, turn.result).raise_for_error()
        if self._prints_json and result.halted_reason == "completed":
            print(json.dumps(result.parsed, ensure_ascii=False, indent=2), flush=True)
        return result


def _line() -> str:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return input()
    with suppress(ImportError):
        import_module("readline")  # adds line editing and history to `input`
    return input("> ")

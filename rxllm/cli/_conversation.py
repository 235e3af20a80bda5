"""The commands ``ask`` and ``chat``.

If rich is installed, ``rxllm.show`` draws cards in a terminal. Otherwise, `Screen` prints plain text.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from shutil import get_terminal_size
from typing import TextIO, cast

from reactivex import from_iterable

import rxllm
from rxllm import ChatResult, Engine, EngineError, Event, LLMError, Message, Session, Thread, serializer, session
from rxllm import operators as ops
from rxllm.display import draws_cards
from rxllm.events import Custom, FileAdded, MessageCompleted, TextDelta, ThinkingDelta, ToolCallCompleted

_CONTROLS = {
    **dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {*map(ord, "\n\t")}, "\ufffd"),
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},  # they reorder text
    ord("\r"): "",
}

_LOCAL = "; or choose another model with --model provider:name (python -m rxllm providers lists the providers)"

_HELP = """\
/help   show this list
/new    start a new conversation
/quit   quit, like Ctrl-D
Ctrl-C  stop the answer"""


def plain(text: str) -> str:
    """Return `text` on one line, without control characters.

    >>> plain("a\\nb\\x1b[2J")
    'a b\ufffd[2J'
    """
    return " ".join(text.split()).translate(_CONTROLS)


class ShownError(Exception):
    """Raised for an error that a card has already shown."""


def report(error: Exception) -> None:
    """Print an error and its remedy on one line."""
    message = error.message if isinstance(error, LLMError) else f"{type(error).__name__}: {error} (see --debug)"
    if isinstance(error, ShownError):
        message, error = "", cast(Exception, error.__cause__)
    if isinstance(error, EngineError) and (error.reason, error.provider) == ("missing_dependency", "local"):
        message += _LOCAL
    if message:
        print(f"rxllm: {plain(message).removeprefix('; or ')}", file=sys.stderr, flush=True)


class Screen:
    """Prints answers, and keeps track of which output streams end in an unfinished line."""

    def __init__(self, *, events: bool, text: bool) -> None:
        self._events = events
        self._text = text
        self._unfinished = set[TextIO]()

    def draw(self, event: Event) -> None:
        """Print the part of `event` that the user should see, or print the event as JSON."""
        if self._events:
            if not (isinstance(event, Custom) and event.name == "session_turn"):  # it contains a whole session
                print(serializer.to_json(event), flush=True)
            return
        match event:
            case TextDelta(delta=text) if self._text:
                self._write(sys.stdout, text.translate(_CONTROLS) if sys.stdout.isatty() else text)
            case ThinkingDelta(delta=text) if text:
                dim = "\x1b[2m{}\x1b[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else "{}"
                self._write(sys.stderr, dim.format(text.translate(_CONTROLS)))
            case ToolCallCompleted():  # such as a call to a search tool
                self._note(f"{event.tool_call!r}")
            case FileAdded(file=file):
                self._note(f"a file has arrived but is not shown: {file.get('mime_type')}")
            case MessageCompleted(finish_reason="length" | "content_filter" as reason):
                self._note(f"the answer is incomplete: {reason}")
            case _:
                pass

    def interrupt(self) -> None:
        """Record that the current line is unfinished because the terminal has echoed ``^C``."""
        if sys.stderr.isatty() and not any(stream.isatty() for stream in self._unfinished):
            self._unfinished.add(sys.stderr)

    def end_lines(self) -> None:
        for stream in [*self._unfinished]:
            print(file=stream, flush=True)
        self._unfinished.clear()

    def _note(self, text: str) -> None:
        self._write(sys.stderr, "\n" if sys.stderr in self._unfinished else "")
        self._write(sys.stderr, f"{plain(text)}\n")

    def _write(self, stream: TextIO, text: str) -> None:
        # Both streams may go to the same terminal.
        for other in [other for other in self._unfinished if other is not stream and other.isatty()]:
            print(file=other, flush=True)
            self._unfinished.discard(other)
        if text:  # update the set before printing, because Ctrl-C may interrupt `print`
            (self._unfinished.discard if text.endswith("\n") else self._unfinished.add)(stream)
        print(text, end="", file=stream, flush=True)


def ask(options: Namespace) -> int:
    """Answer the prompt together with any piped text."""
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    text = "\n\n".join(part for part in (" ".join(options.prompt), piped) if part)
    if not text and not options.file:
        print('rxllm: no question was given: write ask "...", or pipe text in', file=sys.stderr)
        return 2
    result = _Conversation(options).reply(rxllm.user(text, *options.file))
    return 130 if result.halted_reason == "cancelled" else 0


def chat(options: Namespace) -> int:
    """Answer each line that the user enters, until Ctrl-D."""
    conversation, is_interrupted, is_terminal = _Conversation(options), False, sys.stdin.isatty()
    files: list[str] = options.file
    if is_terminal:
        print(f"{options.model} · /help lists the commands\n", file=sys.stderr)
    while True:
        try:
            text = _line("> ").strip()
            if is_terminal and re.fullmatch(r"/\w*( .*)?", text):
                conversation.run_command(text.split()[0])
            elif text:
                result = conversation.reply(rxllm.user(text, *files))
                is_interrupted, files = result.halted_reason == "cancelled", []
        except EOFError:
            break
        except KeyboardInterrupt:  # at the prompt
            if is_interrupted:
                break
            is_interrupted = True
            print("\npress Ctrl-C again, or Ctrl-D, to quit", file=sys.stderr)
        except (LLMError, ShownError) as error:
            if options.debug or not is_terminal:
                raise
            report(error)
    if is_terminal:
        print(file=sys.stderr)  # end the prompt's line
    return 0


class _Conversation:
    def __init__(self, options: Namespace) -> None:
        self._schema = options.json
        params = {"response_format": self._schema, "temperature": options.temperature}
        self._engine = Engine(options.model, params=params, tools=options.tools)
        self._new = Session(thread=Thread() + rxllm.system(options.system) if options.system else Thread())
        self._session = self._new
        self._prints_json = self._schema is not None and not options.events
        self._screen = Screen(events=options.events, text=not self._prints_json)
        self._has_cards = not (options.events or options.debug or self._prints_json) and draws_cards()
        if self._has_cards and find_spec("genai_prices"):
            self._engine = self._engine.with_operators(ops.cost())

    def run_command(self, name: str) -> None:
        """Run a command such as ``/help``. The command ``/quit`` raises ``EOFError``."""
        match name:
            case "/help":
                print(_HELP)
            case "/new":
                self._session = self._new
            case "/quit":
                raise EOFError
            case _:
                print(f"unknown command {name}:\n{_HELP}", file=sys.stderr)

    def reply(self, message: Message) -> ChatResult:
        """Show the answer and return its result. If the answer fails, raise its error.

        If a tool call needs approval, the user is asked to approve the call.
        """
        result = self._show(session.stream_reply(self._engine, self._session, message))
        while result.halted_reason == "approval":
            approvals = {call.id: _ask_approval(call) for call in self._session.pending_tool_calls}
            result = self._show(session.stream_resume(self._engine, self._session, approvals=approvals))
        if self._prints_json and result.halted_reason == "completed":
            print(json.dumps(result.parsed, ensure_ascii=False, indent=2), flush=True)
        return result

    def _show(self, events: rxllm.Stream[Event]) -> ChatResult:
        seen: list[Event] = []
        (self._draw if self._has_cards else self._print)(events, seen)
        turn = rxllm.run(from_iterable(seen).pipe(ops.to_session(self._session, parse=self._schema, keep_partial=True)))
        # An idle session lets the user try again after an error.
        self._session = replace(turn.session, status="idle") if turn.session.status == "error" else turn.session
        result = cast(ChatResult, turn.result)
        if self._has_cards and result.error is not None:
            raise ShownError from result.error
        return result.raise_for_error()

    def _draw(self, events: rxllm.Stream[Event], seen: list[Event]) -> None:
        print()
        try:
            rxllm.show(events.pipe(ops.tap(seen.append)).map(lambda event: _without_shown(event, seen)))
        except KeyboardInterrupt:
            pass  # the events in `seen` become a cancelled turn
        except Exception as error:
            raise ShownError from error
        finally:
            print()

    def _print(self, events: rxllm.Stream[Event], seen: list[Event]) -> None:
        try:
            with rxllm.to_iter(events) as items:
                for event in items:
                    seen.append(event)
                    self._screen.draw(event)
        except KeyboardInterrupt:
            self._screen.interrupt()  # the events in `seen` become a cancelled turn
        finally:
            self._screen.end_lines()


def _without_shown(event: Event, seen: list[Event]) -> Event:
    """Return `event` without anything that an earlier card has already shown."""
    if not isinstance(event, rxllm.StepCompleted) or any(isinstance(other, rxllm.MessageStarted) for other in seen):
        return event
    answered = {other.id for other in seen if isinstance(other, rxllm.ToolExecutionCompleted)}
    response = event.result.response
    calls = tuple(call for call in response.tool_calls if call.id in answered)
    response = replace(response, message=Message("assistant", tool_calls=calls), usage=rxllm.Usage())
    return rxllm.StepCompleted(replace(event.result, response=response))


def _ask_approval(call: rxllm.ToolCall) -> bool | str:
    """Return True to approve the call, False to deny it, or a string to deny it with that reason."""
    if not sys.stdin.isatty():
        return "there is no terminal on which a person could approve it"
    print(textwrap.fill(f"Allow {plain(repr(call))}?", get_terminal_size().columns), file=sys.stderr)
    try:
        answer = _line("y for yes, n for no, or a reason to deny it: ").strip()
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return False
    return {"y": True, "yes": True, "n": False, "no": False, "": False}.get(answer.lower(), answer)


def _line(prompt: str) -> str:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return input()
    with suppress(ImportError):
        import_module("readline")  # line editing and history for `input`
    return input(prompt)

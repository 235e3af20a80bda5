"""``ask`` and ``chat``: the turns of a session, printed as they come."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import cast

from reactivex import from_iterable

import rxllm
from rxllm import ChatResult, Engine, Event, LLMError, Message, Session, Thread, session
from rxllm import operators as ops
from rxllm.cli._screen import Screen, report


def ask(options: Namespace) -> int:
    """Print the answer to one question: the prompt, followed by the text that is piped in."""
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    text = "\n\n".join(part for part in (" ".join(options.prompt), piped) if part)
    if not text and not options.file:
        print('rxllm: the question is missing: write ask "...", or pipe text in', file=sys.stderr)
        return 2
    result = _Conversation(options).reply(rxllm.user(text, *options.file))
    return 130 if result.halted_reason == "cancelled" else 0


def chat(options: Namespace) -> int:
    """Answer line after line. Ctrl-C stops an answer; Ctrl-C twice, or Ctrl-D, leaves."""
    conversation, is_interrupted = _Conversation(options), False
    files: list[str] = options.file
    while True:
        try:
            if text := _line().strip():
                result = conversation.reply(rxllm.user(text, *files))
                is_interrupted, files = result.halted_reason == "cancelled", []
        except EOFError:
            break
        except KeyboardInterrupt:  # at the prompt: `reply` has its own
            if is_interrupted:
                break
            is_interrupted = True
            print("\nCtrl-C again, or Ctrl-D, leaves", file=sys.stderr)
        except LLMError as error:
            if options.debug or not sys.stdin.isatty():
                raise
            report(error)
    if sys.stdin.isatty():
        print(file=sys.stderr)  # the prompt's line
    return 0


class _Conversation:
    """A session, and the engine and the screen of its turns."""

    def __init__(self, options: Namespace) -> None:
        self._schema = options.json
        params = {"response_format": self._schema, "temperature": options.temperature}
        self._engine = Engine.from_model(options.model, params=params)
        self._session = Session(thread=Thread() + rxllm.system(options.system) if options.system else Thread())
        self._prints_json = self._schema is not None and not options.events
        self._screen = Screen(events=options.events, text=not self._prints_json)

    def reply(self, message: Message) -> ChatResult:
        """Print the answer to `message` and return its result: ``cancelled`` after Ctrl-C. Raise its error."""
        seen: list[Event] = []
        try:
            with rxllm.to_iter(session.stream_reply(self._engine, self._session, message)) as events:
                for event in events:
                    seen.append(event)
                    self._screen.draw(event)
        except KeyboardInterrupt:
            self._screen.interrupt()  # what has been seen folds to a cancelled turn
        finally:
            self._screen.end_lines()
        turn = rxllm.run(from_iterable(seen).pipe(ops.to_session(self._session, parse=self._schema, keep_partial=True)))
        # After an error the next message may try again.
        self._session = replace(turn.session, status="idle") if turn.session.status == "error" else turn.session
        result = cast(ChatResult, turn.result).raise_for_error()
        if self._prints_json and result.halted_reason == "completed":
            print(json.dumps(result.parsed, ensure_ascii=False, indent=2), flush=True)
        return result


def _line() -> str:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return input()
    with suppress(ImportError):
        import_module("readline")  # from then on `input` edits lines and has a history
    return input("> ")

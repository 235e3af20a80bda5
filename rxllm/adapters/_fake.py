"""A scripted model for tests: it answers what it was told to, and remembers what it was asked.

A turn is a piece of script, or a list of such pieces:

=====================================================  ============================================================
piece                                                  means
=====================================================  ============================================================
``"Hello"``, ``("text", "Hello")``                     a text delta
``("thinking", "hm")``                                 a thinking delta
a `ToolCall`, ``("tool_call", {"id": ..,               a whole call; `arguments` or `raw_arguments`
"name": .., "arguments": ..})``
``("tool_call_delta", {"id": .., "name": ..,           a piece of a call; the name comes with the first one
"arguments_delta": ..})``
a `Usage`, ``("usage", {"input_tokens": 3})``          usage, in the field names of `Usage`
``("raw_chunk", data)``, ``("raw_chunk", (kind,        a ``RawChunk``
data))``
``("delay", seconds)``                                 a pause, on the subscription's scheduler
``("error", "rate_limited")``                          an ``ErrorEvent``; nothing follows
``("finish", "stop")``                                 the finish reason; nothing follows
an exception                                           first in its turn: the call fails; later: an ``ErrorEvent``
an event                                               itself
=====================================================  ============================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast, get_args

import msgspec
from reactivex import abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.events import EVENT_CLASSES, Event, MessageStarted
from rxllm.runtime import Stream, clock, current_gate, report_unheard
from rxllm.values import AdapterError, Call, FinishReason, LLMError, Request, StreamError, ToolCall, Usage
from rxllm.wire.blocks import Blocks
from rxllm.wire.tool_calls import CallTracker

Piece = str | ToolCall | Usage | BaseException | Event | tuple[str, Any]
Turn = Piece | list[Piece]

_WORDS = ("text", "thinking", "tool_call", "tool_call_delta", "usage", "raw_chunk", "delay", "error", "finish")


class Fake:
    """An adapter that plays turns: one alone answers every call, several are used up, one per subscription.

    >>> from rxllm import generate
    >>> generate(Fake("Hello"), "Hi").run().output_text
    'Hello'

    Give turns as arguments, one as ``script=[...]``, several as ``scripts=[[...], ...]``, or a function of the request
    that returns a turn. `requests` holds what was asked, in order. Without an event loop it plays on the caller's
    thread.

    Raises ``ValueError`` for a script that means nothing, and streams ``AdapterError("no_scripted_response")`` when the
    turns are used up.
    """

    def __init__(
        self,
        *turns: Turn | Callable[[Request], Turn],
        script: Iterable[Piece] | None = None,
        scripts: Iterable[Iterable[Piece]] | None = None,
    ) -> None:
        if sum(given is not None for given in (turns or None, script, scripts)) != 1:
            raise ValueError("Fake takes its turns as arguments, or as script=, or as scripts=")
        self.requests: list[Request] = []
        self._function = turns[0] if len(turns) == 1 and callable(turns[0]) else None
        given = turns or [list(each) for each in ([script] if script is not None else scripts or ())]
        self._turns = [] if self._function else [_pieces(turn) for turn in given]
        self._played = 0

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """The next turn, once per subscription."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.requests.append(request)
            return _Play(self._next(request), request, observer, scheduler).start()

        return Stream(subscribe)

    def _next(self, request: Request) -> list[Piece]:
        if self._function is not None:
            return _pieces(self._function(request))
        index = 0 if len(self._turns) == 1 else self._played
        self._played += 1
        if index >= len(self._turns):
            message = f"no scripted response: all {len(self._turns)} turns have been played"
            return [AdapterError("no_scripted_response", message, provider="fake")]
        return self._turns[index]

    def __repr__(self) -> str:
        turns = "a function" if self._function else f"{len(self._turns)} turns"
        return f"Fake({turns}, {len(self.requests)} requests)"


class _Play:
    """One subscription's turn: it stops at a delay and while the consumer is behind, and goes on by itself."""

    def __init__(
        self,
        pieces: list[Piece],
        request: Request,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._steps = _perform(pieces, request)
        self._observer = observer
        self._scheduler = scheduler
        self._gate = current_gate.get()
        self._waiting = SerialDisposable()
        self._disposed = False
        self._delivering = False  # stays True when a subscriber raises

    def start(self) -> abc.DisposableBase:
        self._soon()
        return CompositeDisposable(Disposable(self._dispose), self._waiting)

    def _dispose(self) -> None:
        self._disposed = True

    def _soon(self) -> None:
        # Not at once: the subscriber must have its disposable before the first event, so that take(1) can stop us.
        scheduler = self._scheduler or CurrentThreadScheduler.singleton()
        self._wait_for(lambda: scheduler.schedule(self._play))

    def _wait_for(self, start: Callable[[], abc.DisposableBase]) -> None:
        waiting = self._waiting.disposable = SingleAssignmentDisposable()  # before it goes on, maybe on another thread
        waiting.disposable = start()

    def _play(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        try:
            for step in self._steps:
                if not isinstance(step, list):
                    self._wait_for(partial(clock(self._scheduler).schedule_relative, step, self._play))
                    return
                for event in step:
                    if self._disposed:
                        return
                    self._delivering = True
                    self._observer.on_next(event)
                    self._delivering = False
                if self._gate is not None and self._gate.full:
                    self._gate.when_open(self._soon)
                    return
        except Exception as error:
            self._fail(error)
        else:
            self._observer.on_completed()

    def _fail(self, error: Exception) -> None:
        try:
            if self._disposed and self._delivering:  # by the subscriber that raised: it has heard its last
                raise error
            self._observer.on_error(error)
        except Exception as unheard:
            report_unheard(unheard)


def _pieces(turn: Any) -> list[Piece]:
    pieces = cast(list[Piece], turn) if isinstance(turn, list) else [cast(Piece, turn)]
    for piece in pieces:
        if not _means_something(piece):
            raise ValueError(f"{piece!r} is no piece of script; a tuple begins with one of {', '.join(_WORDS)}")
    return pieces


def _means_something(piece: Any) -> bool:
    match piece:
        case str() | ToolCall() | Usage() | BaseException() | ("text" | "thinking", str()):
            return True
        case ("delay", int() | float()) | ("raw_chunk" | "error" | "finish", _) | ("tool_call_delta", Mapping()):
            return True
        case ("tool_call", Mapping()):
            return _fits(ToolCall, cast(Mapping[str, Any], piece[1]))
        case ("usage", Mapping()):
            return _fits(Usage, cast(Mapping[str, Any], piece[1]))
        case _:
            return isinstance(piece, EVENT_CLASSES)


def _fits(made: Callable[..., Any], fields: Mapping[str, Any]) -> bool:
    try:
        made(**fields)
    except TypeError:
        return False
    return True


def _perform(pieces: list[Any], request: Request) -> Iterator[list[Event] | float]:
    """The events of a turn, piece by piece, and its pauses in seconds. Raises an exception that comes first."""
    if pieces and isinstance(pieces[0], BaseException):
        raise pieces[0]
    blocks = Blocks(CallTracker.after(request.messages))
    if not isinstance(next(iter(pieces), None), MessageStarted):
        blocks.start()
    calls = 0
    for piece in pieces:
        match piece:
            case str(text) | ("text", str(text)):
                blocks.text(text)
            case ("thinking", str(text)):
                blocks.thinking(text)
            case ToolCall() | ("tool_call", _):
                _call(blocks, calls, piece if isinstance(piece, ToolCall) else _tool_call(piece[1]))
                calls += 1
            case ("tool_call_delta", given):
                blocks.call(None, given.get("id"), given.get("name"), given.get("arguments_delta"))
            case Usage():
                blocks.usage(piece)
            case ("usage", counted):
                blocks.usage(Usage(**counted))
            case ("raw_chunk", (str(kind), data)):
                blocks.raw(kind, data)
            case ("raw_chunk", data):
                blocks.raw("chunk", data)
            case ("delay", seconds):
                yield blocks.take()
                yield float(seconds)
            case ("error", reason):
                blocks.error(_error(reason))
            case ("finish", reason):
                blocks.finish(reason if reason in get_args(FinishReason) else "other", str(reason))
                break
            case BaseException():
                blocks.error(_streamed(piece))
            case event:
                blocks.event(cast(Event, event))
        yield blocks.take()
        if blocks.ended:
            return
    blocks.finish("stop", None)
    blocks.end()
    yield blocks.take()


def _call(blocks: Blocks, index: int, call: ToolCall) -> None:
    raw = call.raw_arguments if call.raw_arguments is not None else msgspec.json.encode(call.arguments).decode()
    blocks.call(index, call.id, call.name, raw, call.metadata)
    blocks.complete_call(index)


def _tool_call(given: Mapping[str, Any]) -> ToolCall:
    return ToolCall(**given)


def _error(reason: Any) -> LLMError:
    if isinstance(reason, LLMError):
        return reason
    known = isinstance(reason, str) and reason in AdapterError.REASONS
    return AdapterError(reason if known else "unknown", None if known else f"scripted error: {reason}", provider="fake")


def _streamed(error: BaseException) -> LLMError:
    if isinstance(error, LLMError):
        return error
    return StreamError("adapter_error", f"{type(error).__name__}: {error}", provider="fake")

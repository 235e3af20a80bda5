"""A scripted model for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, cast, get_args

from reactivex import abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.events import EVENT_CLASSES, Event, MessageStarted
from rxllm.runtime import LoopScheduler, Pump, Stream, clock, current_gate, fail, pumped, report_unheard
from rxllm.values import (
    AdapterError,
    Call,
    FinishReason,
    LLMError,
    Request,
    StreamError,
    ToolCall,
    Usage,
    ValidationError,
)
from rxllm.values.advice import explains_options
from rxllm.values.argument_checks import did_you_mean, is_seconds, shown
from rxllm.values.json_text import json_text
from rxllm.wire.event_order import Blocks
from rxllm.wire.tool_calls import CallTracker

__all__ = ["Fake"]

Piece = str | ToolCall | Usage | BaseException | Event | tuple[str, Any]
Turn = Piece | Sequence[Piece]  # the sequence must be a list, but `list[Piece]` would reject a `list[str]`

_WORDS = ("text", "thinking", "tool_call", "tool_call_delta", "usage", "raw_chunk", "delay", "error", "finish")
_DELTA_FIELDS = {"id", "name", "arguments_delta"}


class Fake:
    """An adapter that plays scripted turns instead of calling a model.

    If there is only one turn, it answers every call. If there are several turns, each subscription plays the next turn.

    >>> from rxllm import generate
    >>> generate(Fake("Hello"), "Hi").run().output_text
    'Hello'

    There are three ways to pass turns: each turn as a positional argument, a single turn as ``script=[...]``, or
    several turns as ``scripts=[[...], ...]``. Instead of turns, you can also pass a function that takes the request and
    returns a turn. A turn is one piece, or a list of pieces:

    =================================================  =================================================================
    piece                                              meaning
    =================================================  =================================================================
    ``"Hello"``, ``("text", "Hello")``                 a text delta
    ``("thinking", "hm")``                             a thinking delta
    a `ToolCall`, ``("tool_call", {"name": .., ..})``  a complete tool call; the mapping can have `name`, `id`, and
                                                       `arguments` or `raw_arguments`
    ``("tool_call_delta", {"id": .., ..})``            a part of a tool call; it has `id` and `arguments_delta`, and the
                                                       first delta of a call also has `name`
    a `Usage`, ``("usage", {"input_tokens": 3})``      the usage; the mapping has the field names of `Usage`
    ``("raw_chunk", data)``, ``(.., (kind, data))``    a ``RawChunk``
    ``("delay", seconds)``                             a pause, timed by the subscription's scheduler
    ``("error", "rate_limited")``                      an ``ErrorEvent``, which ends the turn; the second item is an
                                                       exception or the reason of an `AdapterError`
    ``("finish", "stop")``                             the finish reason, which ends the turn
    an exception                                       if it is the first piece, the call fails with it; otherwise, it
                                                       becomes an ``ErrorEvent``
    an event                                           the event itself
    =================================================  =================================================================

    A function that you pass can be async. A plain function must not sleep, because that would block the event loop. Use
    ``("delay", seconds)`` instead. If there is no event loop, turns run on the caller's thread. `requests` lists all
    the requests that were made.

    Raises ``ValidationError("invalid_option")`` if a piece has any other form. The pieces that a function returns are
    checked when they are played. Once all turns have been played, calls fail with
    ``AdapterError("no_scripted_response")``.
    """

    @explains_options("Fake(...)")
    def __init__(
        self,
        *turns: Turn | Callable[[Request], Turn | Awaitable[Turn]],
        script: Iterable[Piece] | None = None,
        scripts: Iterable[Iterable[Piece]] | None = None,
    ) -> None:
        if sum(argument is not None for argument in (turns or None, script, scripts)) != 1:
            message = "pass the turns of Fake in exactly one way: as arguments, as script= or as scripts="
            raise ValidationError("invalid_option", message)
        self.requests: list[Request] = []
        self._function = turns[0] if len(turns) == 1 and callable(turns[0]) else None
        all_turns = turns or [list(pieces) for pieces in ([script] if script is not None else scripts or ())]
        self._turns = [] if self._function else [pieces_of(turn) for turn in all_turns]
        self._played = 0

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """Return a stream that plays the next turn each time it is subscribed to."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.requests.append(request)
            if iscoroutinefunction(self._function):
                return self._play_async(self._function, request).subscribe(observer, scheduler=scheduler)
            return _Play(self._next_turn(request), request, observer, scheduler).start()

        return Stream(subscribe)

    def _play_async(self, function: Callable[[Request], Awaitable[Turn]], request: Request) -> Stream[Event]:
        async def body(pump: Pump[list[Piece]]) -> None:
            pump.emit((pieces_of(await function(request)),))

        def play(pieces: list[Piece]) -> Stream[Event]:
            return Stream(lambda observer, scheduler=None: _Play(pieces, request, observer, scheduler).start())

        return pumped(body).flat_map(play)

    def _next_turn(self, request: Request) -> list[Piece]:
        if self._function is not None:
            return pieces_of(self._function(request))
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
    """Plays a turn to one subscriber."""

    def __init__(
        self,
        pieces: list[Piece],
        request: Request,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._steps = perform(pieces, request)
        self._observer = observer
        self._scheduler = scheduler
        self._gate = current_gate()
        self._waiting = SerialDisposable()
        self._disposed = False
        self._delivering = False  # stays True if the subscriber raises an exception

    def start(self) -> abc.DisposableBase:
        self._schedule()
        return CompositeDisposable(Disposable(self._dispose), self._waiting)

    def _dispose(self) -> None:
        self._disposed = True

    def _schedule(self) -> None:
        # Do not play at once: ``take(1)`` must have its disposable before the first event arrives.
        scheduler = self._scheduler or CurrentThreadScheduler.singleton()
        self._wait_for(lambda: scheduler.schedule(self._play))

    def _wait_for(self, start: Callable[[], abc.DisposableBase]) -> None:
        # Assign the disposable first, because start() may continue on another thread.
        waiting = self._waiting.disposable = SingleAssignmentDisposable()
        waiting.disposable = start()

    def _pause(self, seconds: float) -> abc.DisposableBase:
        scheduler = clock(self._scheduler)
        if not isinstance(scheduler, LoopScheduler):  # virtual time
            return scheduler.schedule_relative(seconds, self._play)

        async def sleep(pump: Pump[Any]) -> None:
            await asyncio.sleep(seconds)

        # Unlike a timer, a task is cancelled when its event loop ends.
        waiting = pumped(sleep)
        return waiting.subscribe(on_error=self._observer.on_error, on_completed=self._play, scheduler=scheduler)

    def _play(self, scheduler: abc.SchedulerBase | None = None, state: Any = None) -> None:
        try:
            for step in self._steps:
                if not isinstance(step, list):
                    self._wait_for(partial(self._pause, step))
                    return
                for event in step:
                    if self._disposed:
                        return
                    self._delivering = True
                    self._observer.on_next(event)
                    self._delivering = False
                if self._gate is not None and self._gate.full:
                    self._gate.when_open(self._schedule)
                    return
        except BaseException as error:
            if self._disposed and self._delivering:  # a subscriber that has unsubscribed must not receive it
                report_unheard(error)
            else:
                fail(self._observer, error)
        else:
            self._observer.on_completed()


# The following functions read scripts. The docstring of `Fake` describes the format of a script.


def pieces_of(turn: Any) -> list[Piece]:
    """Return the pieces of `turn` as a list. Raises ``ValidationError`` if one of them is invalid."""
    pieces = cast(list[Piece], turn) if isinstance(turn, list) else [cast(Piece, turn)]
    for piece in pieces:
        if not _is_valid(piece):
            raise ValidationError("invalid_option", f"{shown(piece)} is not a valid script item; {_remedy(piece)}")
    return pieces


def _is_valid(piece: Any) -> bool:
    match piece:
        case str() | ToolCall() | Usage() | BaseException() | ("text" | "thinking", str()):
            return True
        case ("raw_chunk" | "finish", _) | ("error", BaseException()):
            return True
        case ("error", reason):
            return isinstance(reason, str) and reason in AdapterError.REASONS
        case ("delay", seconds):
            return is_seconds(seconds)
        case ("tool_call_delta", Mapping()):
            return set(cast(Mapping[str, Any], piece[1])) <= _DELTA_FIELDS
        case ("tool_call", Mapping()):
            return _fits(_call_of, cast(Mapping[str, Any], piece[1]))
        case ("usage", Mapping()):
            return _fits(Usage, cast(Mapping[str, Any], piece[1]))
        case _:
            return isinstance(piece, EVENT_CLASSES)


def _remedy(piece: Any) -> str:
    match piece:
        case ("error", reason):
            suggestion = did_you_mean(reason, AdapterError.REASONS) if isinstance(reason, str) else ""
            return f"an error must be an exception, or one of {', '.join(sorted(AdapterError.REASONS))}{suggestion}"
        case ("delay", _):
            return "a delay must be a non-negative number of seconds"
        case ("tool_call_delta", _):
            return f"the fields of a delta are {', '.join(sorted(_DELTA_FIELDS))}"
        case ("tool_call", Mapping()):
            return "the fields of a tool call are id, name, arguments, raw_arguments and metadata; the name is required"
        case _:
            return f"a tuple must start with one of {', '.join(_WORDS)}; put several pieces in a list"


def _fits(cls: Callable[..., Any], fields: Mapping[str, Any]) -> bool:
    try:
        cls(**fields)
    except TypeError:
        return False
    return True


def _call_of(name: str, id: str = "", **fields: Any) -> ToolCall:
    return ToolCall(id, name, **fields)  # an empty id is filled in later, as in real adapters


def perform(pieces: list[Any], request: Request) -> Iterator[list[Event] | float]:
    """Yield a list of events for each piece, and also a number of seconds for each delay.

    If the first piece is an exception, raise it.
    """
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
                _add_call(blocks, calls, piece if isinstance(piece, ToolCall) else _call_of(**piece[1]))
                calls += 1
            case ("tool_call_delta", delta):
                blocks.call(None, delta.get("id"), delta.get("name"), delta.get("arguments_delta"))
            case Usage():
                blocks.usage(piece)
            case ("usage", counters):
                blocks.usage(Usage(**counters))
            case ("raw_chunk", (str(kind), data)):
                blocks.raw(kind, data)
            case ("raw_chunk", data):
                blocks.raw("chunk", data)
            case ("delay", seconds):
                yield blocks.take()
                yield float(seconds)
            case ("error", reason) | (BaseException() as reason):
                blocks.error(_to_error(reason))
            case ("finish", reason):
                blocks.finish(reason if reason in get_args(FinishReason) else "other", str(reason))
                break
            case event:
                blocks.event(cast(Event, event))
        yield blocks.take()
        if blocks.ended:
            return
    blocks.finish("stop", None)
    blocks.end()
    yield blocks.take()


def _add_call(blocks: Blocks, index: int, call: ToolCall) -> None:
    raw = call.raw_arguments if call.raw_arguments is not None else json_text(call.arguments)
    blocks.call(index, call.id, call.name, raw, call.metadata)
    blocks.complete_call(index)


def _to_error(reason: Any) -> LLMError:
    if isinstance(reason, LLMError):
        return reason
    if isinstance(reason, BaseException):
        return StreamError("adapter_error", f"{type(reason).__name__}: {reason}", provider="fake")
    return AdapterError(reason, provider="fake")

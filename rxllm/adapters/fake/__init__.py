"""A scripted model for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from reactivex import abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.adapters.fake.script import Piece, Turn, perform, pieces_of
from rxllm.events import Event
from rxllm.runtime import LoopScheduler, Pump, Stream, clock, current_gate, fail, pumped, report_unheard
from rxllm.values import AdapterError, Call, Request, ValidationError
from rxllm.values.argument_checks import explains_options, is_seconds

__all__ = ["Fake"]


_SCRIPTS = {
    "delay": '[("delay", {}), "Hello"]',
    "usage": '["Hello", rxllm.Usage(3, 5)]',
    "tool_calls": '[rxllm.ToolCall("c1", "add", {"a": 1})], "done"',
    "error": '("error", "rate_limited")',
    "finish_reason": '["Hello", ("finish", "length")]',
    "thinking": '[("thinking", "hm"), "Hello"]',
}


def _advice(_: str, option: str, value: Any) -> str:
    if option in _SCRIPTS:
        turns = _SCRIPTS[option].replace("{}", str(value) if is_seconds(value) else "0.1")
        return f"put it into the script: Fake({turns})"
    if option in ("responses", "answers", "turns", "messages", "text", "response", "content"):
        return 'pass an argument for each answer: Fake("first", "second")'
    if option in ("model", "tools"):
        return f'a {option.removesuffix("s")} belongs to the engine: Engine(Fake("Hello"), {option}="...")'
    return ""


class Fake:
    """An adapter that plays turns: a single turn answers every call, several turns are played one per subscription.

    >>> from rxllm import generate
    >>> generate(Fake("Hello"), "Hi").run().output_text
    'Hello'

    Pass turns as arguments, one turn as ``script=[...]``, several as ``scripts=[[...], ...]``, or a function of the
    request that returns a turn. A turn is a piece of script, or a list of pieces:

    =================================================  =================================================================
    piece                                              meaning
    =================================================  =================================================================
    ``"Hello"``, ``("text", "Hello")``                 a text delta
    ``("thinking", "hm")``                             a thinking delta
    a `ToolCall`, ``("tool_call", {"name": .., ..})``  a whole tool call: `name`, `arguments` or `raw_arguments`, `id`
    ``("tool_call_delta", {"id": .., ..})``            a piece of a call: `id`, `arguments_delta`, first the `name`
    a `Usage`, ``("usage", {"input_tokens": 3})``      usage, with the field names of `Usage`
    ``("raw_chunk", data)``, ``(.., (kind, data))``    a ``RawChunk``
    ``("delay", seconds)``                             a pause, on the subscription's scheduler
    ``("error", "rate_limited")``                      an ``ErrorEvent`` with a reason of `AdapterError`, or with an
                                                       exception; nothing follows
    ``("finish", "stop")``                             the finish reason; nothing follows
    an exception                                       as the first piece, the call fails; later, an ``ErrorEvent``
    an event                                           the event itself
    =================================================  =================================================================

    A function may be async. A plain function runs on the event loop, so one that sleeps blocks the loop: write
    ``("delay", seconds)``, or an async function. `requests` holds all requests in order. Without an event loop, turns
    are played on the caller's thread.

    Raises ``ValidationError("invalid_option")`` for a piece that is not in the table; a piece that a function returns
    is checked when its turn is played. After the last turn, calls fail with ``AdapterError("no_scripted_response")``.
    """

    @explains_options(_advice)
    def __init__(
        self,
        *turns: Turn | Callable[[Request], Turn | Awaitable[Turn]],
        script: Iterable[Piece] | None = None,
        scripts: Iterable[Iterable[Piece]] | None = None,
    ) -> None:
        if sum(argument is not None for argument in (turns or None, script, scripts)) != 1:
            message = "Fake takes its turns in one form: pass arguments, or script=, or scripts="
            raise ValidationError("invalid_option", message)
        self.requests: list[Request] = []
        self._function = turns[0] if len(turns) == 1 and callable(turns[0]) else None
        all_turns = turns or [list(pieces) for pieces in ([script] if script is not None else scripts or ())]
        self._turns = [] if self._function else [pieces_of(turn) for turn in all_turns]
        self._played = 0

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """Return a stream that plays the next turn for each subscription."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.requests.append(request)
            if iscoroutinefunction(self._function):
                return self._play_async(self._function, request).subscribe(observer, scheduler=scheduler)
            return _Play(self._next_turn(request), request, observer, scheduler).start()

        return Stream(subscribe)

    def _play_async(self, function: Callable[[Request], Awaitable[Turn]], request: Request) -> Stream[Event]:
        """Await the turn of `function`, and play it."""

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
    """Plays one subscription's turn, with pauses at delays and while the consumer is behind."""

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
        self._delivering = False  # stays True if the subscriber raises

    def start(self) -> abc.DisposableBase:
        self._schedule()
        return CompositeDisposable(Disposable(self._dispose), self._waiting)

    def _dispose(self) -> None:
        self._disposed = True

    def _schedule(self) -> None:
        # Not at once: the subscriber needs its disposable before the first event, so that take(1) can dispose it.
        scheduler = self._scheduler or CurrentThreadScheduler.singleton()
        self._wait_for(lambda: scheduler.schedule(self._play))

    def _wait_for(self, start: Callable[[], abc.DisposableBase]) -> None:
        # Assigned before start(), which may resume on another thread.
        waiting = self._waiting.disposable = SingleAssignmentDisposable()
        waiting.disposable = start()

    def _pause(self, seconds: float) -> abc.DisposableBase:
        scheduler = clock(self._scheduler)
        if not isinstance(scheduler, LoopScheduler):  # virtual time
            return scheduler.schedule_relative(seconds, self._play)

        async def sleep(pump: Pump[Any]) -> None:
            await asyncio.sleep(seconds)

        # A task rather than a timer, because a task also ends with its loop.
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
            if self._disposed and self._delivering:  # the subscriber disposed and raised, so it receives nothing more
                report_unheard(error)
            else:
                fail(self._observer, error)
        else:
            self._observer.on_completed()

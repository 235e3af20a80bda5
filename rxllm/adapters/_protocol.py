"""What counts as an adapter: an object with ``stream``, or an asynchronous generator function of the same arguments."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

from rxllm.collector import Unfinished, adapter_fault, fold_message, is_server
from rxllm.events import (
    EVENT_CLASSES,
    Custom,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    UsageUpdated,
)
from rxllm.runtime import Stream, conclude, from_async_iter
from rxllm.values import Call, EngineError, LLMError, Message, Request, StreamError
from rxllm.values.arguments import call_fault

if TYPE_CHECKING:
    from rxllm.chunks import CompletionChunk, StreamChunk


@runtime_checkable
class Adapter(Protocol):
    """Turns a request into a cold Observable of events, see ``rxllm.events`` for what it keeps."""

    def stream(self, request: Request, call: Call) -> Observable[Event]: ...


def as_adapter(given: Any) -> Adapter:
    """`given` as an adapter.

    An asynchronous generator function, which an object's ``stream`` may be too, may leave out the bookends
    (``MessageStarted``, completions, ``MessageCompleted``), or yield `StreamChunk`s, plain mappings of their fields, or
    `CompletionChunk`s of ``rxllm.chunks``, and no events. Raises ``EngineError``: ``missing_adapter`` for None,
    ``missing_stream_adapter`` for what cannot stream.
    """
    if given is None:
        raise EngineError("missing_adapter", "the engine has no adapter; give it one, as in Engine(OpenAIChat())")
    if inspect.isasyncgenfunction(given):
        return _Generated(given)
    if isinstance(given, Adapter) and not isinstance(given, type):
        if inspect.isasyncgenfunction(given.stream):
            return _Generated(given.stream)
        return _Checked(given)
    message = f"{given!r} is no adapter: it needs stream(request, call), or to be an async generator function of these"
    raise EngineError("missing_stream_adapter", message)


class _Checked:
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def stream(self, request: Request, call: Call) -> Observable[Event]:
        events: Any = self._adapter.stream(request, call)
        if isinstance(events, Observable):
            made = cast(Observable[Event], events)
            return made if _is_own(self._adapter) else _lawful(made)
        what = f"stream(request, call) of {self._adapter!r} gave no Observable but {events!r}"
        message = f"{what}; of an async generator, rxllm.from_async_iter makes one"
        raise EngineError("missing_stream_adapter", message)


def _is_own(adapter: Adapter) -> bool:
    """Whether its events are made by a decoder of rxllm's, which needs no check."""
    decoder = getattr(type(adapter), "decoder", None)
    return getattr(decoder, "__module__", "").startswith("rxllm.adapters.")


def _lawful(source: Observable[Event]) -> Stream[Event]:
    """`source` up to its first malformed event, whose place an ``ErrorEvent`` takes; what is open is closed before."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        unfinished = Unfinished()
        subscription = SingleAssignmentDisposable()
        begun = False

        def on_next(event: Event) -> None:
            nonlocal begun
            if fault := adapter_fault(event):
                subscription.dispose()
                first = [] if begun else [MessageStarted(Message("assistant"))]
                conclude(observer, [*first, *unfinished.close(), ErrorEvent(StreamError("malformed_event", fault))])
                return
            begun = True
            unfinished.see(event)
            observer.on_next(event)

        subscription.disposable = source.subscribe(
            on_next, observer.on_error, observer.on_completed, scheduler=scheduler
        )
        return subscription

    return Stream(subscribe)


class _Generated:
    def __init__(
        self,
        function: Callable[[Request, Call], AsyncIterator[Event | StreamChunk | Mapping[str, Any] | CompletionChunk]],
    ) -> None:
        fault = call_fault(function, None, None)
        if fault is not None:
            message = f"the adapter {function!r} is called with (request, call): {fault}"
            raise EngineError("missing_stream_adapter", message)
        self._function = function

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        return from_async_iter(lambda: _bookended(self._function(request, call), request))


async def _bookended(items: AsyncIterator[Any], request: Request) -> AsyncIterator[Event]:
    from rxllm.chunks import ChunkFeeder, CompletionChunk, StreamChunk  # when it is needed, not by every program
    from rxllm.chunks._from_completion_chunks import CompletionFeeder

    bookends: Any = _Bookends()
    try:
        async with aclosing(cast(Any, items)):
            async for item in items:
                if isinstance(item, StreamChunk | Mapping) and not bookends.said:
                    bookends = ChunkFeeder(request.messages)
                elif isinstance(item, CompletionChunk) and not bookends.said:
                    bookends = CompletionFeeder(request.messages)
                for each in bookends.feed(item):
                    yield each
                if bookends.ended:
                    return
    except Exception as error:
        if not bookends.said:
            raise
        for each in bookends.fail(_streamed(error)):
            yield each
        return
    for each in bookends.close():
        yield each


class _Bookends:
    """Adds the events that a generator may leave out. One block is open at a time; whatever else comes closes it."""

    def __init__(self) -> None:
        self.said: list[Event] = []
        self._block: tuple[bool, str | None] | None = None  # whether it is text, and its id
        self._pieces: list[str] = []

    @property
    def ended(self) -> bool:
        return bool(self.said) and isinstance(self.said[-1], MessageCompleted | ErrorEvent)

    def feed(self, event: Event) -> list[Event]:
        if not isinstance(event, EVENT_CLASSES):  # pyright: ignore[reportUnnecessaryIsInstance]
            message = f"the adapter yielded {event!r}, which is no event; for text, yield TextDelta(...)"
            raise StreamError("malformed_event", message)
        if fault := adapter_fault(event):
            return self.fail(StreamError("malformed_event", fault))
        given: list[Event] = []
        if not self.said and not isinstance(event, MessageStarted):
            given.append(MessageStarted(Message("assistant")))
        match event:
            case TextDelta() | ThinkingDelta():
                block = (isinstance(event, TextDelta), event.id)
                if block != self._block:
                    given += self._close_block()
                    self._block = block
                self._pieces.append(event.delta)
            case TextCompleted() | ThinkingCompleted():
                if self._block == (isinstance(event, TextCompleted), event.id):
                    self._block, self._pieces = None, []
                given += self._close_block()
            case UsageUpdated() | RawChunk() | Custom():
                pass
            case _:
                given += self._close_block()
        given.append(event)
        self.said += given
        return given

    def fail(self, error: LLMError) -> list[Event]:
        """What is open is closed, then the error."""
        unfinished = Unfinished()
        for event in self.said:
            unfinished.see(event)
        first = [] if self.said else [MessageStarted(Message("assistant"))]
        given = [*first, *unfinished.close(), ErrorEvent(error)]
        self.said += given
        return given

    def close(self) -> list[Event]:
        """What is missing at the end."""
        before = len(self.said)
        self.said += [] if self.said else [MessageStarted(Message("assistant"))]
        self.said += self._close_block()
        message = fold_message(self.said)
        reason = "stop" if all(map(is_server, message.tool_calls)) else "tool_calls"
        self.said.append(MessageCompleted(message, reason))
        return self.said[before:]

    def _close_block(self) -> list[Event]:
        (block, text), self._block, self._pieces = (self._block, "".join(self._pieces)), None, []
        if block is None:
            return []
        is_text, id = block
        return [TextCompleted(text, id) if is_text else ThinkingCompleted(text, id=id)]


def _streamed(error: Exception) -> LLMError:
    if isinstance(error, LLMError):
        return error
    made = StreamError("adapter_error", f"the adapter failed: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made

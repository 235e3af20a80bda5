"""The adapter protocol, and the wrappers that make other objects follow it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Reversible
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

from rxllm.collector import BLOCKS, BlockKey, Unfinished, block_key, event_fault, fold_message, is_server
from rxllm.events import (
    EVENT_CLASSES,
    Custom,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    PartAdded,
    RawChunk,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    UsageUpdated,
    current_form,
)
from rxllm.runtime import Stream, conclude, from_async_iter
from rxllm.values import Call, EngineError, LLMError, Message, Request, StreamError, Usage
from rxllm.values.argument_checks import call_fault, shown
from rxllm.wire.event_order import BlockIds

if TYPE_CHECKING:
    from rxllm.chunks import CompletionChunk, StreamChunk


@runtime_checkable
class Adapter(Protocol):
    """Turns a request into events as defined in ``rxllm.events``."""

    def stream(self, request: Request, call: Call) -> Observable[Event]: ...


def as_adapter(adapter: Any) -> Adapter:
    """Return an object whose ``stream`` returns an Observable.

    `adapter` can be an adapter, an async generator function, or an object whose ``stream`` is an async generator
    function. The generator may leave out ``MessageStarted``, ``TextCompleted``, ``ThinkingCompleted`` and
    ``MessageCompleted``. Instead of events, it may yield `StreamChunk`s, mappings with the same fields as a
    `StreamChunk`, or `CompletionChunk`s; see ``rxllm.chunks``. A block that has no id is given one.

    Raises ``EngineError("missing_adapter")`` if `adapter` is None, and ``EngineError("missing_stream_adapter")`` if it
    cannot stream.
    """
    if adapter is None:
        raise EngineError("missing_adapter", "the engine has no adapter; pass one, as in Engine('openai:gpt-5')")
    stream = getattr(adapter, "stream", None)
    if callable(stream) and not isinstance(adapter, type):
        return _GeneratorAdapter(stream) if inspect.isasyncgenfunction(stream) else _ObjectAdapter(adapter)
    if inspect.isasyncgenfunction(adapter):
        return _GeneratorAdapter(adapter)
    remedy = "pass an object with stream(request, call), or an async generator function that takes the same arguments"
    raise EngineError("missing_stream_adapter", f"{shown(adapter)} is not an adapter; {remedy}")


class _ObjectAdapter:
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def stream(self, request: Request, call: Call) -> Observable[Event]:
        events: Any = self._adapter.stream(request, call)
        if isinstance(events, Observable):
            source = cast(Observable[Event], events)
            return source if _has_own_decoder(self._adapter) else _check_events(source)
        fault = f"the stream method of {shown(self._adapter)} returned {shown(events)}, which is not an Observable"
        message = f"{fault}; use rxllm.from_async_iter to make one from an async generator"
        raise EngineError("missing_stream_adapter", message)


def _has_own_decoder(adapter: Adapter) -> bool:
    decoder = getattr(type(adapter), "decoder", None)
    return getattr(decoder, "__module__", "").startswith("rxllm.adapters.")


def _check_events(source: Observable[Event]) -> Stream[Event]:
    """Check each event before it is emitted. If an event is malformed, the stream ends with an error."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        unfinished, event_check = Unfinished(), _EventCheck()
        subscription = SingleAssignmentDisposable()
        has_begun = False

        def on_next(event: Event) -> None:
            nonlocal has_begun
            try:
                checked = event_check.read(event, unfinished.blocks)
            except StreamError as error:
                subscription.dispose()
                conclude(observer, failure_events(error, unfinished, has_begun))
                return
            if checked is not None:
                has_begun = True
                unfinished.see(checked)
                observer.on_next(checked)

        subscription.disposable = source.subscribe(
            on_next, observer.on_error, observer.on_completed, scheduler=scheduler
        )
        return subscription

    return Stream(subscribe)


class _EventCheck:
    """Checks the fields of each event, gives an id to each block that has none, and converts obsolete events."""

    def __init__(self) -> None:
        self._ids = BlockIds()
        self._usage: Usage | None = None

    def read(self, event: Event, open_blocks: Reversible[BlockKey]) -> Event | None:
        """Check `event`, and return the event to emit for it.

        An obsolete event is converted to the class of event that has replaced it. If an obsolete event only repeats the
        usage that was reported last, return None. Raises ``StreamError`` if `event` is malformed.
        """
        if fault := event_fault(event):
            raise StreamError("malformed_event", fault)
        kind = BLOCKS.get(type(event))
        if kind is None:
            return self._read_other(event)
        event_id: str | None = cast(Any, event).id
        id = block_key(kind, None, open_blocks)[1] if event_id is None else None
        if id is None:
            id = self._ids.of(event_id)
        return event if id == event_id else msgspec.structs.replace(event, id=id)

    def _read_other(self, event: Event) -> Event | None:
        try:
            current = current_form(event)
        except TypeError as error:
            raise StreamError("malformed_event", f"RawChunk.data has unknown counters: {error}") from None
        if isinstance(current, UsageUpdated):
            if current is not event and current.usage == self._usage:
                return None
            self._usage = current.usage
        return current


def failure_events(error: LLMError, unfinished: Unfinished, has_begun: bool) -> list[Event]:
    start = [] if has_begun else [MessageStarted(Message("assistant"))]
    return [*start, *unfinished.close(), ErrorEvent(error)]


class _GeneratorAdapter:
    def __init__(
        self,
        function: Callable[[Request, Call], AsyncIterator[Event | StreamChunk | Mapping[str, Any] | CompletionChunk]],
    ) -> None:
        fault = call_fault(function, None, None)
        if fault is not None:
            message = f"the adapter {shown(function)} cannot be called with (request, call): {fault}"
            raise EngineError("missing_stream_adapter", message)
        self._function = function

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        return from_async_iter(lambda: _events(self._function(request, call), request))


async def _events(items: AsyncIterator[Any], request: Request) -> AsyncIterator[Event]:
    from rxllm.chunks import ChunkFeeder, CompletionChunk, StreamChunk  # imported here because few programs need it
    from rxllm.chunks.completion import CompletionFeeder

    feeder: Any = _Bookends()
    try:
        async with aclosing(cast(Any, items)):
            async for item in items:
                if isinstance(item, StreamChunk | Mapping) and not feeder.started:
                    feeder = ChunkFeeder(request.messages)
                elif isinstance(item, CompletionChunk) and not feeder.started:
                    feeder = CompletionFeeder(request.messages)
                for event in feeder.feed(item):
                    yield event
                if feeder.ended:
                    return
    except Exception as error:
        if not feeder.started:
            raise
        for event in feeder.fail(_as_stream_error(error)):
            yield event
        return
    for event in feeder.close():
        yield event


class _Bookends:
    """Adds the events that a generator may leave out, such as ``MessageStarted`` and ``TextCompleted``."""

    def __init__(self) -> None:
        self._emitted: list[Event] = []
        self._check = _EventCheck()
        self._block: BlockKey | None = None
        self._pieces: list[str] = []

    @property
    def started(self) -> bool:
        return bool(self._emitted)

    @property
    def ended(self) -> bool:
        return self.started and isinstance(self._emitted[-1], MessageCompleted | ErrorEvent)

    def feed(self, event: Event) -> list[Event]:
        try:
            checked = self._check.read(event, () if self._block is None else (self._block,))
        except StreamError as error:
            if isinstance(event, EVENT_CLASSES):  # pyright: ignore[reportUnnecessaryIsInstance]
                return self.fail(error)
            message = f"the adapter yielded {shown(event)}, which is not an event; for text, yield TextDelta(...)"
            raise StreamError("malformed_event", message) from None
        if checked is None:
            return []
        missing = [] if self.started or isinstance(checked, MessageStarted) else [MessageStarted(Message("assistant"))]
        return self._emit([*missing, *self._complete_before(checked), checked])

    def _complete_before(self, event: Event) -> list[Event]:
        match event:
            case TextDelta() | ThinkingDelta():
                block = (type(event), event.id)
                completion = self._close_block() if block != self._block else []
                self._block = block
                self._pieces.append(event.delta)
                return completion
            case TextCompleted() | ThinkingCompleted():
                if self._block == (BLOCKS[type(event)], event.id):
                    self._block, self._pieces = None, []
                return self._close_block()
            case UsageUpdated() | RawChunk() | PartAdded() | Custom():
                return []
            case _:
                return self._close_block()

    def fail(self, error: LLMError) -> list[Event]:
        unfinished = Unfinished()
        for event in self._emitted:
            unfinished.see(event)
        return self._emit(failure_events(error, unfinished, self.started))

    def close(self) -> list[Event]:
        start = [] if self.started else [MessageStarted(Message("assistant"))]
        last = self._emit([*start, *self._close_block()])
        message = fold_message(self._emitted)
        reason = "stop" if all(map(is_server, message.tool_calls)) else "tool_calls"
        return last + self._emit([MessageCompleted(message, reason)])

    def _emit(self, events: list[Event]) -> list[Event]:
        self._emitted += events
        return events

    def _close_block(self) -> list[Event]:
        (block, text), self._block, self._pieces = (self._block, "".join(self._pieces)), None, []
        if block is None:
            return []
        kind, id = block
        return [TextCompleted(text, id) if kind is TextDelta else ThinkingCompleted(text, id=id)]


def _as_stream_error(error: Exception) -> LLMError:
    if isinstance(error, LLMError):
        return error
    failure = StreamError("adapter_error", f"the adapter failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure

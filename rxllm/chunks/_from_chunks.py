"""Chunks as events: `from_chunks`, and `events_of`, which it shares with `from_completion_chunks`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from reactivex import Observable, abc

from rxllm.chunks._feeder import ChunkFeeder
from rxllm.chunks._stream_chunk import StreamChunk
from rxllm.events import Event
from rxllm.runtime import Stream, conclude
from rxllm.values import LLMError, Message

T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)


def from_chunks(
    messages: Iterable[Message] = (),
) -> Callable[[Observable[StreamChunk | Mapping[str, Any]]], Stream[Event]]:
    """Turn one response's `StreamChunk`s, or plain mappings of their fields, into the events that every adapter emits.

    ::

        source             --text--call--fragment--meta--|
        from_chunks()      --(ab)--(cd)--e---------u-----(fg|)

    a: ``MessageStarted``, b: ``TextDelta``, c: ``TextCompleted``, d: ``ToolCallStarted``, e: ``ToolCallDelta``,
    u: ``UsageUpdated``, f: ``ToolCallCompleted``, g: one ``MessageCompleted``, however many meta chunks there are.

    >>> from reactivex import of
    >>> from rxllm import chunks, operators as ops
    >>> call = chunks.tool_call("add", metadata={"id": "c1", "start": True})
    >>> rest = chunks.meta({"tool_call_args": {"index": 0, "fragment": '{"a": 1}'}, "finish_reason": "tool_use"})
    >>> of(chunks.text("I will."), call, rest).pipe(from_chunks(), ops.to_response()).run()
    Response('I will.', calls=[add(a=1)], tool_calls, 0 tokens)

    `messages` are those that the response answers: calls without an id then get one that is unique in the thread. A
    failing source becomes an ``ErrorEvent`` after everything open is completed, and so does a meta chunk with an
    ``error``, which ends the stream; an ``LLMError`` before the first chunk goes to ``on_error``. A source that
    completes without a finish reason means ``stop``. Calls whose arguments are not a JSON object, or were announced and
    never came, have ``metadata["error"]``. Chunks of unknown types and unknown keys become ``RawChunk``s.
    """
    messages = tuple(messages)
    return events_of(lambda: ChunkFeeder(messages))


class Feeder(Protocol[T_in]):
    """Chunks in, lawful events out. `started`: there was an event; `ended`: it was the last one."""

    @property
    def started(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def feed(self, chunk: T_in, /) -> Iterable[Event]: ...

    def close(self) -> Iterable[Event]: ...

    def fail(self, error: Exception, /) -> Iterable[Event]: ...


def events_of(make: Callable[[], Feeder[T]]) -> Callable[[Observable[T]], Stream[Event]]:
    """Return the operator that feeds a fresh ``make()``.

    An error of the source, of ``feed`` or of ``close`` becomes the events of ``fail`` and a normal end. An ``LLMError``
    of the source before the first event goes to ``on_error``, and so does what ``fail`` raises.
    """

    def operator(source: Observable[T]) -> Stream[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            feeder = make()
            pending = deque[Event]()  # a chunk that comes while another one is being delivered waits its turn
            delivering = False  # stays True after a subscriber's exception, which is not a failure of the stream

            def on_next(chunk: T) -> None:
                nonlocal delivering
                try:
                    pending.extend(feeder.feed(chunk))
                except Exception as error:  # not a chunk, or one with wrong types
                    fail(error)
                    return
                if delivering:
                    return
                delivering = True
                while pending:
                    observer.on_next(pending.popleft())
                delivering = False
                if feeder.ended:
                    observer.on_completed()

            def on_error(error: Exception) -> None:
                if delivering or (isinstance(error, LLMError) and not feeder.started):
                    observer.on_error(error)
                else:
                    fail(error)

            def on_completed() -> None:
                try:
                    events = feeder.close()
                except Exception as error:  # raised from here, it would reach nobody
                    fail(error)
                else:
                    end(events)

            def fail(error: Exception) -> None:
                try:
                    events = feeder.fail(error)
                except Exception as another:
                    observer.on_error(another)
                else:
                    end(events)

            def end(events: Iterable[Event]) -> None:
                nonlocal delivering
                pending.extend(events)
                if not delivering:
                    delivering = True
                    conclude(observer, tuple(pending))

            return source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator

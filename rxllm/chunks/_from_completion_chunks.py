"""The completion dialect as events."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reactivex import Observable

from rxllm.chunks._completion_chunk import CompletionChunk, check_chunk
from rxllm.chunks._feeder import as_stream_error
from rxllm.chunks._from_chunks import events_of
from rxllm.chunks._metadata import merge_counters, normalised
from rxllm.events import Event
from rxllm.runtime import Stream
from rxllm.values import Message, Usage
from rxllm.wire.event_order import Blocks
from rxllm.wire.tool_calls import CallTracker


def from_completion_chunks(messages: Iterable[Message] = ()) -> Callable[[Observable[CompletionChunk]], Stream[Event]]:
    """Turn one response's `CompletionChunk`s into the events that every adapter emits.

    ::

        source                       --H--------i--final--|
        from_completion_chunks()     --(aH)-----i---------(bc|)

    a: ``MessageStarted``, b: the completion of what is open, c: ``MessageCompleted``.

    >>> from reactivex import of
    >>> from rxllm.chunks import CompletionChunk
    >>> chunks = of(CompletionChunk.text("Hi"), CompletionChunk.final_chunk(None, "stop"))
    >>> [type(event).__name__ for event in chunks.pipe(from_completion_chunks())]
    ['MessageStarted', 'TextDelta', 'TextCompleted', 'MessageCompleted']

    `messages` are those that the response answers: calls without an id then get one that is unique in the thread. Usage
    counts in any chunk, the largest number of each counter; so does a finish reason, and a final chunk without one
    means ``"stop"``. A source that completes without either was cut off: ``StreamError("truncated")``.

    A failing source becomes an ``ErrorEvent`` after everything open is completed; an ``LLMError`` before the first
    chunk goes to ``on_error``.
    """
    messages = tuple(messages)
    return events_of(lambda: CompletionFeeder(messages))


class CompletionFeeder:
    """The events of one response, chunk by chunk; `messages` are those it answers."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._blocks = Blocks(CallTracker.after(messages))
        self._usage = Usage()
        self._final = False

    @property
    def started(self) -> bool:
        return self._blocks.started

    @property
    def ended(self) -> bool:
        return self._blocks.ended

    def feed(self, chunk: CompletionChunk) -> list[Event]:
        check_chunk(chunk)
        blocks = self._blocks
        blocks.start()
        blocks.text(chunk.delta)
        for delta in chunk.tool_calls:
            blocks.call(delta.index, delta.id, delta.name, delta.arguments_delta)
        if chunk.usage is not None:
            counters = {name: value for name, value in vars(chunk.usage).items() if value not in (None, {})}
            self._usage = Usage(**merge_counters(vars(self._usage), counters))
            blocks.usage(self._usage)
        if chunk.finish_reason is not None:
            blocks.finish(normalised(chunk.finish_reason), chunk.finish_reason)
        self._final = self._final or chunk.is_final
        return blocks.take()

    def close(self) -> list[Event]:
        if self._final:
            self._blocks.finish("stop", None)  # does not replace a reason that was given
        self._blocks.end()
        return self._blocks.take()

    def fail(self, error: Exception) -> list[Event]:
        self._blocks.error(as_stream_error(error))
        return self._blocks.take()

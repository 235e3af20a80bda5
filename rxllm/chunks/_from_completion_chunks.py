"""The completion dialect as rxllm's events."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reactivex import Observable

from rxllm.chunks._completion import CompletionChunk, check_chunk
from rxllm.chunks._events import events_of
from rxllm.chunks._feed import streamed
from rxllm.chunks._reading import merge_counters, normalised
from rxllm.events import Event
from rxllm.runtime import Stream
from rxllm.values import Message, Usage
from rxllm.wire.blocks import Blocks
from rxllm.wire.tool_calls import CallTracker


def from_completion_chunks(messages: Iterable[Message] = ()) -> Callable[[Observable[CompletionChunk]], Stream[Event]]:
    """Turn one response's `CompletionChunk`s into the events that every adapter emits.

    ::

        source                       --H--------i--final--|
        from_completion_chunks()     --(aH)-----i---------(bc|)

    a: ``MessageStarted``, b: what is open is closed, c: ``MessageCompleted``.

    >>> from reactivex import of
    >>> from rxllm.chunks import CompletionChunk
    >>> chunks = of(CompletionChunk.text("Hi"), CompletionChunk.final_chunk(None, "stop"))
    >>> [type(event).__name__ for event in chunks.pipe(from_completion_chunks())]
    ['MessageStarted', 'TextDelta', 'TextCompleted', 'MessageCompleted']

    `messages` are those that are answered: calls without an id then get one that is unique in the thread. Usage counts
    wherever it stands, and of each counter the largest; so does a finish reason, and a final chunk that has none means
    ``"stop"``. A source that completes without either has been cut off: ``StreamError("truncated")``.

    A failing source is an ``ErrorEvent`` once everything open is closed; an ``LLMError`` before the first chunk goes to
    ``on_error``.
    """
    answered = tuple(messages)
    return events_of(lambda: CompletionFeeder(answered))


class CompletionFeeder:
    """The events of one response, chunk by chunk; `messages` are those it answers."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._blocks = Blocks(CallTracker.after(messages))
        self._usage = Usage()
        self._final = False

    @property
    def said(self) -> bool:
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
            self._count(chunk.usage)
        if chunk.finish_reason is not None:
            blocks.finish(normalised(chunk.finish_reason), chunk.finish_reason)
        self._final = self._final or chunk.is_final
        return blocks.take()

    def close(self) -> list[Event]:
        if self._final:
            self._blocks.finish("stop", None)  # takes back no reason that was given
        self._blocks.end()
        return self._blocks.take()

    def fail(self, error: Exception) -> list[Event]:
        self._blocks.error(streamed(error))
        return self._blocks.take()

    def _count(self, usage: Usage) -> None:
        said = {name: held for name, held in vars(usage).items() if held not in (None, {})}
        self._usage = Usage(**merge_counters(vars(self._usage), said))
        self._blocks.usage(self._usage)

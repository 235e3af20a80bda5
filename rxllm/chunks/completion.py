"""The chunks of the completion dialect, and functions that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec
from reactivex import Observable, abc

from rxllm.chunks._from_chunks import as_stream_error, events_of
from rxllm.chunks._stream_chunk import as_text, merge_counters, to_finish_reason
from rxllm.events import Event
from rxllm.runtime import Stream, conclude
from rxllm.values import FinishReason, LLMError, Message, StreamError, Usage, ValidationError, Value
from rxllm.values.argument_checks import shown
from rxllm.values.base import value
from rxllm.wire.event_order import Blocks
from rxllm.wire.tool_calls import CallTracker

_TEXT: tuple[type, ...] = (str, type(None))
_USAGE: tuple[type, ...] = (Usage, type(None))


class ToolCallDelta(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A piece of the tool call at position `index`. The first call is at 0.

    Usually only the first piece has an `id` and a `name`. `arguments_delta` is a piece of JSON text. Raises
    ``ValueError`` if `index` is negative.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments_delta: str = ""

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"the index of a ToolCallDelta must not be negative, but is {self.index}")


class CompletionChunk(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A chunk of a completion: text, pieces of tool calls, or the end.

    >>> CompletionChunk.text("Hi")
    CompletionChunk(delta='Hi')

    The final chunk contains the usage and the finish reason.
    """

    delta: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    is_final: bool = False
    usage: Usage | None = None
    finish_reason: FinishReason | None = None

    @classmethod
    def text(cls, delta: str) -> CompletionChunk:
        """Return a chunk of text.

        Raises ``ValidationError("invalid_message")`` unless `delta` is a string.
        """
        return cls(as_text(delta))

    @classmethod
    def final_chunk(cls, usage: Usage | None, reason: FinishReason | None) -> CompletionChunk:
        """Return the last chunk of a stream, which contains the usage and the finish reason.

        Raises ``ValidationError("invalid_message")`` if an argument has the wrong type.
        """
        arguments = (("usage", usage, _USAGE), ("reason", reason, _TEXT))
        errors = [((name,), "wrong_type") for name, value, types in arguments if not isinstance(value, types)]
        if errors:
            message = f"final_chunk takes the usage and then the reason, not {shown(usage)} and {shown(reason)}"
            raise ValidationError("invalid_message", message, errors=errors)
        return cls(is_final=True, usage=usage, finish_reason=reason)


CompletionStream: TypeAlias = Observable[CompletionChunk]


def check_chunk(item: Any) -> None:
    """Raise ``StreamError("malformed_event")`` unless `item` is a valid chunk."""
    if not isinstance(item, CompletionChunk):
        message = f"{shown(item)} is not a CompletionChunk; for text, use CompletionChunk.text(...)"
        raise StreamError("malformed_event", message)
    _check_field(item, "delta", _TEXT)
    _check_field(item, "usage", _USAGE)
    _check_field(item, "finish_reason", _TEXT)
    _check_field(item, "tool_calls", (tuple, list))
    for call in item.tool_calls:
        if not isinstance(call, ToolCallDelta):  # pyright: ignore[reportUnnecessaryIsInstance]
            message = f"the tool_calls of a CompletionChunk contain {shown(call)}; use ToolCallDelta(...)"
            raise StreamError("malformed_event", message)
        for name in ("id", "name", "arguments_delta"):
            _check_field(call, name, _TEXT)


def _check_field(struct: msgspec.Struct, name: str, types: tuple[type, ...]) -> None:
    value = getattr(struct, name)
    if not isinstance(value, types):
        raise StreamError("malformed_event", f"the {name} of a {type(struct).__name__} cannot be {shown(value)}")


@value
class CompletionToolCall(Value):
    """A complete tool call.

    `arguments` is the provider's text, which may not be valid JSON.
    """

    id: str
    name: str
    arguments: str = ""


def _no_usage() -> Usage:
    return Usage(input_tokens=0, output_tokens=0, total_tokens=0)


@value
class CompletionResponse(Value):
    """A whole completion, with the calls ordered by index.

    `content` is None if there is no text. `dropped` contains calls without an id, which cannot be answered.
    """

    content: str | None = None
    tool_calls: tuple[CompletionToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=_no_usage)
    model: str = ""
    dropped: tuple[CompletionToolCall, ...] = ()


def collect_completion() -> Callable[[Observable[CompletionChunk]], Stream[CompletionResponse]]:
    """Fold the chunks into one `CompletionResponse`.

    ::

        source                   --a--b--c--|
        collect_completion()     -----------(response)|

    >>> from reactivex import of
    >>> from rxllm.chunks import CompletionChunk
    >>> from rxllm.values import Usage
    >>> final = CompletionChunk.final_chunk(Usage(2, 1), "stop")
    >>> of(CompletionChunk.text("H"), CompletionChunk.text("i"), final).pipe(collect_completion()).run()
    CompletionResponse(content='Hi', usage=Usage(input_tokens=2, output_tokens=1))

    For each call, the arguments are joined, and the latest id and name are kept. The usage and the finish reason are
    taken from the final chunk. If several chunks are final, the last final chunk is used. If there is no usage, all
    counts are zero. The default finish reason is ``"stop"``.

    If the source fails with an ``LLMError``, the error keeps its class and reason. Any other error becomes the cause of
    a ``StreamError("adapter_error")``. An invalid item causes a ``StreamError("malformed_event")``. The error's
    ``metadata["response"]`` is the partial response, with the finish reason ``"error"``.
    """

    def operator(source: Observable[CompletionChunk]) -> Stream[CompletionResponse]:
        def subscribe(
            observer: abc.ObserverBase[CompletionResponse], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            fold = _CompletionFold()

            def on_next(chunk: CompletionChunk) -> None:
                try:
                    fold.feed(chunk)
                except Exception as error:  # the chunk is invalid
                    on_error(error)

            def on_error(error: Exception) -> None:
                observer.on_error(fold.failure(error))

            def on_completed() -> None:
                conclude(observer, (fold.response(),))

            return source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])


class _CompletionFold:
    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: dict[int, _Call] = {}  # by index; in a dict, gaps between indexes take no memory
        self._final = CompletionChunk()

    def feed(self, chunk: CompletionChunk) -> None:
        check_chunk(chunk)
        self._content.append(chunk.delta or "")
        for delta in chunk.tool_calls:
            call = self._calls.setdefault(delta.index, _Call())
            call.id = call.id if delta.id is None else delta.id
            call.name = call.name if delta.name is None else delta.name
            call.pieces.append(delta.arguments_delta or "")
        if chunk.is_final:
            self._final = chunk

    def response(self) -> CompletionResponse:
        by_index = (self._calls[index] for index in sorted(self._calls))
        calls = [CompletionToolCall(call.id, call.name, "".join(call.pieces)) for call in by_index]
        return CompletionResponse(
            content="".join(self._content) or None,
            tool_calls=tuple(call for call in calls if call.id),
            finish_reason=self._final.finish_reason or "stop",
            usage=self._final.usage or _no_usage(),
            dropped=tuple(call for call in calls if not call.id),
        )

    def failure(self, error: Exception) -> LLMError:
        partial = {"response": replace(self.response(), finish_reason="error")}
        if isinstance(error, LLMError):
            failure = type(error).from_fields({**error.fields(), "metadata": {**error.metadata, **partial}})
        else:
            message = f"the stream failed: {type(error).__name__}: {error}"
            failure = StreamError("adapter_error", message, metadata=partial)
        failure.__cause__ = error
        return failure


def from_completion_chunks(messages: Iterable[Message] = ()) -> Callable[[Observable[CompletionChunk]], Stream[Event]]:
    """Convert the `CompletionChunk`s of one response to events.

    ::

        source                       --H--------i--final--|
        from_completion_chunks()     --(aH)-----i---------(bc|)

    a: ``MessageStarted``, b: the events that complete open blocks and calls, c: ``MessageCompleted``.

    >>> from reactivex import of
    >>> from rxllm.chunks import CompletionChunk
    >>> chunks = of(CompletionChunk.text("Hi"), CompletionChunk.final_chunk(None, "stop"))
    >>> [type(event).__name__ for event in chunks.pipe(from_completion_chunks())]
    ['MessageStarted', 'TextDelta', 'TextCompleted', 'MessageCompleted']

    `messages` is the thread that the response answers. A call without an id is given one that is unique in the thread.
    Any chunk can contain usage or a finish reason. Each counter keeps its largest value. If a final chunk
    arrives but no chunk gave a finish reason, the reason is ``"stop"``. If there is no final chunk, the response ends
    with ``StreamError("truncated")``.

    If the source fails, all blocks and calls are completed, and an ``ErrorEvent`` follows. An ``LLMError`` before the
    first chunk goes to ``on_error`` instead.
    """
    messages = tuple(messages)
    return events_of(lambda: CompletionFeeder(messages))


class CompletionFeeder:
    """Converts one response's chunks to events. `messages` is the thread that the response answers."""

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
            blocks.finish(to_finish_reason(chunk.finish_reason), chunk.finish_reason)
        self._final = self._final or chunk.is_final
        return blocks.take()

    def close(self) -> list[Event]:
        if self._final:
            self._blocks.finish("stop", None)  # does not replace an earlier reason
        self._blocks.end()
        return self._blocks.take()

    def fail(self, error: Exception) -> list[Event]:
        self._blocks.error(as_stream_error(error))
        return self._blocks.take()

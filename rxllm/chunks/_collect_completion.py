"""The completion, folded from its chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from reactivex import Observable, abc

from rxllm.chunks._completion_chunk import CompletionChunk, check_chunk
from rxllm.runtime import Stream, conclude
from rxllm.values import FinishReason, LLMError, StreamError, Usage, Value
from rxllm.values.codec import value


@value
class CompletionToolCall(Value):
    """A whole call; `arguments` is the text as it came, JSON or not."""

    id: str
    name: str
    arguments: str = ""


def _no_usage() -> Usage:
    return Usage(input_tokens=0, output_tokens=0, total_tokens=0)


@value
class CompletionResponse(Value):
    """A whole completion. `content` is None where there was no text; calls are in the order of their indexes.

    `dropped` are the calls whose id never came: nobody can answer them.
    """

    content: str | None = None
    tool_calls: tuple[CompletionToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=_no_usage)
    model: str = ""
    dropped: tuple[CompletionToolCall, ...] = ()


def collect_completion() -> Callable[[Observable[CompletionChunk]], Stream[CompletionResponse]]:
    """Fold the chunks to one `CompletionResponse`.

    ::

        source                   --a--b--c--|
        collect_completion()     -----------(response)|

    >>> from reactivex import of
    >>> from rxllm.chunks import CompletionChunk
    >>> from rxllm.values import Usage
    >>> final = CompletionChunk.final_chunk(Usage(2, 1), "stop")
    >>> of(CompletionChunk.text("H"), CompletionChunk.text("i"), final).pipe(collect_completion()).run()
    CompletionResponse(content='Hi', usage=Usage(input_tokens=2, output_tokens=1))

    The last id and the last name of each call count, and its arguments are joined as text. A final chunk sets usage and
    finish reason, even to None, and reading goes on: the last of several counts. The defaults are zeros and ``"stop"``.

    An error keeps what came before it: it is raised with its class and reason, and ``metadata["response"]`` is the
    partial response, whose finish reason is ``"error"``. An error that is not an ``LLMError`` becomes the cause of a
    ``StreamError("adapter_error")``; an item that is not a chunk is a ``StreamError("malformed_event")``.
    """

    def operator(source: Observable[CompletionChunk]) -> Stream[CompletionResponse]:
        def subscribe(
            observer: abc.ObserverBase[CompletionResponse], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            collected = _Collected()

            def on_next(chunk: CompletionChunk) -> None:
                try:
                    collected.feed(chunk)
                except Exception as error:  # not a chunk, or one with wrong types
                    on_error(error)

            def on_error(error: Exception) -> None:
                observer.on_error(collected.failure(error))

            def on_completed() -> None:
                conclude(observer, (collected.response(),))

            return source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])


class _Collected:
    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: dict[int, _Call] = {}  # by index, so that a gap in the indexes takes no room
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

"""What counts as an adapter: an object with ``stream``, or an asynchronous generator function of the same arguments."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol, cast, runtime_checkable

from reactivex import Observable

from rxllm.collector import fold_message
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
)
from rxllm.runtime import Stream, from_async_iter
from rxllm.values import Call, EngineError, LLMError, Message, Request, StreamError


@runtime_checkable
class Adapter(Protocol):
    """Turns a request into a cold Observable of events, see ``rxllm.events`` for what it keeps."""

    def stream(self, request: Request, call: Call) -> Observable[Event]: ...


def as_adapter(given: Any) -> Adapter:
    """`given` as an adapter.

    An asynchronous generator function may leave out the bookends (``MessageStarted``, completions,
    ``MessageCompleted``). Raises ``EngineError``: ``missing_adapter`` for None, ``missing_stream_adapter`` for what
    cannot stream.
    """
    if given is None:
        raise EngineError("missing_adapter", "the engine has no adapter; give it one, as in Engine(OpenAIChat())")
    if inspect.isasyncgenfunction(given):
        return _Generated(given)
    if isinstance(given, Adapter) and not isinstance(given, type):
        return _Checked(given)
    message = f"{given!r} is no adapter: it needs stream(request, call), or to be an async generator function"
    raise EngineError("missing_stream_adapter", message)


class _Checked:
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def stream(self, request: Request, call: Call) -> Observable[Event]:
        events: Any = self._adapter.stream(request, call)
        if isinstance(events, Observable):
            return cast(Observable[Event], events)
        message = f"stream(request, call) of {self._adapter!r} gave no Observable but {events!r}"
        raise EngineError("missing_stream_adapter", message)


class _Generated:
    def __init__(self, function: Callable[[Request, Call], AsyncIterator[Event]]) -> None:
        self._function = function

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        return from_async_iter(lambda: _bookended(self._function(request, call)))


async def _bookended(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    said: list[Event] = []
    try:
        async with aclosing(cast(Any, events)):
            async for event in events:
                if not said and not isinstance(event, MessageStarted):
                    said.append(MessageStarted(Message("assistant")))
                    yield said[0]
                said.append(event)
                yield event
                if isinstance(event, MessageCompleted | ErrorEvent):
                    return
    except Exception as error:
        if not said:
            raise
        for each in _open_blocks(said):
            yield each
        yield ErrorEvent(_streamed(error))
        return
    if not said:
        said.append(MessageStarted(Message("assistant")))
        yield said[0]
    for each in _open_blocks(said):
        said.append(each)
        yield each
    message = fold_message(said)
    yield MessageCompleted(message, "tool_calls" if _client_calls(said) else "stop")


def _open_blocks(said: list[Event]) -> list[Event]:
    """The completions that are missing, in the order in which their blocks began."""
    blocks: dict[tuple[bool, str | None], list[str]] = {}
    for event in said:
        match event:
            case TextDelta() | ThinkingDelta():
                blocks.setdefault((isinstance(event, TextDelta), event.id), []).append(event.delta)
            case TextCompleted() | ThinkingCompleted():
                blocks.pop((isinstance(event, TextCompleted), event.id), None)
            case _:
                pass
    return [
        TextCompleted("".join(pieces), id) if is_text else ThinkingCompleted("".join(pieces), id=id)
        for (is_text, id), pieces in blocks.items()
    ]


def _client_calls(said: list[Event]) -> bool:
    return any(isinstance(event, ToolCallCompleted) and not event.metadata.get("server") for event in said)


def _streamed(error: Exception) -> LLMError:
    if isinstance(error, LLMError):
        return error
    made = StreamError("adapter_error", f"the adapter failed: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made

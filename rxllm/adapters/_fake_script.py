"""The script language of `Fake`.

A turn is a piece of script, or a list of such pieces:

=====================================================  ============================================================
piece                                                  means
=====================================================  ============================================================
``"Hello"``, ``("text", "Hello")``                     a text delta
``("thinking", "hm")``                                 a thinking delta
a `ToolCall`, ``("tool_call", {"id": ..,               a whole call; `arguments` or `raw_arguments`
"name": .., "arguments": ..})``
``("tool_call_delta", {"id": .., "name": ..,           a piece of a call; the name comes with the first one
"arguments_delta": ..})``
a `Usage`, ``("usage", {"input_tokens": 3})``          usage, in the field names of `Usage`
``("raw_chunk", data)``, ``("raw_chunk", (kind,        a ``RawChunk``
data))``
``("delay", seconds)``                                 a pause, on the subscription's scheduler
``("error", "rate_limited")``                          an ``ErrorEvent``; nothing follows
``("finish", "stop")``                                 the finish reason; nothing follows
an exception                                           first in its turn: the call fails; later: an ``ErrorEvent``
an event                                               itself
=====================================================  ============================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, get_args

import msgspec

from rxllm.events import EVENT_CLASSES, Event, MessageStarted
from rxllm.values import AdapterError, FinishReason, LLMError, Request, StreamError, ToolCall, Usage
from rxllm.wire.blocks import Blocks
from rxllm.wire.tool_calls import CallTracker

Piece = str | ToolCall | Usage | BaseException | Event | tuple[str, Any]
Turn = Piece | list[Piece]

_WORDS = ("text", "thinking", "tool_call", "tool_call_delta", "usage", "raw_chunk", "delay", "error", "finish")


def pieces_of(turn: Any) -> list[Piece]:
    """The pieces of a turn. Raises ``ValueError`` for one that means nothing."""
    pieces = cast(list[Piece], turn) if isinstance(turn, list) else [cast(Piece, turn)]
    for piece in pieces:
        if not _means_something(piece):
            raise ValueError(f"{piece!r} is no piece of script; a tuple begins with one of {', '.join(_WORDS)}")
    return pieces


def _means_something(piece: Any) -> bool:
    match piece:
        case str() | ToolCall() | Usage() | BaseException() | ("text" | "thinking", str()):
            return True
        case ("delay", int() | float()) | ("raw_chunk" | "error" | "finish", _) | ("tool_call_delta", Mapping()):
            return True
        case ("tool_call", Mapping()):
            return _fits(ToolCall, cast(Mapping[str, Any], piece[1]))
        case ("usage", Mapping()):
            return _fits(Usage, cast(Mapping[str, Any], piece[1]))
        case _:
            return isinstance(piece, EVENT_CLASSES)


def _fits(made: Callable[..., Any], fields: Mapping[str, Any]) -> bool:
    try:
        made(**fields)
    except TypeError:
        return False
    return True


def perform(pieces: list[Any], request: Request) -> Iterator[list[Event] | float]:
    """The events of a turn, piece by piece, and its pauses in seconds. Raises an exception that comes first."""
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
                _call(blocks, calls, piece if isinstance(piece, ToolCall) else _tool_call(piece[1]))
                calls += 1
            case ("tool_call_delta", given):
                blocks.call(None, given.get("id"), given.get("name"), given.get("arguments_delta"))
            case Usage():
                blocks.usage(piece)
            case ("usage", counted):
                blocks.usage(Usage(**counted))
            case ("raw_chunk", (str(kind), data)):
                blocks.raw(kind, data)
            case ("raw_chunk", data):
                blocks.raw("chunk", data)
            case ("delay", seconds):
                yield blocks.take()
                yield float(seconds)
            case ("error", reason):
                blocks.error(_error(reason))
            case ("finish", reason):
                blocks.finish(reason if reason in get_args(FinishReason) else "other", str(reason))
                break
            case BaseException():
                blocks.error(_streamed(piece))
            case event:
                blocks.event(cast(Event, event))
        yield blocks.take()
        if blocks.ended:
            return
    blocks.finish("stop", None)
    blocks.end()
    yield blocks.take()


def _call(blocks: Blocks, index: int, call: ToolCall) -> None:
    raw = call.raw_arguments if call.raw_arguments is not None else msgspec.json.encode(call.arguments).decode()
    blocks.call(index, call.id, call.name, raw, call.metadata)
    blocks.complete_call(index)


def _tool_call(given: Mapping[str, Any]) -> ToolCall:
    return ToolCall(**given)


def _error(reason: Any) -> LLMError:
    if isinstance(reason, LLMError):
        return reason
    known = isinstance(reason, str) and reason in AdapterError.REASONS
    return AdapterError(reason if known else "unknown", None if known else f"scripted error: {reason}", provider="fake")


def _streamed(error: BaseException) -> LLMError:
    if isinstance(error, LLMError):
        return error
    return StreamError("adapter_error", f"{type(error).__name__}: {error}", provider="fake")

"""The script language of `Fake`, whose docstring says it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, get_args

from rxllm.events import EVENT_CLASSES, Event, MessageStarted
from rxllm.values import (
    AdapterError,
    FinishReason,
    LLMError,
    Request,
    StreamError,
    ToolCall,
    Usage,
    ValidationError,
)
from rxllm.values._json import json_text
from rxllm.values.arguments import did_you_mean, is_seconds
from rxllm.wire.blocks import Blocks
from rxllm.wire.tool_calls import CallTracker

Piece = str | ToolCall | Usage | BaseException | Event | tuple[str, Any]
Turn = Piece | Sequence[Piece]  # a list when it runs, as a tuple is a piece; but list[str] is no list[Piece]

_WORDS = ("text", "thinking", "tool_call", "tool_call_delta", "usage", "raw_chunk", "delay", "error", "finish")
_OF_A_DELTA = {"id", "name", "arguments_delta"}


def pieces_of(turn: Any) -> list[Piece]:
    """The pieces of a turn. Raises ``ValidationError("invalid_option")`` for one that means nothing."""
    pieces = cast(list[Piece], turn) if isinstance(turn, list) else [cast(Piece, turn)]
    for piece in pieces:
        if not _means_something(piece):
            raise ValidationError("invalid_option", f"{piece!r} is no piece of script; {_remedy(piece)}")
    return pieces


def _means_something(piece: Any) -> bool:
    match piece:
        case str() | ToolCall() | Usage() | BaseException() | ("text" | "thinking", str()):
            return True
        case ("raw_chunk" | "finish", _) | ("error", BaseException()):
            return True
        case ("error", reason):
            return isinstance(reason, str) and reason in AdapterError.REASONS
        case ("delay", seconds):
            return is_seconds(seconds)
        case ("tool_call_delta", Mapping()):
            return set(cast(Mapping[str, Any], piece[1])) <= _OF_A_DELTA
        case ("tool_call", Mapping()):
            return _fits(ToolCall, cast(Mapping[str, Any], piece[1]))
        case ("usage", Mapping()):
            return _fits(Usage, cast(Mapping[str, Any], piece[1]))
        case _:
            return isinstance(piece, EVENT_CLASSES)


def _remedy(piece: Any) -> str:
    match piece:
        case ("error", reason):
            near = did_you_mean(reason, AdapterError.REASONS) if isinstance(reason, str) else ""
            return f"an error is an exception, or one of {', '.join(sorted(AdapterError.REASONS))}{near}"
        case ("delay", _):
            return "a delay is a number of seconds from 0 on"
        case ("tool_call_delta", _):
            return f"the fields of a delta are {', '.join(sorted(_OF_A_DELTA))}"
        case _:
            return f"a tuple begins with one of {', '.join(_WORDS)}, and several pieces are a list"


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
    raw = call.raw_arguments if call.raw_arguments is not None else json_text(call.arguments)
    blocks.call(index, call.id, call.name, raw, call.metadata)
    blocks.complete_call(index)


def _tool_call(given: Mapping[str, Any]) -> ToolCall:
    return ToolCall(**given)


def _error(reason: Any) -> LLMError:
    return _streamed(reason) if isinstance(reason, BaseException) else AdapterError(reason, provider="fake")


def _streamed(error: BaseException) -> LLMError:
    if isinstance(error, LLMError):
        return error
    return StreamError("adapter_error", f"{type(error).__name__}: {error}", provider="fake")

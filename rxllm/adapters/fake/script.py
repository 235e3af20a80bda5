"""The pieces of a script of `Fake`, their checks and their events. The docstring of `Fake` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, get_args

from rxllm.events import EVENT_CLASSES, Event, MessageStarted
from rxllm.values import AdapterError, FinishReason, LLMError, Request, StreamError, ToolCall, Usage, ValidationError
from rxllm.values.argument_checks import did_you_mean, is_seconds, shown
from rxllm.values.json_text import json_text
from rxllm.wire.event_order import Blocks
from rxllm.wire.tool_calls import CallTracker

Piece = str | ToolCall | Usage | BaseException | Event | tuple[str, Any]
Turn = Piece | Sequence[Piece]  # a list at run time; but list[str] is not list[Piece] to a type checker

_WORDS = ("text", "thinking", "tool_call", "tool_call_delta", "usage", "raw_chunk", "delay", "error", "finish")
_DELTA_FIELDS = {"id", "name", "arguments_delta"}


def pieces_of(turn: Any) -> list[Piece]:
    """Return the pieces of a turn. Raise ``ValidationError("invalid_option")`` for an unknown piece."""
    pieces = cast(list[Piece], turn) if isinstance(turn, list) else [cast(Piece, turn)]
    for piece in pieces:
        if not _is_valid(piece):
            raise ValidationError("invalid_option", f"{shown(piece)} is not a piece of script; {_remedy(piece)}")
    return pieces


def _is_valid(piece: Any) -> bool:
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
            return set(cast(Mapping[str, Any], piece[1])) <= _DELTA_FIELDS
        case ("tool_call", Mapping()):
            return _fits(_call_of, cast(Mapping[str, Any], piece[1]))
        case ("usage", Mapping()):
            return _fits(Usage, cast(Mapping[str, Any], piece[1]))
        case _:
            return isinstance(piece, EVENT_CLASSES)


def _remedy(piece: Any) -> str:
    match piece:
        case ("error", reason):
            suggestion = did_you_mean(reason, AdapterError.REASONS) if isinstance(reason, str) else ""
            return f"an error is an exception, or one of {', '.join(sorted(AdapterError.REASONS))}{suggestion}"
        case ("delay", _):
            return "a delay is a number of seconds, 0 or more"
        case ("tool_call_delta", _):
            return f"the fields of a delta are {', '.join(sorted(_DELTA_FIELDS))}"
        case ("tool_call", Mapping()):
            return "the fields of a tool call are id, name, arguments, raw_arguments and metadata; it needs the name"
        case _:
            return f"a tuple starts with one of {', '.join(_WORDS)}; put several pieces into a list"


def _fits(cls: Callable[..., Any], fields: Mapping[str, Any]) -> bool:
    try:
        cls(**fields)
    except TypeError:
        return False
    return True


def _call_of(name: str, id: str = "", **fields: Any) -> ToolCall:
    return ToolCall(id, name, **fields)  # a call without an id gets one, as on the wires


def perform(pieces: list[Any], request: Request) -> Iterator[list[Event] | float]:
    """Yield the events of each piece, and pauses in seconds. Raise the first piece if it is an exception."""
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
                _add_call(blocks, calls, piece if isinstance(piece, ToolCall) else _call_of(**piece[1]))
                calls += 1
            case ("tool_call_delta", delta):
                blocks.call(None, delta.get("id"), delta.get("name"), delta.get("arguments_delta"))
            case Usage():
                blocks.usage(piece)
            case ("usage", counters):
                blocks.usage(Usage(**counters))
            case ("raw_chunk", (str(kind), data)):
                blocks.raw(kind, data)
            case ("raw_chunk", data):
                blocks.raw("chunk", data)
            case ("delay", seconds):
                yield blocks.take()
                yield float(seconds)
            case ("error", reason) | (BaseException() as reason):
                blocks.error(_to_error(reason))
            case ("finish", reason):
                blocks.finish(reason if reason in get_args(FinishReason) else "other", str(reason))
                break
            case event:
                blocks.event(cast(Event, event))
        yield blocks.take()
        if blocks.ended:
            return
    blocks.finish("stop", None)
    blocks.end()
    yield blocks.take()


def _add_call(blocks: Blocks, index: int, call: ToolCall) -> None:
    raw = call.raw_arguments if call.raw_arguments is not None else json_text(call.arguments)
    blocks.call(index, call.id, call.name, raw, call.metadata)
    blocks.complete_call(index)


def _to_error(reason: Any) -> LLMError:
    if isinstance(reason, LLMError):
        return reason
    if isinstance(reason, BaseException):
        return StreamError("adapter_error", f"{type(reason).__name__}: {reason}", provider="fake")
    return AdapterError(reason, provider="fake")

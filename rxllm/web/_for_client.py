"""Decide what may leave for a client.

==========================================  ============================================================================
of a stream                                 a client sees
==========================================  ============================================================================
text, thinking, tool calls, their           all of it; of the provider's data, the signatures of thinking
arguments, progress and results, sources,
files, usage, questions, approvals
``StepCompleted``, ``ChatCompleted``        what the client's own events fold to, without a thread: system prompts,
                                            histories and tools' messages stay here
metadata                                    what a client needs to go on, see `METADATA`
errors                                      class, reason, and the seconds to wait; no message, of tools neither
raw frames                                  none; usage in them is told as ``UsageUpdated``
``Custom``                                  those of your operators and tools; none of rxllm's own
``Nested``                                  the same of the event inside
==========================================  ============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed
from reactivex import Observable

from rxllm import (
    ChatCompleted,
    ChatResult,
    Custom,
    ErrorEvent,
    Event,
    ImagePart,
    LLMError,
    Message,
    MessageCompleted,
    MessageStarted,
    Nested,
    Part,
    ProviderPart,
    RawChunk,
    Response,
    Steered,
    StepCompleted,
    StepResult,
    Stream,
    StreamCollector,
    TextPart,
    ThinkingCompleted,
    ThinkingPart,
    Thread,
    ToolCall,
    ToolCallCompleted,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolHalt,
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
    ValidationError,
    serializer,
)
from rxllm import (
    operators as ops,
)

METADATA = frozenset(
    {
        *("id", "model", "logprobs", "budget", "partial"),  # of messages and responses
        *("server", "error"),  # of tool calls
        *("mode", "halted_reason", "halt_tool_call_id", "halt_result", "pending_tool_call_id", "pending_question"),
        *("ask_user_opts", "manual_tool_calls", "approval_tool_calls"),  # of steps and chats
        *("max_turns", "halt_when_step_index", "manual_turn_index", "structured_finalize"),
        "unused_steering",  # the client's own messages
    }
)
"""The names of metadata that a client sees."""

_ERROR_FIELDS = ("reason", "retry_after", "tool_name", "tool_call_id")

_OWN = ("session_turn", "step_abandoned", "thread_compacted", "thread_compaction_failed")
"""The names of rxllm's own ``Custom`` events, which hold a session, a response, and what became of a summary."""


def for_client() -> Callable[[Observable[Event]], Stream[Event]]:
    """Keep what may leave for a client: see the table above.

    >>> import rxllm
    >>> thread = [rxllm.system("Our prices: secret."), rxllm.user("Hi")]
    >>> events = rxllm.stream(rxllm.Fake("Hello"), thread).pipe(for_client())
    >>> [message for message in events.run().result.thread]
    []

    Results are folded again from what the client sees, so that its own fold equals them. An object that a tool returned
    becomes its JSON data, or None if it has none.
    """
    return ops.lift(_Client)


class ClientFold:
    """What the events that a client sees fold to, of one stream and of the agents inside it."""

    def __init__(self) -> None:
        self.state = StreamCollector(Thread())
        self._agents: dict[str, ClientFold] = {}

    def agent(self, path: Sequence[str]) -> ClientFold:
        """Return the fold of the agent at `path`."""
        fold = self
        for id in path:
            fold = fold._agents.setdefault(id, ClientFold())
        return fold

    def apply(self, event: Event) -> None:
        self.state = self.state.apply_event(event)
        if isinstance(event, Nested) and event.path:
            id, *path = event.path
            self.agent((id,)).apply(Nested(tuple(path), event.event) if path else event.event)

    def filled(self, event: Event) -> Event:
        """Return `event` with the message or the result that the events so far fold to."""
        match event:
            case MessageCompleted(message=message):
                return changed(event, message=replace(self.state.message, metadata=message.metadata))
            case StepCompleted(result=result):
                return StepCompleted(self._step(result))
            case ChatCompleted(result=result):
                response = self.state.last_response
                return ChatCompleted(replace(result, thread=Thread(), final_response=response, steps=()))
            case Nested(path=path, event=inner) if path:
                return Nested(path, self.agent(path).filled(inner))
            case _:
                return event

    def packed(self, event: Event) -> dict[str, Any]:
        """Return `event` as data, without what the events before it fold to: `unpacked` makes it whole again."""
        left_out = _left_out(event)
        is_folded = left_out is not event and self.filled(left_out) == event
        data = serializer.to_data(left_out if is_folded else event)
        del data["v"]  # a reader takes the current one
        return {"event": data, "folded": True} if is_folded else {"event": data}

    def unpacked(self, data: Any) -> Event:
        """Return the event in what `packed` returned. Raises for anything else."""
        event: Any = serializer.from_data(data["event"])
        if not isinstance(event, Event):
            raise TypeError("not an event")
        return self.filled(event) if data.get("folded") is True else event

    def _step(self, result: StepResult) -> StepResult:
        state = changed(self.state, thread=Thread()) if self.state.thread is None else self.state
        return replace(state.to_step_result(), thread=Thread(), done=result.done, metadata=result.metadata)


def _left_out(event: Event) -> Event:
    """Return `event` without what the events before it fold to."""
    match event:
        case MessageCompleted(message=message):
            return changed(event, message=Message("assistant", metadata=message.metadata))
        case StepCompleted(result=result):
            return StepCompleted(StepResult(Thread(), Response(), done=result.done, metadata=result.metadata))
        case ChatCompleted(result=result):
            return ChatCompleted(replace(result, thread=Thread(), final_response=None, steps=()))
        case Nested(path=path, event=inner):
            left_out = _left_out(inner)
            return event if left_out is inner else Nested(path, left_out)
        case _:
            return event


class _Client:
    """What a client sees of one stream, and of the agents inside it."""

    def __init__(self) -> None:
        self._fold = ClientFold()
        self._failed: dict[tuple[ClientFold, str], str] = {}  # the reasons of the tools that have failed

    def feed(self, event: Event) -> Iterable[Event]:
        kept = self._seen(event, self._fold)
        if kept is None:
            return ()
        self._fold.apply(kept)
        return (kept,)

    def close(self) -> Iterable[Event]:
        return ()

    def _seen(self, event: Event, fold: ClientFold) -> Event | None:
        match event:
            case RawChunk():
                return _usage_in(event, fold.state)
            case StepCompleted() | ChatCompleted():
                return _kept(fold.filled(event))
            case Nested(path=path, event=inner) if path:
                kept = self._seen(inner, fold.agent(path))
                return kept and Nested(path, kept)
            case Nested():  # without a path: malformed
                return None
            case ToolExecutionCompleted(id=id, error=error) if error is not None:
                self._failed[fold, id] = error.reason
                return _kept(event)
            case ToolResultEncoded(id=id) if (fold, id) in self._failed:
                # What the model is told of the failure quotes the exception.
                return changed(event, content=json.dumps({"error": self._failed.pop((fold, id))}))
            case _:
                return _kept(event)


def _usage_in(chunk: RawChunk, state: StreamCollector) -> Event | None:
    usage = state.apply_event(chunk).usage if chunk.kind == "usage" else state.usage
    return None if usage == state.usage else UsageUpdated(replace(usage, extra={}))


def _kept(event: Event) -> Event | None:
    """Return what a client sees of an event, whose result is what the client folds."""
    match event:
        case StepCompleted(result=result):
            return StepCompleted(replace(result, metadata=_named(result.metadata)))
        case ChatCompleted(result=result):
            return ChatCompleted(_chat(result))
        case MessageStarted(message=message):
            return MessageStarted(_message(message))
        case MessageCompleted(message=message, metadata=metadata):
            return changed(event, message=_message(message), metadata=_named(metadata))
        case ThinkingCompleted():
            return changed(event, provider_data=None)
        case ToolCallStarted(metadata=metadata) | ToolCallCompleted(metadata=metadata):
            return changed(event, metadata=_named(metadata))
        case UsageUpdated(usage=usage):
            return UsageUpdated(replace(usage, extra={}))
        case ErrorEvent(error=error):
            return ErrorEvent(_error(error))
        case ToolExecutionCompleted(result=result, error=error):
            return changed(event, result=_data(result), error=error and _error(error))
        case ToolHalt(result=result, metadata=metadata):
            return changed(event, result=_data(result), metadata=_named(metadata))
        case ToolProgress(data=data):
            return changed(event, data=_data(data))
        case Steered(message=message):
            return changed(event, message=_message(message))
        case Custom(name=name):
            return None if name in _OWN else event
        case _:
            return event


def _chat(result: ChatResult) -> ChatResult:
    return replace(
        result,
        pending_tool_calls=_calls(result.pending_tool_calls),
        usage=replace(result.usage, extra={}),
        error=result.error and _error(result.error),
        metadata=_named(result.metadata),
    )


def _message(message: Message) -> Message:
    content: Any = message.content
    if isinstance(content, tuple):
        content = tuple(_part(part) for part in message.parts if not isinstance(part, ProviderPart))
    return replace(message, content=content, tool_calls=_calls(message.tool_calls), metadata=_named(message.metadata))


def _part(part: Part) -> Part:
    match part:
        case ThinkingPart():
            return replace(part, provider_data=None)
        case TextPart() | ImagePart():
            return replace(part, metadata={})
        case _:
            return part


def _calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(replace(call, metadata=_named(call.metadata)) for call in calls)


def _named(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client needs to go on."""
    kept = {name: value for name, value in metadata.items() if name in METADATA}
    for name in ("manual_tool_calls", "approval_tool_calls"):
        if name in kept:
            kept[name] = _calls(kept[name])
    if "unused_steering" in kept:
        kept["unused_steering"] = tuple(map(_message, kept["unused_steering"]))
    return kept


def _error(error: LLMError) -> LLMError:
    """Return the error without its message, which may quote a provider, a prompt or a path."""
    fields = {
        name: getattr(error, name) for name in ("retry_after", "tool_name", "tool_call_id") if hasattr(error, name)
    }
    return type(error).from_fields({"reason": error.reason, **fields})


def _data(result: Any) -> Any:
    try:
        return serializer.from_data(serializer.to_data(ToolProgress("", "", result))).data
    except ValidationError:
        return None

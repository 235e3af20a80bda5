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
errors                                      class, reason, and the seconds to wait; no message
raw frames                                  none; usage in them is told as ``UsageUpdated``
``Custom``                                  those of your operators and tools; none of rxllm's own
``Nested``                                  the same of the event inside
==========================================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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


class _Client:
    """What a client sees of one stream, and of the agents inside it."""

    def __init__(self) -> None:
        self._state = StreamCollector(Thread())
        self._agents: dict[str, _Client] = {}

    def feed(self, event: Event) -> Iterable[Event]:
        kept = self._kept(event)
        if kept is None:
            return ()
        self._state = self._state.apply_event(kept)
        return (kept,)

    def close(self) -> Iterable[Event]:
        return ()

    def _kept(self, event: Event) -> Event | None:
        match event:
            case RawChunk():
                return self._usage_in(event)
            case StepCompleted(result=result):
                return StepCompleted(self._step(result))
            case ChatCompleted(result=result):
                return ChatCompleted(self._chat(result))
            case Nested(path=(id, *path), event=inner):
                agent = self._agents.setdefault(id, _Client())
                for kept in agent.feed(Nested(tuple(path), inner) if path else inner):
                    return changed(event, event=kept.event if isinstance(kept, Nested) else kept)
                return None
            case Nested():  # without a path: malformed
                return None
            case _:
                return _kept(event)

    def _usage_in(self, chunk: RawChunk) -> Event | None:
        usage = self._state.apply_event(chunk).usage if chunk.kind == "usage" else self._state.usage
        return None if usage == self._state.usage else UsageUpdated(replace(usage, extra={}))

    def _step(self, result: StepResult) -> StepResult:
        state = changed(self._state, thread=Thread()) if self._state.thread is None else self._state
        return replace(state.to_step_result(), thread=Thread(), done=result.done, metadata=_named(result.metadata))

    def _chat(self, result: ChatResult) -> ChatResult:
        return replace(
            result,
            thread=Thread(),
            final_response=self._state.last_response,
            steps=(),
            pending_tool_calls=_calls(result.pending_tool_calls),
            usage=replace(result.usage, extra={}),
            error=result.error and _error(result.error),
            metadata=_named(result.metadata),
        )


def _kept(event: Event) -> Event | None:
    """Return what a client sees of an event that holds no result."""
    match event:
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

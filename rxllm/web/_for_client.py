"""`for_client` removes everything that clients must not see.

==========================================  ============================================================================
in the stream                               what the client sees
==========================================  ============================================================================
text, thinking, tool calls, their           all of it, except provider-specific data; thinking signatures are kept
arguments, progress and results, sources,
files, usage, questions, approvals
``StepCompleted``, ``ChatCompleted``        a result rebuilt from events that the client has seen, without the thread:
                                            system prompts, history and tool messages stay on the server
metadata                                    the entries that `METADATA` lists
errors, including tool errors               the class, reason, retry delay, tool name and call id; the message and the
                                            traceback are logged once, by the logger ``rxllm``
an exception other than an ``LLMError``     passed on unchanged, for the server to handle
raw chunks, parts that only the provider    nothing
can use
``Custom``                                  the event, unless `_OWN` lists its name; rxllm's own events with these names
                                            contain sessions, responses or summaries
``Nested``                                  the inner event, filtered by the same rules
==========================================  ============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import reactivex
from msgspec.structs import replace as changed
from reactivex import Observable
from reactivex import operators as rx

from rxllm import (
    ChatResult,
    LLMError,
    Message,
    Nested,
    StepResult,
    Stream,
    StreamCollector,
    Thread,
    ToolCall,
    ValidationError,
    serializer,
)
from rxllm import events as ev
from rxllm import operators as ops
from rxllm.runtime import log_hidden
from rxllm.values import ImagePart, Part, ProviderPart, TextPart, ThinkingPart
from rxllm.web._frames import Frame, event_data, event_of


class ClientFold:
    """The state that a client builds from the events that it receives."""

    def __init__(self) -> None:
        self.state = StreamCollector(Thread())
        self.is_answering = False  # True while a response is in progress, including after a restart
        self._agents: dict[str, ClientFold] = {}

    def agent(self, path: Sequence[str]) -> ClientFold:
        """Return the state that the client has built for the inner agent at `path`."""
        fold = self
        for id in path:
            fold = fold._agents.setdefault(id, ClientFold())
        return fold

    def apply(self, event: ev.Event) -> None:
        self.state = self.state.apply_event(ev.unparsed(event))
        match event:
            case ev.TextDelta() | ev.ThinkingDelta() | ev.ToolCallDelta():
                pass
            case Nested(path=(id, *path)):
                self.agent((id,)).apply(Nested(tuple(path), event.event) if path else event.event)
            case ev.MessageStarted() | ev.StepRestarted():
                self.is_answering = True
            case ev.MessageCompleted() | ev.ErrorEvent() | ev.StepCompleted() | ev.ChatCompleted():
                self.is_answering = False
            case _:
                pass

    def filled(self, event: ev.Event) -> ev.Event:
        """Replace the message or result in `event` with one built from the events that the client has seen."""
        match event:
            case ev.MessageCompleted(message=message):
                return changed(event, message=replace(self.state.message, metadata=message.metadata))
            case ev.StepCompleted(result=result):
                return ev.StepCompleted(self._step(result))
            case ev.ChatCompleted():
                result, response = event.unparsed or event.result, self.state.last_response
                return ev.ChatCompleted(replace(result, thread=Thread(), final_response=response, steps=()))
            case Nested(path=path, event=inner) if path:
                return Nested(path, self.agent(path).filled(inner))
            case _:
                return event

    def packed(self, event: ev.Event) -> Frame:
        """Return `event` as data, without the parts that `unpacked` can restore."""
        left_out = ClientFold().filled(event)
        is_folded = left_out != event and self.filled(left_out) == event
        return {"event": event_data(left_out), "folded": True} if is_folded else {"event": event_data(event)}

    def unpacked(self, data: Frame) -> ev.Event:
        """Rebuild an event from data that `packed` returned. Any other `data` raises an exception."""
        event = event_of(data["event"])
        return self.filled(event) if data.get("folded") is True else event

    def _step(self, result: StepResult) -> StepResult:
        state = changed(self.state, thread=Thread()) if self.state.thread is None else self.state
        return replace(state.to_step_result(), thread=Thread(), done=result.done, metadata=result.metadata)


METADATA = frozenset(
    {
        # Entries of messages and responses. The second line lists the entries of tool calls.
        *("id", "model", "logprobs", "budget", "partial", "cut"),
        *("server", "error", "vetoed", "interrupted"),
        # Entries of steps and chats.
        *("mode", "halted_reason", "halt_tool_call_id", "halt_result", "pending_tool_call_id", "pending_question"),
        *("ask_user_opts", "manual_tool_calls", "approval_tool_calls"),
        *("max_turns", "halt_when_step_index", "manual_turn_index", "structured_finalize"),
        # Messages that the client itself sent.
        "unused_steering",
    }
)
"""The metadata entries that clients may see."""

_OWN = ("session_turn", "step_abandoned", "thread_compacted", "thread_compaction_failed")
"""The names of rxllm's own ``Custom`` events, whose data contains sessions, responses or summaries."""

_EVENTS = frozenset[type[Any]](ev.EVENT_CLASSES)


def for_client() -> Callable[[Observable[ev.Event]], Stream[ev.Event]]:
    """Remove everything that clients must not see.

    >>> import rxllm
    >>> thread = [rxllm.system("Our prices: secret."), rxllm.user("Hi")]
    >>> events = rxllm.stream(rxllm.Fake("Hello"), thread).pipe(for_client())
    >>> [message for message in events.run().result.thread]
    []

    This drops system prompts, raw chunks, error messages and provider-specific data. The results of steps and chats are
    rebuilt from the remaining events. Tool results become JSON data, or None if they have no JSON form.
    """
    return lambda source: Stream.of(source.pipe(ops.lift(_Client), rx.catch(_failed)))


def _failed(error: Exception, _: Observable[ev.Event]) -> Observable[ev.Event]:
    return reactivex.throw(_error(error) if isinstance(error, LLMError) else error)


class _Client:
    """Filters the events of a stream, including events from inner agents."""

    def __init__(self) -> None:
        self._fold = ClientFold()
        self._failed: dict[tuple[ClientFold, str], str] = {}  # the error reason of each call that failed
        self._requested: set[str] = set()  # the ids of the calls for which approval was requested

    def feed(self, event: ev.Event) -> Iterable[ev.Event]:
        if type(event) not in _EVENTS:
            fault = f"only events can be sent to a client, not {type(event).__name__}"
            raise TypeError(f"{fault}; pass rxllm.stream(...) itself, without ops.text() or a similar operator")
        requests = [*self._missing_requests(event)]
        kept = [seen for entry in (*requests, event) if (seen := self._seen(entry, self._fold)) is not None]
        for seen in kept:
            self._fold.apply(seen)
        return kept

    def _missing_requests(self, event: ev.Event) -> Iterable[ev.Event]:
        """Yield the approval requests that the client has not seen by the time a step ends.

        A folded stream keeps the calls that wait for approval, but not the events that requested approval.
        """
        path, inner = (event.path, event.event) if isinstance(event, Nested) else ((), event)
        if isinstance(inner, ev.ToolApprovalRequested):
            self._requested.add("/".join((*path, inner.id)))
        elif isinstance(event, ev.StepCompleted):
            waiting = event.result.metadata.get("approval_tool_calls", ())
            missing = [call for call in waiting if call.id not in self._requested]
            own = frozenset(self._fold.state.current_tool_calls) if missing else frozenset[str]()
            for call in missing:
                *agents, id = [call.id] if call.id in own else call.id.split("/")
                request = ev.ToolApprovalRequested(id, call.name, call.arguments)
                yield Nested(tuple(agents), request) if agents else request

    def close(self) -> Iterable[ev.Event]:
        return ()

    def _seen(self, event: ev.Event, fold: ClientFold) -> ev.Event | None:
        event = ev.unparsed(event)
        match event:
            case ev.RawChunk() | ev.PartAdded():
                return None
            case ev.StepCompleted() | ev.ChatCompleted():
                return _kept(fold.filled(event))
            case Nested(path=path, event=inner) if path:
                kept = self._seen(inner, fold.agent(path))
                return kept and Nested(path, kept)
            case Nested():  # a Nested event whose path is empty is malformed
                return None
            case ev.ToolExecutionCompleted(id=id, error=error) if error is not None:
                self._failed[fold, id] = error.reason
                return _kept(event)
            case ev.ToolResultEncoded(id=id) if (fold, id) in self._failed:
                # The original content contains the text of the exception.
                return changed(event, content=json.dumps({"error": self._failed.pop((fold, id))}))
            case _:
                return _kept(event)


def _kept(event: ev.Event) -> ev.Event | None:
    """Return the part of `event` that clients may see.

    If `event` contains a result, ``ClientFold.filled`` must have built the result.
    """
    match event:
        case ev.StepCompleted(result=result):
            return ev.StepCompleted(replace(result, metadata=_named(result.metadata)))
        case ev.ChatCompleted(result=result):
            return ev.ChatCompleted(_chat(result))
        case ev.MessageStarted(message=message) | ev.Steered(message=message):
            return changed(event, message=_message(message))
        case ev.MessageCompleted(message=message, metadata=metadata):
            return changed(event, message=_message(message), metadata=_named(metadata))
        case ev.ThinkingCompleted():
            return changed(event, provider_data=None)
        case ev.ToolCallStarted(metadata=metadata) | ev.ToolCallCompleted(metadata=metadata):
            return changed(event, metadata=_named(metadata))
        case ev.UsageUpdated(usage=usage):
            return ev.UsageUpdated(replace(usage, extra={}))
        case ev.ErrorEvent(error=error):
            return ev.ErrorEvent(_error(error))
        case ev.ToolExecutionCompleted(result=result, error=error):
            return changed(event, result=_data(result), error=error and _error(error))
        case ev.ToolResultEncoded(parts=parts):
            return changed(event, parts=_parts(parts))
        case ev.ToolHalt(result=result, metadata=metadata, parts=parts):
            return changed(event, result=_data(result), metadata=_named(metadata), parts=_parts(parts))
        case ev.ToolProgress(data=data):
            return changed(event, data=_data(data))
        case ev.Custom(name=name):
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
        content = _parts(message.parts)
    return replace(message, content=content, tool_calls=_calls(message.tool_calls), metadata=_named(message.metadata))


def _parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(_part(part) for part in parts if not isinstance(part, ProviderPart))


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
    kept = {name: value for name, value in metadata.items() if name in METADATA}
    for name in ("manual_tool_calls", "approval_tool_calls"):
        if name in kept:
            kept[name] = _calls(kept[name])
    if "halt_result" in kept:
        kept["halt_result"] = _data(kept["halt_result"])
    if "unused_steering" in kept:
        kept["unused_steering"] = tuple(map(_message, kept["unused_steering"]))
    return kept


def _error(error: LLMError) -> LLMError:
    """Log `error`, and return it without its message."""
    fields = {
        name: getattr(error, name) for name in ("retry_after", "tool_name", "tool_call_id") if hasattr(error, name)
    }
    # The message may quote the provider, a prompt or a path.
    hidden = type(error).from_fields({"reason": error.reason, **fields})
    log_hidden(error, "only this error's reason was sent to the client")
    hidden.is_logged = True
    return hidden


def _data(result: Any) -> Any:
    try:
        return serializer.from_data(serializer.to_data(ev.ToolProgress("", "", result)), local_files=True).data
    except ValidationError:
        return None

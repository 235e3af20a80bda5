"""Fold the events of one response into its message.

`fold_message` folds the log. `Blocks` keeps the parts in order. `Summary` holds what is not in the log, such as the
completed steps and the usage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Reversible
from dataclasses import replace
from typing import Any, TypeVar, cast

import msgspec

from rxllm.collector._event_faults import event_fault
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    PartAdded,
    RawChunk,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.values import (
    ChatResult,
    FilePart,
    FinishReason,
    LLMError,
    Message,
    Part,
    ProviderPart,
    SourcePart,
    StepResult,
    StreamError,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    Usage,
)

T = TypeVar("T")


def fold_message(events: Iterable[Event]) -> Message:
    """Return one response's message, with the parts in order.

    A single text part that is followed only by tool calls becomes a plain string. If there are no parts, the message of
    ``MessageCompleted`` is returned. Malformed events are omitted.
    """
    return without_faults(_fold_message, events if isinstance(events, list) else list(events))


def without_faults(fold: Callable[[list[Event]], T], log: list[Event]) -> T:
    """Return ``fold(log)``. If that raises ``TypeError``, fold the log again without its malformed events."""
    try:
        return fold(log)
    except TypeError:
        return fold([event for event in log if event_fault(event) is None])


def _fold_message(events: Iterable[Event]) -> Message:
    metadata: dict[str, Any] = {}
    last = Message("assistant")
    blocks = Blocks()
    call_events: list[Event] = []
    # Nearly every event continues the same block as the event before it.
    kind, block, pieces = None, None, list[str]()
    for event in events:
        if type(event) is TextDelta or type(event) is ThinkingDelta:
            if kind is not type(event) or event.id != block:
                kind, block = type(event), event.id
                check_delta(event, event.delta)
                pieces = blocks.pieces(kind, block)
            pieces.append(event.delta)
            continue
        if isinstance(event, ToolCallDelta):
            call_events.append(event)
            continue
        kind = None
        match event:
            case TextCompleted():
                blocks.complete(TextDelta, event.id, TextPart(event.text))
            case ThinkingCompleted():
                data = None if event.provider_data is None else dict(event.provider_data)
                blocks.complete(ThinkingDelta, event.id, ThinkingPart(event.text, event.signature, data))
            case ToolCallStarted() | ToolCallCompleted():
                blocks.mark((ToolCallPart, event.id), ToolCallPart(event.id))
                call_events.append(event)
            case SourceAdded():
                blocks.add(SourcePart(dict(event.source)))
            case FileAdded():
                blocks.add(FilePart(dict(event.file)))
            case PartAdded(part=part) | RawChunk(data=ProviderPart() as part):  # older logs have a RawChunk instead
                blocks.add(part)
            case MessageStarted(message=message) | MessageCompleted(message=message):
                metadata |= message.metadata
                last = message
            case _:
                pass
    completed = {event.id for event in call_events if isinstance(event, ToolCallCompleted)}
    calls = {id: call for id, call in _fold_calls(call_events).items() if id in completed}
    parts = tuple(part for part in _parts(blocks) if not isinstance(part, ToolCallPart) or part.id in calls)
    if not parts and not calls:
        return replace(last, metadata=metadata)
    return Message("assistant", content_of(parts), last.name, tool_calls=tuple(calls.values()), metadata=metadata)


DELTAS = frozenset({TextDelta, ThinkingDelta, ToolCallDelta})

BlockKey = tuple[type[Event], str | None]
"""The key of a block: the class of its deltas, and its id."""

BLOCKS: dict[type[Event], type[Event]] = {
    TextDelta: TextDelta,
    TextCompleted: TextDelta,
    ThinkingDelta: ThinkingDelta,
    ThinkingCompleted: ThinkingDelta,
}
"""For each class of event that a block can contain, the class of that block's deltas."""


def block_key(kind: type[Event], id: str | None, open_blocks: Reversible[BlockKey]) -> BlockKey:
    """Return the key of an event's block.

    >>> from rxllm import TextDelta, ThinkingDelta
    >>> block_key(TextDelta, None, [(TextDelta, "a"), (TextDelta, "b"), (ThinkingDelta, "c")])[1]
    'b'

    An id of None means the latest open block of this kind. If no such block is open, a new one begins.
    """
    if id is None:
        for key in reversed(open_blocks):
            if key[0] is kind:
                return key
    return kind, id


class Blocks:
    """The parts of a response, in order of first appearance.

    An open block is stored as a list of pieces. A closed block is stored as a finished part. A block that has no id
    gets a number instead.
    """

    def __init__(self) -> None:
        self._parts: dict[Any, Any] = {}
        self._open: dict[type[Event], dict[Any, None]] = {TextDelta: {}, ThinkingDelta: {}}  # oldest first

    def pieces(self, kind: type[Event], id: str | None) -> list[str]:
        """Return the list that collects the block's pieces. If the block is already complete, return a new list."""
        pieces = self._parts[self._key(kind, id)]
        return cast(list[str], pieces) if isinstance(pieces, list) else []

    def complete(self, kind: type[Event], id: str | None, part: Any) -> None:
        key = self._key(kind, id)
        self._parts[key] = part
        self._open[kind].pop(key, None)

    def mark(self, key: Any, part: Any) -> None:
        """Append `part`, unless there is already a part with this `key`."""
        self._parts.setdefault(key, part)

    def add(self, part: Any) -> None:
        self._parts[len(self._parts)] = part

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self._parts.items()

    def _key(self, kind: type[Event], id: str | None) -> Any:
        open_blocks = self._open[kind]
        key: Any = block_key(kind, id, open_blocks)
        if key == (kind, None):
            key = (kind, len(self._parts))
        if key not in self._parts:
            self._parts[key] = []
            open_blocks[key] = None
        return key


def _parts(blocks: Blocks) -> list[Part]:
    parts = (_part(key[0], cast(list[str], part)) if isinstance(part, list) else part for key, part in blocks.items())
    return [part for part in parts if part not in _EMPTY]


_EMPTY = (TextPart(""), ThinkingPart(""))  # thinking is empty if it is hidden, and kept if it is signed


def _part(kind: type[Event], pieces: list[str]) -> Part:
    text = "".join(pieces)
    return TextPart(text) if kind is TextDelta else ThinkingPart(text)


def content_of(parts: tuple[Part, ...]) -> str | tuple[Part, ...]:
    """Return `parts` as message content.

    If all parts are tool calls, the content is an empty string. If the first part is a text part without metadata and
    any other parts are tool calls, the content is the text of that part. Otherwise, the content is `parts`.
    """
    match parts:
        case (TextPart(text=text, metadata=metadata), *marks) if not metadata and _only_marks(marks):
            return text
        case marks if _only_marks(marks):
            return ""
        case _:
            return parts


def _only_marks(parts: Iterable[Part]) -> bool:
    return all(isinstance(part, ToolCallPart) for part in parts)


def check_delta(event: TextDelta | ThinkingDelta | ToolCallDelta, delta: object) -> None:
    """Raise ``TypeError`` if `event`, which is the first delta of a block or call, is malformed."""
    if not (isinstance(cast(object, event.id), str | None) and isinstance(delta, str)):
        raise TypeError(event_fault(event))


def fold_calls(events: Iterable[Event]) -> dict[str, ToolCall]:
    """Return the tool calls by id, in order."""
    return without_faults(_fold_calls, list(events))


def _fold_calls(events: Iterable[Event]) -> dict[str, ToolCall]:
    calls: dict[str, ToolCallStarted | ToolCallCompleted | None] = {}
    pieces: dict[str, list[str]] = {}
    for event in events:
        match event:
            case ToolCallStarted():
                calls[event.id] = calls.get(event.id) or event
            case ToolCallDelta():
                if event.id not in calls:
                    check_delta(event, event.arguments_delta)
                    calls[event.id] = None
                pieces.setdefault(event.id, []).append(event.arguments_delta)
            case ToolCallCompleted():
                calls[event.id] = event
            case _:
                pass
    return {id: _call(id, event, pieces.get(id, [])) for id, event in calls.items()}


def _call(id: str, event: ToolCallStarted | ToolCallCompleted | None, pieces: list[str]) -> ToolCall:
    match event:
        case ToolCallCompleted():
            return event.tool_call
        case ToolCallStarted():
            return ToolCall(id, event.name, {}, "".join(pieces), dict(event.metadata))
        case None:
            return ToolCall(id, "", {}, "".join(pieces))


class Summary(msgspec.Struct, frozen=True):
    """Everything in a state except its thread, log and executions.

    `earlier` holds the `error` and the `metadata` from before the current step, in case the step is restarted. `past`
    holds the events that restore the completed steps.
    """

    steps: tuple[StepResult, ...] = ()
    usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    error: LLMError | None = None
    metadata: Mapping[str, Any] = {}
    chat_result: ChatResult | None = None
    earlier: tuple[LLMError | None, Mapping[str, Any]] = (None, {})
    past: tuple[tuple[Event, ...], ...] = ()
    fresh: bool = False  # True from StepCompleted until the next step begins or fails
    unparsed: ChatResult | None = None  # see `ChatCompleted`


def apply_to_summary(summary: Summary, event: Event) -> Summary:
    match event:
        case UsageUpdated(usage=usage):
            return msgspec.structs.replace(summary, usage=usage, fresh=False)
        case ErrorEvent(error=error):
            return msgspec.structs.replace(summary, error=error, finish_reason="error", fresh=False)
        case ChatCompleted():
            return msgspec.structs.replace(summary, chat_result=event.result, unparsed=event.unparsed)
        case _:
            return summary


def complete(summary: Summary, event: MessageCompleted) -> Summary:
    return msgspec.structs.replace(
        summary,
        error=_failure(summary, event) if event.finish_reason == "error" else summary.error,
        # Some adapters send more events after an error.
        finish_reason="error" if summary.finish_reason == "error" else event.finish_reason or summary.finish_reason,
        raw_finish_reason=event.raw_finish_reason or summary.raw_finish_reason,
        metadata={**summary.metadata, **event.metadata},
    )


def _failure(summary: Summary, event: MessageCompleted) -> LLMError:
    # Some adapters report an error only through the finish reason.
    if summary.finish_reason == "error" and summary.error is not None:
        return summary.error
    return StreamError("adapter_error", f"the answer ended with {event.raw_finish_reason or 'an error'}")


def begin_step(summary: Summary, result: StepResult, events: tuple[Event, ...]) -> Summary:
    return Summary(
        steps=(*summary.steps, result),
        error=summary.error,
        metadata=summary.metadata,
        chat_result=summary.chat_result,
        unparsed=summary.unparsed,
        earlier=(summary.error, summary.metadata),
        past=(*summary.past, events),
        fresh=True,
    )


def restart_step(summary: Summary) -> Summary:
    error, metadata = summary.earlier
    return Summary(
        steps=summary.steps,
        error=error,
        metadata=metadata,
        chat_result=summary.chat_result,
        unparsed=summary.unparsed,
        earlier=summary.earlier,
        past=summary.past,
    )

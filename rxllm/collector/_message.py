"""The log of one response as a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from rxllm.collector._faults import event_fault
from rxllm.events import (
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from rxllm.values import (
    FilePart,
    Message,
    Part,
    ProviderPart,
    SourcePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
)


def fold_message(events: Iterable[Event]) -> Message:
    """The assistant's message that the events of one response say, its parts in the order of their first appearance.

    The content is plain text where one block of text, and then calls, is all there is. Where no event says anything, it
    is what the ``MessageCompleted`` holds. Malformed events say nothing.
    """
    log = events if isinstance(events, list) else list(events)
    try:
        return _fold_message(log)
    except TypeError:  # a malformed delta
        return _fold_message(lawful(log))


def lawful(events: Iterable[Event]) -> list[Event]:
    """Those of `events` that hold what their classes say."""
    return [event for event in events if event_fault(event) is None]


def _fold_message(events: Iterable[Event]) -> Message:
    metadata: dict[str, Any] = {}
    whole = Message("assistant")
    blocks = _Blocks()
    of_calls: list[Event] = []
    kind, block, pieces = None, None, list[str]()  # of the latest delta; nearly every event goes on where that one was
    for event in events:
        if type(event) is TextDelta or type(event) is ThinkingDelta:
            if kind is not type(event) or event.id != block:
                kind, block = type(event), event.id
                _check(event, event.delta)
                pieces = blocks.pieces(kind, block)
            pieces.append(event.delta)
            continue
        if isinstance(event, ToolCallDelta):
            of_calls.append(event)
            continue
        kind = None
        match event:
            case TextCompleted():
                blocks.complete(TextDelta, event.id, TextPart(event.text))
            case ThinkingCompleted():
                data = None if event.provider_data is None else dict(event.provider_data)
                blocks.complete(ThinkingDelta, event.id, ThinkingPart(event.text, event.signature, data))
            case ToolCallStarted() | ToolCallCompleted():
                blocks.mark(event.id)
                of_calls.append(event)
            case SourceAdded():
                blocks.add(SourcePart(dict(event.source)))
            case FileAdded():
                blocks.add(FilePart(dict(event.file)))
            case RawChunk(data=ProviderPart()):
                blocks.add(event.data)
            case MessageStarted(message=message) | MessageCompleted(message=message):
                metadata |= message.metadata
                whole = message
            case _:
                pass
    completed = {event.id for event in of_calls if isinstance(event, ToolCallCompleted)}
    calls = {id: call for id, call in _fold_calls(of_calls).items() if id in completed}
    parts = tuple(part for part in blocks.parts() if not isinstance(part, ToolCallPart) or part.id in calls)
    if not parts and not calls:
        return replace(whole, metadata=metadata)
    return Message("assistant", content_of(parts), whole.name, tool_calls=tuple(calls.values()), metadata=metadata)


class _Blocks:
    """The parts of a message while it is folded. A block is open until it is completed; the id None is the open one."""

    def __init__(self) -> None:
        self._parts: dict[Any, Part | list[str]] = {}  # by kind and id, in the order of appearance
        self._open: dict[type[Event], dict[Any, None]] = {TextDelta: {}, ThinkingDelta: {}}  # in their order

    def pieces(self, kind: type[Event], id: str | None) -> list[str]:
        """Where the deltas of this block go; nowhere, if it is complete."""
        pieces = self._parts[self._key(kind, id)]
        return pieces if isinstance(pieces, list) else []

    def complete(self, kind: type[Event], id: str | None, part: Part) -> None:
        key = self._key(kind, id)
        self._parts[key] = part
        self._open[kind].pop(key, None)

    def mark(self, id: str) -> None:
        self._parts.setdefault((ToolCallPart, id), ToolCallPart(id))

    def add(self, part: Part) -> None:
        self._parts[len(self._parts)] = part

    def parts(self) -> tuple[Part, ...]:
        joined = ((key, "".join(held) if isinstance(held, list) else held) for key, held in self._parts.items())
        made = (held if not isinstance(held, str) else _part(key[0], held) for key, held in joined)
        return tuple(part for part in made if part != TextPart(""))

    def _key(self, kind: type[Event], id: str | None) -> Any:
        opened = self._open[kind]
        if id is None and opened:
            return next(reversed(opened))
        key = (kind, len(self._parts) if id is None else id)
        if key not in self._parts:
            self._parts[key] = []
            opened[key] = None
        return key


def _part(kind: type[Event], text: str) -> Part:
    return TextPart(text) if kind is TextDelta else ThinkingPart(text)


def content_of(parts: tuple[Part, ...]) -> str | tuple[Part, ...]:
    match parts:
        case (TextPart(text=text, metadata=metadata), *marks) if not metadata and _only_marks(marks):
            return text
        case marks if _only_marks(marks):
            return ""
        case _:
            return parts


def _only_marks(parts: Iterable[Part]) -> bool:
    return all(isinstance(part, ToolCallPart) for part in parts)


def _check(event: TextDelta | ThinkingDelta | ToolCallDelta, delta: object) -> None:
    """Raises ``TypeError`` for a malformed delta. In the middle of a block it is found when the pieces are joined."""
    known = isinstance(cast(object, event.id), str | None)
    if not (known and isinstance(delta, str)):
        raise TypeError(event_fault(event))


def fold_calls(events: Iterable[Event]) -> dict[str, ToolCall]:
    """The calls by id, in the order of first appearance; of one that is not completed there is only the raw text."""
    log = list(events)
    try:
        return _fold_calls(log)
    except TypeError:  # a malformed delta
        return _fold_calls(lawful(log))


def _fold_calls(events: Iterable[Event]) -> dict[str, ToolCall]:
    calls: dict[str, ToolCallStarted | ToolCallCompleted | None] = {}
    pieces: dict[str, list[str]] = {}
    for event in events:
        match event:
            case ToolCallStarted():
                calls[event.id] = calls.get(event.id) or event
            case ToolCallDelta():
                if event.id not in calls:
                    _check(event, event.arguments_delta)
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

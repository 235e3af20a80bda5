"""Whether events say the same thing in all the places where they say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rxllm.collector import StreamCollector, fold_message
from rxllm.events import (
    ChatCompleted,
    Event,
    MessageCompleted,
    MessageStarted,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
)
from rxllm.values._json import read_arguments

DELTAS = (TextDelta, ThinkingDelta, ToolCallDelta)


def inconsistency(events: Iterable[Event]) -> str | None:
    """What two of the events disagree on: deltas, completions, the message, the step, the chat. None is all well.

    Only what is there is compared: an operator may leave out what it likes.
    """
    step = _Step()
    for event in events:
        if found := step.take(event):
            return f"{found}, at {event}"
    return None


class _Step:
    """The events of the current response."""

    def __init__(self) -> None:
        self._seen: list[Event] = []
        self._open: dict[Any, list[str]] = {}  # by kind and id
        self._closed: set[Any] = set()
        self._response: Any = None  # the last step's

    def take(self, event: Event) -> str | None:
        self._seen.append(event)
        match event:
            case MessageStarted() | StepRestarted():
                self._begin(event)
            case TextDelta() | ThinkingDelta():
                return self._piece(event, (type(event), event.id), event.delta)
            case ToolCallDelta():
                return self._piece(event, (type(event), event.id), event.arguments_delta)
            case TextCompleted():
                return self._complete((TextDelta, event.id), event.text)
            case ThinkingCompleted():
                return self._complete((ThinkingDelta, event.id), event.text)
            case ToolCallCompleted():
                return self._complete((ToolCallDelta, event.id), event.raw_arguments) or _arguments(event)
            case MessageCompleted():
                return self._message(event)
            case StepCompleted():
                return self._step(event)
            case ChatCompleted():
                return self._chat(event)
            case _:
                pass
        return None

    def _begin(self, *events: Event) -> None:
        self._seen, self._open, self._closed = [*events], {}, set()

    def _piece(self, event: Event, key: Any, piece: str) -> str | None:
        key = self._block(*key)
        if key in self._closed:
            return "a delta comes after its block's completion"
        self._open.setdefault(key, []).append(piece)
        return None

    def _complete(self, key: Any, text: str) -> str | None:
        key = self._block(*key)
        pieces = self._open.pop(key, None)
        if key[1] is not None:
            self._closed.add(key)
        if pieces is None or "".join(pieces) == text:
            return None
        return f"the deltas say {''.join(pieces)!r} and their completion {text!r}"

    def _block(self, kind: type[Event], id: str | None) -> Any:
        opened = [key for key in self._open if key[0] is kind]
        return opened[-1] if id is None and opened else (kind, id)

    def _message(self, event: MessageCompleted) -> str | None:
        without = [event for event in self._seen if not isinstance(event, DELTAS)]
        for seen in (self._seen, [] if self._open else without):
            folded = fold_message(seen)
            if seen and (folded.content, folded.tool_calls) != (event.message.content, event.message.tool_calls):
                told = "the events" if seen is self._seen else "the events but the deltas"
                return f"{told} fold to {folded.content!r}, {folded.tool_calls} and the message is another"
        return None

    def _step(self, event: StepCompleted) -> str | None:
        before, response = self._seen[:-1], event.response
        self._begin()
        self._response = response
        if not any(isinstance(each, MessageStarted) for each in before):
            return None
        folded = _fold(before).to_response()
        if (folded.output_text, folded.tool_calls) == (response.output_text, response.tool_calls):
            return None
        return f"the events fold to {folded} and the step's response is {response}"

    def _chat(self, event: ChatCompleted) -> str | None:
        final = event.result.final_response
        if self._response is None or final == self._response:
            return None
        return f"the last step's response is {self._response} and the chat's final one {final}"


def _arguments(event: ToolCallCompleted) -> str | None:
    read = read_arguments(event.raw_arguments)
    if read is None or read == event.arguments:
        return None
    return "the raw arguments are not the arguments"


def _fold(events: Sequence[Event]) -> StreamCollector:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state

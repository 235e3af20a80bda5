"""The rules of one response."""

from __future__ import annotations

from rxllm.collector import BlockKey, block_key, fold_message, is_server
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.values import Usage
from rxllm.values._json import read_arguments

_DELTAS = (TextDelta, ThinkingDelta, ToolCallDelta)


class Broken(Exception):  # noqa: N818 it does not leave this folder
    """A broken rule: its name, and how it is broken."""


class Response:
    """The events of one response, and its open block and tool calls."""

    def __init__(self, used: set[str]) -> None:
        self.ids: set[str] = set()
        self._used = used
        self._log: list[Event] = []
        self._open: tuple[BlockKey, ...] = ()  # at most one
        self._pieces: list[str] = []
        self._calls: dict[str, tuple[str, list[str]]] = {}  # name and pieces of the open ones
        self._usage: Usage | None = None

    def feed(self, event: Event) -> None:
        self._log.append(event)
        match event:
            case TextDelta() | ThinkingDelta():
                self._delta(event)
            case TextCompleted():
                self._complete(TextDelta, event)
            case ThinkingCompleted():
                self._complete(ThinkingDelta, event)
            case ToolCallStarted():
                self._start_call(event)
            case ToolCallDelta():
                self._call(event.id)[1].append(event.arguments_delta)
            case ToolCallCompleted():
                self._complete_call(event)
            case UsageUpdated():
                self._count(event)
            case MessageCompleted():
                self._end()
                self._check_message(event)
            case ErrorEvent():
                self._end()
            case _:
                pass

    def _delta(self, event: TextDelta | ThinkingDelta) -> None:
        key = block_key(type(event), event.id, self._open)
        if key not in self._open:
            self._no_block()
            self._open = (key,)
        self._pieces.append(event.delta)

    def _complete(self, kind: type[Event], event: TextCompleted | ThinkingCompleted) -> None:
        if block_key(kind, event.id, self._open) not in self._open:
            self._no_block()
        text = "".join(self._pieces)
        if event.text != text:
            raise Broken("block_text", f"the deltas of the block add up to {text!r}")
        self._open, self._pieces = (), []

    def _no_block(self) -> None:
        for kind, id in self._open:
            name = "" if id is None else f" {id!r}"
            raise Broken("block_closed", f"the block{name} of {kind.__name__} is still open")

    def _start_call(self, event: ToolCallStarted) -> None:
        self._no_block()
        if not event.id or event.id in self.ids or event.id in self._used:
            raise Broken("call_id", f"{event.id!r} is empty or taken: ids must be unique in the thread")
        self.ids.add(event.id)
        self._calls[event.id] = (event.name, [])

    def _call(self, id: str) -> tuple[str, list[str]]:
        if id not in self._calls:
            raise Broken("call_order", f"no call {id!r} is open")
        return self._calls[id]

    def _complete_call(self, event: ToolCallCompleted) -> None:
        name, pieces = self._call(event.id)
        if event.name != name:
            raise Broken("call_name", f"the call started with the name {name!r}")
        raw = "".join(pieces)
        if event.raw_arguments != raw:
            raise Broken("call_raw_arguments", f"the deltas of the call add up to {raw!r}")
        if "error" not in event.metadata and event.arguments != read_arguments(raw):
            raise Broken("call_arguments", "they differ from the raw arguments, and the metadata has no error")
        del self._calls[event.id]

    def _count(self, event: UsageUpdated) -> None:
        if event.usage == self._usage:
            raise Broken("usage_changed", "the usage has not changed since the last event")
        self._usage = event.usage

    def _end(self) -> None:
        self._no_block()
        if self._calls:
            raise Broken("call_completed", f"the calls {', '.join(self._calls)} are still open")
        if fold_message(self._log) != fold_message(event for event in self._log if not isinstance(event, _DELTAS)):
            raise Broken("message_folded", "without the deltas the fold is different")

    def _check_message(self, event: MessageCompleted) -> None:
        folded = fold_message(self._log)
        if event.message != folded:
            names = [name for name in vars(folded) if getattr(folded, name) != getattr(event.message, name)]
            parts = ", ".join(f"{name}={getattr(folded, name)!r}" for name in names)  # the repr of a message is short
            raise Broken("message_folded", f"the fold of the events has {parts}")
        clients = [call for call in folded.tool_calls if not is_server(call)]
        if clients and event.finish_reason not in ("tool_calls", "length", "content_filter", "error"):
            raise Broken("finish_reason", f"{event.finish_reason!r} leaves calls unanswered")

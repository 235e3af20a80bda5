"""Check one response."""

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
from rxllm.operators._shared.event_operators import DELTAS
from rxllm.values import Usage
from rxllm.values.json_text import read_arguments


class Broken(Exception):  # noqa: N818 it never leaves this folder
    """The name of a broken rule, and why it is broken."""


class Response:
    """The events of one response so far, and its open blocks and tool calls."""

    def __init__(self, used: set[str]) -> None:
        self.ids: set[str] = set()
        self._used = used
        self._log: list[Event] = []
        self._open: tuple[BlockKey, ...] = ()  # at most one
        self._pieces: list[str] = []
        self._calls: dict[str, tuple[str, list[str]]] = {}  # names and argument pieces of open tool calls
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
            self._check_no_open_block()
            self._open = (key,)
        self._pieces.append(event.delta)

    def _complete(self, kind: type[Event], event: TextCompleted | ThinkingCompleted) -> None:
        if block_key(kind, event.id, self._open) not in self._open:
            self._check_no_open_block()
        text = "".join(self._pieces)
        if event.text != text:
            raise Broken("block_text", f"the deltas of the block join to {text!r}")
        self._open, self._pieces = (), []

    def _check_no_open_block(self) -> None:
        for kind, id in self._open:
            name = "" if id is None else f" {id!r}"
            raise Broken("block_closed", f"the block{name} of {kind.__name__} is still open")

    def _start_call(self, event: ToolCallStarted) -> None:
        self._check_no_open_block()
        if not event.id or event.id in self.ids or event.id in self._used:
            raise Broken("call_id", f"{event.id!r} is empty or used before: ids are unique in the thread")
        self.ids.add(event.id)
        self._calls[event.id] = (event.name, [])

    def _call(self, id: str) -> tuple[str, list[str]]:
        if id not in self._calls:
            raise Broken("call_order", f"no tool call {id!r} is open")
        return self._calls[id]

    def _complete_call(self, event: ToolCallCompleted) -> None:
        name, pieces = self._call(event.id)
        if event.name != name:
            raise Broken("call_name", f"the tool call started as {name!r}")
        raw = "".join(pieces)
        if event.raw_arguments != raw:
            raise Broken("call_raw_arguments", f"the deltas of the tool call join to {raw!r}")
        if "error" not in event.metadata and event.arguments != read_arguments(raw):
            raise Broken("call_arguments", "the raw arguments parse to others, and the metadata has no error")
        del self._calls[event.id]

    def _count(self, event: UsageUpdated) -> None:
        if event.usage == self._usage:
            raise Broken("usage_changed", "the usage is unchanged: emit it once per change")
        self._usage = event.usage

    def _end(self) -> None:
        self._check_no_open_block()
        if self._calls:
            raise Broken("call_completed", f"the tool calls {', '.join(self._calls)} are still open")
        if fold_message(self._log) != fold_message(event for event in self._log if type(event) not in DELTAS):
            raise Broken("message_folded", "the fold without deltas differs from the fold with them")

    def _check_message(self, event: MessageCompleted) -> None:
        folded = fold_message(self._log)
        if event.message != folded:
            names = [name for name in vars(folded) if getattr(folded, name) != getattr(event.message, name)]
            parts = ", ".join(f"{name}={getattr(folded, name)!r}" for name in names)  # the repr of a message is short
            raise Broken("message_folded", f"the fold of the events has {parts}")
        pending = [call for call in folded.tool_calls if not is_server(call)]
        if pending and event.finish_reason not in ("tool_calls", "length", "content_filter", "error"):
            raise Broken("finish_reason", f"{event.finish_reason!r} leaves tool calls unanswered")

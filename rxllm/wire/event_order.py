"""Turn what a decoder reports into events in the right order, and end the stream properly.

A decoder calls the methods of `Blocks` in the order in which the provider sends the content:

=============  ==========================  ==========================================================================
state          method                      effect
=============  ==========================  ==========================================================================
new            `start`                     Emits ``MessageStarted``. If a method that emits content is called first,
                                           that method calls `start`.
started        `text`, `thinking`, `call`  Emits a delta. Only one block is open at a time. It is completed when a
                                           block with a different kind or id begins, or when a tool call starts.
started        `source`, `file`, `part`    Emits an event, or holds it back until the open block is complete.
started        `finish`                    Emits nothing, since content, errors and usage may still follow.
started        `error`                     Completes the open block and all unfinished tool calls, marks these calls
                                           as incomplete, and emits an ``ErrorEvent``.
started        `end`                       Completes everything that is open, and emits ``MessageCompleted``. If no
                                           finish reason was reported and `over` is false, the stream fails with
                                           ``StreamError("truncated")``. If `finish` reported an error, the stream
                                           fails with that error.
ended          any of these                Emits nothing.
=============  ==========================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Literal

from rxllm.collector import DELTAS, fold_message, pending_calls
from rxllm.events import (
    NOTHING,
    Custom,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    RawChunk,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.values import FinishReason, LLMError, Message, ProviderPart, StreamError, Usage
from rxllm.wire.tool_calls import CallTracker


class BlockIds:
    """Chooses the ids of blocks. If the provider gives a block an id, the block keeps it.

    >>> ids = BlockIds()
    >>> ids.of(None), ids.of("msg_1"), ids.of(None), ids.of("msg_1")
    ('block_0', 'msg_1', 'block_1', 'msg_1')

    If the provider later uses an id that was already generated here, the provider's block gets a different id.

    >>> ids.of("block_1")
    'block_2'
    """

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}  # the provider's id of a block -> the id used here
        self._minted: set[str] = set()
        self._numbers = count()

    def of(self, id: str | None) -> str:
        """Return the block id to use for the provider's `id`."""
        if id is None:
            return self._mint()
        if id not in self._ids:
            self._ids[id] = self._mint() if id in self._minted else id
        return self._ids[id]

    def _mint(self) -> str:
        id = next(id for number in self._numbers if (id := f"block_{number}") not in self._ids)
        self._minted.add(id)
        return id


_OF_BLOCKS = (TextDelta, TextCompleted, ThinkingDelta, ThinkingCompleted)


class Blocks:
    """Turns what a decoder reports into events.

    >>> blocks = Blocks()
    >>> blocks.start(id="r1")
    >>> blocks.text("Hi")
    >>> blocks.finish("stop", "stop")
    >>> blocks.end()
    >>> [type(event).__name__ for event in blocks.take()]
    ['MessageStarted', 'TextDelta', 'TextCompleted', 'MessageCompleted']

    `take` returns the events that have been added since the last `take`. A block that has no id is given the id
    ``block_<k>``.
    """

    def __init__(self, calls: CallTracker | None = None) -> None:
        self.calls = calls or CallTracker()
        self.ended = False
        self.started = False
        self._events: list[Event] = []
        self._folded: list[Event] = []  # the events that are folded into the message
        self._open: Literal["text", "thinking"] | None = None
        self._reported_id: str | None = None
        self._id = ""  # the id used in the open block's events
        self._ids = BlockIds()
        self._pieces: list[str] = []
        self._signature: str | None = None
        self._provider_data: Mapping[str, Any] | None = None
        self._waiting: list[Event] = []  # to be emitted once the open block is complete
        self._usage: Usage | None = None
        self._finish: tuple[FinishReason | None, str | None] | None = None
        self._failure: LLMError | None = None  # the error to end with, if the finish reason means failure
        self._identity: dict[str, Any] = {}
        self._metadata: dict[str, Any] = {}
        self._refused = False
        self._is_refusal = False  # whether the open text block belongs to a refusal

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def start(self, **metadata: Any) -> None:
        """Start the message. Its metadata consists of fields such as ``id`` and ``model``.

        Only non-empty strings and dicts are kept. If `start` is called again, new fields are added only to
        ``MessageCompleted``.
        """
        known: dict[str, Any] = {k: v for k, v in metadata.items() if v and isinstance(v, str | dict)}
        if not self.started:
            self.started = True
            self._identity = known
            self._emit(MessageStarted(Message("assistant", metadata=dict(known))))
        elif known:
            self._identity = known | self._identity

    def text(self, delta: str, id: str | None = None, *, refusal: bool = False) -> None:
        if not delta or self.ended:
            return
        if not isinstance(delta, str):  # pyright: ignore[reportUnnecessaryIsInstance] from JSON
            raise _not_text(delta)
        if self._open != "text" or self._reported_id != id or self._is_refusal is not refusal:
            is_other_kind = self._open == "text" and self._reported_id == id
            self._begin("text", id)
            self._id = self._ids.of(None) if is_other_kind and id is not None else self._id
            self._is_refusal = refusal
        self._pieces.append(delta)
        self._events.append(TextDelta(delta, self._id, refusal))

    def refusal(self, delta: str, id: str | None = None) -> None:
        """Report text in which the model refuses to answer. The finish reason becomes ``content_filter``."""
        self.text(delta, id, refusal=True)
        self._refused = True

    def thinking(self, delta: str, id: str | None = None, tokens: int | None = None) -> None:
        """Report thinking. If the model hides it, `delta` is empty, and `tokens` is an estimate of its length."""
        if self.ended or not (delta or tokens is not None):
            return
        if not isinstance(delta, str):  # pyright: ignore[reportUnnecessaryIsInstance] from JSON
            raise _not_text(delta)
        if self._open != "thinking" or self._reported_id != id:
            self._begin("thinking", id)
        self._pieces.append(delta)
        self._events.append(ThinkingDelta(delta, self._id, tokens))

    def sign(
        self, signature: str | None = None, provider_data: Mapping[str, Any] | None = None, id: str | None = None
    ) -> None:
        """Attach data that the next request must send back to the provider.

        The data is attached to the open thinking block that has this `id`. If there is none, a new block begins.
        """
        if self.ended:
            return
        if self._open != "thinking" or self._reported_id != id:
            self._begin("thinking", id)
        self._signature = signature or self._signature
        self._provider_data = provider_data or self._provider_data

    def call(
        self,
        index: int | None,
        id: str | None,
        name: str | None,
        arguments: str | Mapping[str, Any] | None,
        metadata: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Report one delta of a tool call; see `CallTracker.feed`."""
        if not self.ended:
            self._emit_calls(self.calls.feed(index, id, name, arguments, metadata))

    def complete_call(self, index: int) -> None:
        if not self.ended:
            self._emit_calls(self.calls.complete(index))

    def drop_calls(self) -> None:
        """Complete the calls that are not complete as incomplete, since another model continues the message."""
        if not self.ended:
            self._emit_calls(self.calls.close(failed=True))

    def answered_by(self, model: str) -> None:
        """Report which model has answered, if it is not the one that the message started with."""
        self._identity = {**self._identity, "model": model}

    def source(self, source: Mapping[str, Any]) -> None:
        self._add(SourceAdded(source))

    def file(self, file: Mapping[str, Any]) -> None:
        self._add(FileAdded(file))

    def part(self, part: ProviderPart) -> None:
        """Report a part of the message that only the provider understands."""
        self._add(PartAdded(part))

    def raw(self, kind: str, data: Any) -> None:
        if not self.ended:
            self.start()
            self._events.append(RawChunk(kind, data))

    def aside(self, event: Nested | Custom) -> None:
        """Report an event that is not part of the message. This does not complete the open block."""
        if not self.ended:
            self.start()
            self._events.append(event)

    def usage(self, usage: Usage) -> None:
        """Report the usage so far. If it has not changed, nothing is emitted."""
        if not self.ended and usage != self._usage:
            self.start()
            self._usage = usage
            self._events.append(UsageUpdated(usage))

    def event(self, event: Event) -> None:
        """Complete the open block and emit `event` unchanged."""
        if not self.ended:
            self.close_block()
            if isinstance(event, _OF_BLOCKS) and event.id is not None:
                self._ids.of(event.id)  # reserve the id
            self._emit(event)
            self.started = True
            self.ended = isinstance(event, MessageCompleted | ErrorEvent)

    def note(self, metadata: Mapping[str, Any]) -> None:
        """Add `metadata` to the ``MessageCompleted`` event."""
        self._metadata |= metadata

    def append(self, name: str, items: Iterable[Any]) -> None:
        """Add `items` to the list `name` in the metadata of the ``MessageCompleted`` event."""
        self._metadata.setdefault(name, []).extend(items)

    def finish(self, reason: FinishReason | None, raw: str | None, failure: LLMError | None = None) -> None:
        """Report a finish reason. If it means failure, pass the error as `failure`; the stream will end with it.

        ``stop`` never replaces an earlier reason.
        """
        if reason != "stop" or self._finish is None:
            self._finish, self._failure = (reason, raw), failure

    def close_block(self) -> None:
        """Complete the open block, if there is one, and emit the events that were waiting for it."""
        kind, text = self._open, "".join(self._pieces)
        self._open, self._pieces = None, []
        if kind == "text":
            self._emit(TextCompleted(text, self._id, self._is_refusal))
        elif kind == "thinking":
            self._emit(ThinkingCompleted(text, self._signature, self._provider_data, self._id))
            self._signature = self._provider_data = None
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._emit(event)

    def error(self, error: LLMError) -> None:
        """End the stream with `error`."""
        if self.ended:
            return
        self.start()
        self.close_block()
        self._emit_calls(self.calls.close(failed=True))
        self._emit(ErrorEvent(error))
        self.ended = True

    def end(self, *, over: bool = False) -> None:
        """End the stream. `over` is true if the provider's end marker has arrived."""
        if self.ended:
            return
        if not over and self._finish is None:
            self.error(StreamError("truncated", "the stream ended without a finish reason or an end marker"))
            return
        if self._failure is not None:
            self.error(self._failure)
            return
        self.start()
        self.close_block()
        self._emit_calls(self.calls.close())
        reason, raw = self._finish or (None, None)
        message = replace(fold_message(self._folded), metadata=self._identity)
        if self._refused:
            reason = "content_filter"
        elif reason in (None, "stop", "other") and pending_calls(message):
            reason = "tool_calls"
        self._emit(MessageCompleted(message, reason, raw, self._metadata))
        self.ended = True

    def _begin(self, kind: Literal["text", "thinking"], id: str | None) -> None:
        self.start()
        self.close_block()
        self._emit_calls(self.calls.leave())
        self._open, self._reported_id, self._id = kind, id, self._ids.of(id)

    def _add(self, event: Event) -> None:
        if self.ended:
            return
        self.start()
        if self._open is None:
            self._emit(event)
        else:
            self._waiting.append(event)

    def _emit_calls(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is ToolCallStarted:
                self.start()
                self.close_block()
            self._emit(event)

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if type(event) not in DELTAS:
            self._folded.append(event)


def _not_text(delta: Any) -> StreamError:
    return StreamError("malformed_event", f"a delta is not text: got {repr(delta)[:80]}")

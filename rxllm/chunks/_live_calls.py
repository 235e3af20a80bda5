"""The tool calls of a stream of chunks while they come."""

from __future__ import annotations

from typing import Any

from rxllm.chunks._chunk import StreamChunk
from rxllm.chunks._reading import (
    CallRecord,
    Index,
    as_json,
    read_call,
    read_call_metadata,
    read_fragment,
)
from rxllm.wire.blocks import Blocks

_MARKS = frozenset({"raw_arguments", "invalid_arguments", "unparseable_arguments"})
"""What a decoder says of a first piece of arguments that is no JSON by itself; the pieces together tell better."""


class _Live:
    __slots__ = ("call", "held", "opened", "position", "sent")

    def __init__(self, position: int, call: CallRecord) -> None:
        self.position = position
        self.call = call
        self.held = ""
        self.opened = False  # whether there has been anything but space
        self.sent = False  # whether there has been a fragment, an empty one included


class LiveCalls:
    """The calls of one response, reported to `blocks`; `before` is how many the thread has had."""

    def __init__(self, blocks: Blocks, before: int) -> None:
        self._blocks = blocks
        self._before = before
        self._calls: list[_Live] = []
        self._latest: dict[Index, _Live] = {}
        self._early: dict[Index, list[str]] = {}
        self._updates: dict[Index, dict[str, Any]] = {}

    def begin(self, chunk: StreamChunk) -> bool:
        """A tool call chunk; False for one without a name."""
        call = read_call(chunk)
        if call is None:
            return False
        live = _Live(len(self._calls), call)
        self._calls.append(live)
        self._latest[call.index] = live
        metadata = {key: held for key, held in call.metadata.items() if key not in _MARKS}
        metadata |= {"server": True} if call.builtin else {}
        metadata |= self._updates.pop(call.index, {})
        self._blocks.call(live.position, call.id or f"call_{self._before + live.position}", call.name, None, metadata)
        for piece in [*self._early.pop(call.index, []), *([call.raw] if call.raw else [])]:
            self._say(live, piece)
        return True

    def add(self, given: Any) -> bool:
        """A ``tool_call_args``; False for one that is none."""
        fragment = read_fragment(given)
        if fragment is None:
            return False
        index, piece = fragment
        live = self._latest.get(index)
        if live is None:
            self._early.setdefault(index, []).append(piece)
        else:
            self._say(live, piece)
        return True

    def update(self, given: Any) -> bool:
        """A ``tool_call_metadata``; False for one that is none."""
        update = read_call_metadata(given)
        if update is None:
            return False
        live = self._latest.get(update[0])
        if live is None:
            self._updates.setdefault(update[0], {}).update(update[1])
        else:
            self._blocks.call(live.position, None, None, None, update[1])
        return True

    def settle(self) -> None:
        """No more fragments will come: what has none takes the arguments that came with its call."""
        for live in self._calls:
            if not live.opened and live.call.arguments:
                raw = as_json(live.call.arguments)
                self._blocks.call(live.position, None, None, repr(live.call.arguments) if raw is None else raw)
            if not live.sent and live.call.expects:
                self._blocks.call(live.position, None, None, None, {"error": "missing_fragments"})
        for index, pieces in self._early.items():
            self._blocks.raw("tool_call_args", {"index": index, "fragment": "".join(pieces)})
        for index, updates in self._updates.items():
            self._blocks.raw("tool_call_metadata", {"index": index, "metadata": updates})

    def _say(self, live: _Live, piece: str) -> None:
        live.sent = True
        if not live.opened:
            piece = live.held + piece
            said = piece.lstrip()
            if not said:
                live.held = piece
                return
            live.opened = True
            # Decoders lose an opening brace that comes together with the name.
            piece = "{" + piece if said[0] in '"}' else piece
        if piece:
            self._blocks.call(live.position, None, None, piece)

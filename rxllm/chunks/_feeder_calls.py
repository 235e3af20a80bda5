"""The tool calls of a stream of chunks while it runs."""

from __future__ import annotations

from typing import Any

from rxllm.chunks._metadata import CallRecord, Index, as_json, read_call, read_call_metadata, read_fragment
from rxllm.chunks._stream_chunk import StreamChunk
from rxllm.wire.event_order import Blocks

_MARKS = frozenset({"raw_arguments", "invalid_arguments", "unparseable_arguments"})
"""What a decoder says of a first piece of arguments that is not JSON by itself; all pieces together tell better."""


class _LiveCall:
    __slots__ = ("call", "has_fragments", "leading_space", "opened", "position")

    def __init__(self, position: int, call: CallRecord) -> None:
        self.position = position
        self.call = call
        self.leading_space = ""
        self.opened = False  # whether a fragment had anything but space
        self.has_fragments = False  # an empty one counts


class LiveCalls:
    """Report the calls of one response to `blocks`; `before` is how many calls the thread has had."""

    def __init__(self, blocks: Blocks, before: int) -> None:
        self._blocks = blocks
        self._before = before
        self._calls: list[_LiveCall] = []
        self._latest: dict[Index, _LiveCall] = {}
        # Fragments and updates may come before their call.
        self._early_fragments: dict[Index, list[str]] = {}
        self._early_updates: dict[Index, dict[str, Any]] = {}

    def begin(self, chunk: StreamChunk) -> bool:
        """Begin the call of a chunk; return False if it has no name."""
        call = read_call(chunk)
        if call is None:
            return False
        live = _LiveCall(len(self._calls), call)
        self._calls.append(live)
        self._latest[call.index] = live
        metadata = {key: value for key, value in call.metadata.items() if key not in _MARKS}
        metadata |= {"server": True} if call.builtin else {}
        metadata |= self._early_updates.pop(call.index, {})
        self._blocks.call(live.position, call.id or f"call_{self._before + live.position}", call.name, None, metadata)
        for fragment in self._early_fragments.pop(call.index, []):
            self._pass_on(live, fragment)
        if call.first_fragment:
            self._pass_on(live, call.first_fragment)
        return True

    def add(self, entry: Any) -> bool:
        """Read a ``tool_call_args`` entry; return False if it is malformed."""
        fragment = read_fragment(entry)
        if fragment is None:
            return False
        index, text = fragment
        live = self._latest.get(index)
        if live is None:
            self._early_fragments.setdefault(index, []).append(text)
        else:
            self._pass_on(live, text)
        return True

    def update(self, entry: Any) -> bool:
        """Read a ``tool_call_metadata`` entry; return False if it is malformed."""
        update = read_call_metadata(entry)
        if update is None:
            return False
        index, metadata = update
        live = self._latest.get(index)
        if live is None:
            self._early_updates.setdefault(index, {}).update(metadata)
        else:
            self._blocks.call(live.position, None, None, None, metadata)
        return True

    def settle(self) -> None:
        """No more fragments will come: a call that got none takes the arguments that came with it."""
        for live in self._calls:
            arguments = live.call.arguments
            if not live.opened and arguments:
                text = as_json(arguments)
                self._blocks.call(live.position, None, None, repr(arguments) if text is None else text)
            if not live.has_fragments and live.call.expects_fragments:
                self._blocks.call(live.position, None, None, None, {"error": "missing_fragments"})
        for index, fragments in self._early_fragments.items():
            self._blocks.raw("tool_call_args", {"index": index, "fragment": "".join(fragments)})
        for index, metadata in self._early_updates.items():
            self._blocks.raw("tool_call_metadata", {"index": index, "metadata": metadata})

    def _pass_on(self, live: _LiveCall, fragment: str) -> None:
        live.has_fragments = True
        if not live.opened:
            fragment = live.leading_space + fragment
            text = fragment.lstrip()
            if not text:
                live.leading_space = fragment
                return
            live.opened = True
            # Decoders lose an opening brace that comes together with the name.
            fragment = "{" + fragment if text[0] in '"}' else fragment
        if fragment:
            self._blocks.call(live.position, None, None, fragment)

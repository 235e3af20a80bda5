"""The tool calls of an accumulator's chunks, under two contracts that differ on purpose.

=============================  ==================================  ==========================================
                               for the response                    for the message
=============================  ==================================  ==========================================
a call is                      a mapping                           a ``ToolCall``
arguments                      of any JSON type                    an object, and its text
fragments are not JSON         the call's own, marked, a warning   the call's own
fragments expected, none came  the call's own, marked, a warning   the call's own
=============================  ==================================  ==========================================
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from rxllm.chunks._metadata import CallRecord, Index, as_json, mapping, read_call, read_call_metadata, read_fragment
from rxllm.chunks._stream_chunk import StreamChunk
from rxllm.values import ToolCall
from rxllm.values.json_text import UNREADABLE, decode_json

log = logging.getLogger("rxllm")


class AssembledCall(msgspec.Struct):
    """A call with everything that later chunks add to it; `text` joins its fragments, and is None where none came."""

    id: str
    call: CallRecord
    text: str | None
    metadata: dict[str, Any]

    def record(self) -> dict[str, Any]:
        """Return the call as it came, see ``ChunkAccumulator.tool_calls``."""
        call = self.call
        optional = {
            "builtin?": call.builtin,
            "expects_arg_fragments": call.expects_fragments,
            "metadata": self.metadata,
        }
        record = {"id": self.id, "name": call.name, "arguments": call.arguments, "index": call.index}
        return record | {name: value for name, value in optional.items() if value}

    def for_response(self, *, warn: bool = True) -> dict[str, Any]:
        """Return the call for ``ChunkAccumulator.finalize_tool_calls_for_response``."""
        arguments, metadata, lost = self.call.arguments, self.metadata, None
        if self.text is None and self.call.expects_fragments:
            lost = "missing_fragments"
        elif self.text:
            try:
                arguments = decode_json(self.text)
            except UNREADABLE:
                lost = "json_decode_error"
        if lost:
            metadata = {**metadata, "error": ("args_lost", lost)}
            if warn:
                self._warn(lost)
        result = {"id": self.id, "name": self.call.name, "arguments": arguments}
        result |= {"builtin?": True} if self.call.builtin else {}
        return result | ({"metadata": metadata} if metadata else {})

    def for_message(self) -> ToolCall:
        """Return the call for ``ChunkAccumulator.finalize_message``."""
        arguments = _decoded(self.text, self.call.arguments) if self.text else self.call.arguments
        raw = (as_json(arguments) if isinstance(arguments, str | list | dict) else None) or "{}"
        metadata = self.metadata | ({"server": True} if self.call.builtin else {})
        return ToolCall(self.id, self.call.name, dict(mapping(_decoded(raw, None))), raw, metadata)

    def _warn(self, reason: str) -> None:
        # Never the text itself: it may hold what a user wrote.
        details: dict[str, Any] = {"tool_name": self.call.name, "tool_call_id": self.id, "reason": reason}
        if self.text is not None:
            details["json_bytes"] = len(self.text.encode(errors="replace"))
        listed = " ".join(f"{name}={value}" for name, value in details.items())
        log.warning("a tool call has lost its arguments: %s", listed, extra={"lost": details})


def assembled_calls(chunks: Iterable[StreamChunk]) -> list[AssembledCall]:
    """Return the calls in order of arrival, each with all fragments and updates of its index."""
    calls, texts, updates = _gathered(chunks)
    return [
        AssembledCall(id, call, texts.get(call.index), call.metadata | updates.get(call.index, {}))
        for id, call in zip(_ids(calls), calls, strict=True)
    ]


def joined_fragments(chunks: Iterable[StreamChunk]) -> dict[Index, str]:
    """Return the text of all fragments by the index of their call."""
    return _gathered(chunks)[1]


def _gathered(
    chunks: Iterable[StreamChunk],
) -> tuple[list[CallRecord], dict[Index, str], dict[Index, dict[str, Any]]]:
    """Return the calls, and by index the text of their fragments and the updates of their metadata."""
    calls: list[CallRecord] = []
    fragments: dict[Index, list[str]] = {}
    updates: dict[Index, dict[str, Any]] = {}
    for chunk in chunks:
        if chunk.type == "tool_call" and (call := read_call(chunk)):
            calls.append(call)
            if call.first_fragment:
                fragments.setdefault(call.index, []).append(call.first_fragment)
        elif chunk.type == "meta":
            metadata = mapping(chunk.metadata)
            if fragment := read_fragment(metadata.get("tool_call_args")):
                fragments.setdefault(fragment[0], []).append(fragment[1])
            if update := read_call_metadata(metadata.get("tool_call_metadata")):
                updates.setdefault(update[0], {}).update(update[1])
    return calls, {index: "".join(pieces) for index, pieces in fragments.items()}, updates


def _ids(calls: list[CallRecord]) -> list[str]:
    """Return each call's id; one without gets ``call_<k>``, k being its position or the next that is free."""
    taken = {call.id for call in calls if call.id}
    ids: list[str] = []
    k = 0
    for position, call in enumerate(calls):
        id = call.id
        if id is None:
            k = max(k, position)
            while (id := f"call_{k}") in taken:
                k += 1
        taken.add(id)
        ids.append(id)
    return ids


def _decoded(text: str, default: Any) -> Any:
    try:
        return decode_json(text)
    except UNREADABLE:
        return default

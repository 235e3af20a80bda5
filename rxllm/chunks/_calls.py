"""The tool calls of an accumulator's chunks, by two contracts that differ on purpose.

=======================  ==================================  ==========================================
                         for the response                    for the message
=======================  ==================================  ==========================================
what it gives            mappings                            ``ToolCall``
arguments                of any JSON type                    an object, and its text
fragments are no JSON    the call's own, marked, a warning   the call's own
expected, never came     the call's own, marked, a warning   the call's own
=======================  ==================================  ==========================================
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from rxllm.chunks._chunk import StreamChunk
from rxllm.chunks._reading import CallRecord, Index, as_json, mapping, read_call, read_call_metadata, read_fragment
from rxllm.values import ToolCall

log = logging.getLogger("rxllm")

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


class _Read(msgspec.Struct):
    """A call and what belongs to it; `text` is None where no fragment came."""

    id: str
    call: CallRecord
    text: str | None
    metadata: dict[str, Any]


def calls_for_response(chunks: Iterable[StreamChunk], *, warn: bool = True) -> list[dict[str, Any]]:
    """See ``ChunkAccumulator.finalize_tool_calls_for_response``."""
    return [_for_response(read, warn) for read in _read(chunks)]


def calls_for_message(chunks: Iterable[StreamChunk]) -> tuple[ToolCall, ...]:
    """See ``ChunkAccumulator.finalize_message``."""
    return tuple(map(_for_message, _read(chunks)))


def call_records(chunks: Iterable[StreamChunk]) -> list[dict[str, Any]]:
    """See ``ChunkAccumulator.tool_calls``."""
    calls, _, updates = _gathered(chunks)
    return [_record(id, call, updates.get(call.index, {})) for id, call in zip(_ids(calls), calls, strict=True)]


def fragments(chunks: Iterable[StreamChunk]) -> dict[Index, str]:
    """See ``ChunkAccumulator.arg_fragments``."""
    return _gathered(chunks)[1]


def _read(chunks: Iterable[StreamChunk]) -> list[_Read]:
    calls, texts, updates = _gathered(chunks)
    named = zip(_ids(calls), calls, strict=True)
    return [_Read(id, one, texts.get(one.index), one.metadata | updates.get(one.index, {})) for id, one in named]


def _gathered(
    chunks: Iterable[StreamChunk],
) -> tuple[list[CallRecord], dict[Index, str], dict[Index, dict[str, Any]]]:
    """The calls, and by index their fragments' text and what was added to their metadata."""
    calls: list[CallRecord] = []
    pieces: dict[Index, list[str]] = {}
    updates: dict[Index, dict[str, Any]] = {}
    for chunk in chunks:
        if chunk.type == "tool_call" and (call := read_call(chunk)):
            calls.append(call)
            if call.raw:
                pieces.setdefault(call.index, []).append(call.raw)
        elif chunk.type == "meta":
            metadata = mapping(chunk.metadata)
            if fragment := read_fragment(metadata.get("tool_call_args")):
                pieces.setdefault(fragment[0], []).append(fragment[1])
            if update := read_call_metadata(metadata.get("tool_call_metadata")):
                updates.setdefault(update[0], {}).update(update[1])
    return calls, {index: "".join(held) for index, held in pieces.items()}, updates


def _record(id: str, call: CallRecord, update: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"id": id, "name": call.name, "arguments": call.arguments, "index": call.index}
    optional = {
        "builtin?": call.builtin,
        "expects_arg_fragments": call.expects,
        "metadata": call.metadata | update,
    }
    return record | {name: held for name, held in optional.items() if held}


def _ids(calls: list[CallRecord]) -> list[str]:
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


def _for_response(read: _Read, warn: bool) -> dict[str, Any]:
    arguments, metadata, lost = read.call.arguments, dict(read.metadata), None
    if read.text is None and read.call.expects:
        lost = "missing_fragments"
    elif read.text:
        try:
            arguments = msgspec.json.decode(read.text)
        except UNREADABLE:
            lost = "json_decode_error"
    if lost:
        metadata["error"] = ("args_lost", lost)
        if warn:
            _warn(read, lost)
    made: dict[str, Any] = {"id": read.id, "name": read.call.name, "arguments": arguments}
    made |= {"builtin?": True} if read.call.builtin else {}
    return made | ({"metadata": metadata} if metadata else {})


def _for_message(read: _Read) -> ToolCall:
    try:
        arguments = msgspec.json.decode(read.text) if read.text else read.call.arguments
    except UNREADABLE:
        arguments = read.call.arguments
    is_json = isinstance(arguments, str | list | dict)
    raw = (as_json(cast(Any, arguments)) if is_json else None) or "{}"
    metadata = read.metadata | ({"server": True} if read.call.builtin else {})
    return ToolCall(read.id, read.call.name, _object(raw), raw, metadata)


def _object(raw: str) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(raw)
    except UNREADABLE:
        return {}
    return cast(dict[str, Any], parsed) if isinstance(parsed, dict) else {}


def _warn(read: _Read, reason: str) -> None:
    # Never the text itself: it holds what a user has said.
    told = {"tool_name": read.call.name, "tool_call_id": read.id, "reason": reason}
    told |= {} if read.text is None else {"json_bytes": len(read.text.encode(errors="replace"))}
    log.warning(
        "a tool call has lost its arguments: %s", " ".join(f"{k}={v}" for k, v in told.items()), extra={"lost": told}
    )

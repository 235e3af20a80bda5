"""Fold chunks into one result.

Tool calls look different in the response and in the message:

===========================  =============================================  =================================
subject                      in the response                                in the message
===========================  =============================================  =================================
type of a call               a mapping                                      a ``ToolCall``
type of its arguments        any JSON type                                  an object; `raw_arguments` contains
                                                                            the JSON text
if fragments are not valid   the arguments in the call's own chunk are      the arguments in the call's own
JSON, or none arrive         used; the call's metadata has an error, and    chunk are used; no warning is
                             a warning is logged                            logged
===========================  =============================================  =================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

import msgspec

from rxllm.chunks._stream_chunk import (
    CallRecord,
    Index,
    StreamChunk,
    annotation_key,
    as_chunk,
    as_json,
    is_stream_only,
    mapping,
    merge_usage,
    read_call,
    read_call_metadata,
    read_fragment,
)
from rxllm.values import Message, Part, TextPart, ThinkingPart, ToolCall
from rxllm.values.json_text import UNREADABLE, decode_json

log = logging.getLogger("rxllm")


_META_KEYS = frozenset(
    {"tool_call_args", "tool_call_metadata", "reasoning_details", "logprobs", "annotations", "finish_reason", "usage"}
)


class ChunkAccumulator(msgspec.Struct, frozen=True, eq=False):
    """An immutable fold of the chunks so far.

    >>> from reactivex import of
    >>> from rxllm import chunks
    >>> source = of(chunks.text("hel"), chunks.text("lo"), chunks.meta({"finish_reason": "stop"}))
    >>> source.scan(ChunkAccumulator.push, ChunkAccumulator()).run()
    ChunkAccumulator('hello', 0 tool calls, stop)

    The ``finalize_`` methods return the results. A push takes O(1) time. A second push to the same state copies the
    log. States are equal if their results are equal.
    """

    log: list[StreamChunk] = msgspec.field(default_factory=list[StreamChunk])
    length: int = 0

    def push(self, chunk: StreamChunk | Mapping[str, Any]) -> ChunkAccumulator:
        """Return a state that also includes `chunk`. This method never raises an error."""
        if not isinstance(chunk, StreamChunk):
            chunk = as_chunk(chunk)
        if not isinstance(chunk, StreamChunk) or not _is_used(chunk):
            return self
        log, length = self.log, self.length
        if not length or len(log) != length:  # several folds may start from the same empty state
            log = log[:length]
        log.append(chunk)
        return ChunkAccumulator(log, length + 1)

    def reduce(self, chunks: Iterable[StreamChunk | Mapping[str, Any]]) -> ChunkAccumulator:
        return reduce(ChunkAccumulator.push, chunks, self)

    # The properties are computed only when they are read, so that a push takes O(1) time.

    @property
    def text_content(self) -> str:
        return self.finalize_text()

    @property
    def thinking_content(self) -> str:
        return self.finalize_thinking()

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls in order of arrival.

        Each has ``id``, ``name``, ``arguments`` (without the fragments) and ``index``. Some also have ``builtin?``,
        ``expects_arg_fragments`` and ``metadata``.
        """
        return [call.record() for call in _assemble_calls(self._chunks())]

    @property
    def arg_fragments(self) -> dict[Index, str]:
        """For each call index, the text of the argument fragments received so far."""
        return _gather(self._chunks())[1]

    @property
    def reasoning_details(self) -> list[Any]:
        return self.finalize_reasoning_details()

    @property
    def logprobs(self) -> list[Any]:
        return self.finalize_logprobs()

    @property
    def finish_reason(self) -> Any:
        return self.finalize_finish_reason()

    @property
    def usage(self) -> dict[str, Any] | None:
        return self.finalize_usage()

    def finalize_text(self) -> str:
        return _join_text(chunk for chunk in self._chunks() if chunk.type == "content")

    def finalize_thinking(self) -> str:
        return _join_text(chunk for chunk in self._chunks() if chunk.type == "thinking")

    def finalize_content_parts(self) -> list[Part]:
        """Return the parts in ``content_part`` chunks, in the order in which they arrived."""
        return [chunk.content_part for chunk in self._chunks() if chunk.type == "content_part"]

    def finalize_ordered_content(self, *, include_thinking: bool = True) -> list[Part]:
        """Return the text, the thinking and the complete parts in the order in which they arrived."""
        kinds = _CONTENT.keys() - (() if include_thinking else ("thinking",))
        runs = groupby((chunk for chunk in self._chunks() if chunk.type in kinds), attrgetter("type"))
        return [part for kind, run in runs for part in _CONTENT[kind](run)]

    def finalize_tool_calls_for_response(self) -> list[dict[str, Any]]:
        """Return the tool calls in order of arrival.

        Each call has ``id``, ``name`` and ``arguments``. Some calls also have ``builtin?`` and ``metadata``.
        ``arguments`` is the JSON value, of any type, parsed from the fragments. If there are no fragments,
        ``arguments`` is the value given in the call itself. A call without an id gets ``call_<number>``.

        If the fragments are not valid JSON, or if none of the announced fragments arrive, the arguments in the call's
        own chunk are used. The call's ``metadata["error"]`` is then ``("args_lost", reason)``. The logger ``"rxllm"``
        logs the loss and, if any fragments arrived, their total size in bytes.
        """
        return [call.for_response() for call in _assemble_calls(self._chunks())]

    def finalize_message(self) -> Message | None:
        """Return the assistant message, or None if the message is empty.

        Thinking is left out. Each call's `raw_arguments` is the text of the call's arguments. If fragments are lost,
        the arguments in the call's own chunk are used, and no warning is logged. ``metadata["server"]`` marks the
        provider's own calls.
        """
        parts = tuple(self.finalize_ordered_content(include_thinking=False))
        calls = tuple(call.for_message() for call in _assemble_calls(self._chunks()))
        if not parts and not calls:
            return None
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        return Message("assistant", "".join(texts) if len(texts) == len(parts) else parts, tool_calls=calls)

    def finalize_usage(self) -> dict[str, Any] | None:
        """Return the largest value of each counter, or None if there are no counters.

        ``input`` and ``output`` repeat ``input_tokens`` and ``output_tokens``. ``total_tokens`` is their sum.
        """
        counters = [cast(Mapping[str, Any], usage) for usage in self._values("usage") if isinstance(usage, Mapping)]
        return reduce(merge_usage, counters, {}) if counters else None

    def finalize_finish_reason(self) -> Any:
        """Return the latest finish reason exactly as the provider sent it, or None if there is none."""
        return next((reason for reason in reversed([*self._values("finish_reason")]) if reason is not None), None)

    def finalize_logprobs(self) -> list[Any]:
        return self._join_lists("logprobs")

    def finalize_reasoning_details(self) -> list[Any]:
        return self._join_lists("reasoning_details")

    def finalize_annotations(self) -> list[Any]:
        unique: dict[Any, Any] = {}
        for annotation in self._join_lists("annotations"):
            unique.setdefault(annotation_key(annotation), annotation)
        return list(unique.values())

    def _chunks(self) -> list[StreamChunk]:
        return self.log[: self.length]

    def _values(self, key: str) -> Iterator[Any]:
        return (chunk.metadata[key] for chunk in self._chunks() if chunk.type == "meta" and key in chunk.metadata)

    def _join_lists(self, key: str) -> list[Any]:
        lists = (cast(list[Any], value) for value in self._values(key) if isinstance(value, list))
        return [item for items in lists for item in items]

    def _finalize_all(self) -> tuple[Any, ...]:
        return (
            self.finalize_ordered_content(),
            [call.for_response(warn=False) for call in _assemble_calls(self._chunks())],
            self.finalize_usage(),
            self.finalize_finish_reason(),
            self.finalize_logprobs(),
            self.finalize_reasoning_details(),
            self.finalize_annotations(),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkAccumulator) and self._finalize_all() == other._finalize_all()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return (ChunkAccumulator, (self._chunks(), self.length))

    def __repr__(self) -> str:
        calls = sum(chunk.type == "tool_call" for chunk in self._chunks())
        return f"ChunkAccumulator({self.finalize_text()!r}, {calls} tool calls, {self.finalize_finish_reason()})"


def _is_used(chunk: StreamChunk) -> bool:
    """Return whether any ``finalize_`` method uses `chunk`."""
    match chunk.type:
        case "content":
            return isinstance(chunk.text, str) and chunk.text != ""
        case "thinking":
            return isinstance(chunk.text, str) and chunk.text != "" and not is_stream_only(chunk)
        case "tool_call":
            return read_call(chunk) is not None
        case "meta":
            return not _META_KEYS.isdisjoint(mapping(chunk.metadata))
        case "content_part":
            return isinstance(chunk.content_part, Part) and not is_stream_only(chunk)
        case _:
            return False


def _join_text(run: Iterable[StreamChunk]) -> str:
    return "".join(chunk.text or "" for chunk in run)


_CONTENT: dict[str, Callable[[Iterable[StreamChunk]], list[Part]]] = {
    "content": lambda run: [TextPart(_join_text(run))],
    "thinking": lambda run: [ThinkingPart(_join_text(run))],
    "content_part": lambda run: [chunk.content_part for chunk in run],
}


class _AssembledCall(msgspec.Struct):
    """A tool call whose fragments have been joined. `text` is None if there were no fragments."""

    id: str
    call: CallRecord
    text: str | None
    metadata: dict[str, Any]

    def record(self) -> dict[str, Any]:
        """Return the call as it appears in ``ChunkAccumulator.tool_calls``."""
        call = self.call
        flags = {"builtin?": call.builtin, "expects_arg_fragments": call.expects_fragments}
        optional = {**flags, "metadata": self.metadata}
        record = {"id": self.id, "name": call.name, "arguments": call.arguments, "index": call.index}
        return record | {name: value for name, value in optional.items() if value}

    def for_response(self, *, warn: bool = True) -> dict[str, Any]:
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
        arguments = _decode_or_default(self.text, self.call.arguments) if self.text else self.call.arguments
        raw = (as_json(arguments) if isinstance(arguments, str | list | dict) else None) or "{}"
        metadata = self.metadata | ({"server": True} if self.call.builtin else {})
        return ToolCall(self.id, self.call.name, dict(mapping(_decode_or_default(raw, None))), raw, metadata)

    def _warn(self, reason: str) -> None:
        # Log only the size of the arguments, because they may contain the user's private data.
        details: dict[str, Any] = {"tool_name": self.call.name, "tool_call_id": self.id, "reason": reason}
        if self.text is not None:
            details["json_bytes"] = len(self.text.encode(errors="replace"))
        listed = " ".join(f"{name}={value}" for name, value in details.items())
        log.warning("a tool call lost its arguments: %s", listed, extra={"lost": details})


def _assemble_calls(chunks: Iterable[StreamChunk]) -> list[_AssembledCall]:
    calls, texts, updates = _gather(chunks)
    return [
        _AssembledCall(id, call, texts.get(call.index), call.metadata | updates.get(call.index, {}))
        for id, call in zip(_assign_ids(calls), calls, strict=True)
    ]


def _gather(chunks: Iterable[StreamChunk]) -> tuple[list[CallRecord], dict[Index, str], dict[Index, dict[str, Any]]]:
    """Return all calls, plus the argument text and the metadata updates for each index."""
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


def _assign_ids(calls: list[CallRecord]) -> list[str]:
    """Return an id for each call. A missing id becomes a ``call_<k>`` that is not in use."""
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


def _decode_or_default(text: str, default: Any) -> Any:
    try:
        return decode_json(text)
    except UNREADABLE:
        return default

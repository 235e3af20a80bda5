"""The fold of chunks: one reducer, both for a live stream and for a list of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

import msgspec

from rxllm.chunks._accumulator_calls import assembled_calls, joined_fragments
from rxllm.chunks._metadata import Index, annotation_key, is_stream_only, mapping, merge_usage, read_call
from rxllm.chunks._stream_chunk import StreamChunk, as_chunk
from rxllm.values import Message, Part, TextPart, ThinkingPart

_META = frozenset(
    {"tool_call_args", "tool_call_metadata", "reasoning_details", "logprobs", "annotations", "finish_reason", "usage"}
)


class ChunkAccumulator(msgspec.Struct, frozen=True, eq=False):
    """Everything the chunks have said so far: an immutable state, O(1) a chunk; the finalizers assemble the results.

    Successive states share one append-only log, each with its own length; a fork copies it. States are equal when
    their finalizers return the same.

    >>> from reactivex import of
    >>> from rxllm import chunks
    >>> source = of(chunks.text("hel"), chunks.text("lo"), chunks.meta({"finish_reason": "stop"}))
    >>> source.scan(ChunkAccumulator.push, ChunkAccumulator()).run()
    ChunkAccumulator('hello', 0 tool calls, stop)
    """

    log: list[StreamChunk] = msgspec.field(default_factory=list[StreamChunk])
    length: int = 0

    def push(self, chunk: StreamChunk | Mapping[str, Any]) -> ChunkAccumulator:
        """Return the state after `chunk`: the same one if there is nothing in it to keep. Never raises."""
        if not isinstance(chunk, StreamChunk):
            chunk = as_chunk(chunk)
        if not isinstance(chunk, StreamChunk) or not _counts(chunk):
            return self
        log, length = self.log, self.length
        if not length or len(log) != length:  # the empty state is shared by subscriptions: its log stays empty
            log = log[:length]
        log.append(chunk)
        return ChunkAccumulator(log, length + 1)

    def reduce(self, chunks: Iterable[StreamChunk | Mapping[str, Any]]) -> ChunkAccumulator:
        """Return the state after all of `chunks`."""
        return reduce(ChunkAccumulator.push, chunks, self)

    # The fields of the state. They are computed from the log when they are read, so that a push stays O(1).

    @property
    def text_content(self) -> str:
        return self.finalize_text()

    @property
    def thinking_content(self) -> str:
        return self.finalize_thinking()

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls as they came, in order: ``id``, ``name``, ``arguments`` without fragments, ``index``; and where
        they apply ``builtin?``, ``expects_arg_fragments`` and ``metadata``.
        """
        return [call.record() for call in assembled_calls(self._chunks())]

    @property
    def arg_fragments(self) -> dict[Index, str]:
        """The fragments of arguments so far, by the index of their call."""
        return joined_fragments(self._chunks())

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
        return _text(chunk for chunk in self._chunks() if chunk.type == "content")

    def finalize_thinking(self) -> str:
        return _text(chunk for chunk in self._chunks() if chunk.type == "thinking")

    def finalize_content_parts(self) -> list[Part]:
        """Return the whole parts, in order of arrival."""
        return [chunk.content_part for chunk in self._chunks() if chunk.type == "content_part"]

    def finalize_ordered_content(self, *, include_thinking: bool = True) -> list[Part]:
        """Return text, thinking and whole parts in order of arrival; neighbours of one kind become one part."""
        kinds = _CONTENT.keys() - (() if include_thinking else ("thinking",))
        runs = groupby((chunk for chunk in self._chunks() if chunk.type in kinds), attrgetter("type"))
        return [part for kind, run in runs for part in _CONTENT[kind](run)]

    def finalize_tool_calls_for_response(self) -> list[dict[str, Any]]:
        """Return the calls in order of arrival: ``id``, ``name``, ``arguments``, and where they apply ``builtin?`` and
        ``metadata``.

        `arguments` is the JSON of the fragments, of any type; without fragments, the arguments of the call itself. A
        missing id becomes ``call_<position>``. Where the fragments are not JSON, or were announced and never came, the
        call keeps its own arguments, ``metadata["error"]`` is ``("args_lost", reason)``, and the logger ``"rxllm"``
        warns: it tells how many bytes there were, and never which.
        """
        return [call.for_response() for call in assembled_calls(self._chunks())]

    def finalize_message(self) -> Message | None:
        """Return the assistant's message without its thinking; None where there is neither content nor a call.

        Calls have their arguments as text too (`raw_arguments`). Lost arguments fall back to the call's own without a
        warning, and calls that the provider runs have ``metadata["server"]``.
        """
        parts = tuple(self.finalize_ordered_content(include_thinking=False))
        calls = tuple(call.for_message() for call in assembled_calls(self._chunks()))
        if not parts and not calls:
            return None
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        return Message("assistant", "".join(texts) if len(texts) == len(parts) else parts, tool_calls=calls)

    def finalize_usage(self) -> dict[str, Any] | None:
        """Return the counters merged, the larger of two numbers; None if there were none.

        ``total_tokens`` is the sum of input and output, which are also there as ``input`` and ``output``.
        """
        counters = [cast(Mapping[str, Any], usage) for usage in self._values("usage") if isinstance(usage, Mapping)]
        return reduce(merge_usage, counters, {}) if counters else None

    def finalize_finish_reason(self) -> Any:
        """Return the latest finish reason, as it came."""
        return next((reason for reason in reversed([*self._values("finish_reason")]) if reason is not None), None)

    def finalize_logprobs(self) -> list[Any]:
        return self._joined_lists("logprobs")

    def finalize_reasoning_details(self) -> list[Any]:
        return self._joined_lists("reasoning_details")

    def finalize_annotations(self) -> list[Any]:
        """Return the citations, each once."""
        unique: dict[Any, Any] = {}
        for annotation in self._joined_lists("annotations"):
            unique.setdefault(annotation_key(annotation), annotation)
        return list(unique.values())

    def _chunks(self) -> list[StreamChunk]:
        return self.log[: self.length]

    def _values(self, key: str) -> Iterator[Any]:
        return (chunk.metadata[key] for chunk in self._chunks() if chunk.type == "meta" and key in chunk.metadata)

    def _joined_lists(self, key: str) -> list[Any]:
        lists = (cast(list[Any], value) for value in self._values(key) if isinstance(value, list))
        return [item for items in lists for item in items]

    def _finalized(self) -> tuple[Any, ...]:
        return (
            self.finalize_ordered_content(),
            [call.for_response(warn=False) for call in assembled_calls(self._chunks())],
            self.finalize_usage(),
            self.finalize_finish_reason(),
            self.finalize_logprobs(),
            self.finalize_reasoning_details(),
            self.finalize_annotations(),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkAccumulator) and self._finalized() == other._finalized()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return (ChunkAccumulator, (self._chunks(), self.length))

    def __repr__(self) -> str:
        calls = sum(chunk.type == "tool_call" for chunk in self._chunks())
        return f"ChunkAccumulator({self.finalize_text()!r}, {calls} tool calls, {self.finalize_finish_reason()})"


def _counts(chunk: StreamChunk) -> bool:
    """Whether there is anything in `chunk` that a finalizer would use."""
    match chunk.type:
        case "content":
            return isinstance(chunk.text, str) and chunk.text != ""
        case "thinking":
            return isinstance(chunk.text, str) and chunk.text != "" and not is_stream_only(chunk)
        case "tool_call":
            return read_call(chunk) is not None
        case "meta":
            return not _META.isdisjoint(mapping(chunk.metadata))
        case "content_part":
            return isinstance(chunk.content_part, Part) and not is_stream_only(chunk)
        case _:
            return False


def _text(run: Iterable[StreamChunk]) -> str:
    return "".join(chunk.text or "" for chunk in run)


_CONTENT: dict[str, Callable[[Iterable[StreamChunk]], list[Part]]] = {
    "content": lambda run: [TextPart(_text(run))],
    "thinking": lambda run: [ThinkingPart(_text(run))],
    "content_part": lambda run: [chunk.content_part for chunk in run],
}

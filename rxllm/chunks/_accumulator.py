"""The fold of chunks: one reducer, for a stream as it comes and for a list of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

import msgspec

from rxllm.chunks._calls import call_records, calls_for_message, calls_for_response, fragments
from rxllm.chunks._chunk import StreamChunk, as_chunk
from rxllm.chunks._reading import Index, is_stream_only, key_of, mapping, merge_usage, read_call
from rxllm.values import Message, Part, TextPart, ThinkingPart

_META = frozenset(
    {
        "tool_call_args",
        "tool_call_metadata",
        "reasoning_details",
        "logprobs",
        "annotations",
        "finish_reason",
        "usage",
    }
)


class ChunkAccumulator(msgspec.Struct, frozen=True, eq=False):
    """What the chunks have said so far: an immutable state, O(1) a chunk; the finalizers put it together.

    Successive states share one append-only log, each with its own length; a fork copies. States are equal when their
    finalizers say the same.

    >>> from reactivex import of
    >>> from rxllm import chunks
    >>> source = of(chunks.text("hel"), chunks.text("lo"), chunks.meta({"finish_reason": "stop"}))
    >>> source.scan(ChunkAccumulator.push, ChunkAccumulator()).run()
    ChunkAccumulator('hello', 0 tool calls, stop)
    """

    log: list[StreamChunk] = msgspec.field(default_factory=list[StreamChunk])
    length: int = 0

    def push(self, chunk: StreamChunk | Mapping[str, Any]) -> ChunkAccumulator:
        """The state after `chunk`; the same one, if that says nothing to be kept. Never raises."""
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
        """The state after all of `chunks`."""
        return reduce(ChunkAccumulator.push, chunks, self)

    # The state's fields. Each reading puts one together from the log, so that a push stays O(1).

    @property
    def text_content(self) -> str:
        return self.finalize_text()

    @property
    def thinking_content(self) -> str:
        return self.finalize_thinking()

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls as they came, in order: ``id``, ``name``, ``arguments`` without fragments, ``index``; where there
        are any, ``builtin?``, ``expects_arg_fragments`` and ``metadata``.
        """
        return call_records(self._own())

    @property
    def arg_fragments(self) -> dict[Index, str]:
        """The fragments of arguments so far, by the index of their call."""
        return fragments(self._own())

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
        return _text(chunk for chunk in self._own() if chunk.type == "content")

    def finalize_thinking(self) -> str:
        return _text(chunk for chunk in self._own() if chunk.type == "thinking")

    def finalize_content_parts(self) -> list[Part]:
        """The whole parts, in order of arrival."""
        return [chunk.content_part for chunk in self._own() if chunk.type == "content_part"]

    def finalize_ordered_content(self, *, include_thinking: bool = True) -> list[Part]:
        """Text, thinking and whole parts in order of arrival; neighbours of one kind are one part."""
        kept = [chunk for chunk in self._own() if include_thinking or chunk.type != "thinking"]
        runs = groupby((chunk for chunk in kept if chunk.type in _CONTENT), attrgetter("type"))
        return [part for kind, run in runs for part in _CONTENT[kind](run)]

    def finalize_tool_calls_for_response(self) -> list[dict[str, Any]]:
        """The calls in order of arrival: ``id``, ``name``, ``arguments``; where there are any, ``builtin?`` and
        ``metadata``.

        `arguments` is the fragments' JSON, of any type; without fragments, what the call itself brought. A missing id
        is ``call_<position>``. Where the fragments are no JSON, or expected and never came, the call's own arguments
        stay, ``metadata["error"]`` is ``("args_lost", reason)``, and the logger ``"rxllm"`` warns; it says how many
        bytes there were, and never what.
        """
        return calls_for_response(self._own())

    def finalize_message(self) -> Message | None:
        """The assistant's message without its thinking; None where there is neither content nor a call.

        Arguments are given as text too (`raw_arguments`), lost ones fall back to the call's own without a word, and
        calls that the provider runs have ``metadata["server"]``.
        """
        parts, calls = tuple(self.finalize_ordered_content(include_thinking=False)), calls_for_message(self._own())
        if not parts and not calls:
            return None
        content = "".join(part.text for part in parts if isinstance(part, TextPart))
        has_others = any(not isinstance(part, TextPart) for part in parts)
        return Message("assistant", parts if has_others else content, tool_calls=calls)

    def finalize_usage(self) -> dict[str, Any] | None:
        """The counters merged, the larger of two numbers; ``total_tokens`` is the sum of input and output, which are
        also there as ``input`` and ``output``. None if nobody counted.
        """
        counted = [cast(Mapping[str, Any], usage) for usage in self._said("usage") if isinstance(usage, Mapping)]
        return reduce(merge_usage, counted, {}) if counted else None

    def finalize_finish_reason(self) -> Any:
        """The latest finish reason, as it came."""
        return next((reason for reason in reversed([*self._said("finish_reason")]) if reason is not None), None)

    def finalize_logprobs(self) -> list[Any]:
        return self._listed("logprobs")

    def finalize_reasoning_details(self) -> list[Any]:
        return self._listed("reasoning_details")

    def finalize_annotations(self) -> list[Any]:
        """The citations, each once."""
        unique: dict[Any, Any] = {}
        for annotation in self._listed("annotations"):
            unique.setdefault(key_of(annotation), annotation)
        return list(unique.values())

    def _own(self) -> list[StreamChunk]:
        return self.log[: self.length]

    def _said(self, key: str) -> Iterator[Any]:
        return (chunk.metadata[key] for chunk in self._own() if chunk.type == "meta" and key in chunk.metadata)

    def _listed(self, key: str) -> list[Any]:
        lists = (cast(list[Any], held) for held in self._said(key) if isinstance(held, list))
        return [each for held in lists for each in held]

    def _finalized(self) -> tuple[Any, ...]:
        return (
            self.finalize_ordered_content(),
            calls_for_response(self._own(), warn=False),
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
        return (ChunkAccumulator, (self._own(), self.length))

    def __repr__(self) -> str:
        calls = sum(chunk.type == "tool_call" for chunk in self._own())
        return f"ChunkAccumulator({self.finalize_text()!r}, {calls} tool calls, {self.finalize_finish_reason()})"


def _counts(chunk: StreamChunk) -> bool:
    kind = chunk.type
    if kind == "content":
        return isinstance(chunk.text, str) and chunk.text != ""
    match kind:
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

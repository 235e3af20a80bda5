"""Chunks to events, one at a time and without Rx: what `from_chunks` and plain generator adapters feed.

Text, thinking and the beginnings and fragments of calls are passed on at once; what a call's arguments are is settled
at the end, since fragments may come late, and before their call. A fragment belongs to the latest call of its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from rxllm.chunks._chunk import FIELDS, StreamChunk, as_chunk
from rxllm.chunks._live_calls import LiveCalls
from rxllm.chunks._reading import is_stream_only, key_of, latest_counters, mapping, normalised, to_usage
from rxllm.events import Event
from rxllm.values import (
    FilePart,
    Image,
    ImagePart,
    LLMError,
    Message,
    ProviderPart,
    SourcePart,
    StreamError,
    TextPart,
    ThinkingPart,
)
from rxllm.wire.blocks import Blocks
from rxllm.wire.frames import raw_kind
from rxllm.wire.tool_calls import CallTracker

_SILENT = frozenset({"terminal?", "keepalive?", "done_at_unix_nano", "builtin_tool_started"})
_NOTED = frozenset({"reasoning_details", "logprobs"})


class ChunkFeeder:
    """The events of one response; `messages` are those it answers, whose call ids are taken.

    >>> from rxllm import chunks
    >>> feeder = ChunkFeeder()
    >>> [type(event).__name__ for event in feeder.feed(chunks.text("Hi"))]
    ['MessageStarted', 'TextDelta']
    >>> [type(event).__name__ for event in feeder.close()]
    ['TextCompleted', 'MessageCompleted']
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        messages = tuple(messages)
        self._blocks = Blocks(CallTracker.after(messages))
        self._calls = LiveCalls(self._blocks, sum(len(message.tool_calls) for message in messages))
        self._counted: dict[str, Any] = {}
        self._notes: dict[str, list[Any]] = {}
        self._cited: set[Any] = set()
        self._read_key: dict[str, Callable[[Any], bool]] = {
            "tool_call_args": self._calls.add,
            "tool_call_metadata": self._calls.update,
            "annotations": self._read_annotations,
            "usage": self._read_usage,
            "finish_reason": self._read_finish,
        }

    @property
    def said(self) -> bool:
        """Whether there has been an event."""
        return self._blocks.started

    @property
    def ended(self) -> bool:
        """Whether the last event has been given."""
        return self._blocks.ended

    def feed(self, chunk: StreamChunk | Mapping[str, Any]) -> list[Event]:
        """The events of a chunk. Raises ``StreamError("malformed_event")`` for what is none, or has no text as text."""
        if self.ended:
            return []
        if not isinstance(chunk, StreamChunk):
            chunk = _read_chunk(chunk)
        if chunk.text is not None and not isinstance(chunk.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StreamError("malformed_event", f"a StreamChunk's text cannot be {chunk.text!r}")
        if chunk.type == "content":
            self._blocks.text(chunk.text or "")
        else:
            self._read_other(chunk)
        if not self.said:
            self._blocks.start()
        return self._blocks.take()

    def close(self) -> list[Event]:
        """What is missing when the chunks are over. Who gives no finish reason has meant ``stop``."""
        if not self.ended:
            self._calls.settle()
            self._blocks.note(self._notes)
            self._blocks.finish("stop", None)
            self._blocks.end()
        return self._blocks.take()

    def fail(self, error: Exception) -> list[Event]:
        """The events of a stream that fails: what is open is closed, then the error."""
        if not self.ended:
            self._fail(streamed(error))
        return self._blocks.take()

    def _read_other(self, chunk: StreamChunk) -> None:
        match chunk.type:
            case "thinking" if not is_stream_only(chunk):
                self._read_thinking(chunk.text, mapping(chunk.metadata))
            case "tool_call" if self._calls.begin(chunk):
                pass
            case "meta":
                self._read_meta(mapping(chunk.metadata))
            case "content_part" if not is_stream_only(chunk) and self._read_part(chunk.content_part):
                pass
            case _:
                fields = ((name, getattr(chunk, name)) for name in chunk.__struct_fields__)
                self._blocks.raw(raw_kind(str(chunk.type)), {name: held for name, held in fields if held})

    def _read_thinking(self, text: Any, metadata: Mapping[str, Any]) -> None:
        if isinstance(text, str):
            self._blocks.thinking(text)
        signature = metadata.get("signature")
        signature = signature if isinstance(signature, str) and signature else None
        rest = {key: held for key, held in metadata.items() if key != "signature"}
        if signature or rest:
            self._blocks.sign(signature, rest)
        if signature or (rest and not text):  # what is opaque belongs to all that came before it
            self._blocks.close_block()

    def _read_meta(self, metadata: Mapping[str, Any]) -> None:
        id, model = (held if isinstance(held := metadata.get(key), str) else None for key in ("response_id", "model"))
        self._blocks.start(id=id, model=model)
        rest = {key: held for key, held in metadata.items() if not self._takes(key, held)}
        if metadata.get("keepalive?"):
            rest.pop("provider_event", None)
        error = rest.pop("error", None)
        if rest:
            self._blocks.raw("meta", rest)
        if error:
            self._fail(error if isinstance(error, LLMError) else StreamError("adapter_error", _message(error)))

    def _takes(self, key: str, held: Any) -> bool:
        if held is None or key in _SILENT or key in ("response_id", "model"):
            return True
        if key in _NOTED and isinstance(held, list):
            self._notes.setdefault(key, []).extend(cast(list[Any], held))
            return True
        return key in self._read_key and self._read_key[key](held)

    def _read_annotations(self, held: Any) -> bool:
        if not isinstance(held, list) or not all(isinstance(each, Mapping) for each in cast(list[Any], held)):
            return False
        for annotation in cast(list[Mapping[str, Any]], held):
            if (key := key_of(annotation)) not in self._cited:
                self._cited.add(key)
                self._blocks.source(dict(annotation))
        return True

    def _read_usage(self, held: Any) -> bool:
        if isinstance(held, Mapping):
            self._counted = latest_counters(self._counted, mapping(held))
            self._blocks.usage(to_usage(self._counted))
        return isinstance(held, Mapping)

    def _read_finish(self, held: Any) -> bool:
        self._blocks.finish(normalised(held), str(held))
        return True

    def _read_part(self, part: Any) -> bool:
        if not isinstance(part, SourcePart):  # which may stand inside a block of text
            self._blocks.close_block()
        match part:
            case TextPart():
                self._blocks.text(part.text)
            case ThinkingPart():
                self._read_thinking(part.text, {**(part.provider_data or {}), "signature": part.signature})
            case FilePart():
                self._blocks.file(part.file)
            case ImagePart(image=Image(source="url")):
                self._blocks.file({"mime_type": part.image.mime_type or "image/*", "url": part.image.data})
            case ImagePart(image=Image(source="binary" | "base64")):
                self._blocks.file({"mime_type": part.image.mime_type or "image/*", "data": part.image.to_binary()})
            case SourcePart():
                self._blocks.source(part.source)
            case ProviderPart():
                self._blocks.part("content_part", part)
            case _:
                return False
        return True

    def _fail(self, error: LLMError) -> None:
        self._calls.settle()
        self._blocks.error(error)


def _read_chunk(given: Any) -> StreamChunk:
    chunk = as_chunk(given)
    if isinstance(chunk, StreamChunk):
        return chunk
    remedy = (
        f"for text, make it with chunks.text(...); a mapping has a type, and no other keys than {', '.join(FIELDS)}"
    )
    raise StreamError("malformed_event", f"{given!r:.80} is no StreamChunk; {remedy}")


def streamed(error: Exception) -> LLMError:
    """An exception as an error of the stream; rxllm's own are that already."""
    if isinstance(error, LLMError):
        return error
    made = StreamError("adapter_error", f"the source of chunks failed: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made


def _message(error: Any) -> str:
    said = mapping(error).get("message") or error
    return said if isinstance(said, str) else repr(said)

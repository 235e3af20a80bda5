"""Chunks to events, one at a time and without Rx: `from_chunks` feeds this, and so do plain generator adapters.

Text, thinking and the beginnings and fragments of calls are passed on at once. A call's arguments are settled at the
end, since fragments may come late, and before their call. A fragment belongs to the latest call of its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from rxllm.chunks._feeder_calls import LiveCalls
from rxllm.chunks._metadata import annotation_key, is_stream_only, latest_counters, mapping, normalised, to_usage
from rxllm.chunks._stream_chunk import FIELDS, StreamChunk, as_chunk
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
from rxllm.values.argument_checks import shown
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import raw_kind
from rxllm.wire.tool_calls import CallTracker

_SILENT = frozenset({"terminal?", "keepalive?", "done_at_unix_nano", "builtin_tool_started", "response_id", "model"})
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
        self._counters: dict[str, Any] = {}
        self._notes: dict[str, list[Any]] = {}
        self._cited: set[Any] = set()
        self._readers: dict[str, Callable[[Any], bool]] = {
            "tool_call_args": self._calls.add,
            "tool_call_metadata": self._calls.update,
            "annotations": self._read_annotations,
            "usage": self._read_usage,
            "finish_reason": self._read_finish_reason,
        }

    @property
    def started(self) -> bool:
        """Whether there has been an event."""
        return self._blocks.started

    @property
    def ended(self) -> bool:
        """Whether the last event has been returned."""
        return self._blocks.ended

    def feed(self, chunk: StreamChunk | Mapping[str, Any]) -> list[Event]:
        """Return the events of a chunk.

        Raises ``StreamError("malformed_event")`` for any other item, and for a chunk whose text is not a string.
        """
        if self.ended:
            return []
        if not isinstance(chunk, StreamChunk):
            chunk = _read_chunk(chunk)
        if chunk.text is not None and not isinstance(chunk.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StreamError("malformed_event", f"a StreamChunk's text cannot be {shown(chunk.text)}")
        if chunk.type == "content":
            self._blocks.text(chunk.text or "")
        else:
            self._read_other(chunk)
        if not self.started:
            self._blocks.start()
        return self._blocks.take()

    def close(self) -> list[Event]:
        """Return the events that are missing when the chunks are over. Without a finish reason it is ``stop``."""
        if not self.ended:
            self._calls.settle()
            self._blocks.note(self._notes)
            self._blocks.finish("stop", None)
            self._blocks.end()
        return self._blocks.take()

    def fail(self, error: Exception) -> list[Event]:
        """Return the events of a stream that fails: the completion of what is open, then the error."""
        if not self.ended:
            self._fail(as_stream_error(error))
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
                fields = {name: value for name in FIELDS if (value := getattr(chunk, name))}
                self._blocks.raw(raw_kind(str(chunk.type)), fields)

    def _read_thinking(self, text: Any, metadata: Mapping[str, Any]) -> None:
        if isinstance(text, str):
            self._blocks.thinking(text)
        signature = metadata.get("signature")
        signature = signature if isinstance(signature, str) and signature else None
        opaque = {key: value for key, value in metadata.items() if key != "signature"}
        if signature or opaque:
            self._blocks.sign(signature, opaque)
        if signature or (opaque and not text):  # opaque data belong to all thinking before them
            self._blocks.close_block()

    def _read_meta(self, metadata: Mapping[str, Any]) -> None:
        id, model = metadata.get("response_id"), metadata.get("model")
        self._blocks.start(id=id if isinstance(id, str) else None, model=model if isinstance(model, str) else None)
        unknown = {key: value for key, value in metadata.items() if not self._read_key(key, value)}
        if metadata.get("keepalive?"):
            unknown.pop("provider_event", None)
        error = unknown.pop("error", None)
        if unknown:
            self._blocks.raw("meta", unknown)
        if error:
            self._fail(error if isinstance(error, LLMError) else StreamError("adapter_error", _message(error)))

    def _read_key(self, key: str, value: Any) -> bool:
        """Read one key of a meta chunk; return False if it is unknown, or its value malformed."""
        if value is None or key in _SILENT:
            return True
        if key in _NOTED and isinstance(value, list):
            self._notes.setdefault(key, []).extend(cast(list[Any], value))
            return True
        return key in self._readers and self._readers[key](value)

    def _read_annotations(self, value: Any) -> bool:
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in cast(list[Any], value)):
            return False
        for annotation in cast(list[Mapping[str, Any]], value):
            if (key := annotation_key(annotation)) not in self._cited:
                self._cited.add(key)
                self._blocks.source(dict(annotation))
        return True

    def _read_usage(self, value: Any) -> bool:
        if isinstance(value, Mapping):
            self._counters = latest_counters(self._counters, mapping(value))
            self._blocks.usage(to_usage(self._counters))
        return isinstance(value, Mapping)

    def _read_finish_reason(self, value: Any) -> bool:
        self._blocks.finish(normalised(value), str(value))
        return True

    def _read_part(self, part: Any) -> bool:
        """Report a whole part; return False if it is not one of a message's."""
        if not isinstance(part, SourcePart):  # a source may come within a block of text
            self._blocks.close_block()
        match part:
            case TextPart():
                self._blocks.text(part.text)
            case ThinkingPart():
                self._read_thinking(part.text, {**(part.provider_data or {}), "signature": part.signature})
            case FilePart():
                self._blocks.file(part.file)
            case ImagePart(image=Image() as image) if image.source in ("url", "binary", "base64"):
                data = {"url": image.data} if image.source == "url" else {"data": image.to_binary()}
                self._blocks.file({"mime_type": image.mime_type or "image/*", **data})
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


def as_stream_error(error: Exception) -> LLMError:
    """Return an exception as an error of the stream; rxllm's own stay as they are."""
    if isinstance(error, LLMError):
        return error
    failure = StreamError("adapter_error", f"the source of chunks failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _read_chunk(item: Any) -> StreamChunk:
    chunk = as_chunk(item)
    if isinstance(chunk, StreamChunk):
        return chunk
    remedy = f"for text, use chunks.text(...); a mapping needs a type, and has no other keys than {', '.join(FIELDS)}"
    raise StreamError("malformed_event", f"{shown(item)} is not a StreamChunk; {remedy}")


def _message(error: Any) -> str:
    message = mapping(error).get("message") or error
    return message if isinstance(message, str) else repr(message)

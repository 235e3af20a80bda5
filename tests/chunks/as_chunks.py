"""Events as the chunks that a system of that dialect would have made of the same stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rxllm import (
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    PartAdded,
    SourceAdded,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageUpdated,
)
from rxllm.chunks import StreamChunk, content_part, meta, text, thinking, tool_call
from rxllm.values import FilePart, SourcePart


def as_chunks(events: Iterable[Event]) -> Iterator[StreamChunk]:
    """The chunks; the error of an ``ErrorEvent`` is raised."""
    index: dict[str, int] = {}
    for event in events:
        match event:
            case MessageStarted(message=message):
                yield meta({"response_id": message.metadata.get("id"), "model": message.metadata.get("model")})
            case TextDelta():
                yield text(event.delta)
            case ThinkingDelta():
                yield thinking(event.delta)
            case ThinkingCompleted() if event.signature or event.provider_data:
                yield thinking("", {**(event.provider_data or {}), "signature": event.signature})
            case ToolCallStarted():
                index[event.id] = len(index)
                yield tool_call(event.name, {}, {"id": event.id, "index": index[event.id], **_marked(event.metadata)})
            case ToolCallDelta():
                yield meta({"tool_call_args": {"index": index[event.id], "fragment": event.arguments_delta}})
            case ToolCallCompleted():
                rest = {key: value for key, value in event.metadata.items() if key not in ("error", "server")}
                yield meta({"tool_call_metadata": {"index": index[event.id], "metadata": rest}})
            case SourceAdded():
                yield content_part(SourcePart(dict(event.source)))
            case FileAdded():
                yield content_part(FilePart(dict(event.file)))
            case PartAdded(part=part):
                yield content_part(part)
            case UsageUpdated():
                yield meta({"usage": counters(event.usage)})
            case MessageCompleted():
                identity = {
                    "response_id": event.message.metadata.get("id"),
                    "model": event.message.metadata.get("model"),
                }
                yield meta({"finish_reason": event.finish_reason, **identity})
            case ErrorEvent():
                raise event.error
            case _:
                pass


def counters(usage: Usage) -> dict[str, Any]:
    """The counters of a usage that are set."""
    counters = {name: value for name, value in vars(usage).items() if value not in (None, {}) and name != "extra"}
    return {**usage.extra, **counters}


def _marked(metadata: Any) -> dict[str, Any]:
    return {"builtin?" if key == "server" else key: value for key, value in metadata.items()}

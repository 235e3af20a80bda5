"""Chunks in two external formats, and their conversion to events.

=============  ==================================================  ====================  ========================
dialect        chunk class                                         fold into one result  conversion to events
=============  ==================================================  ====================  ========================
StreamChunk    `StreamChunk`, created by `text`, `thinking`,       `ChunkAccumulator`    `from_chunks`
               `tool_call`, `meta` and `content_part`
completion     `CompletionChunk`, which contains `ToolCallDelta`   `collect_completion`  `from_completion_chunks`
               objects (not the event of the same name)
=============  ==================================================  ====================  ========================

An async generator of chunks can also serve as an adapter; see ``rxllm.adapters.as_adapter``.
"""

from rxllm.chunks._accumulator import ChunkAccumulator
from rxllm.chunks._from_chunks import ChunkFeeder, from_chunks
from rxllm.chunks._stream_chunk import StreamChunk, content_part, meta, text, thinking, tool_call, validate
from rxllm.chunks.completion import (
    CompletionChunk,
    CompletionResponse,
    CompletionStream,
    CompletionToolCall,
    ToolCallDelta,
    collect_completion,
    from_completion_chunks,
)

__all__ = [
    "ChunkAccumulator",
    "ChunkFeeder",
    "CompletionChunk",
    "CompletionResponse",
    "CompletionStream",
    "CompletionToolCall",
    "StreamChunk",
    "ToolCallDelta",
    "collect_completion",
    "content_part",
    "from_chunks",
    "from_completion_chunks",
    "meta",
    "text",
    "thinking",
    "tool_call",
    "validate",
]

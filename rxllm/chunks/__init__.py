"""Two dialects of chunks that other systems stream, each with its fold and its way to rxllm's events.

=============  ===================================================================  ======================
dialect        chunks                                                               one result
=============  ===================================================================  ======================
StreamChunk    made by `text`, `thinking`, `tool_call`, `meta` and `content_part`   `ChunkAccumulator`
completion     `CompletionChunk` and its `ToolCallDelta`, which is not the event    `collect_completion`
=============  ===================================================================  ======================

`from_chunks` and `from_completion_chunks` turn them into events. An adapter may be an async generator of either, see
``rxllm.adapters.as_adapter``.
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

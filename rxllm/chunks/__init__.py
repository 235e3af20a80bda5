"""Two chunk dialects from other systems, each with a fold into one result and a conversion to rxllm's events.

=============  ===================================================================  ======================
dialect        chunks                                                               one result
=============  ===================================================================  ======================
StreamChunk    made by `text`, `thinking`, `tool_call`, `meta` and `content_part`   `ChunkAccumulator`
completion     `CompletionChunk` and its `ToolCallDelta`, which is not the event    `collect_completion`
=============  ===================================================================  ======================

`from_chunks` and `from_completion_chunks` convert them to events. An adapter may be an async generator of either kind,
see ``rxllm.adapters.as_adapter``.
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

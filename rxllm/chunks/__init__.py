"""The dialects of chunks that other systems stream, and what turns them into events.

The StreamChunk dialect: `text`, `thinking`, `tool_call`, `meta` and `content_part` make chunks; `ChunkAccumulator`
folds them, `from_chunks` turns them into events.

The completion dialect: `CompletionChunk` and its `ToolCallDelta`, which is not the event of that name;
`collect_completion` folds them, `from_completion_chunks` turns them into events.

An adapter may be an async generator of either, see ``rxllm.adapters.as_adapter``.
"""

from rxllm.chunks._accumulator import ChunkAccumulator
from rxllm.chunks._chunk import StreamChunk, content_part, meta, text, thinking, tool_call, validate
from rxllm.chunks._collect_completion import collect_completion
from rxllm.chunks._completion import (
    CompletionChunk,
    CompletionResponse,
    CompletionStream,
    CompletionToolCall,
    ToolCallDelta,
)
from rxllm.chunks._feed import ChunkFeeder
from rxllm.chunks._from_chunks import from_chunks
from rxllm.chunks._from_completion_chunks import from_completion_chunks

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

"""Run tools: `execution` is one tool call as a stream of events, `ToolSettings` holds its options."""

from rxllm.tools._bind_arguments import Approve, Encoder, Executor, OnToolError, ToolSettings, encode_result
from rxllm.tools._execution import execution
from rxllm.tools._outcome import failed, is_halting

__all__ = [
    "Approve",
    "Encoder",
    "Executor",
    "OnToolError",
    "ToolSettings",
    "encode_result",
    "execution",
    "failed",
    "is_halting",
]

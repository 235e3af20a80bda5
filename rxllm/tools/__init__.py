"""The layer that runs tool calls as streams of events."""

from rxllm.tools._agent import AgentCall, AgentChat, AgentTool, chats, run_with
from rxllm.tools._approval import QUESTION, WAITING, WaitingCalls, denied, edited, is_question
from rxllm.tools._caller import idempotency_key
from rxllm.tools._execution import execution, failed, is_halting
from rxllm.tools._settings import (
    PROMPT,
    Approval,
    Approve,
    Encoder,
    Executor,
    OnToolError,
    ToolSettings,
    encode_result,
)

__all__ = [
    "PROMPT",
    "QUESTION",
    "WAITING",
    "AgentCall",
    "AgentChat",
    "AgentTool",
    "Approval",
    "Approve",
    "Encoder",
    "Executor",
    "OnToolError",
    "ToolSettings",
    "WaitingCalls",
    "chats",
    "denied",
    "edited",
    "encode_result",
    "execution",
    "failed",
    "idempotency_key",
    "is_halting",
    "is_question",
    "run_with",
]

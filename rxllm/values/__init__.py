"""The types of values: requests, messages, tools, responses, results, sessions, and errors."""

from rxllm.values.base import Value
from rxllm.values.errors import (
    AdapterError,
    EngineError,
    ImageAdapterError,
    LLMError,
    RunError,
    SessionError,
    StreamError,
    ToolError,
    ValidationError,
)
from rxllm.values.function_tools import as_tool, as_tools, name_fault, tool
from rxllm.values.images import Image, ImageRequest, ImageResponse, ImageUsage, image_request
from rxllm.values.json_text import described
from rxllm.values.messages import (
    Attachment,
    Content,
    FilePart,
    ImagePart,
    Message,
    Part,
    ProviderPart,
    Role,
    SourcePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    assistant,
    system,
    tool_result,
    user,
)
from rxllm.values.partials import Partial, PartialState
from rxllm.values.request_keys import request_key
from rxllm.values.requests import ApiKey, Call, Request, TokenCount, estimated_tokens, json_schema, message_tokens
from rxllm.values.responses import FinishReason, Labelled, Progress, Response, TextAt, Timed, Trace
from rxllm.values.result_parts import text_with_notes
from rxllm.values.results import ChatResult, StepResult, rows
from rxllm.values.schema_checks import schema_faults
from rxllm.values.schemas import ResponseFormat, as_response_format, is_type, reader
from rxllm.values.sessions import Session, SessionStatus, Turn, open_calls, open_questions
from rxllm.values.threads import MessageLike, Thread, listed, unanswered, with_results
from rxllm.values.times import times_of
from rxllm.values.tools import FunctionTool, Halt, Tool, ToolCall, ToolContext, ask_user, halt
from rxllm.values.usage import ModelInfo, Spending, Usage

__all__ = [
    "AdapterError",
    "ApiKey",
    "Attachment",
    "Call",
    "ChatResult",
    "Content",
    "EngineError",
    "FilePart",
    "FinishReason",
    "FunctionTool",
    "Halt",
    "Image",
    "ImageAdapterError",
    "ImagePart",
    "ImageRequest",
    "ImageResponse",
    "ImageUsage",
    "LLMError",
    "Labelled",
    "Message",
    "MessageLike",
    "ModelInfo",
    "Part",
    "Partial",
    "PartialState",
    "Progress",
    "ProviderPart",
    "Request",
    "Response",
    "ResponseFormat",
    "Role",
    "RunError",
    "Session",
    "SessionError",
    "SessionStatus",
    "SourcePart",
    "Spending",
    "StepResult",
    "StreamError",
    "TextAt",
    "TextPart",
    "ThinkingPart",
    "Thread",
    "Timed",
    "TokenCount",
    "Tool",
    "ToolCall",
    "ToolCallPart",
    "ToolContext",
    "ToolError",
    "Trace",
    "Turn",
    "Usage",
    "ValidationError",
    "Value",
    "as_response_format",
    "as_tool",
    "as_tools",
    "ask_user",
    "assistant",
    "described",
    "estimated_tokens",
    "halt",
    "image_request",
    "is_type",
    "json_schema",
    "listed",
    "message_tokens",
    "name_fault",
    "open_calls",
    "open_questions",
    "reader",
    "request_key",
    "rows",
    "schema_faults",
    "system",
    "text_with_notes",
    "times_of",
    "tool",
    "tool_result",
    "unanswered",
    "user",
    "with_results",
]

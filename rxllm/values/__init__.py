"""What is said: the values that go in and come out, and the errors."""

from rxllm.values._call import Call, ToolContext
from rxllm.values._content import (
    FilePart,
    ImagePart,
    Part,
    ProviderPart,
    SourcePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from rxllm.values._image import Image
from rxllm.values._message import Content, Message, Role, assistant, system, tool_result, user
from rxllm.values._request import Request, json_schema
from rxllm.values._response import FinishReason, Response
from rxllm.values._results import ChatResult, StepResult
from rxllm.values._thread import Thread
from rxllm.values._tool import FunctionTool, Halt, Tool, ask_user, halt, tool
from rxllm.values._tool_call import ToolCall
from rxllm.values._usage import Usage
from rxllm.values._value import Value
from rxllm.values.errors import (
    AdapterError,
    EngineError,
    ImageAdapterError,
    LLMError,
    SessionError,
    StreamError,
    ToolError,
    ValidationError,
)

__all__ = [
    "AdapterError",
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
    "LLMError",
    "Message",
    "Part",
    "ProviderPart",
    "Request",
    "Response",
    "Role",
    "SessionError",
    "SourcePart",
    "StepResult",
    "StreamError",
    "TextPart",
    "ThinkingPart",
    "Thread",
    "Tool",
    "ToolCall",
    "ToolCallPart",
    "ToolContext",
    "ToolError",
    "Usage",
    "ValidationError",
    "Value",
    "ask_user",
    "assistant",
    "halt",
    "json_schema",
    "system",
    "tool",
    "tool_result",
    "user",
]

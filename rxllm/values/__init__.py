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
from rxllm.values._image_request import ImageRequest, ImageResponse, ImageUsage, image_request
from rxllm.values._many import Labelled, Progress
from rxllm.values._message import Content, Message, Role, assistant, system, tool_result, user
from rxllm.values._model import ModelInfo
from rxllm.values._request import Request, json_schema
from rxllm.values._response import FinishReason, Response
from rxllm.values._results import ChatResult, StepResult
from rxllm.values._schema import ResponseFormat, as_response_format, described, is_format_class, reader, schema_faults
from rxllm.values._session import Session, SessionStatus, Turn
from rxllm.values._telemetry import (
    CallFinished,
    CallStarted,
    ChatFinished,
    ChatStarted,
    FirstToken,
    ImagesFinished,
    ImagesStarted,
    Outcome,
    RetryAttempt,
    StepFinished,
    StepStarted,
    Telemetry,
    ToolFinished,
    ToolStarted,
)
from rxllm.values._thread import Thread
from rxllm.values._tool import FunctionTool, Halt, Tool, ask_user, halt, tool
from rxllm.values._tool_call import ToolCall
from rxllm.values._trace import Trace
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
    "CallFinished",
    "CallStarted",
    "ChatFinished",
    "ChatResult",
    "ChatStarted",
    "Content",
    "EngineError",
    "FilePart",
    "FinishReason",
    "FirstToken",
    "FunctionTool",
    "Halt",
    "Image",
    "ImageAdapterError",
    "ImagePart",
    "ImageRequest",
    "ImageResponse",
    "ImageUsage",
    "ImagesFinished",
    "ImagesStarted",
    "LLMError",
    "Labelled",
    "Message",
    "ModelInfo",
    "Outcome",
    "Part",
    "Progress",
    "ProviderPart",
    "Request",
    "Response",
    "ResponseFormat",
    "RetryAttempt",
    "Role",
    "Session",
    "SessionError",
    "SessionStatus",
    "SourcePart",
    "StepFinished",
    "StepResult",
    "StepStarted",
    "StreamError",
    "Telemetry",
    "TextPart",
    "ThinkingPart",
    "Thread",
    "Tool",
    "ToolCall",
    "ToolCallPart",
    "ToolContext",
    "ToolError",
    "ToolFinished",
    "ToolStarted",
    "Trace",
    "Turn",
    "Usage",
    "ValidationError",
    "Value",
    "as_response_format",
    "ask_user",
    "assistant",
    "described",
    "halt",
    "image_request",
    "is_format_class",
    "json_schema",
    "reader",
    "schema_faults",
    "system",
    "tool",
    "tool_result",
    "user",
]

"""LLM streams as cold reactivex Observables of typed events, and the operators to compose them.

>>> import rxllm
>>> from rxllm import operators as ops
>>> answer = rxllm.stream_generate(rxllm.Fake("2, 3, 5."), "Name three primes.").pipe(ops.to_response())
>>> answer.run()
Response('2, 3, 5.', stop, 0 tokens)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxllm import operators, plugins, serializer, validate
from rxllm.collector import StreamCollector
from rxllm.engine import Engine, aclose
from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    Custom,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    SourceAdded,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.pipelines import (
    ChatOptions,
    GenerateOptions,
    Input,
    StepOptions,
    chat,
    generate,
    generate_many,
    request,
    step,
    stream,
    stream_generate,
    stream_step,
)
from rxllm.runtime import RetryPolicy, Stream, from_async_iter, keys, run, to_async_iter, to_iter
from rxllm.values import (
    AdapterError,
    Call,
    ChatResult,
    EngineError,
    FilePart,
    FunctionTool,
    Halt,
    Image,
    ImageAdapterError,
    ImagePart,
    LLMError,
    Message,
    Part,
    ProviderPart,
    Request,
    Response,
    SessionError,
    SourcePart,
    StepResult,
    StreamError,
    TextPart,
    ThinkingPart,
    Thread,
    Tool,
    ToolCall,
    ToolCallPart,
    ToolContext,
    ToolError,
    Usage,
    ValidationError,
    ask_user,
    assistant,
    halt,
    json_schema,
    system,
    tool,
    tool_result,
    user,
)

if TYPE_CHECKING:
    from rxllm.adapters import Adapter, Fake, HTTPAdapter, Local, OpenAIChat
    from rxllm.display import show

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "AdapterError",
    "AskUserRequested",
    "Call",
    "ChatCompleted",
    "ChatOptions",
    "ChatResult",
    "Custom",
    "Engine",
    "EngineError",
    "ErrorEvent",
    "Event",
    "Fake",
    "FileAdded",
    "FilePart",
    "FunctionTool",
    "GenerateOptions",
    "HTTPAdapter",
    "Halt",
    "Image",
    "ImageAdapterError",
    "ImagePart",
    "Input",
    "LLMError",
    "Local",
    "Message",
    "MessageCompleted",
    "MessageStarted",
    "OpenAIChat",
    "Part",
    "ProviderPart",
    "RawChunk",
    "Request",
    "Response",
    "RetryPolicy",
    "SessionError",
    "SourceAdded",
    "SourcePart",
    "StepCompleted",
    "StepOptions",
    "StepRestarted",
    "StepResult",
    "Stream",
    "StreamCollector",
    "StreamError",
    "TextCompleted",
    "TextDelta",
    "TextPart",
    "ThinkingCompleted",
    "ThinkingDelta",
    "ThinkingPart",
    "Thread",
    "Tool",
    "ToolApprovalRequested",
    "ToolCall",
    "ToolCallCompleted",
    "ToolCallDelta",
    "ToolCallPart",
    "ToolCallStarted",
    "ToolContext",
    "ToolError",
    "ToolExecutionCompleted",
    "ToolExecutionStarted",
    "ToolHalt",
    "ToolProgress",
    "ToolResultEncoded",
    "Usage",
    "UsageUpdated",
    "ValidationError",
    "aclose",
    "ask_user",
    "assistant",
    "chat",
    "from_async_iter",
    "generate",
    "generate_many",
    "halt",
    "json_schema",
    "keys",
    "operators",
    "plugins",
    "request",
    "run",
    "serializer",
    "show",
    "step",
    "stream",
    "stream_generate",
    "stream_step",
    "system",
    "to_async_iter",
    "to_iter",
    "tool",
    "tool_result",
    "user",
    "validate",
]

_LAZY = {
    "Adapter": "rxllm.adapters",
    "Fake": "rxllm.adapters",
    "HTTPAdapter": "rxllm.adapters",
    "Local": "rxllm.adapters",
    "OpenAIChat": "rxllm.adapters",
    "show": "rxllm.display",
}


def __getattr__(name: str) -> Any:
    # What needs an optional package, or is not needed by every program, is imported when it is used.
    if name not in _LAZY:
        raise AttributeError(f"module 'rxllm' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__

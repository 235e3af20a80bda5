"""LLM streams as cold reactivex Observables of typed events, and the operators to compose them.

>>> import rxllm
>>> from rxllm import operators as ops
>>> answer = rxllm.stream_generate(rxllm.Fake("2, 3, 5."), "Name three primes.").pipe(ops.to_response())
>>> answer.run()
Response('2, 3, 5.', stop, 0 tokens)

Start with these names:

Ask a model
    ``generate(engine, "Hi")``: one request, one `Response`
    ``chat(engine, thread)``: requests and tool runs until the chat halts, one `ChatResult`
    ``stream_generate`` and ``stream``: the events of the same two, as they arrive
Choose whom to ask
    `Engine`: adapter, model, tools and options; often the string ``"provider:model"`` is enough
    `Fake`: an adapter that plays a script, for tests and first steps
Say what to ask
    `user` and `system`: messages; a plain string is a user's message
    `Thread`: the messages of a conversation so far
    `tool`: the decorator that makes a function a tool of the model
Work with the answer
    `operators`: everything for ``.pipe(...)``: look, filter, run tools, fold, retry, race
    `TextDelta`: a piece of text, the most frequent of the events; ``rxllm.events`` has them all
    `LLMError`: the base class of all errors

For later: `session` keeps conversations between turns, `serializer` turns every value into JSON and back, `show`
displays a stream in Jupyter, `bridge` connects any Observable with asyncio, `testing` is a kit for authors of adapters
and operators, `web` connects browsers, `durable` keeps runs, `cluster` asks from many machines, `mcp` brings the tools
of MCP servers, `otel` writes traces, `plugins` loads theirs.

Where to look next: ``help(rxllm.generate)`` explains one name, ``help(rxllm.operators)`` all operators,
``help(rxllm.keys)`` where API keys are looked up; ``dir(rxllm)`` lists all names.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxllm import events, operators, plugins, validate
from rxllm.collector import StreamCollector
from rxllm.engine import Engine, Prepared, aclose, alongside
from rxllm.events import *  # noqa: F403
from rxllm.pipelines import (
    ChatOptions,
    GenerateOptions,
    ImageOptions,
    Input,
    StepOptions,
    chat,
    compact_thread,
    count_tokens,
    edit_image,
    generate,
    generate_image,
    generate_many,
    image_variations,
    request,
    resume,
    step,
    stream,
    stream_generate,
    stream_resume,
    stream_step,
    trim_thread,
)
from rxllm.pipelines._agent_chat import AgentChats as _Chats
from rxllm.runtime import (
    Budget,
    Journal,
    Limiter,
    RetryPolicy,
    Stream,
    Timeouts,
    ToolRecord,
    from_async_iter,
    keys,
    models,
    run,
    to_async_iter,
    to_iter,
    use_transport,
)
from rxllm.tools import AgentTool
from rxllm.tools import run_with as _run_agents_with
from rxllm.values import (
    AdapterError,
    Attachment,
    Call,
    CallDetails,
    CallFinished,
    CallStarted,
    ChatFinished,
    ChatResult,
    ChatStarted,
    EngineError,
    FilePart,
    FirstToken,
    FunctionTool,
    Halt,
    Image,
    ImageAdapterError,
    ImagePart,
    ImageRequest,
    ImageResponse,
    ImagesFinished,
    ImagesStarted,
    ImageUsage,
    Labelled,
    LLMError,
    Message,
    MessageLike,
    ModelInfo,
    Outcome,
    Part,
    Partial,
    Progress,
    ProviderPart,
    Request,
    Response,
    ResponseFormat,
    RetryAttempt,
    RunError,
    Session,
    SessionError,
    SessionStatus,
    SourcePart,
    Spending,
    StepFinished,
    StepResult,
    StepStarted,
    StreamError,
    Telemetry,
    TextAt,
    TextPart,
    ThinkingPart,
    Thread,
    TokenCount,
    Tool,
    ToolCall,
    ToolCallPart,
    ToolContext,
    ToolError,
    ToolFinished,
    ToolStarted,
    Trace,
    Tracer,
    Turn,
    Usage,
    ValidationError,
    ask_user,
    assistant,
    halt,
    image_request,
    json_schema,
    request_key,
    system,
    tool,
    tool_result,
    user,
)
from rxllm.values import drawing as _drawing

if TYPE_CHECKING:
    from rxllm import bridge, chunks, cluster, durable, mcp, otel, serializer, session, testing, web
    from rxllm.adapters import (
        Adapter,
        Anthropic,
        Fake,
        Gemini,
        HTTPAdapter,
        Local,
        Ollama,
        OpenAIChat,
        OpenAIResponses,
        providers,
    )
    from rxllm.display import progress_bar, show
    from rxllm.images import FakeImages, GeminiImages, HTTPImageAdapter, ImageAdapter, OpenAIImages

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "AdapterError",
    "AgentTool",
    "Anthropic",
    "Attachment",
    "Budget",
    "Call",
    "CallDetails",
    "CallFinished",
    "CallStarted",
    "ChatFinished",
    "ChatOptions",
    "ChatResult",
    "ChatStarted",
    "Engine",
    "EngineError",
    "Fake",
    "FakeImages",
    "FilePart",
    "FirstToken",
    "FunctionTool",
    "Gemini",
    "GeminiImages",
    "GenerateOptions",
    "HTTPAdapter",
    "HTTPImageAdapter",
    "Halt",
    "Image",
    "ImageAdapter",
    "ImageAdapterError",
    "ImageOptions",
    "ImagePart",
    "ImageRequest",
    "ImageResponse",
    "ImageUsage",
    "ImagesFinished",
    "ImagesStarted",
    "Input",
    "Journal",
    "LLMError",
    "Labelled",
    "Limiter",
    "Local",
    "Message",
    "MessageLike",
    "ModelInfo",
    "Ollama",
    "OpenAIChat",
    "OpenAIImages",
    "OpenAIResponses",
    "Outcome",
    "Part",
    "Partial",
    "Prepared",
    "Progress",
    "ProviderPart",
    "Request",
    "Response",
    "ResponseFormat",
    "RetryAttempt",
    "RetryPolicy",
    "RunError",
    "Session",
    "SessionError",
    "SessionStatus",
    "SourcePart",
    "Spending",
    "StepFinished",
    "StepOptions",
    "StepResult",
    "StepStarted",
    "Stream",
    "StreamCollector",
    "StreamError",
    "Telemetry",
    "TextAt",
    "TextPart",
    "ThinkingPart",
    "Thread",
    "Timeouts",
    "TokenCount",
    "Tool",
    "ToolCall",
    "ToolCallPart",
    "ToolContext",
    "ToolError",
    "ToolFinished",
    "ToolRecord",
    "ToolStarted",
    "Trace",
    "Tracer",
    "Turn",
    "Usage",
    "ValidationError",
    "aclose",
    "alongside",
    "ask_user",
    "assistant",
    "bridge",
    "chat",
    "chunks",
    "cluster",
    "compact_thread",
    "count_tokens",
    "durable",
    "edit_image",
    "from_async_iter",
    "generate",
    "generate_image",
    "generate_many",
    "halt",
    "image_request",
    "image_variations",
    "json_schema",
    "keys",
    "mcp",
    "models",
    "operators",
    "otel",
    "plugins",
    "progress_bar",
    "providers",
    "request",
    "request_key",
    "resume",
    "run",
    "serializer",
    "session",
    "show",
    "step",
    "stream",
    "stream_generate",
    "stream_resume",
    "stream_step",
    "system",
    "testing",
    "to_async_iter",
    "to_iter",
    "tool",
    "tool_result",
    "trim_thread",
    "use_transport",
    "user",
    "validate",
    "web",
]
__all__ += events.__all__
_PUBLIC = sorted(__all__)
if not TYPE_CHECKING:
    del __all__  # `__getattr__` returns it

_OF_DISPLAY = ("progress_bar", "show")
_LAZY_MODULES = ("bridge", "chunks", "cluster", "durable", "mcp", "otel", "serializer", "session", "testing", "web")

if not TYPE_CHECKING:  # to a type checker every name would be there

    def __getattr__(name: str) -> Any:
        # Modules that need an optional package, or that few programs need, are imported on first use.
        if name == "__all__" and not _is_help():
            return _PUBLIC
        if name not in _PUBLIC:
            from rxllm._other_names import OF_RXLLM  # needed for errors only
            from rxllm.values.argument_checks import no_attribute

            raise no_attribute("module 'rxllm'", name, _PUBLIC, OF_RXLLM)
        if name in _LAZY_MODULES:
            return import_module(f"rxllm.{name}")
        return getattr(import_module("rxllm.display" if name in _OF_DISPLAY else "rxllm.adapters"), name)


def _draw(value: Any) -> str | None:
    # Only notebooks need it.
    return import_module("rxllm.display").value_html(value)


_drawing.draw_with(_draw)
_run_agents_with(_Chats())


def _is_help() -> bool:
    # pydoc prints the page of every class in ``__all__``, 14,000 lines; without ``__all__``, the docstring above.
    return _sys._getframe(2).f_code.co_name == "docmodule"  # pyright: ignore[reportPrivateUsage]


def __dir__() -> list[str]:
    return _PUBLIC

"""LLM streams as cold reactivex Observables of typed events, and the operators to compose them.

>>> import rxllm
>>> from rxllm import operators as ops
>>> answer = rxllm.stream_generate(rxllm.Fake("2, 3, 5."), "Name three primes.").pipe(ops.to_response())
>>> answer.run()
Response('2, 3, 5.', stop, 0 tokens)

Start with these names:

Call a model
    ``generate(engine, "Hi")``: make one request and get a `Response`
    ``chat(engine, thread)``: call the model and run its tools until the chat halts, and get a `ChatResult`
    ``stream_generate`` and ``stream``: do the same, but get the events as they arrive
Choose a model
    `Engine`: an adapter, a model, tools and options; often, a string such as ``"openai:gpt-5"`` is enough
    `Fake`: an adapter that plays back a script, for tests and for getting started
Write the request
    `user` and `system`: create messages; a plain string is a user message
    `Thread`: the messages of a conversation so far
    `tool`: a decorator that turns a function into a tool for the model
Work with the answer
    `operators`: functions for ``.pipe(...)`` that inspect, filter, fold, retry or race streams, or run tools
    `TextDelta`: a piece of text, the most common event; all events are in ``rxllm.events``
    `LLMError`: the base class of all errors

You can leave these modules for later. `session` keeps conversations between turns. `serializer` converts values to JSON
and back. `show` displays a stream in Jupyter. `timeline` draws a run over time. `display` has marble diagrams, progress
bars and a chat panel. `images` generates images. `testing` helps you test programs, adapters and operators. `web`
streams to browsers. `durable` keeps runs alive across restarts. `cluster` calls models from many machines. `mcp` adds
tools from MCP servers. `telemetry` defines the values for observers, and `otel` writes traces. Types that you rarely
name are in ``rxllm.values``. Base classes for adapters are in ``rxllm.adapters``.

For more help, call ``help`` with a name, as in ``help(rxllm.generate)``. ``help(rxllm.operators)`` lists all operators.
``help(rxllm.keys)`` explains how API keys are looked up. ``dir(rxllm)`` lists all names.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING, Any

from rxllm import events, keys, models, operators, validate
from rxllm import plugins as plugins
from rxllm.collector import StreamCollector
from rxllm.engine import Engine, aclose, alongside
from rxllm.events import *  # noqa: F403
from rxllm.http import Timeouts
from rxllm.pipelines import (
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
from rxllm.pipelines.resuming import AgentChats as _Chats
from rxllm.runtime import (
    Budget,
    RetryPolicy,
    Stream,
    from_async_iter,
    hedge,
    merge_labelled,
    race,
    run,
    to_async_iter,
    to_iter,
)
from rxllm.runtime import combine_latest as combine_latest
from rxllm.runtime import merge as merge
from rxllm.runtime import zip as zip
from rxllm.tools import run_with as _run_agents_with
from rxllm.values import (
    AdapterError,
    ChatResult,
    EngineError,
    ImageAdapterError,
    LLMError,
    Message,
    Request,
    Response,
    RunError,
    Session,
    SessionError,
    StepResult,
    StreamError,
    Thread,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    Usage,
    ValidationError,
    ask_user,
    assistant,
    halt,
    json_schema,
    rows,
    system,
    tool,
    tool_result,
    user,
)
from rxllm.values import drawing as _drawing
from rxllm.values.advice import advice as _advice
from rxllm.values.advice import no_attribute as _no_attribute

if TYPE_CHECKING:
    from rxllm import adapters as adapters
    from rxllm import bridge as bridge
    from rxllm import chunks as chunks
    from rxllm import cluster, display, durable, images, mcp, otel, serializer, session, telemetry, testing, web
    from rxllm import http as http
    from rxllm import pipelines as pipelines
    from rxllm import runtime as runtime
    from rxllm import tools as tools
    from rxllm import values as values
    from rxllm.adapters import Anthropic, Fake, Gemini, Local, Ollama, OpenAIChat, OpenAIResponses
    from rxllm.display import show, timeline
    from rxllm.values import Call as Call
    from rxllm.values import Image as Image
    from rxllm.values import ImageRequest as ImageRequest
    from rxllm.values import ImageResponse as ImageResponse
    from rxllm.values import image_request as image_request

__version__ = "0.1.0"

__all__ = [
    "AdapterError",
    "Anthropic",
    "Budget",
    "ChatResult",
    "Engine",
    "EngineError",
    "Fake",
    "Gemini",
    "ImageAdapterError",
    "LLMError",
    "Local",
    "Message",
    "Ollama",
    "OpenAIChat",
    "OpenAIResponses",
    "Request",
    "Response",
    "RetryPolicy",
    "RunError",
    "Session",
    "SessionError",
    "StepResult",
    "Stream",
    "StreamCollector",
    "StreamError",
    "Thread",
    "Timeouts",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "Usage",
    "ValidationError",
    "aclose",
    "alongside",
    "ask_user",
    "assistant",
    "chat",
    "cluster",
    "compact_thread",
    "count_tokens",
    "display",
    "durable",
    "edit_image",
    "from_async_iter",
    "generate",
    "generate_image",
    "generate_many",
    "halt",
    "hedge",
    "image_variations",
    "images",
    "json_schema",
    "keys",
    "mcp",
    "merge_labelled",
    "models",
    "operators",
    "otel",
    "race",
    "request",
    "resume",
    "rows",
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
    "telemetry",
    "testing",
    "timeline",
    "to_async_iter",
    "to_iter",
    "tool",
    "tool_result",
    "trim_thread",
    "user",
    "validate",
    "web",
]
__all__ += events.__all__
_PUBLIC = sorted(__all__)
if not TYPE_CHECKING:
    del __all__  # `__getattr__` below supplies it

_ALSO = ("Call", "Image", "ImageRequest", "ImageResponse", "image_request")
"""Names that resolve, but are not listed, because few programs write them."""

_LAZY_MODULES = (
    "adapters",
    "bridge",
    "chunks",
    "cluster",
    "display",
    "durable",
    "images",
    "mcp",
    "otel",
    "serializer",
    "session",
    "telemetry",
    "testing",
    "web",
)

if not TYPE_CHECKING:  # if type checkers saw `__getattr__`, they would accept any name

    def __getattr__(name: str) -> Any:
        # Import rarely used modules and optional packages on first use.
        if name == "__all__" and not _is_help():
            return _PUBLIC
        if name in _LAZY_MODULES:
            return import_module(f"rxllm.{name}")
        if name in _ALSO:
            return getattr(import_module("rxllm.values"), name)
        if name not in _PUBLIC:
            raise _no_attribute("module 'rxllm'", name, _PUBLIC, _advice("rxllm", name))
        return getattr(import_module("rxllm.display" if name in ("show", "timeline") else "rxllm.adapters"), name)


def _draw(value: Any, path: Any = None) -> str | None:
    # only notebooks need this import
    return import_module("rxllm.display").value_html(value, path)


class _Module(_ModuleType):
    """The class of the ``rxllm`` module. It makes an assignment to ``rxllm.api_key`` raise an error."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "api_key":
            raise AttributeError(f"rxllm has no api_key; write {_advice('rxllm', name)}")
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (__name__,)  # cloudpickle cannot handle subclasses of ModuleType


_sys.modules[__name__].__class__ = _Module
# Lower layers need these two objects, but cannot import them.
_drawing.draw_with(_draw)
_run_agents_with(_Chats())


def _is_help() -> bool:
    # ``help(rxllm)`` would print 14,000 lines. If ``dir()`` is empty, ``help`` prints only the docstring.
    frame = _sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    callers = (frame, frame.f_back, frame.f_back and frame.f_back.f_back)
    return any(caller is not None and caller.f_code.co_name == "docmodule" for caller in callers)


def __dir__() -> list[str]:
    return [] if _is_help() else _PUBLIC

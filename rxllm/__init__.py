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
Choose a model
    `Engine`: adapter, model, tools and options; often the string ``"provider:model"`` is enough
    `Fake`: an adapter that plays a script, for tests and first steps
Write the request
    `user` and `system`: messages; a plain string is a user's message
    `Thread`: the messages of a conversation so far
    `tool`: the decorator that makes a function a tool of the model
Work with the answer
    `operators`: everything for ``.pipe(...)``: look, filter, run tools, fold, retry, race
    `TextDelta`: a piece of text, the most frequent of the events; ``rxllm.events`` has them all
    `LLMError`: the base class of all errors

For later: `session` keeps conversations between turns, `serializer` turns every value into JSON and back, `show`
displays a stream in Jupyter, `display` draws it elsewhere, `images` generates pictures, `testing` is a kit for authors
of adapters and operators, `web` streams to browsers, `durable` keeps runs across restarts, `cluster` calls models from
many machines, `mcp` adds the tools of MCP servers, `telemetry` defines the values that observers receive, `otel` writes
traces. Types that programs seldom name are in ``rxllm.values``, the bases of adapters in ``rxllm.adapters``.

More help: ``help(rxllm.generate)`` explains one name, ``help(rxllm.operators)`` all operators, ``help(rxllm.keys)`` the
lookup of API keys; ``dir(rxllm)`` lists all names.
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
    from rxllm import pipelines as pipelines
    from rxllm import runtime as runtime
    from rxllm import tools as tools
    from rxllm import values as values
    from rxllm.adapters import Anthropic, Fake, Gemini, Local, Ollama, OpenAIChat, OpenAIResponses
    from rxllm.display import show

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
    del __all__  # `__getattr__` returns it

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

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        # Modules that need an optional package, or that few programs need, are imported on first use.
        if name == "__all__" and not _is_help():
            return _PUBLIC
        if name in _LAZY_MODULES:
            return import_module(f"rxllm.{name}")
        if name not in _PUBLIC:
            raise _no_attribute("module 'rxllm'", name, _PUBLIC, _advice("rxllm", name))
        return getattr(import_module("rxllm.display" if name == "show" else "rxllm.adapters"), name)


def _draw(value: Any) -> str | None:
    # Only notebooks need the module.
    return import_module("rxllm.display").value_html(value)


class _Module(_ModuleType):
    """The class of this module: an assignment to ``rxllm.api_key``, which would have no effect, raises."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "api_key":
            raise AttributeError(f"rxllm has no api_key: write {_advice('rxllm', name)}")
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (__name__,)  # cloudpickle handles plain modules only


_sys.modules[__name__].__class__ = _Module
# Lower layers receive these two functions here; `values.drawing` and `tools._agent` give the reasons.
_drawing.draw_with(_draw)
_run_agents_with(_Chats())


def _is_help() -> bool:
    # pydoc prints every class of the module, 14,000 lines; without names it prints only the docstring above.
    frame = _sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    callers = (frame, frame.f_back, frame.f_back and frame.f_back.f_back)
    return any(caller is not None and caller.f_code.co_name == "docmodule" for caller in callers)


def __dir__() -> list[str]:
    return [] if _is_help() else _PUBLIC

"""Generate responses, and run steps and chats.

Many models stop calling tools if they must also follow a JSON schema. So with ``structured_finalize=True``, the chat
runs without its ``response_format``, and a final request then asks for the structured answer. The final request is not
sent if the chat halts early, for example for approval. Its last message is the user message
``structured_finalize_nudge``, unless this option is ``""``. By default, a final request is sent if the chat has both
tools and a schema, and the model has ``tools_with_schema=False`` in ``rxllm.models``.

The final request has the same tools as the others, and ``tool_choice="none"``. Without them, the provider could not use
its cache, and might refuse the model's earlier thoughts. If the model calls a tool all the same, the tool does not run,
and the model is asked once more. Only a model with ``tools_with_schema=False`` gets a final request without tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack, cast, overload

from rxllm import operators as ops
from rxllm import validate
from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.pipelines._call import model_events
from rxllm.pipelines._observers import ChatSpan
from rxllm.pipelines._setup import Input, Setup, as_request, as_thread
from rxllm.pipelines.options import (
    ChatOptions,
    GenerateOptions,
    PlainChatOptions,
    PlainOptions,
    PlainStepOptions,
    StepOptions,
    chat_options,
    with_options,
)
from rxllm.runtime import Deferred, Stream
from rxllm.values import ChatResult, Request, Response, StepResult, Thread, ToolCall

T = TypeVar("T")


@with_options(GenerateOptions)
def stream_generate(
    engine: Engine | str | Any, request: Input | Request, **opts: Unpack[GenerateOptions]
) -> Stream[Event]:
    """Return the events of one response as they arrive.

    >>> from rxllm import Fake, operators as ops
    >>> list(stream_generate(Fake("Hello"), "Hi").pipe(ops.text()))
    ['Hello']

    Each subscription makes a new call. `engine` is an `Engine`, an adapter, or ``"provider:model"``. `request` is a
    string, messages, a `Thread` or a `Request`. An unknown option raises `EngineError`, and an invalid value raises
    `ValidationError`. Any other error goes to ``on_error`` or, after the first event, is emitted as an ``ErrorEvent``.
    """
    setup = Setup.of(engine, GenerateOptions, opts)
    request = as_request(request)
    events = setup.drop_hidden(model_events(setup, request))
    return setup.returned_by("stream_generate", events, request=request)


@overload
def generate(
    engine: Engine | str | Any, request: Input | Request, *, response_format: type[T], **opts: Unpack[PlainOptions]
) -> Stream[Response[T]]: ...
@overload
def generate(
    engine: Engine | str | Any, request: Input | Request, **opts: Unpack[GenerateOptions]
) -> Stream[Response[Any]]: ...
@with_options(GenerateOptions)
def generate(engine: Engine | str | Any, request: Input | Request, **opts: Any) -> Stream[Response[Any]]:
    """Return the model's response to one request.

    >>> from rxllm import Fake
    >>> generate(Fake("Hello"), "Hi").run()
    Response('Hello', stop, 0 tokens)

    With a `response_format`, `parsed` is the validated value:

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class City:
    ...     name: str
    >>> generate(Fake('{"name": "Lima"}'), "The capital of Peru?", response_format=City).run().parsed
    City(name='Lima')

    The format can be any type that JSON can express. A list, a number or a union is wrapped in an object:

    >>> generate(Fake('{"value": [2, 3]}'), "Two primes?", response_format=list[int]).run().parsed
    [2, 3]

    An answer in the wrong format fails with ``ValidationError("invalid_output")``. See ``operators.to_response``.
    """
    setup = Setup.of(engine, GenerateOptions, opts)
    request = as_request(request)
    return setup.returned_by("generate", response_of(setup, request), Response, request)


def response_of(setup: Setup, request: Request) -> Stream[Response[Any]]:
    return model_events(setup, request).pipe(ops.to_response(setup.response_format(request)))


@with_options(StepOptions)
def stream_step(engine: Engine | str | Any, thread: Input, **opts: Unpack[StepOptions]) -> Stream[Event]:
    """Run one step, and return its events.

    >>> from rxllm import Fake
    >>> stream_step(Fake("Hello"), "Hi").run().response
    Response('Hello', stop, 0 tokens)

    The stream emits the events of the response and of its tools. The last event is ``StepCompleted``.
    """
    setup = Setup.of(engine, StepOptions, opts)
    return setup.returned_by("stream_step", setup.drop_hidden(step_events(setup, as_thread(thread))))


@overload
def step(
    engine: Engine | str | Any, thread: Input, *, response_format: type[T], **opts: Unpack[PlainStepOptions]
) -> Stream[StepResult[T]]: ...
@overload
def step(engine: Engine | str | Any, thread: Input, **opts: Unpack[StepOptions]) -> Stream[StepResult]: ...
@with_options(StepOptions)
def step(engine: Engine | str | Any, thread: Input, **opts: Any) -> Stream[StepResult[Any]]:
    """Run one step, and return its result.

    >>> from rxllm import Fake
    >>> step(Fake("Hello"), "Hi").run().thread.last
    Message('assistant', 'Hello')

    With a `response_format`, the response's `parsed` is the validated value. See ``operators.to_step_result``.
    """
    setup = Setup.of(engine, StepOptions, opts)
    to_result = ops.to_step_result(parse=setup.response_format(Request()))
    return setup.returned_by("step", step_events(setup, as_thread(thread)).pipe(to_result), StepResult)


def step_events(setup: Setup, thread: Thread, **tool_options: Any) -> Stream[Event]:
    """Return the events of one step. The setup's own tool options apply where `tool_options` has none."""

    def make() -> Stream[Event]:
        events = model_events(setup, Request(thread.messages))
        return setup.observe_step(events.pipe(ops.run_tools(thread=thread, **{**setup.tool_options(), **tool_options})))

    return Deferred(make)


NUDGE = "Now provide your final structured response."
NOT_NOW = "no more tools can be called; provide the final structured response"
"""The reason that the model gets for a call that does not run in the final step."""

Ask = Callable[[Thread], Stream[Event]]


def ask_functions(setup: Setup, thread: Thread) -> tuple[Ask, Ask | None]:
    """Return two functions: one that runs a step, and one that runs the final step.

    The second function is None if there is no final step.

    Raises ``ValidationError("invalid_request")`` if the final step would have no schema.
    """
    if not _needs_final_step(setup):
        return partial(step_events, setup), None
    request = setup.complete(Request(thread.messages))
    validate.request(request)
    model = setup.model_info(request)
    keeps_tools = bool(request.tools) and (model is None or model.tools_with_schema is not False)
    if model is not None:
        # checked before the first tool runs
        validate.capabilities(request if keeps_tools else replace(request, tools=()), model)
    return (
        partial(step_events, setup.without(setup.engine, "structured_finalize", "response_format")),
        partial(_final_step, setup.without(setup.engine, "structured_finalize"), keeps_tools),
    )


def _final_step(setup: Setup, keeps_tools: bool, thread: Thread) -> Stream[Event]:
    nudge = setup.options.get("structured_finalize_nudge", NUDGE)
    # The nudge is not added to the chat's own thread, so that a failed chat can run again.
    thread = thread.add_user(nudge) if nudge else thread
    if not keeps_tools:
        return step_events(setup.without(_without_tools(setup.engine), "tools", "tool_choice"), thread)
    tools = [replace(tool, approval=True, manual=False, eager=False) for tool in setup.tools()]
    denying = {"approve": _deny, "on_tool_error": "continue", "mode": "auto", "eager": False}
    return step_events(setup.forbidding_calls(), thread, tools=tools, **denying)


def _deny(call: ToolCall) -> str:
    return NOT_NOW


def _without_tools(engine: Engine) -> Engine:
    return replace(engine, tools=(), params={name: value for name, value in engine.params.items() if name != "tools"})


def _needs_final_step(setup: Setup) -> bool:
    if "structured_finalize" in setup.options:
        return bool(setup.options["structured_finalize"])
    if "response_format" not in setup.options:
        return False
    request = setup.complete(Request())
    model = setup.model_info(request)
    exclude = model is not None and model.tools_with_schema is False
    return exclude and bool(request.tools) and _is_schema(request.response_format)


def _is_schema(response_format: Any) -> bool:
    return (
        isinstance(response_format, Mapping) and cast(Mapping[str, Any], response_format).get("type") == "json_schema"
    )


@with_options(ChatOptions)
def stream(engine: Engine | str | Any, thread: Input, **opts: Unpack[ChatOptions]) -> Stream[Event]:
    """Run a chat until it halts, and return its events.

    >>> from rxllm import Fake
    >>> stream(Fake("Hello"), "Hi").run().result
    ChatResult('Hello', completed, 1 steps, 0 tokens)

    The last event is ``ChatCompleted``. Its `result` is what `chat` returns.
    """
    setup = Setup.of(engine, ChatOptions, opts)
    events = _chat_events(setup, as_thread(thread), setup.response_format(Request()))
    return setup.returned_by("stream", setup.drop_hidden(events))


@overload
def chat(
    engine: Engine | str | Any, thread: Input, *, response_format: type[T], **opts: Unpack[PlainChatOptions]
) -> Stream[ChatResult[T]]: ...
@overload
def chat(engine: Engine | str | Any, thread: Input, **opts: Unpack[ChatOptions]) -> Stream[ChatResult]: ...
@with_options(ChatOptions)
def chat(engine: Engine | str | Any, thread: Input, **opts: Any) -> Stream[ChatResult[Any]]:
    """Run a chat until it halts, and return its result.

    >>> from rxllm import Fake, ToolCall, tool
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> result = chat(Fake(ToolCall("c0", "double", {"x": 21}), "42"), "Double 21!", tools=[double]).run()
    >>> result.halted_reason, len(result.steps), result.output_text
    ('completed', 2, '42')

    With a `response_format`, the final response's `parsed` is the validated value. An answer in the wrong format sets
    the result's `error`. To raise the error, use ``.map(ChatResult.raise_for_error)``. See
    ``operators.to_chat_result``.
    """
    setup = Setup.of(engine, ChatOptions, opts)
    to_result = ops.to_chat_result(parse=setup.response_format(Request()))
    return setup.returned_by("chat", _chat_events(setup, as_thread(thread)).pipe(to_result), ChatResult)


def _chat_events(setup: Setup, thread: Thread, parse: Any = None) -> Stream[Event]:
    until_halt = chat_options(setup.options)

    def make() -> Stream[Event]:
        ask, finalize = ask_functions(setup, thread)
        events = ask(thread).pipe(ops.repeat_until_halt(ask, finalize=finalize, parse=parse, **until_halt))
        return setup.observe(events, ChatSpan)

    return Deferred(make)

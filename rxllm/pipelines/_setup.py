"""What a call of the facade is made with: `Setup`, an engine and its options, and the request that they complete.

Another engine that is asked the same, as by ``fallback``, takes from its caller:

====================================================  ======================================================
of the caller, since its caller reads the answer      the messages, the tools and the choice among them, the
                                                      format
of the request or the call, or else of the other      temperature, max_tokens, stop, seed, reasoning_effort,
engine                                                metadata, retry, timeout
always of the other engine                            its model, if it has one; the key; the headers; the
                                                      pass-through ``options``
====================================================  ======================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from rxllm import models
from rxllm import operators as ops
from rxllm.engine import Engine, as_engine, merge_tools
from rxllm.events import Event
from rxllm.http import Timeouts
from rxllm.pipelines._observers import Observers, Span, StepSpan, watched
from rxllm.pipelines.options import checked_options, request_id, set_options
from rxllm.runtime import Stream, provider_name, returned_by
from rxllm.telemetry import Telemetry
from rxllm.values import (
    Call,
    EngineError,
    ModelInfo,
    Request,
    ToolCall,
    ValidationError,
    Value,
    as_response_format,
    as_tools,
    reader,
)
from rxllm.values.argument_checks import check, invalid_option, must_be
from rxllm.values.secret_names import masked
from rxllm.values.sessions import Input, as_thread

T = TypeVar("T")
BeginSpan = Callable[..., Span]


class Setup(msgspec.Struct, frozen=True):
    """An engine and the checked options of a call: its `own_options`, and `options`, the same over the engine's."""

    engine: Engine
    options: Mapping[str, Any]
    own_options: Mapping[str, Any]
    observers: Observers
    timeouts: Timeouts

    @classmethod
    def of(cls, engine: Any, allowed: type[Any], own_options: Mapping[str, Any]) -> Setup:
        engine = as_engine(engine)
        if own_options.get("tools") is not None:
            own_options = {**own_options, "tools": as_tools(own_options["tools"])}
        options = checked_options(allowed, engine, own_options)
        own_options = set_options(own_options)
        return cls(engine, options, own_options, Observers(engine.observers), Timeouts.of(options.get("timeout")))

    def without(self, engine: Engine, *names: str) -> Setup:
        """Return a setup with another engine and without these options."""
        options, own_options = (
            {name: value for name, value in values.items() if name not in names}
            for values in (self.options, self.own_options)
        )
        return msgspec.structs.replace(self, engine=engine, options=options, own_options=own_options)

    def complete(self, request: Request) -> Request:
        """Return `request` with every option in its place."""
        return complete_request(self.engine, request, self.options, self.own_options)

    def model_info(self, request: Request) -> ModelInfo | None:
        """Return what the catalogue knows about the model of `request`."""
        return models.find(provider_name(self.engine.adapter), request.model)

    def observed(self, events: Stream[Event], span: BeginSpan) -> Stream[Event]:
        """Return `events`, watched by the engine's observers, if it has any, through a `span`."""
        if not self.observers:
            return events
        ids = (request_id(self.options), self.options.get("session_id"))
        begin = partial(span, self.observers, metadata=masked(self.complete(Request()).metadata))
        return watched(events, begin, *ids, is_shared=True)

    def observed_step(self, events: Stream[Event]) -> Stream[Event]:
        """Return `events`, which are a step's, watched by the engine's observers, if it has any."""
        if not self.observers:
            return events
        return self.observed(events, partial(StepSpan, tools=self.complete(Request()).tools))

    def traced_by(self, engine: Engine | None) -> Setup:
        """Return a setup whose engine has the tracers of `engine` too, for which it works."""
        tracers = () if engine is None else Observers(engine.observers).tracers
        added = [tracer for tracer in tracers if tracer not in self.engine.observers]
        if not added:
            return self
        return self.with_observer(*added)

    def with_observer(self, *added: Callable[[Telemetry], object]) -> Setup:
        """Return a setup that `added` observe too."""
        own = replace(self.engine, observers=(*added, *self.engine.observers))
        return msgspec.structs.replace(self, engine=own, observers=Observers(own.observers))

    def response_format(self, request: Request) -> Any:
        """Return the reader of the answer to `request`; a wrong format is reported when the request is validated."""
        return reader(option_for("response_format", request.response_format, self.options, self.own_options))

    def returned_by(
        self, function: str, stream: Stream[T], items: type[Any] | str = "events", request: Request | None = None
    ) -> Stream[T]:
        """Return `stream`, which `function` returns, and whose repr tells so with the model that it asks."""
        model = option_for("model", request and request.model, self.options, self.own_options) or self.engine.model
        return returned_by(function, stream, model or provider_name(self.engine.adapter), items)

    def presented(self, events: Stream[Event]) -> Stream[Event]:
        """Return those of `events` that the options let through."""
        return events.pipe(
            ops.include_raw_chunks(self.options.get("include_raw_chunks", False)),
            ops.filter_deltas(
                text=self.options.get("emit_text_deltas", True),
                tool=self.options.get("emit_tool_deltas", True),
                thinking=self.options.get("emit_thinking", True),
            ),
        )

    def tool_options(self) -> dict[str, Any]:
        """Return the arguments of ``run_tools`` for this call."""
        options, engine = self.options, self.engine
        plain = ("mode", "on_tool_error", "tool_timeout", "max_concurrency", "approve", "approve_timeout")
        return {
            "tools": self.complete(Request()).tools,
            "context": {**engine.context, **options.get("context", {})},
            "executor": options.get("tool_executor", engine.tool_executor),
            "encoder": options.get("tool_result_encoder", engine.tool_result_encoder),
            "engine": engine,
            "session_id": options.get("session_id"),
            "request_id": options.get("request_id"),
            **{name: options[name] for name in plain if name in options},
        }

    def call(self, request_id: str) -> Call:
        """Return what the adapter may know of a call with this id."""
        return Call(
            request_id=request_id,
            api_key=self.options.get("api_key"),
            timeout=self.timeouts.silence,
            raw=self.options.get("include_raw_chunks", False),
            metadata=self.options.get("metadata", {}),
            headers={**(self.engine.params.get("headers") or {}), **self.own_options.get("headers", {})},
            observers=(self.observers.tell,) if self.observers else (),
        )


_PLAIN = ("tool_choice", "temperature", "top_p", "max_tokens", "seed", "reasoning_effort", "response_format")


def as_request(value: Any) -> Request:
    """Return `value`, a `Request` or an `Input`, as a request."""
    return value if isinstance(value, Request) else Request(as_thread(value).messages)


def as_requests(values: Any) -> tuple[list[Request], list[str | int] | None]:
    """Return `values` as requests, and their ids if it is a mapping from ids.

    Raises a ``ValidationError`` that names the one that is not a request.
    """
    if isinstance(values, Mapping) and "role" not in values:  # a message in OpenAI's form has a role
        ids = list(cast(Mapping[Any, Any], values))
        for id in ids:
            check("requests", id, type(id) in (str, int), "a mapping from ids, which are texts or whole numbers")
        return [_numbered(id, value) for id, value in cast(Mapping[Any, Any], values).items()], ids
    if isinstance(values, str | Mapping | Value):
        raise invalid_option("requests", "must be several, as in a list; for a single request use generate")
    if not isinstance(values, Iterable):
        raise invalid_option("requests", must_be("several, as in a list", values))
    return [_numbered(index, value) for index, value in enumerate(cast(Iterable[Any], values))], None


def _numbered(index: int | str, value: Any) -> Request:
    try:
        return as_request(value)
    except ValidationError as error:
        errors = error.under(index).under("requests").errors
        raise ValidationError(error.reason, errors=errors) from None


def request(input: Input | Request, **fields: Any) -> Request:
    """Return a request of these messages, with the fields of `Request` by keyword. It is checked when it is sent.

    >>> request("Hi", temperature=0.0).temperature
    0.0
    """
    return replace(as_request(input), **fields)


def complete_request(
    engine: Engine, request: Request, options: Mapping[str, Any], own_options: Mapping[str, Any]
) -> Request:
    """Return `request` with every option in its place: those of the call, and of the engine. See `option_for`."""

    params = set_options(engine.params)

    def option(name: str) -> Any:
        value = getattr(request, name)
        return option_for(name, None if value is False else value, options, own_options)

    def merged(name: str) -> dict[str, Any]:
        return {**params.get(name, {}), **getattr(request, name), **own_options.get(name, {})}

    # A text is one stop word, not a sequence of letters.
    stop = option("stop") or ()
    tools = (*params.get("tools", ()), *request.tools, *own_options.get("tools", ()))
    model = option("model")
    plain = {name: option(name) for name in _PLAIN}
    plain["response_format"] = as_response_format(plain["response_format"])
    return Request(
        messages=request.messages,
        model=engine.model if model is None else model,
        tools=merge_tools(engine.tools, tools),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        structured_finalize=bool(option("structured_finalize")),
        options=merged("options"),
        metadata=merged("metadata"),
        **plain,
    )


def option_for(name: str, value: Any, options: Mapping[str, Any], own_options: Mapping[str, Any]) -> Any:
    """Return the call's own option, else the `value` of the request's field, else the engine's option."""
    if name in own_options:
        return own_options[name]
    return value if value not in (None, ()) else options.get(name)


def unanswered_calls(calls: Sequence[ToolCall], remedy: str, **metadata: Any) -> EngineError:
    """Return the error for tool calls that the thread holds no answer to."""
    names = ", ".join(f"{call.name} ({call.id})" for call in calls)
    metadata = {"tool_call_ids": [call.id for call in calls], **metadata}
    message = f"the thread has unanswered tool calls: {names}; {remedy}"
    return EngineError("missing_tool_results", message, metadata=metadata)


_LEFT_OUT = (
    "model",
    "api_key",
    "headers",
    "options",
    "tools",
    "tool_choice",
    "response_format",
    "structured_finalize",
    "on_event",
)
"""The call's options that do not go along: the provider's own, and those that are in the request by now."""


def other_engine(engine: Any, model: str | None, caller: Engine) -> Engine:
    """Return `engine` as it answers for `caller`, which runs its own tools and notifies its observers."""
    other = as_engine(engine)
    added = [observer for observer in other.observers if observer not in caller.observers]
    return replace(
        other,
        model=model or other.model,
        tools=(),
        params={name: value for name, value in other.params.items() if name != "tools"},
        observers=(*caller.observers, *added),
    )


def other_request(request: Request, sent: Request, own_options: Mapping[str, Any], other: Engine) -> Request:
    """Return what `other` is asked; `sent` is `request` as its caller sends it."""
    return replace(
        request,
        model=other.model or other.params.get("model") or own_options.get("model") or request.model,
        tools=sent.tools,
        tool_choice=sent.tool_choice,
        response_format=sent.response_format,
        structured_finalize=sent.structured_finalize,
        options={},
    )


def other_options(own_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the call's own options that go along."""
    return {name: value for name, value in own_options.items() if name not in _LEFT_OUT}

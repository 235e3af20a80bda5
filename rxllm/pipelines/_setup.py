"""Combine the options of an engine, a request and a call.

If another engine answers, as in ``fallback``, its settings are taken from several sources:

========================================  ==================================================================
settings                                  source
========================================  ==================================================================
messages, tools, tool choice, format      the original call, because its caller reads the answer
system prompt                             the original engine and call; if neither has one, the other engine
temperature, max_tokens, stop, seed,      the original request or call; if neither sets an option, the other
reasoning_effort, metadata, retry,        engine
timeout
API key, headers, extra ``options``       the other engine
model                                     the other engine; if it has none, the original call or request
========================================  ==================================================================

A setting of the original call is left out if the other engine's model does not accept it. See ``rxllm.models``.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
from reactivex import Observable

from rxllm import models
from rxllm import operators as ops
from rxllm.engine import Engine, as_engine, merge_tools
from rxllm.events import Event
from rxllm.http import Timeouts
from rxllm.pipelines._observers import Observers, Span, StepSpan, watch_stream
from rxllm.pipelines.options import checked_options, request_id, set_options
from rxllm.runtime import Stream, from_async_iter, policy, provider_name, returned_by
from rxllm.telemetry import Telemetry, Tracer
from rxllm.values import (
    Call,
    EngineError,
    Message,
    ModelInfo,
    Request,
    Tool,
    ToolCall,
    ValidationError,
    Value,
    as_response_format,
    as_tools,
    reader,
    system,
)
from rxllm.values.argument_checks import check, invalid_option, must_be
from rxllm.values.secret_names import masked
from rxllm.values.sessions import Input, as_thread

T = TypeVar("T")

_PLAIN = ("tool_choice", "temperature", "top_p", "max_tokens", "seed", "reasoning_effort", "response_format")


class Setup(msgspec.Struct, frozen=True):
    """An engine and a call's checked options.

    `own_options` holds only the call's options. `options` also includes the engine's.
    """

    engine: Engine
    options: Mapping[str, Any]
    own_options: Mapping[str, Any]
    observers: Observers | None
    timeouts: Timeouts

    @classmethod
    def of(cls, engine: Any, allowed: type[Any], own_options: Mapping[str, Any]) -> Setup:
        engine = as_engine(engine)
        if own_options.get("tools") is not None:
            own_options = {**own_options, "tools": as_tools(own_options["tools"])}
        options = checked_options(allowed, engine, own_options)
        own_options = set_options(own_options)
        observers = Observers(engine.observers) if engine.observers else None
        return cls(engine, options, own_options, observers, Timeouts.of(options.get("timeout")))

    def without(self, engine: Engine, *names: str) -> Setup:
        options, own_options = (
            {name: value for name, value in values.items() if name not in names}
            for values in (self.options, self.own_options)
        )
        return msgspec.structs.replace(self, engine=engine, options=options, own_options=own_options)

    def forbidding_calls(self) -> Setup:
        """Return a setup in which the model can see the tools, and must not call them."""
        options, own_options = ({**values, "tool_choice": "none"} for values in (self.options, self.own_options))
        return msgspec.structs.replace(self, options=options, own_options=own_options)

    def complete(self, request: Request) -> Request:
        """Return `request` with the options applied to its fields."""
        params = set_options(self.engine.params)

        def merged(name: str) -> dict[str, Any]:
            return {**params.get(name, {}), **getattr(request, name), **self.own_options.get(name, {})}

        plain = {name: self.option(name, getattr(request, name)) for name in _PLAIN}
        plain["response_format"] = as_response_format(plain["response_format"])
        model, stop = self.option("model", request.model), self.option("stop", request.stop) or ()
        return Request(
            messages=request.messages,
            model=self.engine.model if model is None else model,
            tools=self.tools(request.tools),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            structured_finalize=bool(self.option("structured_finalize", request.structured_finalize or None)),
            options=merged("options"),
            metadata=merged("metadata"),
            **plain,
        )

    def with_system(self, request: Request) -> Request:
        """Return `request` with the system prompts of the engine and the call before its messages.

        Nothing is added if its messages already begin with these prompts.
        """
        prompts = self.system_messages()
        if request.messages[: len(prompts)] == prompts:
            return request
        return replace(request, messages=(*prompts, *request.messages))

    def system_messages(self) -> tuple[Message, ...]:
        return tuple(system(text) for text in (self.engine.system, self.options.get("system")) if text)

    def has_system(self) -> bool:
        return self.engine.system is not None or "system" in self.options

    def tools(self, requested: tuple[Tool, ...] = ()) -> tuple[Tool, ...]:
        """Return all tools: from the engine, then from its params, from the request, and from the call's options.

        A later tool replaces an earlier tool with the same name.
        """
        params = self.engine.params.get("tools") or ()
        return merge_tools(self.engine.tools, (*params, *requested, *self.own_options.get("tools", ())))

    def option(self, name: str, value: Any) -> Any:
        if name in self.own_options:
            return self.own_options[name]
        return value if value not in (None, ()) else self.options.get(name)

    def model_info(self, request: Request) -> ModelInfo | None:
        return models.find(provider_name(self.engine.adapter), request.model)

    def observe(self, events: Stream[Event], span: Callable[..., Span]) -> Stream[Event]:
        if self.observers is None:
            return events
        ids = (request_id(self.options), self.options.get("session_id"))
        begin = partial(span, self.observers, metadata=masked(self.complete(Request()).metadata))
        return watch_stream(events, begin, *ids, is_shared=True)

    def observe_step(self, events: Stream[Event]) -> Stream[Event]:
        if self.observers is None:
            return events
        return self.observe(events, partial(StepSpan, tools=self.tools()))

    def traced_by(self, engine: Engine | None) -> Setup:
        observers = () if engine is None else engine.observers
        added = [entry for entry in observers if isinstance(entry, Tracer) and entry not in self.engine.observers]
        return self.with_observer(*added) if added else self

    def with_observer(self, *added: Callable[[Telemetry], object]) -> Setup:
        own = replace(self.engine, observers=(*added, *self.engine.observers))
        return msgspec.structs.replace(self, engine=own, observers=Observers(own.observers))

    def response_format(self, request: Request) -> Any:
        """Return the function that parses the answer to `request`. The response format is not checked here."""
        return reader(self.option("response_format", request.response_format))

    def returned_by(
        self, function: str, stream: Stream[T], items: type[Any] | str = "events", request: Request | None = None
    ) -> Stream[T]:
        """Return `stream` with a repr that names `function` and the model."""
        model = self.option("model", request and request.model) or self.engine.model
        call = (self.engine, self.own_options)
        return returned_by(function, stream, model or provider_name(self.engine.adapter), items, call)

    def drop_hidden(self, events: Stream[Event]) -> Stream[Event]:
        return events.pipe(
            ops.include_raw_chunks(self.options.get("include_raw_chunks", False)),
            ops.filter_deltas(
                text=self.options.get("emit_text_deltas", True),
                tool=self.options.get("emit_tool_deltas", True),
                thinking=self.options.get("emit_thinking", True),
            ),
        )

    def tool_options(self) -> dict[str, Any]:
        options, engine = self.options, self.engine
        plain = ("mode", "on_tool_error", "tool_timeout", "max_concurrency", "eager", "approve", "approve_timeout")
        return {
            "tools": self.tools(),
            "context": {**engine.context, **options.get("context", {})},
            "executor": options.get("tool_executor", engine.tool_executor),
            "encoder": options.get("tool_result_encoder", engine.tool_result_encoder),
            "engine": engine,
            "session_id": options.get("session_id"),
            "request_id": options.get("request_id"),
            **{name: options[name] for name in plain if name in options},
        }

    def call(self, request_id: str) -> Call:
        return Call(
            request_id=request_id,
            api_key=self.options.get("api_key"),
            timeout=self.timeouts.silence,
            raw=self.options.get("include_raw_chunks", False),
            metadata=self.options.get("metadata", {}),
            headers={**(self.engine.params.get("headers") or {}), **self.own_options.get("headers", {})},
            observers=(self.observers.notify,) if self.observers else (),
            retry=policy(self.options.get("retry", self.engine.retry), self.engine.retry),
        )


def as_request(value: Any) -> Request:
    return value if isinstance(value, Request) else Request(as_thread(value).messages)


def as_requests(values: Any) -> tuple[list[Request], list[str | int] | None]:
    """Return the requests, and their ids if `values` is a mapping. If an entry is invalid, the error names it."""
    columns = getattr(values, "columns", None)
    if columns is not None and not callable(columns):  # iterating over a table yields the names of its columns
        names = getattr(values, "column_names", columns)  # in pyarrow, `columns` are the columns themselves
        name = next((name for name in names if isinstance(name, str)), "column")
        raise invalid_option("requests", f"must be one column of the table, such as df[{name!r}], not the whole table")
    if isinstance(values, Mapping) and "role" not in values:  # a mapping with a role is one message
        ids = list(cast(Mapping[Any, Any], values))
        for id in ids:
            check("requests", id, type(id) in (str, int), "a mapping whose keys are strings or integers")
        return [as_entry(id, value) for id, value in cast(Mapping[Any, Any], values).items()], ids
    if isinstance(values, str | Mapping | Value):
        raise invalid_option("requests", "must be a list or other iterable; for a single request, use generate")
    if not isinstance(values, Iterable):
        raise invalid_option(
            "requests", must_be("a list or other iterable, an async iterable or an Observable", values)
        )
    return [as_entry(index, value) for index, value in enumerate(cast(Iterable[Any], values))], None


def arriving_requests(values: Any) -> Observable[Any] | None:
    """Return the requests that arrive over time as an Observable, or None if `values` is not asynchronous.

    A Stream is also an iterable, but iterating over it would block. An async iterator can be read only once, so a
    second subscription fails with ``ValidationError("invalid_option")``.
    """
    if isinstance(values, Observable):
        return cast(Observable[Any], values)
    if not isinstance(values, AsyncIterable):
        return None
    items = cast(AsyncIterable[Any], values)
    if not isinstance(items, AsyncIterator):
        return from_async_iter(lambda: items)
    unread = [items]

    def read() -> AsyncIterator[Any]:
        if not unread:
            fault = "have been read already, because an async iterator can be read only once"
            raise invalid_option("requests", f"{fault}; pass rxllm.from_async_iter(function)")
        return unread.pop()

    return from_async_iter(read)


def as_entry(index: int | str, value: Any) -> Request:
    try:
        return as_request(value)
    except ValidationError as error:
        errors = error.under(index).under("requests").errors
        raise ValidationError(error.reason, errors=errors) from None


def request(input: Input | Request, **fields: Any) -> Request:
    """Return a `Request` whose messages are `input`.

    >>> request("Hi", temperature=0.0).temperature
    0.0

    Keyword arguments set the request's other fields. The request is not checked until it is sent.
    """
    return replace(as_request(input), **fields)


def unanswered_calls(calls: Sequence[ToolCall], remedy: str, **metadata: Any) -> EngineError:
    names = ", ".join(f"{call.name} ({call.id})" for call in calls)
    metadata = {"tool_call_ids": [call.id for call in calls], **metadata}
    message = f"the thread has unanswered tool calls: {names}; {remedy}"
    return EngineError("missing_tool_results", message, metadata=metadata)


_LEFT_OUT = (
    "model",
    "api_key",
    "headers",
    "options",
    "system",
    "tools",
    "tool_choice",
    "response_format",
    "structured_finalize",
    "on_event",
)
"""The options that are not passed on to another engine.

Most of them are specific to a provider or already in the request. ``on_event`` is left out because the original call
passes the other engine's events to it.
"""


def other_engine(engine: Any, model: str | None, setup: Setup) -> Engine:
    other, caller = as_engine(engine), setup.engine
    added = [observer for observer in other.observers if observer not in caller.observers]
    left_out = ("tools", "system") if setup.has_system() else ("tools",)
    return replace(
        other,
        model=model or other.model,
        tools=(),
        system="" if setup.has_system() else other.system,  # the caller's prompts are among the messages
        params={name: value for name, value in other.params.items() if name not in left_out},
        observers=(*caller.observers, *added),
    )


def other_request(request: Request, sent: Request, own_options: Mapping[str, Any], other: Engine) -> Request:
    return replace(
        request,
        model=other.model or other.params.get("model") or own_options.get("model") or request.model,
        tools=sent.tools,
        tool_choice=sent.tool_choice,
        response_format=sent.response_format,
        structured_finalize=sent.structured_finalize,
        options={},
    )


def refused_settings(setup: Setup, request: Request) -> tuple[str, ...]:
    """Return the settings of the original call that the other engine's model does not accept.

    The engine's own settings are not among them. They are sent as they are.
    """
    refused = models.refused_settings(provider_name(setup.engine.adapter), setup.complete(request))
    return tuple(name for name in refused if name in setup.own_options or getattr(request, name, None) is not None)


def other_options(own_options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in own_options.items() if name not in _LEFT_OUT}

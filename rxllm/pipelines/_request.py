"""Turn what the caller passes into the one request that an adapter sees, and ask another engine the same.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from rxllm.engine import Engine, as_engine, merge_tools
from rxllm.pipelines.options import set_options
from rxllm.values import EngineError, Request, ToolCall, ValidationError, Value, as_response_format
from rxllm.values.argument_checks import check, invalid_option, must_be
from rxllm.values.sessions import Input, as_thread

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

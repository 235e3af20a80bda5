"""Ask another engine the same, for operators such as ``fallback``: what goes along, and what does not.

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

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rxllm.engine import Engine, as_engine
from rxllm.values import Request

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

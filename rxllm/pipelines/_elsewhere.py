"""The same question to another engine, for operators that ask one: what goes along, and what stays.

==============================================  ============================================================
of the caller, for that is what the answer is   the messages, the tools and the choice among them, the format
read by
of the request or the call, where it says so,   temperature, max_tokens, stop, seed, reasoning_effort, metadata,
else of the other engine                        retry, timeout
always of the other engine                      its model, if it has one; the key; the pass-through ``options``
==============================================  ============================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rxllm.engine import Engine, as_engine
from rxllm.values import Request

_OWN = ("model", "api_key", "options", "tools", "tool_choice", "response_format", "structured_finalize", "on_event")
"""The call's options that do not go along: those of its provider, and those that are in the request by now."""


def other_engine(given: Any, model: str | None, caller: Engine) -> Engine:
    """`given` as the engine that answers in the place of `caller`, which runs its own tools and tells its observers."""
    other = as_engine(given)
    params = {name: held for name, held in other.params.items() if name != "tools"}
    told = [each for each in other.observers if each not in caller.observers]
    return replace(
        other,
        model=model or other.model,
        tools=(),
        params=params,
        observers=(*caller.observers, *told),
    )


def other_request(request: Request, asked: Request, given: Mapping[str, Any], other: Engine) -> Request:
    """What `other` is asked; `asked` is `request` as its caller asks it, `given` are the call's own options."""
    own = other.model or other.params.get("model")
    return replace(
        request,
        model=own or given.get("model") or request.model,
        tools=asked.tools,
        tool_choice=asked.tool_choice,
        response_format=asked.response_format,
        structured_finalize=asked.structured_finalize,
        options={},
    )


def other_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The call's own options, as far as they go along."""
    return {name: held for name, held in given.items() if name not in _OWN}

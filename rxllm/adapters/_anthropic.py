"""Anthropic's Messages API, and every server that speaks it: values to the HTTP request, and its decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from rxllm.adapters._anthropic_errors import anthropic_http_error
from rxllm.adapters._anthropic_messages import cache_control, system_of, turns_of
from rxllm.adapters._anthropic_wire import MessagesDecoder
from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_base import missing_model
from rxllm.values import AdapterError, Call, EngineError, Request, Tool, ValidationError

if TYPE_CHECKING:
    import httpx

VERSION = "2023-06-01"
"""The version of the API. The later 2026-10-21 has no temperature any more; to ask for it, set the header."""

EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Anthropic(HTTPAdapter):
    """``POST {base_url}/messages`` of Anthropic, or of a server that is compatible with it.

    A key is needed for Anthropic alone: from `api_key`, the call, or ``ANTHROPIC_API_KEY``. ``Request.options`` is
    merged over the body, so whatever a server understands besides can be said there; an option of None takes a field
    out, and ``betas`` (a list of names) becomes the header ``anthropic-beta``. The API has no seed: it is not sent.

    A tool's ``metadata["strict"]`` makes its schema binding. Its ``metadata["anthropic"]`` is merged over what is said
    of it (``{"eager_input_streaming": True}``); with a ``"type"`` it is all that is said besides the name, as the tools
    want that the server runs (``{"type": "web_search_20250305"}``). ``metadata["cache"]`` of a part, a message or a
    tool (True, ``"5m"``, ``"1h"``) ends a prefix that is to be cached.
    """

    provider = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    default_base_url = "https://api.anthropic.com/v1"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """The request as it will be sent. Raises ``EngineError("missing_model")`` without a model."""
        if not request.model:
            raise missing_model(self.provider)
        key = self.key(call)
        headers = {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})
        body = messages_body(request, provider=self.provider)
        betas = body.pop("betas", None)
        if betas:
            headers["anthropic-beta"] = ",".join(betas)
        return self.post("/messages", body, call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> MessagesDecoder:
        return MessagesDecoder(provider=self.provider, messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return anthropic_http_error(self.provider, status, headers, body)


def messages_body(request: Request, *, provider: str = "anthropic") -> dict[str, Any]:
    """The JSON body of `request`; `provider` is whose opaque parts go back."""
    model = request.model or ""
    limit = default_max_tokens(model) if request.max_tokens is None else request.max_tokens
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": limit,
        "stream": True,
        "system": system_of(request.messages),
        "messages": turns_of(request.messages, provider),
        "tools": [_tool(tool, provider) for tool in request.tools],
        "tool_choice": _tool_choice(request.tool_choice) if request.tools or "tools" in request.options else None,
        "temperature": request.temperature,
        "stop_sequences": list(request.stop),
        **_thinking(request.reasoning_effort, model, limit),
        "container": _container(request, provider),
    }
    wanted = _output_format(request.response_format)
    if wanted is not None:
        body["output_config"] = {**body.get("output_config", {}), "format": wanted}
    config: dict[str, Any] = body.get("output_config") or {}
    body |= request.options
    if config and isinstance(body["output_config"], dict):
        body["output_config"] = {**config, **body["output_config"]}
    empty = ("system", "tools", "stop_sequences")
    return {name: held for name, held in body.items() if held is not None and (held or name not in empty)}


def default_max_tokens(model: str) -> int:
    """The API wants a bound. This is the highest that every model of the generation takes.

    https://platform.claude.com/docs/en/about-claude/models/overview: 4,096 for Claude 3, at least 32,000 since
    Claude 4; a bound that is not reached costs nothing. Of other models nothing is known.
    """
    return 32_000 if "claude" in model and not re.search(r"claude-(3|instant|v?2)", model) else 4096


def _thinking(effort: str | None, model: str, limit: int) -> dict[str, Any]:
    # https://platform.claude.com/docs/en/build-with-claude/effort: Claude from 4.6 on thinks as much as the effort
    # says; what is older, or speaks the same API, knows a budget: at least 1,024 tokens, and the answer wants some too.
    if effort is None:
        return {}
    if effort in ("none", "disabled"):
        return {"thinking": {"type": "disabled"}}
    effort = "low" if effort == "minimal" else effort
    if effort not in EFFORTS:
        errors = [(("reasoning_effort",), f"{effort!r} is none of none, minimal, {', '.join(EFFORTS)}")]
        raise ValidationError("invalid_request", errors=errors)
    if "claude" in model and not _TAKES_BUDGET.search(model):
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
    budget = min(_BUDGETS[effort], limit - limit // 4)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= _BUDGETS["low"] else {}


_TAKES_BUDGET = re.compile(r"claude-(3-7|(opus|sonnet|haiku)-4([-.][015](?!\d)|-2\d{7}|@|$))")
_BUDGETS = {"low": 1024, "medium": 4096, "high": 16_384, "xhigh": 24_576, "max": 31_000}


def _container(request: Request, provider: str) -> str | None:
    # The sandbox in which the last turn left something to go on with.
    last = next((message for message in reversed(request.messages) if message.role == "assistant"), None)
    return None if last is None else last.metadata.get(f"{provider}_container")


def _tool(tool: Tool, provider: str) -> dict[str, Any]:
    own: dict[str, Any] = tool.metadata.get(provider) or {}
    said: dict[str, Any] = {"name": tool.name}
    if not own.get("type") or own["type"] == "custom":
        said |= {"description": tool.description} if tool.description else {}
        said["input_schema"] = {"type": "object", **tool.schema}
    strict = {"strict": True} if tool.metadata.get("strict") else {}
    return {**said, **strict, **own, **cache_control(tool.metadata)}


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    match choice:
        case None | dict():
            return choice
        case "auto" | "none":
            return {"type": choice}
        case "required":
            return {"type": "any"}
        case _:
            return {"type": "tool", "name": choice}


def _output_format(wanted: str | dict[str, Any] | None) -> dict[str, Any] | None:
    match wanted:
        case None | "text" | {"type": "text"}:
            return None
        case {"type": "json_schema", "schema": schema}:
            return {"type": "json_schema", "schema": _closed(schema)}
        case _:
            message = f"Anthropic's API knows no response format {wanted!r}; use json_schema(...)"
            raise EngineError("unsupported_response_format", message, provider="anthropic")


def _closed(schema: Any) -> Any:
    # https://platform.claude.com/docs/en/build-with-claude/structured-outputs: every object must say that it is closed.
    if isinstance(schema, list):
        return [_closed(each) for each in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(held) for name, held in cast(dict[str, Any], schema).items()}
    return {"additionalProperties": False, **closed} if closed.get("type") == "object" else closed

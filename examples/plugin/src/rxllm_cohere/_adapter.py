"""Build the HTTP request for ``/v2/chat``. See https://docs.cohere.com/reference/chat-stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from rxllm import AdapterError, Message, Request, Tool
from rxllm.adapters import HTTPAdapter, http_error, missing_model
from rxllm.values import Call, ImagePart, TextPart, ThinkingPart, as_response_format

from rxllm_cohere._decoder import PLAN, PROVIDER, THOUGHT, CohereDecoder

if TYPE_CHECKING:
    import httpx


class Cohere(HTTPAdapter):
    """``POST {base_url}/v2/chat``. ``Request.options`` overrides fields of the body: ``{"documents": [...]}``."""

    provider = PROVIDER
    key_variable = "CO_API_KEY"
    default_base_url = "https://api.cohere.com"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the request as it will be sent. Raises ``EngineError``: ``missing_model``, ``missing_key``."""
        if not request.model:
            raise missing_model(PROVIDER)
        key = self.key(call)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return self.post("/v2/chat", _body(request), call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> CohereDecoder:
        return CohereDecoder(request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(PROVIDER, status, headers, body)


def _body(request: Request) -> dict[str, Any]:
    body = {
        "model": request.model,
        "messages": [_message(message) for message in request.messages],
        "stream": True,
        "tools": [_tool(tool) for tool in _available_tools(request)],
        "tool_choice": _tool_choice(request.tool_choice),
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "stop_sequences": list(request.stop),
        "seed": request.seed,
        "thinking": _thinking(request.reasoning_effort),
        "response_format": _response_format(as_response_format(request.response_format)),
        **request.options,
    }
    return {name: value for name, value in body.items() if value not in (None, [])}


def _message(message: Message) -> dict[str, Any]:
    match message.role:
        case "tool":
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": _result_text(message)}
        case "assistant":
            return _assistant(message)
        case _:
            return {"role": message.role, "content": _content(message)}


def _assistant(message: Message) -> dict[str, Any]:
    # Thinking from other providers has different provider_data, and is omitted.
    thinking = [part for part in message.parts if isinstance(part, ThinkingPart)]
    thoughts = [{"type": "thinking", "thinking": part.text} for part in thinking if part.provider_data == THOUGHT]
    fields = {
        "role": "assistant",
        "content": [*thoughts, {"type": "text", "text": message.text}] if message.text else thoughts,
        "tool_plan": "".join(part.text for part in thinking if part.provider_data == PLAN),
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()},
            }
            for call in message.tool_calls
        ],
    }
    return {name: value for name, value in fields.items() if value}


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, ImagePart) for part in message.parts):
        return message.text
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart):
            url = part.image.data if part.image.source == "url" else part.image.to_data_uri()
            content.append({"type": "image_url", "image_url": {"url": url}})
    return content


def _result_text(message: Message) -> str:
    content = message.content
    return msgspec.json.encode(content).decode() if isinstance(content, dict) else message.text


def _available_tools(request: Request) -> list[Tool]:
    # Cohere cannot be forced to call a tool by name. If tool_choice is a tool's name, send only that tool.
    chosen = [tool for tool in request.tools if tool.name == request.tool_choice]
    return chosen or list(request.tools)


def _tool_choice(choice: Any) -> str | None:
    match choice:
        case None | "auto":
            return None
        case "none":
            return "NONE"
        case str():
            return "REQUIRED"
        case _:
            raise AdapterError("unsupported_feature", f"Cohere has no tool choice {choice!r}", provider=PROVIDER)


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
    }


def _thinking(effort: str | None) -> dict[str, Any] | None:
    # Cohere has no effort levels, only a token budget. Set the budget in `options`.
    return None if effort is None else {"type": "disabled" if effort == "none" else "enabled"}


def _response_format(format: Any) -> dict[str, Any] | None:
    match format:
        case None | "text":
            return None
        case {"type": "json_schema", "schema": schema}:
            return {"type": "json_object", "json_schema": schema}
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case _:
            raise AdapterError("unsupported_feature", f"Cohere has no response format {format!r}", provider=PROVIDER)

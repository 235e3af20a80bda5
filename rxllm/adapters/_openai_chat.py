"""OpenAI's Chat Completions, and every server that speaks it: values to the HTTP request, and its decoder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_base import missing_model
from rxllm.adapters._http_errors import http_error
from rxllm.adapters._openai_chat_wire import ChatDecoder
from rxllm.adapters._request import response_format
from rxllm.values import (
    AdapterError,
    Call,
    Image,
    ImagePart,
    Message,
    Request,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
)
from rxllm.values._json import json_text

if TYPE_CHECKING:
    import httpx

OPENAI = "https://api.openai.com/v1"

_IS_OPENAI = re.compile(r"https://(api\.openai\.com|[^/]+\.(openai|cognitiveservices|services\.ai)\.azure\.com)(/|$)")


class OpenAIChat(HTTPAdapter):
    """``POST {base_url}/chat/completions`` of OpenAI, or of a server that is compatible with it.

    A key is needed for OpenAI alone: from `api_key`, the call, or ``OPENAI_API_KEY``. ``Request.options`` is merged
    over the body, so whatever a server understands besides can be said there; an option of None takes a field out.
    ``{"logprobs": True, "top_logprobs": 2}`` asks for log-probabilities, see ``Response.metadata["logprobs"]``.

    Azure's `base_url` is ``https://NAME.openai.azure.com/openai/v1``, with the resource's key as `api_key`. The dated
    versions of its API are ``.../openai/deployments/MODEL?api-version=2024-10-21``, with ``headers={"api-key": KEY}``;
    a header of that name takes the place of every other key.
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = OPENAI
    thoughts_field: str | None = None
    """The field of an assistant's message in which its thoughts go back, for servers that want them."""

    def build(self, request: Request, call: Call) -> httpx.Request:
        """The request as it will be sent. Raises ``EngineError("missing_model")`` without a model."""
        if not request.model:
            raise missing_model(self.provider)
        headers = bearer(self, call)
        is_openai = _IS_OPENAI.match(self.base_url) is not None
        body = chat_body(request, is_openai=is_openai, thoughts_field=self.thoughts_field)
        return self.post("/chat/completions", body, call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> ChatDecoder:
        return ChatDecoder(provider=self.provider, messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)


def bearer(adapter: HTTPAdapter, call: Call) -> dict[str, str]:
    """The header of the key, unless the adapter's own headers have Azure's."""
    if any(name.lower() == "api-key" for name in adapter.headers):
        return {}
    key = adapter.key(call)
    return {"authorization": f"Bearer {key}"} if key else {}


def chat_body(request: Request, *, is_openai: bool = True, thoughts_field: str | None = None) -> dict[str, Any]:
    """The JSON body of `request`. OpenAI alone knows ``max_completion_tokens`` and minds ``reasoning_details``."""
    body = {
        "model": request.model,
        "messages": [
            _message(message, opaque=not is_openai, thoughts_field=thoughts_field) for message in request.messages
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [_tool(tool) for tool in request.tools],
        "tool_choice": _tool_choice(request.tool_choice),
        "temperature": request.temperature,
        "max_completion_tokens" if is_openai else "max_tokens": request.max_tokens,
        "stop": list(request.stop),
        "seed": request.seed,
        "reasoning_effort": request.reasoning_effort,
        "response_format": _response_format(request),
        **request.options,
    }
    return {name: held for name, held in body.items() if held is not None and (held or name not in ("tools", "stop"))}


def _message(message: Message, *, opaque: bool, thoughts_field: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.name:
        said["name"] = message.name
    if message.role == "tool":
        said["tool_call_id"] = message.tool_call_id
    calls = [_call(call) for call in message.tool_calls if not call.metadata.get("server")]
    if calls:
        said["tool_calls"] = calls
        said["content"] = said["content"] or None
    details = list(_reasoning_details(message)) if opaque else []
    if details:
        said["reasoning_details"] = details
    if thoughts_field and message.role == "assistant":
        said[thoughts_field] = _thoughts(message)
    return said


def _content(message: Message) -> Any:
    if isinstance(message.content, dict):
        return json_text(message.content)
    if not any(isinstance(part, ImagePart) for part in message.parts):
        return message.text
    parts = (_part(part) for part in message.parts)
    return [part for part in parts if part is not None]


def _part(part: Any) -> dict[str, Any] | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image_url", "image_url": {"url": _url(part.image), "detail": part.detail}}
        case _:
            return None


def _url(image: Image) -> str:
    return str(image.data) if image.source == "url" else image.to_data_uri()


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = call.raw_arguments or json_text(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _thoughts(message: Message) -> str:
    # Those of other wires bear a signature or data of theirs.
    thoughts = (part for part in message.parts if isinstance(part, ThinkingPart))
    return "".join(part.text for part in thoughts if part.signature is None and not part.provider_data)


def _reasoning_details(message: Message) -> Iterable[dict[str, Any]]:
    # The decoder keeps what is opaque; the text is the part's own.
    for part in message.parts:
        if not isinstance(part, ThinkingPart) or not part.provider_data:
            continue
        for detail in part.provider_data.get("reasoning_details", ()):
            is_text = detail.get("type") == "reasoning.text"
            yield {"text": part.text, **detail} if is_text else detail


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
    }


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    if choice is None or isinstance(choice, dict) or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _response_format(request: Request) -> dict[str, Any] | None:
    wanted = response_format(request)
    if wanted is None or wanted["type"] == "json_object":
        return wanted
    return {"type": "json_schema", "json_schema": {name: value for name, value in wanted.items() if name != "type"}}

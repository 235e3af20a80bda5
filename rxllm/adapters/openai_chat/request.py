"""A request as the JSON body of Chat Completions.

Files: https://developers.openai.com/api/docs/guides/file-inputs (PDF only, no URL; the text of other files as text);
sound: https://developers.openai.com/api/docs/guides/audio.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rxllm.adapters._parts import Carries, kind_of, mime_type_of, name_of, sendable
from rxllm.adapters._request import image_url, response_format
from rxllm.values import (
    FilePart,
    Image,
    ImagePart,
    Message,
    ProviderPart,
    Request,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
)
from rxllm.values._json import json_text

_CONTENT = {"text", "image", "image by url", "pdf", "pdf by id", "wav", "mp3", "own part"}

CARRIES: Carries = {
    "system": {"text", "own part"},
    "user": _CONTENT,
    "assistant": {"text", "tool call"},
    "tool": {"text", "own part"},
}
"""What OpenAI takes. Its thoughts are not sent back: it rejects them."""

OTHERS_CARRY: Carries = {
    "system": _CONTENT,
    "user": _CONTENT,
    "assistant": {"text", "tool call", "reasoning details"},
    "tool": _CONTENT,
}
"""What is sent to other servers. Many take more than OpenAI does, and they answer for themselves."""


def chat_body(
    request: Request, *, provider: str = "openai", is_openai: bool = True, thoughts_field: str | None = None
) -> dict[str, Any]:
    """Return the body of `request`; opaque parts are sent if they are of `provider`.

    Only OpenAI itself knows ``max_completion_tokens``, and it rejects ``reasoning_details``. `thoughts_field` is the
    field in which the server wants its thoughts back.
    """
    carries: Carries = CARRIES if is_openai else OTHERS_CARRY
    if thoughts_field:
        carries = {**carries, "assistant": {*carries["assistant"], "thinking"}}
    request = sendable(request, f"Chat Completions of {provider}", provider, carries)
    body = {
        "model": request.model,
        "messages": [
            _message(message, with_details=not is_openai, thoughts_field=thoughts_field) for message in request.messages
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [_tool(tool) for tool in request.tools],
        "tool_choice": _tool_choice(request.tool_choice),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_completion_tokens" if is_openai else "max_tokens": request.max_tokens,
        "stop": list(request.stop),
        "seed": request.seed,
        "reasoning_effort": request.reasoning_effort,
        "response_format": _response_format(request),
        **request.options,
    }
    return {name: value for name, value in body.items() if value is not None and (value or name not in _NOT_EMPTY)}


_NOT_EMPTY = ("tools", "stop")


def _message(message: Message, *, with_details: bool, thoughts_field: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.name:
        body["name"] = message.name
    if message.role == "tool":
        body["tool_call_id"] = message.tool_call_id
    calls = [_tool_call(call) for call in message.tool_calls if not call.metadata.get("server")]
    if calls:
        body["tool_calls"] = calls
        body["content"] = body["content"] or None
    details = list(_reasoning_details(message)) if with_details else []
    if details:
        body["reasoning_details"] = details
    if thoughts_field and message.role == "assistant":
        body[thoughts_field] = _thoughts(message)
    return body


def _content(message: Message) -> Any:
    if isinstance(message.content, dict):
        return json_text(message.content)
    if message.role == "assistant" or all(isinstance(part, TextPart) for part in message.parts):
        return message.text
    return [_part(part) for part in message.parts]


def _part(part: Any) -> dict[str, Any]:
    match part:
        case ImagePart():
            return {"type": "image_url", "image_url": {"url": image_url(part.image), "detail": part.detail}}
        case FilePart(file={"file_id": id}):
            return {"type": "file", "file": {"file_id": id}}
        case FilePart(file=file):
            return _file(kind_of(part, ""), file)
        case ProviderPart(data=data):
            return data
        case _:
            return {"type": "text", "text": part.text}


def _file(kind: str, file: dict[str, Any]) -> dict[str, Any]:
    content = Image.from_binary(file["data"], mime_type_of(file))
    if kind in ("wav", "mp3"):
        return {"type": "input_audio", "input_audio": {"data": content.to_base64(), "format": kind}}
    return {"type": "file", "file": {"filename": name_of(file), "file_data": content.to_data_uri()}}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    arguments = call.raw_arguments or json_text(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _thoughts(message: Message) -> str:
    # A thought of another wire has that wire's signature or data, and is left out.
    thoughts = (part for part in message.parts if isinstance(part, ThinkingPart))
    return "".join(part.text for part in thoughts if part.signature is None and not part.provider_data)


def _reasoning_details(message: Message) -> Iterable[dict[str, Any]]:
    # The decoder keeps only what is opaque: the text is in the part itself.
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
    form = response_format(request)
    if form is None or form["type"] == "json_object":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}

"""Convert a request to the JSON body of Chat Completions.

OpenAI accepts PDF files, but no other kind of document. Text files are sent as text. See
https://developers.openai.com/api/docs/guides/file-inputs and https://developers.openai.com/api/docs/guides/audio.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rxllm.adapters._requests import (
    Carries,
    image_url,
    kind_of,
    mime_type_of,
    name_of,
    response_format,
    select_parts,
    sent_arguments_text,
    with_tools,
    without_empty_answers,
)
from rxllm.adapters._sent_schemas import for_openai, object_schema
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
from rxllm.values.json_text import json_text

_CONTENT = {"text", "image", "image by url", "pdf", "pdf by id", "wav", "mp3", "own part"}

CARRIES: Carries = {
    "system": {"text", "own part"},
    "user": _CONTENT,
    "assistant": {"text", "tool call", "own fields"},
    "tool": {"text", "own part"},
}
"""The kinds of parts that OpenAI accepts. It rejects thoughts."""

OTHERS_CARRY: Carries = {
    "system": _CONTENT,
    "user": _CONTENT,
    "assistant": {"text", "tool call", "reasoning details", "own fields"},
    "tool": _CONTENT,
}
"""The kinds of parts to send to servers other than OpenAI's. Many of them accept more than OpenAI does."""


def chat_body(
    request: Request, *, provider: str = "openai", is_openai: bool = True, thoughts_field: str | None = None
) -> dict[str, Any]:
    """Return the JSON body for `request`.

    Opaque parts from other providers are left out. `is_openai` is True if the request goes to OpenAI's own server,
    which rejects ``reasoning_details``.
    """
    carries: Carries = CARRIES if is_openai else OTHERS_CARRY
    if thoughts_field:
        carries = {**carries, "assistant": {*carries["assistant"], "thinking"}}
    request = select_parts(request, f"the Chat Completions API of {provider}", provider, carries)
    tools = [_tool(tool, provider) for tool in request.tools]
    speaks = "audio" in (request.options.get("modalities") or ())
    body = {
        "model": request.model,
        "messages": without_empty_answers(
            [
                _message(message, provider, is_openai=is_openai, thoughts_field=thoughts_field, speaks=speaks)
                for message in request.messages
            ]
        ),
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": tools,
        "tool_choice": _tool_choice(request, provider),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_completion_tokens" if is_openai else "max_tokens": request.max_tokens,
        "stop": list(request.stop),
        "seed": request.seed,
        "reasoning_effort": request.reasoning_effort,
        "response_format": _response_format(request, is_openai=is_openai),
        **with_tools(tools, request.options),
    }
    return {name: value for name, value in body.items() if value is not None and (value or name not in _NOT_EMPTY)}


_NOT_EMPTY = ("tools", "stop")


def _message(
    message: Message, provider: str, *, is_openai: bool, thoughts_field: str | None, speaks: bool
) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.name:
        body["name"] = message.name
    if message.role == "tool":
        body["tool_call_id"] = message.tool_call_id
    calls = [
        _tool_call(call, provider, with_details=not is_openai)
        for call in message.tool_calls
        if not call.metadata.get("server")
    ]
    if calls:
        body["tool_calls"] = calls
        body["content"] = body["content"] or None
    details = [] if is_openai else list(_reasoning_details(message))
    if details:
        body["reasoning_details"] = details
    if thoughts_field and message.role == "assistant":
        body[thoughts_field] = _thoughts(message)
    if message.role == "assistant":
        body |= _own_fields(message, provider, is_openai=is_openai, speaks=speaks)
    return body


_SIGNATURES = ("extra_content", "thought_signature")


def _own_fields(message: Message, provider: str, *, is_openai: bool, speaks: bool) -> dict[str, Any]:
    """Return the fields that the provider sent beside the content of `message`, and wants back.

    OpenAI rejects signatures. It takes the id of a sound instead of its words as long as it keeps the sound, if the
    request asks for sound again.
    """
    own: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part, ProviderPart) and kind_of(part, provider) == "own fields":
            own |= part.data
    if is_openai:
        match own.get("audio"):
            case {"id": str(id), "expires_at": int(until)} if speaks and until > time.time():
                return {"audio": {"id": id}, "content": None}
            case _:
                return {}
    return {name: own[name] for name in _SIGNATURES if name in own}


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


def _tool_call(call: ToolCall, provider: str, *, with_details: bool) -> dict[str, Any]:
    own: dict[str, Any] = call.metadata.get(provider) or {}
    if own.get("type") == "custom" and isinstance(call.arguments.get("input"), str):
        custom = {"name": call.name, "input": call.arguments["input"]}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": sent_arguments_text(call)}
    signed = {name: own[name] for name in _SIGNATURES if with_details and own.get(name)}
    return {"id": call.id, "type": "function", "function": function, **signed}


def _thoughts(message: Message) -> str:
    # A thought that has a signature or data is from another API.
    thoughts = (part for part in message.parts if isinstance(part, ThinkingPart))
    return "".join(part.text for part in thoughts if part.signature is None and not part.provider_data)


def _reasoning_details(message: Message) -> Iterable[dict[str, Any]]:
    # The decoder keeps reasoning details without their text, so put the text back.
    for part in message.parts:
        if not isinstance(part, ThinkingPart) or not part.provider_data:
            continue
        for detail in part.provider_data.get("reasoning_details", ()):
            is_text = detail.get("type") == "reasoning.text"
            yield {"text": part.text, **detail} if is_text else detail


def _custom(tool: Tool, provider: str) -> dict[str, Any] | None:
    """Return the fields of a custom tool, or None if `tool` is not a custom tool.

    The tool's metadata has the format of the Responses API.
    """
    own: dict[str, Any] = tool.metadata.get(provider) or {}
    if own.get("type") != "custom":
        return None
    match own.get("format"):
        case {"type": "grammar", "syntax": syntax, "definition": definition}:  # the Responses API does not nest these
            form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
        case form:
            pass
    fields = {"name": tool.name, "description": tool.description, **own, "format": form}
    return {name: value for name, value in fields.items() if name != "type" and value is not None}


def _tool(tool: Tool, provider: str) -> dict[str, Any]:
    custom = _custom(tool, provider)
    if custom is not None:
        return {"type": "custom", "custom": custom}
    function = {"name": tool.name, "description": tool.description, "parameters": object_schema(tool.schema)}
    return {"type": "function", "function": function}


def _tool_choice(request: Request, provider: str) -> Any:
    choice = request.tool_choice
    if choice is None or isinstance(choice, dict) or choice in ("auto", "none", "required"):
        return choice
    customs = (tool.name for tool in request.tools if _custom(tool, provider) is not None)
    kind = "custom" if choice in customs else "function"
    return {"type": kind, kind: {"name": choice}}


def _response_format(request: Request, *, is_openai: bool) -> dict[str, Any] | None:
    form = response_format(request)
    if form is None or form["type"] == "json_object":
        return form
    fields = {name: value for name, value in form.items() if name != "type"}
    if is_openai and form.get("strict"):
        fields |= for_openai(form["schema"], strict=True)
    return {"type": "json_schema", "json_schema": fields}

"""R."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rxllm.adapters._request import merge
from rxllm.adapters.ollama.frames import OWN
from rxllm.values import (
    ImagePart,
    Message,
    Request,
    ThinkingPart,
    Tool,
    ToolCall,
    ValidationError,
)
from rxllm.values._json import json_text


def ollama_body(request: Request) -> dict[str, Any]:
    """The JSON body of `request`.

    Ollama has no choice of tools: none are sent with ``"none"``, and only the one that is named.
    """
    body = {
        "model": request.model,
        "messages": _messages(request.messages),
        "stream": True,
        "tools": [_tool(tool) for tool in _chosen(request)],
        "think": _think(request.reasoning_effort),
        "format": _format(request.response_format),
        "options": _filled(
            temperature=request.temperature,
            num_predict=request.max_tokens,
            stop=list(request.stop) or None,
            seed=request.seed,
        ),
    }
    merged = merge(_filled(**body), request.options)
    return {name: held for name, held in merged.items() if held or name not in ("tools", "options")}


def _filled(**fields: Any) -> dict[str, Any]:
    return {name: held for name, held in fields.items() if held is not None}


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        said.append(_message(message, names))
    return said


def _message(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message.content, dict):
        said["content"] = json_text(message.content)
    images = [part.image.to_base64() for part in message.parts if isinstance(part, ImagePart)]
    if images:
        said["images"] = images
    calls = [_call(call) for call in message.tool_calls if not call.metadata.get("server")]
    if calls:
        said["tool_calls"] = calls
    thinking = _thinking(message)
    if thinking:
        said["thinking"] = thinking
    if message.role == "tool":
        # Older servers tell results apart by the tool's name, newer ones by the call's id.
        id = message.tool_call_id or ""
        said |= {"tool_call_id": id, "tool_name": names.get(id) or message.name or id}
    return said


def _thinking(message: Message) -> str:
    own = (part for part in message.parts if isinstance(part, ThinkingPart) and part.provider_data == OWN)
    return "".join(part.text for part in own)


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}


def _chosen(request: Request) -> Iterable[Tool]:
    choice = request.tool_choice
    if not isinstance(choice, str) or choice in ("auto", "required"):
        return request.tools
    return (tool for tool in request.tools if tool.name == choice)


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
    }


def _think(effort: str | None) -> bool | str | None:
    """https://docs.ollama.com/capabilities/thinking: a level for the models that know levels, else yes or no."""
    match effort:
        case None | "low" | "medium" | "high":
            return effort
        case "none":
            return False
        case "minimal":
            return "low"
        case "xhigh":
            return "high"
        case _:
            message = f"{effort!r} is no reasoning effort; use none, minimal, low, medium, high or xhigh"
            raise ValidationError("invalid_request", message, errors=[(("reasoning_effort",), "unknown")])


def _format(wanted: str | dict[str, Any] | None) -> Any:
    match wanted:
        case None | "text":
            return None
        case {"type": "json_schema", "schema": schema}:
            return schema
        case {"type": "json_object"}:
            return "json"
        case _:
            message = f"{wanted!r} is no response format; use json_schema(...) or {{'type': 'json_object'}}"
            raise ValidationError("invalid_request", message, errors=[(("response_format",), "unknown")])

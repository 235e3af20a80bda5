"""Convert a request to the JSON body for ``/api/chat`` (https://docs.ollama.com/api/chat).

Images are sent as base64 (https://docs.ollama.com/capabilities/vision). Other files are not supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rxllm.adapters._requests import (
    Carries,
    invalid_field,
    merge,
    response_format,
    select_parts,
    sent_arguments,
    without_empty_answers,
    without_none,
)
from rxllm.adapters._sent_schemas import object_schema
from rxllm.adapters.ollama.frames import OWN, PROVIDER
from rxllm.values import ImagePart, Message, Request, ThinkingPart, Tool, ToolCall
from rxllm.values.json_text import json_text

CARRIES: Carries = {
    "system": {"text", "image"},
    "user": {"text", "image"},
    "assistant": {"text", "tool call", "own thinking"},
    "tool": {"text", "image"},
}


def ollama_body(request: Request) -> dict[str, Any]:
    """Return the JSON body for `request`.

    Ollama has no tool choice, so only the chosen tools are sent.
    """
    request = select_parts(request, "Ollama", PROVIDER, CARRIES)
    body = {
        "model": request.model,
        "messages": _messages(request.messages),
        "stream": True,
        "tools": [_tool(tool) for tool in _select_tools(request)],
        "think": _think(request.reasoning_effort),
        "format": _format(request),
        "options": without_none(
            temperature=request.temperature,
            top_p=request.top_p,
            num_predict=request.max_tokens,
            stop=list(request.stop) or None,
            seed=request.seed,
        ),
    }
    merged = merge(without_none(**body), request.options)
    return {name: value for name, value in merged.items() if value or name not in ("tools", "options")}


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        entries.append(_message(message, names))
    return without_empty_answers(entries)


def _message(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message.content, dict):
        entry["content"] = json_text(message.content)
    images = [part.image.to_base64() for part in message.parts if isinstance(part, ImagePart)]
    if images:
        entry["images"] = images
    calls = [_tool_call(call) for call in message.tool_calls if not call.metadata.get("server")]
    if calls:
        entry["tool_calls"] = calls
    thinking = _thinking(message)
    if thinking:
        entry["thinking"] = thinking
    if message.role == "tool":
        # Older servers use the tool's name to match a result to its call.
        id = message.tool_call_id or ""
        entry |= {"tool_call_id": id, "tool_name": names.get(id) or message.name or id}
    return entry


def _thinking(message: Message) -> str:
    own = (part for part in message.parts if isinstance(part, ThinkingPart) and part.provider_data == OWN)
    return "".join(part.text for part in own)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": sent_arguments(call)}}


def _select_tools(request: Request) -> Iterable[Tool]:
    choice = request.tool_choice
    if not isinstance(choice, str) or choice in ("auto", "required"):
        return request.tools
    return (tool for tool in request.tools if tool.name == choice)


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": object_schema(tool.schema)},
    }


def _think(effort: str | None) -> bool | str | None:
    # Some models have thinking levels. In other models, thinking can only be turned on or off:
    # https://docs.ollama.com/capabilities/thinking.
    match effort:
        case None | "low" | "medium" | "high":
            return effort
        case "none":
            return False
        case "minimal":
            return "low"
        case "xhigh" | "max":
            return "high"
        case _:
            raise invalid_field("reasoning_effort", effort, "one of none, minimal, low, medium, high, xhigh, max")


def _format(request: Request) -> Any:
    form = response_format(request)
    return None if form is None else form.get("schema", "json")

"""Convert a request to the body of ConverseStream.

1. System messages at the start of the thread become ``system``. Later ones become text between ``<system>`` tags in the
   user's turn, so that the cached prefix does not change.
2. Consecutive messages with the same role become one turn. Tool results are at the beginning of the user's turn.
3. Blank text is left out, because Bedrock rejects it.
4. Signed thinking and Bedrock's own parts are sent back unchanged. Another provider's are left out.
5. ``metadata["cache"]`` on a part, a message or a tool adds a cache point after it: True, ``"5m"`` or ``"1h"``.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from rxllm import AdapterError, Message, Request, Tool, ToolCall
from rxllm.adapters import merge, response_format, select_parts
from rxllm.adapters.anthropic import effort_fields
from rxllm.values import FilePart, ImagePart, ProviderPart, TextPart, ThinkingPart, ToolCallPart

from rxllm_bedrock._decoder import PROVIDER

Block = dict[str, Any]

_SENT = {"text", "own part", "image", "pdf", "file", "wav", "mp3", "audio", "video"}
CARRIES: Any = {
    "system": {"text", "own part"},
    "user": _SENT,
    "assistant": {"text", "own part", "own thinking", "tool call"},
    "tool": _SENT,
}
"""The kinds of parts that Bedrock accepts, by role."""

FORMATS = {
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "video/quicktime": "mov",
    "video/x-matroska": "mkv",
}
"""Bedrock's names for types of files. Any other name is the second half of the MIME type."""


def converse_body(request: Request) -> Block:
    """Return the JSON body for `request`. Raises ``ValidationError`` or ``AdapterError`` for what Bedrock cannot do."""
    request = select_parts(request, "Bedrock", PROVIDER, CARRIES)
    messages = request.messages
    start = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    limits = {
        "maxTokens": request.max_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "stopSequences": list(request.stop),
    }
    body = {
        "system": [block for message in messages[:start] for block in _blocks(message)],
        "messages": _turns(messages[start:]),
        "inferenceConfig": _without_empty(limits),
        "toolConfig": _tool_config(request),
        "outputConfig": _output_config(request),
    }
    return merge(_without_empty(merge(body, _reasoning(request))), request.options)


def _without_empty(fields: Block) -> Block:
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


def _turns(messages: Iterable[Message]) -> list[Block]:
    turns: list[Block] = []
    for message in messages:
        role, blocks = ("assistant" if message.role == "assistant" else "user"), _blocks(message)
        if message.role == "system":
            blocks = [{"text": f"<system>{block['text']}</system>"} for block in blocks if "text" in block]
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += blocks
    for turn in (turn for turn in turns if turn["role"] == "user"):
        turn["content"].sort(key=lambda block: "toolResult" not in block)  # the rest keeps its order
    return [turn for turn in turns if turn["content"]]


def _blocks(message: Message) -> list[Block]:
    blocks: list[Block] = []
    calls = {call.id: _call(call) for call in message.tool_calls}
    for part in message.parts:
        match part:
            case TextPart() if part.text.strip():
                blocks.append({"text": part.text})
            case ThinkingPart(provider_data={"redactedContent": redacted}):
                blocks.append({"reasoningContent": {"redactedContent": redacted}})
            case ThinkingPart(text=text, signature=signature):
                blocks.append({"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}})
            case ToolCallPart(id=id) if id in calls:
                blocks.append(calls.pop(id))
            case ImagePart(image=image):
                blocks.append(_file(image.mime_type or "image/png", image.to_binary()))
            case FilePart(file=file):
                blocks.append(_file(file["mime_type"], file["data"], file.get("name") or ""))
            case ProviderPart(data=data):
                blocks.append(dict(data))
        blocks += _cache_point(getattr(part, "metadata", {}))
    blocks += calls.values()
    if message.role == "tool":
        content = [{"json": message.content}] if isinstance(message.content, dict) else blocks
        status = {"status": "error"} if message.metadata.get("is_error") else {}
        blocks = [{"toolResult": {"toolUseId": _fit_id(message.tool_call_id or ""), "content": content, **status}}]
    return blocks + _cache_point(message.metadata) if blocks else []


def _call(call: ToolCall) -> Block:
    return {"toolUse": {"toolUseId": _fit_id(call.id), "name": call.name, "input": call.arguments}}


def _fit_id(id: str) -> str:
    # Another provider's id may not fit. A tool call and its result get the same new id.
    return id if re.fullmatch(r"[\w.:-]{1,64}", id, re.ASCII) else sha256(id.encode()).hexdigest()


def _cache_point(metadata: Mapping[str, Any]) -> list[Block]:
    if not (cache := metadata.get("cache")):
        return []
    return [{"cachePoint": {"type": "default"} | ({} if cache is True else {"ttl": cache})}]


def _file(mime_type: str, data: bytes, name: str = "") -> Block:
    kind, _, subtype = mime_type.partition(";")[0].partition("/")
    content = {"format": FORMATS.get(f"{kind}/{subtype}", subtype), "source": {"bytes": b64encode(data).decode()}}
    if kind in ("image", "audio", "video"):
        return {kind: content}
    # The model reads the name, and two documents must not share one.
    plain = " ".join(re.sub(r"[^a-zA-Z0-9()\[\]-]", " ", name).split())[:200]
    return {"document": {"name": plain or f"document-{sha256(data).hexdigest()[:8]}", **content}}


def _tool_config(request: Request) -> Block:
    # Bedrock has no choice "none", and rejects calls in a thread if there are no tools.
    if request.tool_choice == "none" and request.tools:
        if any(message.tool_calls for message in request.messages):
            raise _unsupported("cannot forbid tool calls (tool_choice='none') in a thread that contains some")
        return {}
    tools = [block for tool in request.tools for block in (_tool(tool), *_cache_point(tool.metadata))]
    choices: dict[str, Block] = {"auto": {"auto": {}}, "required": {"any": {}}}
    choice = request.tool_choice
    if isinstance(choice, str):
        choice = choices.get(choice, {"tool": {"name": choice}})
    return _without_empty({"tools": tools, "toolChoice": choice if tools else None})


def _tool(tool: Tool) -> Block:
    if own := tool.metadata.get(PROVIDER):  # a tool of the server's, such as {"systemTool": {"name": ...}}
        return dict(own)
    spec = {"name": tool.name, "description": tool.description or None, "strict": tool.metadata.get("strict")}
    return {"toolSpec": {**_without_empty(spec), "inputSchema": {"json": {"type": "object", **tool.schema}}}}


def _output_config(request: Request) -> Block:
    match response_format(request):
        case None:
            return {}
        case {"type": "json_schema", "schema": schema, **form}:
            form = {"schema": msgspec.json.encode(schema).decode(), "name": form["name"]}
            return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": form}}}
        case other:
            raise _unsupported(f"has no response format {other!r}")


def _reasoning(request: Request) -> Block:
    effort, model = request.reasoning_effort, request.model or ""
    if "claude" in model:
        fields = effort_fields(effort, model, request.max_tokens or 64_000)
        config = fields.pop("output_config", {})
        return {"additionalModelRequestFields": fields, "outputConfig": config}
    if "gpt-oss" in model and effort:
        return {"additionalModelRequestFields": {"reasoning_effort": effort}}
    return {"outputConfig": {"effort": effort} if effort else {}}


def _unsupported(fault: str) -> AdapterError:
    return AdapterError("unsupported_feature", f"Bedrock {fault}", provider=PROVIDER)

"""A thread as the Messages API wants it: https://platform.claude.com/docs/en/api/messages.

1. System messages are not messages: their text goes into ``system``, wherever in the thread they stand.
2. Messages of one role that follow each other become one turn; all the results of a turn's calls are in one user turn,
   before anything else.
3. Blank text is refused, and so is white space at the end of a last turn that is the assistant's: both are left out.
4. What another provider made (its thinking, its server's tools) is left out; what is ours goes back as it came:
   thinking only with its signature, a server's call that was cut off not at all.
5. Ids have letters, digits, ``_`` and ``-``: other characters become ``_``, in a call as in its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from rxllm.adapters.anthropic.frames import CITATIONS
from rxllm.values import (
    EngineError,
    Image,
    ImagePart,
    Message,
    ProviderPart,
    Request,
    SourcePart,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    ToolCallPart,
    ValidationError,
)
from rxllm.values._json import json_text

Block = dict[str, Any]


EFFORTS = ("low", "medium", "high", "xhigh", "max")


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
        **_effort(request.reasoning_effort, model, limit),
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


def _effort(effort: str | None, model: str, limit: int) -> dict[str, Any]:
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


def system_of(messages: Iterable[Message]) -> str | list[Block]:
    """The ``system`` of a body: text, or blocks where something in it is to be cached."""
    blocks = [block for message in messages if message.role == "system" for block in _cached(message, _texts(message))]
    if any("cache_control" in block for block in blocks):
        return blocks
    return "\n\n".join(block["text"] for block in blocks)


def turns_of(messages: Iterable[Message], provider: str) -> list[Block]:
    """The ``messages`` of a body; `provider` is whose opaque parts go back."""
    turns: list[Block] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _cached(message, _blocks(message, provider))
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        turn["content"].sort(key=_is_no_result)
    if turns and turns[-1]["role"] == "assistant":
        _strip_end(turns[-1]["content"])
    return [{**turn, "content": _plain(turn["content"])} for turn in turns]


def _is_no_result(block: Block) -> bool:
    return block["type"] != "tool_result"


def cache_control(metadata: Mapping[str, Any]) -> Block:
    """What ``metadata["cache"]`` asks for: True, or how long (``"5m"``, ``"1h"``)."""
    match metadata.get("cache"):
        case None | False:
            return {}
        case True:
            return {"cache_control": {"type": "ephemeral"}}
        case ttl:
            return {"cache_control": {"type": "ephemeral", "ttl": ttl}}


def _cached(message: Message, blocks: list[Block]) -> list[Block]:
    # A mark on the message is one on its last block; thinking takes none.
    mark = cache_control(message.metadata)
    able = [block for block in blocks if block["type"] not in ("thinking", "redacted_thinking")]
    if mark and able:
        able[-1] |= mark
    return blocks


def _blocks(message: Message, provider: str) -> list[Block]:
    match message.role:
        case "tool":
            return [_tool_result(message)]
        case "assistant":
            return _assistant(message, provider)
        case _:
            return _said(message, provider)


def _tool_result(message: Message) -> Block:
    content: Any = message.content
    if isinstance(content, dict):
        content = json_text(content)
    elif not isinstance(content, str):
        content = _said(message, "")
    result: Block = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id or ""), "content": content}
    return {**result, "is_error": True} if message.metadata.get("is_error") else result


def _texts(message: Message) -> list[Block]:
    return [block for block in _said(message, "") if block["type"] == "text"]


def _said(message: Message, provider: str) -> list[Block]:
    blocks: list[Block] = []
    for part in message.parts:
        match part:
            case TextPart() if part.text.strip():
                blocks.append({"type": "text", "text": part.text, **cache_control(part.metadata)})
            case ImagePart():
                blocks.append({"type": "image", "source": _source(part.image), **cache_control(part.metadata)})
            case ProviderPart(provider=origin, data=data) if origin == provider:
                blocks.append(dict(data))
            case _:
                pass
    return blocks


def _assistant(message: Message, provider: str) -> list[Block]:
    calls = {call.id: call for call in message.tool_calls}
    blocks: list[Block] = []
    for part in message.parts:
        match part:
            case TextPart() if part.text.strip():
                blocks.append({"type": "text", "text": part.text, **cache_control(part.metadata)})
            case SourcePart(source=source):
                _cite(blocks, source)
            case ThinkingPart():
                blocks += _thinking(part, provider)
            case ToolCallPart(id=id) if id in calls:
                blocks += _call(calls.pop(id), provider)
            case ProviderPart(provider=origin, data=data) if origin == provider:
                blocks.append(dict(data))
            case _:
                pass
    return blocks + [block for call in calls.values() for block in _call(call, provider)]


def _cite(blocks: list[Block], source: Mapping[str, Any]) -> None:
    # A citation belongs to the text before it; a search result that is none stays in its own part.
    if source.get("type") in CITATIONS and blocks and blocks[-1]["type"] == "text":
        # `file_id` is said and not taken.
        blocks[-1].setdefault("citations", []).append({k: v for k, v in source.items() if k != "file_id"})


def _thinking(part: ThinkingPart, provider: str) -> list[Block]:
    match part.provider_data:
        case {"provider": origin, "type": "redacted_thinking", "data": data} if origin == provider:
            return [{"type": "redacted_thinking", "data": data}]
        case {"provider": origin} if origin == provider and part.signature:
            return [{"type": "thinking", "thinking": part.text, "signature": part.signature}]
        case _:
            return []


def _call(call: ToolCall, provider: str) -> list[Block]:
    own: Block = call.metadata.get(provider) or {}
    is_server = bool(call.metadata.get("server"))
    if is_server and (not own or call.metadata.get("error")):
        return []
    id = call.id if is_server else _id(call.id)
    return [{"type": "tool_use", "id": id, "name": call.name, "input": _input(call), **own}]


def _input(call: ToolCall) -> dict[str, Any]:
    # Arguments must be an object, so text that is none is wrapped, in the way the documentation of fine-grained tool
    # streaming proposes.
    if call.metadata.get("error") and not call.arguments and call.raw_arguments:
        return {"INVALID_JSON": call.raw_arguments}
    return call.arguments


def _id(id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", id)


def _source(image: Image) -> Block:
    if image.source == "url" and not str(image.data).startswith("data:"):
        return {"type": "url", "url": image.data}
    uri = str(image.data) if image.source == "url" else image.to_data_uri()
    kind, _, data = uri.removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": kind, "data": data}


def _plain(blocks: list[Block]) -> Any:
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} else blocks


def _strip_end(blocks: list[Block]) -> None:
    if blocks and blocks[-1]["type"] == "text":
        blocks[-1]["text"] = cast(str, blocks[-1]["text"]).rstrip()

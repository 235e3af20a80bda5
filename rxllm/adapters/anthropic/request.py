"""Convert a request to the body of the Messages API: https://platform.claude.com/docs/en/api/messages.

1. System messages at the start of the thread become ``system``. Later ones are not added to it, because that would
   invalidate the cached prefix. They go before the next assistant turn, or at the end.
2. Consecutive messages that have the same role become one turn. Tool results are moved to the start of a user turn.
3. The API rejects blank text, and whitespace at the end of the thread if the last turn is the assistant's. Both are
   removed.
4. Parts from other providers are left out. Anthropic's own parts are sent back unchanged, except for incomplete calls
   to server tools, unsigned thinking, and thinking at the end of a turn, which are left out. To send a file by its id,
   set the beta header that is described in https://platform.claude.com/docs/en/build-with-claude/files. If another
   model took over in the middle of an answer, what `fallbacks` names is left out too.
5. Ids may contain only letters, digits, ``_`` and ``-``. Any other character becomes ``_``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rxllm.adapters._requests import (
    Carries,
    drop_last_thoughts,
    invalid_field,
    mime_type_of,
    response_format,
    select_parts,
    sent_arguments,
    with_tools,
)
from rxllm.adapters._sent_schemas import ANTHROPIC, narrowed
from rxllm.adapters.anthropic.bound_thoughts import Ledger, binds_thoughts
from rxllm.adapters.anthropic.fallbacks import drop_refused
from rxllm.adapters.anthropic.frames import CITATIONS, SERVER_CALLS, THOUGHTS
from rxllm.adapters.anthropic.refused_thoughts import mode_of, with_beta
from rxllm.values import (
    FilePart,
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
)
from rxllm.values.json_text import json_text
from rxllm.values.model_table import Takes, takes

Block = dict[str, Any]

_FILES = {f"{kind}{by}" for kind in ("image", "pdf") for by in ("", " by url", " by id")}

# Citations are sent back together with the text that they belong to.
_SOURCES = {f"source {kind}" for kind in ("web_search_result", "web_fetch_result", *CITATIONS)}

CARRIES: Carries = {
    "system": {"text"},
    "user": {"text", "text file", "text file by id", "own part"} | _FILES,
    "assistant": {"text", "tool call", "own thinking", "own part"} | _SOURCES,
    "tool": {"text", "text file", "text file by id", "own part"} | _FILES,
}


def messages_body(request: Request, *, provider: str = "anthropic", is_own: bool = False) -> dict[str, Any]:
    """Return the JSON body for `request`, without thoughts that the server would refuse.

    Opaque parts from other providers are left out. The option ``system_entries`` decides whether system messages after
    the start of the thread keep their role. By default, this depends on the model and on `is_own`, which is true if the
    server is Anthropic's own.
    """
    body = _whole_body(request, provider, is_own)
    return Ledger(request, body).body if binds_thoughts(request) else body


def ledger_of(request: Request, *, provider: str = "anthropic", is_own: bool = False) -> Ledger | None:
    """Return the ledger of `request`, or None if its model does not bind thoughts."""
    return Ledger(request, _whole_body(request, provider, is_own)) if binds_thoughts(request) else None


def _whole_body(request: Request, provider: str, is_own: bool) -> dict[str, Any]:
    request = select_parts(request, f"the Messages API of {provider}", provider, CARRIES)
    model = request.model or ""
    limit = default_max_tokens(model) if request.max_tokens is None else request.max_tokens
    tools = [_tool(tool, provider) for tool in request.tools]
    options = with_tools(tools, request.options)
    entries = options.pop("system_entries", None)
    mode_of(options)  # raises an error if the option is invalid
    options.pop("refused_thoughts", None)
    messages = request.messages
    start = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    by_entry = is_own and takes_entries(model) if entries is None else entries
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": limit,
        "stream": True,
        "system": system_of(messages[:start]),
        "messages": turns_of(messages[start:], provider, entries=by_entry),
        "tools": tools,
        "tool_choice": _tool_choice(request.tool_choice) if request.tools or "tools" in options else None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop_sequences": list(request.stop),
        **effort_fields(request.reasoning_effort, model, limit),
        "container": _container(request, provider),
    }
    config = {**body.get("output_config", {}), **_output_format(request)}
    body |= {"output_config": config or None} | options
    if config and isinstance(body["output_config"], dict):
        body["output_config"] = {**config, **body["output_config"]}
    optional = ("system", "tools", "stop_sequences")
    sent = {name: value for name, value in body.items() if value is not None and (value or name not in optional)}
    return with_beta(sent)


COUNTED = (
    *("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"),
    *("cache_control", "speed", "user_profile_id", "workspace_id", "mcp_servers", "context_management", "betas"),
)
"""The fields that ``/messages/count_tokens`` accepts. It rejects all others."""


def count_body(request: Request, *, provider: str = "anthropic", is_own: bool = False) -> dict[str, Any]:
    body = messages_body(request, provider=provider, is_own=is_own)
    return {name: body[name] for name in COUNTED if name in body}


def default_max_tokens(model: str) -> int:
    """Return the default for ``max_tokens``, a field that the API requires.

    The default is within the model's limit: https://platform.claude.com/docs/en/about-claude/models/overview.
    """
    return 32_000 if "claude" in model and not re.search(r"claude-(3|instant|v?2)", model) else 4096


def effort_fields(effort: str | None, model: str, limit: int) -> dict[str, Any]:
    """Return the fields ``thinking`` and ``output_config`` for a reasoning effort.

    Claude 4.6 and later models accept a level. Other models accept a budget:
    https://platform.claude.com/docs/en/build-with-claude/effort. Later models leave their thoughts out unless a summary
    is asked for, as it is here.
    """
    known = takes(model) or Takes()
    form = known.form or ("level" if "claude" in model else "budget")
    if effort is None:
        return {}
    if effort in ("none", "disabled"):
        return {"thinking": {"type": known.off}}
    effort = "low" if effort == "minimal" else effort
    if effort not in _BUDGETS:
        raise invalid_field("reasoning_effort", effort, f"one of none, minimal, {', '.join(_BUDGETS)}")
    if form != "budget":
        shown = {} if form == "both" else {"display": "summarized"}
        return {"thinking": {"type": "adaptive", **shown}, "output_config": {"effort": effort}}
    budget = min(_BUDGETS[effort], limit - limit // 4)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= _BUDGETS["low"] else {}


_BUDGETS = {"low": 1024, "medium": 4096, "high": 16_384, "xhigh": 24_576, "max": 31_000}


def _container(request: Request, provider: str) -> str | None:
    # The next turn may need files that are in the last turn's sandbox.
    last = next((message for message in reversed(request.messages) if message.role == "assistant"), None)
    return None if last is None else last.metadata.get(f"{provider}_container")


def _tool(tool: Tool, provider: str) -> dict[str, Any]:
    own: dict[str, Any] = tool.metadata.get(provider) or {}
    # An entry for a set of tools, such as ``browser_toolset_20260801``, has no name.
    entry: dict[str, Any] = {} if "toolset" in str(own.get("type")) else {"name": tool.name}
    if not own.get("type") or own["type"] == "custom":
        entry |= {"description": tool.description} if tool.description else {}
        schema = {"type": "object", **tool.schema}
        entry["input_schema"] = narrowed(schema, ANTHROPIC) if tool.metadata.get("strict") else schema
    strict = {"strict": True} if tool.metadata.get("strict") else {}
    return {**entry, **strict, **own, **cache_control(tool.metadata)}


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


def _output_format(request: Request) -> dict[str, Any]:
    match response_format(request):
        case None:
            return {}
        case {"type": "json_schema", "schema": schema}:
            return {"format": {"type": "json_schema", "schema": narrowed(schema, ANTHROPIC)}}
        case other:
            raise invalid_field(
                "response_format", other, "'text' or json_schema(...) (Anthropic supports no other formats)"
            )


def takes_entries(model: str) -> bool:
    """Return whether `model` obeys system messages that are not at the start of the thread.

    Older models reject or misinterpret such messages.
    """
    return re.search(r"claude-(opus-4[-.]8|(opus|fable|mythos)-5)(?!\d)", model) is not None


def system_of(messages: Iterable[Message]) -> str | list[Block]:
    blocks = [block for message in messages for block in _mark_cached(message, _text_blocks(message))]
    if any("cache_control" in block for block in blocks):
        return blocks
    return "\n\n".join(block["text"] for block in blocks)


def turns_of(messages: Iterable[Message], provider: str, *, entries: bool = False) -> list[Block]:
    """Return the turns for the ``messages`` field.

    When a thread grows, its earlier turns never change.
    """
    turns: list[Block] = []
    instructions: list[Block] = []  # to be added after the current turn
    made = [(message, _mark_cached(message, _blocks_of(message, provider))) for message in messages]
    drop_refused(blocks for _, blocks in made)
    drop_last_thoughts(made, lambda block: block["type"] in THOUGHTS)
    for message, blocks in made:
        if message.role == "system":
            instructions += blocks
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if role == "assistant" and blocks:
            _add_instructions(turns, instructions, entries=entries)
            instructions = []
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    _add_instructions(turns, instructions, entries=entries)
    for turn in turns:
        content: list[Block] = turn["content"]
        content.sort(key=lambda block: block["type"] != "tool_result")  # stable: moves tool results to the front
    if turns and turns[-1]["role"] == "assistant" and turns[-1]["content"][-1]["type"] == "text":
        turns[-1]["content"][-1]["text"] = turns[-1]["content"][-1]["text"].rstrip()
    return [{**turn, "content": _simplify(turn["content"])} for turn in turns]


def _add_instructions(turns: list[Block], instructions: list[Block], *, entries: bool) -> None:
    if not instructions:
        return
    follows_user = bool(turns) and turns[-1]["role"] == "user"
    # A turn that ends with a call to a server tool is paused.
    is_paused = bool(turns) and turns[-1]["content"][-1]["type"] in SERVER_CALLS
    if entries and (follows_user or is_paused):
        turns.append({"role": "system", "content": instructions})
        return
    tagged = [{**block, "text": f"<system>{block['text']}</system>"} for block in instructions]
    if follows_user:
        turns[-1]["content"] += tagged
    else:
        turns.append({"role": "user", "content": tagged})


def cache_control(metadata: Mapping[str, Any]) -> Block:
    match metadata.get("cache"):
        case None | False:
            return {}
        case True:
            return {"cache_control": {"type": "ephemeral"}}
        case ttl:
            return {"cache_control": {"type": "ephemeral", "ttl": ttl}}


def _mark_cached(message: Message, blocks: list[Block]) -> list[Block]:
    # Mark the last block that is not a thinking block, because thinking blocks cannot be marked.
    mark = cache_control(message.metadata)
    markable = [block for block in blocks if block["type"] not in THOUGHTS]
    if mark and markable:
        markable[-1] |= mark
    return blocks


def _blocks_of(message: Message, provider: str) -> list[Block]:
    match message.role:
        case "tool":
            return [_tool_result(message, provider)]
        case "assistant":
            return _assistant_blocks(message, provider)
        case "system":
            return _text_blocks(message)
        case _:
            return _user_blocks(message, provider)


def _tool_result(message: Message, provider: str) -> Block:
    content: Any = message.content
    if isinstance(content, dict):
        content = json_text(content)
    elif not isinstance(content, str):
        content = _user_blocks(message, provider)
    result: Block = {"type": "tool_result", "tool_use_id": _clean_id(message.tool_call_id or ""), "content": content}
    return {**result, "is_error": True} if message.metadata.get("is_error") else result


def _text_blocks(message: Message) -> list[Block]:
    return [block for block in _user_blocks(message, "") if block["type"] == "text"]


def _user_blocks(message: Message, provider: str) -> list[Block]:
    blocks: list[Block] = []
    for part in message.parts:
        match part:
            case TextPart() if part.text.strip():
                blocks.append({"type": "text", "text": part.text, **cache_control(part.metadata)})
            case ImagePart():
                blocks.append({"type": "image", "source": _image_source(part.image), **cache_control(part.metadata)})
            case FilePart(file=file):
                blocks.append(_file(file))
            case ProviderPart(provider=origin, data=data) if origin == provider:
                blocks.append(dict(data))
            case _:
                pass
    return blocks


def _file(file: Block) -> Block:
    media_type = mime_type_of(file)
    title = {"title": file["name"]} if file.get("name") else {}
    match file:
        case {"data": bytes(data)} if media_type == "application/pdf":
            text = Image.from_binary(data, media_type).to_base64()
            return {"type": "document", "source": {"type": "base64", "media_type": media_type, "data": text}, **title}
        case {"data": bytes(data)}:  # the API accepts every kind of text file as text/plain
            source = {"type": "text", "media_type": "text/plain", "data": data.decode()}
            return {"type": "document", "source": source, **title}
        case {"url": str(url)}:
            return {"type": "document", "source": {"type": "url", "url": url}, **title}
        case _:
            kind = "image" if media_type.startswith("image/") else "document"
            return {"type": kind, "source": {"type": "file", "file_id": file["file_id"]}}


def _assistant_blocks(message: Message, provider: str) -> list[Block]:
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
                blocks += _tool_call(calls.pop(id), provider)
            case ProviderPart(provider=origin, data=data) if origin == provider:
                blocks.append(dict(data))
            case _:
                pass
    return blocks + [block for call in calls.values() for block in _tool_call(call, provider)]


def _cite(blocks: list[Block], source: Mapping[str, Any]) -> None:
    # A citation belongs to the text before it.
    if source.get("type") in CITATIONS and blocks and blocks[-1]["type"] == "text":
        # The API sends `file_id`, but rejects it in a request.
        blocks[-1].setdefault("citations", []).append({k: v for k, v in source.items() if k != "file_id"})


def _thinking(part: ThinkingPart, provider: str) -> list[Block]:
    match part.provider_data:
        case {"provider": origin, "type": "redacted_thinking", "data": data} if origin == provider:
            return [{"type": "redacted_thinking", "data": data}]
        case {"provider": origin} if origin == provider and part.signature:
            return [{"type": "thinking", "thinking": part.text, "signature": part.signature}]
        case _:
            return []


def _tool_call(call: ToolCall, provider: str) -> list[Block]:
    own: Block = call.metadata.get(provider) or {}
    is_server = bool(call.metadata.get("server"))
    if is_server and (not own or call.metadata.get("error")):
        return []
    id = call.id if is_server else _clean_id(call.id)
    return [{"type": "tool_use", "id": id, "name": call.name, "input": sent_arguments(call), **own}]


def _clean_id(id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", id)


def _image_source(image: Image) -> Block:
    if image.source == "url":
        return {"type": "url", "url": image.data}
    media_type, _, data = image.to_data_uri().removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": media_type, "data": data}


def _simplify(blocks: list[Block]) -> Any:
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} else blocks

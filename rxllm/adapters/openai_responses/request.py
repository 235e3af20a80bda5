"""Convert a request to the JSON body of the Responses API.

Messages become input items:

1. Text and tool calls are sent without the server's ids. If an item had an id, the server would look for its own stored
   copy of the item.
2. For a thought from this provider, the original item is sent back. If the server does not store anything, the item's
   id is left out, and an item with neither content nor encrypted content is not sent. Neither is a thought at the end
   of a turn, since the server requires the item that it led to. A compaction is sent in the same way as a thought.
3. Parts from other providers are left out. So are calls to tools that those providers ran themselves.
4. Special tool calls, such as computer calls, are sent back in their original form. Their results are sent in the
   matching form. The result of a request for approval is the decision.

For files, see https://developers.openai.com/api/docs/guides/file-inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from rxllm.adapters._requests import (
    Carries,
    drop_last_thoughts,
    image_url,
    mime_type_of,
    name_of,
    response_format,
    select_parts,
    sent_arguments_text,
    with_tools,
)
from rxllm.adapters._sent_schemas import for_openai, object_schema
from rxllm.adapters.openai_responses.frames import APPROVAL, Item, as_item
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
    ToolCallPart,
    ValidationError,
)
from rxllm.values.json_text import json_text, read_arguments

_REASONERS = re.compile(r"o\d|gpt-5(?!.*chat)|gpt-[6-9]|codex|computer-use|grok-4")
"""Matches the names of models that can be asked for encrypted reasoning. The part before a slash is left out."""

_FILES = {f"{kind}{by}" for kind in ("image", "pdf", "text file", "file") for by in ("", " by url", " by id")}

CARRIES: Carries = {
    "system": {"text", "own part"} | _FILES,
    "user": {"text", "own part"} | _FILES,
    "assistant": {"text", "tool call", "own thinking", "own part"},
    "tool": {"text"} | _FILES,
}

_STATEFUL = ("previous_response_id", "conversation", "background")
_CACHE = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def responses_body(request: Request, *, provider: str = "openai") -> dict[str, Any]:
    """Return the JSON body for `request`.

    If ``stop`` or ``seed`` is set, the body contains it. OpenAI's own server rejects these fields, but other servers
    accept them.
    """
    request = select_parts(request, f"the Responses API of {provider}", provider, CARRIES)
    tools = [_tool(tool, provider) for tool in request.tools]
    options = with_tools(tools, request.options)
    is_stored = bool(options.get("store")) or any(options.get(name) for name in _STATEFUL)
    form = response_format(request)
    if form and form.get("strict"):
        form |= for_openai(form["schema"], strict=True)
    body: dict[str, Any] = {
        "model": request.model,
        "input": _input_items(request.messages, provider=provider, is_stored=is_stored),
        "stream": True,
        "store": None if is_stored else False,
        "include": ["reasoning.encrypted_content"] if _wants_thoughts(request) else None,
        "tools": tools or None,
        "tool_choice": _tool_choice(request, provider),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_output_tokens": request.max_tokens,
        "stop": list(request.stop) or None,
        "seed": request.seed,
        "reasoning": {"effort": request.reasoning_effort} if request.reasoning_effort else None,
        "text": {"format": form} if form else None,
    }
    for name, value in options.items():
        current = body.get(name)
        body[name] = {**current, **value} if isinstance(current, dict) and isinstance(value, dict) else value
    return {name: value for name, value in body.items() if value is not None}


COUNTED = (
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"),
    *("previous_response_id", "conversation", "truncation", "personality"),
)
"""The fields that ``/responses/input_tokens`` accepts."""


def count_body(request: Request, *, provider: str = "openai") -> dict[str, Any]:
    body = responses_body(request, provider=provider)
    return {name: body[name] for name in COUNTED if name in body}


def _wants_thoughts(request: Request) -> bool:
    wants_thoughts = bool(request.reasoning_effort) or bool(request.options.get("reasoning"))
    return wants_thoughts or _REASONERS.match((request.model or "").rpartition("/")[2]) is not None


def _tool(tool: Tool, provider: str) -> Item:
    own = as_item(tool.metadata.get(provider))
    if "type" in own:  # a whole definition; otherwise they are more fields of a function
        return {"name": tool.name, "description": tool.description, **own} if own["type"] == "custom" else own
    # `strict` is always sent, because by default the API rejects schemas that are not strict.
    form = for_openai(object_schema(tool.schema), strict=bool(tool.metadata.get("strict")))
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": form["schema"],
        "strict": form["strict"],
        **own,
    }


def _tool_choice(request: Request, provider: str) -> Any:
    choice = request.tool_choice
    if choice is None or isinstance(choice, dict) or choice in ("auto", "none", "required"):
        return choice
    chosen = next((tool for tool in request.tools if tool.name == choice), None)
    kind = as_item(chosen.metadata.get(provider)).get("type", "function") if chosen is not None else "function"
    return {"type": kind, "name": choice} if kind in ("function", "custom") else {"type": kind}


def _input_items(messages: Iterable[Message], *, provider: str, is_stored: bool = False) -> list[Item]:
    made: list[tuple[Message, list[Item]]] = []
    calls: dict[str, ToolCall] = {}
    for message in messages:
        match message.role:
            case "assistant":
                items = [*_assistant_items(message, provider, is_stored=is_stored)]
                calls |= {call.id: call for call in message.tool_calls}
            case "tool":
                items = [_result_item(message, calls.get(message.tool_call_id or ""), provider)]
            case _:
                items = [*_user_items(message)]
        made.append((message, items))
    drop_last_thoughts(made, lambda item: item.get("type") == "reasoning")
    return [item for _, items in made for item in items]


def _user_items(message: Message) -> Iterable[Item]:
    opaque = [part for part in message.parts if isinstance(part, ProviderPart) and _file_id(part) is None]
    yield from (part.data for part in opaque)  # for example, an ``mcp_approval_response``
    is_plain = isinstance(message.content, str) or not any(_is_special(part) for part in message.parts)
    content = _to_text(message) if is_plain else _contents(message)
    if content or not opaque:
        yield {"role": message.role, "content": content}


def _is_special(part: Any) -> bool:
    is_file = isinstance(part, ImagePart | FilePart) or _file_id(part) is not None
    return is_file or (isinstance(part, TextPart) and bool(part.metadata.get("cache")))


def _file_id(part: Any) -> str | None:
    """Return the file's id if `part` is a Chat Completions ``file`` part, and None otherwise."""
    match part:
        case ProviderPart(data={"type": "file", "file": {"file_id": str(id)}}):
            return id
        case _:
            return None


def _contents(message: Message) -> list[Item]:
    contents = (_content(part) for part in message.parts)
    return [content for content in contents if content is not None]


def _content(part: Any) -> Item | None:
    match part:
        case TextPart():
            content: Item = {"type": "input_text", "text": part.text}
        case ImagePart():
            content = {"type": "input_image", "image_url": image_url(part.image), "detail": part.detail}
        case FilePart():
            return _file(part.file)
        case _:
            id = _file_id(part)
            return None if id is None else {"type": "input_file", "file_id": id}
    return content | _CACHE if part.metadata.get("cache") else content


def _file(file: Item) -> Item:
    mime_type = mime_type_of(file)
    match file:
        case {"data": bytes(data)}:
            uri = Image.from_binary(data, mime_type).to_data_uri()
            return {"type": "input_file", "filename": name_of(file), "file_data": uri}
        case {"url": str(url)}:
            return {"type": "input_file", "file_url": url}
        case _ if mime_type.startswith("image/"):
            return {"type": "input_image", "file_id": file["file_id"], "detail": "auto"}
        case _:
            return {"type": "input_file", "file_id": file["file_id"]}


def _assistant_items(message: Message, provider: str, *, is_stored: bool) -> Iterable[Item]:
    calls = {call.id: call for call in message.tool_calls if not call.metadata.get("server")}
    texts: list[str] = []
    phase: Item = {}

    def take_text() -> Iterable[Item]:
        if texts:
            # OpenAI also accepts a shorter form, but some servers require this one.
            content: list[Item] = [{"type": "output_text", "text": "".join(texts), "annotations": []}]
            yield {"type": "message", "role": "assistant", "content": content, **phase}
            texts.clear()

    for part in message.parts:
        match part:
            case TextPart():
                texts.append(part.text)
            case ProviderPart(provider=owner, data={"type": "message", "phase": name}) if owner == provider:
                yield from take_text()
                phase = {"phase": name}
            case _:
                items = list(_part_items(part, calls, provider, is_stored=is_stored))
                if items:
                    yield from take_text()
                yield from items
    yield from take_text()
    for call in calls.values():
        yield _call_item(call, provider)


def _part_items(part: Any, calls: dict[str, ToolCall], provider: str, *, is_stored: bool) -> Iterable[Item]:
    match part:
        case ThinkingPart(provider_data={"provider": owner, "item": item}) if owner == provider:
            thought = cast(Item, item)
            if thought.get("encrypted_content") or thought.get("content") or is_stored:
                yield {name: value for name, value in thought.items() if is_stored or name != "id"}
        case ToolCallPart(id=id) if id in calls:
            yield _call_item(calls.pop(id), provider)
        case ProviderPart(provider=owner, data={"type": "compaction"} as item) if owner == provider:
            names = ("type", "encrypted_content", *(("id",) if is_stored else ()))
            yield {name: item[name] for name in names if name in item}
        case ProviderPart(provider=owner, data=data) if owner == provider:
            yield data
        case _:
            pass


def _call_item(call: ToolCall, provider: str) -> Item:
    item = _original_item(call, provider)
    if item.get("type") == APPROVAL:
        return item
    if item.get("type", "function_call") != "function_call":
        return {**item, "call_id": call.id}
    arguments = sent_arguments_text(call)
    return {**item, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _original_item(call: ToolCall | None, provider: str) -> Item:
    if call is None or call.metadata.get("provider") != provider:
        return {}
    return cast(Item, call.metadata.get("item") or {})


def _result_item(message: Message, call: ToolCall | None, provider: str) -> Item:
    item = _original_item(call, provider)
    kind = str(item.get("type", "function_call"))
    fields = message.content if isinstance(message.content, dict) else {}
    has_files = any(isinstance(part, ImagePart | FilePart) for part in message.parts)
    if has_files and kind not in ("function_call", "custom_tool_call"):
        fault = f"have a file in the result of {message.tool_call_id!r}, but a {kind} accepts only text; omit the file"
        raise ValidationError("invalid_request", errors=[(("messages",), fault)])
    match kind:
        case "function_call" | "custom_tool_call":
            caller = {"caller": item["caller"]} if "caller" in item else {}
            output = _contents(message) if has_files else _to_text(message)
            return {"type": f"{kind}_output", "call_id": message.tool_call_id, "output": output, **caller}
        case "computer_call" if fields:
            return {"type": "computer_call_output", "call_id": message.tool_call_id, "output": fields}
        case "local_shell_call":
            return {"type": "local_shell_call_output", "id": message.tool_call_id, "output": _to_text(message)}
        case "mcp_approval_request":
            return {"type": "mcp_approval_response", "approval_request_id": item["id"], **_decision(message)}
        case "tool_search_call":
            return {"type": "tool_search_output", "call_id": message.tool_call_id, "execution": "client", **fields}
        case _:
            output_fields = fields or _output_fields(kind, message.text)
            return {"type": f"{kind}_output", "call_id": message.tool_call_id, **output_fields}


def _decision(message: Message) -> Item:
    """Return the answer to a request for approval. Anything but ``{"approve": true}`` denies the call."""
    answer = message.content if isinstance(message.content, dict) else read_arguments(message.text) or {}
    if answer.get("approve") is True:
        return {"approve": True}
    reason = answer.get("reason") or answer.get("error") or ("" if answer else message.text)
    return {"approve": False, **({"reason": str(reason)} if reason else {})}


def _output_fields(kind: str, text: str) -> Item:
    match kind:
        case "apply_patch_call":
            return {"status": "completed", "output": text}
        case "shell_call":
            return {"output": [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}
        case _:
            return {"output": text}


def _to_text(message: Message) -> str:
    return json_text(message.content) if isinstance(message.content, dict) else message.text

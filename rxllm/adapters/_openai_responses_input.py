"""Messages to the input items of the Responses API.

1. Texts and calls go without the ids that the server gave them: an id is looked up in what the server has stored, or
   asks for the reasoning that it came with, and a thread may hold neither.
2. What the model thought goes back as the item that it came as, if it was this provider that thought it and the item
   says something: its ciphertext or its text. Without storage it goes without its id, for the same reason.
3. ``ProviderPart``s of this provider go back as the items they are; those of others are left out, and so are others'
   calls of tools that they ran themselves.
4. A call goes back in the form in which it came (function, custom, computer, ...), and so does its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from rxllm.values import (
    FilePart,
    Image,
    ImagePart,
    Message,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
)
from rxllm.values._json import json_text

Item = dict[str, Any]

_CACHE = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def input_items(messages: Iterable[Message], *, provider: str, stored: bool = False) -> list[Item]:
    """The items that say `messages`; `stored` is whether the server keeps what it has said."""
    items: list[Item] = []
    calls: dict[str, ToolCall] = {}
    for message in messages:
        match message.role:
            case "assistant":
                items += _answer(message, provider, stored=stored)
                calls |= {call.id: call for call in message.tool_calls}
            case "tool":
                items.append(_result(message, calls.get(message.tool_call_id or ""), provider))
            case _:
                items += _question(message, provider)
    return items


def _question(message: Message, provider: str) -> Iterable[Item]:
    given = [part for part in message.parts if isinstance(part, ProviderPart)]
    if given:  # an answer to what only the provider understands, such as an ``mcp_approval_response``
        yield from (part.data for part in given if part.provider == provider)
    plain = isinstance(message.content, str) or not any(_is_special(part) for part in message.parts)
    content = _to_text(message) if plain else _contents(message)
    if content or not given:
        yield {"role": message.role, "content": content}


def _is_special(part: Any) -> bool:
    return isinstance(part, ImagePart | FilePart) or (isinstance(part, TextPart) and bool(part.metadata.get("cache")))


def _contents(message: Message) -> list[Item]:
    contents = (_content(part) for part in message.parts)
    return [content for content in contents if content is not None]


def _content(part: Any) -> Item | None:
    match part:
        case TextPart():
            said = {"type": "input_text", "text": part.text}
            return said | _CACHE if part.metadata.get("cache") else said
        case ImagePart():
            shown = {"type": "input_image", "image_url": _url(part.image), "detail": part.detail}
            return shown | _CACHE if part.metadata.get("cache") else shown
        case FilePart():
            return _file(part.file)
        case _:
            return None


def _url(image: Image) -> str:
    return str(image.data) if image.source == "url" else image.to_data_uri()


def _file(file: Item) -> Item:
    mime_type = str(file.get("mime_type") or "application/octet-stream")
    data = file.get("data")
    url = Image.from_binary(data, mime_type).to_data_uri() if isinstance(data, bytes) else str(file.get("url"))
    if mime_type.startswith("image/"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if not isinstance(data, bytes):
        return {"type": "input_file", "file_url": url}
    return {"type": "input_file", "filename": str(file.get("name") or "file"), "file_data": url}


def _answer(message: Message, provider: str, *, stored: bool) -> Iterable[Item]:
    calls = {call.id: call for call in message.tool_calls if not call.metadata.get("server")}
    texts: list[str] = []
    phase: Item = {}

    def said() -> Iterable[Item]:
        if texts:
            # The long form, which smaller servers than OpenAI's ask for.
            content: list[Item] = [{"type": "output_text", "text": "".join(texts), "annotations": []}]
            yield {"type": "message", "role": "assistant", "content": content, **phase}
            texts.clear()

    for part in message.parts:
        match part:
            case TextPart():
                texts.append(part.text)
            case ProviderPart(provider=of, data={"type": "message", "phase": named}) if of == provider:
                yield from said()
                phase = {"phase": named}
            case _:
                items = list(_item(part, calls, provider, stored=stored))
                if items:
                    yield from said()
                yield from items
    yield from said()
    for call in calls.values():
        yield _call(call, provider)


def _item(part: Any, calls: dict[str, ToolCall], provider: str, *, stored: bool) -> Iterable[Item]:
    match part:
        case ThinkingPart(provider_data={"provider": of, "item": item}) if of == provider:
            thought = cast(Item, item)
            if thought.get("encrypted_content") or thought.get("content") or stored:
                yield {name: held for name, held in thought.items() if stored or name != "id"}
        case ToolCallPart(id=id) if id in calls:
            yield _call(calls.pop(id), provider)
        case ProviderPart(provider=of, data=data) if of == provider:
            yield data
        case _:
            pass


def _call(call: ToolCall, provider: str) -> Item:
    item = _own(call, provider)
    if item.get("type", "function_call") != "function_call":
        return {**item, "call_id": call.id}
    arguments = call.raw_arguments or json_text(call.arguments)
    return {**item, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _own(call: ToolCall | None, provider: str) -> Item:
    """The call's item as this provider sent it, as far as it was kept."""
    if call is None or call.metadata.get("provider") != provider:
        return {}
    return cast(Item, call.metadata.get("item") or {})


def _result(message: Message, call: ToolCall | None, provider: str) -> Item:
    item = _own(call, provider)
    kind = str(item.get("type", "function_call"))
    content = message.content
    given = content if isinstance(content, dict) else {}
    match kind:
        case "function_call" | "custom_tool_call":
            told = {"caller": item["caller"]} if "caller" in item else {}
            output = _contents(message) if any(isinstance(p, ImagePart) for p in message.parts) else _to_text(message)
            return {"type": f"{kind}_output", "call_id": message.tool_call_id, "output": output, **told}
        case "computer_call" if given:
            return {"type": "computer_call_output", "call_id": message.tool_call_id, "output": given}
        case "local_shell_call":
            return {"type": "local_shell_call_output", "id": message.tool_call_id, "output": _to_text(message)}
        case "tool_search_call":
            return {"type": "tool_search_output", "call_id": message.tool_call_id, "execution": "client", **given}
        case _:
            said = given or _output_of(kind, message.text)
            return {"type": f"{kind}_output", "call_id": message.tool_call_id, **said}


def _output_of(kind: str, text: str) -> Item:
    match kind:
        case "apply_patch_call":
            return {"status": "completed", "output": text}
        case "shell_call":
            return {"output": [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}
        case _:
            return {"output": text}


def _to_text(message: Message) -> str:
    return json_text(message.content) if isinstance(message.content, dict) else message.text

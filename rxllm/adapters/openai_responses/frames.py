"""The frames and items of the Responses API, and functions that read items.

An item keeps all of the provider's fields, so that it can be sent back unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.values.json_text import json_text, read_json
from rxllm.wire.frames import decode_base64

Item = dict[str, Any]
"""An output item, or a part of an item, as parsed JSON."""

APPROVAL = "mcp_approval_request"
"""The type of the item that asks for approval of a call to an MCP server."""

_NOTHING = msgspec.Raw()


class Frame(msgspec.Struct, gc=False):
    """A frame of the stream. `item` and `response` are not parsed until they are needed."""

    type: str = ""
    output_index: int | None = None
    content_index: int = 0
    summary_index: int = 0
    item_id: str | None = None
    command_index: int = 0
    command: str | None = None
    delta: str | Item | None = None
    item: msgspec.Raw = _NOTHING
    response: msgspec.Raw = _NOTHING
    copilot_usage: Item | None = None  # costs from GitHub Copilot


USAGE = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
    "total_tokens": ("total_tokens",),
    "cached_input_tokens": ("input_tokens_details.cached_tokens",),
    "cache_write_input_tokens": ("input_tokens_details.cache_write_tokens",),
    "reasoning_tokens": ("output_tokens_details.reasoning_tokens",),
    "input_cost": ("cost_details.upstream_inference_input_cost",),
    "output_cost": ("cost_details.upstream_inference_output_cost",),
    "total_cost": ("cost", "gateway.cost"),
}
"""The names that servers use for each field of `Usage`."""


def item_id(item: Item) -> str:
    return str(item.get("id") or item.get("call_id") or "")


def is_call(item: Item) -> bool:
    kind = str(item.get("type"))
    return kind.endswith("_call") or kind in ("mcp_list_tools", "program", APPROVAL)


def is_server(item: Item, offered: Collection[str]) -> bool:
    """Return whether the provider itself runs the call.

    xAI reports its own searches as calls to custom tools that the request did not offer.
    """
    match item:
        case {"type": "function_call" | "computer_call" | "local_shell_call" | "apply_patch_call"}:
            return False
        case {"type": "mcp_approval_request"}:  # the provider waits for an answer
            return False
        case {"type": "custom_tool_call"}:
            return call_name(item) not in offered
        case {"type": "shell_call"}:
            return str(as_item(item.get("environment")).get("type")).startswith("container")
        case {"type": "tool_search_call"}:
            return item.get("execution") != "client"
        case _:
            return True


def call_name(item: Item) -> str:
    """Return the name of the tool or, if the item has none, the item's type without ``_call``."""
    name = item.get("name")
    return name if name and isinstance(name, str) else str(item.get("type")).removesuffix("_call")


def call_arguments(item: Item) -> str:
    match item:
        case {"arguments": str(text)}:
            return text
        case {"arguments": dict()} | {"operation": dict()} | {"action": dict()}:
            fields = as_item(item.get("arguments") or item.get("operation") or item.get("action"))
            # The commands come first, because they are streamed before the other fields are known.
            first = {"commands": fields["commands"]} if "commands" in fields else {}
            arguments = first | {name: value for name, value in fields.items() if name != "sources"}
        case _:
            names = ("input", "code", "queries", "actions", "server_label")
            arguments = {name: item[name] for name in names if item.get(name) is not None}
            if item.get("revised_prompt"):
                arguments["prompt"] = item["revised_prompt"]
    return json_text(arguments)


def call_sources(item: Item) -> Iterable[Item]:
    """Return the results of a search. They are sent only if the request's ``include`` option asks for them."""
    return as_items(as_item(item.get("action")).get("sources") or item.get("results"))


def call_files(item: Item) -> Iterable[Item]:
    if item.get("type") == "image_generation_call" and item.get("result"):
        details = {name: item[name] for name in ("id", "revised_prompt", "size") if item.get(name)}
        yield {**image_of(str(item["result"]), item), **details}
    for output in as_items(item.get("outputs")):
        if output.get("type") == "image" and output.get("url"):
            yield {"mime_type": "image/*", "url": output["url"]}


def image_of(text: str, fields: Mapping[str, Any]) -> Item:
    return {"mime_type": f"image/{fields.get('output_format') or 'png'}", "data": decode_base64(text)}


def source_key(source: Item) -> str:
    """Return a key that is the same each time the source is repeated."""
    target = source.get("url") or source.get("file_id")
    return repr([target, *map(source.get, ("start_index", "end_index", "index"))] if target else source)


def to_item(raw: msgspec.Raw) -> Item:
    return as_item(read_json(raw) if raw else None)


def as_item(value: Any) -> Item:
    return cast(Item, value) if isinstance(value, dict) else {}


def as_items(value: Any) -> list[Item]:
    return [as_item(entry) for entry in cast(list[Any], value)] if isinstance(value, list) else []

"""The frames and items of the Responses API as far as they are read, and what is in its usage, calls, images.

An item is kept as the provider sent it: what nobody reads today goes back to the provider all the same.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.values import FinishReason

FINISH_REASONS: dict[str, FinishReason] = {
    "completed": "stop",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "failed": "error",
    "cancelled": "error",
}

USAGE = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
    "total_tokens": ("total_tokens",),
    "cached_input_tokens": ("input_tokens_details.cached_tokens",),
    "cache_write_input_tokens": ("input_tokens_details.cache_write_tokens",),
    "reasoning_tokens": ("output_tokens_details.reasoning_tokens",),
    "input_cost": ("cost_details.upstream_inference_input_cost",),
    "output_cost": ("cost_details.upstream_inference_output_cost",),
    "total_cost": ("cost",),
}

Item = dict[str, Any]
"""An item of the output, or a part of one, as parsed JSON."""

_NOTHING = msgspec.Raw()


class Frame(msgspec.Struct, gc=False):
    """Any frame; `item` and `response` are parsed only where they are read."""

    type: str = ""
    output_index: int | None = None
    content_index: int = 0
    summary_index: int = 0
    item_id: str | None = None
    delta: str | Item | None = None
    item: msgspec.Raw = _NOTHING
    response: msgspec.Raw = _NOTHING


class Slot:
    """An item while it is streamed.

    `said` are the parts that deltas have said, by their kind and index; `tool` is a call's name and `call_id` the id
    of its events, `field` the argument whose text is open; `about` is the call that the item is about.
    """

    def __init__(self, number: int, item: Item) -> None:
        self.number = number
        self.id = item_id(item)
        self.kind = str(item["type"])
        self.said: set[tuple[str, int]] = set()
        self.done = False
        self.wire_id = str(item.get("call_id") or self.id)
        self.about: Slot | None = None
        self.tool = ""
        self.call_id = ""
        self.server = False
        self.field = ""


def item_id(item: Item) -> str:
    """The id that frames name the item by."""
    return str(item.get("id") or item.get("call_id") or "")


def is_call(item: Item) -> bool:
    """Whether the item asks for something to be done, rather than saying something or being a result."""
    kind = str(item.get("type"))
    return kind.endswith("_call") or kind in ("mcp_list_tools", "program")


def is_server(item: Item, offered: Collection[str]) -> bool:
    """Whether the provider itself does what the call asks for. `offered` are the names of the request's tools.

    xAI's own searches come as custom tool calls too, of tools that nobody offered.
    """
    match item:
        case {"type": "function_call" | "computer_call" | "local_shell_call" | "apply_patch_call"}:
            return False
        case {"type": "custom_tool_call"}:
            return str(item.get("name")) not in offered
        case {"type": "shell_call"}:
            return str(as_item(item.get("environment")).get("type")).startswith("container")
        case {"type": "tool_search_call"}:
            return item.get("execution") != "client"
        case _:
            return True


def call_name(item: Item) -> str:
    """The tool's name; of a built-in tool, the item's type without ``_call``."""
    return str(item.get("name") or "") or str(item.get("type")).removesuffix("_call")


def call_arguments(item: Item) -> str:
    """The JSON text of a call's arguments. Free text is one argument: ``{"input": ...}``, ``{"code": ...}``."""
    match item:
        case {"arguments": str(text)}:
            return text
        case {"arguments": dict()} | {"operation": dict()} | {"action": dict()}:
            given = as_item(item.get("arguments") or item.get("operation") or item.get("action"))
            held = {name: each for name, each in given.items() if name != "sources"}
        case _:
            names = ("input", "code", "queries", "actions", "server_label")
            held = {name: item[name] for name in names if item.get(name) is not None}
            if item.get("revised_prompt"):
                held["prompt"] = item["revised_prompt"]
    return msgspec.json.encode(held).decode()


def call_sources(item: Item) -> Iterable[Item]:
    """The results of a search, where the request asked for them with `include`."""
    return as_items(as_item(item.get("action")).get("sources") or item.get("results"))


def call_files(item: Item) -> Iterable[Item]:
    """The images that a call has made."""
    if item.get("type") == "image_generation_call" and item.get("result"):
        named = {name: item[name] for name in ("id", "revised_prompt", "size") if item.get(name)}
        yield {**image_of(str(item["result"]), item), **named}
    for output in as_items(item.get("outputs")):
        if output.get("type") == "image" and output.get("url"):
            yield {"mime_type": "image/*", "url": output["url"]}


def image_of(text: str, described: Mapping[str, Any]) -> Item:
    """The image of some base64 text."""
    try:
        data = base64.b64decode(text)
    except binascii.Error:
        data = b""
    return {"mime_type": f"image/{described.get('output_format') or 'png'}", "data": data}


def source_key(source: Item) -> str:
    """What makes a citation the same one when it is said again."""
    named = source.get("url") or source.get("file_id")
    return repr([named, *map(source.get, ("start_index", "end_index", "index"))] if named else source)


def to_item(raw: msgspec.Raw) -> Item:
    """The item, or the response, that a frame holds; empty where there is none."""
    return as_item(msgspec.json.decode(raw) if raw else None)


def as_item(held: Any) -> Item:
    """What should be an object; empty where it is none."""
    return cast(Item, held) if isinstance(held, dict) else {}


def as_items(held: Any) -> list[Item]:
    """What should be a list of objects."""
    return [as_item(each) for each in cast(list[Any], held)] if isinstance(held, list) else []

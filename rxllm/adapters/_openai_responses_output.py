"""What the items of a response's output say, in the order in which it is said.

1. The index names the item. Ids do not: some servers invent one per frame.
2. An item is what ``response.output_item.done`` says; ciphertext is taken from there alone, for it differs from frame
   to frame. What no delta said is said then, or at the end, for servers that leave out deltas or whole items.
3. A text or a thought is a block of its own, and one that goes on after another began is a further block: nothing is
   overwritten.
4. What the provider does by itself is a call with the metadata ``{"server": True}``, and the whole item, result and
   all, is a part of the message that goes back to this provider.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

import msgspec

from rxllm.adapters._openai_responses_frames import (
    Frame,
    Item,
    as_item,
    call_arguments,
    call_files,
    call_name,
    call_sources,
    image_of,
    is_call,
    is_server,
    source_key,
    to_item,
)
from rxllm.events import ToolProgress
from rxllm.values import ProviderPart
from rxllm.wire.blocks import Blocks

Key = tuple[str, int, int]
"""Which block: its kind, the item's index, the part's index."""


class _Call:
    """A call while it is streamed; `said` is whether its arguments have begun, `field` the one that is open."""

    def __init__(self, index: int, id: str, item: Item, *, server: bool) -> None:
        self.index = index
        self.id = id
        self.wire_id = item.get("call_id")
        self.name = call_name(item)
        self.server = server
        self.said = False
        self.field = ""


class Output:
    """The items of one response; `offered` are the names of the tools that the request has."""

    def __init__(self, blocks: Blocks, provider: str, offered: Collection[str]) -> None:
        self.provider = provider
        self._blocks = blocks
        self._offered = offered
        self._calls: dict[int, _Call] = {}
        self._results: dict[int, _Call] = {}  # the calls of which an item is the result
        self._ids: dict[int, str] = {}  # of the items by index, as they were first given
        self._done: set[int] = set()
        self._done_ids: set[str] = set()
        self._open: Key | None = None  # the block that the last delta was of
        self._block = ""  # its id
        self._said: dict[Key, int] = {}  # how often each block was begun
        self._sources: set[Any] = set()

    def finish(self, items: Iterable[Item]) -> None:
        """The output as the end of the stream gives it: what is not known yet is read now."""
        for index, item in enumerate(items):
            if index not in self._done and str(item.get("id")) not in self._done_ids and item.get("type"):
                self._end_item(index, item)

    def progress(self, frame: Frame, said: Item) -> bool:
        """Whether `said` is about a call, so that it is now said as its progress, in the provider's words."""
        index = self._index(frame)
        call = self._calls.get(index) or self._results.get(index)
        if call is None or not frame.type.startswith("response."):
            return False
        known = ("sequence_number", "item_id", "output_index", "obfuscation", "partial_image_b64")
        data = {name: held for name, held in said.items() if name not in known}
        if "partial_image_b64" in said:
            data |= image_of(str(said["partial_image_b64"]), said)
        self._open = None
        self._blocks.event(ToolProgress(call.id, call.name, data))
        return True

    def _index(self, frame: Frame) -> int:
        if frame.output_index is not None:
            return frame.output_index
        return next((i for i, id in self._ids.items() if id == frame.item_id), max(self._ids, default=0))

    def _to(self, key: Key) -> str:
        """The id of the block that goes on, or begins, with `key`."""
        if key == self._open:
            return self._block
        kind, index, part = key
        times = self._said[key] = self._said.get(key, 0) + 1
        names = [self._ids.get(index) or f"{index}", f"{part}" if part else "", f"+{times - 1}" if times > 1 else ""]
        if kind == "content" and ("summary", index, part) in self._said:
            names.insert(1, kind)
        self._open, self._block = key, ".".join(name for name in names if name)
        return self._block

    def on_text(self, frame: Frame, data: bytes) -> None:
        if isinstance(frame.delta, str) and frame.delta:
            self._blocks.text(frame.delta, self._to(("text", self._index(frame), frame.content_index)))

    def on_refusal(self, frame: Frame, data: bytes) -> None:
        if isinstance(frame.delta, str) and frame.delta:
            self._blocks.refusal(frame.delta, self._to(("text", self._index(frame), frame.content_index)))

    def on_summary(self, frame: Frame, data: bytes) -> None:
        if isinstance(frame.delta, str) and frame.delta:
            self._blocks.thinking(frame.delta, self._to(("summary", self._index(frame), frame.summary_index)))

    def on_thought(self, frame: Frame, data: bytes) -> None:
        if isinstance(frame.delta, str) and frame.delta:
            self._blocks.thinking(frame.delta, self._to(("content", self._index(frame), frame.content_index)))

    def on_text_done(self, frame: Frame, data: bytes) -> None:
        if self._open == ("text", self._index(frame), frame.content_index):
            self._close_block()

    def _close_block(self) -> None:
        self._open = None
        self._blocks.close_block()

    def on_annotation(self, frame: Frame, data: bytes) -> None:
        self._add_sources([msgspec.json.decode(data).get("annotation")])

    def _add_sources(self, sources: Iterable[Any]) -> None:
        for source in sources:
            named = as_item(source)
            key = source_key(named)
            if named and key not in self._sources:
                self._sources.add(key)
                self._blocks.source(named)

    def on_arguments(self, frame: Frame, data: bytes) -> None:
        call = self._calls.get(self._index(frame))
        if call is not None and isinstance(frame.delta, str) and frame.delta:
            call.said = True
            self._blocks.call(call.index, None, None, frame.delta)

    def on_input(self, frame: Frame, data: bytes) -> None:
        self._on_free_text("input", frame)

    def on_code(self, frame: Frame, data: bytes) -> None:
        self._on_free_text("code", frame)

    def _on_free_text(self, field: str, frame: Frame) -> None:
        # Text that is no JSON is streamed as the JSON of an object with this one field.
        call = self._calls.get(self._index(frame))
        if call is not None and isinstance(frame.delta, str) and frame.delta:
            piece = msgspec.json.encode(frame.delta).decode()[1:-1]
            self._blocks.call(call.index, None, None, piece if call.said else f'{{"{field}":"{piece}')
            call.said, call.field = True, field

    def on_item_added(self, frame: Frame, data: bytes) -> None:
        item = to_item(frame.item)
        index = frame.output_index if frame.output_index is not None else len(self._ids)
        if item.get("type"):
            self._begin(index, item)

    def _begin(self, index: int, item: Item) -> None:
        self._ids[index] = str(item.get("id") or "")
        if is_call(item):
            server = is_server(item, self._offered)
            self._open = None
            wire_id = str(item.get("call_id") or item.get("id") or "")
            self._blocks.call(index, wire_id, call_name(item), None, {"server": True} if server else {})
            self._calls[index] = _Call(index, self._blocks.calls.id_of(index) or wire_id, item, server=server)
        elif item.get("call_id"):
            of = next((call for call in self._calls.values() if call.wire_id == item["call_id"]), None)
            if of is not None:
                self._results[index] = of
        elif item.get("type") == "message" and item.get("phase"):
            # The provider wants to be told again which of its messages were the answer.
            self._close_block()
            self._blocks.part("phase", ProviderPart(self.provider, {"type": "message", "phase": item["phase"]}))

    def on_item_done(self, frame: Frame, data: bytes) -> None:
        item = to_item(frame.item)
        if item.get("type"):
            self._end_item(self._index_of(frame, item), item)

    def _index_of(self, frame: Frame, item: Item) -> int:
        if frame.output_index is not None:
            return frame.output_index
        return next((i for i, id in self._ids.items() if id == item.get("id")), len(self._ids))

    def _end_item(self, index: int, item: Item) -> None:
        if index not in self._ids:
            self._begin(index, item)
        self._done.add(index)
        self._done_ids.add(str(item.get("id")))
        match item["type"]:
            case "message":
                self._end_message(index, item)
            case "reasoning":
                self._end_thinking(index, item)
            case _ if index in self._calls:
                self._end_call(self._calls[index], item)
            case kind:
                self._close_block()
                self._blocks.part(kind, ProviderPart(self.provider, item))

    def _end_message(self, index: int, item: Item) -> None:
        for place, part in enumerate(cast(list[Item], item.get("content") or [])):
            key = ("text", index, place)
            match part:
                case {"type": "output_text", "text": str(text)} if key not in self._said:
                    self._blocks.text(text, self._to(key))
                case {"type": "refusal", "refusal": str(text)} if key not in self._said:
                    self._blocks.refusal(text, self._to(key))
                case {"type": "output_text" | "refusal"}:
                    pass
                case _:
                    self._blocks.raw("content", part)
            self._add_sources(part.get("annotations") or ())
        self._close_block()

    def _end_thinking(self, index: int, item: Item) -> None:
        for kind in ("summary", "content"):
            for place, part in enumerate(cast(list[Item], item.get(kind) or [])):
                if (kind, index, place) not in self._said:
                    self._blocks.thinking(str(part.get("text") or ""), self._to((kind, index, place)))
        if item.get("encrypted_content") or item.get("summary") or item.get("content"):
            goes_on = self._open is not None and self._open[0] in ("summary", "content") and self._open[1] == index
            id = self._block if goes_on else self._to(("summary", index, len(item.get("summary") or ())))
            self._blocks.sign(None, {"provider": self.provider, "item": item}, id)
        self._close_block()

    def _end_call(self, call: _Call, item: Item) -> None:
        metadata: Item = {}
        if not call.server and item["type"] != "function_call":
            metadata = {"provider": self.provider, "item": item}
        elif item["type"] == "function_call":
            told = {name: item[name] for name in ("namespace", "caller") if item.get(name)}
            metadata = {"provider": self.provider, "item": {"type": "function_call", **told}} if told else {}
        rest = call_arguments(item) if not call.said else '"}' if call.field else None
        self._blocks.call(call.index, None, None, rest, metadata)
        self._blocks.complete_call(call.index)
        self._open = None
        if call.server:
            self._blocks.part(item["type"], ProviderPart(self.provider, item))
        self._add_sources(call_sources(item))
        for file in call_files(item):
            self._blocks.file(file)


HANDLERS: dict[str, Callable[[Output, Frame, bytes], None]] = {
    "response.output_item.added": Output.on_item_added,
    "response.output_item.done": Output.on_item_done,
    "response.output_text.delta": Output.on_text,
    "response.output_text.done": Output.on_text_done,
    "response.output_text.annotation.added": Output.on_annotation,
    "response.refusal.delta": Output.on_refusal,
    "response.refusal.done": Output.on_text_done,
    "response.reasoning_summary_text.delta": Output.on_summary,
    "response.reasoning_text.delta": Output.on_thought,
    "response.function_call_arguments.delta": Output.on_arguments,
    "response.mcp_call_arguments.delta": Output.on_arguments,
    "response.custom_tool_call_input.delta": Output.on_input,
    "response.code_interpreter_call_code.delta": Output.on_code,
}

SILENT = frozenset(
    {
        "response.content_part.added",
        "response.content_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
        "response.function_call_arguments.done",
        "response.mcp_call_arguments.done",
        "response.custom_tool_call_input.done",
        "response.code_interpreter_call_code.done",
        "keepalive",
        "response.keepalive",
        "ping",
    }
)
"""The frames that say nothing new."""

"""What the items of a response's output say, in the order in which it is said.

1. A frame belongs to the item of its id, or, where that id is new, to the latest item of its index: some servers
   invent an id per frame, others say index 0 of everything.
2. An item is what ``response.output_item.done`` says; ciphertext is taken from there alone, for it differs from frame
   to frame. What no delta said is said then, or at the end, for servers that leave out deltas or whole items.
3. A text or a thought is a block of its own, and one that goes on after another began is a further block: nothing is
   overwritten. Where parts are announced, an index that was not announced is not another part.
4. What the provider does by itself is a call with the metadata ``{"server": True}``, and the whole item, result and
   all, is a part of the message that goes back to this provider.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from rxllm.adapters._openai_responses_frames import (
    Frame,
    Item,
    Slot,
    as_item,
    as_items,
    call_arguments,
    call_files,
    call_name,
    call_sources,
    image_of,
    is_call,
    is_server,
    item_id,
    source_key,
    to_item,
)
from rxllm.events import ToolProgress
from rxllm.values import ProviderPart
from rxllm.values._json import json_text, read_json
from rxllm.wire.blocks import Blocks


class Output:
    """The items of one response; `offered` are the names of the tools that the request has."""

    def __init__(self, blocks: Blocks, provider: str, offered: Collection[str]) -> None:
        self.provider = provider
        self._blocks = blocks
        self._offered = offered
        self._slots: list[Slot] = []
        self._by_id: dict[str, Slot] = {}
        self._by_index: dict[int, Slot] = {}
        self._calls: dict[str, Slot] = {}  # by their wire ids, the first of each
        self._open: tuple[str, int, int] | None = None  # the block of the last delta: its kind, slot and part
        self._block = ""  # its id
        self._begun: Counter[str] = Counter()  # the blocks, by the first part of their ids
        self._sources: set[str] = set()

    def finish(self, items: Iterable[Item]) -> None:
        """The output as the end of the stream gives it: items that are not known yet are read now."""
        known = Counter(slot.kind for slot in self._slots if slot.done)
        for index, item in enumerate(items):
            kind = str(item.get("type"))
            known[kind] -= 1
            if known[kind] < 0 and "type" in item:
                slot = self._by_id.get(item_id(item)) or self._by_index.get(index)
                fits = slot is not None and slot.kind == kind and not slot.done
                self._end_item(slot if slot is not None and fits else self._begin(index, item), item)

    def progress(self, frame: Frame, said: Item) -> bool:
        """Whether `said` is about a call, so that it is now said as its progress, in the provider's words."""
        slot = self._slot(frame)
        call = slot.about if slot is not None else None
        if call is None or not frame.type.startswith("response."):
            return False
        known = ("sequence_number", "item_id", "output_index", "obfuscation", "partial_image_b64")
        data = {name: held for name, held in said.items() if name not in known}
        if "partial_image_b64" in said:
            data |= image_of(str(said["partial_image_b64"]), said)
        self._open = None
        self._blocks.event(ToolProgress(call.call_id, call.tool, data))
        return True

    def _slot(self, frame: Frame) -> Slot | None:
        slot = self._by_id.get(frame.item_id) if frame.item_id else None
        if slot is not None:
            return slot
        if frame.output_index is not None:
            return self._by_index.get(frame.output_index)
        return self._slots[-1] if self._slots else None

    def _item(self, kind: str, frame: Frame) -> Slot:
        # A stream that is resumed may begin in the middle of an item.
        return self._slot(frame) or self._begin(frame.output_index, {"type": kind, "id": frame.item_id})

    def _to(self, kind: str, slot: Slot, part: int) -> str:
        """The id of the block that goes on, or begins, here."""
        key = (kind, slot.number, part)
        is_no_part = kind != "summary" and bool(slot.parts) and part not in slot.parts
        if key == self._open or (is_no_part and self._open is not None and self._open[:2] == key[:2]):
            return self._block
        name = f"{slot.id}.{part}" if part else slot.id
        self._begun[name] += 1
        times = self._begun[name]
        self._open, self._block = key, name if times == 1 and name else f"{name}+{times - 1}"
        return self._block

    def on_text(self, frame: Frame, data: bytes) -> None:
        self._say(self._blocks.text, "text", "message", frame, frame.content_index)

    def on_refusal(self, frame: Frame, data: bytes) -> None:
        self._say(self._blocks.refusal, "text", "message", frame, frame.content_index)

    def on_summary(self, frame: Frame, data: bytes) -> None:
        self._say(self._blocks.thinking, "summary", "reasoning", frame, frame.summary_index)

    def on_thought(self, frame: Frame, data: bytes) -> None:
        self._say(self._blocks.thinking, "content", "reasoning", frame, frame.content_index)

    def _say(self, report: Callable[[str, str], None], kind: str, item: str, frame: Frame, part: int) -> None:
        if isinstance(frame.delta, str) and frame.delta:
            slot = self._item(item, frame)
            slot.said[kind].append(frame.delta)
            report(frame.delta, self._to(kind, slot, part))

    def on_part_added(self, frame: Frame, data: bytes) -> None:
        slot = self._slot(frame)
        if slot is not None:
            slot.parts.add(frame.content_index)

    def on_text_done(self, frame: Frame, data: bytes) -> None:
        slot = self._slot(frame)
        if slot is not None and self._open == ("text", slot.number, frame.content_index):
            self._close_block()

    def _close_block(self) -> None:
        self._open = None
        self._blocks.close_block()

    def on_annotation(self, frame: Frame, data: bytes) -> None:
        self._add_sources([as_item(read_json(data).get("annotation"))])

    def _add_sources(self, sources: Iterable[Item]) -> None:
        for source in sources:
            key = source_key(source)
            if source and key not in self._sources:
                self._sources.add(key)
                self._blocks.source(source)

    def on_arguments(self, frame: Frame, data: bytes) -> None:
        self._say_arguments(self._slot(frame), frame.delta)

    def on_input(self, frame: Frame, data: bytes) -> None:
        self._say_free_text("input", self._slot(frame), frame.delta)

    def on_code(self, frame: Frame, data: bytes) -> None:
        self._say_free_text("code", self._slot(frame), frame.delta)

    def _say_arguments(self, call: Slot | None, delta: Any) -> None:
        if call is not None and isinstance(delta, str) and delta:
            call.said["arguments"].append(delta)
            self._blocks.call(call.number, None, None, delta)

    def _say_free_text(self, field: str, call: Slot | None, delta: Any) -> None:
        # Text that is no JSON is streamed as the JSON of an object with this one field.
        if call is not None and isinstance(delta, str) and delta:
            piece = json_text(delta)[1:-1]
            self._say_arguments(call, piece if call.field else f'{{"{field}":"{piece}')
            call.field = field

    def on_item_added(self, frame: Frame, data: bytes) -> None:
        item = to_item(frame.item)
        if "type" in item:
            self._begin(frame.output_index, item)

    def _begin(self, index: int | None, item: Item) -> Slot:
        slot = Slot(len(self._slots), item)
        self._slots.append(slot)
        self._by_index[slot.number if index is None else index] = slot
        if slot.id:
            self._by_id[slot.id] = slot
        if is_call(item):
            self._begin_call(slot, item)
        elif "call_id" in item:  # a result
            slot.about = self._calls.get(slot.wire_id)
        elif slot.kind == "message" and item.get("phase"):
            # The provider wants to be told again which of its messages were the answer.
            self._close_block()
            self._blocks.part("phase", ProviderPart(self.provider, {"type": "message", "phase": item["phase"]}))
        return slot

    def _begin_call(self, slot: Slot, item: Item) -> None:
        self._open = None
        slot.about, slot.tool, slot.server = slot, call_name(item), is_server(item, self._offered)
        if slot.tool:
            self._calls.setdefault(slot.wire_id, slot)
        self._blocks.call(slot.number, slot.wire_id, slot.tool, None, {"server": True} if slot.server else {})
        slot.call_id = self._blocks.calls.id_of(slot.number) or slot.wire_id

    def on_item_done(self, frame: Frame, data: bytes) -> None:
        item = to_item(frame.item)
        if "type" in item:
            slot = self._by_id.get(item_id(item)) or self._slot(frame)
            fits = slot is not None and slot.kind == item["type"]
            self._end_item(slot if slot is not None and fits else self._begin(frame.output_index, item), item)

    def _end_item(self, slot: Slot, item: Item) -> None:
        if slot.done:
            return
        slot.done = True
        if slot.tool:
            self._end_call(slot, item)
        elif slot.kind == "message":
            self._end_message(slot, item)
        elif slot.kind == "reasoning":
            self._end_thinking(slot, item)
        else:
            self._close_block()
            self._blocks.part(slot.kind, ProviderPart(self.provider, item))

    def _end_message(self, slot: Slot, item: Item) -> None:
        parts = as_items(item.get("content"))
        rests = slot.unsaid("text", [str(part.get("text") or part.get("refusal") or "") for part in parts])
        for place, (part, rest) in enumerate(zip(parts, rests, strict=True)):
            id = self._to("text", slot, place) if rest else None
            match part:
                case {"type": "output_text", "text": str()}:
                    self._blocks.text(rest, id)
                    if part.get("logprobs"):  # all of them again: nobody need read those of the deltas
                        self._blocks.append("logprobs", as_items(part["logprobs"]))
                case {"type": "refusal", "refusal": str()}:
                    self._blocks.refusal(rest, id)
                case _:
                    self._blocks.raw("content", part)
            self._add_sources(as_items(part.get("annotations")))
        self._close_block()

    def _end_thinking(self, slot: Slot, item: Item) -> None:
        for kind in ("summary", "content"):
            texts = [str(part.get("text") or "") for part in as_items(item.get(kind))]
            for place, rest in enumerate(slot.unsaid(kind, texts)):
                if rest:
                    self._blocks.thinking(rest, self._to(kind, slot, place))
        if item.get("encrypted_content") or item.get("summary") or item.get("content"):
            goes_on = self._open is not None and self._open[0] != "text" and self._open[1] == slot.number
            id = self._block if goes_on else self._to("summary", slot, len(as_items(item.get("summary"))))
            self._blocks.sign(None, {"provider": self.provider, "item": item}, id)
        self._close_block()

    def _end_call(self, call: Slot, item: Item) -> None:
        metadata: Item = {}
        if call.kind == "function_call":
            told = {name: item[name] for name in ("namespace", "caller") if item.get(name)}
            metadata = {"provider": self.provider, "item": {"type": "function_call", **told}} if told else {}
        elif not call.server:
            metadata = {"provider": self.provider, "item": item}
        rest = '"}' if call.field else None if call.said else call_arguments(item)
        self._blocks.call(call.number, None, None, rest, metadata)
        self._blocks.complete_call(call.number)
        self._open = None
        if call.server:
            self._blocks.part(call.kind, ProviderPart(self.provider, item))
        self._add_sources(call_sources(item))
        for file in call_files(item):
            self._blocks.file(file)

"""Convert the output items of a response to events, in order.

1. A frame belongs to the item that has the frame's id or, if there is no such item, to the latest item that has the
   frame's index. Some servers invent a new id for each frame. Others send index 0 for everything.
2. ``response.output_item.done`` contains the final item. If any of its text was missing from the deltas, that text is
   emitted when the final item arrives. Ciphertext is read only from the final item, because the ciphertext differs from
   frame to frame. The last frame of the response contains all final items. It ends every item for which no
   ``response.output_item.done`` has arrived.
3. Each text or thought is a block. If a block is interrupted, the rest becomes a new block. A part that was not
   announced continues the open block.
4. A call or a thought that begins before an earlier thought is done waits for it, so that the message has them in the
   order in which the next request must send them. Some gateways end a thought last.
5. A call to a tool that the provider runs has the metadata ``{"server": True}``. The whole item becomes a part of the
   message. If the provider asks for approval first, the call has the metadata ``{"hosted": True}``, and waits.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence

from rxllm.adapters.openai_responses.commands import Commands
from rxllm.adapters.openai_responses.frames import (
    APPROVAL,
    Frame,
    Item,
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
from rxllm.adapters.openai_responses.missing import MOST_PARTS, missing_texts
from rxllm.events import ToolProgress
from rxllm.values import ProviderPart, StreamError
from rxllm.values.json_text import json_text, read_json
from rxllm.wire.event_order import Blocks

_OF_EVERY_CALL = {"type", "id", "call_id", "name", "arguments", "status"}
"""The fields of a function call that the next request fills in by itself. All others, such as ``async``, go back."""

LONGEST_ID = 1_000
"""The maximum length of an item's id, in characters."""

_MOST_AWAITED = 100
"""The most indices and ids of items that wait. More arrive only from a server that means harm."""


class Output:
    """Collects the output items of a response. `offered` contains the names of the request's tools."""

    def __init__(self, blocks: Blocks, provider: str, offered: Collection[str]) -> None:
        self.provider = provider
        self._blocks = blocks
        self._offered = offered
        self._slots: list[Slot] = []
        self._by_id: dict[str, Slot] = {}
        self._by_index: dict[int, Slot] = {}
        self._calls: dict[str, Slot] = {}  # the slot of each call, by `wire_id`
        self._open: tuple[str, int, int] | None = None  # the kind, slot and part of the last delta
        self._open_id = ""
        self._begun: Counter[str] = Counter()  # how many blocks have had each id, ignoring suffixes
        self._sources: set[str] = set()
        self._thinking: set[Slot] = set()  # the thoughts that are not done
        self._waiting: list[_Waiting] = []  # the frames of items that wait for a thought
        self._awaited: set[int | str] = set()  # the indices and ids of these items

    def receive(self, handler: Handler, frame: Frame, data: bytes) -> None:
        """Pass a frame to its `handler`, which is a method of this class."""
        if self._thinking and (self._awaited or handler is Output.on_item_added):
            self._receive_again(_Waiting(handler, frame, data))
        else:
            self._pass(handler, frame, data)

    def _receive_again(self, waiting: _Waiting) -> None:
        if self._thinking and self._must_wait(waiting):
            self._waiting.append(waiting)
        else:
            self._pass(waiting.handler, waiting.frame, waiting.data)

    def _pass(self, handler: Handler, frame: Frame, data: bytes) -> None:
        handler(self, frame, data)
        if self._waiting and not self._thinking:
            self._release()

    def _must_wait(self, waiting: _Waiting) -> bool:
        if waiting.is_new and len(self._awaited) < _MOST_AWAITED:
            self._awaited |= waiting.keys
        return not waiting.keys.isdisjoint(self._awaited)

    def _release(self) -> None:
        waiting, self._waiting, self._awaited = self._waiting, [], set()
        for each in waiting:
            self._receive_again(each)

    def flush(self) -> None:
        """Read the frames that still wait for a thought."""
        while self._waiting:
            self._thinking = set()
            self._release()

    def finish(self, items: Sequence[Item]) -> None:
        """End all `items` of the final response that were not already ended by a frame."""
        for item in items if self._waiting else ():
            slot = self._slot_of(item)
            if slot is not None and slot in self._thinking:
                self._end_item(slot, item)
                if not self._thinking:
                    self._release()
        self.flush()
        slots = [self._slot_of(item) for item in items]
        known = {*slots}
        # If an item's id has changed, the item belongs to the next unmatched slot of the same kind.
        others: defaultdict[str, deque[Slot]] = defaultdict(deque)
        for slot in self._slots:
            if slot not in known:
                others[slot.kind].append(slot)
        for index, (item, slot) in enumerate(zip(items, slots, strict=True)):
            kind = str(item.get("type"))
            if "type" in item:
                slot = slot or (others[kind].popleft() if others[kind] else self._begin(index, item))
                self._end_item(slot, item)

    def is_part_of(self, items: Sequence[Item]) -> bool:
        """Return whether all text and all calls so far are the beginning of `items`, the output of a final response."""
        read = [slot.text or "".join(slot.pieces["text"]) for slot in self._slots if slot.kind == "message"]
        texts_of = (Output.on_text, Output.on_refusal)
        waiting = [each.frame.delta for each in self._waiting if each.handler in texts_of]
        texts = [_text_of(part) for item in items if item.get("type") == "message" for part in _parts_of(item)]
        if not "".join(texts).startswith("".join([*read, *(text for text in waiting if isinstance(text, str))])):
            return False
        calls = {str(item.get("call_id")): item for item in items if is_call(item)}
        return all(
            (call_name(item := calls.get(slot.wire_id, {})), item.get("type")) == (slot.tool, slot.kind)
            and call_arguments(item).startswith("".join(slot.pieces["arguments"]))
            for slot in self._calls.values()
            if not slot.is_server
        )

    def _slot_of(self, item: Item) -> Slot | None:
        slots = (self._by_id.get(item_id(item)), self._calls.get(str(item.get("call_id"))))
        return next((slot for slot in slots if slot is not None and slot.kind == item.get("type")), None)

    def report_progress(self, frame: Frame, fields: Item) -> bool:
        """Emit a ``ToolProgress``. Return False if the frame does not belong to a tool call."""
        slot = self._slot(frame)
        call = slot.call if slot is not None else None
        if call is None or not frame.type.startswith("response."):
            return False
        known = ("sequence_number", "item_id", "output_index", "obfuscation", "partial_image_b64")
        data = {name: value for name, value in fields.items() if name not in known}
        if "partial_image_b64" in fields:
            data |= image_of(str(fields["partial_image_b64"]), fields)
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

    def on_text(self, frame: Frame, data: bytes) -> None:
        self._read_delta(self._blocks.text, "text", "message", frame, frame.content_index)

    def on_refusal(self, frame: Frame, data: bytes) -> None:
        self._read_delta(self._blocks.refusal, "text", "message", frame, frame.content_index)

    def on_summary(self, frame: Frame, data: bytes) -> None:
        self._read_delta(self._blocks.thinking, "summary", "reasoning", frame, frame.summary_index)

    def on_thought(self, frame: Frame, data: bytes) -> None:
        self._read_delta(self._blocks.thinking, "content", "reasoning", frame, frame.content_index)

    def _read_delta(self, report: Callable[[str, str], None], kind: str, item: str, frame: Frame, part: int) -> None:
        if isinstance(frame.delta, dict) and frame.delta:
            raise StreamError("malformed_event", f"a delta is not text: got {json_text(frame.delta)[:80]}")
        if isinstance(frame.delta, str) and frame.delta:
            # The item may not have been announced, because a resumed stream can begin in the middle of an item.
            slot = self._slot(frame) or self._begin(frame.output_index, {"type": item, "id": frame.item_id})
            slot.pieces[kind].append(frame.delta)
            report(frame.delta, self._block(kind, slot, part))

    def _block(self, kind: str, slot: Slot, part: int) -> str:
        key = (kind, slot.number, part)
        is_unannounced = kind != "summary" and bool(slot.parts) and part not in slot.parts
        if key == self._open or (is_unannounced and self._open is not None and self._open[:2] == key[:2]):
            return self._open_id
        name = f"{slot.id}.{part}" if part else slot.id
        self._begun[name] += 1
        count = self._begun[name]
        self._open, self._open_id = key, name if count == 1 and name else f"{name}+{count - 1}"
        return self._open_id

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
        self._add_arguments(self._slot(frame), frame.delta)

    def on_input(self, frame: Frame, data: bytes) -> None:
        self._add_free_text("input", self._slot(frame), frame.delta)

    def on_code(self, frame: Frame, data: bytes) -> None:
        self._add_free_text("code", self._slot(frame), frame.delta)

    def on_command(self, frame: Frame, data: bytes) -> None:
        slot = self._slot(frame)
        text = frame.command if frame.delta is None else frame.delta
        if slot is not None and slot.kind == "shell_call" and isinstance(text, str):
            is_whole = frame.type.endswith(".done")
            self._add_arguments(slot, slot.commands.feed(frame.command_index, text, is_whole=is_whole))

    def _add_arguments(self, slot: Slot | None, delta: str | Item | None) -> None:
        if slot is not None and isinstance(delta, str) and delta:
            slot.pieces["arguments"].append(delta)
            self._blocks.call(slot.number, None, None, delta)

    def _add_free_text(self, argument: str, slot: Slot | None, delta: str | Item | None) -> None:
        # Stream the free text as a JSON object with one field, whose name is `argument`.
        if slot is not None and isinstance(delta, str) and delta:
            escaped = json_text(delta)[1:-1]
            self._add_arguments(slot, escaped if slot.open_argument else f'{{"{argument}":"{escaped}')
            slot.open_argument = argument

    def on_item_added(self, frame: Frame, data: bytes) -> None:
        item = to_item(frame.item)
        if "type" in item:
            self._begin(frame.output_index, item)

    def _begin(self, index: int | None, item: Item) -> Slot:
        slot = Slot(len(self._slots), item)
        if len(slot.id) > LONGEST_ID:  # each of the item's blocks has an id that contains it
            fault = f"the id of an item has {len(slot.id)} characters; at most {LONGEST_ID} are read"
            raise StreamError("malformed_event", fault, provider=self.provider)
        self._slots.append(slot)
        self._by_index[slot.number if index is None else index] = slot
        if slot.id:
            self._by_id[slot.id] = slot
        if is_call(item):
            self._begin_call(slot, item)
        elif slot.kind == "reasoning":
            self._thinking.add(slot)
        elif "call_id" in item:  # the item is the result of a call
            slot.call = self._calls.get(slot.wire_id)
        elif slot.kind == "message" and item.get("phase"):
            # Keep the phase, because the next request must contain it.
            self._close_block()
            self._blocks.part(ProviderPart(self.provider, {"type": "message", "phase": item["phase"]}))
        return slot

    def _begin_call(self, slot: Slot, item: Item) -> None:
        self._open = None
        slot.call, slot.tool, slot.is_server = slot, call_name(item), is_server(item, self._offered)
        if slot.tool:
            self._calls.setdefault(slot.wire_id, slot)
        mark = {"server": True} if slot.is_server else {"hosted": True} if slot.kind == APPROVAL else {}
        self._blocks.call(slot.number, slot.wire_id, slot.tool, None, mark)
        slot.call_id = self._blocks.calls.id_of(slot.number) or slot.wire_id

    def on_item_done(self, frame: Frame, data: bytes) -> None:
        item = to_item(frame.item)
        if "type" in item:
            slot = self._by_id.get(item_id(item)) or self._slot(frame)
            fits = slot is not None and slot.kind == item["type"]
            self._end_item(slot if slot is not None and fits else self._begin(frame.output_index, item), item)

    def _end_item(self, slot: Slot, item: Item) -> None:
        if slot.is_done:
            return
        slot.is_done = True
        self._thinking.discard(slot)
        if slot.tool:
            self._end_call(slot, item)
        elif slot.kind == "message":
            self._end_message(slot, item)
        elif slot.kind == "reasoning":
            self._end_thinking(slot, item)
        else:
            self._close_block()
            self._blocks.part(ProviderPart(self.provider, item))

    def _end_message(self, slot: Slot, item: Item) -> None:
        parts = _parts_of(item)
        texts = [_text_of(part) for part in parts]
        rests, slot.text = self._missing(slot, "text", texts), "".join(texts)
        for place, (part, rest) in enumerate(zip(parts, rests, strict=True)):
            id = self._block("text", slot, place) if rest else None
            match part:
                case {"type": "output_text", "text": str()}:
                    self._blocks.text(rest, id)
                    # The finished part contains the log-probabilities of all its tokens.
                    if part.get("logprobs"):
                        self._blocks.append("logprobs", as_items(part["logprobs"]))
                case {"type": "refusal", "refusal": str()}:
                    self._blocks.refusal(rest, id)
                case _:
                    self._blocks.raw("content", part)
            self._add_sources(as_items(part.get("annotations")))
        self._close_block()

    def _missing(self, slot: Slot, kind: str, texts: Sequence[str]) -> list[str]:
        if len(texts) > MOST_PARTS:
            fault = f"an item has {len(texts)} parts; at most {MOST_PARTS} are read"
            raise StreamError("malformed_event", fault, provider=self.provider)
        return missing_texts("".join(slot.pieces[kind]), texts)

    def _end_thinking(self, slot: Slot, item: Item) -> None:
        for kind in ("summary", "content"):
            texts = [str(part.get("text") or "") for part in as_items(item.get(kind))]
            for place, rest in enumerate(self._missing(slot, kind, texts)):
                if rest:
                    self._blocks.thinking(rest, self._block(kind, slot, place))
        if item.get("encrypted_content") or item.get("summary") or item.get("content"):
            continues = self._open is not None and self._open[0] != "text" and self._open[1] == slot.number
            id = self._open_id if continues else self._block("summary", slot, len(as_items(item.get("summary"))))
            self._blocks.sign(None, {"provider": self.provider, "item": item}, id)
        self._close_block()

    def _end_call(self, slot: Slot, item: Item) -> None:
        metadata: Item = {}
        if slot.kind == "function_call":
            kept = {name: value for name, value in item.items() if name not in _OF_EVERY_CALL and value is not None}
            metadata = {"provider": self.provider, "item": {"type": "function_call", **kept}} if kept else {}
        elif not slot.is_server:
            metadata = {"provider": self.provider, "item": item}
        self._blocks.call(slot.number, None, None, slot.missing_arguments(item), metadata)
        self._blocks.complete_call(slot.number)
        self._open = None
        if slot.is_server:
            self._blocks.part(ProviderPart(self.provider, item))
        self._add_sources(call_sources(item))
        for file in call_files(item):
            self._blocks.file(file)


def _parts_of(message: Item) -> list[Item]:
    return as_items(message.get("content"))


def _text_of(part: Item) -> str:
    return str(part.get("text") or part.get("refusal") or "")


Handler = Callable[[Output, Frame, bytes], None]
"""Reads one type of frame. It is a method of `Output`."""


class _Waiting:
    """A frame that may have to wait. `keys` are the index and the ids of its item.

    `is_new` is True if a call or a thought begins with it.
    """

    def __init__(self, handler: Handler, frame: Frame, data: bytes) -> None:
        self.handler, self.frame, self.data = handler, frame, data
        item = to_item(frame.item)
        self.keys = {key for key in (frame.output_index, frame.item_id, item_id(item)) if key not in (None, "")}
        self.is_new = handler is Output.on_item_added and (is_call(item) or item.get("type") == "reasoning")


class Slot:
    """An output item that is still being streamed.

    `pieces` contains the deltas of each kind. `text` is the text of a finished message. `parts` contains the indices of
    the parts that were announced. If the item is a tool call, `tool` is the tool's name and `call_id` is the call's id
    in events. `open_argument` is the argument that receives free text. `commands` writes the arguments of a shell call.
    `call` is the slot itself if the item is a call. If the item is a call's result, `call` is the slot of that call.
    """

    def __init__(self, number: int, item: Item) -> None:
        self.number = number
        self.id = item_id(item)
        self.kind = str(item["type"])
        self.pieces: defaultdict[str, list[str]] = defaultdict(list)
        self.text = ""
        self.parts: set[int] = set()
        self.is_done = False
        self.wire_id = str(item.get("call_id") or self.id)
        self.call: Slot | None = None
        self.tool = ""
        self.call_id = ""
        self.is_server = False
        self.open_argument = ""
        self.commands = Commands()

    def missing_arguments(self, item: Item) -> str:
        """Return the part of a finished call's arguments that the deltas did not contain."""
        streamed, whole = "".join(self.pieces["arguments"]), call_arguments(item)
        if whole.startswith(streamed):
            return whole[len(streamed) :]
        if self.kind == "shell_call":
            return self.commands.close()
        return '"}' if self.open_argument else ""

"""What AG-UI's frames mean to one who has read those before them, and what they leave open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rxllm import Nested, ToolCall
from rxllm import events as ev
from rxllm.web._codec import Block, Frame, text_of

OWN = "rxllm"
"""The name of rxllm's own ``CUSTOM`` frames, and the ``rawEvent`` of frames that stand for no event of their own."""

Path = tuple[str, ...]


class Call(msgspec.Struct):
    """An open tool call: its id, its name, the id of its message, and the text of its arguments so far."""

    id: str
    name: str
    parent: str
    pieces: list[str] = []


class Lane:
    """One agent's part of a stream: the outermost agent's, or that of an agent that runs as a tool.

    Ids of calls are unique in the lane only; on the wire those of the calls around it go before them.
    """

    def __init__(self, wire: Wire, path: Path = (), run: str | None = None) -> None:
        self.path = path
        self.run = run
        self.blocks: dict[tuple[str, str], Block] = {}  # the open ones
        self.calls: dict[str, Call] = {}  # the open ones, by their ids on the wire
        self.names: dict[str, str] = {}  # of all calls
        self.agents: dict[str, Lane] = {}  # the running ones, by the ids of their calls
        self.step: str | None = None
        self.steps = 0
        self.mark = 0  # the number of the latest message when its step began
        self.parent: str | None = None  # the message that the next call belongs to
        self._wire = wire
        self._prefix = "".join(f"{id}/" for id in path)
        self._ended: Block | None = None  # a block of thinking, whose signature may follow

    def wire_id(self, call: str) -> str:
        return self._prefix + call

    def call_id(self, wire_id: str) -> str:
        return wire_id.removeprefix(self._prefix)

    def read(self, frame: Frame) -> Iterator[ev.Event]:
        """Return the events of a frame. Raises ``LookupError`` or ``TypeError`` for one that is not allowed here."""
        kind: str = frame["type"]
        if self._ended is not None and kind != "REASONING_ENCRYPTED_VALUE":
            block, self._ended = self._ended, None
            if block.pieces or block.signature is not None:
                yield ev.ThinkingCompleted(block.text, block.signature, None, block.id)
        if kind.startswith(("TEXT_MESSAGE_", "REASONING_MESSAGE_")):
            block_kind, place = kind.split("_MESSAGE_")
            yield from self._read_block(block_kind, place, frame)
        elif kind.startswith("TOOL_CALL_"):
            yield from self._read_call(kind, frame)
        elif kind == "CUSTOM" and frame["name"] != OWN:
            yield ev.Custom(text_of(frame, "name"), frame["value"])
        elif kind == "REASONING_ENCRYPTED_VALUE" and self._ended and frame["entityId"] == self._ended.name:
            self._ended.signature = text_of(frame, "encryptedValue")
        elif kind == "STEP_STARTED":
            self.step, self.parent = text_of(frame, "stepName"), None
            self.steps += 1
        elif kind == "STEP_FINISHED":
            self.step = None

    def _read_block(self, kind: str, place: str, frame: Frame) -> Iterator[ev.Event]:
        name = text_of(frame, "messageId")
        if place == "CONTENT":
            block, delta = self.blocks[kind, name], text_of(frame, "delta")
            block.pieces.append(delta)
            if block.role == "assistant":
                yield ev.TextDelta(delta, block.id)
            elif block.role == "reasoning":
                yield ev.ThinkingDelta(delta, block.id)
        elif place == "START":
            role = "reasoning" if kind == "REASONING" else frame.get("role", "assistant")
            self.blocks[kind, name] = Block(kind, self._wire.block_id(name), name, role)
            self.parent = name if role == "assistant" else None
        elif place == "END":
            block = self.blocks.pop((kind, name))
            self._wire.note(self, {"id": name, "role": block.role, "content": block.text})
            if block.role == "reasoning":
                self._ended = block
            elif block.role == "assistant" and block.pieces:
                yield ev.TextCompleted(block.text, block.id)
        else:
            raise LookupError(place)

    def _read_call(self, kind: str, frame: Frame) -> Iterator[ev.Event]:
        wire_id = text_of(frame, "toolCallId")
        id = self.call_id(wire_id)
        match kind:
            case "TOOL_CALL_START":
                name = self.names[id] = text_of(frame, "toolCallName")
                self.parent = text_of(frame, "parentMessageId") if "parentMessageId" in frame else self.parent
                self.calls[wire_id] = Call(id, name, self.parent or wire_id)
                yield ev.ToolCallStarted(id, name)
            case "TOOL_CALL_ARGS":
                delta = text_of(frame, "delta")
                self.calls[wire_id].pieces.append(delta)
                yield ev.ToolCallDelta(id, delta)
            case "TOOL_CALL_END":
                call = self.calls.pop(wire_id)
                text: Any = "".join(call.pieces)
                self._wire.note_call(self, call.parent, wire_id, call.name, text)
                read = ToolCall(id, call.name, text)  # which parses the text
                yield ev.ToolCallCompleted(id, call.name, read.arguments, text, read.metadata)
            case "TOOL_CALL_RESULT":
                content = frame["content"]
                message = {"id": text_of(frame, "messageId"), "role": "tool", "toolCallId": wire_id, "content": content}
                self._wire.note(self, message)
                yield ev.ToolResultEncoded(id, content if isinstance(content, str) else json.dumps(content))
            case _:
                raise LookupError(kind)


class Wire:
    """The lanes of a stream, by their agents' run ids, and the messages that a client has folded."""

    def __init__(self) -> None:
        self.is_ours = False
        self.lanes: dict[str | None, Lane] = {None: Lane(self)}
        self.messages: list[tuple[int, Path, Frame]] = []  # each with its number, and the path of its agent
        self.count = 0  # of all messages, which is the number of the latest
        self._prefix = ""

    def read(self, frame: Frame) -> list[ev.Event]:
        match frame:
            case {"type": "RUN_STARTED", "runId": str(run)}:
                self.__init__()
                self.is_ours = frame.get("rawEvent") == OWN
                self._prefix = f"{run}:"
            case {"type": "SUBAGENT_STARTED", "subagentRunId": str(run)}:
                parent = self.lanes[frame.get("parentSubagentRunId")]
                call: str = parent.call_id(text_of(frame, "parentToolCallId")) if "parentToolCallId" in frame else run
                self.lanes[run] = parent.agents[call] = Lane(self, (*parent.path, call), run)
            case _:
                lane = self.lane(frame.get("subagentRunId"))
                return [Nested(lane.path, event) if lane.path else event for event in lane.read(frame)]
        return []

    def lane(self, run: Any) -> Lane:
        """Return the lane of an agent; servers may name one that they have not announced."""
        if run not in self.lanes:
            if not isinstance(run, str):
                raise TypeError("subagentRunId is not text")
            self.lanes[run] = Lane(self, (run,), run)
        return self.lanes[run]

    def block_id(self, message: str) -> str | None:
        """Return the id of the block in a message; our own messages have it behind the run's id and a number."""
        return message.removeprefix(self._prefix).partition(":")[2] or None if self.is_ours else message

    def note(self, lane: Lane, message: Frame) -> None:
        if lane.run is not None:
            message["subagentRunId"] = lane.run
        self.count += 1
        self.messages.append((self.count, lane.path, message))

    def note_call(self, lane: Lane, parent: str, id: str, name: str, arguments: str) -> None:
        message = next((message for _, _, message in reversed(self.messages) if message["id"] == parent), None)
        if message is None:
            message = Frame(id=parent, role="assistant")
            self.note(lane, message)
        call: Frame = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        message["toolCalls"] = [*message.get("toolCalls", ()), call]


class Chunks:
    """Chunks, the short form of starts, contents and ends, in the long form."""

    def __init__(self) -> None:
        self._open: dict[Any, tuple[str, str]] = {}  # by agent: the kind and the id of what its chunks continue

    def read(self, frame: Frame) -> Iterable[Frame]:
        kind, run = frame["type"], frame.get("subagentRunId")
        if not isinstance(kind, str):
            raise TypeError("type is not text")
        if not kind.endswith("_CHUNK"):
            return (*self._ended(run), frame)
        kind = kind.removesuffix("_CHUNK")
        key, content = ("toolCallId", "ARGS") if kind == "TOOL_CALL" else ("messageId", "CONTENT")
        frames: list[Frame] = []
        id = frame.get(key, self._open.get(run, (kind, None))[1])
        if self._open.get(run) != (kind, id):
            frames += [*self._ended(run), {**frame, "type": f"{kind}_START", key: id}]
            self._open[run] = (kind, id)
        if frame.get("delta"):
            frames.append({**_tag(run), "type": f"{kind}_{content}", key: id, "delta": frame["delta"]})
        return frames

    def _ended(self, run: Any) -> list[Frame]:
        if run not in self._open:
            return []
        kind, id = self._open.pop(run)
        return [{**_tag(run), "type": f"{kind}_END", "toolCallId" if kind == "TOOL_CALL" else "messageId": id}]


def _tag(run: str | None) -> Frame:
    return {} if run is None else {"subagentRunId": run}

"""The AG-UI decoder, which accepts frames from any server.

`rxllm.web._ag_ui_encoder` lists the frames. Call ids are unique only within one agent, so each agent has its own
`Lane`. Servers that do not use rxllm send only the content, so `ForeignRun` adds the events that start and end
responses, steps and chats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rxllm import ChatResult, Message, Nested, Response, StepResult, StreamError, Thread, ToolCall, Usage
from rxllm import events as ev
from rxllm.collector import Unfinished
from rxllm.web._ag_ui_frames import OWN, LongForms, author
from rxllm.web._for_client import ClientFold
from rxllm.web._frames import Block, Frame, all_of, text_of

MOST_NESTED = 32
"""The maximum nesting depth of agents. It is limited because each level also folds the events of all levels below."""

COUNTS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "totalTokens": "total_tokens",
    "reasoningTokens": "reasoning_tokens",
    "cachedInputTokens": "cached_input_tokens",
    "cacheWriteInputTokens": "cache_write_input_tokens",
}
"""Maps AG-UI's usage counters to the fields of `Usage`."""

Path = tuple[str, ...]
"""The ids of the enclosing tool calls, outermost first."""


class Decoder:
    """Turns frames into events.

    If the server does not use rxllm, the decoder also adds the events that start and end responses, steps and chats.
    """

    def __init__(self) -> None:
        self._fold = ClientFold()
        self._open = Unfinished()
        self._frames = LongForms()
        self._lanes = Lanes()
        self._foreign = ForeignRun(self._fold, self._lanes, self._open)
        self._is_ended = False

    @property
    def usage(self) -> Usage:
        """The usage so far, including the inner agents' usage."""
        return self._fold.state.to_chat_result().usage

    def feed(self, frame: Frame) -> list[ev.Event]:
        return all_of(frame, self._read_and_apply(frame))

    def close(self) -> list[ev.Event]:
        return [] if self._is_ended else [*self._open.close(), ev.ErrorEvent(StreamError("truncated"))]

    def _read_and_apply(self, frame: Frame) -> Iterator[ev.Event]:
        for long_form in self._frames.read(frame):
            for event in self._events(long_form):
                self._fold.apply(event)
                self._open.see(event)
                yield event

    def _events(self, frame: Frame) -> Iterable[ev.Event]:
        kind: str = frame["type"]
        if self._is_ended and kind != "RUN_STARTED":
            raise ValueError("the run has ended")
        self._is_ended = kind in ("RUN_FINISHED", "RUN_ERROR")
        events = self._lanes.read(frame)
        if kind == "SUBAGENT_STARTED" and len(self._lanes.lane(frame["subagentRunId"]).path) > MOST_NESTED:
            raise ValueError("agents are nested too deeply")
        if frame.get("rawEvent") == OWN:
            return []
        if kind == "CUSTOM" and frame["name"] == OWN:
            return [*events, self._fold.unpacked(frame["value"])]
        return events if self._lanes.is_ours else self._foreign.read(kind, frame, events)


class Lanes:
    """Holds the lane of every agent, keyed by run id, and the messages that the client has received."""

    def __init__(self) -> None:
        self.is_ours = False
        self.by_run: dict[str | None, Lane] = {None: Lane(self)}
        # Each entry holds a message's number, the path of its agent, and the message itself.
        self.messages: list[tuple[int, Path, Frame]] = []
        self.count = 0
        self._by_id: dict[str, Frame] = {}  # the same messages, keyed by their ids
        self._prefix = ""

    def read(self, frame: Frame) -> list[ev.Event]:
        match frame:
            case {"type": "RUN_STARTED", "runId": str(run)}:
                self.__init__()
                self.is_ours = frame.get("rawEvent") == OWN
                self._prefix = f"{run}:"
            case {"type": "SUBAGENT_STARTED", "subagentRunId": str(run)}:
                parent = self.by_run[frame.get("parentSubagentRunId")]
                call: str = parent.call_id(text_of(frame, "parentToolCallId")) if "parentToolCallId" in frame else run
                self.by_run[run] = parent.agents[call] = Lane(self, (*parent.path, call), run)
            case _:
                lane = self.lane(frame.get("subagentRunId"))
                return [Nested(lane.path, event) if lane.path else event for event in lane.read(frame)]
        return []

    def lane(self, run: Any) -> Lane:
        """Return the lane of the agent whose run id is `run`, creating it if necessary."""
        if run not in self.by_run:
            if not isinstance(run, str):
                raise TypeError("subagentRunId is not text")
            self.by_run[run] = Lane(self, (run,), run)
        return self.by_run[run]

    def block_id(self, message: str) -> str | None:
        """Return the block id for a message id. rxllm's own message ids have the form ``RUN:NUMBER:BLOCK``."""
        return message.removeprefix(self._prefix).partition(":")[2] or None if self.is_ours else message

    def note(self, lane: Lane, message: Frame) -> None:
        if lane.run is not None:
            message["subagentRunId"] = lane.run
        self.count += 1
        self.messages.append((self.count, lane.path, message))
        self._by_id[message["id"]] = message

    def keep(self, messages: list[tuple[int, Path, Frame]]) -> None:
        self.messages = messages
        self._by_id = {message["id"]: message for _, _, message in messages}

    def note_call(self, lane: Lane, parent: str, id: str, name: str, arguments: str) -> None:
        message = self._by_id.get(parent)
        if message is None:
            message = Frame(id=parent, role="assistant")
            self.note(lane, message)
        call: Frame = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        message.setdefault("toolCalls", []).append(call)


class Lane:
    """The part of a stream that belongs to one agent.

    Call ids are unique only within a lane, so the ids on the wire are prefixed with the lane's path. `blocks` and
    `calls` hold the blocks and calls that are still open. `names` maps call ids to tool names. `agents` maps call ids
    to the lanes of the agents that those calls started. `mark` is the number of the last message before the current
    step. `parent` is the id of the message that the next tool call belongs to.
    """

    def __init__(self, lanes: Lanes, path: Path = (), run: str | None = None) -> None:
        self.path = path
        self.run = run
        # Blocks are keyed by (kind, message id), and calls by their id on the wire.
        self.blocks: dict[tuple[str, str], Block] = {}
        self.calls: dict[str, Call] = {}
        self.names: dict[str, str] = {}
        self.agents: dict[str, Lane] = {}
        self.step: str | None = None
        self.steps = 0
        self.mark = 0
        self.parent: str | None = None
        self._lanes = lanes
        self._prefix = "".join(f"{id}/" for id in path)
        self._ended: Block | None = None  # a completed thinking block, whose signature may be in the next frame

    def wire_id(self, call: str) -> str:
        return self._prefix + call

    def call_id(self, wire_id: str) -> str:
        return wire_id.removeprefix(self._prefix)

    def read(self, frame: Frame) -> Iterator[ev.Event]:
        """Yield the events in `frame`.

        Raises ``LookupError`` or ``TypeError`` if `frame` is invalid.
        """
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
            role = "reasoning" if kind == "REASONING" else author(frame)
            self.blocks[kind, name] = Block(kind, self._lanes.block_id(name), name, role)
            self.parent = name if role == "assistant" else None
        elif place == "END":
            block = self.blocks.pop((kind, name))
            self._lanes.note(self, {"id": name, "role": block.role, "content": block.text})
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
                self.calls[wire_id] = Call(name, self.parent or wire_id)
                yield ev.ToolCallStarted(id, name)
            case "TOOL_CALL_ARGS":
                delta = text_of(frame, "delta")
                self.calls[wire_id].pieces.append(delta)
                yield ev.ToolCallDelta(id, delta)
            case "TOOL_CALL_END":
                call = self.calls.pop(wire_id)
                text: Any = "".join(call.pieces)
                self._lanes.note_call(self, call.parent, wire_id, call.name, text)
                parsed = ToolCall(id, call.name, text)
                yield ev.ToolCallCompleted(id, call.name, parsed.arguments, text, parsed.metadata)
            case "TOOL_CALL_RESULT":
                content = frame["content"]
                message = {"id": text_of(frame, "messageId"), "role": "tool", "toolCallId": wire_id, "content": content}
                self._lanes.note(self, message)
                yield ev.ToolResultEncoded(id, content if isinstance(content, str) else json.dumps(content))
            case _:
                raise LookupError(kind)


class Call(msgspec.Struct):
    """A tool call that is still open. `parent` is the id of the message that it belongs to."""

    name: str
    parent: str
    pieces: list[str] = []


class ForeignRun:
    """Reads a run from a server that does not use rxllm, and adds the start and end events that the run lacks."""

    def __init__(self, fold: ClientFold, lanes: Lanes, open: Unfinished) -> None:
        self._fold = fold
        self._lanes = lanes
        self._open = open
        self._agents: dict[str, ForeignRun] = {}  # the inner agents, by run id
        self._has_response = False
        self._has_results = False  # True if the latest response has ended, but not its step
        self._usage = Usage()  # the usage of the first `_counted` steps, because an agent may finish many times
        self._counted = 0

    def read(self, kind: str, frame: Frame, events: Iterable[ev.Event]) -> Iterator[ev.Event]:
        if "subagentRunId" in frame and kind != "SUBAGENT_STARTED":
            yield from self._start_response()
            lane = self._lanes.lane(run := frame["subagentRunId"])
            if run not in self._agents:
                self._agents[run] = ForeignRun(self._fold.agent(lane.path), self._lanes, Unfinished())
            agent, own = self._agents[run], [event.event for event in events if isinstance(event, Nested)]
            for event in agent._read(kind, frame, own):
                agent._open.see(event)
                yield Nested(lane.path, event)
        else:
            yield from self._read(kind, frame, events)

    def _read(self, kind: str, frame: Frame, events: Iterable[ev.Event]) -> Iterator[ev.Event]:
        for event in events:
            if isinstance(event, ev.ToolResultEncoded):
                yield from self._end_response()
                self._has_results = True
            elif not isinstance(event, ev.Custom):
                yield from self._start_response()
            yield event
        match kind:
            case "RUN_ERROR" | "SUBAGENT_ERROR":
                yield from self._fail(StreamError("adapter_error", str(frame["message"])))
            case "RUN_FINISHED" | "SUBAGENT_FINISHED":
                yield from self._finish(frame)
            case _ if kind.startswith(("STATE_", "ACTIVITY_", "MESSAGES_", "RAW")):
                if not self._has_results:
                    yield from self._start_response()
                yield ev.RawChunk(kind, frame)
            case _:
                pass

    def _finish(self, frame: Frame) -> Iterator[ev.Event]:
        outcome = frame.get("outcome") or {"type": "success"}
        usage = to_usage(frame)
        if usage is not None:
            yield ev.UsageUpdated(usage)
        if outcome["type"] == "cancelled":
            yield from self._fail(StreamError("cancelled"))
            return
        if not self._has_results:
            yield from self._start_response()
        yield from self._end_response()
        self._has_results = True
        yield from self._end_step()
        yield self._chat(outcome)

    def _fail(self, error: StreamError) -> Iterator[ev.Event]:
        yield from self._start_response()
        yield from self._open.close()
        yield ev.ErrorEvent(error)

    def _start_response(self) -> Iterator[ev.Event]:
        if not self._has_response:
            yield from self._end_step()
            self._has_response = True
            yield ev.MessageStarted(Message("assistant"))

    def _end_response(self) -> Iterator[ev.Event]:
        if self._has_response:
            self._has_response = False
            reason = "tool_calls" if self._fold.state.to_response().tool_calls else "stop"
            yield self._fold.filled(ev.MessageCompleted(Message("assistant"), reason))

    def _end_step(self) -> Iterator[ev.Event]:
        if self._has_results:
            self._has_results = False
            is_done = not self._fold.state.to_response().tool_calls  # calls without results are for the client to run
            yield self._fold.filled(ev.StepCompleted(StepResult(Thread(), Response(), done=is_done)))

    def _chat(self, outcome: Frame) -> ev.Event:
        interrupts = outcome.get("interrupts", ())
        steps = self._fold.state.steps
        self._usage = sum((step.response.usage for step in steps[self._counted :]), self._usage)
        self._counted = len(steps)
        answered = {result.tool_call_id for result in steps[-1].tool_results}
        pending = tuple(call for call in steps[-1].response.tool_calls if call.id not in answered)
        question = next((interrupt for interrupt in interrupts if interrupt["reason"] != "tool_call"), None)
        waits = interrupts or outcome["type"] == "suspended"
        reason = "approval" if waits else "manual_tool_calls" if pending else "completed"
        result = ChatResult(
            Thread(),
            halted_reason="ask_user" if question else reason,
            pending_question=question and question.get("message"),
            pending_tool_call_id=question and question["id"],
            pending_tool_calls=pending,
            usage=self._usage,
            metadata={"interrupts": interrupts} if interrupts else {},
        )
        return self._fold.filled(ev.ChatCompleted(result))


def to_usage(frame: Frame) -> Usage | None:
    """Return the usage that a run's last frame reports, or None if it reports none."""
    entries = [
        Usage(**{COUNTS[name]: entry[name] for name in COUNTS if type(entry.get(name)) is int})
        for entry in frame.get("usage") or ()
    ]
    return sum(entries, Usage()) if entries else None

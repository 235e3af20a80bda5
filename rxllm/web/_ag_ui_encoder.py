"""The encoder for AG-UI 1.0 (https://docs.ag-ui.com).

============================================  ==========================================================================
event                                         frames
============================================  ==========================================================================
``MessageStarted``, ``StepCompleted``         ``STEP_STARTED``, ``STEP_FINISHED``
``TextDelta``, ``TextCompleted``              ``TEXT_MESSAGE_START``, ``_CONTENT``, ``_END``
``ThinkingDelta``, ``ThinkingCompleted``      ``REASONING_MESSAGE_*``, the signature as ``REASONING_ENCRYPTED_VALUE``
``ToolCallStarted``/``Delta``/``Completed``   ``TOOL_CALL_START``, ``TOOL_CALL_ARGS``, ``TOOL_CALL_END``
``ToolResultEncoded``, ``ToolHalt``           ``TOOL_CALL_RESULT``
``Custom(name, data)``                        ``CUSTOM``
``Nested``                                    ``SUBAGENT_STARTED``, the inner event's frames, ``SUBAGENT_FINISHED``
``Steered``                                   a text message from the user
``StepRestarted``                             ``MESSAGES_SNAPSHOT`` without the messages of the abandoned step, if the
                                              encoder has the client's messages
the end of the stream                         ``RUN_FINISHED`` with the usage, pending calls and interrupts, or
                                              ``RUN_ERROR`` if the run failed or was cut off
============================================  ==========================================================================

Some events do not fit entirely into these frames. Clients other than rxllm's own receive the part that fits; its frames
are marked with ``"rawEvent": "rxllm"``. A ``CUSTOM`` frame named ``rxllm`` follows, and its ``value["event"]`` is the
event as JSON. If ``value["folded"]`` is true, parts that earlier events contain are left out of this JSON. rxllm's
decoder emits nothing for the marked frames. Only raw chunks and provider-specific parts are lost.

If a tool call needs approval or asks a question, the run ends with an interrupt that carries the call's id. If an inner
agent made the call, the id is prefixed with the ids of the enclosing calls, joined by ``/``. For an approval, the
interrupt's own id is `rxllm.web.approval_id` of the call. Calls to the client's own tools are listed as pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar
from uuid import uuid4

from rxllm import LLMError, Message, Nested, StreamCollector, StreamError, ToolCall, Usage, serializer
from rxllm import events as ev
from rxllm.web._ag_ui_decoder import COUNTS, Lane, Lanes, Path
from rxllm.web._ag_ui_frames import OWN
from rxllm.web._for_client import ClientFold
from rxllm.web._frames import Block, Frame, approval_id, open_block, rest

VERSION = "1.0"


class Encoder:
    """Turns events into AG-UI frames.

    `thread_id` and `run_id` are random by default. `messages` are the messages that the client already has. When a step
    restarts, they are sent in a ``MESSAGES_SNAPSHOT``, so that the client deletes the messages of the abandoned step.
    Without `messages`, the client keeps the messages of the abandoned step. With `edits`, users who approve a call may
    change its arguments. ``from_ag_ui(...).encoder()`` passes all of these arguments for you.
    """

    END: ClassVar[bytes] = b""
    HEADERS: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        *,
        thread_id: str | None = None,
        run_id: str | None = None,
        messages: Iterable[Mapping[str, Any]] | None = None,
        edits: bool = False,
    ) -> None:
        self._ids = {"threadId": thread_id or uuid4().hex, "runId": run_id or uuid4().hex}
        self._history = None if messages is None else [dict(message) for message in messages]
        self._edits = edits
        self._fold = ClientFold()
        self._lanes = Lanes()
        self._minted = 0
        self._is_started = False

    def feed(self, event: ev.Event) -> list[Frame]:
        """Return the frames for `event`.

        Raises the same errors as `rxllm.serializer.to_data`.
        """
        if type(event) is ev.TextDelta and not event.refusal and (frame := self._next_delta(event)) is not None:
            self._fold.apply(event)
            return [frame]
        path, inner = (event.path, event.event) if isinstance(event, Nested) else ((), event)
        if isinstance(inner, ev.RawChunk | ev.PartAdded):
            return []
        frames = self._start_run()
        lane = self._begin_agents(path, frames)
        frames += self._read(lane, event, self._frames(lane, inner))
        self._fold.apply(event)
        if isinstance(inner, ev.StepCompleted | ev.StepRestarted):
            lane.mark = self._lanes.count
        return frames

    def close(self) -> list[Frame]:
        return [*self._start_run(), *map(_cover, self._end())]

    def _start_run(self) -> list[Frame]:
        if self._is_started:
            return []
        self._is_started = True
        start = _cover({"type": "RUN_STARTED", **self._ids, "protocolVersion": VERSION})
        self._lanes.read(start)
        return [start]

    def _read(self, lane: Lane, event: ev.Event, source: Iterable[Frame]) -> list[Frame]:
        """Return the frames from `source`. If they do not decode to `event`, add a ``CUSTOM`` frame that does."""
        frames: list[Frame] = []
        events: list[ev.Event] = []
        for untagged in source:
            frames.append(frame := _tag(lane, untagged))
            events += self._lanes.read(frame)
        if events == [event]:
            return frames
        own = {"type": "CUSTOM", "name": OWN, "value": self._fold.packed(event)}
        return [*map(_cover, frames), _tag(lane, own)]

    def _frames(self, lane: Lane, event: ev.Event) -> Iterable[Frame]:
        match event:
            case ev.MessageStarted():
                return [*_end_step(lane), {"type": "STEP_STARTED", "stepName": str(lane.steps + 1)}]
            case ev.TextDelta(delta=delta, id=id):
                return self._delta(lane, "TEXT", id, delta)
            case ev.ThinkingDelta(delta=delta, id=id) if delta:
                return self._delta(lane, "REASONING", id, delta)
            case ev.TextCompleted(text=text, id=id):
                return self._complete_block(lane, "TEXT", id, text)
            case ev.ThinkingCompleted(text="", signature=None, id=id) if (
                open_block(lane.blocks, "REASONING", id) is None
            ):
                return []  # an empty message would stay in the client's history
            case ev.ThinkingCompleted(text=text, signature=signature, id=id):
                return self._complete_block(lane, "REASONING", id, text, signature)
            case ev.ToolCallStarted() | ev.ToolCallDelta() | ev.ToolCallCompleted():
                return self._call(lane, event)
            case ev.ToolResultEncoded(id=id, content=content):
                return [self._result(lane, id, content)]
            case ev.ToolHalt(tool_call_id=id, content=content, result=result):
                return [self._result(lane, id, str(result) if content is None else content)]
            case ev.ToolExecutionCompleted(id=id, error=error):
                return self._end_agents(lane, id, error)
            case ev.Custom(name=name) if name != OWN:
                return [{"type": "CUSTOM", "name": name, "value": serializer.to_data(event).get("data")}]
            case ev.Steered(message=Message(role="user", content=str(text)), used=True):
                name = self._mint()
                start: Frame = {"type": "TEXT_MESSAGE_START", "messageId": name, "role": "user"}
                return [start, _content("TEXT", name, text), *_end_block("TEXT", name)]
            case ev.MessageCompleted() | ev.ErrorEvent():
                return _close_parts(lane)
            case ev.StepCompleted() | ev.ChatCompleted():
                return _end_step(lane)
            case ev.StepRestarted():
                return self._restart_step(lane)
            case _:
                return []

    def _next_delta(self, event: ev.TextDelta) -> Frame | None:
        """Return the frame for `event` if it continues the only open block; otherwise return None."""
        blocks = self._lanes.lane(None).blocks
        if len(blocks) == 1:
            (block,) = blocks.values()
            if block.kind == "TEXT" and block.id == event.id:
                block.pieces.append(event.delta)
                return _content("TEXT", block.name, event.delta)
        return None

    def _delta(self, lane: Lane, kind: str, id: str | None, delta: str) -> list[Frame]:
        frames, block = self._block(lane, kind, id)
        return [*frames, _content(kind, block.name, delta)]

    def _complete_block(
        self, lane: Lane, kind: str, id: str | None, text: str, signature: str | None = None
    ) -> list[Frame]:
        frames, block = self._block(lane, kind, id)
        if left_out := rest(text, block.text):
            frames.append(_content(kind, block.name, left_out))
        return [*frames, *_end_block(kind, block.name, signature)]

    def _block(self, lane: Lane, kind: str, id: str | None) -> tuple[list[Frame], Block]:
        """Return (frames, block). `frames` opens the block, and is empty if the block is already open."""
        block = open_block(lane.blocks, kind, id)
        if block is not None:
            return [], block
        name = self._mint(id)
        start: Frame = {"type": f"{kind}_MESSAGE_START", "messageId": name}
        if kind == "TEXT":
            frames: list[Frame] = [{**start, "role": "assistant"}]
        else:
            frames = [{"type": "REASONING_START", "messageId": name}, {**start, "role": "reasoning"}]
        return frames, Block(kind, id, name)

    def _mint(self, id: str | None = None) -> str:
        """Return a new id that is unique within the conversation."""
        self._minted += 1
        return ":".join((self._ids["runId"], str(self._minted), *(() if id is None else (id,))))

    def _call(self, lane: Lane, event: ev.ToolCallStarted | ev.ToolCallDelta | ev.ToolCallCompleted) -> list[Frame]:
        wire_id = lane.wire_id(event.id)
        call = lane.calls.get(wire_id)
        end: Frame = {"type": "TOOL_CALL_END", "toolCallId": wire_id}
        if isinstance(event, ev.ToolCallDelta):
            return [] if call is None else [_arguments(wire_id, event.arguments_delta)]
        start: Frame = {"type": "TOOL_CALL_START", "toolCallId": wire_id, "toolCallName": event.name}
        start["parentMessageId"] = lane.parent or self._mint()
        if isinstance(event, ev.ToolCallStarted):
            return [start] if call is None else [end, start]
        frames = [start] if call is None else []
        if left_out := rest(event.raw_arguments, "" if call is None else "".join(call.pieces)):
            frames.append(_arguments(wire_id, left_out))
        return [*frames, end]

    def _result(self, lane: Lane, id: str, content: str) -> Frame:
        result = {"type": "TOOL_CALL_RESULT", "messageId": self._mint(), "toolCallId": lane.wire_id(id)}
        return {**result, "content": content, "role": "tool"}

    def _begin_agents(self, path: Path, frames: list[Frame]) -> Lane:
        """Return the lane at `path`. Append to `frames` the frames that start any new agents."""
        lane = self._lanes.lane(None)
        for call in path:
            if call not in lane.agents:
                start: Frame = {"type": "SUBAGENT_STARTED", "subagentRunId": self._mint()}
                start |= {"name": lane.names.get(call, call), "parentToolCallId": lane.wire_id(call)}
                if lane.run is not None:
                    start["parentSubagentRunId"] = lane.run
                self._lanes.read(start)
                frames.append(start)
            lane = lane.agents[call]
        return lane

    def _end_agents(
        self,
        lane: Lane,
        call: str | None = None,
        error: LLMError | None = None,
        interrupts: Mapping[str, list[str]] = ev.NOTHING,
    ) -> list[Frame]:
        """Return the frames that end inner agents, innermost first."""
        frames: list[Frame] = []
        for id in [*reversed(lane.agents)] if call is None else [call] if call in lane.agents else []:
            agent = lane.agents.pop(id)
            end: Frame = {"type": "SUBAGENT_FINISHED"}
            waiting = interrupts.get(agent.wire_id(""))
            if error is not None:
                end = {"type": "SUBAGENT_ERROR", "message": error.message, "code": error.reason}
            elif waiting:
                end["outcome"] = {"type": "suspended", "interruptIds": waiting}
            frames += self._end_agents(agent, interrupts=interrupts)
            frames += [_tag(agent, frame) for frame in (*_end_step(agent), end)]
        return frames

    def _restart_step(self, lane: Lane) -> Iterator[Frame]:
        yield from [*self._end_agents(lane), *_close_parts(lane)]
        noted, depth = self._lanes.messages, len(lane.path)
        kept = [entry for entry in noted if entry[0] <= lane.mark or entry[1][:depth] != lane.path]
        self._lanes.keep(kept)
        if self._history is None:
            return
        messages = [*self._history, *(message for _, _, message in kept)]
        if not any(message.get("role") == "reasoning" for message in messages):
            # Clients delete old reasoning messages only if the snapshot contains a reasoning message.
            thoughts = [message for _, _, message in noted if message["role"] == "reasoning"]
            messages += [{**message, "content": ""} for message in thoughts[:1]]
        yield {"type": "MESSAGES_SNAPSHOT", "messages": messages}

    def _end(self) -> list[Frame]:
        state, root = self._fold.state, self._lanes.lane(None)
        error = state.error if state.chat_result is None else state.chat_result.error
        if self._fold.is_answering:
            error = StreamError("truncated")
        ending: Frame = _outcome(state, self._lanes, self._edits) if error is None else {"type": "cancelled"}
        waiting: dict[str, list[str]] = {}  # the ids of interrupts, by the prefix of each enclosing agent
        for interrupt in ending.get("interrupts", ()):
            for end in [place for place, char in enumerate(interrupt["id"], 1) if char == "/"]:
                waiting.setdefault(interrupt["id"][:end], []).append(interrupt["id"])
        frames = [*self._end_agents(root, interrupts=waiting), *_end_step(root)]
        usage = _usage(state.to_chat_result().usage, (state.last_response or state.to_response()).model)
        if error is None or error.reason == "cancelled":
            return [*frames, {"type": "RUN_FINISHED", **self._ids, "outcome": ending, **usage}]
        return [*frames, {"type": "RUN_ERROR", "message": error.message, "code": error.reason, **usage}]


def _close_parts(lane: Lane) -> list[Frame]:
    calls = [{"type": "TOOL_CALL_END", "toolCallId": id} for id in lane.calls]
    return [*(frame for block in lane.blocks.values() for frame in _end_block(block.kind, block.name)), *calls]


def _end_block(kind: str, name: str, signature: str | None = None) -> list[Frame]:
    end: Frame = {"type": f"{kind}_MESSAGE_END", "messageId": name}
    if kind == "TEXT":
        return [end]
    signed: Frame = {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": name}
    signatures = [] if signature is None else [{**signed, "encryptedValue": signature}]
    return [end, *signatures, {"type": "REASONING_END", "messageId": name}]


def _end_step(lane: Lane) -> list[Frame]:
    end = [] if lane.step is None else [{"type": "STEP_FINISHED", "stepName": lane.step}]
    return [*_close_parts(lane), *end]


def _content(kind: str, name: str, delta: str) -> Frame:
    return {"type": f"{kind}_MESSAGE_CONTENT", "messageId": name, "delta": delta}


def _arguments(wire_id: str, delta: str) -> Frame:
    return {"type": "TOOL_CALL_ARGS", "toolCallId": wire_id, "delta": delta}


def _tag(lane: Lane, frame: Frame) -> Frame:
    """Add the agent's id to `frame`, unless `frame` is a snapshot, which covers the whole conversation."""
    if lane.run is None or "subagentRunId" in frame or frame["type"] == "MESSAGES_SNAPSHOT":
        return frame
    return {**frame, "subagentRunId": lane.run}


def _cover(frame: Frame) -> Frame:
    return {**frame, "rawEvent": OWN}


_APPROVAL = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
_EDITED = {**_APPROVAL, "editedArgs": {"type": "object"}}


def _outcome(state: StreamCollector, lanes: Lanes, edits: bool) -> Frame:
    """Return the outcome of a run that did not fail: an interrupt, or success with a list of any pending calls."""
    if state.chat_result is not None:
        metadata, calls = state.chat_result.metadata, state.chat_result.pending_tool_calls
        question, id = state.chat_result.pending_question, state.chat_result.pending_tool_call_id
        asks = state.chat_result.halted_reason == "approval"
    else:
        metadata: Mapping[str, Any] = state.steps[-1].metadata if state.steps else {}
        calls = (*metadata.get("manual_tool_calls", ()), *metadata.get("approval_tool_calls", ()))
        question, id = metadata.get("pending_question"), metadata.get("pending_tool_call_id")
        asks = "approval_tool_calls" in metadata
    manual = {call.id for call in metadata.get("manual_tool_calls", ())}
    interrupts = [_approval(call, edits) for call in calls if asks and call.id not in manual]
    if question is not None and id is not None:
        interrupts.append(_question(id, question, metadata.get("ask_user_opts")))
    if interrupts:
        runs = {"/".join(lane.path): lane.run for lane in lanes.by_run.values() if lane.run}
        agents = [runs.get(frame["toolCallId"].rpartition("/")[0]) for frame in interrupts]
        named = [
            frame if run is None else {**frame, "subagentRunId": run}
            for frame, run in zip(interrupts, agents, strict=True)
        ]
        return {"type": "interrupt", "interrupts": named}
    return {"type": "success", **({"pendingToolCallIds": [call.id for call in calls]} if calls else {})}


def _approval(call: ToolCall, edits: bool) -> Frame:
    shown = call.id if call.metadata.get("interrupted") is True else approval_id(call)
    frame: Frame = {"id": shown, "toolCallId": call.id, "reason": "tool_call", "message": f"Run {call.name}?"}
    schema = {"type": "object", "properties": _EDITED if edits else _APPROVAL, "required": ["approved"]}
    return {**frame, "responseSchema": schema}


def _question(id: str, question: str, opts: Any) -> Frame:
    frame: Frame = {"id": id, "toolCallId": id, "reason": "input_required", "message": question}
    metadata = {"metadata": {"opts": serializer.to_data(ev.Custom("", opts))["data"]}} if opts else {}
    return {**frame, "responseSchema": {"type": "string"}, **metadata}


def _usage(usage: Usage, model: str | None) -> Frame:
    counts: Frame = {name: getattr(usage, field) for name, field in COUNTS.items()}
    known: Frame = {name: count for name, count in counts.items() if isinstance(count, int) and 0 <= count < 2**53}
    if known and model is not None:
        known["model"] = model
    return {"usage": [known]} if known else {}

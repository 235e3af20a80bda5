"""The Vercel UI message stream, version 1: what ``useChat`` and ``readUIMessageStream`` of the npm package ``ai`` read.

============================================  ==========================================================================
event                                         frames
============================================  ==========================================================================
``MessageStarted``                            ``finish-step`` if a step is open, ``start-step``
``TextDelta``, ``TextCompleted``              ``text-start``, ``text-delta``, ``text-end``
``ThinkingDelta``, ``ThinkingCompleted``      ``reasoning-start``, ``-delta``, ``-end``, with the signature
``ToolCallStarted``, ``-Delta``               ``tool-input-start``, ``tool-input-delta``, always ``dynamic``
``ToolCallCompleted``                         ``tool-input-available``; ``tool-input-error`` if it is not a JSON object
``ToolApprovalRequested``                     ``tool-approval-request``; the approval's id is the call's
``ToolProgress``                              ``tool-output-available``, ``preliminary``
``ToolExecutionCompleted``                    ``tool-output-available``, ``tool-output-error``, ``tool-output-denied``
``SourceAdded``, ``FileAdded``                ``source-url`` if it has a URL, ``file``
``UsageUpdated``                              ``message-metadata`` with ``{"usage": ...}``
``Custom(name, data)``                        ``data-NAME``
``StepRestarted``                             ``reset-step``
``ErrorEvent``                                open parts are closed, ``error``; ``abort`` if it was cancelled
``StepCompleted``                             ``finish-step``
the end of the stream                         ``finish`` with the finish reason and the usage
============================================  ==========================================================================

What these cannot say goes before them in ``data-rxllm``, a transient part that other clients ignore: ``event`` is the
event, ``covers`` is the number of frames after it that stand for no event of their own, and ``folded`` says that its
message or result is what the events so far fold to. The encoder reads its own frames, and adds that part wherever they
mean anything but the event; so only raw frames are lost.

A call inside an agent that waits for approval is announced like one outside, by the ids of the calls around it and its
own, joined by ``/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from rxllm import Nested, StreamError, ToolCall, ToolError, Usage, serializer
from rxllm import events as ev
from rxllm.web._codec import Block, Frame, all_of, event_data, malformed, open_block, rest, text_of
from rxllm.web._for_client import ClientFold
from rxllm.web._ui_content import (
    ForeignSteps,
    call_frame,
    completed_call,
    content_frames,
    extra,
    own_data,
    read_content,
    server,
)

_FINISH_REASONS = {"tool_calls": "tool-calls", "content_filter": "content-filter"}

_SILENT = ("start", "start-step", "finish-step", "finish", "steering-message", "tool-approval-response")
"""The types of the frames that mean no event by themselves."""


class Encoder:
    """Events to frames."""

    END: ClassVar[bytes] = b"data: [DONE]\n\n"
    HEADERS: ClassVar[dict[str, str]] = {
        "content-type": "text/event-stream",
        "x-vercel-ai-ui-message-stream": "v1",
    }

    def __init__(self) -> None:
        self._decoder = Decoder(is_ours=True)
        self._minted = 0
        self._is_started = False
        self._step: str | None = None  # "open", or "reset" when it is to begin again
        self._counters: dict[str, None] = {}  # of usage, as far as they were sent

    def feed(self, event: ev.Event) -> list[Frame]:
        """Return the frames of `event`. Raises ``ValidationError("not_serializable")`` as the serializer does."""
        if isinstance(event, ev.RawChunk):
            return []
        frames = self._frames(event)
        if [means for frame in frames for means in self._decoder.read(frame)] != [event]:
            frames = _cover(self._decoder.fold.packed(event), frames)
        self._decoder.apply(event)
        return [*self._start(), *frames]

    def close(self) -> list[Frame]:
        fold = self._decoder.fold
        state = fold.state
        reason = state.to_response().finish_reason
        frames = self._ended_parts()
        if fold.is_answering:
            reason = "error"
            frames.append({"type": "error", "errorText": StreamError("truncated").message})
        finish: Frame = {"type": "finish"}
        if reason is not None:
            finish["finishReason"] = _FINISH_REASONS.get(reason, reason)
        if state.chat_result is not None:
            finish["messageMetadata"] = self._usage(state.chat_result.usage)
        return [*self._start(), *_cover({}, [*frames, *self._ended_step(), finish])]

    def _start(self) -> list[Frame]:
        was_started, self._is_started = self._is_started, True
        return [] if was_started else [{"type": "start"}, *_cover({}, [])]

    def _frames(self, event: ev.Event) -> list[Frame]:
        match event:
            case ev.TextDelta(delta=delta, id=id):
                return self._delta("text", id, delta)
            case ev.ThinkingDelta(delta=delta, id=id):
                return self._delta("reasoning", id, delta)
            case ev.TextCompleted(text=text, id=id):
                return self._completed("text", id, text, {})
            case ev.ThinkingCompleted(text=text, signature=signature, id=id):
                return self._completed("reasoning", id, text, extra("signature", signature))
            case ev.ToolCallDelta(id=id) if id not in self._decoder.calls:
                return []
            case ev.UsageUpdated(usage=usage):
                return [{"type": "message-metadata", "messageMetadata": self._usage(usage)}]
            case ev.ToolApprovalRequested(id=id):
                return [_approval(id)]
            case Nested(path=path, event=ev.ToolApprovalRequested() as inner):
                id = "/".join((*path, inner.id))
                call = call_frame("tool-input-available", id, inner.name, {}, input=event_data(inner)["arguments"])
                return [call, _approval(id)]
            case _:
                return self._structure(event) or content_frames(event, self._mint)

    def _structure(self, event: ev.Event) -> list[Frame]:
        match event:
            case ev.MessageStarted():
                return [*self._ended_parts(), *self._begun_step()]
            case ev.MessageCompleted():
                return self._ended_parts()
            case ev.StepRestarted():
                was_open, self._step = self._step is not None, self._step and "reset"
                return [{"type": "reset-step"}] if was_open else []
            case ev.ErrorEvent(error=error):
                if error.reason == "cancelled":
                    return [*self._ended_parts(), {"type": "abort", "reason": error.message}]
                return [*self._ended_parts(), {"type": "error", "errorText": error.message}]
            case ev.StepCompleted() | ev.ChatCompleted():
                return [*self._ended_parts(), *self._ended_step()]
            case _:
                return []

    def _begun_step(self) -> list[Frame]:
        frames: list[Frame] = [] if self._step == "reset" else [*self._ended_step(), {"type": "start-step"}]
        self._step = "open"
        return frames

    def _ended_step(self) -> list[Frame]:
        was_open, self._step = self._step is not None, None
        return [{"type": "finish-step"}] if was_open else []

    def _ended_parts(self) -> list[Frame]:
        """Return the frames that close what is open: a browser would show it as still streaming forever."""
        decoder = self._decoder
        blocks: list[Frame] = [{"type": f"{kind}-end", "id": name} for kind, name in decoder.blocks]
        calls = [
            call_frame("tool-input-error", id, decoder.names[id], {}, input="".join(pieces), errorText="incomplete")
            for id, pieces in decoder.calls.items()
        ]
        return [*blocks, *calls]

    def _usage(self, usage: Usage) -> Frame:
        """Return the metadata of a message; a browser merges it with what was sent before, so None takes the place."""
        counters = {name: value for name, value in serializer.to_data(usage).items() if name not in ("$", "v")}
        data = {**self._counters, **counters}
        self._counters |= dict.fromkeys(name for name, value in counters.items() if not isinstance(value, dict))
        return {"usage": data}

    def _delta(self, kind: str, id: str | None, delta: str) -> list[Frame]:
        frames, block = self._block(kind, id)
        return [*frames, {"type": f"{kind}-delta", "id": block.name, "delta": delta}]

    def _completed(self, kind: str, id: str | None, text: str, extra: Frame) -> list[Frame]:
        frames, block = self._block(kind, id)
        if left_out := rest(text, block.text):
            frames += _cover({}, [{"type": f"{kind}-delta", "id": block.name, "delta": left_out}])
        return [*frames, {"type": f"{kind}-end", "id": block.name, **extra}]

    def _block(self, kind: str, id: str | None) -> tuple[list[Frame], Block]:
        """Return the block that `id` means, after the frames that begin it."""
        block = open_block(self._decoder.blocks, kind, id)
        if block is not None:
            return [], block
        name = self._mint() if id is None else f"{self._mint()}:{id}"
        return [{"type": f"{kind}-start", "id": name}], Block(kind, id, name)

    def _mint(self) -> str:
        self._minted += 1
        return str(self._minted - 1)


class Decoder:
    """Frames to events; those of other servers too, whose steps and chat are what their frames fold to."""

    def __init__(self, is_ours: bool = False) -> None:
        self.fold = ClientFold()
        self.blocks: dict[tuple[str, str], Block] = {}  # the open ones, by kind and name
        self.calls: dict[str, list[str]] = {}  # the pieces of the open ones, by id
        self.names: dict[str, str] = {}  # of the tools of all calls
        self._covered = 0
        self._has_start = False
        self._is_ended = False  # by its finish, or by an error
        self._is_finished = False
        self._foreign = None if is_ours else ForeignSteps(self.fold)

    def feed(self, frame: Frame) -> list[ev.Event]:
        return all_of(frame, self._applied(frame))

    def close(self) -> list[ev.Event]:
        if self._foreign and self.fold.state.length and not (self._has_start or self.blocks or self.calls):
            return self.feed({"type": "finish"})  # written by hand, without the frames of a whole run
        return [] if self._is_ended else [ev.ErrorEvent(StreamError("truncated"))]

    def _applied(self, frame: Frame) -> Iterator[ev.Event]:
        for event in self.read(frame):
            self.apply(event)
            yield event

    def apply(self, event: ev.Event) -> None:
        """Take note of an event that a frame means."""
        self.fold.apply(event)
        match event:
            case ev.ToolCallStarted(id=id, name=name):
                self.names[id] = name
                self.calls[id] = []
            case ev.ToolCallDelta(id=id, arguments_delta=delta):
                if id in self.calls:
                    self.calls[id].append(delta)
            case ev.ToolCallCompleted(id=id, name=name):
                self.names[id] = name
                self.calls.pop(id, None)
            case ev.ErrorEvent():
                self._is_ended = True
                self.calls.clear()
            case ev.MessageStarted() | ev.MessageCompleted() | ev.StepRestarted() | ev.StepCompleted():
                self.calls.clear()
            case _:
                pass

    def read(self, frame: Frame) -> Iterator[ev.Event]:
        """Return the events that `frame` means, each of which is to be applied before the next."""
        if self._is_finished:
            raise malformed(frame)
        kind: str = frame["type"]
        is_covered = self._covered > 0
        self._covered -= is_covered
        if kind == "data-rxllm":
            yield from self._own(frame["data"])
        elif self._foreign is None:
            events = list(self._events(kind, frame))
            yield from () if is_covered else events
        else:
            yield from self._foreign.before(kind, frame)
            yield from self._foreign.after(kind, self._events(kind, frame))

    def _own(self, data: Any) -> list[ev.Event]:
        self._foreign = None
        covers = data.get("covers", 0)
        if not isinstance(covers, int) or covers < 0:
            raise ValueError("covers is not a number of frames")
        self._covered = covers
        return [self.fold.unpacked(data)] if "event" in data else []

    def _events(self, kind: str, frame: Frame) -> list[ev.Event]:
        self._has_start = self._has_start or kind == "start"
        self._is_finished = kind == "finish"
        self._is_ended = self._is_ended or self._is_finished
        match kind:
            case "reset-step":
                self.blocks.clear()
                return [ev.StepRestarted("reset", 1)]
            case "error":
                return [ev.ErrorEvent(StreamError("adapter_error", str(frame["errorText"])))]
            case "abort":
                return [ev.ErrorEvent(StreamError("cancelled", str(frame.get("reason", "the server has stopped it"))))]
            case _ if kind in _SILENT:
                return []
            case _:
                pass
        name, _, place = kind.partition("-")
        if name in ("text", "reasoning") and place != "file":
            return self._of_block(name, place, frame)
        return self._of_call(frame) if name == "tool" else read_content(frame)

    def _of_block(self, kind: str, place: str, frame: Frame) -> list[ev.Event]:
        name: str = frame["id"]
        if place == "start":
            _, colon, id = name.partition(":")
            self.blocks[kind, name] = Block(kind, name if self._foreign else id if colon else None, name)
            return []
        block = self.blocks[kind, name]
        if place == "delta":
            delta = text_of(frame, "delta")
            block.pieces.append(delta)
            return [ev.TextDelta(delta, block.id) if kind == "text" else ev.ThinkingDelta(delta, block.id)]
        if place != "end":
            raise malformed(frame)
        del self.blocks[kind, name]
        if kind == "text":
            return [ev.TextCompleted(block.text, block.id)]
        signature: Any = own_data(frame, "signature", None)
        return [ev.ThinkingCompleted(block.text, signature if isinstance(signature, str) else None, None, block.id)]

    def _of_call(self, frame: Frame) -> list[ev.Event]:
        id = text_of(frame, "toolCallId")
        name = self.names.get(id, "")
        match frame:
            case {"type": "tool-input-delta", "inputTextDelta": str(delta)} if id in self.calls:
                return [ev.ToolCallDelta(id, delta)]
            case {"type": "tool-input-start", "toolName": str(name)}:
                return [ev.ToolCallStarted(id, name, server(frame))]
            case {"type": "tool-input-available" | "tool-input-error" as kind, "toolName": str(name)}:
                started = [] if id in self.calls else [ev.ToolCallStarted(id, name, server(frame))]
                text = "".join(self.calls.get(id, ()))
                return [*started, completed_call(id, name, text, frame, kind == "tool-input-available")]
            case {"type": "tool-approval-request"}:
                call = self.fold.state.current_tool_calls.get(id) or ToolCall(id, name)
                return [ev.ToolApprovalRequested(id, call.name, call.arguments)]
            case {"type": "tool-output-available", "preliminary": True}:
                return [ev.ToolProgress(id, name, frame.get("output"))]
            case {"type": "tool-output-available"}:
                return [ev.ToolExecutionCompleted(id, name, frame.get("output"))]
            case {"type": "tool-output-error", "errorText": str(text)}:
                error = ToolError("handler_raised", text, tool_name=name, tool_call_id=id)
            case {"type": "tool-output-denied"}:
                error = ToolError("denied", tool_name=name, tool_call_id=id)
            case _:
                raise malformed(frame)
        return [ev.ToolExecutionCompleted(id, name, error=error)]


def _approval(id: str) -> Frame:
    return {"type": "tool-approval-request", "approvalId": id, "toolCallId": id}


def _cover(data: Frame, frames: list[Frame]) -> list[Frame]:
    """Return `frames` after the part that says what they stand for."""
    covers = {"covers": len(frames)} if frames else {}
    return [{"type": "data-rxllm", "data": {**data, **covers}, "transient": True}, *frames]

"""The Vercel UI message stream, version 1, for ``useChat``.

============================================  ==========================================================================
event                                         frames
============================================  ==========================================================================
``MessageStarted``                            ``finish-step`` if a step is open; then ``start-step``
``TextDelta``, ``TextCompleted``              ``text-start``, ``text-delta``, ``text-end``
``ThinkingDelta``, ``ThinkingCompleted``      ``reasoning-start``, ``-delta``, ``-end``, with the signature
``ToolCallStarted``, ``-Delta``               ``tool-input-start``, ``tool-input-delta``; tools are always ``dynamic``
``ToolCallCompleted``                         ``tool-input-available``, or ``tool-input-error`` if the arguments are not
                                              a JSON object; a vetoed call always has ``tool-input-available``
``ToolApprovalRequested``                     ``tool-approval-request``; the approval has the same id as the call
``ToolProgress``                              ``tool-output-available`` with ``preliminary``
``ToolExecutionCompleted``                    ``tool-output-available``, ``tool-output-error`` or ``tool-output-denied``
``ToolResultEncoded``                         ``tool-output-available`` if the call has no output yet
``SourceAdded``                               ``source-url`` if the source has a URL
``FileAdded``                                 ``file``
``UsageUpdated``                              ``message-metadata`` with ``{"usage": ...}``
``Custom(name, data)``                        ``data-NAME``
``StepRestarted``                             ``reset-step``
``ErrorEvent``                                frames that end the open parts, then ``error``, or ``abort`` if cancelled
``StepCompleted``                             ``finish-step``
the end of the stream                         ``finish`` with the finish reason and the usage
============================================  ==========================================================================

Some events do not fit completely into these frames. To find them, the encoder decodes its own frames. If the result is
not the original event, the encoder puts a ``data-rxllm`` frame before the event's other frames. Clients other than
rxllm's own ignore the ``data-rxllm`` frame. All its fields are optional. ``event`` is the event as JSON. ``folded`` is
true if parts of the event are missing because earlier events contain them. ``covers`` is the number of following frames
for which the decoder emits no events. Raw chunks and provider parts are never sent. The decoder cannot read frames from
servers that do not use rxllm.

In an approval request from an inner agent, the call's id is prefixed with the ids of the enclosing calls, joined by
``/``. The ``approvalId`` is `rxllm.web.approval_id` of the call, so that an answer approves only what the user saw.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from rxllm import LLMError, Nested, StreamError, ToolCall, ToolError, Usage, serializer
from rxllm import events as ev
from rxllm.web._for_client import ClientFold
from rxllm.web._frames import Block, Frame, all_of, approval_id, event_data, malformed, open_block, rest, text_of

_FINISH_REASONS = {"tool_calls": "tool-calls", "content_filter": "content-filter"}


class Encoder:
    END: ClassVar[bytes] = b"data: [DONE]\n\n"
    HEADERS: ClassVar[dict[str, str]] = {
        "content-type": "text/event-stream",
        "x-vercel-ai-ui-message-stream": "v1",
    }

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._minted = 0
        self._is_started = False
        # "open" if a step is open, "reset" if the step was reset and has not started again, otherwise None.
        self._step: str | None = None
        self._counters: dict[str, None] = {}  # the usage counters that have been sent so far

    def feed(self, event: ev.Event) -> list[Frame]:
        """Return the frames for `event`.

        Raises ``ValidationError("not_serializable")`` if `event` has no JSON form.
        """
        if isinstance(event, ev.RawChunk | ev.PartAdded):
            return []
        frames = self._frames(event)
        if [read for frame in frames for read in self._decoder.read(frame)] != [event]:
            frames = _cover(self._decoder.fold.packed(event), frames)
        self._decoder.apply(event)
        return [*self._start(), *frames]

    def close(self) -> list[Frame]:
        fold = self._decoder.fold
        state = fold.state
        reason = state.to_response().finish_reason
        frames = self._end_parts()
        if fold.is_answering:
            reason = "error"
            frames.append({"type": "error", "errorText": StreamError("truncated").message})
        finish: Frame = {"type": "finish"}
        if reason is not None:
            finish["finishReason"] = _FINISH_REASONS.get(reason, reason)
        if state.chat_result is not None:
            finish["messageMetadata"] = self._usage(state.chat_result.usage)
        return [*self._start(), *_cover({}, [*frames, *self._end_step(), finish])]

    def _start(self) -> list[Frame]:
        was_started, self._is_started = self._is_started, True
        return [] if was_started else [{"type": "start"}, *_cover({}, [])]

    def _frames(self, event: ev.Event) -> list[Frame]:
        match event:
            case ev.TextDelta(delta=delta, id=id):
                return self._delta("text", id, delta)
            case ev.ThinkingDelta(delta=delta, id=id) if delta:
                return self._delta("reasoning", id, delta)
            case ev.TextCompleted(text=text, id=id, refusal=refusal):
                return self._complete_block("text", id, text, _own("refusal", refusal or None))
            case ev.ThinkingCompleted(text=text, signature=signature, id=id):
                return self._complete_block("reasoning", id, text, _own("signature", signature))
            case ev.MessageStarted():
                step = [] if self._step == "reset" else [*self._end_step(), {"type": "start-step"}]
                self._step = "open"
                return [*self._end_parts(), *step]
            case ev.MessageCompleted():
                return self._end_parts()
            case ev.StepRestarted():
                was_open, self._step = self._step is not None, self._step and "reset"
                return [{"type": "reset-step"}] if was_open else []
            case ev.StepCompleted() | ev.ChatCompleted():
                return [*self._end_parts(), *self._end_step()]
            case ev.ErrorEvent(error=error):
                if error.reason == "cancelled":
                    return [*self._end_parts(), {"type": "abort", "reason": error.message}]
                return [*self._end_parts(), {"type": "error", "errorText": error.message}]
            case ev.ToolCallDelta(id=id) if id not in self._decoder.calls:
                return []
            case ev.ToolApprovalRequested(id=id):
                return [_approval(id, event)]
            case Nested(path=path, event=ev.ToolApprovalRequested() as inner):
                id = "/".join((*path, inner.id))
                call = _call("tool-input-available", id, inner.name, {}, input=event_data(inner)["arguments"])
                return [call, _approval(id, inner)]
            case _:
                return self._content(event)

    def _content(self, event: ev.Event) -> list[Frame]:
        """Return a list with the single frame for `event`, or an empty list if browsers cannot show the event."""
        match event:
            case ev.ToolCallStarted(id=id, name=name, metadata=metadata):
                return [_call("tool-input-start", id, name, metadata)]
            case ev.ToolCallDelta(id=id, arguments_delta=delta):
                return [{"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": delta}]
            case ev.ToolCallCompleted(id=id, name=name, metadata={"error": error} as own) if "vetoed" not in own:
                raw = event.raw_arguments
                return [_call("tool-input-error", id, name, own, input=raw, errorText=str(error))]
            case ev.ToolCallCompleted(id=id, name=name, metadata=metadata):
                return [_call("tool-input-available", id, name, metadata, input=event_data(event)["arguments"])]
            case ev.ToolProgress(id=id):
                output = event_data(event)["data"]
                return [{"type": "tool-output-available", "toolCallId": id, "output": output, "preliminary": True}]
            case ev.ToolResultEncoded(id=id, content=content) if id in self._decoder.unanswered:
                return [{"type": "tool-output-available", "toolCallId": id, "output": content}]
            case ev.ToolExecutionCompleted(id=id, error=None):
                return [{"type": "tool-output-available", "toolCallId": id, "output": event_data(event).get("result")}]
            case ev.ToolExecutionCompleted(id=id, error=ToolError(reason="denied")):
                return [{"type": "tool-output-denied", "toolCallId": id}]
            case ev.ToolExecutionCompleted(id=id, error=LLMError(message=message)):
                return [{"type": "tool-output-error", "toolCallId": id, "errorText": message}]
            case ev.UsageUpdated(usage=usage):
                return [{"type": "message-metadata", "messageMetadata": self._usage(usage)}]
            case ev.Custom(name=name) if name != "rxllm":
                return [{"type": f"data-{name}", "data": event_data(event).get("data")}]
            case ev.SourceAdded(source={"url": str(url)} as source):
                titled = {"title": source["title"]} if isinstance(source.get("title"), str) else {}
                own = {} if set(source) == {"url", *titled} else _own("source", event_data(event)["source"])
                return [{"type": "source-url", "sourceId": f"source-{self._mint()}", "url": url, **titled, **own}]
            case ev.FileAdded(file={"mime_type": str(mime_type), "data": bytes(data), **fields}):
                return [_file(f"data:{mime_type};base64,{base64.b64encode(data).decode()}", mime_type, fields)]
            case ev.FileAdded(file={"mime_type": str(mime_type), "url": str(url), **fields}):
                return [_file(url, mime_type, fields)]
            case _:
                return []

    def _end_step(self) -> list[Frame]:
        was_open, self._step = self._step is not None, None
        return [{"type": "finish-step"}] if was_open else []

    def _end_parts(self) -> list[Frame]:
        decoder = self._decoder
        blocks: list[Frame] = [{"type": f"{kind}-end", "id": name} for kind, name in decoder.blocks]
        calls = [
            _call("tool-input-error", id, decoder.names[id], {}, input="".join(pieces), errorText="incomplete")
            for id, pieces in decoder.calls.items()
        ]
        return [*blocks, *calls]

    def _usage(self, usage: Usage) -> Frame:
        """Return message metadata that contains the usage."""
        counters = {name: value for name, value in serializer.to_data(usage).items() if name not in ("$", "v")}
        # Browsers merge the metadata, so a counter that is now missing must be sent as None.
        data = {**self._counters, **counters}
        self._counters |= dict.fromkeys(name for name, value in counters.items() if not isinstance(value, dict))
        return {"usage": data}

    def _delta(self, kind: str, id: str | None, delta: str) -> list[Frame]:
        frames, block = self._block(kind, id)
        return [*frames, {"type": f"{kind}-delta", "id": block.name, "delta": delta}]

    def _complete_block(self, kind: str, id: str | None, text: str, extra: Frame) -> list[Frame]:
        frames, block = self._block(kind, id)
        if left_out := rest(text, block.text):
            frames += _cover({}, [{"type": f"{kind}-delta", "id": block.name, "delta": left_out}])
        return [*frames, {"type": f"{kind}-end", "id": block.name, **extra}]

    def _block(self, kind: str, id: str | None) -> tuple[list[Frame], Block]:
        """Return (frames, block). `frames` opens the block, and is empty if the block is already open."""
        block = open_block(self._decoder.blocks, kind, id)
        if block is not None:
            return [], block
        name = self._mint() if id is None else f"{self._mint()}:{id}"
        return [{"type": f"{kind}-start", "id": name}], Block(kind, id, name)

    def _mint(self) -> str:
        self._minted += 1
        return str(self._minted - 1)


class Decoder:
    def __init__(self) -> None:
        self.fold = ClientFold()
        self.blocks: dict[tuple[str, str], Block] = {}  # the open blocks, by kind and name
        self.calls: dict[str, list[str]] = {}  # the pieces of each open call's arguments, by call id
        self.names: dict[str, str] = {}  # the tool name of every call, by call id
        self._completed: dict[str, ToolCall] = {}  # the complete calls of the current step, by call id
        self.unanswered: set[str] = set()  # the ids of the complete calls that have no result yet
        self._covered = 0  # the number of upcoming frames that yield no events
        self._is_ended = False
        self._is_finished = False

    def feed(self, frame: Frame) -> list[ev.Event]:
        return all_of(frame, self._read_and_apply(frame))

    def close(self) -> list[ev.Event]:
        return [] if self._is_ended else [ev.ErrorEvent(StreamError("truncated"))]

    def _read_and_apply(self, frame: Frame) -> Iterator[ev.Event]:
        for event in self.read(frame):
            self.apply(event)
            yield event

    def read(self, frame: Frame) -> list[ev.Event]:
        """Return the events in `frame`. The caller must `apply` each event before it reads the next frame."""
        if self._is_finished:
            raise malformed(frame)
        if frame["type"] == "data-rxllm":
            return self._read_own(frame["data"])
        events = self._read(frame["type"], frame)
        if self._covered:
            self._covered -= 1
            return []
        return events

    def apply(self, event: ev.Event) -> None:
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
                self._completed[id] = event.tool_call
                self.unanswered.add(id)
            case ev.ToolExecutionCompleted(id=id) | ev.ToolResultEncoded(id=id):
                self.unanswered.discard(id)
            case ev.ErrorEvent():
                self._is_ended = True
                self.calls.clear()
            case ev.MessageStarted() | ev.MessageCompleted() | ev.StepRestarted() | ev.StepCompleted():
                self.calls.clear()
                if isinstance(event, ev.StepRestarted | ev.StepCompleted):
                    self._completed.clear()
            case _:
                pass

    def _read_own(self, data: Any) -> list[ev.Event]:
        covers = data.get("covers", 0)
        if not isinstance(covers, int) or covers < 0:
            raise ValueError("the field 'covers' must be an integer, 0 or greater")
        self._covered = covers
        return [self.fold.unpacked(data)] if "event" in data else []

    def _read(self, kind: str, frame: Frame) -> list[ev.Event]:
        match kind:
            case "start" | "start-step" | "finish-step":
                return []
            case "finish":
                self._is_finished = self._is_ended = True
                return []
            case "reset-step":
                self.blocks.clear()
                return [ev.StepRestarted("reset", 1)]
            case "error":
                return [ev.ErrorEvent(StreamError("adapter_error", str(frame["errorText"])))]
            case "abort":
                return [ev.ErrorEvent(StreamError("cancelled", str(frame["reason"])))]
            case _:
                pass
        name, _, place = kind.partition("-")
        if name in ("text", "reasoning"):
            return self._read_block(name, place, frame)
        return self._read_call(frame) if name == "tool" else _read_content(frame)

    def _read_block(self, kind: str, place: str, frame: Frame) -> list[ev.Event]:
        name: str = frame["id"]
        if place == "start":
            _, colon, id = name.partition(":")
            self.blocks[kind, name] = Block(kind, id if colon else None, name)
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
            return [ev.TextCompleted(block.text, block.id, refusal=_read_own_data(frame, "refusal", None) is True)]
        signature: Any = _read_own_data(frame, "signature", None)
        return [ev.ThinkingCompleted(block.text, signature if isinstance(signature, str) else None, None, block.id)]

    def _read_call(self, frame: Frame) -> list[ev.Event]:
        id = text_of(frame, "toolCallId")
        name = self.names.get(id, "")
        match frame:
            case {"type": "tool-input-delta", "inputTextDelta": str(delta)} if id in self.calls:
                return [ev.ToolCallDelta(id, delta)]
            case {"type": "tool-input-start", "toolName": str(name)}:
                return [ev.ToolCallStarted(id, name, _call_metadata(frame))]
            case {"type": "tool-input-available" | "tool-input-error" as kind, "toolName": str(name)}:
                started = [] if id in self.calls else [ev.ToolCallStarted(id, name, _call_metadata(frame))]
                text = "".join(self.calls.get(id, ()))
                return [*started, _complete_call(id, name, text, frame, kind == "tool-input-available")]
            case {"type": "tool-approval-request"}:
                call = self._completed.get(id) or ToolCall(id, name)
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


def _read_content(frame: Frame) -> list[ev.Event]:
    """Return the event in a frame that belongs to neither a block nor a tool call."""
    match frame:
        case {"type": "message-metadata", "messageMetadata": {"usage": {**counters}}}:
            return [ev.UsageUpdated(serializer.from_data(counters, Usage))]
        case {"type": "source-url", "url": str()}:
            source = {name: frame[name] for name in ("url", "title") if name in frame}
            return [ev.SourceAdded(dict(_read_own_data(frame, "source", source)))]
        case {"type": "file", "url": str(url), "mediaType": str(mime_type)}:
            header, _, data = url.partition(",")
            is_data = header.startswith("data:") and header.endswith(";base64")
            content = {"data": base64.b64decode(data, validate=True)} if is_data else {"url": url}
            return [ev.FileAdded({"mime_type": mime_type, **content, **_read_own_data(frame, "file", {})})]
        case {"type": str(kind)} if kind.startswith("data-"):
            return [ev.Custom(kind.removeprefix("data-"), frame.get("data"))]
        case _:
            raise malformed(frame)


def _complete_call(id: str, name: str, text: str, frame: Frame, is_available: bool) -> ev.ToolCallCompleted:
    """Return the event for a call whose arguments are complete."""
    value, metadata = frame.get("input"), _call_metadata(frame)
    if is_available and isinstance(value, dict):
        return ev.ToolCallCompleted(id, name, cast(dict[str, Any], value), text or json.dumps(value), metadata)
    text = value if isinstance(value, str) else text or json.dumps(value)
    return ev.ToolCallCompleted(id, name, {}, text, {**metadata, "error": "invalid_json"})


def _call_metadata(frame: Frame) -> dict[str, Any]:
    return {"server": True} if frame.get("providerExecuted") else {}


def _call(kind: str, id: str, name: str, metadata: Mapping[str, Any], **fields: Any) -> Frame:
    server = {"providerExecuted": True} if metadata.get("server") else {}
    return {"type": kind, "toolCallId": id, "toolName": name, "dynamic": True, **server, **fields}


def _approval(id: str, request: ev.ToolApprovalRequested) -> Frame:
    # Another approver may have changed the arguments of a call that was interrupted.
    is_interrupted = request.metadata.get("interrupted") is True
    shown = id if is_interrupted else approval_id(ToolCall(id, request.name, dict(request.arguments)))
    return {"type": "tool-approval-request", "approvalId": shown, "toolCallId": id}


def _file(url: str, mime_type: str, fields: dict[str, Any]) -> Frame:
    own = event_data(ev.FileAdded(fields))["file"] if fields else None
    return {"type": "file", "url": url, "mediaType": mime_type, **_own("file", own)}


def _own(name: str, value: Any) -> Frame:
    """Return the frame field that carries rxllm's own data. Browsers send this data back."""
    return {} if value is None else {"providerMetadata": {"rxllm": {name: value}}}


def _read_own_data(frame: Frame, name: str, default: Any) -> Any:
    return frame.get("providerMetadata", {}).get("rxllm", {}).get(name, default)


def _cover(data: Frame, frames: list[Frame]) -> list[Frame]:
    """Put a ``data-rxllm`` frame before `frames`, so that rxllm's decoder emits no events for them."""
    covers = {"covers": len(frames)} if frames else {}
    return [{"type": "data-rxllm", "data": {**data, **covers}, "transient": True}, *frames]

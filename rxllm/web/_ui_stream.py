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
``ToolExecutionStarted``                      ``tool-approval-response`` if approval was requested
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
message or result is what the events so far fold to. So only raw frames and the provider's data are lost.

A call inside an agent that waits for approval is announced like one outside, by the ids of the calls around it and its
own, joined by ``/``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

from msgspec.structs import replace as changed

from rxllm import (
    ChatCompleted,
    ChatResult,
    Custom,
    ErrorEvent,
    Event,
    FileAdded,
    LLMError,
    Message,
    MessageCompleted,
    MessageStarted,
    Nested,
    RawChunk,
    Response,
    SourceAdded,
    StepCompleted,
    StepRestarted,
    StepResult,
    StreamError,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    Thread,
    ToolApprovalRequested,
    ToolCall,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolError,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
    ToolResultEncoded,
    Usage,
    UsageUpdated,
    ValidationError,
    serializer,
)
from rxllm.web._codec import Frame, malformed
from rxllm.web._for_client import ClientFold

_OWN = "data-rxllm"

_FINISH_REASONS = {"tool_calls": "tool-calls", "content_filter": "content-filter"}


class _Block:
    """An open block of text or thinking: its id here, its id in the frames, and its text so far."""

    def __init__(self, id: str | None, name: str) -> None:
        self.id = id
        self.name = name
        self.pieces: list[str] = []


class Encoder:
    """Events to frames."""

    END: ClassVar[bytes] = b"data: [DONE]\n\n"
    HEADERS: ClassVar[dict[str, str]] = {
        "content-type": "text/event-stream",
        "cache-control": "no-cache",
        "connection": "keep-alive",
        "x-vercel-ai-ui-message-stream": "v1",
        "x-accel-buffering": "no",
    }

    def __init__(self) -> None:
        self._fold = ClientFold()
        self._calls = _Calls()
        self._blocks: dict[tuple[str, str | None], _Block] = {}  # the open ones
        self._minted = 0
        self._is_started = False
        self._is_answering = False  # a response has begun, and has not ended
        self._step: str | None = None  # "open", or "reset" when it is to begin again
        self._waiting: set[str] = set()  # for approval
        self._usage: Usage | None = None

    def feed(self, event: Event) -> list[Frame]:
        """Return the frames of `event`. Raises ``ValidationError("not_serializable")`` as `rxllm.serializer.to_data`."""
        if isinstance(event, RawChunk):
            return []
        frames = [*self._started(), *self._frames(event)]
        self._fold.apply(event)
        return frames

    def close(self) -> list[Frame]:
        frames = self._ended_parts()
        reason = self._fold.state.to_response().finish_reason
        if self._is_answering:
            reason = "error"
            frames.append({"type": "error", "errorText": StreamError("truncated").message})
        frames += self._ended_step()
        finish: Frame = {"type": "finish"}
        if reason is not None:
            finish["finishReason"] = _FINISH_REASONS.get(reason, reason)
        if self._usage is not None:
            finish["messageMetadata"] = {"usage": _usage_data(self._usage)}
        return [*self._started(), *_covered(None, [*frames, finish])]

    def _started(self) -> list[Frame]:
        if self._is_started:
            return []
        self._is_started = True
        return [{"type": "start"}, *_covered(None, [])]

    def _frames(self, event: Event) -> list[Frame]:
        match event:
            case TextDelta():
                return self._delta("text", event)
            case ThinkingDelta():
                return self._delta("reasoning", event)
            case TextCompleted():
                return self._completed("text", event, {})
            case ThinkingCompleted(signature=signature):
                signed = {} if signature is None else _metadata(signature=signature)
                return self._completed("reasoning", changed(event, provider_data=None), signed)
            case ToolCallStarted() | ToolCallDelta() | ToolCallCompleted() | ToolProgress() | ToolExecutionCompleted():
                return self._of_call(event)
            case ToolApprovalRequested() | ToolExecutionStarted():
                return self._of_approval(event, event.id)
            case SourceAdded() | FileAdded() | UsageUpdated() | Custom():
                return self._of_content(event)
            case Nested(path=path, event=ToolApprovalRequested() as inner):
                return self._of_nested_approval(event, "/".join((*path, inner.id)), inner)
            case _:
                return self._of_step(event)

    def _of_step(self, event: Event) -> list[Frame]:
        match event:
            case MessageStarted():
                self._is_answering = True
                frames = [*self._ended_parts(), *self._begun_step()]
            case MessageCompleted():
                self._is_answering = False
                frames = self._ended_parts()
            case StepRestarted():
                self._is_answering = False
                frames = self._reset_step()
            case ErrorEvent(error=error):
                self._is_answering = False
                frames = [*self._ended_parts(), _error_frame(error)]
            case StepCompleted():
                frames = [*self._ended_parts(), *self._ended_step()]
            case ChatCompleted(result=result):
                self._usage = result.usage
                frames = [*self._ended_parts(), *self._ended_step()]
            case _:
                frames = []
        left_out = _left_out(event)
        is_folded = left_out is not event and self._fold.filled(left_out) == event
        return _covered(left_out, frames, folded=True) if is_folded else _covered(event, frames)

    def _begun_step(self) -> list[Frame]:
        frames: list[Frame] = [] if self._step == "reset" else [*self._ended_step(), {"type": "start-step"}]
        self._step = "open"
        return frames

    def _ended_step(self) -> list[Frame]:
        was_open, self._step = self._step is not None, None
        return [{"type": "finish-step"}] if was_open else []

    def _reset_step(self) -> list[Frame]:
        self._blocks.clear()
        self._calls.close()
        if self._step is None:
            return []
        self._step = "reset"
        return [{"type": "reset-step"}]

    def _ended_parts(self) -> list[Frame]:
        """Return the frames that close what is open: a client would show it as still streaming forever."""
        frames: list[Frame] = [{"type": f"{kind}-end", "id": block.name} for (kind, _), block in self._blocks.items()]
        self._blocks.clear()
        for id, text in self._calls.close():
            frames.append(self._calls.frame("tool-input-error", id, input=text, errorText="incomplete"))
        return frames

    # Text and thinking

    def _delta(self, kind: str, event: TextDelta | ThinkingDelta) -> list[Frame]:
        begun, block = self._block(kind, event.id)
        block.pieces.append(event.delta)
        frame: Frame = {"type": f"{kind}-delta", "id": block.name, "delta": event.delta}
        return [*begun, *([frame] if block.id == event.id else _covered(event, [frame]))]

    def _completed(self, kind: str, event: TextCompleted | ThinkingCompleted, extra: Frame) -> list[Frame]:
        frames, block = self._block(kind, event.id)
        text = "".join(block.pieces)
        is_lawful = event.text.startswith(text) and block.id == event.id
        if is_lawful and event.text != text:  # the deltas were left out
            rest: Frame = {"type": f"{kind}-delta", "id": block.name, "delta": event.text[len(text) :]}
            frames += _covered(None, [rest])
        end: Frame = {"type": f"{kind}-end", "id": block.name, **extra}
        self._blocks = {key: other for key, other in self._blocks.items() if other is not block}
        return [*frames, *([end] if is_lawful else _covered(event, [end]))]

    def _block(self, kind: str, id: str | None) -> tuple[list[Frame], _Block]:
        """Return the open block that `id` means, see `rxllm.events`, and the frames that begin it if there is none."""
        block = self._blocks.get((kind, id))
        if block is None and id is None:
            block = next((open for (other, _), open in reversed(self._blocks.items()) if other == kind), None)
        if block is not None:
            return [], block
        block = self._blocks[kind, id] = _Block(id or None, f"{self._mint()}:{id}" if id else self._mint())
        return [{"type": f"{kind}-start", "id": block.name}], block

    def _mint(self) -> str:
        self._minted += 1
        return str(self._minted - 1)

    # Tools

    def _of_call(self, event: Any) -> list[Frame]:
        data = serializer.to_data(event)
        match event:
            case ToolCallStarted():
                frame = self._calls.frame("tool-input-start", event.id, name=event.name, metadata=event.metadata)
            case ToolCallDelta():
                if not self._calls.is_open(event.id):
                    return _covered(event, [])
                frame = {"type": "tool-input-delta", "toolCallId": event.id, "inputTextDelta": event.arguments_delta}
            case ToolCallCompleted(metadata=metadata):
                named: Any = {"name": event.name, "metadata": metadata}
                if "error" in metadata:
                    named |= {"input": event.raw_arguments, "errorText": str(metadata["error"])}
                    frame = self._calls.frame("tool-input-error", event.id, **named)
                else:
                    frame = self._calls.frame("tool-input-available", event.id, **named, input=data["arguments"])
            case ToolProgress():
                frame = {"type": "tool-output-available", "toolCallId": event.id, "output": data["data"]}
                frame["preliminary"] = True
            case ToolExecutionCompleted(error=None):
                frame = {"type": "tool-output-available", "toolCallId": event.id, "output": data.get("result")}
            case _:
                frame = _output_error(event)
        is_told = self._calls.events(frame) == [event]
        self._calls.note(event)
        return [frame] if is_told else _covered(event, [frame])

    def _of_approval(self, event: ToolApprovalRequested | ToolExecutionStarted, id: str) -> list[Frame]:
        frame: Frame | None = None
        if isinstance(event, ToolApprovalRequested):
            self._waiting.add(id)
            frame = {"type": "tool-approval-request", "approvalId": id, "toolCallId": id}
        elif id in self._waiting:
            self._waiting.discard(id)
            frame = {"type": "tool-approval-response", "approvalId": id, "approved": True}
        return _covered(event, [] if frame is None else [frame])

    def _of_nested_approval(self, event: Nested, id: str, inner: ToolApprovalRequested) -> list[Frame]:
        call: Frame = {"type": "tool-input-available", "toolCallId": id, "toolName": inner.name, "dynamic": True}
        call["input"] = serializer.to_data(inner)["arguments"]
        return _covered(event, [call, {"type": "tool-approval-request", "approvalId": id, "toolCallId": id}])

    # The rest of the content

    def _of_content(self, event: SourceAdded | FileAdded | UsageUpdated | Custom) -> list[Frame]:
        data = serializer.to_data(event)
        match event:
            case UsageUpdated(usage=usage):
                frame: Frame | None = {"type": "message-metadata", "messageMetadata": {"usage": _usage_data(usage)}}
            case Custom(name=name):
                frame = None if name == "rxllm" else {"type": f"data-{name}", "data": data.get("data")}
            case SourceAdded():
                frame = _source_frame(self._mint(), data["source"])
            case FileAdded(file=file):
                frame = _file_frame(file)
        if frame is None:
            return _covered(event, [])
        return [frame] if _content(frame) == [event] else _covered(event, [frame])


class _Calls:
    """The tool calls of a stream: what the frames of a call mean to one who has seen those before."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._open: dict[str, list[str]] = {}

    def is_open(self, id: str) -> bool:
        return id in self._open

    def close(self) -> list[tuple[str, str]]:
        """Return the calls that are open with their text so far; none is open then."""
        texts = [(id, "".join(pieces)) for id, pieces in self._open.items()]
        self._open.clear()
        return texts

    def note(self, event: Event) -> None:
        match event:
            case ToolCallStarted(id=id, name=name):
                self._names[id] = name
                self._open[id] = []
            case ToolCallDelta(id=id, arguments_delta=delta):
                if id in self._open:
                    self._open[id].append(delta)
            case ToolCallCompleted(id=id, name=name):
                self._names[id] = name
                self._open.pop(id, None)
            case MessageStarted() | MessageCompleted() | ErrorEvent() | StepCompleted() | ChatCompleted():
                self._open.clear()
            case _:
                pass

    def frame(
        self, kind: str, id: str, *, name: str | None = None, metadata: Mapping[str, Any] | None = None, **fields: Any
    ) -> Frame:
        is_server = bool(metadata and metadata.get("server"))
        executed = {"providerExecuted": True} if is_server else {}
        name = self._names.get(id, "") if name is None else name
        return {"type": kind, "toolCallId": id, "toolName": name, "dynamic": True, **executed, **fields}

    def events(self, frame: Frame) -> list[Event]:
        match frame:
            case {"type": "tool-input-delta", "toolCallId": str(id), "inputTextDelta": str(delta)} if id in self._open:
                return [ToolCallDelta(id, delta)]
            case {"type": "tool-input-start", "toolCallId": str(id), "toolName": str(name)}:
                return [ToolCallStarted(id, name, _server(frame))]
            case {"type": "tool-input-available" | "tool-input-error", "toolCallId": str(id), "toolName": str(name)}:
                started = [] if id in self._open else [ToolCallStarted(id, name, _server(frame))]
                return [*started, self._completed(id, name, frame)]
            case {"type": "tool-output-available", "toolCallId": str(id), "preliminary": True}:
                return [ToolProgress(id, self._names.get(id, ""), frame.get("output"))]
            case {"type": "tool-output-available", "toolCallId": str(id)}:
                return [ToolExecutionCompleted(id, self._names.get(id, ""), frame.get("output"))]
            case {"type": "tool-output-error", "toolCallId": str(id), "errorText": str(text)}:
                return [self._failed("handler_raised", id, text)]
            case {"type": "tool-output-denied", "toolCallId": str(id)}:
                return [self._failed("denied", id)]
            case _:
                raise malformed(frame)

    def _completed(self, id: str, name: str, frame: Frame) -> ToolCallCompleted:
        arguments, metadata = frame.get("input"), _server(frame)
        text = "".join(self._open.get(id, ()))
        if frame["type"] == "tool-input-available" and isinstance(arguments, dict):
            return ToolCallCompleted(id, name, cast(dict[str, Any], arguments), text or json.dumps(arguments), metadata)
        text = arguments if isinstance(arguments, str) else text or json.dumps(arguments)
        return ToolCallCompleted(id, name, {}, text, {**metadata, "error": "invalid_json"})

    def _failed(self, reason: str, id: str, text: str | None = None) -> ToolExecutionCompleted:
        name = self._names.get(id, "")
        return ToolExecutionCompleted(id, name, error=ToolError(reason, text, tool_name=name, tool_call_id=id))


class Decoder:
    """Frames to events; those of other servers too, whose steps and chat are what their frames fold to."""

    def __init__(self) -> None:
        self._fold = ClientFold()
        self._calls = _Calls()
        self._blocks: dict[tuple[str, str], _Block] = {}  # the open ones
        self._covered = 0
        self._is_ours = False
        self._is_ended = False  # by its finish, or by an error
        self._is_finished = False
        self._foreign = _ForeignStep(self._fold)

    def feed(self, frame: Frame) -> list[Event]:
        if self._is_finished:
            raise malformed(frame)
        events: list[Event] = []
        is_covered = self._covered > 0
        self._covered -= is_covered
        try:
            for event in self._events(frame):
                if not is_covered:
                    self._calls.note(event)
                    self._fold.apply(event)
                    events.append(event)
        except (ValidationError, TypeError, ValueError, KeyError, AttributeError, RecursionError):
            raise malformed(frame) from None
        return events

    def close(self) -> list[Event]:
        return [] if self._is_ended else [ErrorEvent(StreamError("truncated"))]

    def _events(self, frame: Frame) -> Iterator[Event]:
        kind: str = frame["type"]
        if kind == _OWN:
            yield from self._own(frame["data"])
            return
        if kind == "reset-step":
            self._blocks.clear()
        self._is_finished = kind == "finish"
        self._is_ended = self._is_ended or kind in ("finish", "error", "abort")
        if not self._is_ours:
            yield from self._foreign.before(kind, frame)
        if kind in _BLOCKS:
            yield from self._of_block(*kind.split("-"), frame)
        elif kind.startswith("tool-input-") or kind.startswith("tool-output-"):
            yield from self._calls.events(frame)
        elif kind not in _STRUCTURE:
            yield from _content(frame)
        if not self._is_ours:
            yield from self._foreign.after(kind, frame)

    def _own(self, data: Any) -> list[Event]:
        self._is_ours = True
        covers = data.get("covers", 0)
        if not isinstance(covers, int) or covers < 0:
            raise ValueError("covers is not a number of frames")
        self._covered = covers
        if "event" not in data:
            return []
        event: Any = serializer.from_data(data["event"])
        if not isinstance(event, Event):
            raise TypeError("not an event")
        return [self._fold.filled(event) if data.get("folded") is True else event]

    def _of_block(self, kind: str, place: str, frame: Frame) -> list[Event]:
        name: str = frame["id"]
        if place == "start":
            self._blocks[kind, name] = _Block(name.partition(":")[2] or None if self._is_ours else name, name)
            return []
        block = self._blocks[kind, name]
        if place == "delta":
            delta: str = frame["delta"]
            block.pieces.append(delta)
            return [TextDelta(delta, block.id) if kind == "text" else ThinkingDelta(delta, block.id)]
        del self._blocks[kind, name]
        text = "".join(block.pieces)
        if kind == "text":
            return [TextCompleted(text, block.id)]
        return [ThinkingCompleted(text, _text(_rxllm(frame).get("signature")), None, block.id)]


class _ForeignStep:
    """What other servers do not tell: where a response begins and ends, and what a step and the chat come to.

    Their tools run while the response goes on, so its end follows their results.
    """

    def __init__(self, fold: ClientFold) -> None:
        self._fold = fold
        self._is_open = False
        self._outputs: dict[str, Any] = {}
        self._waiting: dict[str, ToolCall] = {}  # for approval

    def before(self, kind: str, frame: Frame) -> Iterator[Event]:
        """Return the events that a frame means before what it says itself."""
        if kind in ("start-step", "finish"):
            yield from self._ended(_finish_reason(frame) if kind == "finish" else None)
        has_begun = kind == "start-step" or kind in _BLOCKS or kind.startswith(("tool-input-", "source-", "file"))
        if has_begun and not self._is_open:
            self._is_open = True
            yield MessageStarted(Message("assistant"))

    def after(self, kind: str, frame: Frame) -> Iterator[Event]:
        """Return the events of a frame that has no content."""
        match kind:
            case "tool-approval-request":
                id: str = frame["toolCallId"]
                call = self._waiting[id] = self._fold.state.current_tool_calls.get(id) or ToolCall(id, "")
                yield ToolApprovalRequested(id, call.name, call.arguments)
            case "tool-output-available" | "tool-output-error" | "tool-output-denied":
                if not frame.get("preliminary"):
                    self._waiting.pop(frame["toolCallId"], None)
                    self._outputs[frame["toolCallId"]] = frame.get("output", frame.get("errorText", "denied"))
            case "reset-step":
                self._outputs.clear()
                yield StepRestarted("reset", 1)
            case "error":
                yield ErrorEvent(StreamError("adapter_error", frame["errorText"]))
            case "abort":
                yield ErrorEvent(StreamError("cancelled", _text(frame.get("reason"))))
            case "finish":
                yield self._fold.filled(ChatCompleted(self._chat()))
            case _:
                pass

    def _ended(self, reason: Any) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        yield self._fold.filled(MessageCompleted(Message("assistant"), reason))
        for id, output in self._outputs.items():
            yield ToolResultEncoded(id, output if isinstance(output, str) else json.dumps(output))
        self._outputs.clear()
        is_done = not self._fold.state.to_response().tool_calls
        yield self._fold.filled(StepCompleted(StepResult(Thread(), Response(), done=is_done)))

    def _chat(self) -> ChatResult:
        state = self._fold.state
        reason = "error" if state.error else "approval" if self._waiting else "completed"
        usage = sum((step.response.usage for step in state.steps), Usage())
        return ChatResult(
            Thread(),
            halted_reason=reason,
            pending_tool_calls=tuple(self._waiting.values()),
            usage=usage,
            error=state.error,
        )


_BLOCKS = frozenset(f"{kind}-{place}" for kind in ("text", "reasoning") for place in ("start", "delta", "end"))

_STRUCTURE = frozenset(
    {
        *("start", "start-step", "finish-step", "reset-step", "finish", "error", "abort", "steering-message"),
        *("tool-approval-request", "tool-approval-response"),
    }
)


def _content(frame: Frame) -> list[Event]:
    """Return the event of a frame of content that needs no other frame."""
    match frame:
        case {"type": "message-metadata"}:
            usage = frame["messageMetadata"].get("usage")
            return [UsageUpdated(serializer.from_data(usage, Usage))] if usage else []
        case {"type": "source-url", "url": str(url)}:
            described = {"url": url, "title": frame["title"]} if "title" in frame else {"url": url}
            return [SourceAdded(_rxllm(frame).get("source", described))]
        case {"type": "source-document", "mediaType": str(), "title": str()}:
            return [SourceAdded({name: frame[name] for name in ("title", "filename", "mediaType") if name in frame})]
        case {"type": "file" | "reasoning-file", "url": str(url), "mediaType": str(mime_type)}:
            return [FileAdded({"mime_type": mime_type, **_file_content(url), **_rxllm(frame).get("file", {})})]
        case {"type": "custom", "kind": str(kind)}:
            return [Custom(kind)]
        case {"type": str(kind)} if kind.startswith("data-"):
            return [Custom(kind.removeprefix("data-"), frame.get("data"))]
        case _:
            raise malformed(frame)


def _file_content(url: str) -> dict[str, Any]:
    header, _, data = url.partition(",")
    if header.startswith("data:") and header.endswith(";base64"):
        return {"data": base64.b64decode(data, validate=True)}
    return {"url": url}


def _file_frame(file: Mapping[str, Any]) -> Frame | None:
    rest = {name: value for name, value in file.items() if name not in ("mime_type", "data", "url")}
    match file:
        case {"mime_type": str(mime_type), "data": bytes(data)} if "url" not in file:
            url = f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
        case {"mime_type": str(mime_type), "url": str(url)} if "data" not in file:
            pass
        case _:
            return None
    return {"type": "file", "url": url, "mediaType": mime_type, **(_metadata(file=_plain(rest)) if rest else {})}


def _source_frame(id: str, source: Any) -> Frame | None:
    if not isinstance(source.get("url"), str):
        return None
    frame: Frame = {"type": "source-url", "sourceId": f"source-{id}", "url": source["url"]}
    if isinstance(source.get("title"), str):
        frame["title"] = source["title"]
    return frame if source.keys() <= frame.keys() else {**frame, **_metadata(source=source)}


def _output_error(event: ToolExecutionCompleted) -> Frame:
    if event.error is None or event.error.reason == "denied":
        return {"type": "tool-output-denied", "toolCallId": event.id}
    return {"type": "tool-output-error", "toolCallId": event.id, "errorText": event.error.message}


def _error_frame(error: LLMError) -> Frame:
    if error.reason == "cancelled":
        return {"type": "abort", "reason": error.message}
    return {"type": "error", "errorText": error.message}


def _covered(event: Event | None, frames: list[Frame], *, folded: bool = False) -> list[Frame]:
    """Return `frames` with the part before them that says what they stand for: `event`, or nothing."""
    data: Frame = {}
    if event is not None:
        data["event"] = serializer.to_data(event)
        del data["event"]["v"]  # a reader takes the current one
    if folded:
        data["folded"] = True
    if frames:
        data["covers"] = len(frames)
    return [{"type": _OWN, "data": data, "transient": True}, *frames]


def _left_out(event: Event) -> Event:
    """Return `event` without what the events before it fold to."""
    match event:
        case MessageCompleted(message=message):
            return changed(event, message=Message("assistant", metadata=message.metadata))
        case StepCompleted(result=result):
            return StepCompleted(StepResult(Thread(), Response(), done=result.done, metadata=result.metadata))
        case ChatCompleted(result=result):
            return ChatCompleted(replace(result, thread=Thread(), final_response=None, steps=()))
        case Nested(path=path, event=inner):
            left_out = _left_out(inner)
            return event if left_out is inner else Nested(path, left_out)
        case _:
            return event


def _metadata(**values: Any) -> Frame:
    return {"providerMetadata": {"rxllm": values}}


def _rxllm(frame: Frame) -> dict[str, Any]:
    return frame.get("providerMetadata", {}).get("rxllm", {})


def _server(frame: Frame) -> dict[str, Any]:
    return {"server": True} if frame.get("providerExecuted") else {}


def _usage_data(usage: Usage) -> Frame:
    return {name: value for name, value in serializer.to_data(usage).items() if name not in ("$", "v")}


def _plain(data: dict[str, Any]) -> Any:
    return serializer.to_data(SourceAdded(data))["source"]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _finish_reason(frame: Frame) -> Any:
    reason = str(frame.get("finishReason", "other")).replace("-", "_")
    return reason if reason in ("stop", "length", "tool_calls", "content_filter", "error") else "other"

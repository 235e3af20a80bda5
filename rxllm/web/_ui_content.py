"""Parts of the UI message stream: tool calls, sources, files and data, and the streams of other servers.

Such a server runs its tools while the response goes on, so the response's end follows their results.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from rxllm import LLMError, Message, ToolCall, ToolError, Usage, serializer
from rxllm import events as ev
from rxllm.web._codec import Frame, event_data, malformed
from rxllm.web._for_client import ClientFold

_COUNTERS = vars(Usage()).keys()


def content_frames(event: ev.Event, mint: Callable[[], str]) -> list[Frame]:
    """Return the frame of `event`; none if it has no content that a browser shows. `mint` gives ids."""
    match event:
        case ev.ToolCallStarted(id=id, name=name, metadata=metadata):
            return [call_frame("tool-input-start", id, name, metadata)]
        case ev.ToolCallDelta(id=id, arguments_delta=delta):
            return [{"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": delta}]
        case ev.ToolCallCompleted(id=id, name=name, metadata={"error": error} as metadata):
            raw = event.raw_arguments
            return [call_frame("tool-input-error", id, name, metadata, input=raw, errorText=str(error))]
        case ev.ToolCallCompleted(id=id, name=name, metadata=metadata):
            return [call_frame("tool-input-available", id, name, metadata, input=event_data(event)["arguments"])]
        case ev.ToolProgress(id=id):
            output = event_data(event)["data"]
            return [{"type": "tool-output-available", "toolCallId": id, "output": output, "preliminary": True}]
        case ev.ToolExecutionCompleted(id=id, error=None):
            return [{"type": "tool-output-available", "toolCallId": id, "output": event_data(event).get("result")}]
        case ev.ToolExecutionCompleted(id=id, error=ToolError(reason="denied")):
            return [{"type": "tool-output-denied", "toolCallId": id}]
        case ev.ToolExecutionCompleted(id=id, error=LLMError(message=message)):
            return [{"type": "tool-output-error", "toolCallId": id, "errorText": message}]
        case ev.Custom(name=name) if name != "rxllm":
            return [{"type": f"data-{name}", "data": event_data(event).get("data")}]
        case ev.SourceAdded(source={"url": str(url)} as source):
            titled = {"title": source["title"]} if isinstance(source.get("title"), str) else {}
            rest = {} if set(source) == {"url", *titled} else extra("source", event_data(event)["source"])
            return [{"type": "source-url", "sourceId": f"source-{mint()}", "url": url, **titled, **rest}]
        case ev.FileAdded(file={"mime_type": str(mime_type), "data": bytes(data), **rest}):
            url = f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
            return [{"type": "file", "url": url, "mediaType": mime_type, **_file_extra(rest)}]
        case ev.FileAdded(file={"mime_type": str(mime_type), "url": str(url), **rest}):
            return [{"type": "file", "url": url, "mediaType": mime_type, **_file_extra(rest)}]
        case _:
            return []


def read_content(frame: Frame) -> list[ev.Event]:
    """Return the event of a frame that belongs to no block and no call."""
    match frame:
        case {"type": "message-metadata", "messageMetadata": {"usage": {**counters}}} if counters.keys() <= _COUNTERS:
            return [ev.UsageUpdated(serializer.from_data(counters, Usage))]
        case {"type": "message-metadata"}:
            return []
        case {"type": "source-url", "url": str()}:
            source = {name: frame[name] for name in ("url", "title") if name in frame}
            return [ev.SourceAdded(dict(own_data(frame, "source", source)))]
        case {"type": "source-document", "mediaType": str()}:
            names = ("title", "filename", "mediaType")
            return [ev.SourceAdded({name: frame[name] for name in names if name in frame})]
        case {"type": "file" | "reasoning-file", "url": str(url), "mediaType": str(mime_type)}:
            header, _, data = url.partition(",")
            is_data = header.startswith("data:") and header.endswith(";base64")
            content = {"data": base64.b64decode(data, validate=True)} if is_data else {"url": url}
            return [ev.FileAdded({"mime_type": mime_type, **content, **own_data(frame, "file", {})})]
        case {"type": "custom", "kind": str(kind)}:
            return [ev.Custom(kind)]
        case {"type": str(kind)} if kind.startswith("data-"):
            return [ev.Custom(kind.removeprefix("data-"), frame.get("data"))]
        case _:
            raise malformed(frame)


def call_frame(kind: str, id: str, name: str, metadata: Mapping[str, Any], **fields: Any) -> Frame:
    server = {"providerExecuted": True} if metadata.get("server") else {}
    return {"type": kind, "toolCallId": id, "toolName": name, "dynamic": True, **server, **fields}


def server(frame: Frame) -> dict[str, Any]:
    """Return the metadata of a call."""
    return {"server": True} if frame.get("providerExecuted") else {}


def completed_call(id: str, name: str, text: str, frame: Frame, is_available: bool) -> ev.ToolCallCompleted:
    """Return the call that `frame` completes, whose text so far is `text`."""
    value, metadata = frame.get("input"), server(frame)
    if is_available and isinstance(value, dict):
        return ev.ToolCallCompleted(id, name, cast(dict[str, Any], value), text or json.dumps(value), metadata)
    text = value if isinstance(value, str) else text or json.dumps(value)
    return ev.ToolCallCompleted(id, name, {}, text, {**metadata, "error": "invalid_json"})


def extra(name: str, value: Any) -> Frame:
    """Return what a frame carries for us, and a browser sends back."""
    return {} if value is None else {"providerMetadata": {"rxllm": {name: value}}}


def _file_extra(rest: dict[str, Any]) -> Frame:
    return extra("file", event_data(ev.FileAdded(rest))["file"] if rest else None)


def own_data(frame: Frame, name: str, default: Any) -> Any:
    return frame.get("providerMetadata", {}).get("rxllm", {}).get(name, default)


class ForeignSteps:
    """The events around those that a frame means itself, whose fold is `fold`."""

    def __init__(self, fold: ClientFold) -> None:
        self._fold = fold
        self._is_open = False
        self._outputs: dict[str, Any] = {}
        self._waiting: dict[str, ToolCall] = {}  # for approval

    def before(self, kind: str, frame: Frame) -> Iterator[ev.Event]:
        if kind in ("start-step", "finish"):
            yield from self._ended(_finish_reason(frame) if kind == "finish" else None)
        content = ("start-step", "text-", "reasoning-", "tool-input-", "source-", "file")
        if kind.startswith(content) and not self._is_open:
            self._is_open = True
            yield ev.MessageStarted(Message("assistant"))

    def after(self, kind: str, events: Iterable[ev.Event]) -> Iterator[ev.Event]:
        for event in events:
            match event:
                case ev.ToolApprovalRequested(id=id, name=name, arguments=arguments):
                    self._waiting[id] = ToolCall(id, name, dict(arguments))
                case ev.ToolExecutionCompleted(id=id, result=result, error=error):
                    self._waiting.pop(id, None)
                    fault = error and (error.reason if error.reason == "denied" else error.message)
                    self._outputs[id] = result if fault is None else fault
                case ev.StepRestarted():
                    self._outputs.clear()
                case _:
                    pass
            yield event
        if kind == "finish":
            yield self._chat()

    def _ended(self, reason: Any) -> Iterator[ev.Event]:
        if not self._is_open:
            return
        self._is_open = False
        yield self._fold.message(reason)
        for id, output in self._outputs.items():
            yield ev.ToolResultEncoded(id, output if isinstance(output, str) else json.dumps(output))
        self._outputs.clear()
        yield self._fold.step()

    def _chat(self) -> ev.Event:
        state, calls = self._fold.state, tuple(self._waiting.values())
        reason = "error" if state.error else "approval" if calls else "completed"
        return self._fold.chat(halted_reason=reason, pending_tool_calls=calls, error=state.error)


def _finish_reason(frame: Frame) -> Any:
    reason: Any = frame.get("finishReason")
    return reason if reason in ("stop", "length", "error", None) else _REASONS.get(str(reason), "other")


_REASONS = {"tool-calls": "tool_calls", "content-filter": "content_filter"}

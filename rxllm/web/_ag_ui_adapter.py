"""An adapter for agents that speak AG-UI."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from rxllm import AdapterError, Event, LLMError, Message, Nested, Request, StreamError, ToolCall, Usage
from rxllm.adapters import HTTPAdapter, http_error, provider_error
from rxllm.values import Call, FilePart, ImagePart, Part, ProviderPart, TextPart, ThinkingPart
from rxllm.web._ag_ui_decoder import COUNTS, Decoder, to_usage
from rxllm.web._ag_ui_encoder import VERSION
from rxllm.web._ag_ui_frames import OWN, LongForms
from rxllm.web._frames import Frame, text_of
from rxllm.wire import Blocks, CallTracker, FrameDecoder, SSEDecoder

if TYPE_CHECKING:
    import httpx

PROVIDER = "ag-ui"

_PARAMETERS = ("model", "tool_choice", "temperature", "top_p", "max_tokens", "seed", "reasoning_effort")


class AGUI(HTTPAdapter):
    """An adapter for the AG-UI agent at `url`.

    >>> import rxllm
    >>> agent = rxllm.Engine(AGUI("http://127.0.0.1:8000/agent"))

    The key is optional. If there is one, it is sent as a bearer token. The request's tools are sent as AG-UI client
    tools, which run in this process. The agent runs its own tools, and their results become parts of the response
    message. Interrupts are stored in the response's ``metadata["interrupts"]``. Events from inner agents arrive as
    ``Nested``. Changes to the shared state arrive only as raw chunks.

    Every request contains the whole conversation. The model's name and parameters are sent in ``forwardedProps``, which
    the agent may ignore. ``Request.options`` overrides fields of the ``RunAgentInput``. For example,
    ``{"threadId": "t1", "resume": [...]}`` answers the last message's interrupts. If there is no ``threadId``, every
    request starts a new conversation.
    """

    provider = PROVIDER
    key_variable = "AG_UI_API_KEY"
    needs_key = False
    default_base_url = "http://localhost:8000"

    def __init__(self, url: str | None = None, **connection: Any) -> None:
        super().__init__(**({"base_url": url} if url is not None else {}), **connection)
        self._ends_in_slash = bool(url and url.partition("?")[0].endswith("/"))

    def build(self, request: Request, call: Call) -> httpx.Request:
        key = self.key(call)
        headers = {"accept": "text/event-stream", **({"authorization": f"Bearer {key}"} if key else {})}
        path = "/" if self._ends_in_slash else ""  # some servers distinguish /agent/ from /agent
        return self.post(path, to_input(request), call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> AGUIDecoder:
        return AGUIDecoder(request, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)


class AGUIDecoder(FrameDecoder):
    """Decodes the agent's response to `request`. With `raw`, it also emits each frame as a ``RawChunk``."""

    def __init__(self, request: Request, *, raw: bool = False) -> None:
        blocks = Blocks(CallTracker.after(request.messages))
        super().__init__(SSEDecoder(), blocks, msgspec.json.Decoder(dict[str, Any]), provider=PROVIDER, raw=raw)
        self._client_tools = {tool.name for tool in request.tools}
        self._frames = LongForms(lambda: to_input(request)["messages"])
        self._agents = Decoder()  # decodes the frames of the inner agents
        self._calls: dict[str, int] = {}
        # The ids of calls to client tools. If the agent sends a result for such a call, it has run a tool of its own
        # with the same name.
        self._undecided: set[str] = set()
        self._thinking: str | None = None  # the message id of the latest thinking block

    def read(self, kind: str, payload: Frame, frame: bytes, /) -> None:
        if self.raw:
            self.blocks.raw(payload["type"], payload)
        for long_form in self._frames.read(payload):
            if "subagentRunId" in long_form:
                if long_form["type"] == "SUBAGENT_STARTED" and "parentSubagentRunId" not in long_form:
                    id = long_form.get("parentToolCallId", long_form["subagentRunId"])
                    self._begin_agent(id, long_form.get("name", id))
                self._report_agents(self._agents.feed(long_form))
            else:
                self._read(long_form["type"], long_form)

    def fail(self, error: LLMError) -> None:
        self._report_agents(self._agents.close())
        super().fail(error)

    def end(self, *, over: bool) -> None:
        if not over:
            self._report_agents(self._agents.close())
        super().end(over=over)

    def error_of(self, payload: Any) -> AdapterError:
        match payload:
            case {"code": str(code), "message": str(message)} if code in AdapterError.REASONS:
                return AdapterError(code, message, provider=PROVIDER)
            case _:
                return provider_error(PROVIDER, payload)

    def _read(self, kind: str, frame: Frame) -> None:
        match kind:
            case "RUN_STARTED":
                self.blocks.start(id=text_of(frame, "runId"))
                self._agents.feed(frame)
            case "TEXT_MESSAGE_START":
                self._thinking = None
            case "TEXT_MESSAGE_CONTENT" if self._frames.is_answer(frame):
                self.blocks.text(text_of(frame, "delta"), text_of(frame, "messageId"))
            case "REASONING_MESSAGE_START":
                self._thinking = text_of(frame, "messageId")
            case "REASONING_MESSAGE_CONTENT":
                self.blocks.thinking(text_of(frame, "delta"), text_of(frame, "messageId"))
            case "REASONING_ENCRYPTED_VALUE" if text_of(frame, "entityId") == self._thinking:
                self.blocks.sign(text_of(frame, "encryptedValue"), id=self._thinking)
            case "TOOL_CALL_START" | "TOOL_CALL_ARGS" | "TOOL_CALL_END" | "TOOL_CALL_RESULT":
                self._read_call(kind, text_of(frame, "toolCallId"), frame)
            case "RUN_ERROR":
                self._count(frame)
                self.fail(self._failure(frame))
            case "RUN_FINISHED":
                self._finish(frame)
            case _ if kind.startswith(("STATE_", "ACTIVITY_", "MESSAGES_", "RAW", "CUSTOM", "TEXT_MESSAGE_CONTENT")):
                if not self.raw and frame.get("name") != OWN:
                    self.blocks.raw(kind, frame)
            case _:
                pass

    def _report_agents(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Nested):
                id, *inside = event.path
                self._begin_agent(id, id)
                self.blocks.aside(Nested((self.blocks.calls.id_of(self._calls[id]), *inside), event.event))

    def _begin_agent(self, id: str, name: str) -> None:
        """Add a tool call for an agent that was not started by a tool call.

        ``Nested`` paths consist of call ids, so every agent needs a call.
        """
        if id not in self._calls:
            index = self._calls[id] = len(self._calls)
            self.blocks.call(index, id, name, "{}", {"server": True})
            self.blocks.complete_call(index)

    def _read_call(self, kind: str, id: str, frame: Frame) -> None:
        self._thinking = None
        index = self._calls.setdefault(id, len(self._calls))
        if kind == "TOOL_CALL_START":
            name = text_of(frame, "toolCallName")
            if name in self._client_tools:
                self._undecided.add(id)
            self.blocks.call(index, id, name, None, {} if name in self._client_tools else {"server": True})
        elif kind == "TOOL_CALL_ARGS":
            self.blocks.call(index, None, None, text_of(frame, "delta"))
        elif kind == "TOOL_CALL_END":
            if id not in self._undecided:
                self.blocks.complete_call(index)
        else:
            if id in self._undecided:  # the agent ran its own tool with this name
                self.blocks.call(index, None, None, None, {"server": True})
                self.blocks.complete_call(index)
            result = {"id": self.blocks.calls.id_of(index), "content": frame["content"]}
            self.blocks.part(ProviderPart(PROVIDER, result))

    def _failure(self, frame: Frame) -> LLMError:
        if frame.get("code") in ("cancelled", "truncated"):
            return StreamError(frame["code"], frame["message"], provider=PROVIDER)
        return self.error_of(frame)

    def _count(self, frame: Frame) -> None:
        usage = to_usage(frame)
        if usage is not None:
            self.blocks.start(model=frame["usage"][-1].get("model"))
            self.blocks.usage(_without(usage, self._agents.usage))

    def _finish(self, frame: Frame) -> None:
        outcome = frame.get("outcome") or {"type": "success"}
        self._count(frame)
        if outcome["type"] == "cancelled":
            self.fail(StreamError("cancelled", "the agent's run was cancelled", provider=PROVIDER))
            return
        if "interrupts" in outcome:
            self.blocks.note({"interrupts": outcome["interrupts"]})
        self.blocks.finish("stop" if outcome["type"] == "success" else "other", outcome["type"])
        self.end(over=True)


def _without(usage: Usage, agents: Usage) -> Usage:
    """Return a run's `usage` minus the usage of its inner `agents`."""
    counts = {name: (getattr(usage, name), getattr(agents, name) or 0) for name in COUNTS.values()}
    return replace(usage, **{name: max(0, all - own) for name, (all, own) in counts.items() if all is not None and own})


def to_input(request: Request) -> Frame:
    named = {name: getattr(request, name) for name in _PARAMETERS}
    named |= {"stop": list(request.stop) or None, "response_format": request.response_format}
    parameters = {name: value for name, value in named.items() if value is not None}
    own: Any = request.options.get("forwardedProps") or {}
    waiting = request.messages[-1:] if "resume" in request.options else ()
    entries = [entry for message in request.messages for entry in _messages(message, message in waiting)]
    body: Frame = {
        "threadId": uuid4().hex,
        "runId": uuid4().hex,
        "protocolVersion": VERSION,
        "state": {},  # servers older than 1.0 require this field
        "messages": [{"id": f"message_{i}", **entry} for i, entry in enumerate(entries)],
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": tool.schema} for tool in request.tools
        ],
        "context": [],
    }
    return {**body, **request.options, "forwardedProps": {**parameters, **own}}


def _messages(message: Message, waits: bool) -> Iterator[Frame]:
    text = json.dumps(message.content) if isinstance(message.content, dict) else message.text
    match message.role:
        case "tool":
            yield {"role": "tool", "toolCallId": message.tool_call_id or "", "content": text}
        case "assistant":
            yield from _of_assistant(message, text, waits)
        case "user" if isinstance(message.content, tuple):
            yield {"role": "user", "content": [entry for part in message.parts for entry in _part(part)]}
        case role:
            yield {"role": role, "content": text}


def _of_assistant(message: Message, text: str, waits: bool) -> Iterator[Frame]:
    for part in message.parts:
        if isinstance(part, ThinkingPart):
            signed = {"encryptedValue": part.signature} if part.signature else {}
            yield {"role": "reasoning", "content": part.text, **signed}
    own = [part.data for part in message.parts if isinstance(part, ProviderPart) and part.provider == PROVIDER]
    answered = {result["id"] for result in own}
    calls = [
        _call(call) for call in message.tool_calls if waits or call.id in answered or not call.metadata.get("server")
    ]
    if text or calls:
        yield {"role": "assistant", "content": text, **({"toolCalls": calls} if calls else {})}
    for result in own:
        yield {"role": "tool", "toolCallId": result["id"], "content": result["content"]}


def _call(call: ToolCall) -> Frame:
    arguments = json.dumps(call.arguments) if call.raw_arguments is None else call.raw_arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _part(part: Part) -> Iterator[Frame]:
    match part:
        case TextPart(text=text):
            yield {"type": "text", "text": text}
        case ImagePart(image=image) if image.source == "url":
            yield {"type": "image", "source": {"type": "url", "value": image.data}}
        case ImagePart(image=image):
            source = {"type": "data", "value": image.to_base64(), "mimeType": image.mime_type or "image/png"}
            yield {"type": "image", "source": source}
        case FilePart(file=file):
            yield from _file(file)
        case _:
            pass


def _file(file: Mapping[str, Any]) -> Iterator[Frame]:
    mime_type = str(file.get("mime_type") or "application/octet-stream")
    kind = mime_type.partition("/")[0]
    if isinstance(file.get("url"), str):
        source = {"type": "url", "value": file["url"], "mimeType": mime_type}
    elif isinstance(file.get("data"), bytes):
        source = {"type": "data", "value": base64.b64encode(file["data"]).decode(), "mimeType": mime_type}
    else:
        return
    yield {"type": kind if kind in ("image", "audio", "video") else "document", "source": source}

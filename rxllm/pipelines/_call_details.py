"""What telemetry says of a call besides its ids: its parameters, its server, its attempts, and what tracers ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rxllm.pipelines._observers import Clock, Observers
from rxllm.runtime import current_scope
from rxllm.telemetry import CallDetails
from rxllm.values import (
    Call,
    ImageRequest,
    Message,
    ProviderPart,
    Request,
    Response,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
)
from rxllm.values.argument_checks import masked

_PARAMETERS = ("temperature", "top_p", "max_tokens", "stop", "seed", "reasoning_effort")
_PASSED_THROUGH = ("top_k", "frequency_penalty", "presence_penalty")
_PORTS = {"https": 443, "http": 80}


def details(request: Request | ImageRequest, adapter: Any) -> CallDetails:
    """Return what is known of a call before it is made, in the scope of its subscription."""
    values = {name: getattr(request, name, None) for name in _PARAMETERS}
    values |= {name: request.options.get(name) for name in _PASSED_THROUGH}
    parameters = {name: value for name, value in values.items() if value not in (None, ())}
    if isinstance(request, Request) and request.response_format not in (None, "text"):
        parameters["response_format"] = "json"  # its schema may say what is asked
    address, port = _server(adapter)
    notes, queued = masked(request.metadata), current_scope.get().queued
    return CallDetails(parameters=parameters, metadata=notes, address=address, port=port, queued=queued)


def _server(adapter: Any) -> tuple[str | None, int | None]:
    url = getattr(adapter, "base_url", None)
    if not isinstance(url, str):
        return None, None
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # a port that is not a number
        return None, None


class Attempts:
    """The attempts at one call: how many there were, when the last one began, and when its chunks came."""

    def __init__(self, observers: Observers, start: CallDetails) -> None:
        self._observers = observers
        self._start = start
        self._count = 0
        self._began = 0.0
        self._chunks: list[float] = []
        self.now: Clock = float  # the span sets it

    def begin(self, call: Call) -> Call:
        """Return `call` for the attempt that begins now, with the headers of the tracers."""
        self._count += 1
        self._began = self.now()
        self._chunks.clear()
        headers = self._observers.request_headers(current_scope.get().parent_id or "")  # below the call's span
        return replace(call, trace_headers=headers) if headers else call

    def note_chunk(self) -> None:
        """Note that a piece of the answer has come."""
        if self._observers.has_tracers:
            self._chunks.append(self.now() - self._began)

    def details(self, response: Any = None) -> CallDetails:
        """Return what is known of the call, at its end with its `response`."""
        if response is None:
            return self._start
        return msgspec.structs.replace(
            self._start,
            attempts=self._count,
            chunks=tuple(self._chunks),
            response_id=response.id,
            response_model=response.model,
        )


# Content, for tracers that ask for it


def request_content(request: Request) -> Request:
    """Return the messages of `request`, without the model's reasoning, and its tools."""
    return Request(messages=tuple(map(_without_reasoning, request.messages)), tools=request.tools)


def response_content(response: Response[Any]) -> Message | None:
    """Return the text and the tool calls of `response`, without its reasoning; None if it has neither."""
    if not (response.output_text or response.tool_calls):
        return None
    return Message("assistant", response.output_text, tool_calls=tuple(map(_bare, response.tool_calls)))


def _without_reasoning(message: Message) -> Message:
    content = message.content
    if isinstance(content, tuple):
        content = tuple(part for part in content if not isinstance(part, ThinkingPart | ProviderPart | ToolCallPart))
    return replace(message, content=content, tool_calls=tuple(map(_bare, message.tool_calls)), metadata={})


def _bare(call: ToolCall) -> ToolCall:
    """Return `call` with what marks it as the provider's own, and no signature of the reasoning behind it."""
    kept: Mapping[str, Any] = {name: call.metadata[name] for name in ("server",) if name in call.metadata}
    return replace(call, metadata=dict(kept))

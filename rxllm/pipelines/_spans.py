"""When observers are told of a call, a step, a chat and images: each is a `Span`, which takes the times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    StepCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from rxllm.pipelines._call_details import Attempts, request_content, response_content
from rxllm.pipelines._observers import Clock, Ids, Observers
from rxllm.runtime import is_content, tool_id
from rxllm.telemetry import (
    CallFinished,
    CallStarted,
    ChatFinished,
    ChatStarted,
    FirstToken,
    ImagesFinished,
    ImagesStarted,
    Outcome,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from rxllm.tools import AgentTool
from rxllm.values import ChatResult, ImageRequest, ImageResponse, LLMError, Request, StepResult, Tool

_CHUNKS = frozenset({TextDelta, ThinkingDelta, ToolCallStarted, ToolCallDelta, FileAdded})
"""The events that are a piece of the answer; completions only repeat what has come."""


class _Span:
    def __init__(self, observers: Observers, now: Clock, ids: Ids) -> None:
        self._tell = observers.tell
        self._now = now
        self._ids = ids
        self._began = now()

    @property
    def _seconds(self) -> float:
        return self._now() - self._began


class CallSpan(_Span):
    """One model's response: start, first token, finish."""

    def __init__(
        self, observers: Observers, now: Clock, ids: Ids, provider: str, request: Request, attempts: Attempts
    ) -> None:
        super().__init__(observers, now, ids)
        self._about = (ids.request_id, provider, request.model)
        self._attempts = attempts
        attempts.now = now
        self._state = StreamCollector()
        self._has_begun = self._has_ended = False
        started = CallStarted(*self._about, attempts.details(), **ids.keywords)
        self._tell(started, lambda: request_content(request))

    def see(self, event: Event) -> None:
        with suppress(Exception):  # a raw usage with unknown keys, which the fold of the caller meets too
            self._state = self._state.apply_event(event)
        if type(event) is MessageCompleted or type(event) is ErrorEvent:
            self._has_ended = True
            return
        if type(event) in _CHUNKS:
            self._attempts.note_chunk()
        if not self._has_begun and is_content(event):
            self._has_begun = True
            self._tell(FirstToken(*self._about, self._seconds, **self._ids.keywords))

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        response = self._state.to_response()
        error = error or response.error
        outcome = _settled(outcome, self._has_ended, error)
        reason = None if outcome == "cancelled" else "error" if error else response.finish_reason
        end = (outcome, self._seconds, reason, response.usage, error, self._attempts.details(response))
        finished = CallFinished(*self._about, *end, **self._ids.keywords)
        self._tell(finished, lambda: response_content(response))


class StepSpan(_Span):
    """One step and the tools in it."""

    def __init__(
        self, observers: Observers, now: Clock, ids: Ids, metadata: Mapping[str, Any], tools: Iterable[Tool] = ()
    ) -> None:
        super().__init__(observers, now, ids)
        self._known = {tool.name: tool for tool in tools}
        self._tools: dict[str, tuple[str, float]] = {}  # those that are running: name and start by call
        self._has_ended = False
        self._result: StepResult | None = None
        self._tell(StepStarted(ids.request_id, metadata, **ids.keywords))

    def see(self, event: Event) -> None:
        match event:
            case ToolExecutionStarted(id=id, name=name):
                began, about = self._now(), (self._ids.request_id, name, id, *self._describe(name))
                self._tell(ToolStarted(*about, **self._tool_keywords(id)), lambda: event.arguments)
                self._tools[id] = (name, began)
                if self._has_ended:  # meanwhile, by a dispose in another thread
                    self._finish_tool(id, "cancelled", None)
            case ToolExecutionCompleted(id=id, error=error) if id in self._tools:  # a denied call has not started
                self._finish_tool(id, "failed" if error else "completed", error, event.result)
            case StepCompleted(result=result):
                self._result = result
            case _:
                pass

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        self._has_ended = True
        for id in list(self._tools):  # an agent that has halted is not cancelled
            self._finish_tool(id, "completed" if self._result else "cancelled", None)
        response = self._result.response if self._result else None
        error = error or (response.error if response else None)
        outcome = _settled(outcome, response is not None, error)
        finished = StepFinished(self._ids.request_id, outcome, self._seconds, error=error, **self._ids.keywords)
        if self._result:
            reason, usage = self._result.response.finish_reason, self._result.usage
            finished = replace(finished, finish_reason=reason, usage=usage)
        self._tell(finished)

    def _describe(self, name: str) -> tuple[str, bool]:
        tool = self._known.get(name)
        return (tool.description if tool else "", isinstance(tool, AgentTool))

    def _finish_tool(self, id: str, outcome: Outcome, error: LLMError | None, result: Any = None) -> None:
        running = self._tools.pop(id, None)
        if running is None:  # another thread was first
            return
        name, began = running
        about, seconds = (self._ids.request_id, name, id), self._now() - began
        finished = ToolFinished(*about, outcome, seconds, error, **self._tool_keywords(id))
        self._tell(finished, lambda: result)

    def _tool_keywords(self, tool_call_id: str) -> dict[str, Any]:
        return {**self._ids.keywords, "id": tool_id(self._ids.id, tool_call_id), "parent_id": self._ids.id}


class ChatSpan(_Span):
    """A chat, around its steps."""

    def __init__(self, observers: Observers, now: Clock, ids: Ids, metadata: Mapping[str, Any]) -> None:
        super().__init__(observers, now, ids)
        self._result: ChatResult | None = None
        self._tell(ChatStarted(ids.request_id, metadata, **ids.keywords))

    def see(self, event: Event) -> None:
        if isinstance(event, ChatCompleted):
            self._result = event.result

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        result = self._result
        error = error or (result.error if result else None)
        outcome = _settled(outcome, result is not None, error)
        finished = ChatFinished(self._ids.request_id, outcome, self._seconds, error=error, **self._ids.keywords)
        if result:
            steps = len(result.steps)
            finished = replace(finished, halted_reason=result.halted_reason, steps=steps, usage=result.usage)
        self._tell(finished)


class ImagesSpan(_Span):
    """A call for images."""

    def __init__(
        self, observers: Observers, now: Clock, ids: Ids, provider: str, request: ImageRequest, attempts: Attempts
    ) -> None:
        super().__init__(observers, now, ids)
        self._about = (ids.request_id, provider, request.model, request.operation)
        self._attempts = attempts
        attempts.now = now
        self._response: ImageResponse | None = None
        self._tell(ImagesStarted(*self._about, request.n, attempts.details(), **ids.keywords))

    def see(self, event: Any) -> None:
        self._response = event

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        outcome = _settled(outcome, self._response is not None, error)
        response = self._response or ImageResponse()
        end = (outcome, self._seconds, len(response.images), response.usage, error, self._attempts.details(response))
        self._tell(ImagesFinished(*self._about, *end, **self._ids.keywords))


def _settled(outcome: Outcome, has_ended: bool, error: Exception | None) -> Outcome:
    if outcome == "cancelled" and not has_ended:
        return outcome
    return "failed" if error is not None else "completed"

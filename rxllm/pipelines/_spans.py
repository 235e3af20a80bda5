"""When observers are told of a call, a step, a chat and images: each is a `Span`, which takes the times."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    StepCompleted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from rxllm.pipelines._observers import Clock, Ids, Observers
from rxllm.runtime import is_content, tool_id
from rxllm.values import (
    CallFinished,
    CallStarted,
    ChatFinished,
    ChatResult,
    ChatStarted,
    FirstToken,
    ImageRequest,
    ImageResponse,
    ImagesFinished,
    ImagesStarted,
    LLMError,
    Outcome,
    StepFinished,
    StepResult,
    StepStarted,
    ToolFinished,
    ToolStarted,
)


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

    def __init__(self, observers: Observers, now: Clock, ids: Ids, provider: str, model: str | None) -> None:
        super().__init__(observers, now, ids)
        self._about = (ids.request_id, provider, model)
        self._state = StreamCollector()
        self._has_begun = self._has_ended = False
        self._tell(CallStarted(*self._about, **ids.keywords))

    def see(self, event: Event) -> None:
        with suppress(Exception):  # a raw usage with unknown keys, which the fold of the caller meets too
            self._state = self._state.apply_event(event)
        if type(event) is MessageCompleted or type(event) is ErrorEvent:
            self._has_ended = True
        elif not self._has_begun and is_content(event):
            self._has_begun = True
            self._tell(FirstToken(*self._about, self._seconds, **self._ids.keywords))

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        response = self._state.to_response()
        error = error or response.error
        outcome = _settled(outcome, self._has_ended, error)
        reason = None if outcome == "cancelled" else "error" if error else response.finish_reason
        details = (outcome, self._seconds, reason, response.usage, error)
        self._tell(CallFinished(*self._about, *details, **self._ids.keywords))


class StepSpan(_Span):
    """One step and the tools in it."""

    def __init__(self, observers: Observers, now: Clock, ids: Ids) -> None:
        super().__init__(observers, now, ids)
        self._tools: dict[str, tuple[str, float]] = {}  # those that are running: name and start by call
        self._result: StepResult | None = None
        self._tell(StepStarted(ids.request_id, **ids.keywords))

    def see(self, event: Event) -> None:
        match event:
            case ToolExecutionStarted(id=id, name=name):
                self._tools[id] = (name, self._now())
                self._tell(ToolStarted(self._ids.request_id, name, id, **self._tool_keywords(id)))
            case ToolExecutionCompleted(id=id, error=error) if id in self._tools:  # a denied call has not started
                self._finish_tool(id, "failed" if error else "completed", error)
            case StepCompleted(result=result):
                self._result = result
            case _:
                pass

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
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

    def _finish_tool(self, id: str, outcome: Outcome, error: LLMError | None) -> None:
        name, began = self._tools.pop(id)
        about, seconds = (self._ids.request_id, name, id), self._now() - began
        self._tell(ToolFinished(*about, outcome, seconds, error, **self._tool_keywords(id)))

    def _tool_keywords(self, tool_call_id: str) -> dict[str, Any]:
        return {"id": tool_id(self._ids.id, tool_call_id), "parent_id": self._ids.id, "path": self._ids.path}


class ChatSpan(_Span):
    """A chat, around its steps."""

    def __init__(self, observers: Observers, now: Clock, ids: Ids) -> None:
        super().__init__(observers, now, ids)
        self._result: ChatResult | None = None
        self._tell(ChatStarted(ids.request_id, **ids.keywords))

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

    def __init__(self, observers: Observers, now: Clock, ids: Ids, provider: str, request: ImageRequest) -> None:
        super().__init__(observers, now, ids)
        self._about = (ids.request_id, provider, request.model, request.operation)
        self._response: ImageResponse | None = None
        self._tell(ImagesStarted(*self._about, request.n, **ids.keywords))

    def see(self, event: Any) -> None:
        self._response = event

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        outcome = _settled(outcome, self._response is not None, error)
        response = self._response or ImageResponse()
        details = (outcome, self._seconds, len(response.images), response.usage, error)
        self._tell(ImagesFinished(*self._about, *details, **self._ids.keywords))


def _settled(outcome: Outcome, has_ended: bool, error: Exception | None) -> Outcome:
    if outcome == "cancelled" and not has_ended:
        return outcome
    return "failed" if error is not None else "completed"

"""What is told of a call, a step, a chat and a request for images: each is a `Span`."""

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
    MessageStarted,
    RawChunk,
    StepCompleted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UsageUpdated,
)
from rxllm.pipelines._observe import Clock, Ids, Observers
from rxllm.runtime import tool_id
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


class CallSpan:
    """One model's response: start, first token, finish."""

    def __init__(self, observers: Observers, now: Clock, ids: Ids, provider: str, model: str | None) -> None:
        self._observers = observers
        self._now = now
        self._about = (ids.request_id, provider, model)
        self._ids = ids.of_span
        self._began = now()
        self._state = StreamCollector()
        self._has_begun = self._has_ended = False
        observers.tell(CallStarted(*self._about, **self._ids))

    def see(self, event: Event) -> None:
        with suppress(Exception):  # a raw usage with unknown keys, which the fold of the caller meets too
            self._state = self._state.apply_event(event)
        if type(event) is MessageCompleted or type(event) is ErrorEvent:
            self._has_ended = True
        elif not self._has_begun and not isinstance(event, MessageStarted | UsageUpdated | RawChunk):
            self._has_begun = True
            self._observers.tell(FirstToken(*self._about, self._now() - self._began, **self._ids))

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        response = self._state.to_response()
        error = error or response.error
        outcome = _settled(outcome, self._has_ended, error)
        reason = None if outcome == "cancelled" else "error" if error else response.finish_reason
        seconds = self._now() - self._began
        self._observers.tell(CallFinished(*self._about, outcome, seconds, reason, response.usage, error, **self._ids))


class StepSpan:
    """One step and the tools in it."""

    def __init__(self, observers: Observers, now: Clock, ids: Ids) -> None:
        self._observers = observers
        self._now = now
        self._ids = ids
        self._began = now()
        self._tools: dict[str, tuple[str, float]] = {}  # those that run: name and start by call
        self._result: StepResult | None = None
        observers.tell(StepStarted(ids.request_id, **ids.of_span))

    def see(self, event: Event) -> None:
        match event:
            case ToolExecutionStarted(id=id, name=name):
                self._tools[id] = (name, self._now())
                self._observers.tell(ToolStarted(self._ids.request_id, name, id, **self._of_tool(id)))
            case ToolExecutionCompleted(id=id, error=error) if id in self._tools:  # a denied call has not started
                self._finish_tool(id, "failed" if error else "completed", error)
            case StepCompleted(result=result):
                self._result = result
            case _:
                pass

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        for id in list(self._tools):
            self._finish_tool(id, "cancelled", None)
        response = self._result.response if self._result else None
        error = error or (response.error if response else None)
        outcome = _settled(outcome, response is not None, error)
        finished = StepFinished(
            self._ids.request_id, outcome, self._now() - self._began, error=error, **self._ids.of_span
        )
        if response:
            finished = replace(finished, finish_reason=response.finish_reason, usage=response.usage)
        self._observers.tell(finished)

    def _finish_tool(self, id: str, outcome: Outcome, error: LLMError | None) -> None:
        name, began = self._tools.pop(id)
        about, seconds = (self._ids.request_id, name, id), self._now() - began
        self._observers.tell(ToolFinished(*about, outcome, seconds, error, **self._of_tool(id)))

    def _of_tool(self, tool_call_id: str) -> dict[str, Any]:
        return {"id": tool_id(self._ids.id, tool_call_id), "parent_id": self._ids.id, "path": self._ids.path}


class ChatSpan:
    """A chat, round its steps."""

    def __init__(self, observers: Observers, now: Clock, ids: Ids) -> None:
        self._observers = observers
        self._now = now
        self._ids = ids
        self._began = now()
        self._result: ChatResult | None = None
        observers.tell(ChatStarted(ids.request_id, **ids.of_span))

    def see(self, event: Event) -> None:
        if isinstance(event, ChatCompleted):
            self._result = event.result

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        result = self._result
        error = error or (result.error if result else None)
        outcome = _settled(outcome, result is not None, error)
        finished = ChatFinished(
            self._ids.request_id, outcome, self._now() - self._began, error=error, **self._ids.of_span
        )
        if result:
            steps = len(result.steps)
            finished = replace(finished, halted_reason=result.halted_reason, steps=steps, usage=result.usage)
        self._observers.tell(finished)


class ImagesSpan:
    """A call for images."""

    def __init__(
        self, observers: Observers, now: Clock, ids: Ids, about: tuple[str, str, str | None], request: ImageRequest
    ) -> None:
        self._observers = observers
        self._now = now
        self._about = (*about, request.operation)
        self._ids = ids.of_span
        self._began = now()
        self._response: ImageResponse | None = None
        observers.tell(ImagesStarted(*self._about, request.n, **self._ids))

    def see(self, event: Any) -> None:
        self._response = event

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        outcome = _settled(outcome, self._response is not None, error)
        made = self._response or ImageResponse()
        seconds = self._now() - self._began
        response = (len(made.images), made.usage)
        self._observers.tell(ImagesFinished(*self._about, outcome, seconds, *response, error, **self._ids))


def _settled(outcome: Outcome, has_ended: bool, error: Exception | None) -> Outcome:
    if outcome == "cancelled" and not has_ended:
        return outcome
    return "failed" if error is not None else "completed"

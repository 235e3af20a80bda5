"""What the events that a client sees fold to, and events told in short by that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from rxllm import ChatResult, Message, Nested, Response, StepResult, StreamCollector, Thread, Usage
from rxllm import events as ev
from rxllm.web._codec import Frame, event_data, event_of


class ClientFold:
    """What the events that a client sees fold to, of one stream and of the agents inside it."""

    def __init__(self) -> None:
        self.state = StreamCollector(Thread())
        self.is_answering = False  # a response has begun, perhaps again, and has not ended
        self._agents: dict[str, ClientFold] = {}

    def agent(self, path: Sequence[str]) -> ClientFold:
        """Return the fold of the agent at `path`."""
        fold = self
        for id in path:
            fold = fold._agents.setdefault(id, ClientFold())
        return fold

    def apply(self, event: ev.Event) -> None:
        self.state = self.state.apply_event(event)
        match event:
            case ev.TextDelta() | ev.ThinkingDelta() | ev.ToolCallDelta():
                pass
            case Nested(path=(id, *path)):
                self.agent((id,)).apply(Nested(tuple(path), event.event) if path else event.event)
            case ev.MessageStarted() | ev.StepRestarted():
                self.is_answering = True
            case ev.MessageCompleted() | ev.ErrorEvent() | ev.StepCompleted() | ev.ChatCompleted():
                self.is_answering = False
            case _:
                pass

    def filled(self, event: ev.Event) -> ev.Event:
        """Return `event` with the message or the result that the events so far fold to."""
        match event:
            case ev.MessageCompleted(message=message):
                return changed(event, message=replace(self.state.message, metadata=message.metadata))
            case ev.StepCompleted(result=result):
                return ev.StepCompleted(self._step(result))
            case ev.ChatCompleted(result=result):
                response = self.state.last_response
                return ev.ChatCompleted(replace(result, thread=Thread(), final_response=response, steps=()))
            case Nested(path=path, event=inner) if path:
                return Nested(path, self.agent(path).filled(inner))
            case _:
                return event

    def packed(self, event: ev.Event) -> Frame:
        """Return `event` as data, without what the events before it fold to: `unpacked` makes it whole again."""
        left_out = ClientFold().filled(event)
        is_folded = left_out != event and self.filled(left_out) == event
        return {"event": event_data(left_out), "folded": True} if is_folded else {"event": event_data(event)}

    def unpacked(self, data: Frame) -> ev.Event:
        """Return the event in what `packed` returned. Raises for anything else."""
        event = event_of(data["event"])
        return self.filled(event) if data.get("folded") is True else event

    # What the streams of other servers do not tell

    def message(self, reason: Any) -> ev.Event:
        """Return the completion of the message so far."""
        return self.filled(ev.MessageCompleted(Message("assistant"), reason))

    def step(self) -> ev.Event:
        """Return the completion of the step so far, whose calls without a result are left to the client."""
        is_done = not self.state.to_response().tool_calls
        return self.filled(ev.StepCompleted(StepResult(Thread(), Response(), done=is_done)))

    def chat(self, **fields: Any) -> ev.Event:
        """Return the completion of the chat so far; `fields` are those of its result that no event tells."""
        usage = sum((step.response.usage for step in self.state.steps), Usage())
        return self.filled(ev.ChatCompleted(ChatResult(Thread(), usage=usage, **fields)))

    def _step(self, result: StepResult) -> StepResult:
        state = changed(self.state, thread=Thread()) if self.state.thread is None else self.state
        return replace(state.to_step_result(), thread=Thread(), done=result.done, metadata=result.metadata)

"""Check the order of responses, tools, steps and the end of a chat.

=========  ==================================================  ======================================================
phase      event                                               next phase
=========  ==================================================  ======================================================
start      ``MessageStarted``                                  message
start      a tool's event, in a resumed chat                   tools
message    content                                             message
message    ``MessageCompleted``, ``ErrorEvent``                over, failed
over       a tool's event, ``ErrorEvent`` of an unknown tool   tools
over       ``StepCompleted``                                   step
tools      a tool's event                                      tools
tools      ``StepCompleted``                                   step
failed     ``StepCompleted``                                   step
step       ``MessageStarted``, ``ErrorEvent``                  message, lost
step       ``Steered``                                         step
step       ``ChatCompleted``                                   chat
lost       ``Steered``, which came too late                    lost
lost       ``ChatCompleted``                                   chat
any step   ``StepRestarted``: the step's events are void       start
any step   ``ErrorEvent`` of an operator that cuts the stream  failed, lost
=========  ==================================================  ======================================================

A stream may end as `over` or `failed` (one response), after its one `step`, as `chat`, and where an operator cuts it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rxllm.collector import event_fault, unnest
from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    Custom,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    Nested,
    RawChunk,
    SourceAdded,
    Steered,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.operators._shared.event_operators import EVENTS
from rxllm.operators._shared.rules.response import Broken, Response
from rxllm.values import StreamError

_CONTENT = (
    *(TextDelta, TextCompleted, ThinkingDelta, ThinkingCompleted),
    *(ToolCallStarted, ToolCallDelta, ToolCallCompleted),
    *(SourceAdded, FileAdded, UsageUpdated, RawChunk, Custom),
    *(ToolProgress, Nested),  # from a tool, or an agent, that the provider runs
)
_TOOLS = (
    *(ToolApprovalRequested, ToolExecutionStarted, ToolProgress, ToolExecutionCompleted),
    *(Nested, ToolResultEncoded, ToolHalt, AskUserRequested, Custom),
)
_CUTS = ("timeout", "budget_exceeded", "guard_tripped", "guard_failed", "guard_late")
"""The reasons of operators that end a whole chat wherever it is."""

_ENDED: dict[type[Any], str] = {StepCompleted: "step", StepRestarted: "start"}

_NEXT: dict[str, dict[type[Any], str]] = {
    "start": {MessageStarted: "message", StepRestarted: "start", **dict.fromkeys(_TOOLS[:-1], "tools")},
    "message": {
        **dict.fromkeys(_CONTENT, "message"),
        MessageCompleted: "over",
        ErrorEvent: "failed",
        StepRestarted: "start",
    },
    "over": {**dict.fromkeys(_TOOLS, "tools"), **_ENDED},
    "tools": {**dict.fromkeys(_TOOLS, "tools"), **_ENDED},
    "failed": _ENDED,
    "step": {
        MessageStarted: "message",
        ErrorEvent: "lost",
        ChatCompleted: "chat",
        Custom: "step",
        Steered: "step",
        StepRestarted: "start",
    },
    "lost": {Steered: "lost", ChatCompleted: "chat"},
    "chat": {},
}

_OUT_OF_PLACE = {
    "start": ("message_started", "a response begins with MessageStarted"),
    "message": ("terminal", "the response must end with MessageCompleted or ErrorEvent first"),
    "over": ("terminal", "only tools and the end of the step follow the end of a response"),
    "tools": ("step_completed", "only StepCompleted ends the events of tools"),
    "failed": ("terminal", "only the end of the step follows an error"),
    "step": ("message_started", "a step begins with MessageStarted"),
    "lost": ("chat_completed", "a step that fails to begin ends the chat"),
    "chat": ("chat_completed", "nothing follows ChatCompleted"),
}

_MISSING = {
    "start": "message_started",
    "message": "terminal",
    **dict.fromkeys(("over", "tools", "failed"), "step_completed"),
    **dict.fromkeys(("step", "lost"), "chat_completed"),
}


class Rules:
    """Passes lawful events on. `feed` and `close` raise ``StreamError("malformed_event")`` at the first other one."""

    def __init__(self) -> None:
        self._index = -1
        self._phase = "start"
        self._is_cut = False  # by the last event
        self._steps = 0
        self._used: set[str] = set()  # ids of the tool calls of earlier steps
        self._response = Response(self._used)
        self._agents: dict[str, Rules] = {}  # of the tool calls that run, which may be agents

    def feed(self, event: Event) -> Iterable[Event]:
        self._index += 1
        try:
            self.check(event)
        except Broken as broken:
            raise self._error(broken, event) from None
        return (event,)

    def close(self) -> Iterable[Event]:
        steps_at_end = {"over": 0, "failed": 0, "step": 1}  # how many a stream that ends in this phase has
        if self._phase == "chat" or self._is_cut or steps_at_end.get(self._phase) == self._steps:
            return ()
        self._index += 1
        raise self._error(Broken(_MISSING[self._phase], "missing at the end"), None)

    def check(self, event: Event) -> None:
        """Raise `Broken` if `event` breaks a rule."""
        if type(event) not in EVENTS:
            raise Broken("event", "not one of the classes of rxllm.Event")
        if fault := event_fault(event):
            raise Broken("event", fault)
        self._is_cut = isinstance(event, ErrorEvent) and event.error.reason in _CUTS
        following = self._following(event)
        if following is None:
            raise Broken(*_OUT_OF_PLACE[self._phase])
        if following == "start":
            self._response = Response(self._used)
            self._agents.clear()
        elif isinstance(event, Nested) and following == "message":
            id, inner = unnest(event)
            if id not in self._response.ids:
                raise Broken(*_OUT_OF_PLACE["message"])
            self._agents.setdefault(id, Rules()).check(inner)
        elif isinstance(event, ErrorEvent) and self._phase == "message":
            self.cut(event)
        elif self._phase == "message" or following == "message":
            self._response.feed(event)
            if following == "over":  # agents of the provider's own may still wait
                self._agents.clear()
        else:
            self._check_agents(event)
        if following == "step" and self._phase != "step":
            self._steps += 1
            self._used |= self._response.ids
            self._response = Response(self._used)
        self._phase = following

    def _check_agents(self, event: Event) -> None:
        match event:
            case ToolExecutionStarted(id=id):
                self._agents[id] = Rules()
            case Nested():
                id, inner = unnest(event)
                if id not in self._agents:
                    raise Broken("nested", f"no tool call {id!r} runs")
                self._agents[id].check(inner)
            case ToolExecutionCompleted(id=id, error=error):
                agent = self._agents.pop(id, None)
                if agent is not None and error is None:  # one that fails may end anywhere
                    agent.check_end(id)
            case ErrorEvent():
                self.cut(event)
            case StepCompleted():
                for id, agent in self._agents.items():
                    agent.check_end(id)
                self._agents.clear()
            case _:
                pass

    def cut(self, error: ErrorEvent) -> None:
        """Raise `Broken` if a block or a tool call is open, at any depth."""
        if self._phase == "message":
            self._response.feed(error)
        for agent in self._agents.values():
            agent.cut(error)
        self._agents.clear()

    def check_end(self, id: str) -> None:
        """Raise `Broken` if the agent that is the tool call `id` has begun and not completed its chat."""
        if self._phase not in ("start", "chat"):
            raise Broken("nested", f"the agent of the tool call {id!r} has not completed its chat")

    def _following(self, event: Event) -> str | None:
        if self._phase == "over" and isinstance(event, ErrorEvent) and event.error.reason == "unknown_tool":
            return "tools"  # the step emits it, not the adapter
        if self._phase in ("over", "tools") and self._is_cut:
            return "failed"
        if self._phase == "start" and isinstance(event, StepCompleted) and "pending_question" in event.result.metadata:
            return "step"  # a chat that goes on, and whose question is still open
        return _NEXT[self._phase].get(type(event))

    def _error(self, broken: Broken, event: Any) -> StreamError:
        rule, why = broken.args
        if type(event) is Nested:
            why = f"{why}, in the agent {'/'.join(event.path)}"
        malformed = rule == "event" and type(event) in EVENTS  # its repr may fail too
        place = "the end" if event is None else type(event).__name__ if malformed else repr(event)[:200]
        config = getattr(event, "__struct_config__", None)
        return StreamError(
            "malformed_event",
            f"unlawful: {rule}: {why}, at event {self._index}, {place}",
            event_index=self._index,
            metadata={"rule": rule, "event": config and config.tag},
        )

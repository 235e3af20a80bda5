"""The rules for event streams, and where they are checked.

``operators.verify`` checks all rules. For speed, adapters' events are checked only in part:

==================================================  ====================================================================
rule (see ``operators.verify``)                     how an adapter's events are treated
==================================================  ====================================================================
``event``                                           The event is checked, including the types of its fields (see
                                                    `event_fault`). rxllm's own decoders are exempt, because
                                                    `wire.event_order` makes their events.
``message_started``, ``block_closed``,              If an async generator omits these events, they are added. The events
``terminal``                                        of an Observable are not checked.
all others                                          These rules are not checked.
==================================================  ====================================================================

Events from other sources are checked by the fold and by the operators that receive them.

A stream moves through these phases:

=========  ==================================================  ==========
phase      event                                               next phase
=========  ==================================================  ==========
start      ``MessageStarted``                                  message
start      a tool's event, in a resumed chat                   tools
start      ``StepCompleted``, if a question is still open      step
message    content                                             message
message    the start, progress, nested events or end of a      message
           tool that started early or runs at the provider
message    ``MessageCompleted``                                over
message    ``ErrorEvent``                                      failed
over       a tool's event, ``Custom``, or ``ErrorEvent`` for   tools
           an unknown tool
over       ``StepCompleted``                                   step
tools      a tool's event, ``Custom``                          tools
tools      ``StepCompleted``                                   step
tools      ``ChatCompleted``, for a tool that asks the user    chat
           and is called again with the answer
failed     ``StepCompleted``                                   step
step       ``MessageStarted``                                  message
step       ``ErrorEvent``                                      lost
step       ``Steered``, ``Custom``                             step
step       ``ChatCompleted``                                   chat
lost       ``Steered``, if it arrived too late                 lost
lost       ``ChatCompleted``                                   chat
=========  ==================================================  ==========

* ``StepRestarted`` voids the step's events. It leads to `start` from every phase except `lost` and `chat`.
* An operator's ``ErrorEvent`` leads from `message`, `over` and `tools` to `failed`. It leads from `step` to `lost`.
* A stream of one response ends in `over` or `failed`, a stream of one step ends in `step`, and a chat ends in `chat`.
  Any of them can end with an operator's ``ErrorEvent``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rxllm import events as ev
from rxllm.collector._event_faults import event_fault
from rxllm.collector._message import BLOCKS, DELTAS, BlockKey, block_key, fold_message
from rxllm.collector._step import pending_calls, unnest
from rxllm.values import StreamError, Usage
from rxllm.values.json_text import read_arguments


class EventRules:
    """Passes valid events through, and raises ``StreamError("malformed_event")`` for an event that breaks a rule."""

    def __init__(self) -> None:
        self._index = -1
        self._phase = "start"
        self._is_cut = False  # True if an operator ended the stream
        self._steps = 0
        self._used: set[str] = set()  # the ids of tool calls in earlier steps
        self._response = _Response(self._used)
        self._agents: dict[str, EventRules] = {}
        self._started: set[str] = set()  # the ids of tool calls that have started in this step

    def feed(self, event: ev.Event) -> Iterable[ev.Event]:
        self._index += 1
        try:
            self.check(event)
        except BrokenRule as broken:
            raise self._error(broken, event) from None
        return (event,)

    def close(self) -> Iterable[ev.Event]:
        steps_at_end = {"over": 0, "failed": 0, "step": 1}  # the required number of steps for each final phase
        if self._phase == "chat" or self._is_cut or steps_at_end.get(self._phase) == self._steps:
            return ()
        self._index += 1
        raise self._error(BrokenRule(_FAULTS[self._phase][2], "missing at the end"), None)

    def check(self, event: ev.Event) -> None:
        """Raise `BrokenRule` if `event` breaks a rule."""
        if fault := event_fault(event):
            raise BrokenRule("event", fault)
        self._is_cut = isinstance(event, ev.ErrorEvent) and event.error.reason in _CUTS
        following = self._following(event)
        if following is None:
            raise BrokenRule(*_FAULTS[self._phase][:2])
        if following == "start":
            self._begin_step()
        elif following == "message" and isinstance(event, ev.ToolExecutionStarted | ev.ToolExecutionCompleted):
            self._response.check_runs(event)
            self._check_agents(event)
        elif isinstance(event, ev.Nested) and following == "message":
            id, inner = unnest(event)
            if id not in self._response.ids:
                raise BrokenRule(*_FAULTS["message"][:2])
            self._agents.setdefault(id, EventRules()).check(inner)
        elif isinstance(event, ev.ErrorEvent) and self._phase == "message":
            self.cut(event)
        elif self._phase == "message" or following == "message":
            self._response.feed(event)
            if following == "over":  # the provider's own agents may still be open
                self._agents = {id: agent for id, agent in self._agents.items() if id in self._started}
        else:
            self._check_agents(event)
        if following == "step" and self._phase != "step":
            self._steps += 1
            self._used |= self._response.ids
            self._begin_step()
        self._phase = following

    def _begin_step(self) -> None:
        self._response = _Response(self._used)
        self._agents.clear()
        self._started.clear()

    def _check_agents(self, event: ev.Event) -> None:
        match event:
            case ev.ToolExecutionStarted(id=id):
                if id in self._started:
                    raise BrokenRule("tool_started", f"tool call {id!r} has already run in this step")
                self._started.add(id)
                self._agents[id] = EventRules()
            case ev.Nested():
                id, inner = unnest(event)
                if id not in self._agents:
                    raise BrokenRule("nested", f"tool call {id!r} is not running")
                self._agents[id].check(inner)
            case ev.ToolExecutionCompleted(id=id, error=error):
                if id not in self._started and self._phase == "message":
                    raise BrokenRule("tool_started", f"tool call {id!r} is not running")
                agent = self._agents.pop(id, None)
                if agent is not None and error is None:  # an agent that failed may end in any phase
                    agent.check_end(id)
            case ev.ErrorEvent():
                self.cut(event)
            case ev.StepCompleted():
                for id, agent in self._agents.items():
                    agent.check_end(id)
                self._agents.clear()
            case _:
                pass

    def cut(self, error: ev.ErrorEvent) -> None:
        """Raise `BrokenRule` if anything is still open."""
        if self._phase == "message":
            self._response.feed(error)
        for agent in self._agents.values():
            agent.cut(error)
        self._agents.clear()

    def check_end(self, id: str) -> None:
        """Raise `BrokenRule` if the agent's chat has not ended."""
        if self._phase not in ("start", "chat"):
            raise BrokenRule("nested", f"the agent started by tool call {id!r} has not finished its chat")

    def _following(self, event: ev.Event) -> str | None:
        if self._phase == "over" and isinstance(event, ev.ErrorEvent) and event.error.reason == "unknown_tool":
            return "tools"  # emitted by the step, not the adapter
        if self._phase in ("over", "tools") and self._is_cut:
            return "failed"
        if (
            self._phase == "start"
            and isinstance(event, ev.StepCompleted)
            and "pending_question" in event.result.metadata
        ):
            return "step"  # the resumed chat has an open question
        if self._phase == "tools" and isinstance(event, ev.ChatCompleted) and _asks_alone(event):
            return "chat"
        return _NEXT[self._phase].get(type(event))

    def _error(self, broken: BrokenRule, event: Any) -> StreamError:
        rule, why = broken.args
        if type(event) is ev.Nested:
            why = f"{why}, in the agent {'/'.join(event.path)}"
        is_malformed = rule == "event" and isinstance(event, ev.Event)  # the event's repr may fail
        place = "the end" if event is None else type(event).__name__ if is_malformed else repr(event)[:200]
        config = getattr(event, "__struct_config__", None)
        return StreamError(
            "malformed_event",
            f"unlawful: {rule}: {why}, at event {self._index}, {place}",
            event_index=self._index,
            metadata={"rule": rule, "event": config and config.tag},
        )


_CONTENT = (
    *(ev.TextDelta, ev.TextCompleted, ev.ThinkingDelta, ev.ThinkingCompleted),
    *(ev.ToolCallStarted, ev.ToolCallDelta, ev.ToolCallCompleted),
    *(ev.SourceAdded, ev.FileAdded, ev.PartAdded, ev.UsageUpdated, ev.RawChunk, ev.Custom),
    *(ev.ToolProgress, ev.Nested),  # from a tool that started early or that the provider runs
    *(ev.ToolExecutionStarted, ev.ToolExecutionCompleted),
)

_TOOLS = (
    *(ev.ToolApprovalRequested, ev.ToolExecutionStarted, ev.ToolProgress, ev.ToolExecutionCompleted),
    *(ev.Nested, ev.ToolResultEncoded, ev.ToolHalt, ev.AskUserRequested, ev.Custom),
)

_CUTS = ("timeout", "budget_exceeded", "guard_tripped", "guard_failed", "guard_late")
"""The reasons for which an operator may end a chat."""

_ENDED: dict[type[Any], str] = {ev.StepCompleted: "step", ev.StepRestarted: "start"}

_NEXT: dict[str, dict[type[Any], str]] = {
    "start": {ev.MessageStarted: "message", ev.StepRestarted: "start", **dict.fromkeys(_TOOLS[:-1], "tools")},
    "message": {
        **dict.fromkeys(_CONTENT, "message"),
        ev.MessageCompleted: "over",
        ev.ErrorEvent: "failed",
        ev.StepRestarted: "start",
    },
    "over": {**dict.fromkeys(_TOOLS, "tools"), **_ENDED},
    "tools": {**dict.fromkeys(_TOOLS, "tools"), **_ENDED},
    "failed": _ENDED,
    "step": {
        ev.MessageStarted: "message",
        ev.ErrorEvent: "lost",
        ev.ChatCompleted: "chat",
        ev.Custom: "step",
        ev.Steered: "step",
        ev.StepRestarted: "start",
    },
    "lost": {ev.Steered: "lost", ev.ChatCompleted: "chat"},
    "chat": {},
}

_FAULTS = {
    "start": ("message_started", "a response must begin with MessageStarted", "message_started"),
    "message": ("terminal", "before this event, the response must end with MessageCompleted or ErrorEvent", "terminal"),
    "over": ("terminal", "only tool events and StepCompleted can follow a response", "step_completed"),
    "tools": ("step_completed", "only tool events and StepCompleted can follow a tool event", "step_completed"),
    "failed": ("terminal", "only StepCompleted can follow an error", "step_completed"),
    "step": ("message_started", "a step must begin with MessageStarted", "chat_completed"),
    "lost": ("chat_completed", "only ChatCompleted can follow a step that failed to begin", "chat_completed"),
    "chat": ("chat_completed", "nothing can follow ChatCompleted", ""),
}
"""For each phase, two rules and a message.

The first rule is the one that a misplaced event breaks, and the message gives the reason. The second rule is broken if
the stream ends in that phase.
"""


def _asks_alone(event: ev.ChatCompleted) -> bool:
    """Return whether the pending question was asked by a tool, not by an agent. If so, the result has no steps."""
    return event.result.pending_question is not None and not event.result.steps


class _Response:
    """Checks the events of one response, and keeps the ones received so far."""

    def __init__(self, used: set[str]) -> None:
        self.ids: set[str] = set()
        self._used = used
        self._log: list[ev.Event] = []
        self._open: tuple[BlockKey, ...] = ()  # at most one key
        self._pieces: list[str] = []
        # For each open call, by id: the name, and the pieces of the arguments that have been received.
        self._calls: dict[str, tuple[str, list[str]]] = {}
        self._usage: Usage | None = None

    def feed(self, event: ev.Event) -> None:
        self._log.append(event)
        match event:
            case ev.TextDelta() | ev.ThinkingDelta():
                self._delta(event)
            case ev.TextCompleted() | ev.ThinkingCompleted():
                self._complete(event)
            case ev.ToolCallStarted():
                self._start_call(event)
            case ev.ToolCallDelta():
                self._call(event.id)[1].append(event.arguments_delta)
            case ev.ToolCallCompleted():
                self._complete_call(event)
            case ev.UsageUpdated(usage=usage):
                if usage == self._usage:
                    raise BrokenRule("usage_changed", "the usage is unchanged: emit it only when it changes")
                self._usage = usage
            case ev.MessageCompleted():
                self._end()
                self._check_message(event)
            case ev.ErrorEvent():
                self._end()
            case _:
                pass

    def _delta(self, event: ev.TextDelta | ev.ThinkingDelta) -> None:
        key = block_key(type(event), event.id, self._open)
        if key not in self._open:
            self._check_no_open_block()
            self._open = (key,)
        self._pieces.append(event.delta)

    def _complete(self, event: ev.TextCompleted | ev.ThinkingCompleted) -> None:
        if block_key(BLOCKS[type(event)], event.id, self._open) not in self._open:
            self._check_no_open_block()
        check_text(event, self._pieces)
        self._open, self._pieces = (), []

    def _check_no_open_block(self) -> None:
        for kind, id in self._open:
            name = "" if id is None else f" {id!r}"
            raise BrokenRule("block_closed", f"the {kind.__name__} block{name} is still open")

    def _start_call(self, event: ev.ToolCallStarted) -> None:
        self._check_no_open_block()
        if not event.id or event.id in self.ids or event.id in self._used:
            raise BrokenRule("call_id", f"{event.id!r} is empty or was used before; a thread's call ids must be unique")
        self.ids.add(event.id)
        self._calls[event.id] = (event.name, [])

    def check_runs(self, event: ev.ToolExecutionStarted | ev.ToolExecutionCompleted) -> None:
        """Raise `BrokenRule` unless the tool may start or end now."""
        if event.id not in self.ids:
            raise BrokenRule("tool_started", f"tool call {event.id!r} has not begun")
        if event.id in self._calls and isinstance(event, ev.ToolExecutionCompleted) and event.error is None:
            raise BrokenRule("tool_started", f"tool call {event.id!r} is not complete")

    def _call(self, id: str) -> tuple[str, list[str]]:
        if id not in self._calls:
            raise BrokenRule("call_order", f"tool call {id!r} is not open")
        return self._calls[id]

    def _complete_call(self, event: ev.ToolCallCompleted) -> None:
        name, pieces = self._call(event.id)
        check_name(event, name)
        check_arguments(event, pieces)
        del self._calls[event.id]

    def _end(self) -> None:
        self._check_no_open_block()
        if self._calls:
            raise BrokenRule("call_completed", f"the tool calls {', '.join(self._calls)} are still open")
        if fold_message(self._log) != fold_message(without_deltas(self._log)):
            raise BrokenRule("message_folded", "folding without the deltas gives a different message")

    def _check_message(self, event: ev.MessageCompleted) -> None:
        folded = fold_message(self._log)
        if event.message != folded:
            names = [name for name in vars(folded) if getattr(folded, name) != getattr(event.message, name)]
            parts = ", ".join(f"{name}={getattr(folded, name)!r}" for name in names)  # a message's repr omits fields
            raise BrokenRule("message_folded", f"the events fold into a message with {parts}")
        if pending_calls(folded) and event.finish_reason not in ("tool_calls", "length", "content_filter", "error"):
            raise BrokenRule("finish_reason", f"{event.finish_reason!r} leaves tool calls unanswered")


def check_text(event: ev.TextCompleted | ev.ThinkingCompleted, pieces: Iterable[str]) -> None:
    text = "".join(pieces)
    if event.text != text:
        raise BrokenRule("block_text", f"the deltas of the block add up to {text!r}")


def check_name(event: ev.ToolCallStarted | ev.ToolCallCompleted | ev.ToolExecutionStarted, name: str) -> None:
    if event.name != name:
        raise BrokenRule("call_name", f"the tool call started as {name!r}")


def check_arguments(event: ev.ToolCallCompleted, pieces: Iterable[str]) -> None:
    raw = "".join(pieces)
    if event.raw_arguments != raw:
        raise BrokenRule("call_raw_arguments", f"the deltas of the tool call add up to {raw!r}")
    if "error" not in event.metadata and event.arguments != read_arguments(raw):
        fault = "`raw_arguments` does not parse to `arguments`"
        raise BrokenRule("call_arguments", fault)


def without_deltas(events: Iterable[ev.Event]) -> list[ev.Event]:
    """Return `events` without the deltas. The events of a valid response still fold into the same message."""
    return [event for event in events if type(event) not in DELTAS]


class BrokenRule(Exception):  # noqa: N818 `EventRules` turns it into a StreamError
    """Raised when an event breaks a rule. The `args` are the rule's name and the reason."""

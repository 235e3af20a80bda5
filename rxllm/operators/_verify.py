"""Check that a stream keeps the rules of responses, tools, steps and chats.

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
lost       ``Steered``, which arrived too late                 lost
lost       ``ChatCompleted``                                   chat
any step   ``StepRestarted``: the step's events are void       start
any step   ``ErrorEvent`` of an operator that ends the stream  failed, lost
=========  ==================================================  ======================================================

A stream may end in the phase `over` or `failed` (one response), `step` (one step) or `chat`, or after the
``ErrorEvent`` of an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from reactivex import Observable

from rxllm.collector import BlockKey, block_key, event_fault, fold_message, is_server, unnest
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
    PartAdded,
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
from rxllm.operators._event_operators import DELTAS, EVENTS, lift
from rxllm.runtime import Stream
from rxllm.values import StreamError, Usage
from rxllm.values.json_text import read_arguments


def verify() -> Callable[[Observable[Event]], Stream[Event]]:
    """Pass events that keep the rules; the first that breaks one ends the stream with an error.

    ::

        source       --start--H--i--Hi--end--|
        verify()     --start--H--i--Hi--end--|
        source       --start--H--i--Ho--end--|        (the completion contradicts the deltas)
        verify()     --start--H--i--X

    >>> from rxllm import Engine, Fake, MessageStarted, TextDelta, stream_generate
    >>> watched = Engine(Fake("Hi"), operators=[verify()])        # as middleware it sees the adapter's events
    >>> stream_generate(watched, "Hello").count().run()
    4
    >>> from reactivex import of
    >>> from rxllm import MessageCompleted, assistant
    >>> torn = of(MessageStarted(assistant("")), TextDelta("Hi"), MessageCompleted(assistant("Hi"), "stop"))
    >>> _ = torn.pipe(verify()).subscribe(on_error=lambda error: print(error.metadata["rule"], error.event_index))
    block_closed 2

    The source is a stream of an adapter, ``stream_generate``, ``stream_step``, ``stream`` or ``stream_resume``, before
    any operator that drops events. The error is ``StreamError("malformed_event")``: its ``event_index`` is the position
    of the event, ``metadata["event"]`` its tag and ``metadata["rule"]`` the broken rule:

    ======================  =======================================================================================
    rule                    requires
    ======================  =======================================================================================
    ``event``               only events of the union
    ``message_started``     ``MessageStarted`` first, once per response
    ``block_closed``        a block is completed before the next block, call or end
    ``block_text``          a completion has the text of its deltas
    ``call_id``             a call starts with an id that is not empty and was not used before
    ``call_order``          deltas and completion belong to a call that is open
    ``call_name``           a call is completed with the name it started with
    ``call_raw_arguments``  its raw arguments are those of its deltas
    ``call_arguments``      its arguments are the parsed raw ones, or its metadata names an ``error``
    ``call_completed``      every call is completed before the end
    ``usage_changed``       usage is reported once per change
    ``message_folded``      the completed message is the fold of the events, with or without deltas
    ``finish_reason``       a response with calls does not finish as ``stop``, ``other`` or None
    ``terminal``            exactly one ``MessageCompleted`` or ``ErrorEvent``, last in its response
    ``step_completed``      tools run after the response's end and before one ``StepCompleted``
    ``nested``              an agent's events arrive while its tool call runs, which ends with the agent's chat; the
                            provider's own agents emit theirs in the response, after the start of their call
    ``chat_completed``      several steps end with one ``ChatCompleted``, and nothing follows it
    ======================  =======================================================================================

    An operator such as ``ops.time_limits``, ``ops.guard`` or ``ops.budget`` may end a chat anywhere: it completes all
    open blocks and calls, agents' included, and its ``ErrorEvent`` is the last event.

    The events of each agent (``Nested``) keep all rules by themselves; the message names the agent's path.

    Each event costs constant time; a response's events are kept until its end. An ``on_error`` of the source passes.
    """
    return lift(Rules)


class Rules:
    """Pass lawful events; `feed` and `close` raise ``StreamError("malformed_event")`` at the first unlawful one."""

    def __init__(self) -> None:
        self._index = -1
        self._phase = "start"
        self._is_cut = False  # whether an operator ended the stream with the last event
        self._steps = 0
        self._used: set[str] = set()  # the ids of tool calls in earlier steps
        self._response = _Response(self._used)
        self._agents: dict[str, Rules] = {}  # one per running tool call, which may be an agent

    def feed(self, event: Event) -> Iterable[Event]:
        self._index += 1
        try:
            self.check(event)
        except _Broken as broken:
            raise self._error(broken, event) from None
        return (event,)

    def close(self) -> Iterable[Event]:
        steps_at_end = {"over": 0, "failed": 0, "step": 1}  # number of steps of a stream that ends in this phase
        if self._phase == "chat" or self._is_cut or steps_at_end.get(self._phase) == self._steps:
            return ()
        self._index += 1
        raise self._error(_Broken(_FAULTS[self._phase][2], "missing at the end"), None)

    def check(self, event: Event) -> None:
        """Raise `_Broken` if `event` breaks a rule."""
        if type(event) not in EVENTS:
            raise _Broken("event", "not one of the classes of rxllm.Event")
        if fault := event_fault(event):
            raise _Broken("event", fault)
        self._is_cut = isinstance(event, ErrorEvent) and event.error.reason in _CUTS
        following = self._following(event)
        if following is None:
            raise _Broken(*_FAULTS[self._phase][:2])
        if following == "start":
            self._response = _Response(self._used)
            self._agents.clear()
        elif isinstance(event, Nested) and following == "message":
            id, inner = unnest(event)
            if id not in self._response.ids:
                raise _Broken(*_FAULTS["message"][:2])
            self._agents.setdefault(id, Rules()).check(inner)
        elif isinstance(event, ErrorEvent) and self._phase == "message":
            self.cut(event)
        elif self._phase == "message" or following == "message":
            self._response.feed(event)
            if following == "over":  # the provider's own agents may not have ended
                self._agents.clear()
        else:
            self._check_agents(event)
        if following == "step" and self._phase != "step":
            self._steps += 1
            self._used |= self._response.ids
            self._response = _Response(self._used)
        self._phase = following

    def _check_agents(self, event: Event) -> None:
        match event:
            case ToolExecutionStarted(id=id):
                self._agents[id] = Rules()
            case Nested():
                id, inner = unnest(event)
                if id not in self._agents:
                    raise _Broken("nested", f"no tool call {id!r} runs")
                self._agents[id].check(inner)
            case ToolExecutionCompleted(id=id, error=error):
                agent = self._agents.pop(id, None)
                if agent is not None and error is None:  # an agent that fails may end anywhere
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
        """Raise `_Broken` if a block or a tool call is open, at any depth."""
        if self._phase == "message":
            self._response.feed(error)
        for agent in self._agents.values():
            agent.cut(error)
        self._agents.clear()

    def check_end(self, id: str) -> None:
        """Raise `_Broken` if the agent that is the tool call `id` has begun and not completed its chat."""
        if self._phase not in ("start", "chat"):
            raise _Broken("nested", f"the agent of the tool call {id!r} has not completed its chat")

    def _following(self, event: Event) -> str | None:
        if self._phase == "over" and isinstance(event, ErrorEvent) and event.error.reason == "unknown_tool":
            return "tools"  # the step emits it, not the adapter
        if self._phase in ("over", "tools") and self._is_cut:
            return "failed"
        if self._phase == "start" and isinstance(event, StepCompleted) and "pending_question" in event.result.metadata:
            return "step"  # a resumed chat whose question is still open
        return _NEXT[self._phase].get(type(event))

    def _error(self, broken: _Broken, event: Any) -> StreamError:
        rule, why = broken.args
        if type(event) is Nested:
            why = f"{why}, in the agent {'/'.join(event.path)}"
        malformed = rule == "event" and type(event) in EVENTS  # then its repr may fail too
        place = "the end" if event is None else type(event).__name__ if malformed else repr(event)[:200]
        config = getattr(event, "__struct_config__", None)
        return StreamError(
            "malformed_event",
            f"unlawful: {rule}: {why}, at event {self._index}, {place}",
            event_index=self._index,
            metadata={"rule": rule, "event": config and config.tag},
        )


_CONTENT = (
    *(TextDelta, TextCompleted, ThinkingDelta, ThinkingCompleted),
    *(ToolCallStarted, ToolCallDelta, ToolCallCompleted),
    *(SourceAdded, FileAdded, PartAdded, UsageUpdated, RawChunk, Custom),
    *(ToolProgress, Nested),  # events of a tool, or an agent, that the provider runs
)

_TOOLS = (
    *(ToolApprovalRequested, ToolExecutionStarted, ToolProgress, ToolExecutionCompleted),
    *(Nested, ToolResultEncoded, ToolHalt, AskUserRequested, Custom),
)

_CUTS = ("timeout", "budget_exceeded", "guard_tripped", "guard_failed", "guard_late")
"""The reasons of the errors with which operators end a chat in any phase."""

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

_FAULTS = {
    "start": ("message_started", "a response begins with MessageStarted", "message_started"),
    "message": ("terminal", "the response must end with MessageCompleted or ErrorEvent first", "terminal"),
    "over": ("terminal", "only tools and the end of the step follow the end of a response", "step_completed"),
    "tools": ("step_completed", "only StepCompleted ends the events of tools", "step_completed"),
    "failed": ("terminal", "only the end of the step follows an error", "step_completed"),
    "step": ("message_started", "a step begins with MessageStarted", "chat_completed"),
    "lost": ("chat_completed", "a step that fails to begin ends the chat", "chat_completed"),
    "chat": ("chat_completed", "nothing follows ChatCompleted", ""),
}
"""For each phase: the rule that an event out of place breaks, the reason, and the rule that an end there breaks."""


class _Response:
    """The events of one response so far, with its open block and tool calls."""

    def __init__(self, used: set[str]) -> None:
        self.ids: set[str] = set()
        self._used = used
        self._log: list[Event] = []
        self._open: tuple[BlockKey, ...] = ()  # at most one
        self._pieces: list[str] = []
        self._calls: dict[str, tuple[str, list[str]]] = {}  # the name and argument pieces of each open tool call
        self._usage: Usage | None = None

    def feed(self, event: Event) -> None:
        self._log.append(event)
        match event:
            case TextDelta() | ThinkingDelta():
                self._delta(event)
            case TextCompleted():
                self._complete(TextDelta, event)
            case ThinkingCompleted():
                self._complete(ThinkingDelta, event)
            case ToolCallStarted():
                self._start_call(event)
            case ToolCallDelta():
                self._call(event.id)[1].append(event.arguments_delta)
            case ToolCallCompleted():
                self._complete_call(event)
            case UsageUpdated(usage=usage):
                if usage == self._usage:
                    raise _Broken("usage_changed", "the usage is unchanged: emit it once per change")
                self._usage = usage
            case MessageCompleted():
                self._end()
                self._check_message(event)
            case ErrorEvent():
                self._end()
            case _:
                pass

    def _delta(self, event: TextDelta | ThinkingDelta) -> None:
        key = block_key(type(event), event.id, self._open)
        if key not in self._open:
            self._check_no_open_block()
            self._open = (key,)
        self._pieces.append(event.delta)

    def _complete(self, kind: type[Event], event: TextCompleted | ThinkingCompleted) -> None:
        if block_key(kind, event.id, self._open) not in self._open:
            self._check_no_open_block()
        text = "".join(self._pieces)
        if event.text != text:
            raise _Broken("block_text", f"the deltas of the block join to {text!r}")
        self._open, self._pieces = (), []

    def _check_no_open_block(self) -> None:
        for kind, id in self._open:
            name = "" if id is None else f" {id!r}"
            raise _Broken("block_closed", f"the block{name} of {kind.__name__} is still open")

    def _start_call(self, event: ToolCallStarted) -> None:
        self._check_no_open_block()
        if not event.id or event.id in self.ids or event.id in self._used:
            raise _Broken("call_id", f"{event.id!r} is empty or used before: ids are unique in the thread")
        self.ids.add(event.id)
        self._calls[event.id] = (event.name, [])

    def _call(self, id: str) -> tuple[str, list[str]]:
        if id not in self._calls:
            raise _Broken("call_order", f"no tool call {id!r} is open")
        return self._calls[id]

    def _complete_call(self, event: ToolCallCompleted) -> None:
        name, pieces = self._call(event.id)
        if event.name != name:
            raise _Broken("call_name", f"the tool call started as {name!r}")
        raw = "".join(pieces)
        if event.raw_arguments != raw:
            raise _Broken("call_raw_arguments", f"the deltas of the tool call join to {raw!r}")
        if "error" not in event.metadata and event.arguments != read_arguments(raw):
            raise _Broken("call_arguments", "the raw arguments parse to others, and the metadata has no error")
        del self._calls[event.id]

    def _end(self) -> None:
        self._check_no_open_block()
        if self._calls:
            raise _Broken("call_completed", f"the tool calls {', '.join(self._calls)} are still open")
        if fold_message(self._log) != fold_message(event for event in self._log if type(event) not in DELTAS):
            raise _Broken("message_folded", "the fold without deltas differs from the fold with them")

    def _check_message(self, event: MessageCompleted) -> None:
        folded = fold_message(self._log)
        if event.message != folded:
            names = [name for name in vars(folded) if getattr(folded, name) != getattr(event.message, name)]
            parts = ", ".join(f"{name}={getattr(folded, name)!r}" for name in names)  # the repr of a message is short
            raise _Broken("message_folded", f"the fold of the events has {parts}")
        pending = [call for call in folded.tool_calls if not is_server(call)]
        if pending and event.finish_reason not in ("tool_calls", "length", "content_filter", "error"):
            raise _Broken("finish_reason", f"{event.finish_reason!r} leaves tool calls unanswered")


class _Broken(Exception):  # noqa: N818 it never leaves this file
    """The name of a broken rule and the reason."""

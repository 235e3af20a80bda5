"""The UI message streams of other servers: where a response begins and ends, and what its step and chat come to.

Such a server runs its tools while the response goes on, so the response's end follows their results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from rxllm import Message, ToolCall
from rxllm import events as ev
from rxllm.web._client_fold import ClientFold
from rxllm.web._codec import Frame


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

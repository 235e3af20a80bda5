"""What a chat does after each of its steps."""

from __future__ import annotations

from typing import Any

from reactivex import Observable, just

from rxllm import operators as ops
from rxllm.collector import is_unfinished
from rxllm.events import ChatCompleted, ErrorEvent, Event, StepCompleted
from rxllm.pipelines._call import Setup
from rxllm.pipelines._finalize import FINALIZED, final_pass, first_pass, nudged
from rxllm.pipelines._step import step_events
from rxllm.runtime import Stream
from rxllm.values import ChatResult, LLMError, StepResult, Thread, Usage
from rxllm.values._session import question


class Loop:
    """What one chat has behind it, and what comes next: ``first().pipe(continue_with(after))`` is a chat.

    `turns` bounds how often the model is asked. With ``structured_finalize`` there are two passes, see ``_finalize``;
    the second is one turn of its own.
    """

    def __init__(self, setup: Setup, turns: int, thread: Thread) -> None:
        self.request_id = setup.request_id()
        self._setup = first_pass(setup, thread)
        self._final = final_pass(setup)
        self._first_end: str | None = None  # why the first pass ended, once it has
        self._turns = turns
        self._asked = 0
        self._thread = thread
        self._steps: list[StepResult] = []
        self._usage = Usage()  # of all of them

    def first(self) -> Stream[Event]:
        """The first question to the model; it may fail as any call does."""
        return self._ask(self._thread)

    def after(self, last: Event) -> Observable[Event] | None:
        """The next step, or the end."""
        match last:
            case StepCompleted(result=step):
                self._steps.append(step)
                self._usage += step.response.usage
                self._thread = step.thread
                return self._after_step(step)
            case ErrorEvent(error=error):  # a later step that failed before its first event
                return just(ChatCompleted(self._result("error", error)))
            case _:
                return None

    def _after_step(self, step: StepResult) -> Observable[Event]:
        reason = self._halted(step)
        if reason is None:
            return self._next(self._thread)
        if self._final is not None and self._first_end is None and reason in FINALIZED:
            return self._finalize(self._final, reason)
        return just(ChatCompleted(self._result(reason, step.response.error)))

    def _finalize(self, setup: Setup, reason: str) -> Observable[Event]:
        self._first_end = reason
        self._setup, self._turns, self._asked = setup, 1, 0
        # The nudge is in the chat's thread once it has been answered: a chat that failed can be asked again.
        return self._next(nudged(self._thread, setup))

    def _next(self, thread: Thread) -> Observable[Event]:
        return self._ask(thread).pipe(ops.errors_as_events())

    def _ask(self, thread: Thread) -> Stream[Event]:
        self._asked += 1
        return step_events(self._setup, thread, self.request_id, self._usage)

    def _halted(self, step: StepResult) -> str | None:
        """Why the chat ends here; the first reason that applies."""
        finish = step.response.finish_reason
        halt_when = self._setup.opts.get("halt_when")
        match step.metadata:
            case {"halted_reason": str(reason)}:
                return reason
            case {"approval_tool_calls": _}:
                return "approval"
            case {"manual_tool_calls": _} | {"mode": "manual"}:
                return "manual_tool_calls"
            case _ if finish == "error":
                return "error"
            case _ if isinstance(asked := step.response.metadata.get("halted_reason"), str):
                return asked  # an operator of the engine's
            case _ if not is_unfinished(step.response):
                return "completed"
            case _ if halt_when is not None and halt_when(step):
                return "halt_when"
            case _:
                return "max_turns" if self._asked >= self._turns else None

    def _result(self, reason: str, error: LLMError | None) -> ChatResult:
        last = self._steps[-1]
        told = last.metadata
        pending = (*told.get("manual_tool_calls", ()), *told.get("approval_tool_calls", ()))
        asks = reason == "ask_user"
        return ChatResult(
            thread=self._thread + question(told["pending_question"], told["pending_tool_call_id"])
            if asks
            else self._thread,
            final_response=last.response,
            steps=tuple(self._steps),
            halted_reason=reason,
            pending_question=told.get("pending_question"),
            pending_tool_call_id=told.get("pending_tool_call_id"),
            pending_tool_calls=last.response.tool_calls if told.get("mode") == "manual" else pending,
            usage=self._usage,
            error=error,
            metadata={**self._metadata(reason, told), **self._passes(reason)},
        )

    def _metadata(self, reason: str, told: dict[str, Any]) -> dict[str, Any]:
        index = len(self._steps) - 1
        match reason:
            case "max_turns":
                return {"max_turns": self._turns}
            case "halt_when":
                return {"halt_when_step_index": index}
            case "manual_tool_calls":
                return {"manual_turn_index": index, **_kept(told, "manual_tool_calls")}
            case "approval":
                return _kept(told, "manual_tool_calls", "approval_tool_calls")
            case "completed" | "error":
                return {}
            case _:  # ask_user, tool_error, a tool's own
                return {name: held for name, held in told.items() if name != "halted_reason"}

    def _passes(self, reason: str) -> dict[str, Any]:
        if self._final is None:
            return {}
        return {"structured_finalize": {"pass_1_halted": self._first_end or reason}}


def _kept(told: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: told[name] for name in names if name in told}

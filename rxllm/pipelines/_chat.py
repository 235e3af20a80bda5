"""Steps until a halt."""

from __future__ import annotations

from typing import Any, Unpack

from reactivex import Observable, just

from rxllm import operators as ops
from rxllm.collector import is_unfinished
from rxllm.engine import Engine
from rxllm.events import ChatCompleted, ErrorEvent, Event, StepCompleted
from rxllm.operators import continue_with
from rxllm.pipelines._call import Setup, deferred
from rxllm.pipelines._options import ChatOptions, max_turns
from rxllm.pipelines._request import Input, as_thread
from rxllm.pipelines._step import step_events
from rxllm.runtime import Stream
from rxllm.values import ChatResult, LLMError, Message, StepResult, Thread, Usage


def stream(engine: Engine | str | Any, thread: Input, **opts: Unpack[ChatOptions]) -> Stream[Event]:
    """The events of step after step until a halt, and one ``ChatCompleted``, last.

    >>> from rxllm import Fake
    >>> stream(Fake("Hello"), "Hi").run().result
    ChatResult('Hello', completed, 1 steps, 0 tokens)
    """
    setup = Setup.of(engine, ChatOptions, opts)
    return setup.presented(_chat_events(setup, as_thread(thread)))


def chat(engine: Engine | str | Any, thread: Input, **opts: Unpack[ChatOptions]) -> Stream[ChatResult]:
    """A chat's result: the fold of `stream`.

    >>> from rxllm import Fake, ToolCall, tool
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> result = chat(Fake(ToolCall("c0", "double", {"x": 21}), "42"), "Double 21!", tools=[double]).run()
    >>> result.halted_reason, len(result.steps), result.output_text
    ('completed', 2, '42')
    """
    setup = Setup.of(engine, ChatOptions, opts)
    return _chat_events(setup, as_thread(thread)).pipe(ops.to_chat_result())


def _chat_events(setup: Setup, thread: Thread) -> Stream[Event]:
    turns = max_turns(setup.opts)

    def make() -> Stream[Event]:
        loop = _Loop(setup, turns, thread)
        return step_events(setup, thread, loop.request_id).pipe(continue_with(loop.after))

    return deferred(make)


class _Loop:
    """What one chat has behind it, and what comes next."""

    def __init__(self, setup: Setup, turns: int, thread: Thread) -> None:
        self.request_id = setup.request_id()
        self._setup = setup
        self._turns = turns
        self._thread = thread
        self._steps: list[StepResult] = []

    def after(self, last: Event) -> Observable[Event] | None:
        """The next step, or the end."""
        match last:
            case StepCompleted(result=step):
                self._steps.append(step)
                self._thread = step.thread
                reason = self._halted(step)
                return (
                    self._next() if reason is None else just(ChatCompleted(self._result(reason, step.response.error)))
                )
            case ErrorEvent(error=error):  # a later step that failed before its first event
                return just(ChatCompleted(self._result("error", error)))
            case _:
                return None

    def _next(self) -> Observable[Event]:
        return step_events(self._setup, self._thread, self.request_id).pipe(ops.errors_as_events())

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
            case _ if not is_unfinished(step.response):
                return "completed"
            case _ if halt_when is not None and halt_when(step):
                return "halt_when"
            case _:
                return "max_turns" if len(self._steps) >= self._turns else None

    def _result(self, reason: str, error: LLMError | None) -> ChatResult:
        last = self._steps[-1]
        told = last.metadata
        pending = (*told.get("manual_tool_calls", ()), *told.get("approval_tool_calls", ()))
        return ChatResult(
            thread=self._thread + _question(told) if reason == "ask_user" else self._thread,
            final_response=last.response,
            steps=tuple(self._steps),
            halted_reason=reason,
            pending_question=told.get("pending_question"),
            pending_tool_call_id=told.get("pending_tool_call_id"),
            pending_tool_calls=last.response.tool_calls if told.get("mode") == "manual" else pending,
            usage=sum((step.response.usage for step in self._steps), Usage()),
            error=error,
            metadata=self._metadata(reason, told),
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


def _kept(told: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: told[name] for name in names if name in told}


def _question(told: dict[str, Any]) -> Message:
    metadata = {"ask_user": True, "tool_call_id": told["pending_tool_call_id"]}
    return Message("assistant", told["pending_question"], metadata=metadata)

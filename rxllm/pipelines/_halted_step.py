"""The step that a chat has halted in: what is open in it, and what it is once that is answered."""

from __future__ import annotations

from typing import Any

import msgspec

from rxllm.collector import StreamCollector, halt_metadata, is_server
from rxllm.tools import WaitingCalls
from rxllm.values import Message, Response, StepResult, Thread, ToolCall, unanswered, with_results
from rxllm.values.sessions import open_agents


def is_over(thread: Thread) -> bool:
    """Return whether `thread` ends with an answer of the model's, after which nothing is open."""
    last = thread.last
    return last is not None and last.role == "assistant" and HaltedStep.of(thread) is None


class HaltedStep(msgspec.Struct, frozen=True):
    """What is open in `thread`: the `calls` without an answer, and the `question` to the user that ends it."""

    thread: Thread
    calls: tuple[ToolCall, ...]
    question: Message | None

    @classmethod
    def of(cls, thread: Thread) -> HaltedStep | None:
        """Return the step to complete, or None if nothing is open."""
        last = thread.last
        question = last if last is not None and last.metadata.get("ask_user") else None
        calls = unanswered(thread)
        return cls(thread if question is None else thread[:-1], calls, question) if calls or question else None

    def completed(self, state: StreamCollector, waiting: WaitingCalls) -> StepResult:
        """Return the step, with the results that `state` has collected, and the calls that still wait."""
        thread = with_results(self.thread, {result.tool_call_id or "": result for result in state.tool_results})
        calling = (message for message in reversed(thread.messages) if not all(map(is_server, message.tool_calls)))
        message = next(calling, Message("assistant"))
        calls = tuple(call for call in message.tool_calls if not is_server(call))
        ids = {call.id for call in calls}
        response = Response[Any](message, message.text, calls, "tool_calls")
        results = tuple(result for result in thread if result.role == "tool" and result.tool_call_id in ids)
        metadata = self._question_metadata() or halt_metadata(state.halt)
        metadata |= waiting.of(self.calls)
        done = bool(metadata)
        return state.with_agents(StepResult(thread, response, results, done=done, metadata=metadata))

    @property
    def agents(self) -> dict[str, Thread]:
        """The threads of the agents among the calls, by the ids of these."""
        return open_agents(self.thread)

    def _question_metadata(self) -> dict[str, Any]:
        if self.question is None:
            return {}
        metadata = self.question.metadata
        return {
            "halted_reason": "ask_user",
            "pending_question": self.question.text,
            "pending_tool_call_id": metadata.get("tool_call_id"),
            "ask_user_opts": metadata.get("ask_user_opts", {}),
        }

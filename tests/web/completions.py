"""What a completion of OpenAI's API has to say of a chat."""

from __future__ import annotations

import os
from typing import Any

from reactivex import Observable, from_iterable

import rxllm
from rxllm import (
    ChatResult,
    Engine,
    Event,
    Request,
    Thread,
    Tool,
    user,
)
from rxllm import operators as ops

EVERY = 1 if os.environ.get("RXLLM_JUDGES") == "required" else 8
HI = Thread((user("Hi"),))


class Replay:
    """An adapter that emits the same events for every request."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def stream(self, request: Request, call: Any) -> Observable[Event]:
        return from_iterable(self._events)


def itself(engine: Engine, tools: list[Tool]) -> ChatResult:
    events = rxllm.stream(engine, HI, tools=tools).pipe(ops.errors_as_events())
    return events.pipe(ops.to_chat_result(HI)).run()


def waits_in_agent(result: ChatResult) -> bool:
    """Whether an agent waits, or a call that the provider runs: Chat Completions cannot ask for either."""
    if any(call.metadata.get("hosted") for call in result.pending_tool_calls):
        return True
    return any("/" in (id or "") for id in [result.pending_tool_call_id, *(c.id for c in result.pending_tool_calls)])


def text_of(result: ChatResult) -> str:
    question = None if waits_in_agent(result) else result.pending_question
    texts = [step.output_text for step in result.steps] + [question or ""]
    return "\n\n".join(filter(None, texts))


def finish_of(result: ChatResult) -> str:
    last = result.final_response.finish_reason if result.final_response else None
    if result.error is not None or result.halted_reason == "error":
        return "error"
    if waits_in_agent(result):  # Chat Completions has no place for that
        return "error"
    if result.pending_tool_calls:
        return "tool_calls"
    if last in ("length", "content_filter"):
        return last
    return "length" if result.halted_reason in ("max_turns", "budget") else "stop"

"""The question of a tool that is called again with the user's answer.

Until then the call is open, as that of an agent that has halted: its "chat" is the question, and then the answer. So
several tools of a step may ask, at any depth, and what they ask is in the thread's JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.collector import nest
from rxllm.events import AskUserRequested, ChatCompleted, Event
from rxllm.values import ChatResult, Halt, Response, Thread, ToolCall
from rxllm.values._session import question

QUESTION = "question"
"""The id of the question in its chat: behind the call's, it is the id under which the caller answers."""


def halted(halt: Halt, call: ToolCall) -> list[Event]:
    """Return the events of `call`, whose tool has returned `halt`."""
    return _waiting(halt.question or "", halt.opts, call)


def halted_again(thread: Thread, call: ToolCall) -> list[Event]:
    """Return the events of `call`, whose question in `thread` has no answer yet."""
    return _waiting(thread[0].text, thread[0].metadata.get("ask_user_opts", {}), call)


def replied(resumed: tuple[Thread, Any] | None) -> tuple[str | None, Mapping[str, Any]]:
    """Return the user's answer in the thread of a call that goes on, and the options of its question."""
    match resumed[0].messages if resumed is not None else ():
        case (asking, reply, *_) if is_question(asking):
            return reply.text, asking.metadata.get("ask_user_opts", {})
        case _:
            return None, {}


def is_question(message: Any) -> bool:
    """Whether a chat that begins with `message` is the question of a tool; that of an agent never does."""
    return bool(message.metadata.get("ask_user"))


def _waiting(text: str, opts: Mapping[str, Any], call: ToolCall) -> list[Event]:
    metadata = {"ask_user_opts": dict(opts)} if opts else {}
    result = ChatResult(
        thread=Thread((question(text, QUESTION, metadata),)),
        final_response=Response(),
        halted_reason="ask_user",
        pending_question=text,
        pending_tool_call_id=QUESTION,
        metadata=metadata,
    )
    asking = AskUserRequested(QUESTION, call.name, text, dict(opts))
    return [nest(call.id, asking), nest(call.id, ChatCompleted(result))]

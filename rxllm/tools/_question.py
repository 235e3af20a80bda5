"""The question of a tool that is called again with the user's answer.

Until then the call is open, as that of an agent that has halted: its "chat" is the question, and then the answer. So
several tools of a step may ask, at any depth, and what they ask is in the thread's JSON.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rxllm.collector import nest
from rxllm.events import AskUserRequested, ChatCompleted, Event
from rxllm.values import ChatResult, Halt, Message, Response, Thread, ToolCall
from rxllm.values.sessions import question

QUESTION = "question"
"""The id of the question in its chat: behind the call's, it is the id under which the caller answers."""


STATE = "tool_state"
"""The metadata of the question with what the tool has kept for its next run."""


def halted(halt: Halt, call: ToolCall) -> list[Event]:
    """Return the events of `call`, whose tool has returned `halt`."""
    opts = {"ask_user_opts": dict(halt.opts)} if halt.opts else {}
    asking = question(halt.question or "", QUESTION, opts)
    return _waiting(replace(asking, metadata={**asking.metadata, STATE: halt.tool_state}), call)


def halted_again(thread: Thread, call: ToolCall) -> list[Event]:
    """Return the events of `call`, whose question in `thread` has no answer yet."""
    return _waiting(thread[0], call)


def replied(resumed: tuple[Thread, Any] | None) -> tuple[str | None, Any]:
    """Return the user's answer in the thread of a call that goes on, and what the tool has kept."""
    match resumed[0].messages if resumed is not None else ():
        case (asking, reply, *_) if is_question(asking):
            return reply.text, asking.metadata.get(STATE)
        case _:
            return None, None


def is_question(message: Message) -> bool:
    """Whether a chat that begins with `message` is the question of a tool; that of an agent never does."""
    return bool(message.metadata.get("ask_user"))


def _waiting(asking: Message, call: ToolCall) -> list[Event]:
    opts = {name: asking.metadata[name] for name in ("ask_user_opts",) if name in asking.metadata}
    result = ChatResult(
        thread=Thread((asking,)),
        final_response=Response(),
        halted_reason="ask_user",
        pending_question=asking.text,
        pending_tool_call_id=QUESTION,
        metadata=opts,
    )
    requested = AskUserRequested(QUESTION, call.name, asking.text, opts.get("ask_user_opts", {}))
    return [nest(call.id, requested), nest(call.id, ChatCompleted(result))]

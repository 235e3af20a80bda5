"""The idempotency key of a tool call: a text that names the call wherever, and however often, it is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from rxllm.runtime import Question
from rxllm.values import Message, Thread, ToolCall, unanswered
from rxllm.values.codec import encode
from rxllm.values.request_keys import hash_of_thread, plain_call, plain_message


def idempotency_key(call: ToolCall, question: Question, enclosing_key: Callable[[], str] | None) -> str:
    """Return 32 hexadecimal characters, equal whenever the same call of the same conversation is run.

    They follow from the key of the tool call around this one, the session's id, the messages before the call, and its
    id, name and arguments as the model wrote them. Nothing random, no clock and no metadata is part of it: metadata may
    hold how far the call has come.
    """
    around = enclosing_key() if enclosing_key is not None else None
    head = f"[{json.dumps(around)}, {json.dumps(question.session_id)}, ["
    hashed = hash_of_thread(head, _messages_before(call, question.thread), _plain_text)
    hashed.update(f"], {json.dumps(encode(plain_call(call)), sort_keys=True)}]".encode())
    return hashed.hexdigest()[:32]


def _plain_text(message: Message) -> str:
    return json.dumps(encode(plain_message(message)), sort_keys=True)


def _messages_before(call: ToolCall, thread: Thread | None) -> Iterator[Message]:
    """Yield the messages that the model had seen when it made `call`, also if the thread has gone on since."""
    if thread is None:
        return
    is_open = any(other.id == call.id for other in unanswered(thread))
    for message in thread:
        if is_open and any(other.id == call.id for other in message.tool_calls):
            return
        yield message

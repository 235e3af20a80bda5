"""A conversation in each of the forms in which it is passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rxllm.values._message import Message
from rxllm.values._response import Response
from rxllm.values._results import ChatResult, StepResult
from rxllm.values._session import Session, Turn
from rxllm.values._thread import MessageLike, Thread
from rxllm.values.argument_checks import shown
from rxllm.values.errors import ValidationError

Input = str | Message | Mapping[str, object] | Sequence[MessageLike] | Thread | ChatResult | StepResult | Session | Turn
"""A question, a message, messages (also in OpenAI's form), a thread, or a result that has one."""


def as_thread(value: Any) -> Thread:
    """Return `value`, an `Input`, as a thread. Raises ``ValidationError("invalid_thread")`` for anything else."""
    match value:
        case Thread():
            return value
        case ChatResult() | StepResult() | Session():
            return value.thread
        case Turn():
            return value.session.thread
        case str() | Message() | Mapping() | list() | tuple():
            return Thread() + cast(Any, value)
        case _:
            fault = f"must be a text, a message, a list of messages, a Thread or a chat's result, not {shown(value)}"
            remedy = f"; {_ANSWER_ONLY}" if isinstance(value, Response) else ""
            remedy = f"; {_STILL_TO_RUN}" if hasattr(cast(Any, value), "subscribe") else remedy
            raise ValidationError("invalid_thread", f"a conversation {fault}{remedy}", errors=[((), fault + remedy)])


_STILL_TO_RUN = "it is a stream that is still to run: write .run(), or await it"
_ANSWER_ONLY = (
    "a Response is the answer without its question: write thread + response, or pass the result of rxllm.chat"
)

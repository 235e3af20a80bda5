"""Handling of messages that the provider refuses, such as a message with a picture that the provider cannot read.

If such a message stayed in the conversation, every later turn would fail too. So when the provider refuses a turn
before answering, a `REFUSED` event informs the page, and the user's next message replaces the refused ones. To try the
same message again, the page requests a new answer to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rxllm import Event, LLMError, Session, Thread
from rxllm import events as ev
from rxllm.web._openai_errors import refusal_of

REFUSED = "message_refused"


def without_refused(session: Session, thread: Thread) -> Thread:
    """Return `thread` without the messages that were refused in the last turn of `session`.

    `thread` must begin with the thread of `session`.
    """
    end = len(session.thread)
    if session.status != "error" or len(thread) <= end or not _is_refusal(session.metadata.get("error")):
        return thread
    begin = end
    while begin and session.thread[begin - 1].role == "user":
        begin -= 1
    return thread[:begin] + thread[end:]


class Refusals:
    """Adds a `REFUSED` event before the error if the provider refuses a turn before answering."""

    def __init__(self) -> None:
        self._has_answer = False

    def feed(self, event: Event) -> Iterable[Event]:
        if isinstance(event, ev.ErrorEvent) and not self._has_answer and _is_refusal(event.error):
            yield ev.Custom(REFUSED, {"reason": event.error.reason})
        self._has_answer = self._has_answer or isinstance(event, ev.TextDelta | ev.ToolCallStarted | ev.StepCompleted)
        yield event

    def close(self) -> Iterable[Event]:
        return ()


def _is_refusal(error: object) -> bool:
    return isinstance(error, LLMError) and refusal_of(error).status == 400

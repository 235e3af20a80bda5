"""Sessions: a conversation that knows what it waits for.

====================  ==========================================================  ======================================
status                it waits for                                                legal now
====================  ==========================================================  ======================================
``idle``              nothing                                                     start, reply, resume, step
``completed``         nothing: the last turn has ended                            start, reply, resume, step
``awaiting_tools``    results or approvals of its `pending_tool_calls`, and then  resume, submit_tool_result,
                      for the user, if there is a `pending_question`              submit_tool_results
``awaiting_user``     an answer to its `pending_question`                         reply
``error``             nothing any more: make a new one from its thread            -
====================  ==========================================================  ======================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from rxllm.values._answers import listed, unanswered, with_results
from rxllm.values._json import json_text
from rxllm.values._message import Message, tool_result, user
from rxllm.values._results import ChatResult, StepResult
from rxllm.values._thread import Thread
from rxllm.values._tool_call import ToolCall
from rxllm.values._value import Value, value
from rxllm.values.errors import SessionError, ValidationError

SessionStatus = Literal["idle", "awaiting_user", "awaiting_tools", "completed", "error"]

LEGAL: Mapping[str, tuple[str, ...]] = {
    "idle": ("start", "reply", "resume", "step"),
    "completed": ("start", "reply", "resume", "step"),
    "awaiting_tools": ("resume", "submit_tool_result", "submit_tool_results"),
    "awaiting_user": ("reply",),
    "error": (),
}


@value
class Session(Value):
    """A conversation as data: store it as JSON between the turns. Immutable, so every method gives a new one.

    `id` is given to tools as their session's; `context` too, under the call's own and over the engine's. `metadata`
    gathers what the turns say of their ends; under ``"error"`` it holds why a session is in status ``error``.
    """

    id: str | None = None
    thread: Thread = field(default_factory=Thread)
    status: Literal["idle", "awaiting_user", "awaiting_tools", "completed", "error"] = "idle"
    pending_tool_calls: tuple[ToolCall, ...] = ()
    pending_question: str | None = None
    pending_tool_call_id: str | None = None
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.thread.messages

    @property
    def legal(self) -> tuple[str, ...]:
        """The operations that its status allows."""
        return LEGAL.get(self.status, ())

    def require(self, operation: str) -> None:
        """Raises `SessionError` unless `operation` is legal now: ``session_in_error_state``, or
        ``invalid_status_for_operation``, whose message says what is.
        """
        if self.status == "error":
            remedy = "go on with dataclasses.replace(session, status='idle')"
            raise SessionError("session_in_error_state", f"the session has failed, see its metadata['error']; {remedy}")
        if operation not in self.legal:
            message = f"{operation} is not legal while the session is {self.status}; legal now: {', '.join(self.legal)}"
            told = {"operation": operation, "status": self.status, "legal": list(self.legal)}
            raise SessionError("invalid_status_for_operation", message, metadata=told)

    def append(self, *messages: Message) -> Session:
        """With these messages at the end of its thread; nothing else changes."""
        return replace(self, thread=self.thread + messages)

    def append_user(self, text: str) -> Session:
        return self.append(user(text))

    def append_tool_result(self, tool_call_id: str, content: str | dict[str, Any]) -> Session:
        """With this message; to answer a pending call there is `submit_tool_result`."""
        return self.append(tool_result(tool_call_id, content))

    def submit_tool_result(self, tool_call_id: str, content: str | Mapping[str, Any]) -> Session:
        """With the answer to one pending call, a text or what is told as JSON; the last one ends the wait for tools.

        >>> waiting = Session(status="awaiting_tools", pending_tool_calls=(ToolCall("a", "sign"),))
        >>> waiting.submit_tool_result("a", "signed").status
        'idle'

        Raises ``SessionError("unknown_tool_call_id")``, or as `require`; ``ValidationError("not_serializable")``.
        """
        self.require("submit_tool_result")
        return self._submit({tool_call_id: content})

    def submit_tool_results(
        self, results: Mapping[str, str | Mapping[str, Any]] | Iterable[tuple[str, str | Mapping[str, Any]]]
    ) -> Session:
        """`submit_tool_result` for several, by the calls' ids: all, or none where it raises."""
        given = dict(results)
        if not given:
            return self
        self.require("submit_tool_results")
        return self._submit(given)

    def _submit(self, results: Mapping[str, str | Mapping[str, Any]]) -> Session:
        self.require_pending(results)
        left = tuple(call for call in self.pending_tool_calls if call.id not in results)
        after = "idle" if self.pending_question is None else "awaiting_user"
        return replace(
            self,
            thread=with_results(self.thread, {id: tool_result(id, _told(id, held)) for id, held in results.items()}),
            pending_tool_calls=left,
            status="awaiting_tools" if left else after,
        )

    def require_pending(self, ids: Iterable[str]) -> None:
        """Raises ``SessionError`` where one of `ids` is no pending call: ``unknown_tool_call_id``, or
        ``no_pending_tool_call`` if there is none at all.
        """
        known = {call.id: call for call in self.pending_tool_calls}
        unknown = [id for id in ids if id not in known]
        if not unknown:
            return
        reason = "unknown_tool_call_id" if known else "no_pending_tool_call"
        message = f"no call {unknown[0]!r} is pending; pending are: {listed(known)}"
        raise SessionError(reason, message, metadata={"tool_call_id": unknown[0]})

    def replied(self, answer: str | Message) -> Session:
        """With the user's message, and nothing pending."""
        asked = self.append(answer if isinstance(answer, Message) else user(answer))
        return replace(asked, status="idle", pending_question=None, pending_tool_call_id=None)

    def after(self, result: ChatResult | StepResult) -> Session:
        """The session once a turn has given `result`.

        Open calls come before an open question. A turn that was cancelled ends as its last step did, if it had one;
        what the user said is in the thread either way.
        """
        reason, told = _ending(result)
        metadata = {**self.metadata, **told}
        ended = replace(
            self, thread=result.thread, metadata=metadata, pending_tool_calls=(), pending_question=None,
            pending_tool_call_id=None, status="idle" if reason is None else "completed",
        )  # fmt: skip
        if reason in ("error", "tool_error"):
            return replace(ended, status="error", metadata={**metadata, "error": _fault(result, told)})
        if reason == "ask_user":
            asked, id = told.get("pending_question") or "", told.get("pending_tool_call_id")
            ended = replace(
                ended, status="awaiting_user", pending_question=asked, pending_tool_call_id=id,
                thread=_asking(ended.thread, question(asked, id)),
            )  # fmt: skip
        calls = _pending(result)
        return replace(ended, status="awaiting_tools", pending_tool_calls=calls) if calls else ended

    def _repr_markdown_(self) -> str:
        asks = "".join(f"\n\n`{call!r}`?" for call in self.pending_tool_calls)
        return f"{self.thread._repr_markdown_()}{asks}\n\n*{self.status}*"  # pyright: ignore[reportPrivateUsage]


@value
class Turn(Value):
    """What one operation on a session gives: the `session` after it, and the `result` of its chat or step."""

    session: Session
    result: ChatResult | StepResult

    @property
    def output_text(self) -> str:
        """The text of the last response."""
        return self.result.output_text if isinstance(self.result, ChatResult) else self.result.response.output_text

    def __repr__(self) -> str:
        return f"Turn({self.session.status}, {self.result!r})"

    def _repr_markdown_(self) -> str:
        return self.session._repr_markdown_()  # pyright: ignore[reportPrivateUsage]


def question(text: str, tool_call_id: str | None) -> Message:
    """The assistant's message that a tool's question to the user becomes."""
    return Message("assistant", text, metadata={"ask_user": True, "tool_call_id": tool_call_id})


def _ending(result: ChatResult | StepResult) -> tuple[str | None, Mapping[str, Any]]:
    match result:
        case ChatResult(halted_reason="cancelled", steps=(*_, last)):
            reason, told = _ending(last)
            return reason or "cancelled", told
        case ChatResult(halted_reason="ask_user"):
            asked = {"pending_question": result.pending_question, "pending_tool_call_id": result.pending_tool_call_id}
            return "ask_user", {**result.metadata, **asked}
        case ChatResult():
            return result.halted_reason, result.metadata
        case StepResult(metadata={"halted_reason": str(reason)}):
            return reason, result.metadata
        case _ if result.response.finish_reason == "error":
            return "error", result.metadata
        case _:
            return ("completed" if result.done else None), result.metadata


def _pending(result: ChatResult | StepResult) -> tuple[ToolCall, ...]:
    named = result.pending_tool_calls if isinstance(result, ChatResult) else ()
    return named or unanswered(result.thread)


def _asking(thread: Thread, asked: Message) -> Thread:
    last = thread.last
    return thread if last is not None and last.metadata.get("ask_user") else thread + asked


def _fault(result: ChatResult | StepResult, told: Mapping[str, Any]) -> Any:
    error = result.error if isinstance(result, ChatResult) else result.response.error
    return error if error is not None else told.get("on_tool_error_exception", dict(told))


def _told(id: str, content: str | Mapping[str, Any]) -> str:
    try:
        return content if isinstance(content, str) else json_text(content)
    except ValidationError as error:
        raise ValidationError("not_serializable", error.message, errors=[((id,), "not_serializable")]) from error

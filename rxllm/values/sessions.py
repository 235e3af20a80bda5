"""Sessions, the ways to pass a conversation to a function, and helpers for halted agents.

The status of a session determines which operations are legal:

====================  ==========================================================  ======================================
status                the session is waiting for                                  legal operations
====================  ==========================================================  ======================================
``idle``              nothing                                                     start, reply, resume, step
``completed``         nothing; the last turn has ended                            start, reply, resume, step
``awaiting_tools``    results or approvals for its `pending_tool_calls`, then     resume, submit_tool_result,
                      an answer to any `pending_question`                         submit_tool_results
``awaiting_user``     an answer to its `pending_question`                         reply
``error``             nothing; to continue, make a new session from its thread    none
====================  ==========================================================  ======================================

* A halted agent's thread is stored in the message that called the agent, under ``metadata["agents"][call.id]``.
* The id of a call or question inside an agent begins with the enclosing calls' ids, as in "c1/c2".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, cast

from rxllm.values.advice import advice
from rxllm.values.argument_checks import shown
from rxllm.values.base import Value, value
from rxllm.values.codec import not_serializable
from rxllm.values.errors import SessionError, ValidationError
from rxllm.values.json_text import json_text
from rxllm.values.messages import Message, tool_result, user
from rxllm.values.responses import Response
from rxllm.values.results import ChatResult, StepResult
from rxllm.values.threads import AGENTS, MessageLike, Thread, as_messages, listed, unanswered, with_results
from rxllm.values.tools import ToolCall

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
    """The state of a conversation, which can be stored as JSON.

    A session is immutable: its methods return a new session. Tools receive `id` as the session id. They also receive
    `context`, which overrides the engine's context. The `context` option of a call overrides both. `metadata` collects
    the metadata of all turns. If the status is ``error``, ``metadata["error"]`` describes what went wrong.
    """

    id: str | None = None
    thread: Thread = field(default_factory=Thread)
    status: SessionStatus = "idle"
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
        """The operations that the session's current status allows."""
        return LEGAL.get(self.status, ())

    def require(self, operation: str) -> None:
        """Raise `SessionError` unless the status allows `operation`.

        The reason is ``session_in_error_state`` or ``invalid_status_for_operation``.
        """
        if self.status == "error":
            remedy = "to continue, write dataclasses.replace(session, status='idle')"
            raise SessionError("session_in_error_state", f"the session has failed (see metadata['error']); {remedy}")
        if operation not in self.legal:
            message = (
                f"{operation} is not allowed while the session is {self.status}; "
                f"the allowed operations are {', '.join(self.legal)}"
            )
            metadata = {"operation": operation, "status": self.status, "legal": list(self.legal)}
            raise SessionError("invalid_status_for_operation", message, metadata=metadata)

    def append(self, *messages: Message) -> Session:
        """Return the session with these messages appended to its thread."""
        return replace(self, thread=self.thread + messages)

    def with_thread(self, thread: Thread) -> Session:
        """Return the session with a different thread.

        The new session waits only for the calls and the question that are still open in `thread`. Use this to add a
        user message whatever the session's status, or to continue after an error. Then call ``session.resume``.

        >>> from rxllm import Thread
        >>> asking = Session(status="awaiting_user", pending_question="Where to?")
        >>> asking.with_thread(Thread().add_user("To Rome.")).status
        'idle'
        """
        known, id, last = {call.id: call for call in self.pending_tool_calls}, self.pending_tool_call_id, thread.last
        calls = tuple(known.get(call.id, call) for call in open_calls(thread))
        own = last is not None and bool(last.metadata.get("ask_user")) and last.metadata.get("tool_call_id") == id
        session = replace(self, thread=thread, pending_tool_calls=calls, status="awaiting_tools" if calls else "idle")
        if self.pending_question is not None and (own or waits_in_agent(thread, id)):
            return session if calls else replace(session, status="awaiting_user")
        return replace(session, pending_question=None, pending_tool_call_id=None)

    def append_user(self, text: str) -> Session:
        return self.append(user(text))

    def append_tool_result(self, tool_call_id: str, content: str | dict[str, Any]) -> Session:
        """Return the session with a tool result appended. To answer a pending call, use `submit_tool_result`."""
        return self.append(tool_result(tool_call_id, content))

    def submit_tool_result(self, tool_call_id: str, content: str | Mapping[str, Any]) -> Session:
        """Return the session with one pending tool call answered.

        >>> waiting = Session(status="awaiting_tools", pending_tool_calls=(ToolCall("a", "sign"),))
        >>> waiting.submit_tool_result("a", "signed").status
        'idle'

        The model receives a mapping as JSON. After the last answer, the session no longer waits for tools.

        Raises ``SessionError("unknown_tool_call_id")``, and the same errors as `require`. Raises
        ``ValidationError("not_serializable")`` if the mapping has no JSON form.
        """
        self.require("submit_tool_result")
        return self._submit({tool_call_id: content})

    def submit_tool_results(
        self, results: Mapping[str, str | Mapping[str, Any]] | Iterable[tuple[str, str | Mapping[str, Any]]]
    ) -> Session:
        """Return the session with several pending tool calls answered. `results` maps the calls' ids to results."""
        by_id = dict(results)
        if not by_id:
            return self
        self.require("submit_tool_results")
        return self._submit(by_id)

    def _submit(self, results: Mapping[str, str | Mapping[str, Any]]) -> Session:
        self.require_pending(results)
        pending = tuple(call for call in self.pending_tool_calls if call.id not in results)
        answered = "idle" if self.pending_question is None else "awaiting_user"
        answers = {id: tool_result(id, _text_of(id, content)) for id, content in results.items()}
        return replace(
            self,
            thread=with_answers(self.thread, answers),
            pending_tool_calls=pending,
            status="awaiting_tools" if pending else answered,
        )

    def require_pending(self, ids: Iterable[str]) -> None:
        """Raise ``SessionError`` unless every id in `ids` is the id of a pending call.

        The error's reason is ``no_pending_tool_call`` if no call is pending, and ``unknown_tool_call_id`` otherwise.
        """
        known = {call.id: call for call in self.pending_tool_calls}
        unknown = [id for id in ids if id not in known]
        if not unknown:
            return
        reason = "unknown_tool_call_id" if known else "no_pending_tool_call"
        message = f"no tool call {unknown[0]!r} is pending; pending calls: {listed(known)}"
        raise SessionError(reason, message, metadata={"tool_call_id": unknown[0]})

    def replied(self, answer: str | Message) -> Session:
        """Return the session with the pending question answered."""
        message, id = answer if isinstance(answer, Message) else user(answer), self.pending_tool_call_id
        if id is not None and waits_in_agent(self.thread, id):
            session = replace(self, thread=with_answer(self.thread, id, message))
        else:
            session = self.append(message)
        return replace(session, status="idle", pending_question=None, pending_tool_call_id=None)

    def after(self, result: ChatResult | StepResult) -> Session:
        """Return the session as it is after a turn that ended with this `result`.

        * If tool calls and a question are pending, the calls must be answered first.
        * A cancelled turn ends after its last complete step. The thread always keeps the user's message.
        """
        reason, ending = _ending(result)
        metadata = {**self.metadata, **ending}
        ended = replace(
            self, thread=result.thread, metadata=metadata, pending_tool_calls=(), pending_question=None,
            pending_tool_call_id=None, status="idle" if reason is None else "completed",
        )  # fmt: skip
        if reason in ("error", "tool_error"):
            return replace(ended, status="error", metadata={**metadata, "error": _failure(result, ending)})
        if reason == "ask_user":
            text, id = ending.get("pending_question") or "", ending.get("pending_tool_call_id")
            ended = replace(
                ended, status="awaiting_user", pending_question=text, pending_tool_call_id=id,
                thread=_with_question(ended.thread, text, id, ending),
            )  # fmt: skip
        calls = _pending(result)
        return replace(ended, status="awaiting_tools", pending_tool_calls=calls) if calls else ended

    def _repr_markdown_(self) -> str:
        pending = "".join(f"\n\n`{call!r}`?" for call in self.pending_tool_calls)
        return f"{self.thread._repr_markdown_()}{pending}\n\n*{self.status}*"  # pyright: ignore[reportPrivateUsage]


@value
class Turn(Value):
    """The `result` of an operation on a session, and the `session` after that operation."""

    session: Session
    result: ChatResult | StepResult

    @property
    def output_text(self) -> str:
        """The text of the last response."""
        return self.result.output_text

    def __repr__(self) -> str:
        return f"Turn({self.session.status}, {self.result!r})"

    def _repr_markdown_(self) -> str:
        return self.session._repr_markdown_()  # pyright: ignore[reportPrivateUsage]


Input = str | Message | Mapping[str, object] | Sequence[MessageLike] | Thread | ChatResult | StepResult | Session | Turn
"""The ways to pass a conversation: as text, messages, a thread, or an object that contains a thread."""


_ANSWER_ONLY = (
    "a Response has the answer but not the question; write thread + response, or pass the result of rxllm.chat"
)


def as_thread(value: Any) -> Thread:
    """Convert an `Input` to a thread.

    Raises ``ValidationError("invalid_thread")`` for any other value.
    """
    match value:
        case Thread():
            return value
        case ChatResult() | StepResult() | Session():
            return value.thread
        case Turn():
            return value.session.thread
        case str() | Message() | Mapping() | list() | tuple():
            return Thread(as_messages(cast(Any, value)))
        case _:
            fault = f"must be text, a message, a list of messages, a Thread or a chat's result, not {shown(value)}"
            remedy = f"; {_ANSWER_ONLY}" if isinstance(value, Response) else ""
            remedy = f"; {advice('Stream', 'thread')}" if hasattr(cast(Any, value), "subscribe") else remedy
            raise ValidationError("invalid_thread", f"a conversation {fault}{remedy}", errors=[((), fault + remedy)])


def _ending(result: ChatResult | StepResult) -> tuple[str | None, Mapping[str, Any]]:
    match result:
        case ChatResult(halted_reason="cancelled", steps=(*_, last)):
            reason, metadata = _ending(last)
            return reason or "cancelled", metadata
        case ChatResult(halted_reason="ask_user"):
            pending = {"pending_question": result.pending_question, "pending_tool_call_id": result.pending_tool_call_id}
            return "ask_user", {**result.metadata, **pending}
        case ChatResult():
            return result.halted_reason, result.metadata
        case StepResult(metadata={"halted_reason": str(reason)}):
            return reason, result.metadata
        case _ if result.response.finish_reason == "error":
            return "error", result.metadata
        case _:
            is_open = any(True for _ in open_calls(result.thread))
            return ("completed" if result.done and not is_open else None), result.metadata


def _pending(result: ChatResult | StepResult) -> tuple[ToolCall, ...]:
    calls = result.pending_tool_calls if isinstance(result, ChatResult) else ()
    return calls or tuple(open_calls(result.thread))


def _with_question(thread: Thread, text: str, id: str | None, metadata: Mapping[str, Any]) -> Thread:
    last = thread.last
    has_it = waits_in_agent(thread, id) or (last is not None and last.metadata.get("ask_user"))
    return thread if has_it else thread + question(text, id, metadata)


def _failure(result: ChatResult | StepResult, metadata: Mapping[str, Any]) -> Any:
    error = result.error if isinstance(result, ChatResult) else result.response.error
    return error if error is not None else metadata.get("on_tool_error_exception", dict(metadata))


def _text_of(id: str, content: str | Mapping[str, Any]) -> str:
    try:
        return content if isinstance(content, str) else json_text(content)
    except ValidationError as error:
        raise not_serializable(error.message, id) from error


# An agent stays open while its chat is halted.


def question(text: str, tool_call_id: str | None, metadata: Mapping[str, Any]) -> Message:
    """Return the message that asks a tool's question."""
    opts = {"ask_user_opts": metadata["ask_user_opts"]} if metadata.get("ask_user_opts") else {}
    return Message("assistant", text, metadata={"ask_user": True, "tool_call_id": tool_call_id, **opts})


def nested_id(id: str, inner: str) -> str:
    return f"{id}/{inner}"


def nested_call(id: str, call: ToolCall) -> ToolCall:
    """Prefix the id of an agent's `call` with `id`, the id of the enclosing call."""
    return replace(call, id=nested_id(id, call.id))


def open_agents(thread: Thread) -> dict[str, Thread]:
    """Return the threads of the halted agents in `thread`. The keys are the ids of the calls that started them."""
    threads: dict[str, Any] = {}
    for message in thread:
        agents = message.metadata.get(AGENTS)
        if isinstance(agents, Mapping):
            threads |= cast(Mapping[str, Any], agents)
    found = ((call.id, threads.get(call.id)) for call in unanswered(thread))
    return {id: agent for id, agent in found if isinstance(agent, Thread)}


def with_open_agents(thread: Thread, agents: Mapping[str, Thread]) -> Thread:
    """Return `thread` with the threads of these halted agents stored in it. The keys of `agents` are call ids."""
    if not agents:
        return thread
    return replace(thread, messages=tuple(_with_agents(message, agents) for message in thread))


def _with_agents(message: Message, agents: Mapping[str, Thread]) -> Message:
    own = {call.id: agents[call.id] for call in message.tool_calls if call.id in agents}
    if not own:
        return message
    return replace(message, metadata={**message.metadata, AGENTS: {**message.metadata.get(AGENTS, {}), **own}})


def open_calls(thread: Thread) -> Iterator[ToolCall]:
    """Yield the unanswered calls. A call to a halted agent is replaced with the unanswered calls inside that agent."""
    agents = open_agents(thread)
    for call in unanswered(thread):
        if call.id in agents:
            yield from (nested_call(call.id, inner) for inner in open_calls(agents[call.id]))
        else:
            yield call


def open_ids(thread: Thread) -> Iterator[str]:
    """Yield the ids of all unanswered calls and questions, including those inside agents."""
    agents = open_agents(thread)
    for call in unanswered(thread):
        yield call.id
        if call.id in agents:
            yield from (nested_id(call.id, inner) for inner in open_ids(agents[call.id]))
    if (question_id := _own_question_id(thread)) is not None:
        yield question_id


def open_questions(thread: Thread) -> Iterator[str]:
    """Yield the ids of the open questions, starting with those that inner agents asked."""
    for id, agent in open_agents(thread).items():
        yield from (nested_id(id, inner) for inner in open_questions(agent))
    if (question_id := _own_question_id(thread)) is not None:
        yield question_id


def waits_in_agent(thread: Thread, id: str | None) -> bool:
    """Whether the open question with this `id` was asked by an agent inside the chat."""
    return id is not None and id != _own_question_id(thread) and id in open_questions(thread)


def with_answer(thread: Thread, id: str, answer: Message) -> Thread:
    return with_answers(thread, {id: answer})


def with_answers(thread: Thread, answers: Mapping[str, Message]) -> Thread:
    """Return `thread` with answers to calls and questions, including those inside agents.

    Each answer is placed after its call or question. If the call is not in the thread, the answer is appended.
    """
    agents = open_agents(thread)
    places = {nested_id(id, inner): (id, inner) for id, agent in agents.items() for inner in open_ids(agent)}
    question_id = _own_question_id(thread)
    own: dict[str, Message] = {}
    nested: dict[str, dict[str, Message]] = {}
    for id, answer in answers.items():
        if id == question_id and answer.role == "user":
            thread += answer
        elif id in places:
            outer, inner = places[id]
            nested.setdefault(outer, {})[inner] = answer
        else:
            own[id] = replace(answer, tool_call_id=id)
    answered = {id: with_answers(agents[id], inner_answers) for id, inner_answers in nested.items()}
    return with_results(with_open_agents(thread, answered), own)


def _own_question_id(thread: Thread) -> str | None:
    last = thread.last
    return last.metadata.get("tool_call_id") if last is not None and last.metadata.get("ask_user") else None

"""Functions that continue a stored conversation. Each takes a `Session`, calls the model and emits a `Turn`.

::

    turn = session.start(engine, "Hi").run()            # or session.start(engine, Session(id="s1", ...))
    turn = session.reply(engine, turn, "And in Rome?").run()

The new session is ``turn.session``, which can be stored as JSON. You can pass a turn wherever a session is expected.
Each function has a streaming form, such as `stream_reply` for `reply`, which emits events. ``operators.to_session``
folds these events into the turn that the function itself would emit; with a `response_format`, also pass `parse`. The
first event is ``Custom("session_turn")``. It contains the whole session with its context, so do not send this event to
clients unchanged. The same applies to ``StepCompleted`` and ``ChatCompleted``.

If you dispose of a stream early, it emits no `Turn`. The example below saves the session anyway, because
``save(turn, outcome)`` is called however the stream ends. With `keep_partial`, the session includes the text that has
arrived so far, and not just the user's message::

    keep = ops.finally_result(save, ops.to_session(chat, keep_partial=True))
    answer = session.stream_reply(engine, chat, "A story!").pipe(keep, ops.text()).subscribe(show)
    answer.dispose()                                    # save(turn, "cancelled")

`step` takes the options of ``rxllm.step``, and the other functions take the options of ``rxllm.chat``. Tools receive
the engine's context, updated first with the session's context and then with the call's. They also receive the call's
`session_id` or, by default, the session's id.

If the session's status does not allow the operation, ``on_error`` receives a `SessionError` that lists the allowed
operations. If the session's fields contradict its status, ``on_error`` receives a
``ValidationError("invalid_session")``. In both cases, the model is not called. If the first model call fails,
``on_error`` receives the error of that call, and the session that you passed in is still valid.

A `SessionStore` keeps sessions between turns. `MemorySessions` keeps them in memory, and ``durable.Runs.sessions``
keeps them in SQLite or Redis. To check a store of your own, use ``testing.assert_session_store``.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Unpack, cast

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable

from rxllm import operators as ops
from rxllm import pipelines, serializer, validate
from rxllm.engine import Engine, as_engine
from rxllm.events import NOTHING, Custom, Event
from rxllm.pipelines import ChatOptions, Input, StepOptions, as_thread
from rxllm.pipelines.caller_answers import Answers, is_over
from rxllm.pipelines.options import set_options, with_options
from rxllm.pipelines.resuming import unchecked_resume
from rxllm.runtime import Stream, clock, off_loop, returned_by
from rxllm.tools import Approval
from rxllm.values import LLMError, Message, RunError, Session, SessionError, Turn, ValidationError, reader
from rxllm.values.argument_checks import check, check_instance, is_name, must_be
from rxllm.values.sessions import open_agents, open_questions

__all__ = [
    "MemorySessions",
    "SavedSession",
    "SessionStore",
    "reply",
    "resume",
    "start",
    "step",
    "stream_reply",
    "stream_resume",
    "stream_start",
    "stream_step",
]


class SavedSession(msgspec.Struct, frozen=True):
    """A session that was loaded from a store.

    `version` is 0 for a session that has never been saved, and every save increases it. `run` is the id of the durable
    run that is producing the open turn, or None if there is no such run. While a turn is open, `session` includes the
    committed part of that turn: the user's message, the completed steps and the answer so far. The answer so far is a
    message with ``metadata["partial"] == "cancelled"``. `begun` is the session that the open turn began with, or None.
    """

    session: Session
    version: int = 0
    run: str | None = None
    begun: Session | None = None


class SessionStore(Protocol):
    """A store for sessions. Its methods are asynchronous, and can be called on any event loop.

    An id is a non-empty string that can be encoded as UTF-8. A store may have further rules, such as a maximum length.
    All methods raise ``ValidationError("invalid_option")`` if the id is invalid. If the store is unreachable, full or
    broken, they can raise ``RunError("store_unavailable")``.

    A store may also have a method ``open_run(id)``, which returns the `run` of ``await load(id)`` without reading the
    session. Without it, ``web.chat`` loads a session to see whether a turn is open.
    """

    def load(self, id: str) -> Awaitable[SavedSession]:
        """Return the session with this id, or an empty session if there is none."""
        ...

    def save(self, session: Session, version: int = 0) -> Awaitable[SavedSession]:
        """Store `session` if the stored version is still `version`, and return the session with its new version.

        Raises ``RunError("conflict")`` if the stored version is different, which means that another caller has saved or
        deleted the session since it was loaded.
        """
        ...

    def delete(self, id: str) -> Awaitable[None]:
        """Delete the session with this id, if there is one.

        Later sessions with this id must not reuse the deleted session's version numbers.
        """
        ...


class MemorySessions:
    """An in-memory `SessionStore`. It keeps each session until you delete the session or the process ends.

    >>> import asyncio
    >>> store = MemorySessions()
    >>> saved = asyncio.run(store.load("ada"))
    >>> asyncio.run(store.save(saved.session.append_user("Hi"), saved.version)).version
    1
    """

    def __init__(self) -> None:
        self._saved: dict[str, tuple[int, str]] = {}  # the version and the JSON of each session
        self._last_version = 0  # shared by all sessions, so that a deleted session's version is not reused
        self._lock = threading.Lock()

    async def load(self, id: str) -> SavedSession:
        version, text = self._saved.get(_check_id(id), (0, ""))
        if not text:
            return SavedSession(Session(id=id), version)
        read = partial(serializer.from_json, text, Session, local_files=True)
        return SavedSession(await off_loop(len(text), read), version)

    async def save(self, session: Session, version: int = 0) -> SavedSession:
        check_instance("session", session, Session, "a Session")
        id = _check_id(session.id)
        text = await off_loop(session_size(session), serializer.to_json, session)
        with self._lock:
            if self._saved.get(id, (0, ""))[0] != version:
                raise RunError("conflict", f"the session {id!r} has changed since it was loaded; load it again")
            self._last_version += 1
            self._saved[id] = self._last_version, text
            return SavedSession(session, self._last_version)

    async def delete(self, id: str) -> None:
        with self._lock:
            self._saved.pop(_check_id(id), None)


def session_size(session: Session) -> int:
    """Return about how many characters the JSON of `session` has. Large data in tool calls is not counted."""
    return sum(100 + _LENGTH_OF_PART * len(message.parts) + len(message.text) for message in session.messages)


_LENGTH_OF_PART = 80


def _check_id(id: Any) -> str:
    check("id", id, is_name(id), 'a non-empty string that can be encoded as UTF-8, such as "ada"')
    return id


@with_options(ChatOptions)
def start(engine: Engine | str | Any, input: Session | Input, **opts: Unpack[ChatOptions]) -> Stream[Turn]:
    """Start a conversation with `input`, and emit its first turn.

    >>> from rxllm import Fake
    >>> start(Fake("Hello"), "Hi").run()
    Turn(completed, ChatResult('Hello', completed, 1 steps, 0 tokens))

    A new session keeps the call's `context` and `session_id` for its later turns. If you pass a `Session`, that session
    keeps its own context and id instead. If you store the session, its context must be JSON data, so put objects such
    as connections in the engine's context.

    >>> start(Fake("Hello"), "Hi", context={"user": "ada"}, session_id="s1").run().session.id
    's1'

    Raises ``ValidationError("invalid_session_input")`` if `input` is neither a session nor valid input for
    ``rxllm.chat``. For a session without messages, use `reply` instead.
    """
    turns = stream_start(engine, input, **opts).pipe(_to_turn(engine, _as_session(input, opts), opts))
    return returned_by("session.start", turns, items=Turn)


@with_options(ChatOptions)
def reply(
    engine: Engine | str | Any, session: Session | Turn, text: str | Message, **opts: Unpack[ChatOptions]
) -> Stream[Turn]:
    """Add the user's message `text` to the session, and continue the chat.

    If a question to the user is pending, `text` is the answer to it. If an agent asked the question, the agent's chat
    receives the answer and continues before this chat does.

    >>> from rxllm import Fake
    >>> engine, turn = Fake("Hello", "Rome."), Session()
    >>> for text in ("Hi", "And in Italy?"):
    ...     turn = reply(engine, turn, text).run()
    ...     print(turn.output_text)
    Hello
    Rome.
    """
    turns = stream_reply(engine, session, text, **opts).pipe(_to_turn(engine, _session_of(session), opts))
    return returned_by("session.reply", turns, items=Turn)


@with_options(ChatOptions)
def resume(
    engine: Engine | str | Any,
    session: Session | Turn,
    *,
    approvals: Mapping[str, Approval] | None = None,
    results: Mapping[str, str | Mapping[str, Any]] | None = None,
    **opts: Unpack[ChatOptions],
) -> Stream[Turn]:
    """Answer the pending tool calls, and continue the chat; see ``rxllm.resume``.

    ``on_error`` receives a ``SessionError("no_pending_tool_call")`` if no call is pending, or a
    ``SessionError("unknown_tool_call_id")`` if you answer a call that is not pending.

    As in ``rxllm.resume``, `results` can also answer an open question. Use the id of the call that asked the question.
    """
    events = stream_resume(engine, session, approvals=approvals, results=results, **opts)
    return returned_by("session.resume", events.pipe(_to_turn(engine, _session_of(session), opts)), items=Turn)


@with_options(StepOptions)
def step(engine: Engine | str | Any, session: Session | Turn, **opts: Unpack[StepOptions]) -> Stream[Turn]:
    """Run one step, and emit a turn whose `result` is a `StepResult`.

    The session's status is then ``idle``, unless the step halted or failed, or the chat is complete.
    """
    turns = stream_step(engine, session, **opts).pipe(_to_turn(engine, _session_of(session), opts))
    return returned_by("session.step", turns, items=Turn)


@with_options(ChatOptions)
def stream_start(engine: Engine | str | Any, input: Session | Input, **opts: Unpack[ChatOptions]) -> Stream[Event]:
    """Start a conversation, and emit the events of its first turn as they arrive; see `start`."""
    session = _as_session(input, opts)
    events = pipelines.stream(engine, session.thread, **_options(session, opts))
    return _turn_events(session, session, "start", events)


@with_options(ChatOptions)
def stream_reply(
    engine: Engine | str | Any, session: Session | Turn, text: str | Message, **opts: Unpack[ChatOptions]
) -> Stream[Event]:
    """Add the user's message, continue the chat, and emit the events of the turn as they arrive; see `reply`."""
    session = _session_of(session)
    replied = session.replied(_check_text(text))
    options = _options(session, opts)
    if open_agents(replied.thread):  # an agent asked the question, so the answer is in the agent's own thread
        events = unchecked_resume(engine, replied.thread, None, None, options)
    else:
        events = pipelines.stream(engine, replied.thread, **options)
    return _turn_events(session, replied, "reply", events)


@with_options(ChatOptions)
def stream_resume(
    engine: Engine | str | Any,
    session: Session | Turn,
    *,
    approvals: Mapping[str, Approval] | None = None,
    results: Mapping[str, str | Mapping[str, Any]] | None = None,
    **opts: Unpack[ChatOptions],
) -> Stream[Event]:
    """Answer the pending tool calls, and emit the events of the turn as they arrive; see `resume`."""
    session, results = _answer_questions(_session_of(session), results)
    events = unchecked_resume(engine, session.thread, approvals, results, _options(session, opts))
    return _turn_events(session, session, "resume", events, (*(approvals or ()), *(results or ())))


@with_options(StepOptions)
def stream_step(engine: Engine | str | Any, session: Session | Turn, **opts: Unpack[StepOptions]) -> Stream[Event]:
    """Run one step, and emit its events as they arrive; see `step`."""
    session = _session_of(session)
    events = pipelines.stream_step(engine, session.thread, **_options(session, opts))
    return _turn_events(session, session, "step", events)


def _answer_questions(session: Session, results: Any) -> tuple[Session, Any]:
    """Return a pair: the session with the replies in `results` added, and the results that are not replies."""
    if not isinstance(results, Mapping):
        return session, results  # None, or an invalid value, which is reported later
    others = dict(cast(Mapping[str, Any], results))
    replied = [id for id in open_questions(session.thread) if isinstance(others.get(id), str | Mapping)]
    if not replied:
        return session, others
    thread, _ = Answers({}, {id: others.pop(id) for id in replied}).replied(session.thread)
    return session.with_thread(thread), others


def _to_turn(engine: Any, session: Session, opts: Mapping[str, Any]) -> Callable[[Observable[Event]], Stream[Turn]]:
    response_format = {**as_engine(engine).params, **set_options(opts)}.get("response_format")
    return ops.to_session(session, parse=reader(response_format))


def _turn_events(
    session: Session, snapshot: Session, operation: str, events: Observable[Event], answered: tuple[str, ...] = ()
) -> Stream[Event]:
    """Emit a ``Custom("session_turn")`` event that contains `snapshot`, and then emit `events`.

    `snapshot` is the session including the user's new message. If `session` does not allow the operation, or if one of
    the `answered` calls is not pending, only ``on_error`` is called.
    """

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        subscription = SerialDisposable()
        try:
            validate.session(session)
            session.require(operation)
            session.require_pending(answered)
            if operation == "resume" and session.status == "completed" and is_over(session.thread):
                raise _nothing_to_resume()
            if operation == "start" and not snapshot.messages:
                raise _nothing_to_start_with()
        except LLMError as error:
            observer.on_error(error)
            return subscription

        def begin(_: abc.SchedulerBase, __: object = None) -> abc.DisposableBase | None:
            try:
                observer.on_next(Custom("session_turn", {"session": snapshot, "operation": operation}))
            except Exception as error:
                observer.on_error(error)
                return None
            return None if subscription.is_disposed else events.subscribe(observer, scheduler=scheduler)

        # Schedule this, so that the subscriber has its disposable before the first event arrives.
        subscription.disposable = clock(scheduler).schedule(begin)
        return subscription

    return returned_by(f"session.stream_{operation}", Stream(subscribe))


def _options(session: Session, opts: Mapping[str, Any]) -> Any:
    """Return `opts` with the session's context and id as defaults."""
    options = set_options(opts)
    context = options.get("context", NOTHING)
    if session.context and isinstance(context, Mapping):
        options["context"] = {**session.context, **cast(Mapping[str, Any], context)}
    if session.id:
        options.setdefault("session_id", session.id)
    return options


def _as_session(input: Any, opts: Mapping[str, Any]) -> Session:
    """Return the session in `input`, or create one from `input` and the call's `context` and `session_id`."""
    if isinstance(input, Session | Turn):
        return _session_of(input)
    try:
        session = Session(thread=as_thread(input))
    except ValidationError as error:
        raise ValidationError("invalid_session_input", errors=error.under("input").errors) from None
    context, id = opts.get("context"), opts.get("session_id")
    # Values of the wrong type are reported later, when the options are checked.
    context = dict(cast(Mapping[str, Any], context)) if isinstance(context, Mapping) else {}
    return replace(session, id=id if isinstance(id, str) else None, context=context)


def _session_of(value: Any) -> Session:
    """Return `value` if it is a session, or its session if it is a turn."""
    if isinstance(value, Session | Turn):
        return value if isinstance(value, Session) else value.session
    raise _invalid_input("session", "a Session or a Turn (session.start emits the first Turn)", value)


def _check_text(text: Any) -> Any:
    if isinstance(text, str) or (isinstance(text, Message) and text.role == "user"):
        return text
    raise _invalid_input("text", "a string or a user message", text)


def _nothing_to_resume() -> SessionError:
    message = 'no tool call is pending, and the model has answered; write session.reply(engine, session, "...")'
    return SessionError("no_pending_tool_call", message)


def _nothing_to_start_with() -> ValidationError:
    message = 'the session has no messages to start with; write session.reply(engine, session, "Hi")'
    return ValidationError("invalid_session_input", message, errors=[(("input",), "has no messages")])


def _invalid_input(name: str, expected: str, value: Any) -> ValidationError:
    message = f"{name} {must_be(expected, value)}"
    return ValidationError("invalid_session_input", message, errors=[((name,), "invalid_type")])

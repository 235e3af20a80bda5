"""Operations on sessions: each asks the model with a `Session` and gives the `Turn` that follows.

::

    turn = session.start(engine, "Hi").run()            # or session.start(engine, Session(id="s1", ...))
    turn = session.reply(engine, turn.session, "And in Rome?").run()

Each function has a streaming form; ``operators.to_session`` folds its events to the same turn. The first of them is
``Custom("session_turn")``, which holds the whole session with its context: like ``StepCompleted`` and
``ChatCompleted``, it is not to be forwarded raw.

The options are those of ``rxllm.chat`` (`step`: of ``rxllm.step``). A tool's context is the engine's, overlaid by the
session's, overlaid by the call's; its session id is the call's, else the session's. Where the session's status does
not allow the operation, a `SessionError` that says what it allows goes to ``on_error``, and where its fields
contradict its status a ``ValidationError("invalid_session")``; then no model is asked. A first call to the model that
fails goes there too: the session that was given is still good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack, cast

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable

from rxllm import operators as ops
from rxllm import pipelines, validate
from rxllm.engine import Engine, as_engine
from rxllm.events import Event
from rxllm.operators._to_session import turn_event
from rxllm.pipelines import ChatOptions, Input, StepOptions
from rxllm.runtime import Stream, clock
from rxllm.values import LLMError, Message, Session, Thread, Turn, ValidationError, reader, user

__all__ = [
    "reply",
    "resume",
    "start",
    "step",
    "stream_reply",
    "stream_resume",
    "stream_start",
    "stream_step",
]

NONE: Mapping[str, Any] = {}


def start(engine: Engine | str | Any, given: Session | Input, **opts: Unpack[ChatOptions]) -> Stream[Turn]:
    """The first turn of a conversation: a chat with what is `given`.

    >>> from rxllm import Fake
    >>> start(Fake("Hello"), "Hi").run()
    Turn(completed, ChatResult('Hello', completed, 1 steps, 0 tokens))

    Raises ``ValidationError("invalid_session_input")`` for anything else than a session and what ``rxllm.chat`` takes.
    """
    return stream_start(engine, given, **opts).pipe(_folded(engine, _session_of(given), opts))


def reply(
    engine: Engine | str | Any, session: Session, text: str | Message, **opts: Unpack[ChatOptions]
) -> Stream[Turn]:
    """The user says `text`, perhaps as the answer to a question, and the chat goes on."""
    return stream_reply(engine, session, text, **opts).pipe(_folded(engine, session, opts))


def resume(
    engine: Engine | str | Any,
    session: Session,
    *,
    approvals: Mapping[str, bool | str] = NONE,
    results: Mapping[str, str | Mapping[str, Any]] = NONE,
    **opts: Unpack[ChatOptions],
) -> Stream[Turn]:
    """The chat goes on, its pending calls answered; see ``rxllm.resume``. Without any it goes on from the thread.

    ``SessionError("unknown_tool_call_id")``, or ``"no_pending_tool_call"``, goes to ``on_error``.
    """
    events = stream_resume(engine, session, approvals=approvals, results=results, **opts)
    return events.pipe(_folded(engine, session, opts))


def step(engine: Engine | str | Any, session: Session, **opts: Unpack[StepOptions]) -> Stream[Turn]:
    """One step; its turn's `result` is a `StepResult`. The session is ``idle`` while the chat is not done."""
    return stream_step(engine, session, **opts).pipe(_folded(engine, session, opts))


def stream_start(engine: Engine | str | Any, given: Session | Input, **opts: Unpack[ChatOptions]) -> Stream[Event]:
    """The events of `start`."""
    session = _session_of(given)
    events = pipelines.stream(engine, session.thread, **_with(session, opts))
    return _turn(session, session, "start", events)


def stream_reply(
    engine: Engine | str | Any, session: Session, text: str | Message, **opts: Unpack[ChatOptions]
) -> Stream[Event]:
    """The events of `reply`."""
    asked = _checked(session).replied(_said(text))
    events = pipelines.stream(engine, asked.thread, **_with(session, opts))
    return _turn(session, asked, "reply", events)


def stream_resume(
    engine: Engine | str | Any,
    session: Session,
    *,
    approvals: Mapping[str, bool | str] = NONE,
    results: Mapping[str, str | Mapping[str, Any]] = NONE,
    **opts: Unpack[ChatOptions],
) -> Stream[Event]:
    """The events of `resume`."""
    thread, given = _checked(session).thread, _with(session, opts)
    events = pipelines.stream_resume(engine, thread, approvals=approvals, results=results, **given)
    return _turn(session, session, "resume", events, (*approvals, *results))


def stream_step(engine: Engine | str | Any, session: Session, **opts: Unpack[StepOptions]) -> Stream[Event]:
    """The events of `step`."""
    events = pipelines.stream_step(engine, _checked(session).thread, **_with(session, opts))
    return _turn(session, session, "step", events)


def _folded(engine: Any, session: Session, opts: Mapping[str, Any]) -> Callable[[Observable[Event]], Stream[Turn]]:
    wanted = opts.get("response_format", as_engine(engine).params.get("response_format"))
    return ops.to_session(session, parse=reader(wanted))


def _turn(
    session: Session, asked: Session, operation: str, events: Observable[Event], answered: tuple[str, ...] = ()
) -> Stream[Event]:
    """`events` behind the event that says what is asked with; nothing where `session` does not allow it."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        running = SerialDisposable()
        try:
            validate.session(session)
            session.require(operation)
            session.require_pending(answered)
        except LLMError as error:
            observer.on_error(error)
            return running

        def begin(_: abc.SchedulerBase, __: object = None) -> abc.DisposableBase | None:
            try:
                observer.on_next(turn_event(asked, operation))
            except Exception as error:
                observer.on_error(error)
                return None
            return None if running.is_disposed else events.subscribe(observer, scheduler=scheduler)

        # Not at once: the subscriber must have its disposable before the first event.
        running.disposable = clock(scheduler).schedule(begin)
        return running

    return Stream(subscribe)


def _with(session: Session, opts: Mapping[str, Any]) -> Any:
    """`opts` over what the session says."""
    given = dict(opts)
    context = given.get("context", NONE)
    if session.context and isinstance(context, Mapping):
        given["context"] = {**session.context, **cast(Mapping[str, Any], context)}
    if session.id:
        given.setdefault("session_id", session.id)
    return given


def _session_of(given: Any) -> Session:
    match given:
        case Session():
            return given
        case str():
            return Session(thread=Thread((user(given),)))
        case Message():
            return Session(thread=Thread((given,)))
        case Thread():
            return Session(thread=given)
        case list() | tuple() if all(isinstance(each, Message) for each in cast(list[Any], given)):
            return Session(thread=Thread(tuple(cast(list[Message], given))))
        case _:
            raise _refused(given, "session_input", "a Session, a Thread, messages or a text")


def _checked(given: Any) -> Session:
    if not isinstance(given, Session):
        raise _refused(given, "session", "a Session; session.start makes the first one")
    return given


def _said(given: Any) -> Any:
    if isinstance(given, str) or (isinstance(given, Message) and given.role == "user"):
        return given
    raise _refused(given, "text", "a text, or a message of the user")


def _refused(given: Any, name: str, wanted: str) -> ValidationError:
    message = f"{name} must be {wanted}, not {given!r}"
    return ValidationError("invalid_session_input", message, errors=[((name,), "invalid_type")])

"""Operations on sessions: each calls the model with a `Session` and emits the `Turn` that follows.

::

    turn = session.start(engine, "Hi").run()            # or session.start(engine, Session(id="s1", ...))
    turn = session.reply(engine, turn, "And in Rome?").run()

A turn can be passed in place of its session, ``turn.session``, which can be stored as JSON. Each function has a
streaming form, whose events ``operators.to_session`` folds into the same turn. The first event is
``Custom("session_turn")``, which holds the whole session with its context. Like ``StepCompleted`` and
``ChatCompleted``, it must not be forwarded raw.

A stopped stream emits no `Turn`. Here ``save(turn, outcome)`` is called however the stream ends, and with
`keep_partial` the session has the text so far, not only the user's message::

    keep = ops.finally_result(save, ops.to_session(chat, keep_partial=True))
    answer = session.stream_reply(engine, chat, "A story!").pipe(keep, ops.text()).subscribe(show)
    answer.dispose()                                    # save(turn, "cancelled")

The functions take the options of ``rxllm.chat``; `step` takes the options of ``rxllm.step``. A tool's context is the
engine's, updated with the session's and then the call's; its session id is the call's, or by default the session's.

If the session's status does not allow the operation, a `SessionError` that lists the allowed operations goes to
``on_error``; if the session's fields contradict its status, a ``ValidationError("invalid_session")`` does. The model is
not called then. An error in the first model call goes there too; the session that was passed in is still valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack, cast

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable

from rxllm import operators as ops
from rxllm import pipelines, validate
from rxllm.engine import Engine, as_engine
from rxllm.events import NOTHING, Custom, Event
from rxllm.pipelines import ChatOptions, Input, StepOptions, as_thread
from rxllm.pipelines.caller_answers import is_over
from rxllm.pipelines.options import set_options, with_options
from rxllm.pipelines.resuming import unchecked_resume
from rxllm.runtime import Stream, clock, returned_by
from rxllm.tools import Approval
from rxllm.values import LLMError, Message, Session, SessionError, Turn, ValidationError, reader
from rxllm.values.argument_checks import must_be
from rxllm.values.sessions import open_agents

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


@with_options(ChatOptions)
def start(engine: Engine | str | Any, input: Session | Input, **opts: Unpack[ChatOptions]) -> Stream[Turn]:
    """Emit the first turn of a conversation: a chat that begins with `input`.

    >>> from rxllm import Fake
    >>> start(Fake("Hello"), "Hi").run()
    Turn(completed, ChatResult('Hello', completed, 1 steps, 0 tokens))

    A new session keeps the call's `context` and `session_id` for its later turns, so a `context` that will be stored
    must be data; objects such as a connection belong in the engine's. A `Session` that is passed in keeps its own.

    >>> start(Fake("Hello"), "Hi", context={"user": "ada"}, session_id="s1").run().session.id
    's1'

    Raises ``ValidationError("invalid_session_input")`` unless `input` is a session or an input of ``rxllm.chat``. To
    begin a session that has no messages, use `reply`.
    """
    turns = stream_start(engine, input, **opts).pipe(_to_turn(engine, _as_session(input, opts), opts))
    return returned_by("session.start", turns, items=Turn)


@with_options(ChatOptions)
def reply(
    engine: Engine | str | Any, session: Session | Turn, text: str | Message, **opts: Unpack[ChatOptions]
) -> Stream[Turn]:
    """Append the user's `text`, which may answer a pending question, and continue the chat.

    The answer to an agent's question goes to the agent's chat, which continues first.

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
    """Answer the pending calls and continue the chat; see ``rxllm.resume``.

    ``SessionError("unknown_tool_call_id")`` or, if nothing is pending, ``SessionError("no_pending_tool_call")`` goes to
    ``on_error``.
    """
    events = stream_resume(engine, session, approvals=approvals, results=results, **opts)
    return returned_by("session.resume", events.pipe(_to_turn(engine, _session_of(session), opts)), items=Turn)


@with_options(StepOptions)
def step(engine: Engine | str | Any, session: Session | Turn, **opts: Unpack[StepOptions]) -> Stream[Turn]:
    """Run one step; the turn's `result` is a `StepResult`. The session is ``idle`` until the chat is done."""
    turns = stream_step(engine, session, **opts).pipe(_to_turn(engine, _session_of(session), opts))
    return returned_by("session.step", turns, items=Turn)


@with_options(ChatOptions)
def stream_start(engine: Engine | str | Any, input: Session | Input, **opts: Unpack[ChatOptions]) -> Stream[Event]:
    """Emit the events of `start`."""
    session = _as_session(input, opts)
    events = pipelines.stream(engine, session.thread, **_options(session, opts))
    return _turn_events(session, session, "start", events)


@with_options(ChatOptions)
def stream_reply(
    engine: Engine | str | Any, session: Session | Turn, text: str | Message, **opts: Unpack[ChatOptions]
) -> Stream[Event]:
    """Emit the events of `reply`."""
    session = _session_of(session)
    replied = session.replied(_check_text(text))
    options = _options(session, opts)
    if open_agents(replied.thread):  # an agent's question is answered in its own thread, and its tool call continues
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
    """Emit the events of `resume`."""
    session = _session_of(session)
    events = unchecked_resume(engine, session.thread, approvals, results, _options(session, opts))
    return _turn_events(session, session, "resume", events, (*(approvals or ()), *(results or ())))


@with_options(StepOptions)
def stream_step(engine: Engine | str | Any, session: Session | Turn, **opts: Unpack[StepOptions]) -> Stream[Event]:
    """Emit the events of `step`."""
    session = _session_of(session)
    events = pipelines.stream_step(engine, session.thread, **_options(session, opts))
    return _turn_events(session, session, "step", events)


def _to_turn(engine: Any, session: Session, opts: Mapping[str, Any]) -> Callable[[Observable[Event]], Stream[Turn]]:
    response_format = {**as_engine(engine).params, **set_options(opts)}.get("response_format")
    return ops.to_session(session, parse=reader(response_format))


def _turn_events(
    session: Session, snapshot: Session, operation: str, events: Observable[Event], answered: tuple[str, ...] = ()
) -> Stream[Event]:
    """Emit the event that holds `snapshot`, the session with the user's new message, and then `events`.

    If `session` does not allow the operation, or the `answered` calls are not pending, only ``on_error`` is called.
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

        # Scheduled, since the subscriber must have its disposable before the first event.
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
    """Return `input` if it is a session, or a new session that begins with it and keeps the call's context and id."""
    if isinstance(input, Session | Turn):
        return _session_of(input)
    try:
        session = Session(thread=as_thread(input))
    except ValidationError as error:
        raise ValidationError("invalid_session_input", errors=error.under("input").errors) from None
    context, id = opts.get("context"), opts.get("session_id")
    # Wrong types are reported when the options are checked.
    context = dict(cast(Mapping[str, Any], context)) if isinstance(context, Mapping) else {}
    return replace(session, id=id if isinstance(id, str) else None, context=context)


def _session_of(value: Any) -> Session:
    """Return `value` if it is a session, or the session of a turn."""
    if isinstance(value, Session | Turn):
        return value if isinstance(value, Session) else value.session
    raise _invalid_input("session", "a Session or a Turn (session.start makes the first one)", value)


def _check_text(text: Any) -> Any:
    if isinstance(text, str) or (isinstance(text, Message) and text.role == "user"):
        return text
    raise _invalid_input("text", "a string or a user's message", text)


def _nothing_to_resume() -> SessionError:
    message = 'no tool call is pending, and the model has answered: write session.reply(engine, session, "...")'
    return SessionError("no_pending_tool_call", message)


def _nothing_to_start_with() -> ValidationError:
    message = 'the session has no messages to start with: write session.reply(engine, session, "Hi")'
    return ValidationError("invalid_session_input", message, errors=[(("input",), "has no messages")])


def _invalid_input(name: str, expected: str, value: Any) -> ValidationError:
    message = f"{name} {must_be(expected, value)}"
    return ValidationError("invalid_session_input", message, errors=[((name,), "invalid_type")])

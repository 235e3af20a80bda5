"""Fold the events of a session's turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from reactivex import Observable

from rxllm.collector import StreamCollector, with_partial_step
from rxllm.collector.parsed import Read, chat_with_parsed, step_with_parsed
from rxllm.events import Custom, Event, StepCompleted
from rxllm.operators._lift import lift
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.operators._shared.parse_answer import Parse, answer_parser
from rxllm.runtime import Stream
from rxllm.values import ChatResult, Session, StepResult, Turn
from rxllm.values.argument_checks import check_instance

TURN = "session_turn"
"""The name of the `Custom` event that begins the streams of ``rxllm.session``. Its `data` holds the `operation` and the
`session` including the user's new message, so that a turn that is cut off loses nothing.
"""


def to_session(
    session: Session, *, parse: Parse = None, keep_partial: bool = False
) -> Callable[[Observable[Event]], Stream[Turn]]:
    """Fold the events of a turn to its `Turn`: the new session and the result of the chat or step.

    ::

        source          --turn--start--..--end--step--chat--|
        to_session()    ------------------------------------(Turn)|

    >>> from rxllm import Fake
    >>> from rxllm.session import stream_reply
    >>> turn = stream_reply(Fake("Hello"), Session(), "Hi").pipe(to_session(Session())).run()
    >>> turn.session.status, [message.text for message in turn.session.messages]
    ('completed', ['Hi', 'Hello'])

    `session` is the one that the turn began with. A stream that is cut off becomes a ``cancelled`` result and a session
    with the user's message and all completed steps. `parse` is as in `to_chat_result`; text that does not fit becomes
    the result's error, and the session can go on.

    With `keep_partial` the session of a turn that is cut off also keeps what its unfinished step has: the text, and the
    tool calls with their results. The message's ``metadata["partial"]`` is ``"cancelled"``, or ``"error"`` after an
    ``ErrorEvent``; it is not sent. Tool calls without a result are left out, and so is a message without text: the
    next `reply` is legal for every provider.

    >>> from reactivex import operators as rx
    >>> story = stream_reply(Fake(["Once ", "upon ", "a time"]), Session(), "A story!").pipe(rx.take(4))
    >>> stopped = story.pipe(to_session(Session(), keep_partial=True)).run()
    >>> stopped.session.messages[-1], stopped.session.messages[-1].metadata
    (Message('assistant', 'Once upon '), {'partial': 'cancelled'})

    Nothing is emitted after a dispose: ``ops.finally_result(save, ops.to_session(session, keep_partial=True))`` calls
    ``save(turn, outcome)`` then too.

    Raises ``ValidationError("invalid_option")`` for a wrong `session`, `parse` or `keep_partial`.
    """
    check_instance("session", session, Session, "a Session")
    check_instance("keep_partial", keep_partial, bool, "True or False")
    read = answer_parser(parse)
    return lift(lambda: _TurnFold(session, read, keep_partial))


class _TurnFold:
    def __init__(self, session: Session, read: Read | None, keep_partial: bool) -> None:
        self._read = read
        self._keep_partial = keep_partial
        self._begin(session, None)

    def _begin(self, session: Session, operation: str | None) -> None:
        self._session = session
        self._operation = operation
        self._state = StreamCollector(session.thread)
        self._step: StepResult | None = None  # if the last event completed one

    def feed(self, event: Event) -> Iterable[Turn]:
        match event:
            case Custom(name=name, data=Mapping()) if name == TURN:
                self._begin(event.data["session"], event.data["operation"])
            case _ if type(event) not in EVENTS:
                raise not_an_event("to_session", event)
            case _:
                self._state = self._state.apply_event(event)
                self._step = event.result if isinstance(event, StepCompleted) else None
        return ()

    def close(self) -> Iterable[Turn]:
        result = self._result()
        yield Turn(self._session.after(result), self._parsed(result))

    def _parsed(self, result: ChatResult | StepResult) -> ChatResult | StepResult:
        if self._read is None:
            return result
        if isinstance(result, ChatResult):
            return chat_with_parsed(result, self._read)
        return step_with_parsed(result, self._read)

    def _result(self) -> ChatResult | StepResult:
        is_step = self._operation == "step" or (self._operation is None and not self._state.done)
        if is_step and self._step is not None:
            return self._step
        result = self._state.to_chat_result()
        return with_partial_step(self._state, result) if self._keep_partial else result

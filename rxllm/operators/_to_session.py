"""A session's turn from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Custom, Event, StepCompleted
from rxllm.operators._lift import lift
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.operators._shared.parse_answer import Parse, Read, answer_parser, chat_with_parsed, step_with_parsed
from rxllm.runtime import Stream
from rxllm.values import ChatResult, Session, StepResult, Turn
from rxllm.values.arguments import check_instance

TURN = "session_turn"
"""The name of the `Custom` event that begins the streams of ``rxllm.session``. Its `data` holds the `session` as it is
asked with, the user's new message included, and which `operation` it is, so that a turn that is cut off loses nothing.
"""


def to_session(session: Session, *, parse: Parse = None) -> Callable[[Observable[Event]], Stream[Turn]]:
    """Fold the events of a turn to the `Turn`: the session after it, and the result of its chat or step.

    ::

        source          --turn--start--..--end--step--chat--|
        to_session()    ------------------------------------(Turn)|

    >>> from rxllm import Fake
    >>> from rxllm.session import stream_reply
    >>> turn = stream_reply(Fake("Hello"), Session(), "Hi").pipe(to_session(Session())).run()
    >>> turn.session.status, [message.text for message in turn.session.messages]
    ('completed', ['Hi', 'Hello'])

    `session` is the one that the turn began with. A stream that is cut off gives a result that was ``cancelled``, and a
    session with all steps that were complete, and with what the user said. `parse` is as in `to_chat_result`; a text
    that does not fit is an error of the result, and the session can go on.

    Raises ``ValidationError("invalid_option")`` for what is no session, and for a `parse` that makes no sense.
    """
    check_instance("session", session, Session, "a Session")
    read = answer_parser(parse)
    return lift(lambda: _Turning(session, read))


class _Turning:
    def __init__(self, session: Session, read: Read | None) -> None:
        self._read = read
        self._begin(session, None)

    def _begin(self, session: Session, operation: str | None) -> None:
        self._session = session
        self._operation = operation
        self._state = StreamCollector(session.thread)
        self._step: StepResult | None = None  # while it is the last that came

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
        return self._step if is_step and self._step is not None else self._state.to_chat_result()

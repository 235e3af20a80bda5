"""Fold a stream into a single result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.collector import StreamCollector, with_partial_step
from rxllm.collector.parsed import Read, chat_with_parsed, step_with_parsed, with_parsed
from rxllm.events import Custom, Event, StepCompleted, unparsed
from rxllm.operators._event_operators import EVENTS, fold_events, lift, not_an_event
from rxllm.runtime import Stream
from rxllm.values import (
    ChatResult,
    Response,
    ResponseFormat,
    Session,
    StepResult,
    Thread,
    Turn,
    ValidationError,
    is_type,
    reader,
)
from rxllm.values.advice import advice
from rxllm.values.argument_checks import check_instance, invalid_option, must_be
from rxllm.values.json_text import decode_json
from rxllm.values.schemas import decoder, unfenced
from rxllm.values.sessions import Input, as_thread

T = TypeVar("T")
Parse = Read | ResponseFormat | UnionType | None

TURN = "session_turn"
"""The name of the `Custom` event that begins every ``rxllm.session`` stream.

The event's `data` holds the `operation` and the `session`. The session already contains the user's new message.
"""


def to_text() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the whole text of the final response.

    ::

        source        --start--H--i--end--|
        to_text()     --------------------("Hi")|

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake(["H", "i"]), "Hello").pipe(to_text()).run()
    'Hi'

    An ``ErrorEvent`` becomes ``on_error``.
    """
    return fold_events("to_text", lambda state: final_answer(state).output_text)


@overload
def to_response(parse: Callable[[str], T] | type[T]) -> Callable[[Observable[Event]], Stream[Response[T]]]: ...
@overload
def to_response(
    parse: str | Mapping[str, Any] | UnionType | None = None,
) -> Callable[[Observable[Event]], Stream[Response[Any]]]: ...
def to_response(parse: Parse = None) -> Callable[[Observable[Event]], Stream[Response[Any]]]:
    """Fold the stream into its `Response`.

    ::

        source            --start--H--i--end--|
        to_response()     --------------------(Response)|

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake("42"), "Six times seven?").pipe(to_response(int)).run().parsed
    42

    `parse` can be anything that `ops.parsed` accepts. For JSON, pass a type or a ``response_format``. For other text,
    pass a function. A Markdown fence around the JSON is removed. Failed responses and responses that call tools are not
    parsed. If the text cannot be parsed, the stream ends with ``ValidationError("invalid_output")``. The error's
    metadata holds the text, the finish reason and the usage.

    Raises ``ValidationError("invalid_option")`` if `parse` is invalid.
    """
    read = answer_parser(parse)
    if read is None:
        return fold_events("to_response", StreamCollector.to_response)
    return fold_events("to_response", lambda state: with_parsed(state.to_response(), read))


@overload
def to_step_result(
    thread: Thread | None = None, *, parse: Callable[[str], T] | type[T]
) -> Callable[[Observable[Event]], Stream[StepResult[T]]]: ...
@overload
def to_step_result(
    thread: Thread | None = None, *, parse: str | Mapping[str, Any] | UnionType | None = None
) -> Callable[[Observable[Event]], Stream[StepResult]]: ...
def to_step_result(
    thread: Thread | None = None, *, parse: Parse = None
) -> Callable[[Observable[Event]], Stream[StepResult[Any]]]:
    """Fold the stream into the `StepResult` of its last step.

    ::

        source               --start--..--end--tool--step--|
        to_step_result()     ------------------------------(StepResult)|

    >>> from rxllm import Fake, stream_step
    >>> stream_step(Fake("Hi"), "Hello").pipe(to_step_result()).run().done
    True

    `thread` is the thread that the step began with. If the stream ends without ``StepCompleted``, the response is added
    to this thread. `parse` works as in `to_response`, except that the stream does not fail if the text cannot be
    parsed. Instead, the response's `error` is a ``ValidationError("invalid_output")``.

    Raises ``ValidationError("invalid_option")`` if `thread` or `parse` is invalid.
    """
    check_instance("thread", thread, Thread | None, "a Thread")
    read = answer_parser(parse)
    if read is None:
        return fold_events("to_step_result", StreamCollector.to_step_result, thread)
    return fold_events("to_step_result", lambda state: step_with_parsed(state.to_step_result(), read), thread)


@overload
def to_chat_result(
    thread: Input | None = None, *, parse: Callable[[str], T] | type[T], keep_partial: bool = False
) -> Callable[[Observable[Event]], Stream[ChatResult[T]]]: ...
@overload
def to_chat_result(
    thread: Input | None = None,
    *,
    parse: str | Mapping[str, Any] | UnionType | None = None,
    keep_partial: bool = False,
) -> Callable[[Observable[Event]], Stream[ChatResult]]: ...
def to_chat_result(
    thread: Input | None = None, *, parse: Parse = None, keep_partial: bool = False
) -> Callable[[Observable[Event]], Stream[ChatResult[Any]]]:
    """Fold the stream into its `ChatResult`.

    ::

        source               --..--step--..--step--chat--|
        to_chat_result()     ----------------------------(ChatResult)|

    >>> from rxllm import Fake, stream
    >>> stream(Fake("Hi"), "Hello").pipe(to_chat_result()).run()
    ChatResult('Hi', completed, 1 steps, 0 tokens)

    `thread` is the conversation that the chat began with, in any form that ``rxllm.chat`` accepts. If the stream ends
    without ``ChatCompleted``, completed steps are added to `thread`. The `halted_reason` is then ``"cancelled"``, or
    ``"error"`` after an ``ErrorEvent``.

    `parse` applies to the final response of a completed chat. It works as in `to_response`, except that the stream does
    not fail if the text cannot be parsed. Instead, the `halted_reason` is ``"error"``, and the `error` is a
    ``ValidationError("invalid_output")``.

    If `keep_partial` is True, an interrupted chat's thread includes the text of the unfinished step. Tool calls that
    already have results are included too.

    >>> from reactivex import operators as rx
    >>> from rxllm import Thread
    >>> story, begin = Fake(["Once ", "upon ", "a time"]), Thread().add_user("A story!")
    >>> stopped = stream(story, begin).pipe(rx.take(3), to_chat_result(begin, keep_partial=True)).run()
    >>> stopped.thread.last
    Message('assistant', 'Once upon ')

    Raises ``ValidationError("invalid_option")`` if `parse` or `keep_partial` is invalid. Raises
    ``ValidationError("invalid_thread")`` if `thread` is not a conversation.
    """
    thread = None if thread is None else as_thread(thread)
    check_instance("keep_partial", keep_partial, bool, "True or False")
    read = answer_parser(parse)

    def project(state: StreamCollector) -> ChatResult[Any]:
        result = state.to_chat_result()
        result = with_partial_step(state, result) if keep_partial else result
        return result if read is None else chat_with_parsed(result, read)

    return fold_events("to_chat_result", project, thread)


def to_session(
    session: Session, *, parse: Parse = None, keep_partial: bool = False
) -> Callable[[Observable[Event]], Stream[Turn]]:
    """Fold a turn's events into a `Turn`.

    ::

        source          --turn--start--..--end--step--chat--|
        to_session()    ------------------------------------(Turn)|

    >>> from rxllm import Fake
    >>> from rxllm.session import stream_reply
    >>> turn = stream_reply(Fake("Hello"), Session(), "Hi").pipe(to_session(Session())).run()
    >>> turn.session.status, [message.text for message in turn.session.messages]
    ('completed', ['Hi', 'Hello'])

    `session` is the session before the turn. An interrupted turn is ``cancelled``. Its new session keeps the user's
    message and all completed steps. `parse` works as in `to_chat_result`. If the text cannot be parsed, the session can
    still continue.

    If `keep_partial` is True, an interrupted turn's session also keeps the text of the unfinished step. Tool calls are
    kept if they have results. A message without text, files or tool calls is left out. The partial message's
    ``metadata["partial"]`` is ``"error"`` after an ``ErrorEvent``, and ``"cancelled"`` otherwise. This metadata is
    never sent. If an approved tool was still running, its call gets an error as its result, because the tool may
    already have acted.

    >>> from reactivex import operators as rx
    >>> story = stream_reply(Fake(["Once ", "upon ", "a time"]), Session(), "A story!").pipe(rx.take(4))
    >>> stopped = story.pipe(to_session(Session(), keep_partial=True)).run()
    >>> stopped.session.messages[-1], stopped.session.messages[-1].metadata
    (Message('assistant', 'Once upon '), {'partial': 'cancelled'})

    A disposed stream emits nothing. To save the turn even then, use
    ``ops.finally_result(save, ops.to_session(session, keep_partial=True))``.

    Raises ``ValidationError("invalid_option")`` if `session`, `parse` or `keep_partial` is invalid.
    """
    check_instance("session", session, Session, "a Session")
    check_instance("keep_partial", keep_partial, bool, "True or False")
    read = answer_parser(parse)
    return lift(lambda: _TurnFold(session, read, keep_partial))


class _TurnFold:
    """Folds one turn. Each `TURN` event restarts the fold."""

    def __init__(self, session: Session, read: Read | None, keep_partial: bool) -> None:
        self._read = read
        self._keep_partial = keep_partial
        self._begin(session, None)

    def _begin(self, session: Session, operation: str | None) -> None:
        self._session = session
        self._operation = operation
        self._state = StreamCollector(session.thread)
        self._step: StepResult | None = None  # set if the last event completed a step

    def feed(self, event: Event) -> Iterable[Turn]:
        match event:
            case Custom(name=name, data=Mapping()) if name == TURN:
                self._begin(event.data["session"], event.data["operation"])
            case _ if type(event) not in EVENTS:
                raise not_an_event("to_session", event)
            case _:
                self._state = self._state.apply_event(unparsed(event))  # the session can continue in any case
                self._step = event.result if isinstance(event, StepCompleted) else None
        return ()

    def close(self) -> Iterable[Turn]:
        result = self._result()
        session = self._session.after(result)
        if self._read is not None:
            is_chat = isinstance(result, ChatResult)
            result = chat_with_parsed(result, self._read) if is_chat else step_with_parsed(result, self._read)
        return (Turn(session, result),)

    def _result(self) -> ChatResult | StepResult:
        is_step = self._operation == "step" or (self._operation is None and not self._state.done)
        if is_step and self._step is not None:
            return self._step
        result = self._state.to_chat_result()
        return with_partial_step(self._state, result) if self._keep_partial else result


@overload
def parsed(type: type[T] | Callable[[str], T], /) -> Callable[[Observable[Event]], Stream[T]]: ...
@overload
def parsed(type: Mapping[str, Any] | UnionType, /) -> Callable[[Observable[Event]], Stream[Any]]: ...
def parsed(type: Any = ..., /) -> Callable[[Observable[Event]], Stream[Any]]:
    """Parse the complete answer as `type`.

    ::

        source         --{"na--me": "Lima"}--end--|
        parsed(City)   ---------------------------City("Lima")|

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake("[2, 3, 5]"), "Three primes?").pipe(parsed(list[int])).run()
    [2, 3, 5]

    `type` is a ``response_format``, any other type that msgspec supports, or a function. A ``response_format`` is a
    dataclass, a pydantic model, ``list[int]``, ``json_schema(...)``, and so on. The value equals ``Response.parsed``
    for a request with this ``response_format``. For example, ``list[int]`` turns the answer ``{"value": [2, 3]}`` into
    ``[2, 3]``. A function receives the text.

    In a chat, only the final answer is parsed. If the text cannot be parsed or the response calls tools, the stream
    ends with ``ValidationError("invalid_output")``. The error's metadata holds the text, the finish reason and the
    usage. A stream that fails ends with its own error.

    Raises ``ValidationError("invalid_option")`` if `type` is invalid.
    """
    if type is ...:
        raise TypeError(f"parsed() needs a type; write {advice('arguments', 'parsed')}")
    read = text_parser("type", type)
    return fold_events("parsed", lambda state: parsed_value(final_answer(state), read))


def scan_collect(thread: Thread | None = None) -> Callable[[Observable[Event]], Stream[StreamCollector]]:
    """Emit the state of the fold after each event.

    ::

        source             --H-----i-----end--|
        scan_collect()     --"H"---"Hi"--"Hi"-|        (current_text)

    >>> from rxllm import Fake, stream_generate
    >>> states = stream_generate(Fake(["H", "i"]), "Hello").pipe(scan_collect())
    >>> [state.current_text for state in states]
    ['', 'H', 'Hi', 'Hi', 'Hi']

    States are immutable and cheap to keep.

    Raises ``ValidationError("invalid_option")`` unless `thread` is a Thread or None.
    """
    check_instance("thread", thread, Thread | None, "a Thread")

    def apply(state: StreamCollector, event: Event) -> StreamCollector:
        if type(event) not in EVENTS:
            raise not_an_event("scan_collect", event)
        return state.apply_event(event)

    return lambda source: Stream.of(source.scan(apply, StreamCollector(thread)))


def final_answer(state: StreamCollector) -> Response[Any]:
    result = state.summary.unparsed or state.chat_result
    if result is None:
        return state.to_response().raise_for_error()
    return result.raise_for_error().final_response or Response()


def parsed_value(response: Response[Any], read: Read) -> Any:
    """Return the answer as parsed by `read`.

    Raises ``ValidationError("invalid_output")`` if the text cannot be parsed or the response calls tools.
    """
    if response.tool_calls:
        metadata = {"text": response.output_text, "finish_reason": response.finish_reason, "usage": response.usage}
        raise ValidationError("invalid_output", "the response calls tools instead of answering", metadata=metadata)
    return with_parsed(response, read).parsed


def answer_parser(parse: Parse) -> Read | None:
    match parse:
        case None | "text" | {"type": "text"}:
            return None
        case _:
            return text_parser("parse", parse)


def text_parser(name: str, target: Any, *, is_element: bool = False) -> Read:
    """Return a function that parses text as `target`.

    If `target` is itself a function, it is returned unchanged. If `target` is None, any JSON is accepted. If
    `is_element` is True, the text is one element of an array. The returned function raises
    ``ValidationError("invalid_output")`` for text that it cannot parse.

    Raises ``ValidationError("invalid_option")`` if `target` is invalid. `name` is the name of the option in the error.
    """
    if not is_type(target) and callable(target):
        return target
    hint = Any if target is None else target
    try:
        parser = decoder(hint) if is_element and is_type(hint) else reader(hint)
    except Exception as error:  # for example, a NameError from an unresolvable type hint
        raise invalid_option(name, f"{must_be('a type that JSON can be parsed into', target)}: {error}") from error
    if not callable(parser):
        raise invalid_option(
            name, must_be("a function, a response_format or a type that JSON can be parsed into", target)
        )
    return parser


def parse_json(text: str) -> Any:
    """Return the JSON value in `text`.

    Raises ``ValidationError("invalid_output")`` if the text is not JSON.
    """
    try:
        return decode_json(unfenced(text))
    except Exception as error:  # for a lone surrogate, the error is not a DecodeError
        raise invalid_output(f"the answer is not JSON: {error}", text) from error


def invalid_output(why: str, text: str, **metadata: Any) -> ValidationError:
    return ValidationError("invalid_output", why, metadata={"text": text, **metadata})

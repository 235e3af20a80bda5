"""Fold the events of a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.collector import StreamCollector, with_partial_step
from rxllm.collector.parsed import chat_with_parsed
from rxllm.events import Event
from rxllm.operators._shared.event_operators import fold_events
from rxllm.operators._shared.parse_answer import Parse, answer_parser
from rxllm.runtime import Stream
from rxllm.values import ChatResult
from rxllm.values.argument_checks import check_instance
from rxllm.values.sessions import Input, as_thread

T = TypeVar("T")


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
    """Fold the stream to its `ChatResult`.

    ::

        source               --..--step--..--step--chat--|
        to_chat_result()     ----------------------------(ChatResult)|

    >>> from rxllm import Fake, stream
    >>> stream(Fake("Hi"), "Hello").pipe(to_chat_result()).run()
    ChatResult('Hi', completed, 1 steps, 0 tokens)

    A stream that ends without ``ChatCompleted`` becomes a ``cancelled`` result, or an ``error`` after an
    ``ErrorEvent``. Its thread is the `thread` that the chat began with, in any form that ``rxllm.chat`` takes, and all
    completed steps; without `thread` it has these alone. `parse` is as in `to_response` and parses the final response
    of a completed chat. Text that does not fit does not end the stream, because the chat's tools have run: the result
    has the `halted_reason` ``"error"`` and the ``ValidationError("invalid_output")`` as its `error`.

    With `keep_partial` the thread of a chat that is cut off also has the text of its unfinished step, and the tool
    calls with their results, as that of `to_session` has: the user can go on from there.

    >>> from reactivex import operators as rx
    >>> from rxllm import Thread
    >>> story, begin = Fake(["Once ", "upon ", "a time"]), Thread().add_user("A story!")
    >>> stopped = stream(story, begin).pipe(rx.take(3), to_chat_result(begin, keep_partial=True)).run()
    >>> stopped.thread.last
    Message('assistant', 'Once upon ')

    Raises ``ValidationError("invalid_option")`` for a wrong `parse` or `keep_partial`, and ``"invalid_thread"`` for a
    `thread` that is not a conversation.
    """
    thread = None if thread is None else as_thread(thread)
    check_instance("keep_partial", keep_partial, bool, "True or False")
    read = answer_parser(parse)

    def project(state: StreamCollector) -> ChatResult[Any]:
        result = state.to_chat_result()
        result = with_partial_step(state, result) if keep_partial else result
        return result if read is None else chat_with_parsed(result, read)

    return fold_events("to_chat_result", project, thread)

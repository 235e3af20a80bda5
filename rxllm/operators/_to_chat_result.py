"""Fold the events of a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._shared.event_operators import fold_events
from rxllm.operators._shared.parse_answer import Parse, answer_parser, chat_with_parsed
from rxllm.runtime import Stream
from rxllm.values import ChatResult, Thread
from rxllm.values.argument_checks import check_instance

T = TypeVar("T")


@overload
def to_chat_result(
    thread: Thread | None = None, *, parse: Callable[[str], T] | type[T]
) -> Callable[[Observable[Event]], Stream[ChatResult[T]]]: ...
@overload
def to_chat_result(
    thread: Thread | None = None, *, parse: str | Mapping[str, Any] | UnionType | None = None
) -> Callable[[Observable[Event]], Stream[ChatResult]]: ...
def to_chat_result(
    thread: Thread | None = None, *, parse: Parse = None
) -> Callable[[Observable[Event]], Stream[ChatResult[Any]]]:
    """Fold the stream to its `ChatResult`.

    ::

        source               --..--step--..--step--chat--|
        to_chat_result()     ----------------------------(ChatResult)|

    >>> from rxllm import Fake, stream
    >>> stream(Fake("Hi"), "Hello").pipe(to_chat_result()).run()
    ChatResult('Hi', completed, 1 steps, 0 tokens)

    A stream that ends without ``ChatCompleted`` becomes a ``cancelled`` result, or an ``error`` after an ``ErrorEvent``.
    Its thread is the `thread` that the chat began with, and all completed steps; without `thread` it has these alone.
    `parse` is as in `to_response` and parses the final response of a completed chat. Text that does not fit does not
    end the stream, because the chat's tools have run: the result has the `halted_reason` ``"error"`` and the
    ``ValidationError("invalid_output")`` as its `error`.

    Raises ``ValidationError("invalid_option")`` for a wrong `thread` or `parse`.
    """
    check_instance("thread", thread, Thread | None, "a Thread")
    read = answer_parser(parse)
    if read is None:
        return fold_events("to_chat_result", StreamCollector.to_chat_result, thread)
    return fold_events("to_chat_result", lambda state: chat_with_parsed(state.to_chat_result(), read), thread)

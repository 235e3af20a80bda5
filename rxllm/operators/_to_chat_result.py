"""A chat's result from its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._fold import fold
from rxllm.operators._parsing import parsed_chat
from rxllm.runtime import Stream
from rxllm.values import ChatResult, ResponseFormat, Thread, reader

T = TypeVar("T")


@overload
def to_chat_result(
    thread: Thread | None = None, *, parse: Callable[[str], T] | type[T]
) -> Callable[[Observable[Event]], Stream[ChatResult[T]]]: ...
@overload
def to_chat_result(
    thread: Thread | None = None, *, parse: str | Mapping[str, Any] | None = None
) -> Callable[[Observable[Event]], Stream[ChatResult]]: ...
def to_chat_result(
    thread: Thread | None = None, *, parse: Callable[[str], Any] | ResponseFormat | None = None
) -> Callable[[Observable[Event]], Stream[ChatResult[Any]]]:
    """Fold the stream to its `ChatResult`. A stream without ``ChatCompleted`` was ``cancelled`` and needs its `thread`.

    ::

        source               --..--step--..--step--chat--|
        to_chat_result()     ----------------------------(ChatResult)|

    >>> from rxllm import Fake, stream
    >>> stream(Fake("Hi"), "Hello").pipe(to_chat_result()).run()
    ChatResult('Hi', completed, 1 steps, 0 tokens)

    `parse` is as in `to_response`, and reads the final response of a chat that was completed. A text that does not fit
    is a result too, for its tools have run: `halted_reason` is ``"error"``, `error` the
    ``ValidationError("invalid_output")``.
    """
    read = reader(parse)
    if read is None:
        return fold(StreamCollector.to_chat_result, thread)
    return fold(lambda state: parsed_chat(state.to_chat_result(), read), thread)

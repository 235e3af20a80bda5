"""A chat's result from its events."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._fold import fold
from rxllm.runtime import Stream
from rxllm.values import ChatResult, Thread


def to_chat_result(thread: Thread | None = None) -> Callable[[Observable[Event]], Stream[ChatResult]]:
    """Fold the stream to its `ChatResult`. A stream without ``ChatCompleted`` was ``cancelled`` and needs its `thread`.

    ::

        source               --..--step--..--step--chat--|
        to_chat_result()     ----------------------------(ChatResult)|

    >>> from rxllm import Fake, stream
    >>> stream(Fake("Hi"), "Hello").pipe(to_chat_result()).run()
    ChatResult('Hi', completed, 1 steps, 0 tokens)
    """
    return fold(StreamCollector.to_chat_result, thread)

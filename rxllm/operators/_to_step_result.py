"""One step's result from its events."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._fold import fold
from rxllm.runtime import Stream
from rxllm.values import StepResult, Thread


def to_step_result(thread: Thread | None = None) -> Callable[[Observable[Event]], Stream[StepResult]]:
    """Fold the stream to its last step's `StepResult`; one without ``StepCompleted`` needs the `thread` it began with.

    ::

        source               --start--..--end--tool--step--|
        to_step_result()     ------------------------------(StepResult)|

    >>> from rxllm import Fake, stream_step
    >>> stream_step(Fake("Hi"), "Hello").pipe(to_step_result()).run().done
    True
    """
    return fold(StreamCollector.to_step_result, thread)

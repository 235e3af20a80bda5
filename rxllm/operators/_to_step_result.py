"""Fold the events of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.collector.parsed import step_with_parsed
from rxllm.events import Event
from rxllm.operators._shared.event_operators import fold_events
from rxllm.operators._shared.parse_answer import Parse, answer_parser
from rxllm.runtime import Stream
from rxllm.values import StepResult, Thread
from rxllm.values.argument_checks import check_instance

T = TypeVar("T")


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
    """Fold the stream to the `StepResult` of its last step.

    ::

        source               --start--..--end--tool--step--|
        to_step_result()     ------------------------------(StepResult)|

    >>> from rxllm import Fake, stream_step
    >>> stream_step(Fake("Hi"), "Hello").pipe(to_step_result()).run().done
    True

    A stream that ends without ``StepCompleted`` is added to `thread`, the one that the step began with. `parse` is as
    in `to_response`, but text that does not fit is a result, whose response has the
    ``ValidationError("invalid_output")`` as its `error`.

    Raises ``ValidationError("invalid_option")`` for a wrong `thread` or `parse`.
    """
    check_instance("thread", thread, Thread | None, "a Thread")
    read = answer_parser(parse)
    if read is None:
        return fold_events("to_step_result", StreamCollector.to_step_result, thread)
    return fold_events("to_step_result", lambda state: step_with_parsed(state.to_step_result(), read), thread)

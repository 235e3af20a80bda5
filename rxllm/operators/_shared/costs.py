"""Add costs to the usage in a stream of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted, RawChunk, StepRestarted, UsageUpdated
from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream
from rxllm.values import Usage

Cost = Callable[[Usage, str | None, Mapping[str, Any]], Usage]
"""Takes a response's usage, the provider's name for the model and the end's metadata; returns the usage with costs."""

_NO_METADATA: Mapping[str, Any] = {}

_READ = frozenset({MessageStarted, UsageUpdated, RawChunk, StepRestarted, MessageCompleted, ErrorEvent})


def fill_costs(cost: Cost) -> Callable[[Observable[Event]], Stream[Event]]:
    """Before a response's last event, emit its last usage once more with costs, if `cost` finds any.

    ::

        source         --start--usage--usage--end--|
        fill_costs     --start--usage--usage--(usage end)|
    """

    def make_handler(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        usage: Usage | None = None
        model: str | None = None

        def handle(event: Event) -> None:
            nonlocal usage, model
            if type(event) not in _READ:
                on_next(event)
                return
            match event:
                case MessageStarted(message=message):
                    model = message.metadata.get("model")
                case UsageUpdated():
                    usage = event.usage
                case RawChunk(kind="usage", data=Mapping()):
                    usage = raw_usage(event.data) or usage
                case StepRestarted():
                    usage = None
                case MessageCompleted() | ErrorEvent() if usage is not None:
                    metadata = event.metadata if isinstance(event, MessageCompleted) else _NO_METADATA
                    stated, usage = usage, None  # the next response has its own
                    try:
                        filled = cost(stated, model, metadata)
                    except Exception as error:
                        on_error(error)
                        return
                    if filled != stated:
                        on_next(UsageUpdated(filled))
                case _:
                    pass
            on_next(event)

        return handle

    return handle_each(make_handler)


def raw_usage(data: Any) -> Usage | None:
    """Return the usage in the data of a ``RawChunk("usage")``; None unless its keys are fields of `Usage`."""
    try:
        return Usage(**cast(Mapping[str, Any], data))
    except TypeError:  # unknown names: the fold raises a better error
        return None

"""Costs where the provider stated none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted, RawChunk, StepRestarted, UsageUpdated
from rxllm.operators._shared.each import each
from rxllm.runtime import Stream
from rxllm.values import Usage

Cost = Callable[[Usage, str | None, Mapping[str, Any]], Usage]
"""A response's usage, the model as the provider names it, and what the end's metadata say, to the usage with costs."""

_NOTHING: Mapping[str, Any] = {}

_READ = frozenset({MessageStarted, UsageUpdated, RawChunk, StepRestarted, MessageCompleted, ErrorEvent})


def costs_filled(cost: Cost) -> Callable[[Observable[Event]], Stream[Event]]:
    """Before a response's last event, one more ``UsageUpdated``: its last usage with costs, if `cost` finds any.

    ::

        source           --start--usage--usage--end--|
        costs_filled     --start--usage--usage--(usage end)|
    """

    def priced(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        spent: Usage | None = None
        model: str | None = None

        def see(event: Event) -> None:
            nonlocal spent, model
            if type(event) not in _READ:
                on_next(event)
                return
            match event:
                case MessageStarted(message=message):
                    model = message.metadata.get("model")
                case UsageUpdated(usage=usage):
                    spent = usage
                case RawChunk(kind="usage", data=Mapping()):
                    spent = raw_usage(event.data) or spent
                case StepRestarted():
                    spent = None
                case MessageCompleted() | ErrorEvent() if spent is not None:
                    about = event.metadata if isinstance(event, MessageCompleted) else _NOTHING
                    said, spent = spent, None  # the next response's is its own
                    try:
                        filled = cost(said, model, about)
                    except Exception as error:
                        on_error(error)
                        return
                    if filled != said:
                        on_next(UsageUpdated(filled))
                case _:
                    pass
            on_next(event)

        return see

    return each(priced)


def raw_usage(counted: Any) -> Usage | None:
    """What a ``RawChunk("usage")`` says, if it says it in the names of `Usage`."""
    try:
        return Usage(**cast(Mapping[str, Any], counted))
    except TypeError:  # unknown names, of which the fold says more
        return None

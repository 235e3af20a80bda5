"""What the operators that take something out of the events have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from reactivex import Observable, abc

from rxllm.collector import BlockKey, block_key
from rxllm.events import (
    ErrorEvent,
    Event,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
)
from rxllm.operators._shared.each import each
from rxllm.operators._shared.only_events import EVENTS, no_event
from rxllm.runtime import Stream

R = TypeVar("R")


def pick(
    name: str, make: Callable[[], Callable[[Event], Iterable[R]]], *types: type[Event]
) -> Callable[[Observable[Event]], Stream[R]]:
    """Emit what a fresh ``make()`` finds in each event of these types; an ``ErrorEvent`` becomes ``on_error``.

    The error for an item that is no event speaks of the operator `name`.
    """
    wanted = frozenset((*types, ErrorEvent))  # most events are none of them

    def picked(on_next: abc.OnNext[R], on_error: abc.OnError) -> abc.OnNext[Event]:
        find = make()

        def see(event: Event) -> None:
            if type(event) not in wanted:
                if type(event) not in EVENTS:
                    on_error(no_event(name, event))
                return
            if isinstance(event, ErrorEvent):
                on_error(event.error)
                return
            try:
                found = find(event)
            except Exception as error:  # a raw usage with unknown keys
                on_error(error)
                return
            for item in found:
                on_next(item)

        return see

    return each(picked)


class Pieces:
    """The strings of the blocks of one kind: their deltas, or what was completed where those were left out."""

    def __init__(
        self, delta: type[TextDelta | ThinkingDelta], completed: type[TextCompleted | ThinkingCompleted]
    ) -> None:
        self._delta = delta
        self._completed = completed
        self._open: dict[BlockKey, None] = {}  # in their order

    def __call__(self, event: Event) -> Iterable[str]:
        if isinstance(event, self._delta):
            self._open.setdefault(block_key(self._delta, event.id, self._open))
            return (event.delta,)
        if isinstance(event, self._completed):
            block = block_key(self._delta, event.id, self._open)
            if block not in self._open:
                return (event.text,) if event.text else ()
            del self._open[block]
        elif isinstance(event, StepRestarted):
            self._open.clear()
        return ()

"""Make an operator from what a subscription to it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc

from rxllm.runtime import Stream
from rxllm.runtime.stream_arguments import check_source

T = TypeVar("T")
R = TypeVar("R")

Start = Callable[[Observable[T], abc.ObserverBase[R], abc.SchedulerBase | None], abc.DisposableBase]


def operate(start: Start[T, R]) -> Callable[[Observable[T]], Stream[R]]:
    """Return an operator that calls ``start(source, observer, scheduler)`` for each subscription."""

    def operator(source: Observable[T]) -> Stream[R]:
        check_source(source, "the operator")

        def subscribe(observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            return start(source, observer, scheduler)

        return Stream(subscribe)

    return operator


def shared(operator: Callable[[Observable[T]], Stream[R]]) -> Callable[[Observable[T]], Stream[R]]:
    """Mark an operator whose calls share what cannot be copied: ``rxllm.cluster`` keeps it with the caller."""
    vars(operator)["is_shared"] = True
    return operator

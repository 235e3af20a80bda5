"""Aligned marbles on reactivex's TestScheduler.

A character is one tick: ``-`` nothing, ``|`` the end, ``X`` the error called X, ``(ab|)`` all at the tick of the
bracket, anything else the value of that name, or the letter itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reactivex import Observable, abc
from reactivex.testing import ReactiveTest, TestScheduler

START = int(ReactiveTest.subscribed)

Operator = Callable[[Observable[Any]], Observable[Any]]
Note = tuple[int, str, Any]


def parse(marbles: str, values: Mapping[str, Any]) -> Iterator[Note]:
    """The notifications of `marbles`: tick, ``"next"``, ``"error"`` or ``"end"``, and what."""
    group: int | None = None
    for tick, symbol in enumerate(marbles):
        at = tick if group is None else group
        match symbol:
            case "-" | " ":
                pass
            case "(":
                group = tick
            case ")":
                group = None
            case "|":
                yield at, "end", None
            case "X":
                yield at, "error", values["X"]
            case _:
                yield at, "next", values.get(symbol, symbol)


def cold(scheduler: TestScheduler, marbles: str, values: Mapping[str, Any]) -> Any:
    """A cold Observable that plays `marbles`; its `subscriptions` tell when it was used."""
    makers = {"next": ReactiveTest.on_next, "error": ReactiveTest.on_error}
    notes = [
        makers[kind](tick, what) if kind in makers else ReactiveTest.on_completed(tick)
        for tick, kind, what in parse(marbles, values)
    ]
    return scheduler.create_cold_observable(notes)


def record(scheduler: TestScheduler, make: Callable[[], Observable[Any]], disposed: int | None = None) -> list[Note]:
    """What ``make()`` says when it is subscribed, in ticks from then."""
    told = scheduler.start(make, disposed=None if disposed is None else START + disposed)
    return [(int(each.time) - START, *_read(each.value)) for each in told.messages]


def check(
    operator: Operator, source: str, subscribed: str, expected: str, /, *, resubscribe: bool = True, **values: Any
) -> None:
    """Check that `operator` makes `expected` out of `source`, which is used for the time of `subscribed`: ``^---!``.

    A ``!`` before the source's end is the subscriber's dispose. A second subscription must see the same.
    """
    unsubscribed = subscribed.index("!")
    disposed = unsubscribed if not any(end in expected for end in "|X") else None
    for _ in range(2 if resubscribe else 1):  # the operator itself has no state
        scheduler = TestScheduler()
        played = cold(scheduler, source, values)
        told = record(scheduler, lambda played=played: played.pipe(operator), disposed)
        assert told == list(parse(expected, values))
        assert played.subscriptions == [ReactiveTest.subscribe(START, START + unsubscribed)]


class Spy(Observable[Any]):
    """A source that remembers the scheduler that it was subscribed with."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: abc.SchedulerBase | None = None

    def _subscribe_core(
        self, observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        self.scheduler = scheduler
        observer.on_completed()
        return _Nothing()


class _Nothing(abc.DisposableBase):
    def dispose(self) -> None:
        pass


def _read(note: Any) -> tuple[str, Any]:
    match note.kind:
        case "N":
            return "next", note.value
        case "E":
            return "error", note.exception
        case _:
            return "end", None

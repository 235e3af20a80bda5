"""Aligned marbles on reactivex's TestScheduler: timed streams that one can see, in no time at all.

>>> from rxllm import TextDelta, ThinkingDelta, operators as ops
>>> check(
...     ops.only(TextDelta),
...     "-d-t-d-|",      # the source
...     "^------!",      # from when to when it is used
...     "-d---d-|",      # what the operator makes of it
...     d=TextDelta("Hi"), t=ThinkingDelta("hm"),
... )

A character is one tick, a second of the scheduler:

=========  ==================================================================
``-``      nothing; a space too
``a``      the value of that name, or where there is none the letter itself
``|``      the end
``X``      the error called X
``(ab|)``  all that is in the brackets, at the tick of the first one
=========  ==================================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from reactivex import Observable, abc
from reactivex.testing import ReactiveTest, TestScheduler

__all__ = ["START", "Note", "Operator", "Spy", "check", "cold", "parse", "record"]

START = int(ReactiveTest.subscribed)
"""When `record` and `check` subscribe, on the scheduler's own clock: tick 0 of the marbles."""

Operator = Callable[[Observable[Any]], Observable[Any]]
Note = tuple[int, str, Any]


def parse(marbles: str, values: Mapping[str, Any]) -> Iterator[Note]:
    """The notifications of `marbles`: tick, ``"next"``, ``"error"`` or ``"end"``, and what.

    >>> list(parse("-a-(b|)", {"a": 1}))
    [(1, 'next', 1), (3, 'next', 'b'), (3, 'end', None)]

    Raises ``ValueError`` for a diagram that cannot be: brackets without their other half, or inside one another,
    something after the end, an X that is no exception.
    """
    group: int | None = None
    ended = False
    for tick, symbol in enumerate(marbles):
        at = tick if group is None else group
        match symbol:
            case "-" | " ":
                continue
            case "(" if group is None:
                group = tick
                continue
            case ")" if group is not None:
                group = None
                continue
            case "(" | ")":
                raise _malformed(marbles, tick, "brackets stand in pairs, and not inside one another")
            case _ if ended:
                raise _malformed(marbles, tick, "something comes after the end")
            case "|":
                yield at, "end", None
            case "X" if isinstance(values.get("X"), Exception):
                yield at, "error", values["X"]
            case "X":
                raise _malformed(marbles, tick, "X is an error: say which, as X=ValueError(...)")
            case _:
                yield at, "next", values.get(symbol, symbol)
        ended = symbol in "|X"
    if group is not None:
        raise _malformed(marbles, group, "this bracket is never closed")


def cold(scheduler: TestScheduler, marbles: str, values: Mapping[str, Any]) -> Any:
    """A cold Observable that plays `marbles`; its `subscriptions` tell when it was used."""
    makers = {"next": ReactiveTest.on_next, "error": ReactiveTest.on_error}
    notes = [
        makers[kind](tick, what) if kind in makers else ReactiveTest.on_completed(tick)
        for tick, kind, what in parse(marbles, values)
    ]
    return scheduler.create_cold_observable(notes)


def record(scheduler: TestScheduler, make: Callable[[], Observable[Any]], disposed: int | None = None) -> list[Note]:
    """What ``make()`` says when it is subscribed, in ticks from then, until it is `disposed` of.

    >>> from rxllm import Fake, generate
    >>> slow = generate(Fake([("delay", 5), "Hi"]), "Hello")
    >>> record(TestScheduler(), lambda: slow)
    [(5, 'next', Response('Hi', stop, 0 tokens)), (5, 'end', None)]
    """
    told = scheduler.start(make, disposed=None if disposed is None else START + disposed)
    return [(int(each.time) - START, *_read(each.value)) for each in told.messages]


def check(
    operator: Operator, source: str, subscribed: str, expected: str, /, *, resubscribe: bool = True, **values: Any
) -> None:
    """Check that `operator` makes `expected` out of `source`, which is used for the time of `subscribed`: ``^---!``.

    A ``!`` before the source's end is the subscriber's dispose. A second subscription must see the same.

    Raises ``AssertionError``, ``ValueError`` for a diagram that cannot be, and ``TypeError`` for what is no operator.
    """
    unsubscribed = _unsubscribed(subscribed)
    wanted = list(parse(expected, values))
    disposed = unsubscribed if not any(end in expected for end in "|X") else None
    for time in ("first", "second")[: 2 if resubscribe else 1]:  # the operator itself has no state
        scheduler = TestScheduler()
        played = cold(scheduler, source, values)
        told = record(scheduler, lambda played=played: _applied(operator, played), disposed)
        if told != wanted:
            raise AssertionError(f"the {time} time it says\n  {told}\nwhere {expected!r} is\n  {wanted}")
        used = [(int(each.subscribe) - START, int(each.unsubscribe) - START) for each in played.subscriptions]
        if used != [(0, unsubscribed)]:
            raise AssertionError(f"the {time} time the source is used {used}, where {subscribed!r} is one use")


def _applied(operator: Any, source: Any) -> Observable[Any]:
    if not callable(operator):
        raise TypeError(f"{operator!r} is no operator, which is a function of the source")
    name = getattr(operator, "__name__", repr(operator))
    made = source.pipe(operator) if _takes_a_source(operator) else operator
    if isinstance(made, Observable):
        return cast(Observable[Any], made)
    if callable(made):
        raise TypeError(f"{name} makes an operator and is none: write {name}() with its brackets")
    raise TypeError(f"{name} gave {made!r}, where an operator gives an Observable")


def _takes_a_source(operator: Callable[..., Any]) -> bool:
    try:
        inspect.signature(operator).bind(None)
    except TypeError:
        return False
    except ValueError:  # it does not say what it takes
        pass
    return True


def _unsubscribed(subscribed: str) -> int:
    if subscribed.strip() != "^" + "-" * (len(subscribed.strip()) - 2) + "!" or subscribed[0] != "^":
        raise ValueError(f"{subscribed!r} says when the source is used: '^' at tick 0, then '-', then '!' at its end")
    return subscribed.index("!")


def _malformed(marbles: str, tick: int, what: str) -> ValueError:
    return ValueError(f"{marbles!r} at {tick}: {what}")


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


def __dir__() -> list[str]:
    return __all__

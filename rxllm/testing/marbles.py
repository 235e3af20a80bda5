"""Test operators with marble diagrams.

>>> from rxllm import TextDelta, ThinkingDelta, operators as ops
>>> check(
...     ops.only(TextDelta),
...     "-d-t-d-|",      # the source
...     "^------!",      # when the source is subscribed, and until when
...     "-d---d-|",      # what the operator emits
...     d=TextDelta("Hi"), t=ThinkingDelta("hm"),
... )

A diagram is a timed stream, drawn as text. Each character is one tick, which is one second on the scheduler's clock:

=========  ============================================================================
``-``      Nothing happens. A space means the same.
``a``      Emits the value named ``a``, or the letter itself if there is no such value.
``|``      The stream completes.
``X``      The stream fails with the exception named ``X``. ``#`` means the same.
``(ab|)``  Everything inside the brackets happens at the tick of the opening bracket.
=========  ============================================================================

``X`` may also be a class of exceptions, such as ``X=ValueError``. The source then raises one without arguments. In the
expected diagram, the class stands for any of its instances:

>>> from reactivex import operators as rx
>>> check(rx.map(int), "-a-b-|", "^--!", "-1-X", a="1", b="no number", X=ValueError, **{"1": 1})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from reactivex import Observable, abc
from reactivex.disposable import Disposable
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm.values.argument_checks import call_fault

__all__ = ["START", "Note", "Operator", "Spy", "check", "cold", "parse", "record"]

START = int(ReactiveTest.subscribed)
"""The time on the scheduler's clock at which a diagram begins."""

Operator = Callable[[Observable[Any]], Observable[Any]]
Note = tuple[int, str, Any]

ENDS = "|X#"
"""The characters that end a stream."""


def parse(marbles: str, values: Mapping[str, Any]) -> Iterator[Note]:
    """Yield each notification as a tick, a kind, and a value.

    >>> list(parse("-a-(b|)", {"a": 1}))
    [(1, 'next', 1), (3, 'next', 'b'), (3, 'end', None)]

    Raises ``ValueError`` for unpaired or nested brackets, a notification after the end, or an X that is neither an
    exception nor a class of exceptions.
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
                raise _malformed(marbles, tick, "brackets must be in pairs, and cannot be nested")
            case _ if ended:
                raise _malformed(marbles, tick, "no notification can follow the end")
            case "|":
                yield at, "end", None
            case "X" | "#" if isinstance(values.get("X"), Exception) or _is_class(values.get("X")):
                yield at, "error", values["X"]
            case "X" | "#":
                fault = f"{symbol} is the stream's error: pass it, as in X=ValueError(...) or X=ValueError"
                raise _malformed(marbles, tick, fault)
            case _:
                yield at, "next", values.get(symbol, symbol)
        ended = symbol in ENDS
    if group is not None:
        raise _malformed(marbles, group, "this bracket is not closed")


def cold(scheduler: TestScheduler, marbles: str, values: Mapping[str, Any]) -> Any:
    """Return a cold Observable that plays `marbles`.

    The Observable records when each of its `subscriptions` began and ended.
    """
    notes: list[Any] = []
    for tick, kind, value in parse(marbles, values):
        match kind:
            case "next":
                notes.append(ReactiveTest.on_next(tick, value))
            case "error":
                notes.append(ReactiveTest.on_error(tick, _raised(value)))
            case _:
                notes.append(ReactiveTest.on_completed(tick))
    return scheduler.create_cold_observable(notes)


def record(scheduler: TestScheduler, make: Callable[[], Observable[Any]], disposed: int | None = None) -> list[Note]:
    """Subscribe to ``make()`` and return its notifications.

    Times are in ticks since the subscription. If `disposed` is given, the subscription is disposed at that tick.

    >>> from rxllm import Fake, generate
    >>> slow = generate(Fake([("delay", 5), "Hi"]), "Hello")
    >>> record(TestScheduler(), lambda: slow)
    [(5, 'next', Response('Hi', stop, 0 tokens)), (5, 'end', None)]
    """
    observer = scheduler.start(make, disposed=None if disposed is None else START + disposed)
    return [(int(message.time) - START, *_read(message.value)) for message in observer.messages]


def check(
    operator: Operator, source: str, subscribed: str, expected: str, /, *, resubscribe: bool = True, **values: Any
) -> None:
    """Check that `operator` turns `source` into `expected`.

    `subscribed` is a diagram like ``^---!``. The operator must unsubscribe from `source` at the ``!``. If `expected`
    has no end, the check itself unsubscribes at the ``!``. By default, a second subscription must give the same result.
    Two exceptions are the same if their types and arguments are.

    Raises ``AssertionError`` if the check fails. Raises ``ValueError`` if a diagram is malformed, and ``TypeError`` if
    `operator` is not an operator.
    """
    unsubscribed = _unsubscribed(subscribed)
    wanted = list(parse(expected, values))
    disposed = unsubscribed if not any(end in expected for end in ENDS) else None
    for time in ("first", "second")[: 2 if resubscribe else 1]:  # the first subscription must leave no state behind
        scheduler = TestScheduler()
        played = cold(scheduler, source, values)
        notes = record(scheduler, lambda played=played: _applied(operator, played), disposed)
        if len(notes) != len(wanted) or not all(map(_matches, notes, wanted)):
            raise AssertionError(f"{time} subscription: it emitted\n  {notes}\nbut {expected!r} means\n  {wanted}")
        uses = [(int(use.subscribe) - START, int(use.unsubscribe) - START) for use in played.subscriptions]
        if uses != [(0, unsubscribed)]:
            raise AssertionError(f"{time} subscription: the source was subscribed to at {uses}, not {subscribed!r}")


def comparable(value: Any) -> Any:
    """Return a copy of `value` in which exceptions without an ``__eq__`` are replaced by their types and arguments."""
    if isinstance(value, BaseException) and type(value).__eq__ is object.__eq__:
        return type(value), comparable(value.args)
    if isinstance(value, tuple | list):
        return type(cast(Any, value)), [comparable(item) for item in cast(list[Any], value)]
    return value


def _matches(note: Note, wanted: Note) -> bool:
    if wanted[1] == "error" and _is_class(wanted[2]):
        return note[:2] == wanted[:2] and isinstance(note[2], wanted[2])
    return comparable(note) == comparable(wanted)


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _raised(error: Any) -> Exception:
    if not _is_class(error):
        return error
    if fault := call_fault(error):
        raise ValueError(f"the source cannot raise {error.__name__}: {fault}; pass X={error.__name__}(...)")
    return error()


def _applied(operator: Any, source: Any) -> Observable[Any]:
    if not callable(operator):
        raise TypeError(f"{operator!r} is not an operator; an operator is a function that takes the source")
    name = getattr(operator, "__name__", repr(operator))
    result = source.pipe(operator) if call_fault(operator, source) is None else operator
    if isinstance(result, Observable):
        return cast(Observable[Any], result)
    if callable(result):
        raise TypeError(f"{name} is not an operator, but it returns one: write {name}() with parentheses")
    raise TypeError(f"{name} returned {result!r}, but an operator must return an Observable")


def _unsubscribed(subscribed: str) -> int:
    if subscribed.strip() != "^" + "-" * (len(subscribed.strip()) - 2) + "!" or subscribed[0] != "^":
        raise ValueError(f"{subscribed!r} is not a subscription: write '^' at tick 0, then '-', then '!' at the end")
    return subscribed.index("!")


def _malformed(marbles: str, tick: int, fault: str) -> ValueError:
    return ValueError(f"{marbles!r} at {tick}: {fault}")


class Spy(Observable[Any]):
    """A source that completes at once and remembers the scheduler that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: abc.SchedulerBase | None = None

    def _subscribe_core(
        self, observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        self.scheduler = scheduler
        observer.on_completed()
        return Disposable()


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

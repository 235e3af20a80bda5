"""The rules of the operators' suite.

A rule is a function of the operator's maker and the items of a source; it raises `AssertionError`, whose text says how
it is broken. `OPERATOR_RULES` says what each of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from reactivex import Subject
from reactivex import operators as rx

from rxllm.testing._events import events
from rxllm.testing._operator_events import error_event
from rxllm.testing._rule_table import clip, expect, expect_same
from rxllm.testing._virtual_time import EVERY, LIMIT, Clock, Make, Source, Trial, tried
from rxllm.values import LLMError, StreamError, Usage

ITEMS: list[Any] = events("Hel", "lo", thinking="hm", usage=Usage(3, 2))
"""What the source says if nothing else is given."""


def _cold(make: Make, items: list[Any]) -> None:
    clock = Clock()
    source = Source(items, clock=clock)
    source.pipe(make())
    clock.advance_to(float(len(items) * EVERY))
    expect(not source.uses, "its source was subscribed")


def _once(make: Make, items: list[Any]) -> None:
    _, source = tried(make, items)
    expect(len(source.uses) == 1, f"there were {len(source.uses)} subscriptions")


def _scheduler(make: Make, items: list[Any]) -> None:
    clock = Clock()
    source = Source(items, clock=clock)
    Trial(source.pipe(make()), clock).run()
    for given in source.schedulers:
        expect(given is clock, f"the source was given {given!r}")


def _ends(make: Make, items: list[Any]) -> None:
    for error in (None, RuntimeError("the source's own")):
        trial, _ = tried(make, items, error)
        expect(trial.escaped is None, f"{trial.escaped!r} was raised")
        expect(len(trial.ends) > 0, "it did not end")
        expect(len(trial.ends) == 1, f"it ended {len(trial.ends)} times: {trial.ends}")
        expect(trial.notes[-1] == trial.ends[0], f"after its end it said {trial.notes[-1]}")


def _ends_with_source(make: Make, items: list[Any]) -> None:
    end = (len(items) + 1) * EVERY
    trial, _ = tried(make, items)
    expect(trial.ends == [(end, "end", None)], f"the source ended at {end}, and it said {trial.ends}")


def _errors(make: Make, items: list[Any]) -> None:
    failure = RuntimeError("the source's own")
    for count in range(len(items) + 1):
        trial, source = tried(make, items[:count], failure)
        at = (count + 1) * EVERY
        expect(trial.ends == [(at, "error", failure)], f"after {count} items, at {at}, it said {trial.ends}")
        expect(_released(source, at), f"the source was used {source.uses}, and failed at {at}")


def _disposal(make: Make, items: list[Any]) -> None:
    for tick in range(1, (len(items) + 1) * EVERY, EVERY):
        trial, source = tried(make, items, dispose_at=tick)
        expect(_released(source, tick), f"at {tick} it was disposed, and the source was used {source.uses}")
        expect(not trial.late, f"at {tick} it was disposed, and then it said {trial.late}")


def _dispose_inside(make: Make, items: list[Any]) -> None:
    for number in range(len(tried(make, items)[0].values)):
        trial, source = tried(make, items, on_item=_at(number, lambda trial: trial.dispose()))
        expect(trial.escaped is None, f"it raised {trial.escaped!r}")
        expect(not trial.late, f"it was disposed while it delivered item {number}, and then it said {trial.late}")
        at = trial.notes[number][0]
        expect(_released(source, at), f"it was disposed at {at}, and the source was used {source.uses}")


def _left_over(make: Make, items: list[Any]) -> None:
    for tick in (None, *range(1, (len(items) + 1) * EVERY, EVERY)):
        trial, _ = tried(make, items, dispose_at=tick)
        when = "its end" if tick is None else f"the dispose at {tick}"
        expect(trial.left_over is None, f"after {when} {trial.left_over}")


def _afresh(make: Make, items: list[Any]) -> None:
    clock = Clock()
    piped = Source(items, clock=clock).pipe(make())
    _same("the second subscription", Trial(piped, clock).run().notes, Trial(piped, clock).run().notes)


def _apart(make: Make, items: list[Any]) -> None:
    alone = tried(make, items)[0].notes
    operator, clock = make(), Clock()
    piped = [Source(items, clock=clock).pipe(operator) for _ in range(2)]
    trials = [Trial(each, clock) for each in (piped[0], piped[1], piped[0])]
    for later, trial in enumerate(trials):
        clock.at(later * (EVERY + 1), trial.begin)
    clock.advance_to(float(LIMIT))
    _same("of two sources with one operator, the first", alone, trials[0].notes)
    _same("of two sources with one operator, the second", alone, trials[1].notes)
    _same("the second of two subscriptions at a time", alone, trials[2].notes)


def _at_once(make: Make, items: list[Any]) -> None:
    spread = tried(make, items)[0].values
    trial, source = tried(make, items, at_once=True)
    _same("at once, it", spread, trial.values)
    taken, source = tried(lambda: lambda source: source.pipe(make(), rx.take(1)), items, at_once=True)
    _same("with take(1), it", spread[:1], taken.values)
    expect(_released(source, 0), "take(1) did not release the source")


def _reentrant(make: Make, items: list[Any]) -> None:
    subject, clock, left = Subject[Any](), Clock(), list(items)

    def push(*_: Any) -> None:
        if left:
            subject.on_next(left.pop(0))

    trial = Trial(subject.pipe(make()), clock, push)
    trial.begin()
    while left:
        push()
    subject.on_completed()
    clock.advance_to(float(LIMIT))
    _same("it", tried(make, items, at_once=True)[0].values, trial.values)


def _subscribed_inside(make: Make, items: list[Any]) -> None:
    for at_once in (False, True):
        clock = Clock()
        piped = Source(items, clock=None if at_once else clock).pipe(make())
        inner = Trial(piped, clock)
        outer = Trial(piped, clock, _at(0, lambda trial, inner=inner: inner.begin())).run()
        alone = tried(make, items, at_once=at_once)[0].values
        _same("the outer subscription", alone, outer.values)
        _same("the inner subscription", alone, inner.values)


def _subscriber(make: Make, items: list[Any]) -> None:
    plain = tried(make, items)[0].notes
    for number in range(len([note for note in plain if note[1] == "next"])):
        for error in (RuntimeError("the subscriber's own"), StreamError("cancelled", "the subscriber's own")):
            trial, source = tried(make, items, on_item=_at(number, _raiser(error)))
            at = plain[number][0]
            lost = [*source.unheard, *([trial.escaped] if trial.escaped else [])]
            expect(not lost, f"what was raised at item {number} got lost: {lost}")
            after = trial.notes[number + 1 :]
            told = [(kind, what) for _, kind, what in after] == [("error", error)] and after[0][2] is error
            expect(told, f"{error!r} was raised at item {number}, and then it said {after}")
            expect(_released(source, at), f"item {number} was refused at {at}, the source was used {source.uses}")


def raised(make: Make, items: list[Any]) -> tuple[str, Exception] | None:
    """What the operator has raised though its source did not, and when: it breaks most rules by that alone."""
    moments = {0: "when it was subscribed", (len(items) + 1) * EVERY: "at the source's end"}
    moments |= {(number + 1) * EVERY: f"at item {number}, {clip(item)}" for number, item in enumerate(items)}
    match tried(make, items)[0].ends:
        case [(tick, "error", error), *_]:
            return f"it raised {error!r} {moments.get(tick, f'at {tick}')}", error
        case _:
            return None


RULES: dict[str, Callable[[Make, list[Any]], None]] = {
    "cold": _cold,
    "once": _once,
    "scheduler": _scheduler,
    "ends": _ends,
    "ends_with_source": _ends_with_source,
    "errors": _errors,
    "disposal": _disposal,
    "dispose_inside": _dispose_inside,
    "left_over": _left_over,
    "afresh": _afresh,
    "apart": _apart,
    "at_once": _at_once,
    "reentrant": _reentrant,
    "subscribed_inside": _subscribed_inside,
    "subscriber": _subscriber,
    "error_event": error_event,
}


def _released(source: Source, tick: int) -> bool:
    return all(until is not None and until <= tick for _, until in source.uses)


def _at(number: int, do: Callable[[Trial], object]) -> Callable[[Trial, int], None]:
    def on_item(trial: Trial, at: int) -> None:
        if at == number:
            do(trial)

    return on_item


def _raiser(error: Exception) -> Callable[[Trial], object]:
    def do(trial: Trial) -> object:
        raise error

    return do


def _same(who: str, wanted: Sequence[Any], said: Sequence[Any]) -> None:
    expect_same(who, wanted, said, _comparable)


def _comparable(said: Any) -> Any:
    match said:
        case (tick, "error", Exception() as error) if not isinstance(error, LLMError):  # which compare by themselves
            return tick, type(error), error.args
        case _:
            return said

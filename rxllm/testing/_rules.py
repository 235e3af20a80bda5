"""Helpers for tables of rules, for reports, and for subscriptions with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from typing import Any, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxllm.values.responses import shorten

C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T")

LINES = 15
"""The maximum number of lines in a report."""

WIDTH = 100
"""The maximum number of characters of a value to show in a message."""


@dataclass(frozen=True)
class BrokenRule:
    """A rule that the subject breaks. `error` is what the check raised. `cause` is the subject's own error, if any."""

    name: str
    message: str
    error: BaseException
    cause: BaseException | None


class RuleTable(dict[str, str]):
    """Maps each rule's name to its text. `checks` maps each name to the rule's check.

    Each check is called with the subject. It raises an ``AssertionError`` with the reason if the subject breaks the
    rule.
    """

    def __init__(self) -> None:
        super().__init__()
        self.checks: dict[str, Callable[[Any], Any]] = {}

    def rule(self, name: str, sentence: str) -> Callable[[C], C]:
        """Return a decorator that registers the decorated function as the check for a new rule."""

        def add(check: C) -> C:
            self[name], self.checks[name] = sentence, check
            return check

        return add

    def chosen(self, only: Collection[str] | None, without: Collection[str]) -> list[str]:
        """Return the names of the rules to check. Raise ``ValueError`` for an unknown name."""
        check_names({*(only or ()), *without}, self)
        return [name for name in self if name not in without and (only is None or name in only)]

    def broken(
        self,
        subject: Any,
        names: Collection[str],
        *,
        call: Callable[[Callable[[], Any]], object] = lambda check: check(),
        catch: type[Exception] = AssertionError,
    ) -> Iterator[BrokenRule]:
        """Yield the rules that `subject` breaks.

        `call` runs each check. Only an error of type `catch` counts as a broken rule. Other errors propagate.
        """
        for name in names:
            try:
                call(lambda name=name: self.checks[name](subject))
            except catch as error:
                failed = isinstance(error, AssertionError)  # otherwise, the subject itself raised the error
                how, cause = (error, error.__cause__) if failed else (f"it raised {error!r}", error)
                yield BrokenRule(name, f"{name}: {self[name]}, but {how}", error, cause)

    def check(self, subject: Any, without: Collection[str] = ()) -> None:
        """If any rules are broken, raise a single ``AssertionError`` that lists them all."""
        __tracebackhide__ = True
        report(self.broken(subject, self.chosen(None, without)))


def check_names(names: Collection[str], known: Collection[str]) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"no such rule: {', '.join(unknown)}; the rules are {', '.join(known)}")


def report(broken: Iterable[BrokenRule]) -> None:
    """Raise an ``AssertionError`` that lists the `broken` rules, if there are any."""
    __tracebackhide__ = True
    if rules := list(broken):
        cause = next((rule.cause for rule in rules if rule.cause is not None), None)
        raise AssertionError(_on_a_screen([rule.message for rule in rules])) from cause


def _on_a_screen(messages: Sequence[str]) -> str:
    """Join the messages. If a message does not fit on the screen in full, keep only its first line."""
    lines: list[str] = []
    for index, message in enumerate(messages, 1):
        first, *rest = message.splitlines()
        fits = len(lines) + 1 + len(rest) + len(messages) - index <= LINES
        lines += [shorten(first, 3 * WIDTH), *(rest if fits else ())]
    return "\n".join(lines)


def expect(condition: bool, why: str, cause: BaseException | None = None) -> None:
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(why) from cause


def expect_same(
    what: str, expected: Sequence[Any], actual: Sequence[Any], key: Callable[[Any], Any] = lambda item: item
) -> None:
    """Raise an ``AssertionError`` that shows the first difference, if there is one."""
    __tracebackhide__ = True
    for index, (left, right) in enumerate(zip_longest(expected, actual, fillvalue=_END)):
        if key(left) != key(right):
            wanted, got = near_the_difference(repr(left), repr(right))
            raise AssertionError(f"{what} differs at index {index}:\n    expected  {wanted}\n    actual    {got}")


class _End:
    def __repr__(self) -> str:
        return "the end"


_END = _End()


def near_the_difference(*texts: str) -> list[str]:
    """Return an excerpt of each text around the first difference."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    begin = max(0, alike - WIDTH // 2)
    return [shorten("…" * (begin > 0) + text[begin:], WIDTH) for text in texts]


def clip(value: Any) -> str:
    return shorten(repr(value), WIDTH)


# Observe streams with a time limit, from any thread or event loop


SECONDS = 30.0
"""A stream that takes longer than this many seconds counts as hung."""


class HangingError(AssertionError):
    """Raised when a function does not return in time."""


def in_time(function: Callable[[], T], seconds: float) -> T:
    """Call ``function()`` on a new thread, and return its result.

    If the function has not returned after `seconds`, raise `HangingError`. The thread will keep running.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    _in_thread(run)
    if not wait([future], seconds).done:
        raise HangingError(f"it did not return within {seconds} s")
    return future.result()


def _in_thread(function: Callable[[], None]) -> None:
    threading.Thread(target=copy_context().run, args=(function,), daemon=True).start()


@dataclass
class Observed:
    """The events, errors and completions of a subscription."""

    events: list[Any] = field(default_factory=list[Any])
    errors: list[Exception] = field(default_factory=list[Exception])
    completed: int = 0
    ended: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def error(self) -> Exception | None:
        return self.errors[0] if self.errors else None

    def expect_events(self) -> list[Any]:
        """Return the events. If the call failed or emitted no events, raise an ``AssertionError``."""
        __tracebackhide__ = True
        expect(self.error is None, f"the call failed with {self.error!r}", self.error)
        expect(bool(self.events), "the call completed without emitting an event")
        return self.events

    def subscribe(
        self, source: Observable[Any], scheduler: abc.SchedulerBase | None, on_next: Callable[[Any], None]
    ) -> abc.DisposableBase:
        def receive(event: Any) -> None:
            self.events.append(event)
            on_next(event)

        def fail(error: Exception) -> None:
            self.errors.append(error)
            self.ended.set()

        def complete() -> None:
            self.completed += 1
            self.ended.set()

        try:
            return source.subscribe(receive, fail, complete, scheduler=scheduler)
        except Exception as error:
            fail(error)
            return Disposable()


def observe(source: Observable[Any], **options: Any) -> Observed:
    """Subscribe to `source`, wait for it to end, and return the outcome."""
    (observed,) = observe_all([source], **options)
    return observed


def observe_all(
    sources: list[Observable[Any]],
    *,
    seconds: float = SECONDS,
    scheduler: abc.SchedulerBase | None = None,
    on_next: Callable[[Any], None] = lambda event: None,
) -> list[Observed]:
    """Subscribe to all `sources` at once, wait for them to end, and return the outcomes.

    Raises an ``AssertionError`` if any source has not ended after `seconds`.
    """
    all_observed = [Observed() for _ in sources]
    subscriptions: list[abc.DisposableBase] = []
    deadline = time.monotonic() + seconds

    def subscribe() -> None:
        for source, observed in zip(sources, all_observed, strict=True):
            subscriptions.append(observed.subscribe(source, scheduler, on_next))

    _in_thread(subscribe)  # the new thread runs no event loop, so streams use the portal's loop
    if not all(observed.ended.wait(max(0.0, deadline - time.monotonic())) for observed in all_observed):
        for subscription in subscriptions:
            subscription.dispose()
        emitted = "; ".join(f"{len(seen.events)} events, the last {clip(seen.events[-1:])}" for seen in all_observed)
        raise AssertionError(f"ends: the stream has not ended after {seconds} s, and has emitted {emitted}")
    return all_observed


def becomes(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether `condition` becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True

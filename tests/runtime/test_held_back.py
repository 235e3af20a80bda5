"""The rules of a backlog, by the smallest one: its items wait while it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable, Subject, abc
from reactivex.disposable import Disposable

from rxllm.runtime import Backlog, Gate, Hold, current_gate
from rxllm.runtime.back_pressure import read_by
from rxllm.runtime.context_variables import Reader, current_reader
from rxllm.testing.virtual_time import Clock
from tests.waiting import PATIENCE

# held_back


MINE = LookupError("the subscriber's own")
BROKEN = ValueError("the source's")


class _Closable(Backlog[Any, Any]):
    def __init__(self, observer: abc.ObserverBase[Any], clock: Clock) -> None:
        super().__init__(observer, clock)
        self._clock = clock
        self._items: list[Any] = []
        self.is_open = False

    def open_soon(self) -> None:
        self.is_open = True
        self._timer.disposable = self._clock.schedule_relative(1.0, self.wake)

    def _on_next(self, item: Any) -> None:
        with self._lock:
            self._items.append(item)
            if self.is_open and not self._delivering:
                self._release()

    def _release(self) -> None:
        while self._items:
            self._deliver(self._items.pop(0))

    def _take_all(self) -> list[Any]:
        items, self._items = self._items, []
        return items


class Run:
    """A subscription through a backlog to a source that the test drives; `moments` is what the subscriber gets."""

    def __init__(self, on_item: Callable[[Any], object] = id) -> None:
        self.clock = Clock()
        self.source: Subject[Any] = Subject()
        self.moments: list[Any] = []
        self.backlog: Any = None
        self._on_item = on_item
        self.subscription = Observable(self._start).subscribe(
            self._on_next, self.moments.append, lambda: self.moments.append("|"), scheduler=self.clock
        )

    def _start(self, observer: abc.ObserverBase[Any], scheduler: Any = None) -> abc.DisposableBase:
        self.backlog = _Closable(observer, self.clock)
        return self.backlog.start(self.source)

    def _on_next(self, item: Any) -> None:
        self.moments.append(item)
        self._on_item(item)

    def push(self, *items: Any) -> None:
        for item in items:
            self.source.on_next(item)

    def open(self) -> None:
        self.backlog.open_soon()
        self.clock.advance_by(2.0)


def refuse(item: Any) -> Callable[[Any], None]:
    """A subscriber that raises `MINE` at `item`."""

    def on_item(other: Any) -> None:
        if other == item:
            raise MINE

    return on_item


Step = int | str
steps: st.SearchStrategy[list[Step]] = st.lists(st.integers(0, 9) | st.sampled_from(["open", "close"]), max_size=30)


@given(steps, st.sampled_from(["|", "X"]))
def test_each_item_is_delivered_once_in_order_before_the_end(script: list[Step], end: str) -> None:
    run = Run()
    for step in script:
        if isinstance(step, int):
            run.push(step)
        elif step == "open":
            run.open()
        else:
            run.backlog.is_open = False
    run.source.on_completed() if end == "|" else run.source.on_error(BROKEN)
    assert run.moments == [*(step for step in script if isinstance(step, int)), "|" if end == "|" else BROKEN]
    assert run.clock.waiting == 0


def test_waiting_items_are_delivered_by_the_clock() -> None:
    run = Run()
    run.push("a", "b")
    run.backlog.open_soon()
    assert run.moments == []
    run.clock.advance_by(2.0)
    assert run.moments == ["a", "b"]


def test_an_error_of_a_subscriber_that_raised_drops_what_waits() -> None:
    run = Run(refuse("a"))
    run.backlog.is_open = True
    with pytest.raises(LookupError):  # on the thread of the item, to the source
        run.push("a")
    run.backlog.is_open = False
    run.push("b")
    run.source.on_error(MINE)
    assert run.moments == ["a", MINE]


def test_the_end_delivers_what_waits_though_the_subscriber_has_raised() -> None:
    run = Run(refuse("a"))
    run.backlog.is_open = True
    with pytest.raises(LookupError):
        run.push("a")
    run.backlog.is_open = False
    run.push("b")
    run.source.on_completed()
    assert run.moments == ["a", "b", "|"]


def test_an_exception_of_a_subscriber_in_a_timer_ends_its_subscription() -> None:
    run = Run(refuse("a"))
    run.push("a", "b")
    run.open()
    assert run.moments == ["a", MINE]
    assert not run.source.observers
    assert run.clock.waiting == 0


def test_an_exception_of_a_subscriber_at_the_end_is_passed_to_its_on_error() -> None:
    run = Run(refuse("a"))
    run.push("a", "b")
    run.source.on_completed()
    assert run.moments == ["a", MINE]


def test_an_exception_of_a_subscriber_before_an_error_replaces_it() -> None:
    run = Run(refuse("a"))
    run.push("a", "b")
    run.source.on_error(BROKEN)
    assert run.moments == ["a", MINE]


def test_an_exception_for_the_program_stops_the_timer_and_is_passed_to_the_reader() -> None:
    def on_item(item: Any) -> None:
        raise KeyboardInterrupt

    heard, run = list[BaseException](), Run(on_item)
    run.push("a", "b")

    def listen(error: BaseException) -> bool:
        heard.append(error)
        return True

    with read_by(None, listen):
        run.open()
    assert [type(error) for error in heard] == [KeyboardInterrupt]
    assert run.moments == ["a"]
    run.backlog.open_soon()
    assert run.clock.waiting == 0


@pytest.mark.parametrize("end", ["|", "X"])
def test_the_timer_is_over_before_the_end_delivers_what_waits(end: str) -> None:
    waiting = list[int]()
    run = Run(lambda item: waiting.append(run.clock.waiting))
    run.push("a")
    run.backlog.open_soon()
    assert run.clock.waiting == 1
    run.source.on_completed() if end == "|" else run.source.on_error(BROKEN)
    assert waiting == [0]


def test_it_notes_a_delivery_so_that_items_from_inside_can_wait() -> None:
    def on_item(item: Any) -> None:
        if item == "a":
            run.push("b")
            run.moments.append("a has been delivered")

    run = Run(on_item)
    run.backlog.is_open = True
    run.push("a", "c")
    assert run.moments == ["a", "a has been delivered", "b", "c"]


def test_a_dispose_drops_what_waits_and_stops_the_source_and_the_timer() -> None:
    run = Run()
    run.push("a")
    run.backlog.open_soon()
    run.subscription.dispose()
    assert (run.clock.waiting, run.source.observers) == (0, [])
    run.clock.advance_by(2.0)
    assert run.moments == []


def test_its_source_waits_for_the_reader_alone() -> None:
    reader, seen = Gate(1), list[Gate | None]()

    def subscribe(observer: Any, scheduler: Any = None) -> abc.DisposableBase:
        seen.append(current_gate())
        return Disposable()

    def start(observer: Any, scheduler: Any = None) -> abc.DisposableBase:
        return _Closable(observer, Clock()).start(Observable(subscribe))

    with read_by(reader, lambda error: False):
        Observable(start).subscribe()
    assert seen == [reader]


@pytest.mark.parametrize("deliver", ["an item", "the timer", "the end", "an error"])
def test_a_delivery_is_the_only_one(deliver: str) -> None:
    entered = list[bool]()

    def enter() -> None:
        entered.append(run.backlog._lock.acquire(blocking=False))

    def on_item(item: Any) -> None:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(PATIENCE)

    run = Run(on_item)
    run.backlog.is_open = deliver == "an item"
    run.push("a")
    if deliver == "the timer":
        run.open()
    elif deliver == "the end":
        run.source.on_completed()
    elif deliver == "an error":
        run.source.on_error(BROKEN)
    assert (run.moments[0], entered) == ("a", [False])


# paced


def test_two_gates_are_full_idle_and_requested_as_one() -> None:
    reader = Gate(2)
    token = current_reader.set(Reader(reader))
    own, woken = Hold(2), list[str]()
    current_reader.reset(token)
    own.waiting.extend("ab")
    reader.waiting.append("r")
    own.when_open(lambda: woken.append("open"))
    own.when_idle(lambda: woken.append("idle"))
    own.when_requested(lambda: woken.append("requested"))
    assert (own.full, own.idle, own.requested, woken) == (True, False, False, [])
    reader.waiting.append("s")
    own.take()
    assert (own.full, woken) == (True, [])  # the reader's is full
    own.take()
    reader.take()
    assert (own.full, woken) == (False, ["open"])
    reader.take()
    assert (own.idle, own.requested, woken) == (True, False, ["open", "idle"])
    reader.request()
    assert (own.requested, woken) == (True, ["open", "idle", "requested"])


def test_a_closed_gate_is_not_idle_though_nothing_waits() -> None:
    own, woken = Hold(2), list[str]()
    own.closed = True
    own.when_idle(lambda: woken.append("idle"))
    own.when_requested(lambda: woken.append("requested"))
    own.when_open(lambda: woken.append("open"))
    assert (own.full, own.idle, own.requested, woken) == (False, False, False, ["open"])
    own.let_through()
    assert (own.idle, own.requested, woken) == (True, True, ["open", "idle", "requested"])

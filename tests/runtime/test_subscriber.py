"""One rule for a subscriber: it is called on the loop that it subscribed on, and its exception ends the call."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import reactivex
from reactivex import Observable, Subject
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable

from rxllm import Fake, Stream, StreamError, TextDelta, from_async_iter, stream_generate
from rxllm import operators as ops
from rxllm.runtime import clock
from rxllm.testing import World, simulate
from tests.operators.threads import together
from tests.waiting import PATIENCE, turns, until

MINE = LookupError("the subscriber's own")


def keep_alive(every: float) -> Callable[[Observable[Any]], Stream[Any]]:
    """The operator with a timer of docs/your_own_operators.md, shortened."""

    def operator(source: Observable[Any]) -> Stream[Any]:
        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            time, timer = clock(scheduler), SerialDisposable()

            def wait() -> None:
                timer.disposable = time.schedule_relative(every, beat)

            def beat(*_: Any) -> None:
                wait()
                observer.on_next("alive")

            wait()
            return CompositeDisposable(source.subscribe(observer, scheduler=scheduler), timer)

        return Stream(subscribe)

    return operator


class Source:
    """A stream that emits 0, and then nothing; `closed` unless it runs: a timer may end the call before it begins."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.closed.set()
        self._nothing = asyncio.Event()

    def stream(self) -> Stream[int]:
        return from_async_iter(self._items)

    async def _items(self) -> AsyncIterator[int]:
        self.closed.clear()
        try:
            yield 0
            await self._nothing.wait()
        finally:
            self.closed.set()


TIMED: dict[str, Callable[[Stream[Any]], Stream[Any]]] = {
    "debounce": lambda stream: stream.debounce(0.001),
    "delay": lambda stream: stream.delay(0.001),
    "sample": lambda stream: stream.sample(0.001),
    "buffer_with_time": lambda stream: stream.buffer_with_time(0.001),
    "timeout": lambda stream: stream.skip(1).timeout(0.001, reactivex.of(1)),
    "merge": lambda stream: stream.skip(1).merge(reactivex.interval(0.001)),
    "flat_map": lambda stream: stream.flat_map(lambda item: reactivex.timer(0.001)),
    "the template": lambda stream: stream.skip(1).pipe(keep_alive(0.001)),
    "operators after it": lambda stream: stream.delay(0.001).map(str).pipe(ops.tap(id)).retry(2),
}
"""Ways in which an item comes from a timer."""

every_timer = pytest.mark.parametrize("name", TIMED)


def refuse(*_: Any) -> None:
    raise MINE


@every_timer
def test_its_exception_in_a_timer_comes_to_its_on_error_once_and_ends_the_call(name: str) -> None:
    source, errors, heard = Source(), list[Exception](), threading.Event()

    def hear(error: Exception) -> None:
        errors.append(error)
        heard.set()

    TIMED[name](source.stream()).subscribe(refuse, hear)
    assert heard.wait(PATIENCE)
    assert source.closed.wait(PATIENCE)
    assert errors == [MINE]


@every_timer
def test_so_it_is_in_a_running_loop(name: str) -> None:
    async def with_on_error(world: World) -> None:
        source, errors = Source(), list[Exception]()
        TIMED[name](source.stream()).subscribe(refuse, errors.append)
        await asyncio.sleep(60.0)
        assert source.closed.is_set()
        assert errors == [MINE]

    simulate(with_on_error, faults=())


@every_timer
@pytest.mark.parametrize("on_error", [None, refuse])
def test_without_an_on_error_that_takes_it_the_loop_is_told_once(name: str, on_error: Any) -> None:
    async def app(world: World) -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        source = Source()
        TIMED[name](source.stream()).subscribe(refuse, on_error)
        await asyncio.sleep(60.0)
        assert source.closed.is_set()
        assert told == [MINE]

    simulate(app, faults=())


def test_its_exception_after_its_own_dispose_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    errors, subscribed = list[Exception](), threading.Event()

    def leave(item: Any) -> None:
        assert subscribed.wait(PATIENCE)
        subscription.dispose()
        raise MINE

    with caplog.at_level(logging.ERROR, "rxllm"):
        source = Source()
        subscription = source.stream().delay(0.01).subscribe(leave, errors.append)
        subscribed.set()
        assert source.closed.wait(PATIENCE)
        asyncio.run(until(lambda: "unhandled error" in caplog.text))
    assert errors == []


def test_its_exception_at_the_end_is_not_an_error_of_the_stream() -> None:
    async def main() -> None:
        told, errors = list[Any](), list[Exception]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        Stream.of(reactivex.of(1)).delay(0.001).subscribe(None, errors.append, refuse)
        await until(lambda: bool(told))
        assert (told, errors) == ([MINE], [])

    asyncio.run(main())


# An exception behind operators that emit at the end

AT_THE_END: dict[str, Callable[[Stream[Any]], Observable[Any]]] = {
    "all": lambda stream: stream.all(lambda _: True),
    "average": lambda stream: stream.map(len).average(),
    "buffer_with_count": lambda stream: stream.buffer_with_count(1000),
    "buffer_with_time": lambda stream: stream.buffer_with_time(1.0),
    "buffer_with_time_or_count": lambda stream: stream.buffer_with_time_or_count(1.0, 1000),
    "count": lambda stream: stream.count(),
    "debounce": lambda stream: stream.debounce(1.0),
    "default_if_empty": lambda stream: stream.filter(lambda _: False).default_if_empty("none"),
    "is_empty": lambda stream: stream.ignore_elements().is_empty(),
    "last": lambda stream: stream.last(),
    "last_or_default": lambda stream: stream.last_or_default("none"),
    "materialize": lambda stream: stream.ignore_elements().materialize(),
    "max": lambda stream: stream.map(len).max(),
    "reduce": lambda stream: stream.reduce(lambda total, item: total),
    "sum": lambda stream: stream.map(len).sum(),
    "take_last": lambda stream: stream.take_last(1),
    "take_last_buffer": lambda stream: stream.take_last_buffer(1),
    "to_dict": lambda stream: stream.to_dict(str),
    "to_list": lambda stream: stream.to_list(),
    "to_set": lambda stream: stream.to_set(),
    "window_with_count": lambda stream: stream.window_with_count(1000).flat_map(lambda window: window.to_list()),
    "operators after it": lambda stream: stream.to_list().map(str).retry(3).pipe(ops.tap(id)),
}

SOURCES: dict[str, Callable[[], Stream[str]]] = {
    "a call": lambda: stream_generate(Fake("one two"), "Hi").pipe(ops.text()),
    "at once": lambda: Stream.of(reactivex.of("one", "two")),
    "while subscribing": lambda: Stream.of(pushed("one", "two")),
}


def pushed(*items: str) -> Observable[str]:
    """What emits directly in ``subscribe``, with no scheduler."""

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        for item in items:
            observer.on_next(item)
        observer.on_completed()
        return Disposable()

    return Observable(subscribe)


@pytest.mark.parametrize("source", SOURCES)
def test_its_exception_at_the_end_of_the_source_comes_to_its_on_error_once(source: str) -> None:
    for name, operator in AT_THE_END.items():
        told, heard = list[object](), threading.Event()

        def hear(error: object = "completed", told: list[object] = told, heard: threading.Event = heard) -> None:
            told.append(error)
            heard.set()

        operator(SOURCES[source]()).subscribe(refuse, hear, hear)
        assert heard.wait(PATIENCE), name
        assert told == [MINE], name


@pytest.mark.parametrize("source", SOURCES)
def test_so_it_does_in_a_running_loop(source: str) -> None:
    async def app(world: World) -> None:
        for name, operator in AT_THE_END.items():
            told = list[object]()
            operator(SOURCES[source]()).subscribe(refuse, told.append, lambda told=told: told.append("completed"))
            await asyncio.sleep(60.0)
            assert told == [MINE], name

    simulate(app, faults=())


def test_an_operator_that_retries_does_not_take_it_for_an_error_of_the_source() -> None:
    async def app(world: World) -> None:
        fake, told = Fake("Hi", "Ho"), list[object]()
        stream_generate(fake, "Hi").retry(3).subscribe(refuse, told.append)
        await asyncio.sleep(60.0)
        assert (told, len(fake.requests)) == ([MINE], 1)

    simulate(app, faults=())


def test_an_endless_source_that_emits_at_once_is_stopped() -> None:
    told: list[object] = []
    Stream.of(reactivex.from_iterable(itertools.count())).subscribe(refuse, told.append)
    assert told == [MINE]


def test_without_an_on_error_it_leaves_subscribe_where_the_source_emits_at_once() -> None:
    with pytest.raises(LookupError, match="the subscriber's own"):
        Stream.of(reactivex.of(1)).to_list().subscribe(refuse)


# The loop of a subscription

PUSHED: dict[str, Callable[[Observable[Any], Callable[[Any], Observable[Any]]], Observable[Any]]] = {
    "alone": lambda subject, ask: Stream.of(subject),
    "switch_map": lambda subject, ask: Stream.of(subject).switch_map(ask),
    "merged with a timer": lambda subject, ask: Stream.of(subject).merge(reactivex.interval(0.001)),
    "merged into a timer": lambda subject, ask: Stream.of(reactivex.interval(0.001)).merge(subject),
    "all at once": lambda subject, ask: (
        Stream.of(reactivex.interval(0.001)).merge(subject).switch_map(ask).start_with(0)
    ),
}


@pytest.mark.parametrize("name", PUSHED)
def test_a_subscription_made_on_a_loop_is_called_on_that_loop(name: str) -> None:
    async def main() -> None:
        subject, calls, subscriber = Subject[Any](), set[object](), set[object]()

        async def answer() -> AsyncIterator[str]:
            calls.add(asyncio.get_running_loop())
            yield "ask"
            await asyncio.sleep(0)
            yield "ed"

        def note(*_: Any) -> None:
            subscriber.add(threading.current_thread())
            count[0] += 1

        count = [0]
        source = PUSHED[name](subject, lambda item: from_async_iter(answer))
        subscription = source.subscribe(note, note, note)
        for expected in (1, 2, 4):
            await asyncio.to_thread(subject.on_next, "x")
            await until(lambda expected=expected: count[0] >= expected or name == "alone")
        await asyncio.to_thread(subject.on_completed)
        await until(lambda: count[0] >= 4)
        subscription.dispose()
        assert subscriber == {threading.current_thread()}
        assert calls <= {asyncio.get_running_loop()}

    asyncio.run(main())


def test_items_keep_their_order_whatever_thread_they_come_from() -> None:
    async def main() -> None:
        subject, items = Subject[int](), list[Any]()
        Stream.of(subject).subscribe(items.append, on_completed=lambda: items.append("end"))
        together(lambda: [subject.on_next(number) for number in range(3)])
        subject.on_next(3)
        subject.on_completed()
        await until(lambda: items[-1:] == ["end"])
        assert items == [0, 1, 2, 3, "end"]

    asyncio.run(main())


def test_on_its_own_loop_it_is_called_at_once() -> None:
    async def main() -> None:
        subject, items = Subject[int](), list[int]()
        Stream.of(subject).subscribe(items.append)
        subject.on_next(1)
        assert items == [1]

    asyncio.run(main())


def test_after_a_dispose_nothing_comes_that_was_on_its_way() -> None:
    async def main() -> None:
        subject, items = Subject[int](), list[int]()
        subscription = Stream.of(subject).subscribe(items.append)
        together(lambda: subject.on_next(1))
        subscription.dispose()
        await turns()
        assert (items, subject.observers) == ([], [])

    asyncio.run(main())


def test_its_exception_there_comes_to_its_on_error() -> None:
    async def main() -> None:
        subject, errors = Subject[int](), list[Exception]()
        Stream.of(subject).subscribe(refuse, errors.append)
        together(lambda: [subject.on_next(1), subject.on_next(2)])
        await until(lambda: errors == [MINE])
        assert subject.observers == []

    asyncio.run(main())


@pytest.mark.judges
def test_a_thread_that_does_not_wait_is_cut_off() -> None:
    async def main() -> None:
        subject, items, errors = Subject[int](), list[int](), list[Exception]()
        Stream.of(subject).subscribe(items.append, errors.append)
        together(lambda: [subject.on_next(number) for number in range(70_000)])
        await until(lambda: bool(errors))
        (error,) = errors
        assert isinstance(error, StreamError)
        assert error.reason == "overflow"
        assert items == list(range(65_536))
        assert subject.observers == []

    asyncio.run(main())


def test_a_thread_may_push_after_the_loop_has_ended() -> None:
    subject, items = Subject[int](), list[Any]()

    async def main() -> None:
        Stream.of(subject).subscribe(items.append, on_completed=lambda: items.append("end"))

    asyncio.run(main())
    subject.on_next(1)
    subject.on_completed()
    assert items == [1, "end"]


def test_the_fold_of_finally_result_has_what_a_thread_pushed() -> None:
    async def main() -> None:
        events, results = Subject[Any](), list[Any]()
        Stream.of(events).pipe(ops.finally_result(lambda result, _: results.append(result))).subscribe()
        together(lambda: [events.on_next(TextDelta("Hi")), events.on_completed()])
        await until(lambda: bool(results))
        assert results[0].output_text == "Hi"

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:run")
def test_inside_a_run_that_blocks_the_loop_nothing_waits_for_that_loop() -> None:
    async def main() -> None:
        source = from_async_iter(lambda: numbers())
        forgetful = Stream(lambda observer, scheduler=None: source.subscribe(observer))
        assert forgetful.to_list().run() == [1, 2]

    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    asyncio.run(main())


def test_without_a_loop_it_is_called_where_the_item_is_pushed_and_observe_on_mends_that() -> None:
    """As docs/reactive_apps.md states."""
    subject, names = Subject[int](), list[str]()

    def note(_: int) -> None:
        names.append(threading.current_thread().name)

    Stream.of(subject).subscribe(note)
    subject.on_next(1)
    assert names == [threading.current_thread().name]
    Stream.of(subject).observe_on(clock(None)).subscribe(note)
    subject.on_next(2)
    asyncio.run(until(lambda: len(names) == 3))
    assert sorted(names[1:]) == sorted([threading.current_thread().name, "rxllm-portal"])


# Iterating


def test_a_merged_stream_can_be_iterated_over() -> None:
    """reactivex's own Observables have items but no iterator, so that `for` over one never ends."""
    streams = [Stream.of(reactivex.of(1, 2)), reactivex.of(3)]
    assert sorted(streams[0].merge(streams[1])) == [1, 2, 3]
    assert sorted(Stream.merge(*streams)) == [1, 2, 3]
    assert list(Stream.of(reactivex.merge(*streams))) == [1, 2, 3]

"""A coroutine for each item: `map_async`, and what names it when a coroutine function is passed elsewhere."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex import operators as rx
from reactivex.subject import Subject

import rxllm
from rxllm import Stream, StreamError, ValidationError
from rxllm import operators as ops
from rxllm.runtime import MAX_WAITING
from rxllm.testing import simulate
from rxllm.testing.marbles import check

FAULT = ValueError("no")


def after(ticks: dict[str, float]) -> Callable[[str], Observable[str]]:
    """A function whose result takes `ticks`, and is the item in upper case, or an error for "x"."""

    def call(item: str) -> Observable[str]:
        done = reactivex.throw(FAULT) if item == "x" else reactivex.of(item.upper())
        return reactivex.timer(ticks[item]).pipe(rx.flat_map(lambda _: done))

    return call


SLOW_A = after({"a": 5.0, "b": 1.0, "c": 1.0, "x": 1.0})


@pytest.mark.parametrize(
    ("options", "source", "subscribed", "result"),
    [
        ({}, "-a-b-c-----|", "^----------!", "------(ABC)|"),
        ({"ordered": False}, "-a-b-c-----|", "^----------!", "----B-(AC)-|"),
        ({"concurrency": 1}, "-a-b-c--|", "^-------!", "------AB(C|)"),
        ({"concurrency": 1, "ordered": False}, "-a-b-c--|", "^-------!", "------AB(C|)"),
        ({"concurrency": 2}, "-a-b-c-----|", "^----------!", "------(ABC)|"),
        ({}, "-a-b-x-----|", "^-----!", "------(ABX)"),
        ({}, "-b-X", "^--!", "--BX"),
        ({}, "-a-x----|", "^---!", "----X"),
        ({}, "-a-X", "^--!", "------(AX)"),
        ({}, "-|", "^!", "-|"),
    ],
)
def test_results_come_in_order_or_as_they_are_there(
    options: dict[str, Any], source: str, subscribed: str, result: str
) -> None:
    check(ops.map_async(SLOW_A, **options), source, subscribed, result, X=FAULT)


def test_coroutines_run_a_bounded_number_at_a_time() -> None:
    running, most, cancelled = 0, 0, 0

    async def double(number: int) -> int:
        nonlocal running, most, cancelled
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(1.0 + number % 3)
        except asyncio.CancelledError:
            cancelled += 1
            raise
        finally:
            running -= 1
        return 2 * number

    async def app(_: Any) -> tuple[list[int], list[int], int]:
        numbers = reactivex.range(20)
        in_order = [item async for item in Stream.of(numbers).pipe(ops.map_async(double, concurrency=4))]
        free = [item async for item in Stream.of(numbers).pipe(ops.map_async(double, concurrency=4, ordered=False))]
        return in_order, free, running

    in_order, free, left = simulate(app, faults=()).value
    assert in_order == [2 * number for number in range(20)]
    assert free != in_order == sorted(free)
    assert (most, cancelled, left) == (4, 0, 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_an_exception_ends_the_stream_and_cancels_the_others(ordered: bool) -> None:
    cancelled: list[int] = []

    async def fail_at_3(number: int) -> int:
        try:
            await asyncio.sleep(0.5 if number == 3 else 1.0)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        if number == 3:
            raise FAULT
        return number

    async def app(_: Any) -> None:
        with pytest.raises(ValueError, match="no"):
            await Stream.of(reactivex.range(8)).pipe(ops.map_async(fail_at_3, concurrency=5, ordered=ordered))

    simulate(app, faults=())
    assert sorted(cancelled) == [0, 1, 2, 4]


def test_dispose_cancels_all_calls_and_the_source() -> None:
    cancelled: list[int] = []
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(1000):
                yield number
        finally:
            closed.append("source")

    async def slow(number: int) -> int:
        try:
            await asyncio.sleep(1.0 + number)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    async def app(_: Any) -> list[int]:
        seen: list[int] = []
        subscription = rxllm.from_async_iter(numbers).pipe(ops.map_async(slow, concurrency=3)).subscribe(seen.append)
        await asyncio.sleep(2.5)
        subscription.dispose()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return seen

    assert simulate(app, faults=()).value == [0, 1]
    assert (sorted(cancelled), closed) == ([2, 3, 4], ["source"])


@pytest.mark.parametrize("ordered", [True, False])
def test_a_source_waits_for_the_calls_and_for_a_slow_reader(ordered: bool) -> None:
    taken: list[int] = []

    async def numbers() -> AsyncIterator[int]:
        for number in range(5 * MAX_WAITING):
            taken.append(number)
            yield number

    async def call(number: int) -> int:
        await asyncio.sleep(10 * MAX_WAITING if number == 0 else 1.0)
        return number

    async def app(_: Any) -> tuple[int, list[int]]:
        seen: list[int] = []
        first = 0
        async for number in rxllm.from_async_iter(numbers).pipe(ops.map_async(call, concurrency=4, ordered=ordered)):
            if not seen:
                first = len(taken)
            seen.append(number)
        return first, seen

    first, seen = simulate(app, faults=()).value
    assert first <= (MAX_WAITING + 2 * 4 + 1 if ordered else 2 * 4 + 1)
    assert sorted(seen) == list(range(5 * MAX_WAITING))
    assert (seen == sorted(seen)) is ordered


def test_behind_keep_latest_only_the_newest_item_waits() -> None:
    check(
        lambda source: source.pipe(
            ops.keep_latest(), ops.map_async(after(dict.fromkeys("abcdef", 4.0)), concurrency=1)
        ),
        "-a-b-c-d-e|",
        "^---------!",
        "-----A---C---(E|)",
    )


def test_a_source_that_cannot_wait_is_cut_off_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.runtime._arriving.LIMIT", 2)
    errors: list[Any] = []
    pushed = Subject[str]()
    pushed.pipe(ops.map_async(lambda item: reactivex.never(), concurrency=1)).subscribe(on_error=errors.append)
    for _ in range(4):
        pushed.on_next("a")
    assert [error.reason for error in errors] == ["overflow"]
    assert isinstance(errors[0], StreamError)


def test_items_that_the_subscriber_causes_follow_in_order() -> None:
    pushed, seen = Subject[int](), list[int]()

    def hear(number: int) -> None:
        if number < 3:
            pushed.on_next(number + 1)
        else:
            pushed.on_completed()
        seen.append(number)

    ended: list[str] = []
    at_once: Any = int
    pushed.pipe(ops.map_async(at_once)).subscribe(hear, on_completed=lambda: ended.append("end"))
    pushed.on_next(0)
    assert (seen, ended) == ([0, 1, 2, 3], ["end"])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ops.map_async(3), "fn"),  # type: ignore[arg-type]
        (lambda: ops.map_async(reactivex.of, concurrency=0), "concurrency"),
        (lambda: ops.map_async(reactivex.of, ordered=1), "ordered"),  # type: ignore[arg-type]
    ],
)
def test_invalid_arguments_are_refused(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert caught.value.errors[0][0] == (name,)


# Coroutine functions elsewhere


async def echo(item: Any) -> Any:
    return item


class Echo:
    async def __call__(self, item: Any) -> Any:
        return item


@pytest.mark.parametrize(
    "method",
    ["map", "starmap", "flat_map", "flat_map_latest", "concat_map", "switch_map", "filter", "take_while", "skip_while"],
)
@pytest.mark.parametrize("fn", [echo, functools.partial(echo), Echo(), Echo().__call__, lambda item: echo(item)])
def test_a_method_that_awaits_nothing_names_map_async(method: str, fn: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "was never awaited"
        with pytest.raises(ValidationError, match=rf"{method} does not await it; write \.pipe\(ops\.map_async\(fn, "):
            getattr(Stream.of(reactivex.of((1,), (2,))), method)(fn).run()


def test_also_by_keyword_and_with_an_index() -> None:
    async def indexed(item: int, index: int) -> int:
        return item + index

    numbers: Any = Stream.of(reactivex.of(1, 2))
    for stream in (
        lambda: numbers.map(mapper=echo),
        lambda: numbers.map_indexed(indexed),
        lambda: numbers.flat_map_indexed(lambda item, index: indexed(item, index)),
        lambda: numbers.filter_indexed(indexed),
    ):
        with pytest.raises(ValidationError, match="does not await it"):
            stream().run()


def test_functions_classes_and_futures_are_taken_as_before() -> None:
    def begin(item: int) -> Any:
        return asyncio.ensure_future(echo(item))

    async def app() -> int:
        return await Stream.of(reactivex.of(1, 2)).flat_map(begin)

    numbers = Stream.of(reactivex.of(1, 2))
    assert asyncio.run(app()) == 2
    assert list(numbers.map(str).filter("2".__eq__)) == ["2"]
    assert list(numbers.flat_map(reactivex.of)) == list(numbers.concat_map(lambda item: reactivex.of(item))) == [1, 2]

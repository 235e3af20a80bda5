"""The bridge for any Observable: what can wait waits, what cannot is cut off, and nothing is lost or grows for ever."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Observable, Subject, abc
from reactivex.disposable import Disposable

import rxllm
from rxllm import StreamError, bridge, from_async_iter, to_async_iter, to_iter
from rxllm import operators as ops
from rxllm.runtime import Gate, LoopScheduler, clock, current_gate
from rxllm.runtime._clock import PacedScheduler
from rxllm.testing import World, simulate
from tests.examples import examples
from tests.operators.threads import together
from tests.programs import python
from tests.waiting import turns, until, wait_until

Read = Callable[..., list[Any]]


def read(
    source: Observable[Any], count: int | None = None, see: Callable[[Any], object] = id, **bounds: int
) -> list[Any]:
    """The first `count` items, or all, read by `for`."""
    taken: list[Any] = []
    with to_iter(source, **bounds) as items:
        for item in itertools.islice(items, count):
            see(item)
            taken.append(item)
    return taken


def read_async(
    source: Observable[Any], count: int | None = None, see: Callable[[Any], object] = id, **bounds: int
) -> list[Any]:
    """The same by `async for`, on a loop that does other things between two items."""

    async def main() -> list[Any]:
        taken: list[Any] = []
        async with to_async_iter(source, **bounds) as items:
            async for item in items:
                see(item)
                taken.append(item)
                await asyncio.sleep(0)
                if len(taken) == count:
                    break
        return taken

    return asyncio.run(main())


ON_BOTH_SIDES = pytest.mark.parametrize("read", [read, read_async])


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


NONE: int = 0

PATIENT: dict[str, Callable[[], Observable[int]]] = {
    "range": lambda: reactivex.range(10**9),
    "generate": lambda: reactivex.generate(NONE, lambda number: True, lambda number: number + 1),
    "repeat": lambda: reactivex.of(0).repeat().scan(lambda total, _: total + 1, -1),
    "concat": lambda: reactivex.concat(reactivex.range(50), reactivex.range(50, 10**9)),
    "from_async_iter": lambda: from_async_iter(lambda: numbers(10**9)),
}


@ON_BOTH_SIDES
@pytest.mark.parametrize("maxsize", [1, 8])
@pytest.mark.parametrize("name", PATIENT)
def test_a_source_that_schedules_its_items_waits_for_its_reader(read: Read, name: str, maxsize: int) -> None:
    emitted: list[int] = []
    ahead: list[int] = []
    source = PATIENT[name]().do_action(emitted.append)
    taken = read(source, 200, lambda number: ahead.append(len(emitted) - number), maxsize=maxsize)
    assert taken == list(range(200))
    assert max(ahead) <= maxsize + 2
    assert len(emitted) <= 200 + maxsize + 2


def emit_at_once(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
    for number in range(1000):
        observer.on_next(number)
    return Disposable()


IMPATIENT: dict[str, Callable[[], Observable[int]]] = {
    "from_iterable": lambda: reactivex.from_iterable(itertools.count()),
    "mapped": lambda: reactivex.from_iterable(itertools.count()).map(lambda number: number).filter(lambda _: True),
    "merged": lambda: reactivex.merge(reactivex.never(), reactivex.from_iterable(itertools.count())),
    "create": lambda: reactivex.create(emit_at_once),
}


@ON_BOTH_SIDES
@pytest.mark.parametrize("name", IMPATIENT)
def test_a_source_that_does_not_wait_is_cut_off_after_what_waits(read: Read, name: str) -> None:
    taken: list[int] = []
    with pytest.raises(StreamError, match=r"100 items are waiting .*; thin them out") as caught:
        read(IMPATIENT[name](), None, taken.append, maxsize=8, limit=100)
    assert caught.value.reason == "overflow"
    assert taken == list(range(100))


def test_a_thread_that_feeds_a_subject_goes_on_when_its_reader_is_cut_off() -> None:
    subject: Subject[int] = Subject()
    with to_iter(subject, limit=100) as items:
        together(lambda: [subject.on_next(number) for number in range(1000)])
        assert subject.observers == []
        assert list(itertools.islice(items, 100)) == list(range(100))
        with pytest.raises(StreamError, match="cannot wait"):
            next(items)
        assert list(items) == []


def test_time_does_not_wait() -> None:
    """A tick that is late is no tick: an interval is cut off, as all that cannot wait."""

    async def app(world: World) -> None:
        async with to_async_iter(reactivex.interval(1.0), maxsize=1, limit=5) as ticks:
            assert await anext(ticks) == 0
            await asyncio.sleep(60.0)
            assert [await anext(ticks) for _ in range(5)] == [1, 2, 3, 4, 5]
            with pytest.raises(StreamError, match="cannot wait"):
                await anext(ticks)

    simulate(app, faults=())


@ON_BOTH_SIDES
def test_a_limit_below_maxsize_is_both(read: Read) -> None:
    emitted: list[int] = []
    assert read(reactivex.range(10**9).do_action(emitted.append), 100, limit=3) == list(range(100))
    assert len(emitted) <= 105
    with pytest.raises(StreamError, match="3 items are waiting"):
        read(reactivex.from_iterable(range(5)), limit=3)


@ON_BOTH_SIDES
def test_a_maxsize_above_the_default_limit_raises_it(read: Read) -> None:
    assert len(read(reactivex.from_iterable(range(70_000)), 5, maxsize=70_000)) == 5


@pytest.mark.parametrize("make", [to_iter, to_async_iter])
def test_the_limit_must_be_at_least_one(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="limit must be at least 1, not 0"):
        make(reactivex.of(1), limit=0)


@ON_BOTH_SIDES
def test_a_burst_below_the_limit_passes(read: Read) -> None:
    assert read(reactivex.from_iterable(range(20_000)), maxsize=1) == list(range(20_000))


def test_a_held_source_ends_when_its_reader_leaves() -> None:
    emitted: list[int] = []

    async def main() -> None:
        async with to_async_iter(reactivex.range(10**9).do_action(emitted.append), maxsize=2) as items:
            await anext(items)
        before = len(emitted)
        await turns()
        assert len(emitted) == before

    asyncio.run(main())


def test_a_held_source_goes_on_in_its_own_context() -> None:
    """Sources below read the gate and the scope of their call from it."""

    async def main() -> None:
        made: list[int] = []

        async def count() -> AsyncIterator[int]:
            for number in range(100):
                made.append(number)
                yield number

        source = reactivex.concat(reactivex.range(50), from_async_iter(count))
        taken = 0
        async with to_async_iter(source, maxsize=4) as items:
            async for _ in items:
                taken += 1
                await asyncio.sleep(0)
                assert len(made) <= max(0, taken - 50) + 6
        await until(lambda: len(made) == 100)

    asyncio.run(main())


def test_rxllms_own_operators_do_not_wait_for_the_reader() -> None:
    """Tools run while the reader is behind; only sources are held."""

    async def main() -> None:
        gate, ran = Gate(1), list[str]()
        gate.waiting.append("item")
        scheduler = PacedScheduler(asyncio.get_running_loop(), gate)
        scheduler.schedule(lambda *_: ran.append("source"))
        clock(scheduler).schedule(lambda *_: ran.append("operator"))
        assert type(clock(scheduler)) is LoopScheduler
        await turns()
        assert ran == ["operator"]
        gate.take()
        await turns()
        assert ran == ["operator", "source"]

    asyncio.run(main())


def test_a_source_that_is_disposed_while_it_is_held_never_runs() -> None:
    async def main() -> None:
        gate, ran = Gate(1), list[int]()
        gate.waiting.append("item")
        PacedScheduler(asyncio.get_running_loop(), gate).schedule(lambda *_: ran.append(1)).dispose()
        gate.take()
        await turns()
        assert ran == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "operator",
    [lambda button: ops.keep_latest(), lambda button: ops.conflate(lambda waiting, item: item), ops.gate],
    ids=["keep_latest", "conflate", "gate"],
)
def test_an_item_that_an_operator_releases_goes_on_behind_its_readers_gate(operator: Callable[..., Any]) -> None:
    """Not behind that of the operator, nor that of whoever wakes it: the reader's thread, or a button."""
    emitted: list[int] = []
    seen: list[int] = []
    gates: list[Gate | None] = []
    button: Subject[bool] = Subject()

    async def numbers() -> AsyncIterator[int]:
        for number in range(29):
            yield number
            emitted.append(number)
        await until(lambda: 28 in seen)
        yield 29

    def see(number: int) -> None:
        wait_until(lambda: 28 in emitted)  # the operator holds some
        seen.append(number)

    def press() -> None:
        wait_until(lambda: 28 in emitted)
        button.on_next(True)

    source = from_async_iter(numbers).pipe(operator(button)).do_action(lambda _: gates.append(current_gate()))
    presser = threading.Thread(target=press)
    presser.start()
    assert read(source, see=see, maxsize=4)[-1] == 29
    presser.join()
    assert {type(gate) for gate in gates} == {Gate}


async def iterate(numbers: list[int]) -> AsyncIterator[int]:
    for number in numbers:
        yield number


SOURCES: dict[str, Callable[[list[int]], Observable[int]]] = {
    "of": lambda numbers: reactivex.of(*numbers),
    "scheduled": lambda numbers: reactivex.range(len(numbers)).map(numbers.__getitem__),
    "concat": lambda numbers: reactivex.concat(reactivex.empty(), *map(reactivex.just, numbers)),
    "merged": lambda numbers: reactivex.merge(reactivex.from_iterable(numbers), reactivex.empty()),
    "paced": lambda numbers: from_async_iter(lambda: iterate(numbers)),
}


@given(st.sampled_from(sorted(SOURCES)), st.lists(st.integers(), max_size=30), st.integers(1, 9), st.booleans())
@settings(deadline=None, max_examples=examples(60))
def test_nothing_is_lost_and_nothing_changes_places(name: str, items: list[int], maxsize: int, on_loop: bool) -> None:
    assert (read_async if on_loop else read)(SOURCES[name](items), maxsize=maxsize) == items


def test_the_bridge_has_a_name_of_its_own() -> None:
    assert bridge.__all__ == ["from_async_iter", "run", "to_async_iter", "to_iter"]
    assert all(getattr(bridge, name) is getattr(rxllm, name) for name in bridge.__all__)


@pytest.mark.judges
def test_it_loads_no_http() -> None:
    ran = python("-c", "import sys, rxllm.bridge; print('httpx' in sys.modules)")
    assert (ran.stderr, ran.stdout) == ("", "False\n")

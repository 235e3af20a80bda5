"""Time on a loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import reactivex
from reactivex import operators as rx
from reactivex.disposable import Disposable, SerialDisposable

from rxllm import from_async_iter, to_async_iter
from rxllm.runtime import LoopScheduler, schedule_in
from tests.operators.threads import together
from tests.waiting import turns, until


def test_actions_run_on_the_loops_thread_whoever_schedules_them() -> None:
    async def main() -> None:
        scheduler, threads = LoopScheduler(asyncio.get_running_loop()), list[threading.Thread]()

        def note(*_: object) -> None:
            threads.append(threading.current_thread())

        scheduler.schedule(note)
        scheduler.schedule_relative(0.001, note)
        await asyncio.to_thread(scheduler.schedule, note)
        await asyncio.to_thread(scheduler.schedule_relative, 0.001, note)
        await asyncio.to_thread(scheduler.schedule_absolute, scheduler.now, note)
        await until(lambda: len(threads) == 5)
        assert set(threads) == {threading.current_thread()}

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0, 0.005])
def test_a_disposed_action_does_not_run(seconds: float) -> None:
    async def main() -> None:
        scheduler, ran = LoopScheduler(asyncio.get_running_loop()), list[str]()

        def act() -> None:
            scheduler.schedule_relative(seconds, lambda *_: ran.append("disposed")).dispose()

        act()
        together(act)  # in another thread; the loop stands still meanwhile
        await turns()
        scheduler.schedule_relative(seconds, lambda *_: ran.append("later"))
        await until(lambda: ran)
        assert ran == ["later"]

    asyncio.run(main())


def test_a_disposed_timer_keeps_nothing_alive() -> None:
    class Thing:
        def act(self, *_: object) -> None: ...

    async def main() -> None:
        thing = Thing()
        kept = weakref.ref(thing)
        LoopScheduler(asyncio.get_running_loop()).schedule_relative(3600, thing.act).dispose()
        del thing
        await asyncio.sleep(0)
        gc.collect()
        assert kept() is None

    asyncio.run(main())


def test_time_operators_start_no_threads() -> None:
    """They take the scheduler of the subscription, which await and the iterators give."""

    async def count() -> object:
        for i in range(50):
            yield i
            await asyncio.sleep(0)

    async def main() -> None:
        before = threading.active_count()
        async with to_async_iter(from_async_iter(count).pipe(rx.timeout(60), rx.debounce(0.001))) as items:
            assert [item async for item in items][-1] == 49
        assert threading.active_count() <= before
        assert await from_async_iter(count).pipe(rx.delay(0.001), rx.to_list()) == list(range(50))
        assert threading.active_count() <= before

    asyncio.run(main())


def test_an_interval() -> None:
    async def main() -> None:
        async with to_async_iter(reactivex.interval(0.001).pipe(rx.take(3))) as items:
            assert [item async for item in items] == [0, 1, 2]

    asyncio.run(main())


def test_an_action_scheduled_while_another_thread_schedules_one_is_not_cancelled() -> None:
    """The first thread stops between scheduling its action and keeping it, and the second thread runs meanwhile."""
    cancelled: list[str] = []
    place = SerialDisposable()

    class Scheduler:
        def __init__(self, name: str, beside: Callable[[], None] = lambda: None) -> None:
            self.name, self.beside = name, beside

        def schedule(self, action: Any) -> Disposable:
            self.beside()
            return Disposable(lambda: cancelled.append(self.name))

    second: Any = Scheduler("second")
    first: Any = Scheduler("first", lambda: schedule_in(place, second, print))
    schedule_in(place, first, print)
    assert cancelled == ["first"]

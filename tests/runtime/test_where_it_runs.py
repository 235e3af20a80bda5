"""On which thread, and on which loop, a subscriber is called: timers included."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import reactivex
from reactivex import Observable, Subject, abc
from reactivex import operators as rx
from reactivex.disposable import Disposable
from reactivex.scheduler import VirtualTimeScheduler

import rxllm
from rxllm import Engine, Fake, Stream, stream_generate
from rxllm import operators as ops
from rxllm.runtime import LoopScheduler, clock
from rxllm.runtime._clock import CallScheduler
from rxllm.testing.loopback import Loopback, Reply, chat
from tests.operators.threads import together
from tests.programs import python
from tests.runtime.support import model
from tests.waiting import PATIENCE, until

Place = tuple[str, asyncio.AbstractEventLoop | None]
Make = Callable[[Observable[str], Engine], Observable[Any]]

PORTAL = "rxllm-portal"


def ask(engine: Engine) -> Callable[[str], Observable[Any]]:
    """A question to a scripted model, which answers at once, or to one behind a socket."""
    return lambda question: stream_generate(Fake("at once") if question == "fake" else engine, question)


TYPE_AHEAD: dict[str, Make] = {
    "methods": lambda questions, engine: Stream.of(questions).debounce(0.01).switch_map(ask(engine)),
    "pipe": lambda questions, engine: Stream.of(questions).pipe(rx.debounce(0.01), rx.switch_map(ask(engine))),
    "an operator at the end": lambda questions, engine: (
        questions.debounce(0.01).switch_map(ask(engine)).pipe(ops.tap(id))
    ),
    "delay": lambda questions, engine: Stream.of(questions).delay(0.01).switch_map(ask(engine)),
    "sample": lambda questions, engine: Stream.of(questions).sample(0.01).switch_map(ask(engine)),
}


def place() -> Place:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    return threading.current_thread().name, loop


@pytest.mark.sockets
@pytest.mark.parametrize("name", TYPE_AHEAD)
@pytest.mark.parametrize("from_a_thread", [False, True])
def test_in_a_running_loop_every_item_comes_on_it(name: str, from_a_thread: bool) -> None:
    async def main(server: Loopback) -> None:
        questions, places, ends = Subject[str](), list[Place](), list[str]()
        source = TYPE_AHEAD[name](questions, model(server))

        def note(event: Any) -> None:
            places.append(place())
            ends.append(type(event).__name__)

        subscription = source.subscribe(note)
        for count, question in enumerate(("fake", "socket"), 1):
            if from_a_thread:
                together(lambda question=question: questions.on_next(question))
            else:
                questions.on_next(question)
            await until(lambda count=count: ends.count("MessageCompleted") == count)
        subscription.dispose()
        assert set(places) == {("MainThread", asyncio.get_running_loop())}

    with Loopback(Reply(chat("Hel", "lo"))) as server:
        asyncio.run(main(server))


@pytest.mark.sockets
@pytest.mark.parametrize("name", TYPE_AHEAD)
def test_without_a_loop_every_item_comes_on_rxllms(name: str) -> None:
    with Loopback(Reply(chat("Hel", "lo"))) as server:
        questions, places, ends = Subject[str](), list[Place](), queue.Queue[None]()

        def note(event: Any) -> None:
            places.append(place())
            if type(event).__name__ == "MessageCompleted":
                ends.put(None)

        subscription = TYPE_AHEAD[name](questions, model(server)).subscribe(note)
        for question in ("fake", "socket"):
            questions.on_next(question)
            ends.get(timeout=PATIENCE)
        subscription.dispose()
    assert {name for name, _ in places} == {PORTAL}
    assert len({loop for _, loop in places}) == 1


def test_a_window_gets_every_item_on_its_own_thread() -> None:
    """A window has a thread with a loop of its own, which is not asyncio's, and a scheduler of reactivex for it."""
    window = queue.Queue[Callable[[], Any]]()

    class WindowScheduler(VirtualTimeScheduler):
        def schedule(self, action: Any, state: Any = None) -> abc.DisposableBase:
            window.put(lambda: action(self, state))
            return Disposable()

    questions, names = Subject[str](), list[str]()
    answers = Stream.of(questions).debounce(0.01).switch_map(lambda question: stream_generate(Fake("Hello"), question))
    answers.pipe(ops.text()).observe_on(WindowScheduler()).subscribe(lambda _: names.append(place()[0]))
    for count in (1, 2):
        questions.on_next("Hi")
        while len(names) < count:
            window.get(timeout=PATIENCE)()
    assert names == [threading.current_thread().name] * 2


def test_no_thread_is_started_for_a_timer() -> None:
    async def main() -> None:
        questions, threads = Subject[int](), set(threading.enumerate())
        numbers: list[int] = []
        subscription = Stream.of(questions).debounce(0.01).timeout(60).delay(0.001).subscribe(numbers.append)
        for number in range(50):
            questions.on_next(number)
        await until(lambda: numbers == [49])
        assert set(threading.enumerate()) <= threads
        subscription.dispose()

    asyncio.run(main())


def test_without_timers_a_stream_emits_as_an_observable_does() -> None:
    """At once, on the thread of the subscriber: only timers have moved, and the portal starts when it is needed."""
    numbers: list[int] = []
    Stream.of(reactivex.of(1, 2)).concat(reactivex.range(3, 5)).start_with(0).subscribe(numbers.append)
    assert numbers == [0, 1, 2, 3, 4]
    threads: list[str] = []
    stream_generate(Fake("Hello"), "Hi").subscribe(lambda _: threads.append(place()[0]))
    assert set(threads) == {threading.current_thread().name}


def test_a_scheduler_that_is_passed_wins() -> None:
    scheduler, numbers = VirtualTimeScheduler(), list[tuple[int, float]]()
    source = Stream.of(reactivex.of(1)).delay(10.0)
    source.subscribe(lambda number: numbers.append((number, scheduler.clock)), scheduler=scheduler)
    assert numbers == []
    scheduler.start()
    assert numbers == [(1, 10.0)]


def test_rxllms_operators_run_on_the_loop_of_the_subscription() -> None:
    async def main() -> None:
        scheduler, loops = CallScheduler(), list[object]()
        plain = clock(scheduler)
        assert type(plain) is LoopScheduler
        together(lambda: plain.schedule(lambda *_: loops.append(asyncio.get_running_loop())))
        await until(lambda: loops == [asyncio.get_running_loop()])

    asyncio.run(main())


@pytest.mark.judges
def test_a_program_does_not_wait_for_the_timers_of_an_endless_stream() -> None:
    code = "import reactivex, rxllm; rxllm.Stream.of(reactivex.interval(0.01)).subscribe(id); print('end')"
    ran = python("-c", code)
    assert (ran.stdout, ran.stderr) == ("end\n", "")


def test_the_bridge_brings_timers_of_any_observable_to_the_readers_loop() -> None:
    async def main() -> None:
        questions, places = Subject[str](), list[Place]()
        source = questions.debounce(0.01).switch_map(lambda question: stream_generate(Fake("Hello"), question))
        async with rxllm.to_async_iter(source.do_action(lambda _: places.append(place()))) as events:
            questions.on_next("Hi")
            while (await anext(events)).__class__.__name__ != "MessageCompleted":
                pass
        assert set(places) == {("MainThread", asyncio.get_running_loop())}

    asyncio.run(main())

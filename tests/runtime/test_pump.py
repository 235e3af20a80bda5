"""The pump: one task per subscription, which ends with its loop, its source, or a dispose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxllm import Event, StreamError, from_async_iter, stream_generate
from rxllm.runtime import Pump, pumped
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Loopback, Reply
from rxllm.testing.loopback import chat as said
from rxllm.values import ValidationError
from tests.closing import STALLED, assert_closes
from tests.runtime.support import model
from tests.waiting import turns, until

ANSWER = Reply(said("Hel", "lo"))


@pytest.mark.sockets
def test_the_loops_end_closes_a_live_call(caplog: pytest.LogCaptureFixture) -> None:
    """Its subscriber is told, and nothing is destroyed pending."""
    told: list[Exception] = []

    async def main(server: Loopback) -> None:
        seen: list[Any] = []
        stream_generate(model(server), "Hi").subscribe(seen.append, told.append)
        await until(lambda: len(seen) == 4)

    assert_closes(lambda server: asyncio.run(main(server)))
    (error,) = told
    assert isinstance(error, StreamError)
    assert error.reason == "cancelled"
    assert caplog.text == ""


@pytest.mark.sockets
def test_context_variables_reach_the_subscriber() -> None:
    import contextvars

    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def main() -> list[str]:
        name.set("mine")
        heard: list[str] = []
        await stream_generate(model(server), "Hi").do_action(lambda event: heard.append(name.get()))
        return heard

    with Loopback(ANSWER) as server:
        assert set(asyncio.run(main())) == {"mine"}


@pytest.mark.sockets
def test_nothing_is_delivered_after_dispose() -> None:
    """Not even what has been read already."""

    async def main(server: Loopback) -> None:
        events: list[Event] = []
        subscription = stream_generate(model(server), "Hi").subscribe(
            lambda event: (events.append(event), len(events) == 2 and subscription.dispose())
        )
        await until(lambda: server.open_count == 0 and bool(server.connections))
        assert len(events) == 2

    with Loopback(STALLED) as server:
        asyncio.run(main(server))


class Items:
    """Counts, and notes that it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[int]:
        for i in range(100):
            yield i

    async def aclose(self) -> None:
        self.closed = True


def test_a_factory_is_a_function() -> None:
    with pytest.raises(ValidationError, match=r"factory must be a function that returns a new async iterator.* not \["):
        from_async_iter([1])  # pyright: ignore[reportArgumentType]


def test_an_iterator_of_a_factory_is_closed_when_it_is_left_before_the_end() -> None:
    made: list[Items] = []

    def factory() -> Items:
        made.append(Items())
        return made[-1]

    stream = from_async_iter(factory)
    assert made == []
    assert stream.take(2).to_list().run() == [0, 1]
    assert stream.take(1).run() == 0
    assert len(made) == 2

    async def closed() -> None:
        await until(lambda: all(items.closed for items in made))

    asyncio.run(closed())


def test_a_dispose_in_a_hold_waits_for_its_release() -> None:
    steps: list[str] = []

    async def body(pump: Pump[int]) -> None:
        try:
            with pump.holding():
                subscription.dispose()
                await turns()
                steps.append("held")
                pump.release()
                await asyncio.Event().wait()
        finally:
            steps.append("cancelled")

    async def main() -> None:
        nonlocal subscription
        subscription = pumped(body).subscribe(lambda item: steps.append("delivered"))
        await until(lambda: "cancelled" in steps)

    subscription: Any = None
    asyncio.run(main())
    assert steps == ["held", "cancelled"]


def test_a_hold_that_has_ended_leaves_no_timer() -> None:
    """It would keep the subscriber in memory until its time."""

    async def held(pump: Pump[int]) -> None:
        with pump.holding():
            await asyncio.sleep(1.0)

    async def app(world: World) -> None:
        subscription = pumped(held).subscribe()
        await asyncio.sleep(0.5)
        subscription.dispose()

    simulate(app, faults=())


def test_disposed_before_it_starts_the_body_never_runs() -> None:
    async def body(pump: Pump[int]) -> None:
        pump.emit((1,))

    async def main() -> list[int]:
        items: list[int] = []
        pumped(body).subscribe(items.append).dispose()
        await turns()
        return items

    assert asyncio.run(main()) == []


def test_emit_says_whether_somebody_still_listens() -> None:
    answers: list[bool] = []

    async def body(pump: Pump[int]) -> None:
        answers.append(pump.emit((1, 2)))
        answers.append(pump.emit((3, 4)))

    assert pumped(body).take(3).to_list().run() == [1, 2, 3]
    asyncio.run(until(lambda: len(answers) == 2))
    assert answers == [True, False]


def test_interrupt_cancels_a_read_but_not_a_held_one() -> None:
    async def body(pump: Pump[Any]) -> None:
        loop = asyncio.get_running_loop()
        with pump.holding():
            pump.emit((pump.interrupt(),))
        loop.call_soon(pump.interrupt)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pump.emit(("interrupted",))

    assert pumped(body).to_list().run() == [False, "interrupted"]

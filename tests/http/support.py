"""What the tests of HTTP share: calls that are left at random moments, and a server that waits in an answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

from rxllm import Engine, Event, stream_generate
from rxllm.testing.loopback import STALL, Pause, Reply, Request, chat, chat_chunk
from tests.waiting import until

COUNT = iter(range(10**9))


def held(condition: Callable[[], object]) -> Iterator[Pause]:
    """The part of a body in which the server waits for `condition`."""
    while not condition():
        yield Pause(0.001)


def live_calls() -> int:
    return sum(task.get_name() == "rxllm-call" for task in asyncio.all_tasks())


async def churn(engine: Engine, disposals: int, workers: int = 20) -> None:
    """Make calls and dispose them at random moments: at once, while they connect, before the headers, in between."""
    dice = random.Random(7)

    async def work() -> None:
        for _ in range(disposals // workers):
            subscription = stream_generate(engine, "Hi").subscribe(on_error=lambda error: None)
            for _ in range(dice.choice([0, dice.randrange(12), dice.randrange(100)])):
                await asyncio.sleep(0)
            subscription.dispose()
            await until(lambda: live_calls() < 2 * workers)

    await asyncio.gather(*(work() for _ in range(workers)))


def moody(request: Request) -> Reply:
    """Answers at once, late, never, or stops in the middle."""
    dice = random.Random(len(request.body) + next(COUNT))
    body = [chat_chunk("a"), Pause(dice.random() * 0.004), *chat("b")]
    return dice.choice(
        [Reply(body), Reply(body, before=dice.random() * 0.004), Reply(before=STALL), Reply([chat_chunk("a"), STALL])]
    )


async def all_places_are_free(engine: Engine, places: int = 10) -> None:
    """With a server that stalls, as many calls as the pool has places have begun to answer at the same time."""
    heard = [list[Event]() for _ in range(places)]
    calls = [stream_generate(engine, "Hi").subscribe(events.append) for events in heard]
    await until(lambda: all(heard))
    for call in calls:
        call.dispose()
    await until(lambda: live_calls() == 0)

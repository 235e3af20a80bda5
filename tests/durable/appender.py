"""A process that appends until it is killed, and says what is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from multiprocessing.connection import Connection

from rxllm.durable import Record, Store


def append(pipe: Connection, make_store: Callable[[], Store], id: str, owner: str) -> None:
    async def main() -> None:
        store = make_store()
        lease = await store.claim(id, owner, 0.0)  # it can be claimed again at once after a kill
        assert lease is not None
        number = (await store.load(id)).events
        while True:
            batch = range(number + 1, number + 4)
            await store.append(lease, [b"%d" % event for event in batch], [Record("batch", str(number))])
            number += 3
            pipe.send(number)

    asyncio.run(main())

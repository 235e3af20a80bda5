"""A process that appends until it is killed: ``python appender.py store id owner``. It prints what is acknowledged."""

import asyncio
import sys

from rxllm.durable import Record, open_store


async def main(place: str, id: str, owner: str) -> None:
    store = open_store(place)
    lease = await store.claim(id, owner, 0.0)  # it can be claimed again at once after a kill
    assert lease is not None
    number = (await store.load(id)).events
    while True:
        batch = range(number + 1, number + 4)
        await store.append(lease, [b"%d" % event for event in batch], [Record("batch", str(number))])
        number += 3
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""The runs that this process executes.

=======================================  ===============================================================================
situation                                reaction
=======================================  ===============================================================================
a run is taken                           Claim the run, and execute it in this process until it ends.
`take` is cancelled during the claim     Let the claim finish, then release the lease at once.
`close` is called during the claim       Let the claim finish, then release the lease at once.
`close` is called                        Stop all producers. Wait up to `lease_seconds` for them and for all claims.
=======================================  ===============================================================================
"""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import Future
from secrets import token_hex

from rxllm.durable._producer import Factory, Producer, Suspects
from rxllm.durable._store import Store


class Producers:
    """The producers of runs in this process, by run id. `owner` identifies this process in its leases."""

    def __init__(self, store: Store, flush_after: float, lease: float, max_attempts: int) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"
        self.lease_seconds = lease
        self.is_closed = False
        self._store, self._options = store, (flush_after, max_attempts, Suspects())
        self._producers: dict[str, Producer] = {}
        self._claims: dict[asyncio.Task[bool], Future[None]] = {}  # each future is completed when its claim ends

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._producers)

    async def take(self, id: str, factory: Factory, *, cancels: bool = False) -> bool:
        """Claim a run, and start its producer. Return whether the run was claimed.

        If `cancels` is True, cancel the run before its producer starts, and wait until the producer has ended.
        """
        if self.is_closed:
            return False
        is_left = asyncio.Event()
        taking = asyncio.create_task(self._take(id, factory, is_left, cancels), name="rxllm-claim")
        self._claims[taking] = Future()
        taking.add_done_callback(lambda _: self._claims.pop(taking).set_result(None))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            is_left.set()
            raise

    async def _take(self, id: str, factory: Factory, is_left: asyncio.Event, cancels: bool) -> bool:
        lease = await self._store.claim(id, self.owner, self.lease_seconds)
        if lease is None:
            return False
        if self.is_closed or is_left.is_set():
            await self._store.release(lease)
            return False
        if cancels:
            await self._store.cancel(id)
        producer = self._producers[id] = Producer(self._store, lease, factory, *self._options)

        def forget(_: object) -> None:
            if self._producers.get(id) is producer:
                del self._producers[id]

        producer.start().add_done_callback(forget)
        if cancels:
            await asyncio.wrap_future(producer.ended)
        return True

    def cancel(self, id: str) -> None:
        if id in self._producers:
            self._producers[id].cancel()

    async def close(self) -> None:
        """Stop executing runs, and close the store."""
        self.is_closed = True
        producers = [*self._producers.values()]
        for producer in producers:
            producer.stop()
        # These futures are not tied to an event loop, because a producer's loop may be closed by now.
        if pending := [*(producer.ended for producer in producers), *self._claims.values()]:
            await asyncio.wait([asyncio.wrap_future(future) for future in pending], timeout=self.lease_seconds)
        for producer in producers:
            producer.abandon()
        await self._store.close()

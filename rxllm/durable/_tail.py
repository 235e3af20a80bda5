"""The tail of a run's log: its newest events, read and decoded once for all who watch the run on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rxllm import RunError, StreamCollector
from rxllm.durable._log import PAGE, Log
from rxllm.durable._store import Run, Store
from rxllm.events import Event

WINDOW = 1024
"""How many events are kept; a watcher that is further behind reads the log itself."""

WAIT_SECONDS = 30.0


class Tail:
    """The events of the run `id` from number `_start` + 1 to `_end`. `watchers` counts those who read them."""

    def __init__(self, store: Store, id: str) -> None:
        self.watchers = 0
        self.run: Run | None = None  # once it has ended and everything has been read
        self._store, self._id, self._log = store, id, Log(store, id)
        self._start = self._end = -1
        self._is_at_end = False  # when it was last read
        self._events: list[Event] = []
        self._reading: asyncio.Task[None] | None = None

    async def after(self, number: int) -> Sequence[Event]:
        """Return events behind number `number`, as soon as there are any; none at the end of the run."""
        while True:
            if self._start <= number < self._end:
                return self._events[number - self._start : number - self._start + PAGE]
            if number < self._start:
                return await self._read(number)
            if self.run is not None:
                return ()
            if number > self._end:  # whoever is ahead sets the pace
                self._start = self._end = number
                self._events = []
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_on(number))
                self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # or nobody reads on
            reading = self._reading  # another one may follow before this watcher goes on
            await asyncio.wait({reading})
            reading.result()

    async def folded(self) -> tuple[StreamCollector, int]:
        """Return the fold of what is committed, and how many events that is."""
        state, number = StreamCollector(), 0
        while events := await self._read(number):
            number += len(events)
            for event in events:
                state = state.apply_event(event)
        return state, number

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, number: int) -> list[Event]:
        return await self._log.page(number)

    async def _read_on(self, number: int) -> None:
        while True:
            if self._is_at_end:
                await self._store.wait(self._id, number, WAIT_SECONDS)
            events = await self._read(number)
            self._is_at_end = len(events) < PAGE
            if events:
                break
            run = await self._store.load(self._id)
            if run.events < number:
                why = (
                    f"the store has lost events: {number} had been read, and it has {run.events}; watch from the first"
                )
                raise RunError("rolled_back", why, run_id=self._id)
            if run.ended_at is not None and run.events <= number:
                self.run = run
                return
        if number == self._end:  # nobody has gone ahead meanwhile
            self._events = [*self._events, *events][-WINDOW:]
            self._end += len(events)
            self._start = self._end - len(self._events)

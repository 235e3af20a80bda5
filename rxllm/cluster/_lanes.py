"""`Lanes`, which sends requests to the workers and receives their outcomes.

A lane is one worker's part of a run.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from threading import Thread
from time import monotonic
from typing import Any, Self
from uuid import uuid4

from distributed import Client, LocalCluster
from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

from rxllm import AdapterError, EngineError, Event, LLMError, Stream, StreamError, from_async_iter, to_async_iter
from rxllm.cluster import _worker
from rxllm.cluster._worker import Outcome, pack

__all__ = ["Lanes", "open_lanes", "pack"]

_PATIENCE = 60.0
"""The maximum number of seconds that a run waits for a worker before the run fails."""

_LOOK = 0.5
"""The number of seconds between refreshes of the worker list."""

GUARD = 'put the call below `if __name__ == "__main__":` in a file whose name ends in .py, or pass a client'

_GRACE = 3.0
"""The maximum number of seconds to wait for pending calls when a run ends."""

_DEATHS = 3
"""If this many workers die while running a request, the request fails."""


@asynccontextmanager
async def open_lanes(client: Any, setup: bytes, concurrency: int) -> AsyncGenerator[Lanes]:
    """Open lanes on rxllm's own event loop, and close them there.

    On the caller's loop, ``asyncio.run`` would cancel Dask's tasks too early.
    """
    source = from_async_iter(partial(_lanes, client, setup, concurrency))
    async with to_async_iter(Stream(partial(_subscribe_on_own_loop, source))) as items:
        yield await anext(items)


async def _lanes(client: Any, setup: bytes, concurrency: int) -> AsyncGenerator[Lanes]:
    async with _connect(client) as own, Lanes(own, setup, concurrency) as lanes:
        yield lanes
        await asyncio.Event().wait()


def _subscribe_on_own_loop(
    source: Stream[Lanes], observer: abc.ObserverBase[Lanes], scheduler: abc.SchedulerBase | None = None
) -> abc.DisposableBase:
    """Subscribe on a thread that has no event loop, so that rxllm's own loop is used."""
    subscription = SingleAssignmentDisposable()

    def subscribe() -> None:
        subscription.disposable = source.subscribe(observer)

    thread = Thread(target=subscribe, name="rxllm-cluster")
    thread.start()
    thread.join()
    return subscription


@asynccontextmanager
async def _connect(client: Any) -> AsyncGenerator[Any]:
    """Connect to the scheduler of `client`, or start local workers.

    Each run has its own connection. Closing the connection cancels the run's tasks.
    """
    if client is None:
        quiet: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.ERROR}
        local = LocalCluster(asynchronous=True, threads_per_worker=1, **quiet)
        with _quiet(logging.ERROR):
            async with (
                _open_resource(local, _started(local)),
                _open_resource(Client(local, asynchronous=True, set_as_default=False)) as own,
            ):
                yield own
    else:
        options = {"asynchronous": True, "set_as_default": False, "security": client.security}
        async with _open_resource(Client(client.scheduler.address, **options)) as own:
            yield own


async def _started(local: Any) -> Any:
    try:
        with _quiet(logging.CRITICAL):
            return await local
    except Exception as error:
        cause = error.__cause__ or error  # Dask's own error is longer than its cause, or does not give the reason
        message = f"the workers on this machine cannot start: {str(cause).rstrip('.')}; {GUARD}"
        raise EngineError("invalid_engine", message) from None


@contextmanager
def _quiet(level: int) -> Generator[None]:
    """Silence Dask's log messages below `level`, even those logged after a cluster has closed."""
    handlers = logging.getLogger("distributed").handlers[:]

    def is_loud(record: logging.LogRecord) -> bool:
        return record.levelno >= level

    for handler in handlers:
        handler.addFilter(is_loud)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_loud)


@asynccontextmanager
async def _open_resource(resource: Any, opening: Awaitable[Any] | None = None) -> AsyncGenerator[Any]:
    """Open `resource`, and always close it on exit."""
    opened = asyncio.ensure_future(resource if opening is None else opening)
    try:
        yield await asyncio.shield(opened)
    finally:
        await asyncio.wait([opened])
        _ = opened.cancelled() or opened.exception()  # keeps asyncio from logging the error
        await _finish(resource.close())


async def _finish(work: Awaitable[Any]) -> None:
    """Wait until `work` is done, even if the current task is cancelled."""
    closing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(closing)
    finally:
        await asyncio.wait([closing])


class _Job:
    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data
        self.deaths = 0
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()


class _Lane:
    def __init__(self, address: str, key: str, future: Any) -> None:
        self.address = address
        self.key = key
        self.future = future
        self.is_ready = False
        self.running: dict[int, _Job] = {}
        self.outgoing: list[_worker.Job] = []
        self.wake = asyncio.Event()

    def send(self, number: int, data: bytes | None) -> None:
        self.outgoing.append((number, data))
        self.wake.set()


def _unpack(data: bytes) -> Outcome:
    try:
        return pickle.loads(data)
    except Exception as error:  # the class of a pickled exception may not accept the exception's `args`
        message = f"this process cannot read the worker's response: {type(error).__name__}: {error}"
        return [], StreamError("malformed_event", message)


class Lanes:
    """Sends each worker up to `concurrency` requests at a time.

    Every worker serves one lane. If a worker dies, other workers receive its requests before any new ones. The lanes
    belong to one event loop, but `place` and `run` work on any loop.
    """

    def __init__(self, client: Any, setup: bytes, concurrency: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._setup = setup
        self._concurrency = concurrency
        self._lanes: dict[str, _Lane] = {}
        self._waiting: deque[_Job] = deque()
        self._numbers = 0
        self._queue: deque[Future[None]] = deque()  # one entry for each call that is waiting for room
        self._admitted = 0
        self._failure: LLMError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Future[Any]] = set()

    async def __aenter__(self) -> Self:
        self.workers = len(await self._addresses())
        self._begin(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        await _finish(self._close())

    async def _close(self) -> None:
        for lane in self._lanes.values():
            lane.future.release()  # makes the worker close its connections
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._calls:  # closing a cluster during a call logs an error
            await asyncio.wait(self._calls, timeout=_GRACE)
        for call in self._calls:
            call.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def place(self, source: Observable[Event]) -> Stream[Event]:
        """Return a stream that subscribes to `source` as soon as a worker has room for another request."""

        async def events() -> AsyncGenerator[Event]:
            async with self._room(), to_async_iter(source) as items:
                async for event in items:
                    yield event

        return from_async_iter(events)

    @asynccontextmanager
    async def _room(self) -> AsyncGenerator[None]:
        entry = Future[None]()
        self._call_soon(self._enter, entry)
        try:
            await asyncio.wrap_future(entry)
            yield
        finally:
            entry.cancel()
            self._call_soon(self._leave, entry)

    def _call_soon(self, function: Callable[[Future[None]], None], entry: Future[None]) -> None:
        if asyncio.get_running_loop() is self._loop:
            function(entry)
        else:
            self._loop.call_soon_threadsafe(function, entry)

    def _enter(self, entry: Future[None]) -> None:
        self._queue.append(entry)
        self._admit()

    def _leave(self, entry: Future[None]) -> None:
        if not entry.cancelled():
            self._admitted -= 1
            self._admit()

    def _admit(self) -> None:
        room = sum(lane.is_ready for lane in self._lanes.values()) * self._concurrency
        while self._queue and (self._admitted < room or self._failure is not None):
            entry = self._queue.popleft()
            if entry.set_running_or_notify_cancel():
                self._admitted += 1
                entry.set_result(None)

    async def run(self, request: Any, request_id: str) -> Outcome:
        running = self._run(pack((request, request_id)))
        if asyncio.get_running_loop() is self._loop:
            return await running
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(running, self._loop))

    async def _run(self, data: bytes) -> Outcome:
        if self._failure is not None:
            raise self._failure
        self._numbers += 1
        job = _Job(self._numbers, data)
        self._waiting.append(job)
        self._deal()
        try:
            return await job.outcome
        finally:
            self._forget(job)

    def _forget(self, job: _Job) -> None:
        for lane in self._lanes.values():
            if lane.running.pop(job.number, None) is not None:  # the caller's stream was disposed
                lane.send(job.number, None)
        self._deal()

    def _deal(self) -> None:
        while self._waiting:
            lanes = [lane for lane in self._lanes.values() if lane.is_ready and len(lane.running) < self._concurrency]
            if not lanes:
                return
            lane, job = min(lanes, key=lambda lane: len(lane.running)), self._waiting.popleft()
            if not job.outcome.done():
                lane.running[job.number] = job
                lane.send(job.number, job.data)

    def _fail(self, error: LLMError) -> None:
        self._failure = error
        running = [job for lane in self._lanes.values() for job in lane.running.values()]
        for job in (*running, *self._waiting):
            if not job.outcome.done():
                job.outcome.set_exception(error)
        self._admit()

    async def _watch(self) -> None:
        """Keep a lane open on every worker."""
        last_seen = monotonic()
        while self._failure is None:
            try:
                addresses = await self._addresses()
            except Exception as error:
                self._fail(AdapterError("provider_unavailable", f"the cluster's scheduler is not responding: {error}"))
                return
            for address in self._lanes.keys() - addresses:
                self._lose(self._lanes[address])
            for address in addresses - self._lanes.keys():
                self._open(address)
            last_seen = monotonic() if addresses else last_seen
            if monotonic() - last_seen > _PATIENCE:
                message = f"the cluster has had no workers for {_PATIENCE:g} s; start one, or pass another client"
                self._fail(AdapterError("provider_unavailable", message))
            await asyncio.sleep(_LOOK)

    async def _addresses(self) -> set[str]:
        return set(await self._client.nthreads())

    def _open(self, address: str) -> None:
        key = f"rxllm-{uuid4().hex}"
        where = {"workers": [address], "allow_other_workers": False, "pure": False}
        future = self._client.submit(_worker.serve, key, self._setup, key=key, **where)
        lane = self._lanes[address] = _Lane(address, key, future)
        self._begin(self._serve(lane))

    async def _serve(self, lane: _Lane) -> None:
        try:
            while not await self._call(lane, _worker.started):
                if lane.future.status == "error":
                    raise await lane.future.exception()
            lane.is_ready = True
            self._admit()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._put(lane))
                both.create_task(self._take(lane))
        except* OSError:
            pass  # the worker has died
        except* Exception as errors:
            if not lane.is_ready:
                error = errors.exceptions[0]
                message = f"the worker {lane.address} cannot load the engine: {type(error).__name__}: {error}"
                remedy = "install the same packages on the worker as on this machine, including your own modules"
                self._fail(EngineError("invalid_engine", f"{message}; {remedy}"))
        finally:
            self._lose(lane)

    async def _put(self, lane: _Lane) -> None:
        self._deal()
        while True:
            await lane.wake.wait()
            lane.wake.clear()
            jobs, lane.outgoing = lane.outgoing, []
            await self._call(lane, _worker.put, jobs)

    async def _take(self, lane: _Lane) -> None:
        while True:
            for number, outcome in await self._call(lane, _worker.take):
                job = lane.running.pop(number, None)
                if job is not None and not job.outcome.done():
                    job.outcome.set_result(_unpack(outcome))
            self._deal()

    async def _call(self, lane: _Lane, function: Callable[..., Any], *arguments: Any) -> Any:
        call = asyncio.ensure_future(self._client.run(function, lane.key, *arguments, workers=[lane.address]))
        self._calls.add(call)
        call.add_done_callback(self._forget_call)
        await asyncio.wait([call])  # cancelling this task does not cancel the call
        return call.result()[lane.address]

    def _forget_call(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        _ = call.cancelled() or call.exception()  # keeps asyncio from logging the error

    def _lose(self, lane: _Lane) -> None:
        """Remove `lane`, and pass its requests on to other lanes."""
        if self._lanes.get(lane.address) is not lane:
            return
        del self._lanes[lane.address]
        lane.future.release()
        for job in reversed(lane.running.values()):
            job.deaths += 1
            if job.deaths < _DEATHS:
                self._waiting.appendleft(job)
            elif not job.outcome.done():
                message = f"{_DEATHS} workers have died while running this request; see their logs"
                job.outcome.set_exception(AdapterError("provider_unavailable", message))
        lane.running.clear()
        self._deal()

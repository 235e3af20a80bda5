"""The code that runs requests on a Dask worker."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from distributed import WorkerPlugin, get_worker
from reactivex.disposable import SingleAssignmentDisposable

import rxllm
from rxllm import Engine, EngineError, Event, LLMError, Request

Job = tuple[int, bytes | None]
"""A request's number, and the pickled request. None as the second value stops the request."""

Outcome = tuple[list[Event], Exception | None]

_POLL = 5.0
"""The maximum number of seconds that `take` waits."""

_lanes: dict[str, Lane] = {}


def pack(value: Any) -> bytes:
    """Pickle `value`, which may contain functions and classes that are defined in the main module."""
    try:
        data = pickle.dumps(value)
    except Exception:
        data = b"__main__"
    return import_module("cloudpickle").dumps(value) if b"__main__" in data else data


async def serve(key: str, setup: bytes) -> None:
    """Serve a run as a Dask task, until the task's future is released."""
    engine, options = pickle.loads(setup)
    worker, lane = get_worker(), Lane(engine, options)
    # Dask's cancellation notifies plugins, but does not stop the coroutine.
    worker.plugins[key] = _Cancellation(key, lane)
    _lanes[key] = lane
    try:
        task = worker.state.tasks.get(key)
        if task is not None and task.state == "executing":
            await lane.closed.wait()
    finally:
        lane.close()
        del _lanes[key]
        worker.plugins.pop(key, None)
        await rxllm.aclose(engine)


async def started(key: str) -> bool:
    for _ in range(5):
        if key in _lanes:
            return True
        await asyncio.sleep(0.05)
    return False


async def put(key: str, jobs: Iterable[Job]) -> None:
    lane = _lanes[key]
    for number, request in jobs:
        lane.stop(number)
        if request is not None:
            lane.start(number, request)


async def take(key: str) -> list[tuple[int, bytes]]:
    """Return the outcomes that have arrived. If there are none yet, wait up to a few seconds for the first one."""
    lane = _lanes[key]
    try:
        await asyncio.wait_for(lane.news.wait(), _POLL)
    except TimeoutError:
        return []
    return lane.take()


class Lane:
    """A run's requests on this worker. A lane is used only on the event loop on which it was created."""

    def __init__(self, engine: Engine, options: dict[str, Any]) -> None:
        self.news = asyncio.Event()
        self.closed = asyncio.Event()
        self._engine = engine
        self._options = options
        self._running: dict[int, SingleAssignmentDisposable] = {}
        self._outcomes: list[tuple[int, bytes]] = []

    def start(self, number: int, packed_request: bytes) -> None:
        events: list[Event] = []

        def end(error: Exception | None = None) -> None:
            self._running.pop(number, None)
            self._outcomes.append((number, _outcome(events, error)))
            self.news.set()

        try:
            request, request_id = _request(packed_request)
            stream = rxllm.stream_generate(self._engine, request, request_id=request_id, **self._options)
        except Exception as error:
            end(error)
        else:
            subscription = self._running[number] = SingleAssignmentDisposable()
            subscription.disposable = stream.subscribe(events.append, end, end)

    def stop(self, number: int) -> None:
        subscription = self._running.pop(number, None)
        if subscription is not None:
            subscription.dispose()

    def take(self) -> list[tuple[int, bytes]]:
        self.news.clear()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def close(self) -> None:
        for number in list(self._running):
            self.stop(number)
        self.closed.set()
        self.news.set()


class _Cancellation(WorkerPlugin):
    def __init__(self, key: str, lane: Lane) -> None:
        self._key = key
        self._lane = lane

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if key == self._key and finish in ("cancelled", "released", "forgotten"):
            self._lane.close()

    def teardown(self, worker: Any) -> None:
        self._lane.close()


def _request(data: bytes) -> tuple[Request, str]:
    try:
        return pickle.loads(data)
    except Exception as error:
        message = (
            f"the worker cannot read the request: {error}; on the worker, install all modules that the request uses"
        )
        raise EngineError("invalid_engine", message) from error


def _outcome(events: list[Event], error: Exception | None) -> bytes:
    try:
        return pack((events, error))
    except Exception as fault:
        cls = LLMError if error is None else type(error)
        message = f"the response cannot be sent from the worker ({cls.__name__}): {fault}"
        return pack(([], EngineError("invalid_engine", message)))

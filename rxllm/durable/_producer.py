"""The producer of a run: it builds the run's stream, subscribes to it, and commits what comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, cast

import msgspec
from reactivex import Observable

from rxllm import LLMError, Request, RunError, Stream, StreamError, request_key, serializer, to_async_iter
from rxllm import operators as ops
from rxllm.durable._journal import StoredJournal
from rxllm.durable._sessions import is_turn, settle
from rxllm.durable._store import Ending, Lease, Record, Run, Store
from rxllm.durable._writer import Writer
from rxllm.events import EVENT_CLASSES, ChatCompleted, ErrorEvent, Event, StepCompleted, StepRestarted
from rxllm.values.argument_checks import must_be

log = logging.getLogger("rxllm")

Factory = Callable[..., Observable[Event]]
"""What builds the stream of a run, from its input, and from the session too if the run is a turn of one."""

ATTEMPT, STOP = "attempt", "stop"
"""The kinds of the records that a producer has begun to go on with the run, and that it has stopped without dying."""

_EVENTS = frozenset(EVENT_CLASSES)

_ENDS = (ErrorEvent, StepCompleted, ChatCompleted)

PAGE = 256
"""How many events of a log are read at once."""


class Producer:
    """Produces one run, from where its log ends, on the running loop.

    ===========================  =======================================================================================
    when                         it
    ===========================  =======================================================================================
    the stream ends              commits the last events together with the end
    somebody asks for the end    disposes the stream, and commits what had come as cancelled
    the lease is lost            disposes the stream and leaves the run to whoever has it
    `stop`, the loop's end       disposes the stream, commits what had come, and gives the lease back
    ===========================  =======================================================================================
    """

    def __init__(self, store: Store, lease: Lease, factory: Factory, flush_after: float, max_attempts: int) -> None:
        self._store, self._lease, self._factory, self._max_attempts = store, lease, factory, max_attempts
        self._writer = Writer(store, lease, flush_after)
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._to_drop = 0  # how many ends of steps and chats the log has already
        self._input, self._name = b"", ""
        self._last = b""  # the last of these
        self._journal: StoredJournal | None = None
        self.ended: Future[None] = Future()

    def stop(self) -> None:
        """Leave the run to others. Wait for `ended`. From any thread."""
        self._set(self._stopped)

    def cancel(self) -> None:
        """Do at once what the store would tell it soon: somebody has asked for the end. From any thread."""
        self._set(self._writer.is_cancelled)

    def _set(self, future: asyncio.Future[None]) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))

    async def run(self) -> None:
        """Produce the run; log what keeps it from that."""
        try:
            await self._produce()
        except RunError as error:
            log.warning("the run %s is left to others: %s", self._lease.run_id, error)
        except Exception as error:  # which a store is not to raise
            log.error("the run %s is left to others: its store failed", self._lease.run_id, exc_info=error)
        finally:
            try:
                with suppress(Exception):  # the lease expires
                    await self._store.release(self._lease)
            finally:
                self.ended.set_result(None)

    async def _produce(self) -> None:
        writing = asyncio.create_task(self._writer.run())
        renewing = asyncio.create_task(self._writer.keep_lease())
        reading = asyncio.create_task(self._read())
        try:
            ends = {reading, writing, renewing, self._writer.is_cancelled, self._stopped}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            ending = await self._ending(reading)
            renewing.cancel()
            if writing.done():
                writing.result()
            if ending is not None and is_turn(self._input):  # before the end, after which runs expire
                await self._writer.flush()
                await settle(self._store, self._input)
            elif ending is None:
                self._writer.record(Record(STOP, self._lease.owner))
            await (self._writer.flush() if ending is None else self._writer.finish(ending))
            if ending is None and renewing.done() and not renewing.cancelled():
                renewing.result()
        finally:
            for task in (reading, writing, renewing):
                task.cancel()
            await asyncio.wait({reading, writing, renewing})
            for task in (reading, writing, renewing):  # what keeps them from going on is the same for all
                if not task.cancelled():
                    task.exception()

    async def _ending(self, reading: asyncio.Task[Ending]) -> Ending | None:
        """Return how the run ends, None if it is left to others; the stream has ended then."""
        if reading.done():
            return reading.result()
        if self._journal is not None:
            self._journal.close()
        reading.cancel()
        await asyncio.wait({reading})
        return Ending("cancelled") if self._writer.is_cancelled.done() else None

    async def _read(self) -> Ending:
        run, records = await self._store.load(self._lease.run_id), await self._store.records(self._lease.run_id)
        self._input, self._name = run.input, run.factory
        if run.is_cancelled:
            return Ending("cancelled")
        await self._rejoin(run)
        self._journal = journal = StoredJournal(records, self._writer)
        try:
            self._check_attempts(records)
            if self._lease.epoch > 1:
                self._writer.record(Record(ATTEMPT, self._lease.owner))
                await self._writer.flush()
            is_halted = False
            stream = self._build(run).pipe(ops.journaled(journal), ops.tap(self._receive))
            async with to_async_iter(stream) as events:
                async for event in events:
                    if type(event) is ChatCompleted:
                        is_halted = _is_halted(event)
                    if self._writer.is_full:
                        await self._writer.room()
            journal.check()
        except Exception as error:
            if not isinstance(error, LLMError):
                log.warning("the stream of the factory %r raised an error", run.factory, exc_info=error)
            return Ending("failed", _error_json(error))
        return Ending("halted" if is_halted else "completed")

    def _check_attempts(self, records: Sequence[Record]) -> None:
        """Raise if so many producers have died, one after the other, without getting any further."""
        dead = 1
        for record in records:
            dead = dead + 1 if record.kind == ATTEMPT else dead - 1 if record.kind == STOP else 1
        if self._lease.epoch > 1 and dead >= self._max_attempts:
            id = self._lease.run_id
            message = f"run error ({id}): {dead} processes that produced it have died at the same place; see their logs"
            raise RunError("too_many_attempts", message, run_id=id)

    def _build(self, run: Run) -> Stream[Event]:
        input = serializer.from_json(run.input).data
        turn = (input["input"], input["session"]) if is_turn(run.input) else (input,)
        try:
            stream: Any = self._factory(*turn)
        except Exception as error:
            log.warning("the factory %r raised an error", run.factory, exc_info=error)
            if isinstance(error, LLMError):  # keep its class and reason
                message = f"the factory {run.factory!r} raised: {error.message}"
                raise type(error).from_fields(error.fields() | {"message": message}) from error
            raise self._factory_failed(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(stream, Observable):
            raise self._factory_failed(must_be("a function that returns a stream", stream))
        return Stream.of(cast(Observable[Event], stream)).pipe(ops.tap(self._check_event))

    def _check_event(self, event: Any) -> None:
        if type(event) not in _EVENTS:
            raise self._factory_failed(f"emits a {type(event).__name__}, not events; write rxllm.stream(...)")

    def _factory_failed(self, why: str) -> RunError:
        id = self._lease.run_id
        return RunError("factory_failed", f"run error ({id}): the factory {self._name!r} {why}", run_id=id)

    async def _rejoin(self, run: Run) -> None:
        """Count the ends that the log has, which are not to come again, and void what follows the last of them."""
        number, is_open = 0, False
        while page := await self._store.events(run.id, number, PAGE) if number < run.events else ():
            number += len(page)
            for data in page:
                is_open = msgspec.json.decode(data, type=_Kind).type not in ("step_completed", "chat_completed")
                if not is_open:
                    self._to_drop += 1
                    self._last = data
        if is_open:
            self._commit(StepRestarted("recovered", self._lease.epoch - 1))

    def _receive(self, event: Event) -> None:
        if self._journal is not None and type(event) in _ENDS:
            self._journal.check()
        if not self._to_drop:
            self._commit(event)
        elif type(event) is StepCompleted or type(event) is ChatCompleted:
            self._to_drop -= 1
            if not self._to_drop:
                self._check_same(event)

    def _check_same(self, event: StepCompleted | ChatCompleted) -> None:
        """Raise unless the stream has come to where the log ends; the last end has the whole thread."""
        if _thread_key(event) != _thread_key(serializer.from_json(self._last)):
            message = "its steps are not those that are committed; a factory must build the same stream again"
            raise RunError("diverged", f"the run cannot go on: {message}", run_id=self._lease.run_id)

    def _commit(self, event: Event) -> None:
        self._writer.event(serializer.to_json(event).encode())


def _thread_key(event: StepCompleted | ChatCompleted) -> str:
    return request_key(Request(event.result.thread.messages))


def _is_halted(event: ChatCompleted) -> bool:
    """Return whether the chat waits for a person."""
    return bool(event.result.pending_tool_calls) or event.result.pending_question is not None


class _Kind(msgspec.Struct):
    """What an event is, without the rest of it."""

    type: str


def _error_json(error: Exception) -> bytes:
    if not isinstance(error, LLMError):
        error = StreamError("unknown", f"{type(error).__name__}: {error}")
    try:
        return serializer.to_json(error).encode()
    except LLMError:  # of its metadata
        return serializer.to_json(type(error)(error.reason, error.message)).encode()

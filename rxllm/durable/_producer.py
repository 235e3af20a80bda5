"""Produce a run's stream and commit its events."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from random import random
from typing import Any, cast

from reactivex import Observable

from rxllm import LLMError, Request, RunError, Stream, StreamError, serializer, to_async_iter
from rxllm import operators as ops
from rxllm.durable._journal import StoredJournal
from rxllm.durable._log import Log, error_in
from rxllm.durable._progress import ProgressLimit
from rxllm.durable._sessions import is_turn, settle, turn_of
from rxllm.durable._store import Ending, Lease, Record, Run, Store, reading
from rxllm.durable._writer import Writer
from rxllm.events import (
    EVENT_CLASSES,
    ChatCompleted,
    Custom,
    ErrorEvent,
    Event,
    Steered,
    StepCompleted,
    StepRestarted,
    unparsed,
)
from rxllm.runtime import log_hidden
from rxllm.values import request_key
from rxllm.values.argument_checks import must_be

log = logging.getLogger("rxllm")

ALONE_SECONDS = 60.0
"""The maximum number of seconds that a suspect may run alone while the other suspects wait."""

LOOK_SECONDS = 0.05

STOP_SECONDS = 10.0
"""The time limit, in seconds, for stopping the answers that providers may still be generating for a cancelled run.

The run is replayed to find these answers.
"""

Factory = Callable[..., Observable[Event]]
"""A function that builds a run's stream from its input and, for a turn, its session."""

ATTEMPT, STOP = "attempt", "stop"
"""The kinds of the journal records for a takeover and for a deliberate stop."""

_EVENTS = frozenset(EVENT_CLASSES)
_ENDS = (ErrorEvent, StepCompleted, ChatCompleted)


class Producer:
    """Executes one run, continuing from the end of its log.

    ==================================  ================================================================================
    situation                           reaction
    ==================================  ================================================================================
    the stream ends                     Commit the last events and the end of the run.
    the run is cancelled                Dispose of the stream, commit the events so far, and end the run as cancelled.
    the lease is lost                   Dispose of the stream. The run now belongs to the process that has the lease.
    `stop` is called or the loop ends   Dispose of the stream, commit the events so far, and release the lease.
    `abandon` is called                 Dispose of the stream and commit nothing.
    ==================================  ================================================================================
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        factory: Factory,
        flush_after: float,
        max_attempts: int,
        suspects: Suspects,
    ) -> None:
        self._store, self._lease, self._factory = store, lease, factory
        self._max_attempts, self._suspects = max_attempts, suspects
        self._writer = Writer(store, lease, flush_after)
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        # The stream first repeats what is already in the log. The producer drops the events of the stream until it has
        # received this number of `StepCompleted` and `ChatCompleted` events.
        self._to_drop = 0
        self._input, self._name = b"", ""
        # The last `StepCompleted` or `ChatCompleted` event in the log, and the `Steered` events after it.
        self._last: StepCompleted | ChatCompleted | None = None
        self._steered: list[Event] = []
        self._log, self._count = Log(store, lease.run_id), 0  # the log and how many events it holds
        self._progress = ProgressLimit(lambda event: self._log.encode(self._count + 1, event), self._append)
        self._journal: StoredJournal | None = None
        self._has_begun = lease.epoch == 1  # whether a crash would now count as a failed attempt
        self.ended: Future[None] = Future()

    def start(self) -> asyncio.Task[None]:
        """Start a task that executes the run in an empty ``contextvars`` context."""
        self._task = self._loop.create_task(self._run(), name="rxllm-run", context=Context())
        return self._task

    def stop(self) -> None:
        """Stop executing the run, and leave it to other processes.

        The future `ended` is completed once this process has stopped executing the run. `stop` can be called from any
        thread.
        """
        self._set(self._stopped)

    def abandon(self) -> None:
        """Stop without committing anything, because the store is not responding.

        This method can be called from any thread.
        """
        if not self.ended.done():
            log.warning("this process has stopped executing run %s: the store is not responding", self._lease.run_id)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._task.cancel)

    def cancel(self) -> None:
        """Cancel the run without waiting for the store. This method can be called from any thread."""
        self._set(self._writer.is_cancelled)

    def _set(self, future: asyncio.Future[None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))

    async def _run(self) -> None:
        try:
            await self._produce()
        except RunError as error:
            log.warning("this process has stopped executing run %s: %s", self._lease.run_id, error)
        except Exception as error:  # a bug in the store
            log.error("this process has stopped executing run %s: the store failed", self._lease.run_id, exc_info=error)
        finally:
            try:
                with suppress(Exception):  # if this fails, the lease will expire
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
            self._progress.flush()
            if writing.done():
                writing.result()
            await self._finish(ending)
            if ending is None and renewing.done() and not renewing.cancelled():
                renewing.result()
        finally:
            if self._journal is not None and not reading.done():
                self._journal.close()
            for task in (reading, writing, renewing):
                task.cancel()
            await asyncio.wait({reading, writing, renewing})
            # Retrieve the exceptions, because asyncio would otherwise log them. All of them have the same cause.
            for task in (reading, writing, renewing):
                if not task.cancelled():
                    task.exception()

    async def _ending(self, reading: asyncio.Task[Ending]) -> Ending | None:
        """Stop the stream. Return the run's ending, or None if another process should continue the run."""
        if reading.done():
            return reading.result()
        if self._journal is not None:
            self._journal.close(is_cancelled=self._writer.is_cancelled.done())
        reading.cancel()
        await asyncio.wait({reading})
        return Ending("cancelled") if self._writer.is_cancelled.done() else None

    async def _finish(self, ending: Ending | None) -> None:
        """Commit the last events, together with the ending or a stop record."""
        if ending is None:
            if self._has_begun:
                self._writer.record(Record(STOP, self._lease.owner))
        else:
            if not self._input:  # cancelled before its input was read
                self._input = (await self._store.load(self._lease.run_id)).input
            await self._stop_answers(ending)
            if is_turn(self._input):  # settle the turn first, because an ended run can expire
                await self._writer.flush()
                await settle(self._store, self._input, ending.error)
        await self._writer.flush(ending)

    async def _stop_answers(self, ending: Ending) -> None:
        """If the run was cancelled, stop the answers that providers may still be generating for earlier processes.

        Log any answers that have not been stopped.
        """
        journal = self._journal
        if journal is not None and not journal.unread_answers:
            return
        with suppress(Exception):  # a damaged record, or the error that ends the replay
            run = await self._store.load(self._lease.run_id)
            records = await self._store.records(run.id)
            journal = journal or StoredJournal(records, self._writer, only_stops=True)
            if journal.unread_answers and ending.status == "cancelled":
                journal = StoredJournal(records, self._writer, only_stops=True)
                async with asyncio.timeout(STOP_SECONDS):
                    await self._build(run, _arguments(run.input)).pipe(ops.journaled(journal)).to_list()
        if journal is not None and (unread := journal.unread_answers):
            log.warning(
                "run %s is ending, but these answers were not stopped and may still cost money: %s",
                self._lease.run_id,
                ", ".join(unread),
            )

    async def _read(self) -> Ending:
        run = await self._store.load(self._lease.run_id)
        self._input, self._name = run.input, run.factory
        if run.is_cancelled:
            return Ending("cancelled")
        try:
            with reading("its input", run.id):
                arguments = _arguments(run.input)
            records = await self._store.records(run.id)
            journal = StoredJournal(records, self._writer)
            await self._rejoin(run)
        except RunError as error:
            if error.reason != "unreadable":
                raise
            log.warning("run %s has failed: %s", run.id, error)
            return Ending("failed", _error_json(error))
        return await self._play(run, arguments, records, journal)

    async def _play(
        self, run: Run, arguments: Sequence[Any], records: Sequence[Record], journal: StoredJournal
    ) -> Ending:
        self._journal = journal
        try:
            if self._lease.epoch > 1:
                await self._begin_again(records)
            is_halted = False
            stream = self._build(run, arguments).pipe(ops.journaled(journal), ops.tap(self._receive))
            async with to_async_iter(stream) as events:
                async for event in events:
                    if type(event) is ChatCompleted:
                        result = event.result
                        is_halted = bool(result.pending_tool_calls) or result.pending_question is not None
                    if self._writer.is_full:
                        await self._writer.room()
            journal.check()
        except Exception as error:
            if isinstance(error, LLMError):
                self._log_error(error)
            else:
                log.warning("the stream from the factory %r raised an error", run.factory, exc_info=error)
            return Ending("failed", _error_json(error))
        return Ending("halted" if is_halted else "completed")

    async def _begin_again(self, records: Sequence[Record]) -> None:
        """Record that this process is attempting to produce the run. A suspect run waits for its turn first.

        Raises ``RunError("too_many_attempts")`` if too many processes have died at the same point in the run.
        """
        dead = 1
        for record in records:
            if record.kind == "answer":  # sending a request is not progress
                continue
            dead = dead + 1 if record.kind == ATTEMPT else dead - 1 if record.kind == STOP else 1
        if dead >= self._max_attempts:
            id = self._lease.run_id
            message = f"run error ({id}): {dead} processes have died at the same point in this run; see their logs"
            raise RunError("too_many_attempts", message, run_id=id)
        if dead >= max(1, self._max_attempts // 3):
            # The first record is for this attempt. A second record means that the run has made progress.
            await self._suspects.turn(dead, lambda: self._writer.noted < 2 and not self.ended.done())
        self._has_begun = True
        self._writer.record(Record(ATTEMPT, self._lease.owner))
        await self._writer.flush()

    def _build(self, run: Run, arguments: Sequence[Any]) -> Stream[Event]:
        try:
            stream: Any = self._factory(*arguments)
        except Exception as error:
            log.warning("the factory %r raised an error", run.factory, exc_info=error)
            if isinstance(error, LLMError):  # keep the error's class and reason
                message = f"the factory {run.factory!r} raised: {error.message}"
                failure: LLMError = type(error).from_fields(error.fields() | {"message": message})
            else:
                failure = self._factory_failed(f"raised {type(error).__name__}: {error}")
            failure.is_logged = True
            raise failure from error
        if not isinstance(stream, Observable):
            raise self._factory_failed(must_be("a function that returns a stream", stream))
        return Stream.of(cast(Observable[Event], stream)).pipe(ops.tap(self._check_event))

    def _check_event(self, event: Any) -> None:
        if type(event) not in _EVENTS:
            raise self._factory_failed(f"emits {type(event).__name__} items, not events; use rxllm.stream(...)")

    def _factory_failed(self, why: str) -> RunError:
        id = self._lease.run_id
        return RunError("factory_failed", f"run error ({id}): the factory {self._name!r} {why}", run_id=id)

    async def _rejoin(self, run: Run) -> None:
        """Read the log. If its last step is incomplete, void that step."""
        is_open = False
        async for event in self._log.events(run.events):
            self._count += 1
            if isinstance(event, StepCompleted | ChatCompleted):
                self._to_drop += 1
                self._last, self._steered, is_open = event, [], False
            elif isinstance(event, Steered):
                self._steered.append(event)  # stays valid even if the step is voided
            else:
                is_open = True
        if is_open:
            self._commit(StepRestarted("recovered", self._lease.epoch - 1))

    def _receive(self, event: Event) -> None:
        event = unparsed(event)
        if self._journal is not None and type(event) in _ENDS:
            self._journal.check()
        if not self._to_drop and self._steered[:1] == [event]:
            self._steered.pop(0)
        elif not self._to_drop:
            self._commit(event)
        elif type(event) is StepCompleted or type(event) is ChatCompleted:
            self._to_drop -= 1
            if not self._to_drop:
                self._check_same(event)

    def _check_same(self, event: StepCompleted | ChatCompleted) -> None:
        def key(event: StepCompleted | ChatCompleted) -> str:
            return request_key(Request(event.result.thread.messages))

        if self._last is None or key(event) != key(self._last):
            message = "its steps differ from the committed ones; a factory must build the same stream every time"
            raise RunError("diverged", f"the run cannot continue: {message}", run_id=self._lease.run_id)

    def _commit(self, event: Event) -> None:
        if error := error_in(event):
            self._log_error(error)
        self._progress.pass_on(event)

    def _log_error(self, error: LLMError) -> None:
        """Log an error now, because its traceback will not be stored."""
        log_hidden(error, "error in run %s", self._lease.run_id)

    def _append(self, data: bytes) -> None:
        self._count += 1
        self._writer.event(data)


def _arguments(data: bytes) -> Sequence[Any]:
    if is_turn(data):
        turn = turn_of(data)
        return turn.input, turn.session
    input = serializer.from_json(data, local_files=True)
    if not isinstance(input, Custom):
        raise TypeError(f"it is a {type(input).__name__}")
    return (input.data,)


def _error_json(error: Exception) -> bytes:
    if not isinstance(error, LLMError):
        error = StreamError("unknown", f"{type(error).__name__}: {error}")
    try:
        return serializer.to_json(error).encode()
    except LLMError:  # the error's metadata cannot be serialized
        return serializer.to_json(type(error)(error.reason, error.message)).encode()


class Suspects:
    """Makes suspects take turns. A suspect is a run during which at least ``max(1, max_attempts // 3)`` processes have
    died.

    One of the suspects is probably killing the processes. The suspect with the most deaths goes first. Ties are broken
    at random, so that a slow run does not always go before the one that kills processes.

    A turn ends after `ALONE_SECONDS`, or when ``is_alone()`` returns False.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, float]] = []
        self._guard = threading.Lock()
        self._is_alone: Callable[[], bool] = lambda: False
        self._until = 0.0

    async def turn(self, deaths: int, is_alone: Callable[[], bool]) -> None:
        rank = deaths, random()
        self._waiting.append(rank)
        try:
            while True:
                # Sleep first, so that all runs that are recovered at the same time have been added to `_waiting`.
                await asyncio.sleep(LOOK_SECONDS)
                if self._take(rank, is_alone):
                    return
        finally:
            self._waiting.remove(rank)

    def _take(self, rank: tuple[int, float], is_alone: Callable[[], bool]) -> bool:
        with self._guard:
            is_taken = self._is_alone() and time.monotonic() < self._until
            if is_taken or rank != max(self._waiting):
                return False
            self._is_alone, self._until = is_alone, time.monotonic() + ALONE_SECONDS
            return True

"""Store runs in Redis, so that processes on many machines can share them.

* Every change is made by a script, so it is atomic and uses the server's clock.
* A log is a Redis list, and an event's number is its position.
* With ``appendonly yes``, commits survive a crash of the server.
* With ``appendfsync always``, they also survive a power cut.
* All keys have the same hash tag, because a cluster requires it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec

from rxllm import EngineError, RunError
from rxllm.durable._redis_scripts import SCRIPTS
from rxllm.durable._store import Ending, Lease, Record, Run, Status, reading
from rxllm.values.argument_checks import invalid_option

CALL_SECONDS = 10.0
"""The timeout for a call, in seconds."""

CONNECTIONS = 32
"""The maximum number of connections per event loop."""

IDLE_SECONDS = 1.0
"""The number of seconds for which a connection for notifications may be idle before it is closed.

The connection stays open while calls are waiting.
"""

ALIVE_SECONDS = 15.0
"""The number of seconds for which a connection may be silent before the server is pinged.

A connection for notifications is closed if the server then sends nothing for another `ALIVE_SECONDS`.
"""

PAGE = 500

GAP = -2
"""The value that the append script returns if the store has lost commits that were made under the lease."""

_FIELDS = ("id", "factory", "input", "ending", "events", "created_at", "ended_at", "is_cancelled", "error")


class RedisStore:
    """A store on the Redis server at `url`."""

    def __init__(self, url: str, *, prefix: str = "rxllm") -> None:
        try:
            self._redis: Any = import_module("redis.asyncio")
        except ImportError as error:
            message = "a Redis store needs redis-py: pip install 'rxllm[redis]'"
            raise EngineError("missing_dependency", message) from error
        try:
            parts = urlsplit(url)
            port = f":{parts.port}" if parts.port else ""
            self._pool(url)
        except ValueError:  # not chained, because the error's message could contain the password
            raise invalid_option("url", 'must be an address such as "redis://host:6379/0"') from None
        self._url, self._shown = url, f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
        self._prefix = f"{{{prefix}}}"
        self._by_loop: dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._tokens: dict[tuple[str, str, int], set[str]] = {}
        """For each lease, the token of the last append that the server answered, and all later tokens."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"RedisStore({self._shown!r})"

    async def create(self, run: Run) -> None:
        if not await self._call("create", run.id, run.factory, run.input, uuid4().hex):
            raise RunError("exists", run_id=run.id)

    async def load(self, id: str) -> Run:
        if not (runs := await self._load([id])):
            raise RunError("unknown_run", run_id=id)
        return runs[0]

    async def runs(self, status: Status | None = None, limit: int = 1000) -> Sequence[Run]:
        found: dict[str, Run] = {}  # pages overlap if a run is created between reads
        async for ids in self._pages("all", "+inf", "-inf", desc=True):
            found |= {run.id: run for run in await self._load(ids) if status in (None, run.status)}
            if len(found) >= limit:
                break
        return [*found.values()][:limit]

    async def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        epoch = await self._call("claim", id, owner, seconds, uuid4().hex)
        if not epoch:
            return None
        self._tokens[id, owner, epoch] = {""}
        return Lease(id, owner, epoch, seconds)

    async def claimable(self, factories: Sequence[str], limit: int = 100) -> Sequence[str]:
        found: list[str] = []
        async for ids in self._pages("open", "-inf", await self._now()):
            _, rows = await self._rows(ids, "factory")  # reads only each run's factory, because inputs can be large
            wanted = {factory.encode() for factory in factories}
            found += [id for id, (factory,) in zip(ids, rows, strict=True) if factory in wanted]
            if len(found) >= limit:
                break
        return found[:limit]

    async def renew(self, lease: Lease) -> bool:
        return _granted(lease, await self._call("renew", lease.run_id, *_holder(lease), lease.seconds))

    async def release(self, lease: Lease) -> None:
        self._tokens.pop((lease.run_id, *_holder(lease)), None)
        await self._call("release", lease.run_id, *_holder(lease))

    async def append(
        self,
        lease: Lease,
        events: Sequence[bytes],
        records: Sequence[Record] = (),
        ending: Ending | None = None,
        token: str = "",
    ) -> bool:
        error = b"" if ending is None or ending.error is None else b"=" + ending.error
        end = (ending.status if ending else "", error)
        entries = [msgspec.msgpack.encode(record) for record in records]
        token = token or uuid4().hex
        holder = lease.run_id, *_holder(lease)
        # If the store knows none of these tokens, it has lost commits.
        tokens = self._tokens.get(holder)
        known = json.dumps([*tokens]) if tokens else ""
        if tokens:
            tokens.add(token)
        fixed = (*_holder(lease), lease.seconds, token, *end, known, len(events))
        answer = await self._call("append", lease.run_id, *fixed, *events, *entries)
        if tokens and answer >= 0 and ending is None:
            self._tokens[holder] = {token}
        else:
            self._tokens.pop(holder, None)
        if answer == GAP:
            raise RunError("rolled_back", f"the store {self._shown!r} has lost committed events", run_id=lease.run_id)
        return _granted(lease, answer)

    async def events(self, id: str, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        return await self._list("events", id, after, after + limit - 1)

    async def records(self, id: str) -> Sequence[Record]:
        entries = await self._list("records", id, 0, -1)
        with reading("its journal", id):
            return [msgspec.msgpack.decode(entry, type=Record) for entry in entries]

    async def wait(self, id: str, after: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        async with self._client() as connections:
            changed = connections.listen(id, after)
        try:
            await connections.subscribed()
            runs = await self._load([id])
            if runs and runs[0].events <= after and runs[0].ended_at is None:
                await asyncio.wait([changed], timeout=max(0.0, deadline - time.monotonic()))
        finally:
            connections.leave(id, changed)

    async def cancel(self, id: str) -> None:
        if not await self._call("cancel", id):
            raise RunError("unknown_run", run_id=id)

    async def expire(self, seconds: float) -> int:
        deleted = 0
        async for ids in self._pages("ended", "-inf", await self._now() - seconds, is_shrinking=True):
            deleted += sum([await self._call("delete", id) for id in ids])
        return deleted

    async def read(self, key: str) -> tuple[int, bytes] | None:
        async with self._client() as connections:
            version, data = await connections.client.hmget(self._key("document", key), "version", "data")
        return None if version is None else (int(version), data)

    async def write(self, key: str, version: int, data: bytes) -> int:
        current = await self._call("write", key, version, data, uuid4().hex)
        if current != version:
            raise RunError("conflict", f"the document {key!r} has version {current}, not {version}; read it again")
        return version + 1

    async def close(self) -> None:
        self._is_closed = True
        here = asyncio.get_running_loop()
        for loop, connections in list(self._by_loop.items()):
            if loop is here:
                await connections.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(connections.close(), loop)
                await asyncio.wait([asyncio.wrap_future(closing)], timeout=CALL_SECONDS)
        self._by_loop.clear()

    async def _call(self, script: str, id: str, *arguments: Any) -> int:
        names = ("open", "ended", "all", "count")
        keys = [self._key(name, id) for name in ("run", "events", "records", "document")]
        async with self._client() as connections:
            channel = self._key("changes")
            return await connections.scripts[script](
                keys + [self._key(name) for name in names], [id, channel, *arguments]
            )

    async def _list(self, name: str, id: str, start: int, end: int) -> list[bytes]:
        async with self._client() as connections:
            entries = await connections.client.lrange(self._key(name, id), start, end)
        if not entries:
            await self.load(id)
        return entries

    async def _load(self, ids: Sequence[str]) -> list[Run]:
        now, rows = await self._rows(ids, *_FIELDS, "leased_until")
        return [_read_run(row, now) for row in rows if row[0] is not None]

    async def _now(self) -> float:
        return (await self._rows([]))[0]

    async def _rows(self, ids: Sequence[str], *fields: str) -> tuple[float, list[Sequence[Any]]]:
        async with self._client() as connections, connections.client.pipeline(transaction=False) as pipeline:
            pipeline.time()
            for id in ids:
                pipeline.hmget(self._key("run", id), *fields)
            (seconds, micros), *rows = await pipeline.execute()
        return seconds + micros / 1e6, rows

    async def _pages(
        self, name: str, start: Any, end: Any, *, desc: bool = False, is_shrinking: bool = False
    ) -> AsyncIterator[list[str]]:
        """Yield pages of ids in order of score. Set `is_shrinking` if the caller removes the ids of each page."""
        offset = 0
        while True:
            async with self._client() as connections:
                options: Any = {"byscore": True, "desc": desc, "offset": offset, "num": PAGE}
                ids = await connections.client.zrange(self._key(name), start, end, **options)
            if not ids:
                return
            yield [id.decode() for id in ids]
            offset += 0 if is_shrinking else PAGE

    def _key(self, *names: str) -> str:
        return ":".join((self._prefix, *names))

    def _pool(self, url: str) -> Any:
        # A restart of the server closes all connections, so retry once.
        retry = import_module("redis.asyncio.retry").Retry(import_module("redis.backoff").NoBackoff(), 1)
        seconds = CALL_SECONDS / 2
        options: Any = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "retry": retry}
        options["health_check_interval"] = ALIVE_SECONDS
        return self._redis.ConnectionPool.from_url(url, **options)

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[_Connections]:
        """Yield the running event loop's connections, and convert Redis errors to ``RunError``."""
        self._check_open()
        loop = asyncio.get_running_loop()
        try:
            if (connections := self._by_loop.get(loop)) is None:
                for other in [other for other in list(self._by_loop) if other.is_closed()]:
                    del self._by_loop[other]
                client = self._redis.Redis.from_pool(self._pool(self._url))
                connections = _Connections(client, self._key("changes"), lambda: self._by_loop.pop(loop, None))
                self._by_loop[loop] = connections
                await connections.open()
            async with asyncio.timeout(CALL_SECONDS), connections.places:
                self._check_open()  # the store may have been closed while this call waited
                try:
                    yield connections
                finally:
                    if self._is_closed:  # the call may have opened a connection
                        await connections.client.aclose()
        except (self._redis.RedisError, OSError) as error:  # includes TimeoutError
            raise self._unavailable(str(error) or f"there was no answer within {CALL_SECONDS:g} s") from error

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._unavailable("it is closed; open it again")

    def _unavailable(self, why: str) -> RunError:
        return RunError("store_unavailable", f"the run store {self._shown!r} is unavailable: {why}")


class _Connections:
    def __init__(self, client: Any, channel: str, forget: Callable[[], object]) -> None:
        self.client = client
        self.places = asyncio.Semaphore(CONNECTIONS)  # first in, first out, unlike a redis-py pool
        self.scripts = {name: client.register_script(text) for name, text in SCRIPTS.items()}
        self._channel = channel
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}
        self._is_subscribed: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lifetime = self._live(forget)

    async def open(self) -> None:
        """Start a generator that will close the connections when the store is closed or the event loop ends."""
        await anext(self._lifetime)

    async def close(self) -> None:
        await self._lifetime.aclose()

    async def _live(self, forget: Callable[[], object]) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            forget()
            if self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks)
            self._wake([*self._waiting])
            await self.client.aclose()

    def listen(self, id: str, after: int) -> asyncio.Future[None]:
        """Return a future that completes when the run changes or the connection fails."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, {})[changed] = after
        if self._is_subscribed is None:
            self._is_subscribed = asyncio.Event()
            task = asyncio.create_task(self._receive(self._is_subscribed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return changed

    def leave(self, id: str, changed: asyncio.Future[None]) -> None:
        self._waiting[id].pop(changed, None)
        if not self._waiting[id]:
            del self._waiting[id]

    async def subscribed(self) -> None:
        if self._is_subscribed is not None:
            await self._is_subscribed.wait()

    async def _receive(self, is_subscribed: asyncio.Event) -> None:
        try:
            async with self.client.pubsub() as pubsub:
                await pubsub.subscribe(self._channel)
                message = await pubsub.get_message(timeout=CALL_SECONDS)
                is_subscribed.set()
                received = pinged = time.monotonic()
                while message is not None or self._waiting:
                    # Without this timeout, the socket's own timeout would close a silent connection.
                    message = await pubsub.get_message(timeout=IDLE_SECONDS)
                    if message is not None:
                        received = time.monotonic()
                        number, _, id = message["data"].decode().partition(":")
                        self._wake([id], int(number) if number else None)  # the reply to a ping contains no id
                    elif time.monotonic() > max(received, pinged) + ALIVE_SECONDS:
                        if pinged > received:
                            break
                        pinged = time.monotonic()
                        await pubsub.ping()
        except Exception:
            pass  # the calls that are woken will read the store and raise the error
        finally:
            self._is_subscribed = None
            self._wake([*self._waiting])
            is_subscribed.set()

    def _wake(self, ids: Sequence[str], number: int | None = None) -> None:
        """Wake the calls that are waiting for these runs.

        If `number` is given, a call that has already seen event `number` keeps waiting.
        """
        for changed, after in [waiting for id in ids for waiting in self._waiting.get(id, {}).items()]:
            if not changed.done() and (number is None or number > after):
                changed.set_result(None)


def _read_run(row: Sequence[Any], now: float) -> Run:
    id, factory, input, ending, events, created_at, ended_at, is_cancelled, error, leased_until = row
    status = cast(Status, ending.decode() if ending else "running" if float(leased_until) > now else "waiting")
    times = (float(created_at), None if ended_at is None else float(ended_at))
    return Run(id.decode(), factory.decode(), input, status, int(events), *times, is_cancelled == b"1", error)


def _holder(lease: Lease) -> tuple[str, int]:
    return lease.owner, lease.epoch


def _granted(lease: Lease, answer: int) -> bool:
    """Return whether `answer` reports a cancel request.

    Raises ``RunError("lease_lost")`` if `answer` is negative.
    """
    if answer < 0:
        raise RunError("lease_lost", run_id=lease.run_id)
    return bool(answer)

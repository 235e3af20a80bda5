"""The store in a real Redis, which is stopped, paused, killed or full, wants a password, or is part of a cluster."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio.client import PubSub

from rxllm import RunError, ValidationError
from rxllm.durable import Ending, Lease, Record, Run, Store, _redis, open_store
from rxllm.durable.testing import assert_store
from tests.durable.redis_server import RedisServer
from tests.programs import python_without
from tests.waiting import PATIENCE, until, wait_until

pytestmark = pytest.mark.sockets

RUN = Run("run", "factory", b"1")
LONG = 600.0


def with_store(url: str, main: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        store = open_store(url)
        try:
            return await main(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def claimed(store: Store, id: str = "run") -> Lease:
    await store.create(Run(id, "factory", b"1"))
    lease = await store.claim(id, "owner", 60)
    assert lease is not None
    return lease


async def refused(call: Coroutine[Any, Any, Any]) -> RunError:
    """What a call says that does not reach the store."""
    with pytest.raises(RunError) as error:
        await call
    assert error.value.reason == "store_unavailable"
    return error.value


async def waiting(
    store: Store, server: RedisServer, ids: Sequence[str] = ("run",), after: int = 0
) -> list[asyncio.Task[None]]:
    """Return tasks that wait for the runs, once the server has told them that there is nothing yet."""
    server.ask("CONFIG RESETSTAT")
    tasks = [asyncio.create_task(store.wait(id, after, LONG)) for id in ids]
    await until(lambda: server.calls("hmget") >= len(tasks))
    server.ask("PING")  # later than the last answer is sent
    return tasks


# It is not there


@pytest.mark.judges
def test_a_store_that_is_stopped_and_comes_back_is_an_error_meanwhile_and_loses_nothing(
    own_redis: RedisServer,
) -> None:
    async def main(store: Store) -> None:
        lease = await claimed(store)
        await store.append(lease, [b"1"], [Record("a", "b")])
        (wait,) = await waiting(store, own_redis, after=1)
        own_redis.stop()  # by SIGKILL
        await wait
        error = await refused(store.append(lease, [b"2"], token="2"))
        assert error.message.startswith(f"the run store 'redis://127.0.0.1:{own_redis.port}/0' is unavailable: ")
        assert isinstance(error.__cause__, Exception)
        for call in (store.load("run"), store.wait("run", 1, 60), store.runs(), store.claim("run", "other", 60)):
            await refused(call)
        own_redis.start()
        await store.append(lease, [b"2"], token="2")
        await store.append(lease, [b"3"], ending=Ending("completed"))
        assert await store.events("run") == [b"1", b"2", b"3"]
        assert len(await store.records("run")) == 1

    with_store(own_redis.url, main)


@pytest.mark.judges
def test_a_store_that_hangs_is_an_error_in_bounded_time_and_its_append_may_be_tried_again(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(store: Store) -> None:
        lease = await claimed(store)
        monkeypatch.setattr(_redis, "CALL_SECONDS", 1.0)
        other = open_store(own_redis.url)
        own_redis.send(signal.SIGSTOP)
        try:
            await refused(other.append(lease, [b"1"], token="1"))
            await refused(other.wait("run", 0, LONG))
        finally:
            own_redis.send(signal.SIGCONT)
        monkeypatch.undo()
        await other.close()
        await store.append(lease, [b"1"], token="1")  # the first one has arrived as well
        assert await store.events("run") == [b"1"]

    with_store(own_redis.url, main)


@pytest.mark.judges
def test_acknowledged_appends_survive_a_kill_of_the_server(own_redis: RedisServer) -> None:
    async def main(store: Store) -> None:
        leases = [await claimed(store, str(number)) for number in range(4)]
        acknowledged = [0] * 4

        async def append(number: int) -> None:
            while True:
                try:
                    first = acknowledged[number]
                    await store.append(leases[number], [b"%d" % first, b"%d" % (first + 1)], [Record("a", str(first))])
                except RunError:
                    return
                acknowledged[number] += 2

        appending = asyncio.gather(*map(append, range(4)))
        await until(lambda: min(acknowledged) >= 20)
        own_redis.stop()
        await appending
        own_redis.start()
        for lease, count in zip(leases, acknowledged, strict=True):
            events = await store.events(lease.run_id, limit=1_000_000)
            assert len(events) in (count, count + 2)
            assert events == [b"%d" % number for number in range(len(events))]
            assert len(await store.records(lease.run_id)) * 2 == len(events)

    with_store(own_redis.url, main)


@pytest.mark.judges
def test_a_full_store_is_an_error_and_leaves_the_log_whole(own_redis: RedisServer) -> None:
    async def main(store: Store) -> None:
        lease = await claimed(store)
        own_redis.ask("CONFIG SET maxmemory 4mb")
        big, acknowledged = [bytes(50_000)] * 3, 0
        error: RunError | None = None
        while error is None:
            try:
                await store.append(lease, big)
                acknowledged += 3
            except RunError as refusal:
                error = refusal
        assert error.reason == "store_unavailable"
        assert "maxmemory" in error.message
        assert (await store.load("run")).events == len(await store.events("run")) == acknowledged
        own_redis.ask("CONFIG SET maxmemory 0")
        await store.append(lease, [b"1"])
        assert len(await store.events("run")) == acknowledged + 1

    with_store(own_redis.url, main)


@pytest.mark.judges
def test_a_wait_outlives_the_timeout_of_the_socket(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_redis, "CALL_SECONDS", 2.0)  # half of it is the timeout of the socket
    polls: list[Any] = []
    get_message = PubSub.get_message

    async def counted(*arguments: Any, **options: Any) -> Any:
        polls.append(message := await get_message(*arguments, **options))
        return message

    async def main(store: Store) -> None:
        lease = await claimed(store)
        (wait,) = await waiting(store, own_redis)
        monkeypatch.setattr(PubSub, "get_message", counted)
        await until(lambda: polls.count(None) > 1.0 / _redis.IDLE_SECONDS)  # each of which has lasted as long
        assert not wait.done()
        await store.append(lease, [b"1"])
        await wait

    with_store(own_redis.url, main)


@pytest.mark.judges
def test_a_wait_ends_when_the_store_does_not_answer_any_more(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(_redis, "IDLE_SECONDS", 0.1)

    def is_over(wait: asyncio.Task[None]) -> bool:
        clock.now += _redis.ALIVE_SECONDS + 1
        return wait.done()

    async def main(store: Store) -> None:
        await claimed(store)
        lease = await claimed(store, "other")
        monkeypatch.setattr(_redis, "time", clock)
        (wait,) = await waiting(store, own_redis)
        for count in range(3):
            before = own_redis.calls("ping")
            clock.now += _redis.ALIVE_SECONDS + 1
            await until(lambda before=before: own_redis.calls("ping") > before)
            await asyncio.gather(store.wait("other", count, LONG), store.append(lease, [b"1"]))
            assert not wait.done()
        own_redis.send(signal.SIGSTOP)
        try:
            await until(lambda: is_over(wait))
        finally:
            own_redis.send(signal.SIGCONT)

    with_store(own_redis.url, main)


@pytest.mark.judges
def test_a_dropped_connection_is_replaced(own_redis: RedisServer) -> None:
    async def main(store: Store) -> None:
        lease = await claimed(store)
        (wait,) = await waiting(store, own_redis)
        own_redis.ask("CLIENT KILL TYPE pubsub")
        await wait  # early, so that whoever waits reads again
        own_redis.ask("CLIENT KILL TYPE normal")
        (wait,) = await waiting(store, own_redis)
        await store.append(lease, [b"1"])
        await wait

    with_store(own_redis.url, main)


# Connections


@pytest.mark.judges
def test_many_waits_share_one_connection_which_closes_when_nobody_waits(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_redis, "IDLE_SECONDS", 0.05)

    async def main(store: Store) -> None:
        leases = [await claimed(store, str(number)) for number in range(20)]
        waits = await waiting(store, own_redis, [lease.run_id for lease in leases] * 10)
        assert own_redis.clients("TYPE pubsub") == 1
        assert own_redis.clients() <= _redis.CONNECTIONS + 1
        for lease in leases:
            await store.append(lease, [b"1"])
        await asyncio.gather(*waits)
        await until(lambda: own_redis.clients("TYPE pubsub") == 0)

    with_store(own_redis.url, main)
    wait_until(lambda: own_redis.clients() == 0)


@pytest.mark.judges
def test_the_end_of_a_loop_closes_its_connections_also_without_close(own_redis: RedisServer) -> None:
    store = open_store(own_redis.url)

    async def main(id: str) -> None:
        await claimed(store, id)
        (wait,) = await waiting(store, own_redis, [id])
        wait.cancel()

    for id in "abc":
        asyncio.run(main(id))
        wait_until(lambda: own_redis.clients() == 0)
    assert store._by_loop == {}  # type: ignore[attr-defined]
    asyncio.run(store.close())


@pytest.mark.judges
def test_close_reaches_the_connections_of_other_loops(own_redis: RedisServer) -> None:
    store = open_store(own_redis.url)
    is_claimed, is_closed = threading.Event(), threading.Event()
    errors: list[RunError] = []

    async def other() -> None:
        lease = await claimed(store)
        is_claimed.set()
        await asyncio.to_thread(is_closed.wait, PATIENCE)
        errors.append(await refused(store.renew(lease)))

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    thread.start()
    assert is_claimed.wait(PATIENCE)
    asyncio.run(store.close())
    wait_until(lambda: own_redis.clients() == 0)
    is_closed.set()
    thread.join(PATIENCE)
    assert "it is closed; open it again" in errors[0].message


# Addresses


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), password="s3cret")
    yield server
    server.stop()


@pytest.mark.judges
def test_a_password_is_used_and_never_shown(guarded: RedisServer) -> None:
    assert "NOAUTH" in guarded.ask("PING").decode()
    with_store(guarded.url, lambda store: store.create(RUN))
    assert repr(open_store(guarded.url)) == f"RedisStore('redis://127.0.0.1:{guarded.port}/0')"

    async def main(store: Store) -> None:
        error = await refused(store.load("run"))
        assert "WRONGPASS" in error.message or "invalid username-password" in error.message
        for shown in (error, error.__cause__, error.__context__, store, vars(store)["_shown"]):
            assert "wrongpw" not in repr(shown) + str(shown)

    with_store(guarded.url.replace("s3cret", "wrongpw"), main)


@pytest.mark.parametrize("url", ["redis://:pa55@host:port/0", "redis://:pa55@[host/0", "redis://me:pa55@host/0?db=x"])
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValidationError) as error:
        open_store(url)
    assert "redis://host:6379/0" in str(error.value)
    assert "pa55" not in repr(error.value) + repr(error.value.__cause__)


@pytest.mark.judges
def test_without_redis_py_it_says_what_to_install() -> None:
    code = (
        "from rxllm.durable import open_store\ntry: open_store('redis://host')\nexcept Exception as e: print(repr(e))"
    )
    assert "EngineError('missing_dependency', \"a Redis store needs redis-py: pip install 'rxllm[redis]'\")" in (
        python_without(["redis"], code).stdout
    )


def test_stores_with_two_prefixes_in_one_redis_know_nothing_of_each_other(redis_server: RedisServer) -> None:
    async def main() -> None:
        stores = [_redis.RedisStore(redis_server.url, prefix=prefix) for prefix in ("a", "b")]
        for store in stores:
            await store.create(RUN)
            assert len(await store.runs()) == 1
        await stores[0].cancel("run")
        await stores[0].expire(0)
        assert len(await stores[1].runs()) == 1
        for store in stores:
            await store.close()
        keys = redis_server.ask("KEYS *")
        assert keys.count(b"{a}:") == 1  # how many runs there have been
        assert keys.count(b"{b}:") == 4

    asyncio.run(main())


@pytest.mark.judges
def test_every_script_keeps_to_one_slot_of_a_cluster(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--cluster-enabled", "yes")
    try:
        assert server.ask("CLUSTER ADDSLOTSRANGE 0 16383") == b"+OK\r\n"
        wait_until(lambda: b"cluster_state:ok" in server.ask("CLUSTER INFO"))
        assert_store(partial(open_store, server.url), without={"processes"})
    finally:
        server.stop()

"""The store in a real Redis, which is stopped, paused, killed or full, wants a password, or is part of a cluster."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rxllm import RunError, ValidationError
from rxllm.durable import Ending, Lease, Record, Run, Store, _redis, open_store
from rxllm.durable.testing import assert_store
from tests.durable.redis_server import RedisServer
from tests.programs import python_without

RUN = Run("run", "factory", b"1")


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
    begin = time.monotonic()
    with pytest.raises(RunError) as error:
        await call
    assert error.value.reason == "store_unavailable"
    assert time.monotonic() - begin < 5
    return error.value


# It is not there


def test_a_store_that_is_stopped_and_comes_back_is_an_error_meanwhile_and_loses_nothing(
    redis_server: RedisServer,
) -> None:
    async def main(store: Store) -> None:
        lease = await claimed(store)
        await store.append(lease, [b"1"], [Record("a", "b")])
        wait = asyncio.create_task(store.wait("run", 1, 60))
        await asyncio.sleep(0.1)
        redis_server.stop()  # by SIGKILL
        await asyncio.wait_for(wait, 5)
        error = await refused(store.append(lease, [b"2"], token="2"))
        assert error.message.startswith(f"the run store 'redis://127.0.0.1:{redis_server.port}/0' is unavailable: ")
        assert isinstance(error.__cause__, Exception)
        for call in (store.load("run"), store.wait("run", 1, 60), store.runs(), store.claim("run", "other", 60)):
            await refused(call)
        redis_server.start()
        await store.append(lease, [b"2"], token="2")
        await store.append(lease, [b"3"], ending=Ending("completed"))
        assert await store.events("run") == [b"1", b"2", b"3"]
        assert len(await store.records("run")) == 1

    with_store(redis_server.url, main)


def test_a_store_that_hangs_is_an_error_in_bounded_time_and_its_append_may_be_tried_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_redis, "CALL_SECONDS", 0.6)

    async def main(store: Store) -> None:
        lease = await claimed(store)
        redis_server.send(signal.SIGSTOP)
        try:
            await refused(store.append(lease, [b"1"], token="1"))
            await refused(store.wait("run", 0, 60))
        finally:
            redis_server.send(signal.SIGCONT)
        await store.append(lease, [b"1"], token="1")  # the first one has arrived as well
        assert await store.events("run") == [b"1"]

    with_store(redis_server.url, main)


def test_what_it_has_acknowledged_survives_its_kill(redis_server: RedisServer) -> None:
    async def main(store: Store) -> None:
        leases = [await claimed(store, str(number)) for number in range(4)]
        acknowledged = [0] * 4
        killing = asyncio.get_running_loop().call_later(0.2, redis_server.stop)

        async def append(number: int) -> None:
            while True:
                try:
                    first = acknowledged[number]
                    await store.append(leases[number], [b"%d" % first, b"%d" % (first + 1)], [Record("a", str(first))])
                except RunError:
                    return
                acknowledged[number] += 2

        await asyncio.gather(*map(append, range(4)))
        killing.cancel()
        redis_server.start()
        for lease, count in zip(leases, acknowledged, strict=True):
            events = await store.events(lease.run_id, limit=1_000_000)
            assert count > 0
            assert len(events) in (count, count + 2)
            assert events == [b"%d" % number for number in range(len(events))]
            assert len(await store.records(lease.run_id)) * 2 == len(events)

    with_store(redis_server.url, main)


def test_a_full_store_is_an_error_and_leaves_the_log_whole(redis_server: RedisServer) -> None:
    async def main(store: Store) -> None:
        lease = await claimed(store)
        redis_server.ask("CONFIG SET maxmemory 4mb")
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
        redis_server.ask("CONFIG SET maxmemory 0")
        await store.append(lease, [b"1"])
        assert len(await store.events("run")) == acknowledged + 1

    with_store(redis_server.url, main)


def test_a_wait_outlives_the_timeout_of_the_socket(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_redis, "CALL_SECONDS", 0.4)

    async def main(store: Store) -> None:
        lease = await claimed(store)
        wait = asyncio.create_task(store.wait("run", 0, 60))
        await asyncio.sleep(1.5)
        assert not wait.done()
        await store.append(lease, [b"1"])
        await asyncio.wait_for(wait, 5)

    with_store(redis_server.url, main)


def test_a_wait_ends_when_the_store_does_not_answer_any_more(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_redis, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(_redis, "ALIVE_SECONDS", 0.4)

    async def main(store: Store) -> None:
        await claimed(store)
        wait = asyncio.create_task(store.wait("run", 0, 60))
        await asyncio.sleep(1.5)
        assert not wait.done()
        redis_server.send(signal.SIGSTOP)
        try:
            await asyncio.wait_for(wait, 10)
        finally:
            redis_server.send(signal.SIGCONT)

    with_store(redis_server.url, main)


def test_a_dropped_connection_is_replaced(redis_server: RedisServer) -> None:
    async def main(store: Store) -> None:
        lease = await claimed(store)
        wait = asyncio.create_task(store.wait("run", 0, 60))
        await asyncio.sleep(0.1)
        redis_server.ask("CLIENT KILL TYPE pubsub")
        await asyncio.wait_for(wait, 5)  # early, so that whoever waits reads again
        redis_server.ask("CLIENT KILL TYPE normal")
        await asyncio.sleep(0.05)
        wait = asyncio.create_task(store.wait("run", 0, 60))
        await store.append(lease, [b"1"])
        await asyncio.wait_for(wait, 5)

    with_store(redis_server.url, main)


# Connections


def clients(server: RedisServer) -> int:
    return server.ask("CLIENT LIST").count(b"id=") - 1  # without the one that asks


def settles(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not (fits := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return fits


def test_many_waits_share_one_connection_which_closes_when_nobody_waits(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_redis, "IDLE_SECONDS", 0.05)

    async def main(store: Store) -> None:
        leases = [await claimed(store, str(number)) for number in range(20)]
        waits = [asyncio.create_task(store.wait(lease.run_id, 0, 60)) for lease in leases for _ in range(10)]
        await asyncio.sleep(0.5)
        assert redis_server.ask("CLIENT LIST TYPE pubsub").count(b"id=") == 1
        assert clients(redis_server) <= _redis.CONNECTIONS + 1
        for lease in leases:
            await store.append(lease, [b"1"])
        await asyncio.wait_for(asyncio.gather(*waits), 5)
        await asyncio.sleep(0.2)
        assert redis_server.ask("CLIENT LIST TYPE pubsub").count(b"id=") == 0

    with_store(redis_server.url, main)
    assert settles(lambda: clients(redis_server) == 0)


def test_the_end_of_a_loop_closes_its_connections_also_without_close(redis_server: RedisServer) -> None:
    store = open_store(redis_server.url)

    async def main() -> None:
        await claimed(store, str(time.monotonic()))
        waiting = asyncio.create_task(store.wait("run", 0, 60))
        await asyncio.sleep(0.05)
        waiting.cancel()

    for _ in range(3):
        asyncio.run(main())
        assert settles(lambda: clients(redis_server) == 0)
    assert store._by_loop == {}  # type: ignore[attr-defined]
    asyncio.run(store.close())


def test_close_reaches_the_connections_of_other_loops(redis_server: RedisServer) -> None:
    store = open_store(redis_server.url)
    is_claimed, is_closed = threading.Event(), threading.Event()
    errors: list[RunError] = []

    async def other() -> None:
        lease = await claimed(store)
        is_claimed.set()
        await asyncio.to_thread(is_closed.wait, 20)
        errors.append(await refused(store.renew(lease)))

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    thread.start()
    assert is_claimed.wait(20)
    asyncio.run(store.close())
    assert settles(lambda: clients(redis_server) == 0)
    is_closed.set()
    thread.join(20)
    assert "it is closed; open it again" in errors[0].message


# Addresses


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path, password="s3cret")
    yield server
    server.stop()


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


def test_every_script_keeps_to_one_slot_of_a_cluster(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--cluster-enabled", "yes")
    try:
        assert server.ask("CLUSTER ADDSLOTSRANGE 0 16383") == b"+OK\r\n"
        assert settles(lambda: b"cluster_state:ok" in server.ask("CLUSTER INFO"))
        assert_store(partial(open_store, server.url), without={"processes", "extended"})
    finally:
        server.stop()

"""The store in a real Redis whose connections go stale, whose answers are lost, or which forgets what it has kept."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, RunError, ToolCall
from rxllm.durable import Ending, Lease, Record, Run, Store, open_runs, open_store
from rxllm.events import StepCompleted, TextDelta
from tests.durable.redis_server import RedisServer
from tests.durable.support import add, gated, in_loop, take_over
from tests.waiting import PATIENCE, until, wait_until

pytestmark = pytest.mark.judges

RUN = Run("run", "factory", b"1")


async def claimed(store: Store, id: str = "run") -> Lease:
    await store.create(Run(id, "factory", b"1"))
    lease = await store.claim(id, "owner", 60)
    assert lease is not None
    return lease


# Stale connections


async def calls_of_all(store: Store, number: int = 19) -> None:
    """Call the store as often at the same time, so that its pool has as many connections."""
    await asyncio.gather(*(store.load("run") for _ in range(number)))


def restart(server: RedisServer) -> None:
    server.stop()
    server.start()


def idle(server: RedisServer) -> None:
    """Let the server close what has been idle for a second, as its setting `timeout` says."""
    server.ask("CONFIG SET timeout 1")
    wait_until(lambda: server.clients() == 0)
    server.ask("CONFIG SET timeout 0")


@pytest.mark.parametrize("close", [restart, idle])
def test_connections_that_the_server_has_closed_fail_no_call(
    own_redis: RedisServer, close: Callable[[RedisServer], None]
) -> None:
    async def main() -> None:
        store = open_store(own_redis.url)
        lease = await claimed(store)
        await store.append(lease, [b"1"])
        await calls_of_all(store)
        close(own_redis)
        calls: list[Awaitable[Any]] = [
            *(store.load("run") for _ in range(10)),
            store.create(Run("new", "factory", b"1")),
            store.events("run"),
            store.records("run"),
            store.runs(),
            store.claimable(["factory"]),
            store.renew(lease),
            store.read("key"),
            store.write("other", 0, b"1"),
            store.cancel("run"),
        ]
        failures = [
            call for call in await asyncio.gather(*calls, return_exceptions=True) if isinstance(call, Exception)
        ]
        assert failures == []
        assert await store.append(lease, [b"2"])
        await store.close()

    in_loop(main)


def test_a_close_during_calls_leaves_no_connection_open(own_redis: RedisServer) -> None:
    """redis-py connects again for a call whose connection was closed."""

    async def main() -> None:
        for turns in range(0, 40, 4):
            store = open_store(own_redis.url)
            await store.read("key")
            calls = [asyncio.create_task(store.wait("run", 0, 30)) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await store.close()
            await asyncio.wait(calls)
            for call in calls:
                call.exception()
        asking = b"connected_clients:1\r"
        await until(lambda: asking in own_redis.ask("INFO clients"))

    in_loop(main)


# Lost answers


class Wire:
    """A way to the server that loses answers: those while it `is_cut`, with their connections."""

    def __init__(self, server: RedisServer) -> None:
        self._port, self.is_cut, self.lost, self.open = server.port, False, 0, 0

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[str]:
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with listening:
            yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        passes = [self._pass(reader, to_server, False), self._pass(from_server, writer, True)]
        tasks = [asyncio.create_task(passing) for passing in passes]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for end in (to_server, writer):
            end.close()
            with suppress(OSError):
                await end.wait_closed()
        self.open -= 1

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        while data := await reader.read(1 << 16):
            if is_answer and self.is_cut:
                self.is_cut, self.lost = False, self.lost + 1
                return
            writer.write(data)


@pytest.mark.parametrize("name", ["create", "claim", "append", "renew", "release", "cancel", "write", "read", "events"])
def test_a_call_whose_answer_is_lost_is_carried_out_once(own_redis: RedisServer, name: str) -> None:
    async def main() -> None:
        wire = Wire(own_redis)
        async with wire.opened() as url:
            store = open_store(url)
            lease = await claimed(store)
            await store.append(lease, [b"1"])
            await store.create(Run("other", "factory", b"1"))
            await store.create(Run("third", "factory", b"1"))
            assert await store.claim("third", "owner", 60) is not None
            assert await store.write("key", 0, b"old") == 1
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "create": lambda: store.create(Run("new", "factory", b"1")),
                "claim": lambda: store.claim("other", "owner", 60),
                "append": lambda: store.append(lease, [b"2"], [Record("a", "b")]),
                "renew": lambda: store.renew(lease),
                "release": lambda: store.release(lease),
                "cancel": lambda: store.cancel("other"),
                "write": lambda: store.write("key", 1, b"new"),
                "read": lambda: store.read("key"),
                "events": lambda: store.events("run"),
            }
            wire.is_cut = True
            answer = await calls[name]()
            assert wire.lost == 1
            expected: dict[str, Any] = {
                "claim": Lease("other", "owner", 1, 60),
                "append": False,
                "renew": False,
                "write": 2,
                "read": (1, b"old"),
                "events": [b"1"],
            }
            assert answer == expected.get(name)
            assert await store.events("run") == ([b"1", b"2"] if name == "append" else [b"1"])
            if name == "claim":
                assert await store.append(answer, [b"1"], ending=Ending("completed")) is False
            with pytest.raises(RunError):  # what another caller has done is none of one's own
                await store.write("key", 0, b"newer")
            with pytest.raises(RunError):
                await store.create(Run("run", "factory", b"1"))
            assert await store.claim("third", "owner", 60) is None
            await store.close()
        await until(lambda: wire.open == 0)

    in_loop(main)


# A server that has forgotten


@asynccontextmanager
async def forgotten(server: RedisServer) -> AsyncGenerator[None]:
    """Restart the server without what it has committed inside, as after a power cut or a failover."""
    server.ask("CONFIG SET appendfsync always")
    log, kept = server.folder / "appendonlydir", server.folder / "kept"
    shutil.copytree(log, kept)
    yield
    server.stop()
    shutil.rmtree(log)
    kept.rename(log)
    server.start()


def test_an_append_after_a_gap_is_an_error_and_leaves_no_hole(own_redis: RedisServer) -> None:
    async def main() -> None:
        store = open_store(own_redis.url)
        lease = await claimed(store)
        await store.append(lease, [b"1"], token="1")
        async with forgotten(own_redis):
            await store.append(lease, [b"2"], token="2")
        with pytest.raises(RunError, match="has lost committed events") as caught:
            await store.append(lease, [b"3"], token="3")
        assert (caught.value.reason, caught.value.run_id) == ("rolled_back", "run")
        assert await store.events("run") == [b"1"]
        await store.release(lease)
        again = await store.claim("run", "owner", 60)
        assert again is not None
        await store.append(again, [b"2"], token="2")
        await store.append(again, [b"3"], ending=Ending("completed"), token="3")
        assert await store.events("run") == [b"1", b"2", b"3"]
        await store.close()

    in_loop(main)


def test_an_append_that_the_server_may_have_forgotten_can_be_tried_again(own_redis: RedisServer) -> None:
    """Its answer was lost, and then it."""

    async def main() -> None:
        store = open_store(own_redis.url)
        lease = await claimed(store)
        await store.append(lease, [b"1"], token="1")
        async with forgotten(own_redis):
            pass
        own_redis.stop()
        with pytest.raises(RunError):
            await store.append(lease, [b"2"], token="2")
        own_redis.start()
        await store.append(lease, [b"2"], token="2")
        await store.append(lease, [b"3"], token="3")
        assert await store.events("run") == [b"1", b"2", b"3"]
        await store.close()

    in_loop(main)


def test_a_run_whose_tail_is_lost_is_produced_again_from_there_and_its_watchers_are_told(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        is_kept, shown, is_forgotten = asyncio.Event(), asyncio.Event(), asyncio.Event()
        texts = [f"{n} " for n in range(100)]
        tells = gated(is_kept, *texts[:10], is_forgotten, *texts[10:])

        async def model(request: Any, call: Any) -> Any:
            first = Fake(ToolCall("c0", "add", {"x": 1})).stream
            async for event in (first if request.messages[-1].role != "tool" else tells)(request, call):
                yield event

        def build(input: Any) -> Any:
            return rxllm.stream(model, input, tools=[add])

        async with open_runs(own_redis.url, {"chat": build}, lease=PATIENCE) as runs:
            id = await runs.start("chat", "Hi")
            await runs.watch(id).filter(lambda event: isinstance(event, StepCompleted)).first()

            async def watch() -> str:
                with pytest.raises(RunError) as caught:
                    await (
                        runs.watch(id)
                        .filter(lambda event: isinstance(event, TextDelta) and event.delta == texts[9])
                        .do_action(lambda event: shown.set())
                    )
                return caught.value.reason

            async with forgotten(own_redis):
                is_kept.set()
                watcher = asyncio.create_task(watch())
                await shown.wait()
            is_forgotten.set()
            assert await watcher in ("rolled_back", "store_unavailable")
            await take_over(runs, id)
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert result.output_text == "".join(texts)
            assert f"this process has stopped executing run {id}: " in caplog.text
            assert "has lost committed events" in caplog.text

    caplog.set_level(logging.WARNING)
    in_loop(main)


def test_the_search_for_runs_to_recover_does_not_read_their_inputs(own_redis: RedisServer) -> None:
    async def main() -> None:
        store = open_store(own_redis.url)
        for number in range(20):
            await store.create(Run(str(number), "factory", b"x" * 1_000_000))
        before = sent(own_redis)
        assert len(await store.claimable(["factory"])) == 20
        assert sent(own_redis) - before < 100_000
        await store.close()

    in_loop(main)


def sent(server: RedisServer) -> int:
    """The number of bytes that the server has sent."""
    (line,) = [line for line in server.ask("INFO stats").split(b"\r\n") if line.startswith(b"total_net_output_bytes:")]
    return int(line.partition(b":")[2])

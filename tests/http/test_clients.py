"""Whose client a call is sent with, how often its connections are used, and when they are closed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest

import rxllm
from rxllm import Engine, EngineError, OpenAIChat, generate
from rxllm.adapters import aiohttp_client
from rxllm.http.clients import client_settings
from rxllm.testing.loopback import Loopback, Reply, Request, chat
from tests.closing import STALLED
from tests.http.support import all_places_are_free, churn, live_calls, moody
from tests.runtime.support import ON_BOTH, finished, model, script
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.sockets

ANSWER = Reply(chat("Hello"))


@pytest.mark.judges
@pytest.mark.parametrize(
    ("disposals", "make"),
    [
        (2000, lambda: pool_of_ten(httpx)),
        (500, lambda: pool_of_ten(httpx2)),
        (1000, None),
    ],
    ids=["httpx", "httpx2", "own"],
)
def test_random_disposals_leave_the_pool_usable(disposals: int, make: Callable[[], Any] | None) -> None:
    async def main() -> None:
        async with client_of(make) as client:
            engine = model(server, client=client)
            await churn(engine, disposals)
            await until(lambda: live_calls() == 0)
            script["now"] = lambda request: STALLED
            await all_places_are_free(engine)
            script["now"] = lambda request: ANSWER
            assert (await generate(engine, "Hi")).output_text == "Hello"

    script: dict[str, Callable[[Request], Reply]] = {"now": moody}
    with Loopback(lambda request: script["now"](request)) as server:
        asyncio.run(main())


def pool_of_ten(library: Any) -> Any:
    return library.AsyncClient(limits=library.Limits(max_connections=10), timeout=library.Timeout(PATIENCE, pool=None))


@asynccontextmanager
async def client_of(make: Callable[[], Any] | None) -> AsyncIterator[Any]:
    if make is None:
        yield None
    else:
        async with make() as client:
            yield client


@ON_BOTH
def test_calls_one_after_another_use_one_connection() -> None:
    async def main() -> None:
        engine = model(server)
        for _ in range(20):
            assert (await generate(engine, "Hi")).output_text == "Hello"
        assert (len(server.connections), server.open_count) == (1, 1)

    with Loopback(ANSWER) as server:
        asyncio.run(main())
        assert len(server.requests) == 20
        server.connections[0].wait_closed()


@ON_BOTH
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_an_idle_connection_is_given_up_before_its_server_does(library: str) -> None:
    assert client_settings(None, library)["limits"].keepalive_expiry < 5  # what uvicorn, Node and llama.cpp wait


def test_the_portal_uses_one_connection_too() -> None:
    with Loopback(ANSWER) as server:
        engine = model(server)
        for _ in range(5):
            generate(engine, "Hi").run()
        assert len(server.connections) == 1
        asyncio.run_coroutine_threadsafe(rxllm.aclose(engine), rxllm.runtime.call_loop()).result(PATIENCE)
        server.connections[0].wait_closed()


@ON_BOTH
def test_connections_are_closed_at_their_loops_end() -> None:
    """The adapter lives on, and has new ones on the next loop."""
    with Loopback(ANSWER) as server:
        engine = model(server)
        for k in range(3):
            asyncio.run(await_one(engine))
            assert server.connections[k].wait_closed() > 0
            assert server.connections[k].closed_by == "client"
        assert len(server.connections) == 3


@ON_BOTH
def test_a_dropped_adapter_closes_its_connections() -> None:
    """On the loop where they are, which lives on."""
    with Loopback(ANSWER) as server:
        generate(model(server), "Hi").run()
        gc.collect()
        server.connections[0].wait_closed()


@ON_BOTH
def test_aclose_closes_the_connections_and_the_next_call_opens_another() -> None:
    async def main() -> None:
        engine = model(server)
        await generate(engine, "Hi")
        await rxllm.aclose(engine)
        await until(lambda: server.open_count == 0)
        await rxllm.aclose(engine)
        assert (await generate(engine, "Hi")).output_text == "Hello"
        assert len(server.connections) == 2

    with Loopback(ANSWER) as server:
        asyncio.run(main())


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_given_client_is_used_and_left_open(library: Any) -> None:
    async def main() -> None:
        async with library.AsyncClient(headers={"x-mine": "yes"}) as client:
            engine = model(server, client=client)
            assert (await generate(engine, "Hi")).output_text == "Hello"
            await rxllm.aclose(engine)
            assert not client.is_closed
        assert server.requests[0].headers["x-mine"] == "yes"

    with Loopback(ANSWER) as server:
        asyncio.run(main())


def test_a_given_client_on_another_loop_is_a_clear_error() -> None:
    """Also when its loop is gone: what it has open was that loop's."""
    once = Reply(chat("Hello"), headers={"Content-Type": "text/event-stream", "Connection": "close"})
    with Loopback(once) as server:
        engine = model(server, client=httpx.AsyncClient())
        asyncio.run(await_one(engine))
        for call in (lambda: asyncio.run(await_one(engine)), generate(engine, "Hi").run):
            with pytest.raises(EngineError, match="factory") as caught:
                call()
            assert caught.value.reason == "wrong_loop"
        assert len(server.requests) == 1


async def await_one(engine: Engine) -> None:
    assert (await generate(engine, "Hi")).output_text == "Hello"


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_factory_works_on_several_loops(library: Any) -> None:
    made: list[Any] = []

    def factory() -> Any:
        made.append(library.AsyncClient())
        return made[-1]

    with Loopback(ANSWER) as server:
        engine = Engine(OpenAIChat(base_url=server.url, client=factory), model="m")
        asyncio.run(await_one(engine))
        asyncio.run(await_one(engine))
        assert [client.is_closed for client in made] == [True, True]
        assert len(server.connections) == 2
        server.wait_until(lambda: server.open_count == 0)
        generate(engine, "Hi").run()
        asyncio.run_coroutine_threadsafe(rxllm.aclose(engine), rxllm.runtime.call_loop()).result(PATIENCE)
        assert made[-1].is_closed


def end_well(main: Callable[[], Any]) -> None:
    asyncio.run(main())


def end_badly(main: Callable[[], Any]) -> None:
    """Without ``shutdown_asyncgens``, as many a framework does."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


@pytest.mark.judges
@pytest.mark.parametrize("run", [end_well, end_badly])
@pytest.mark.parametrize("make", [None, httpx.AsyncClient], ids=["own", "factory"])
def test_ended_loops_are_forgotten_with_their_sockets(run: Callable[..., None], make: Any) -> None:
    async def main() -> None:
        loops.add(asyncio.get_running_loop())
        await await_one(engine)

    loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
    with Loopback(ANSWER) as server:
        engine = model(server, client=make)
        for _ in range(60):
            run(main)
        gc.collect()
        assert len(loops) <= 2
        server.wait_until(lambda: server.open_count <= 1)
        assert len(server.connections) == 60
        asyncio.run(await_one(engine))  # and what the last one left goes with the next
        server.wait_until(lambda: server.open_count == 0)


@pytest.mark.parametrize("make", [None, aiohttp_client], ids=["own", "aiohttp"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # aiohttp's own jar leaves addresses out
def test_a_call_is_told_no_cookie_of_another(make: Any, host: str) -> None:
    async def main() -> None:
        url = server.url.replace("127.0.0.1", host)
        engine = Engine(OpenAIChat(base_url=url, client=make), model="m", retry=False)
        await await_one(engine)
        await await_one(engine)
        await rxllm.aclose(engine)

    cookies = {"Content-Type": "text/event-stream", "Set-Cookie": "session=abc; Path=/"}
    with Loopback(Reply(chat("Hello"), headers=cookies)) as server:
        asyncio.run(main())
    assert [request.headers.get("cookie") for request in server.requests] == [None, None]


FIRST_CALL = """
import asyncio, sys, threading, importlib.abc

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if running and threading.current_thread() is threading.main_thread():
            seen.append(name)

running, seen = False, []
sys.meta_path.insert(0, Watch())
import rxllm
engine = rxllm.Engine(rxllm.OpenAIChat(base_url=sys.argv[1]), model="m")

async def main():
    global running
    running = True
    await rxllm.generate(engine, "Hi")
    running = False

asyncio.run(main())
print(*(name for name in seen if not name.startswith("rxllm")))
"""


@pytest.mark.judges
@ON_BOTH
def test_a_first_call_that_is_left_at_once_keeps_no_loop() -> None:
    code = """
    import asyncio, gc, sys, weakref
    from rxllm import Engine, OpenAIChat, stream_generate
    from rxllm.runtime import daemon_threads
    engine = Engine(OpenAIChat(base_url=sys.argv[1]), model="m", retry=False)
    loops = weakref.WeakSet()
    async def leave():
        loops.add(asyncio.get_running_loop())
        stream_generate(engine, "Hi").subscribe(on_error=lambda error: None)
        await asyncio.sleep(0)
    for _ in range(20):
        asyncio.run(leave())
    async def ask():
        return [event async for event in stream_generate(engine, "Hi")]
    assert asyncio.run(ask())
    daemon_threads().submit(lambda: None).result()
    gc.collect()
    print(len(loops) <= 2)
    """
    with Loopback(ANSWER) as server:
        assert finished(script(code, server.url)) == (0, "True\n", "")


@pytest.mark.judges
@ON_BOTH
def test_the_imports_of_a_first_call_are_made_off_the_loop() -> None:
    with Loopback(ANSWER) as server:
        code, out, err = finished(script(FIRST_CALL, server.url))
    assert (code, out.split(), err) == (0, [], "")

"""Runs go on without a browser: leaving is not stopping."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import ErrorEvent, Event, Fake, Stream, StreamError, TextDelta, ToolCall, ValidationError, serializer, web
from rxllm import operators as ops
from rxllm.testing import World, simulate, simulate_cancels
from rxllm.testing.loopback import DONE, Loopback, Pause, Reply, chat_chunk, chat_finish
from tests.closing import STALLED
from tests.runtime.support import finished, model, script
from tests.waiting import PATIENCE, pauses, until
from tests.web.serving import Browser, serving

SLOW = [f"w{number} " for number in range(10)]


def story(seconds: float = 10.0) -> Stream[Event]:
    """Ten words, one each so many seconds."""
    script = [item for word in SLOW for item in (word, ("delay", seconds))]
    return rxllm.stream_generate(Fake(script), "Hi")


def text(stream: Stream[Event] | None) -> Stream[str]:
    assert stream is not None
    return stream.pipe(ops.to_text())


def test_a_run_goes_on_while_nobody_watches() -> None:
    async def app(world: World) -> str:
        runs = web.Runs(grace=200)
        runs.start("a", story())
        await asyncio.sleep(55)
        watching = asyncio.create_task(_first(runs.watch("a")))
        await asyncio.sleep(1)
        assert watching.result() == "".join(SLOW[:6])
        await asyncio.sleep(100)
        return await text(runs.watch("a"))

    assert simulate(app, faults=()).value == "".join(SLOW)


async def _first(stream: Stream[Event] | None) -> str:
    assert stream is not None
    return await stream.pipe(ops.only(TextDelta), ops.text()).first()


def test_a_run_that_nobody_watches_for_too_long_ends_and_is_forgotten() -> None:
    async def app(world: World) -> list[Any]:
        outcomes: list[Any] = []
        runs = web.Runs(grace=30)
        runs.start("a", story().pipe(ops.finally_result(lambda result, outcome: outcomes.append(outcome))))
        await asyncio.sleep(31)
        assert outcomes == ["cancelled"]
        assert runs.watch("a") is not None
        await asyncio.sleep(31)
        return [runs.watch("a"), runs.cancel("a")]

    assert simulate(app, faults=()).value == [None, False]


def test_cancel_ends_a_run_for_all_its_watchers() -> None:
    async def app(world: World) -> None:
        runs = web.Runs(grace=30)
        first = asyncio.create_task(_all(runs.start("a", story())))
        second = asyncio.create_task(_all(runs.watch("a")))
        await asyncio.sleep(15)
        assert (runs.cancel("a"), runs.cancel("a"), runs.cancel("b")) == (True, False, False)
        for watched in (await first, await second, await _all(runs.watch("a"))):
            assert "".join(event.delta for event in watched if isinstance(event, TextDelta)) == "w0 w1 "
            assert watched[-1] == ErrorEvent(StreamError("cancelled"))
        assert await text(runs.start("a", rxllm.stream_generate(Fake("again"), "Hi"))) == "again"

    simulate(app, faults=())


async def _all(stream: Stream[Event] | None) -> list[Event]:
    assert stream is not None
    events: list[Event] = []
    async with rxllm.to_async_iter(stream.pipe(ops.errors_as_events(), web.for_client())) as items:
        async for event in items:
            events.append(event)
    return events


def test_all_runs_are_stopped_before_a_server_ends() -> None:
    async def app(world: World) -> list[str]:
        saved: list[str] = []
        runs = web.Runs()
        for id in ("a", "b"):
            keep = ops.finally_result(lambda result, outcome, id=id: saved.append(f"{id} {outcome} {result}"))
            runs.start(id, story().pipe(keep))
        await asyncio.sleep(15)
        runs.cancel_all()
        await asyncio.sleep(0)
        assert (await _all(runs.watch("a")))[-1] == ErrorEvent(StreamError("cancelled"))
        return saved

    assert simulate(app, faults=()).value == [f"{id} cancelled Response('w0 w1', None, 0 tokens)" for id in "ab"]


def test_a_run_that_failed_says_so_to_whoever_comes_back() -> None:
    async def app(world: World) -> None:
        runs = web.Runs()
        runs.start("a", rxllm.stream_generate(Fake(["Hel", rxllm.AdapterError("unknown")]), "Hi"))
        await asyncio.sleep(1)
        assert (await _all(runs.watch("a")))[-1] == ErrorEvent(rxllm.AdapterError("unknown"))
        assert not runs.cancel("a")

    simulate(app, faults=())


def test_a_run_that_failed_before_it_began_tells_no_watcher_why() -> None:
    async def app(world: World) -> list[Any]:
        runs = web.Runs()
        seen: list[Any] = []
        error = rxllm.AdapterError("invalid_request", "CANARY")
        runs.start("a", rxllm.stream_generate(Fake(error), "Hi", retry=False)).subscribe(seen.append, seen.append)
        await asyncio.sleep(1)
        late = runs.watch("a")
        assert late is not None
        late.subscribe(seen.append, seen.append)
        late.pipe(web.encode("ui")).subscribe(seen.append)
        await asyncio.sleep(1)
        return seen

    seen = simulate(app, faults=()).value
    assert seen[:2] == [rxllm.AdapterError("invalid_request")] * 2
    assert "CANARY" not in repr(seen)


def test_there_are_never_more_than_most() -> None:
    async def app(world: World) -> None:
        runs = web.Runs(most=2, grace=300)
        runs.start("a", story(1))
        runs.start("b", story(100))
        with pytest.raises(StreamError, match="2 runs are active; cancel one"):
            runs.start("c", story())
        with pytest.raises(ValidationError, match="active run: got 'a'; watch that run instead, or cancel it first"):
            runs.start("a", story())
        await asyncio.sleep(20)
        runs.start("c", story())  # in the place of a, which has ended
        assert runs.watch("a") is None
        assert runs.watch("b") is not None
        for id in ("b", "c"):
            runs.cancel(id)

    simulate(app, faults=())


def test_no_cancel_leaves_anything_behind() -> None:
    async def app(world: World) -> None:
        runs = web.Runs(grace=5)
        try:
            async with asyncio.timeout(25):
                await text(runs.start("a", story()))
        except TimeoutError:
            await asyncio.sleep(3)
            await _first(runs.watch("a"))
        finally:
            runs.cancel("a")

    simulate_cancels(app)


@pytest.mark.parametrize("script", [["Hello"], [["Hel", ("delay", 10), "lo"]]])
def test_without_grace_the_browser_still_gets_the_answer(script: Any) -> None:
    async def app(world: World) -> str:
        runs = web.Runs(grace=0)
        runs.start("a", rxllm.stream_generate(Fake(*script), "Hi"))
        await asyncio.sleep(0)
        watched = runs.watch("a")
        assert watched is not None
        return await watched.pipe(ops.to_text())

    assert simulate(app, faults=()).value == "Hello"


@pytest.mark.parametrize("arguments", [{"most": 0}, {"grace": -1}, {"grace": None}])
def test_bad_arguments_raise(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(arguments))):
        web.Runs(**arguments)


@pytest.mark.parametrize(
    ("id", "stream", "fault"), [(5, story(), "id must be a string"), ("a", "Hi", "stream must be a stream of events")]
)
def test_what_cannot_run_is_refused_at_once(id: Any, stream: Any, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        web.Runs().start(id, stream)


@pytest.mark.sockets
def test_a_browser_leaves_and_comes_back() -> None:
    """Over sockets: the provider's connection outlives the first browser, and the second gets everything."""
    is_back = threading.Event()

    def body() -> Iterator[bytes | Pause]:
        yield chat_chunk("a")
        yield from pauses(is_back.is_set)
        yield from (chat_chunk("b"), chat_finish(), DONE)

    async def main() -> bytes:
        runs = web.Runs()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            stream = runs.watch("a") or runs.start("a", rxllm.stream_generate(model(server), "Hi"))
            await web.streaming_response(stream)(scope, receive, send)

        async with serving(app) as port:
            async with await Browser.ask(port) as browser:
                await browser.read_until(b'"a"')
                tasks = len(asyncio.all_tasks())
            await until(lambda: len(asyncio.all_tasks()) < tasks)
            assert server.open_count == 1
            async with await Browser.ask(port) as browser:
                await browser.read_until(b'"a"')
                is_back.set()
                return await browser.read_all()

    with Loopback(lambda request: Reply(body())) as server:
        received = asyncio.run(main())
        assert len(server.requests) == 1
    assert re.findall(rb'"delta":"(.*?)"', received) == [b"a", b"b"]
    assert b'"end"' in received


@pytest.mark.sockets
def test_a_run_ends_with_the_loop_of_its_server() -> None:
    async def main() -> None:
        runs = web.Runs()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            run = runs.start("a", rxllm.stream_generate(model(server), "Hi"))
            await web.streaming_response(run)(scope, receive, send)

        async with serving(app, timeout_graceful_shutdown=1) as port, await Browser.ask(port) as browser:
            await browser.read_until(b'c"')  # deltas may be joined

    with Loopback(STALLED) as server:
        asyncio.run(main())
        server.wait_until(lambda: server.open_count == 0, PATIENCE)


SERVER = """
import socket, sys, rxllm, uvicorn
from rxllm import Engine, OpenAIChat, web

runs = web.Runs()
engine = Engine(OpenAIChat(base_url=sys.argv[1]), model="m", retry=False)

async def app(scope, receive, send):
    if scope["method"] == "POST":
        runs.start("a", rxllm.stream(engine, "Hi"))
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body"})
    else:
        await web.streaming_response(runs.watch("a"))(scope, receive, send)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
uvicorn.Server(config).run(sockets=[listener])
"""


@pytest.mark.judges
@pytest.mark.parametrize("watchers", [0, 2])
def test_a_run_ends_with_its_server(watchers: int) -> None:
    """A signal stops a server whose run has no watchers, or some: the provider sees its connection closed."""
    with (
        Loopback(STALLED) as provider,
        script(SERVER, provider.url) as process,
        httpx.Client(timeout=PATIENCE) as client,
    ):
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        client.post(url)
        provider.wait_requests(1, PATIENCE)
        browsers = [client.send(client.build_request("GET", url), stream=True) for _ in range(watchers)]
        process.terminate()
        provider.connections[0].wait_closed(PATIENCE)
        _, out, err = finished(process)
        for browser in browsers:
            browser.close()
    told = f"ERROR:    Cancel {watchers} running task(s), timeout graceful shutdown exceeded\n"
    assert (out, err) == ("", told if watchers else "")


def test_what_a_tool_raises_stays_also_for_a_late_watcher() -> None:
    def read() -> str:
        raise OSError("CANARY")

    model = Fake(ToolCall("c1", "read", {}), "No.")
    runs = web.Runs()

    async def main() -> None:
        first = runs.start("a", rxllm.stream(model, "Read!", tools=[read]))
        late = runs.watch("a")
        assert late is not None
        for watcher in (first, late):
            events = [event async for event in watcher]
            assert "CANARY" not in "".join(map(serializer.to_json, events))
        late = runs.watch("a")
        assert late is not None
        assert "CANARY" not in "".join([serializer.to_json(event) async for event in late])

    asyncio.run(main())

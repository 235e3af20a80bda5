"""The other transport and the other loop: aiohttp under httpx's API, and uvloop. What they keep is what httpx keeps."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import itertools
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import aiohttp
import httpx
import httpx2
import pytest
import trustme
from httpx_aiohttp import AiohttpTransport, HttpxAiohttpClient
from httpx_aiohttp.httpx2 import Httpx2AiohttpClient

import rxllm
from rxllm import AdapterError, Engine, EngineError, Event, MessageCompleted, OpenAIChat, TextDelta
from rxllm import operators as ops
from rxllm.adapters import OpenAIImages, aiohttp_client
from rxllm.http.clients import httpx_client
from rxllm.pipelines import generate, generate_image, stream_generate
from rxllm.testing import HTTPAdapterConformance, Script
from rxllm.testing.loopback import STALL, Cut, Loopback, Pause, Reply, chat, chat_chunk, chat_finish
from rxllm.values import Call, StreamError
from tests.closing import SILENT, STALLED, also_next, assert_closed, next_call
from tests.http.support import all_places_are_free, churn, held, live_calls, moody
from tests.runtime.support import finished, model, run_on, script
from tests.testing import wires
from tests.waiting import PATIENCE, turns, until, wait_until

pytestmark = pytest.mark.sockets


class Way(NamedTuple):
    """A client's transport, and the loop that it runs on."""

    client: Any
    new_loop: Callable[[], asyncio.AbstractEventLoop]

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return run_on(self.new_loop, main)


def uvloops() -> asyncio.AbstractEventLoop:
    return pytest.importorskip("uvloop").new_event_loop()


WAYS = {
    "aiohttp": Way(aiohttp_client, asyncio.new_event_loop),
    "aiohttp on uvloop": Way(aiohttp_client, uvloops),
    "httpx on uvloop": Way(None, uvloops),
}

TWO = httpx.Limits(max_connections=2)
POOLS_OF_TWO: dict[str, Callable[[], Any]] = {
    "its client": lambda: HttpxAiohttpClient(limits=TWO),
    "its transport": lambda: httpx.AsyncClient(transport=AiohttpTransport(limits=TWO)),
    "with httpx2": lambda: Httpx2AiohttpClient(limits=httpx2.Limits(max_connections=2)),
}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


# Left, in every state

Ready = Callable[[Loopback, list[Event]], bool]

STATES: dict[str, tuple[Reply, Ready]] = {
    "before the headers": (SILENT, lambda server, events: bool(server.requests)),
    "before the first event": (Reply([STALL]), lambda server, events: server.connections[0].bytes_sent > 0),
    "in the middle": (STALLED, lambda server, events: bool(events) and getattr(events[-1], "delta", "") == "c"),
    "after the last event": (
        Reply([*chat("a"), STALL]),
        lambda server, events: bool(events) and type(events[-1]) is MessageCompleted,
    ),
}


async def dispose(subscription: Any) -> None:
    subscription.dispose()


async def dispose_in_a_thread(subscription: Any) -> None:
    await asyncio.to_thread(subscription.dispose)


@pytest.mark.parametrize("leave", [dispose, dispose_in_a_thread])
@pytest.mark.parametrize("state", STATES)
def test_a_dispose_closes_the_connection(way: Way, state: str, leave: Callable[[Any], Awaitable[None]]) -> None:
    reply, ready = STATES[state]

    async def main(server: Loopback) -> None:
        events: list[Event] = []
        subscription = stream_generate(model(server, client=way.client), "Hi").subscribe(events.append)
        await until(lambda: bool(server.connections) and ready(server, events))
        seen = len(events)
        await leave(subscription)
        await next_call(server, client=way.client)
        assert_closed(server.connections[0])
        assert len(events) == seen

    with Loopback(also_next(reply)) as server:
        way.run(main(server))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloops])
@pytest.mark.parametrize("reply", [STALLED, SILENT], ids=["in the middle", "before the headers"])
def test_a_dispose_closes_the_connection_of_https_too(reply: Reply, new_loop: Any) -> None:
    authority, theirs, ours = (
        trustme.CA(),
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        ssl.create_default_context(),
    )
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)

    def client() -> HttpxAiohttpClient:
        return HttpxAiohttpClient(verify=ours)

    async def main(server: Loopback) -> None:
        events: list[Event] = []
        subscription = stream_generate(model(server, client=client), "Hi").subscribe(events.append)
        await until(lambda: server.requests and (reply is SILENT or len(events) == 4))
        subscription.dispose()
        await next_call(server, client=client)
        assert_closed(server.connections[0])

    with Loopback(also_next(reply), tls=theirs) as server:
        Way(None, new_loop).run(main(server))


def test_the_environments_proxy_is_asked(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        adapter = OpenAIChat(base_url="http://model.example", client=way.client)
        await stream_generate(Engine(adapter, model="m"), "Hi").take(3)

    with Loopback(STALLED) as server:
        monkeypatch.setenv("HTTP_PROXY", server.url)
        way.run(main())
        server.wait_until(lambda: server.open_count == 0)
        assert server.requests[0].path == "http://model.example/chat/completions"


def test_disposed_at_once_nothing_is_sent(way: Way) -> None:
    async def main(server: Loopback) -> None:
        engine = model(server, client=way.client)
        stream_generate(engine, "Hi").subscribe().dispose()
        assert (await generate(engine, "Hi")).output_text == "Hello"
        assert len(server.requests) == 1

    with Loopback(Reply(chat("Hello"))) as server:
        way.run(main(server))


def test_an_image_that_is_no_longer_wanted(way: Way) -> None:
    async def main(server: Loopback) -> None:
        adapter = OpenAIImages(base_url=server.url, client=way.client)
        subscription = generate_image(adapter, "a kestrel", model="m").subscribe()
        await until(lambda: bool(server.requests))
        subscription.dispose()
        await until(lambda: server.open_count == 0)

    with Loopback(SILENT) as server:
        way.run(main(server))


def test_enough_is_enough(way: Way) -> None:
    async def main(server: Loopback) -> None:
        events = stream_generate(model(server, client=way.client), "Hi").pipe(ops.only(TextDelta)).take(1)
        assert (await events).delta == "a"
        await until(lambda: server.open_count == 0)

    with Loopback(STALLED) as server:
        way.run(main(server))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses")
def test_disposed_while_it_connects_a_call_over_aiohttp_ends_at_once() -> None:
    """Httpcore's would wait: until it is connected, or until the timeout of 10 s."""

    async def main(url: str) -> None:
        subscription = stream_generate(Engine(OpenAIChat(base_url=url, client=aiohttp_client), model="m"), "Hi")
        call = subscription.subscribe()
        await until(lambda: live_calls() == 1)
        await turns(20)
        call.dispose()
        await turns(20)
        assert live_calls() == 0

    with never_accepts() as url:
        asyncio.run(main(url))


@contextmanager
def never_accepts() -> Generator[str]:
    """An address where a connection is never made: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"
        for each in waiting:
            each.close()


@pytest.mark.judges
@pytest.mark.parametrize("make", POOLS_OF_TWO.values(), ids=POOLS_OF_TWO)
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloops])
def test_no_place_of_a_small_pool_is_lost(make: Any, new_loop: Any) -> None:
    """Two hundred calls are left before the headers: two of them connected, the others waiting for a place."""

    async def main(server: Loopback) -> None:
        async with make() as client:
            engine = model(server, client=client)
            for _ in range(10):
                calls = [stream_generate(engine, "Hi").subscribe() for _ in range(20)]
                asked = len(server.requests)
                await until(lambda asked=asked: len(server.requests) >= asked + 2)
                for call in calls:
                    call.dispose()
                await until(lambda: live_calls() == 0 and server.open_count == 0)
            replies["now"] = STALLED
            await asyncio.gather(*(stream_generate(engine, "Hi").take(3) for _ in range(2)))
            replies["now"] = Reply(chat("Hello"))
            assert (await generate(engine, "Hi")).output_text == "Hello"

    replies = {"now": SILENT}
    with Loopback(lambda request: replies["now"]) as server:
        Way(None, new_loop).run(main(server))


@pytest.mark.judges
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloops])
def test_random_disposals_leave_the_pool_usable(new_loop: Any) -> None:
    async def main(server: Loopback) -> None:
        async with HttpxAiohttpClient(limits=httpx.Limits(max_connections=10)) as client:
            engine = model(server, client=client)
            await churn(engine, 400)
            await until(lambda: live_calls() == 0)
            replies["now"] = lambda request: STALLED
            await all_places_are_free(engine)

    replies: dict[str, Callable[[Any], Reply]] = {"now": moody}
    with Loopback(lambda request: replies["now"](request)) as server:
        Way(None, new_loop).run(main(server))


# Its end, and its connections


def test_the_terminal_comes_after_the_close(way: Way) -> None:
    async def main(server: Loopback) -> None:
        settled: list[bool] = []

        def note() -> None:  # the loop of the call stands still meanwhile
            server.wait_until(lambda: server.open_count == 0)
            settled.append(True)

        stream_generate(model(server, client=way.client), "Hi").subscribe(on_completed=note)
        await until(lambda: settled == [True])

    with Loopback(Reply([chat_chunk("a"), b"data: {oops\n\n", STALL])) as server:
        way.run(main(server))


def test_a_finished_answer_leaves_its_connection_to_the_next_call(way: Way) -> None:
    """Also a refusal; an answer that is left early does not."""
    refusal = Reply.of_json({"error": {"message": "busy"}}, 503, retry_after="7")

    async def main(server: Loopback) -> None:
        engine = model(server, client=way.client)
        for _ in range(3):
            assert (await generate(engine, "Hi")).output_text == "Hello"
        with pytest.raises(AdapterError, match="busy") as caught:
            await generate(engine, "Hi")
        assert (caught.value.reason, caught.value.status, caught.value.retry_after) == ("provider_unavailable", 503, 7)
        await stream_generate(engine, "Hi").take(1)
        assert len(server.connections) == 1
        assert (await generate(engine, "Hi")).output_text == "Hello"
        assert len(server.connections) == 2

    hello = Reply(chat("Hello"))
    with Loopback([hello, hello, hello, refusal, STALLED, hello]) as server:
        way.run(main(server))
        server.wait_until(lambda: server.open_count == 0)


def test_a_dropped_adapter_closes_its_connections(way: Way) -> None:
    async def main(server: Loopback) -> None:
        assert (await generate(model(server, client=way.client), "Hi")).output_text == "Hello"
        gc.collect()
        await until(lambda: server.open_count == 0)

    with Loopback(Reply(chat("Hello"))) as server:
        way.run(main(server))


ENDS = """
import asyncio, sys
import rxllm
from rxllm import Engine, OpenAIChat, generate, stream_generate
from rxllm.adapters import OpenAIImages, aiohttp_client

engine = Engine(OpenAIChat(base_url=sys.argv[1], client=aiohttp_client), model="m", retry=False)

async def main():
    print((await generate(engine, "Hi")).output_text)
    came = asyncio.Event()
    stream_generate(engine, "Hi").subscribe(lambda event: came.set(), lambda error: print(error.reason))
    await came.wait()

{run}
"""


@pytest.mark.judges
@pytest.mark.parametrize(
    "run",
    [
        "asyncio.run(main())",
        "import uvloop; uvloop.run(main())",
        "print(generate(engine, 'Hi').run().output_text); next(iter(stream_generate(engine, 'Hi'))); print('cancelled')",  # noqa: E501
    ],
    ids=["asyncio", "uvloop", "portal"],
)
def test_a_program_ends_without_a_warning(run: str) -> None:
    """Though its loop ends in the middle of an answer."""
    if "uvloop" in run and importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    with Loopback([Reply(chat("Hello")), STALLED]) as server:
        assert finished(script(ENDS.replace("{run}", run), server.url)) == (0, "Hello\ncancelled\n", "")
        server.wait_until(lambda: server.open_count == 0)


# What fails


def failure(way: Way, url: str, **options: Any) -> AdapterError:
    """The error of a call that has no answer."""

    async def main() -> None:
        engine = Engine(OpenAIChat(base_url=url, client=way.client, **options), model="m", retry=False)
        await generate(engine, "Hi")

    with pytest.raises(AdapterError) as caught:
        way.run(main())
    assert url in str(caught.value)
    return caught.value


def test_a_refused_connection_is_a_network_error(way: Way) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert failure(way, f"http://127.0.0.1:{taken.getsockname()[1]}").reason == "network_error"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses")
def test_a_connection_that_is_not_made_is_a_timeout(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.adapters.http_base.CONNECT_SECONDS", 1.0)
    with never_accepts() as url:
        error = failure(way, url, timeout=60.0)
    assert (error.reason, "could not be reached" in error.message) == ("timeout", True)


def test_silence_before_the_headers_is_a_timeout(way: Way) -> None:
    with Loopback(SILENT) as server:
        error = failure(way, server.url, timeout=1.0)
        server.wait_until(lambda: server.open_count == 0)
    assert (error.reason, "sent nothing" in error.message) == ("timeout", True)


NO_ANSWERS: dict[str, list[bytes]] = {
    "nothing": [],
    "no HTTP": [b"hello\r\n\r\n"],
    "another version": [b"HTTP/9.9 hello\r\n\r\n"],
    "half a head": [b"HTTP/1.1 200 OK\r\ncont"],
    "a broken header": [b"HTTP/1.1 200 OK\r\nbad\x00header: x\r\n\r\n"],
    "a huge header": [b"HTTP/1.1 200 OK\r\nx: " + 500_000 * b"a" + b"\r\n\r\n"],
}


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_bytes_that_are_no_answer_are_a_network_error(way: Way, answer: list[bytes], reset: bool) -> None:
    with saying(answer, reset=reset) as url:
        assert failure(way, url, timeout=PATIENCE).reason == "network_error"


@contextmanager
def saying(pieces: Iterable[bytes], *, reset: bool = False) -> Generator[str]:
    """A server that says this to whoever asks, HTTP or not, and hangs up."""

    def serve() -> None:
        listening.settimeout(PATIENCE)
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(PATIENCE)
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(PATIENCE)


GZIP = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}

Has = Callable[[], bool]

BROKEN: dict[str, tuple[Callable[[Has], Reply], str, str]] = {
    "fin": (lambda read: Reply(itertools.chain([chat_chunk("a")], held(read), [Cut.FIN])), "a", "truncated"),
    "reset": (lambda read: Reply(itertools.chain([chat_chunk("a")], held(read), [Cut.RESET])), "a", "truncated"),
    "cut at once": (lambda read: Reply([Cut.FIN]), "", "truncated"),
    "no gzip": (lambda read: Reply(b"".join(chat("a")), headers=GZIP), "", "truncated"),
    "silence": (lambda read: Reply([chat_chunk("a"), STALL]), "a", "timeout"),
}
"""Replies that break, once what came before has been read."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_breaks_keeps_what_came(way: Way, name: str) -> None:
    make, text, reason = BROKEN[name]
    events: list[Event] = []

    async def main(server: Loopback) -> Any:
        return await generate(model(server, client=way.client, timeout=2.0), "Hi", on_event=events.append)

    with Loopback(make(lambda: any(isinstance(event, TextDelta) for event in events))) as server:
        response = way.run(main(server))
        server.wait_until(lambda: server.open_count == 0)
    assert (response.output_text, response.finish_reason) == (text, "error")
    assert isinstance(response.error, StreamError)
    assert response.error.reason == reason


def test_a_body_whose_framing_breaks_ends(way: Way) -> None:
    """Aiohttp 3.14.5 itself would wait for ever, also beyond its read timeout."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = chat_chunk("a")
    events: list[Event] = []

    def pieces() -> Iterator[bytes]:
        yield head + b"%x\r\n%b\r\n" % (len(chunk), chunk)
        wait_until(lambda: any(isinstance(event, TextDelta) for event in events))
        yield b"zz\r\n"

    async def main() -> Any:
        engine = Engine(OpenAIChat(base_url=url, client=way.client, timeout=2.0), model="m", retry=False)
        return await generate(engine, "Hi", on_event=events.append)

    with saying(pieces()) as url:
        response = way.run(main())
    assert (response.output_text, response.finish_reason) == ("a", "error")
    assert response.error.reason in ("timeout", "truncated")


def test_other_errors_of_aiohttp_are_left_alone() -> None:
    """An error that merely came of one of aiohttp's is not the transport's."""
    from rxllm.http import transport_error

    mine = ValueError("mine")
    mine.__cause__ = aiohttp.ClientError("its")
    assert transport_error(mine, None, "http://x") is None
    its = transport_error(aiohttp.ServerDisconnectedError(), None, "http://x")
    assert its is not None
    assert its.reason == "network_error"


# The one line


def test_its_timeouts_are_those_of_the_httpx_client() -> None:
    assert aiohttp_client().timeout == httpx_client().timeout == httpx.Timeout(10, read=600, write=60, pool=None)
    with Loopback() as server:
        built = OpenAIChat(base_url=server.url, client=aiohttp_client, timeout=7.0).build(asked(), Call())
    assert built.extensions["timeout"] == {"connect": 10.0, "read": 7.0, "write": 60.0, "pool": None}


def asked() -> Any:
    return rxllm.request("Hi", model="m")


def test_aiohttps_own_total_timeout_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiohttp.client.DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.05))
    words = [each for i in range(8) for each in (chat_chunk(str(i)), Pause(0.03))]
    with Loopback(Reply([*words, chat_finish()])) as server:
        assert generate(model(server, client=aiohttp_client), "Hi").run().output_text == "01234567"


def test_there_is_no_limit_of_a_hundred_connections() -> None:
    async def main(server: Loopback) -> None:
        engine = model(server, client=aiohttp_client)
        calls = [stream_generate(engine, "Hi").subscribe() for _ in range(120)]
        await until(lambda: len(server.requests) == 120)
        for call in calls:
            call.dispose()
        await until(lambda: server.open_count == 0)

    with Loopback(STALLED) as server:
        asyncio.run(main(server))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx_aiohttp", None)
    with pytest.raises(EngineError, match=r"rxllm\[aiohttp\]") as caught:
        generate(Engine(OpenAIChat(base_url="http://127.0.0.1:1", client=aiohttp_client), model="m"), "Hi").run()
    assert caught.value.reason == "missing_dependency"


@pytest.mark.judges
def test_aiohttp_is_imported_when_a_call_is_made() -> None:
    code = """
        import sys
        from rxllm.adapters import OpenAIChat, aiohttp_client
        OpenAIChat(client=aiohttp_client)
        print("aiohttp" in sys.modules)
    """
    assert finished(script(code)) == (0, "False\n", "")


# The whole suites


@pytest.mark.judges
class TestOpenAIChat(wires.OpenAIChatWire):
    def adapter(self, url: str, **connection: Any) -> Any:
        return OpenAIChat(base_url=url, client=aiohttp_client, **connection)


class TestOllama(wires.OllamaWire):
    def adapter(self, url: str, **connection: Any) -> Any:
        return rxllm.Ollama(base_url=url, client=aiohttp_client, **connection)


SUITES = {"aiohttp": TestOpenAIChat, "OpenAIChat": wires.OpenAIChatWire, "Anthropic": wires.AnthropicWire}

SCRIPTS = {
    "texts": Script(("Two, ", "three.")),
    "cut": Script(("Two, ", "three."), error=StreamError("truncated")),
    "an error": Script(("Two, ",), error=AdapterError("rate_limited", "slow down")),
}


@pytest.mark.parametrize("said", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_uvloop_gives_what_the_portal_gives(suite: type[HTTPAdapterConformance], said: Script) -> None:
    async def main() -> list[Event]:
        return [event async for event in stream_generate(Engine(served.adapter, model="m", retry=False), "Hi")]

    with suite().serving(said) as served:
        heard = list(stream_generate(Engine(served.adapter, model="m", retry=False), "Hi"))
        url = served.adapter.base_url
        assert shown(Way(None, uvloops).run(main()), url) == shown(heard, url)


def shown(events: list[Event], url: str) -> list[str]:
    return [repr(event).replace(url, "") for event in events]

"""A stream as a response: what a browser gets, and what happens when it leaves or is slow, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import AdapterError, ErrorEvent, Event, Fake, Stream, StreamError, TextDelta, ValidationError, web
from rxllm import operators as ops
from rxllm.testing.loopback import DONE, Loopback, Reply, chat, chat_chunk, chat_finish, endless
from rxllm.web._codec import PROTOCOLS
from tests.closing import SILENT, STALLED, also_next, next_call
from tests.waiting import until
from tests.web.serving import App, Browser, app_of, asks, assert_left, decoded, get, serving

pytestmark = pytest.mark.sockets

CHUNKS = 600
CHUNK = chat_chunk("x" * 40_000)
LONG = Reply([*[CHUNK] * CHUNKS, chat_finish(), DONE])
"""More than the sockets hold."""


class Held:
    """An app, and whether it waits for the browser of its first request to read."""

    def __init__(self, app: App) -> None:
        self._app, self._is_asked = app, False
        self.is_held = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            self.is_held = True  # between two turns of the loop, it is so only if `send` waits
            await send(message)
            self.is_held = False

        is_first, self._is_asked = not self._is_asked, True
        await self._app(scope, receive, watched if is_first else send)


def fake(*script: Any) -> Callable[[], Stream[Event]]:
    return lambda: rxllm.stream_generate(Fake(*script), "Hi", retry=False)


# What a browser gets


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_browser_gets_the_events_for_clients(protocol: str) -> None:
    make = fake(["Hel", "lo"])
    response = asyncio.run(get(app_of(make, protocol)))
    assert response.status_code == 200
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert "connection" not in response.headers
    events = decoded(response.content, protocol)
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == "Hello"
    if protocol == "rxllm":
        assert events == list(make().pipe(web.for_client()))


def test_headers_are_added_or_replaced() -> None:
    app = app_of(fake("Hi"), headers={"X-Run": "7", "Cache-Control": "no-store"})
    response = asyncio.run(get(app))
    assert (response.headers["x-run"], response.headers["cache-control"]) == ("7", "no-store")


def test_an_encoder_brings_its_headers_and_its_end() -> None:
    class Shouting:
        HEADERS = {"x-loud": "yes", "connection": "keep-alive"}  # noqa: RUF012
        END = b"data: [DONE]\n\n"

        def feed(self, event: Event) -> list[dict[str, Any]]:
            return [{"said": event.delta.upper()}] if isinstance(event, TextDelta) else []

        def close(self) -> list[dict[str, Any]]:
            return []

    response = asyncio.run(get(app_of(fake(["a", "b"]), Shouting())))
    assert response.headers["x-loud"] == "yes"
    assert "connection" not in response.headers
    assert response.text == 'data: {"said":"A"}\n\ndata: {"said":"B"}\n\ndata: [DONE]\n\n'


def test_what_may_leave_is_decided_by_another_operator() -> None:
    app = app_of(fake(["a", "b"]), filter=ops.only(TextDelta))
    assert decoded(asyncio.run(get(app)).content) == [TextDelta("a", "block_0"), TextDelta("b", "block_0")]


def test_the_head_is_sent_before_the_model_speaks() -> None:
    async def main() -> None:
        async with serving(app_of(asks(server))) as port, await Browser.ask(port) as browser:
            await browser.read_until(b"\r\n\r\n")
            assert browser.body.startswith(b"HTTP/1.1 200")

    with Loopback(SILENT) as server:
        asyncio.run(main())


def test_head_asks_no_model() -> None:
    with Loopback(SILENT) as server:
        response = asyncio.run(get(app_of(asks(server)), method="HEAD"))
        assert (response.status_code, response.content, server.requests) == (200, b"", [])


# Errors


def test_an_error_before_the_first_event_is_a_frame() -> None:
    error = AdapterError("rate_limited", "CANARY", retry_after=2.0)
    response = asyncio.run(get(app_of(fake(error))))
    assert response.status_code == 200
    assert decoded(response.content) == [ErrorEvent(AdapterError("rate_limited", retry_after=2.0))]
    assert b"CANARY" not in response.content


def test_an_error_in_the_stream_is_a_frame_and_the_end() -> None:
    def fail(event: Event) -> None:
        raise AdapterError("unknown", "CANARY")

    for make in (
        lambda: fake(["Hel", AdapterError("unknown", "CANARY")])(),
        lambda: fake(["Hel", "lo"])().pipe(ops.tap(fail, rxllm.TextCompleted)),
    ):
        response = asyncio.run(get(app_of(make)))
        *_, delta, error = (e for e in decoded(response.content) if isinstance(e, TextDelta | ErrorEvent))
        assert isinstance(delta, TextDelta)
        assert error == ErrorEvent(AdapterError("unknown"))
        assert b"CANARY" not in response.content


def test_a_broken_stream_ends_with_an_error_and_the_server_hears_of_it(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise KeyError("CANARY")

    make = fake(["Hel", "lo"])
    with caplog.at_level(logging.ERROR):
        response = asyncio.run(get(app_of(lambda: make().pipe(ops.tap(fail, rxllm.TextCompleted)))))
    assert decoded(response.content)[-1] == ErrorEvent(StreamError("unknown"))
    assert b"CANARY" not in response.content
    assert "KeyError" in caplog.text


def test_what_is_no_event_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Such as the text of a stream: a browser would get nothing at all."""
    response = asyncio.run(get(app_of(lambda: fake(["Hello"])().pipe(ops.text()))))  # pyright: ignore
    assert decoded(response.content) == [ErrorEvent(StreamError("unknown"))]
    assert "only events can be sent to a client, not str; pass rxllm.stream(...) itself" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stream": "Hello"}, "stream must be a stream of events"),
        ({"heartbeat": 0}, "heartbeat must be a positive number of seconds, or None, not 0"),
        ({"send_timeout": "1"}, "send_timeout must be a positive number of seconds, not '1'"),
        (
            {"headers": {"x": "a\r\nset-cookie: b"}},
            "headers must not contain line breaks or null characters, but 'x' does",
        ),
    ],
)
def test_bad_arguments_raise_at_the_call(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        web.streaming_response(**{"stream": fake("Hi")(), **arguments})


@pytest.mark.parametrize("protocol", ["sse", "", None, 1, []])
def test_an_unknown_protocol_raises_at_the_call(protocol: Any) -> None:
    with pytest.raises(ValidationError, match=r"protocol must be one of 'rxllm'"):
        web.streaming_response(fake("Hi")(), protocol)


# Leaving


async def _while_it_speaks(browser: Browser, server: Loopback, app: Held) -> None:
    await browser.read_until(b'"c"')


async def _while_it_is_silent(browser: Browser, server: Loopback, app: Held) -> None:
    await browser.read_until(b"\r\n\r\n")
    await until(lambda: len(server.requests) == 1)


async def _without_reading(browser: Browser, server: Loopback, app: Held) -> None:
    await until(lambda: app.is_held)


@pytest.mark.parametrize(
    ("when", "reply"), [(_while_it_speaks, STALLED), (_while_it_is_silent, SILENT), (_without_reading, LONG)]
)
def test_a_browser_that_leaves_ends_the_call(
    when: Callable[[Browser, Loopback, Held], Coroutine[Any, Any, None]], reply: Reply
) -> None:
    async def main() -> None:
        app = Held(app_of(asks(server)))
        async with serving(app) as port:
            browser = await Browser.ask(port)
            await when(browser, server, app)
            browser.leave()
            await assert_left(port, server.connections[0])

    with Loopback([reply, Reply(chat("Hi"))]) as server:
        asyncio.run(main())


def test_a_browser_that_has_left_before_asks_no_model() -> None:
    async def main() -> list[Any]:
        sent: list[Any] = []

        async def receive() -> dict[str, str]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await web.streaming_response(asks(server)())({"type": "http", "method": "GET"}, receive, send)
        return sent

    with Loopback(SILENT) as server:
        assert asyncio.run(main()) == []
        assert server.connections == []


@pytest.mark.parametrize(
    ("kind", "closed_by"), [("http.response.start", []), ("http.response.body", ["client"])], ids=["head", "body"]
)
def test_a_server_that_raises_when_the_browser_has_left_is_understood(kind: str, closed_by: list[str]) -> None:
    async def main() -> None:
        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == kind:
                raise BrokenPipeError

        await web.streaming_response(asks(server)())({"type": "http", "method": "GET"}, receive, send)
        await next_call(server)
        assert [connection.closed_by for connection in server.connections[:-1]] == closed_by

    with Loopback(also_next(STALLED)) as server:
        asyncio.run(main())


def test_what_was_said_is_kept_when_the_browser_leaves() -> None:
    outcomes: list[tuple[str, str]] = []

    async def save(result: rxllm.Response, outcome: str) -> None:
        await asyncio.sleep(0)
        outcomes.append((result.output_text, outcome))

    async def main() -> None:
        app = app_of(lambda: asks(server)().pipe(ops.finally_result(save)))
        async with serving(app) as port:
            browser = await Browser.ask(port)
            await browser.read_until(b'"c"')
            browser.leave()
            await until(lambda: bool(outcomes))

    with Loopback(STALLED) as server:
        asyncio.run(main())
    assert outcomes == [("abc", "cancelled")]


@pytest.mark.judges
@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(0, 4000), st.booleans()), min_size=1, max_size=20))
def test_browsers_may_leave_at_any_byte(leaves: list[tuple[int, bool]]) -> None:
    """After so many bytes, with an end of file or a reset."""

    async def come_and_go(port: int, count: int, closes: bool) -> None:
        async with await Browser.ask(port) as browser:
            while len(browser.body) < count and await browser.read(count - len(browser.body)):
                pass
            if closes:
                browser.close()

    async def main() -> None:
        async with serving(app_of(asks(server)), timeout_graceful_shutdown=1) as port:
            await asyncio.gather(*(come_and_go(port, *leave) for leave in leaves))
            await until(lambda: server.open_count == 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with Loopback(lambda request: Reply(endless(every=0.0))) as server:
        asyncio.run(main())


# Slow browsers, and many


@pytest.mark.judges
def test_a_slow_browser_holds_the_model_back_and_loses_nothing() -> None:
    async def main() -> bytes:
        app = Held(app_of(asks(server), send_timeout=3600))
        async with serving(app) as port, await Browser.ask(port) as slow:
            await slow.read_until(b"xxx")
            await until(lambda: app.is_held)
            async with await Browser.ask(port) as quick:  # which has all of it before the slow one reads on
                assert (await quick.read_all()).count(b'"text_delta"') == CHUNKS
            assert app.is_held
            assert server.connections[0].bytes_sent < 0.6 * CHUNKS * len(CHUNK)
            return await slow.read_all()

    with Loopback(LONG) as server:
        assert asyncio.run(main()).count(b'"text_delta"') == CHUNKS


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.judges
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files in /proc")
def test_three_hundred_who_come_and_go_leave_nothing_behind() -> None:
    async def come_and_go(port: int) -> None:
        async with await Browser.ask(port) as browser:
            await browser.read_until(b'"c"')

    async def main() -> None:
        async with serving(app_of(asks(server)), backlog=512) as port:
            await come_and_go(port)
            await until(lambda: server.open_count == 0)
            gc.collect()
            before = len(asyncio.all_tasks()), threading.active_count(), _open_files()
            for _ in range(6):
                await asyncio.gather(*(come_and_go(port) for _ in range(50)))
            await until(lambda: server.open_count == 0 and len(asyncio.all_tasks()) <= before[0])
            gc.collect()
            await until(lambda: _open_files() <= before[2])
            assert len(asyncio.all_tasks()) == before[0]
            assert threading.active_count() <= before[1]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with Loopback(STALLED) as server:
        asyncio.run(main())
        assert len(server.requests) == 301


@pytest.mark.judges
def test_fifty_at_once_are_all_answered_and_one_that_never_reads_disturbs_nobody() -> None:
    words = [f"w{number} " for number in range(100)]

    async def main() -> list[bytes]:
        async def read(port: int) -> bytes:
            async with await Browser.ask(port) as browser:
                return await browser.read_all()

        async with serving(app_of(asks(server))) as port, await Browser.ask(port, "/long"):
            return await asyncio.gather(*(read(port) for _ in range(50)))

    with Loopback(lambda request: LONG if len(server.requests) == 1 else Reply(chat(*words))) as server:
        bodies = asyncio.run(main())
    assert {body.count(b'"text_delta"') for body in bodies} == {100}


# The server's end


def test_a_server_that_stops_ends_the_calls() -> None:
    async def main() -> None:
        browsers: list[Browser] = []
        async with serving(app_of(asks(server)), timeout_graceful_shutdown=1) as port:
            for _ in range(5):
                browsers.append(await Browser.ask(port))
                await browsers[-1].read_until(b'"c"')
        await until(lambda: server.open_count == 0)
        for browser in browsers:
            assert not (await browser.read_all()).endswith(b"0\r\n\r\n")  # cut off, and it shows
            browser.leave()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with Loopback(STALLED) as server:
        asyncio.run(main())


def test_a_server_that_stops_lets_short_answers_end() -> None:
    async def main() -> bytes:
        async with serving(app_of(asks(server))) as port:
            browser = await Browser.ask(port)
            await browser.read_until(b'"a"')
        async with browser:
            return await browser.read_all()

    with Loopback(Reply([chat_chunk("a"), *chat("b")])) as server:
        body = asyncio.run(main())
    assert b'"end"' in body

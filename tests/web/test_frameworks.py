"""A route of Starlette, FastAPI or Litestar returns a response, and what these do to their own works with it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import BackgroundTasks, FastAPI
from litestar import Litestar, post
from litestar import get as route
from litestar.params import FromQuery, JSONBody
from litestar.types import ASGIApp
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import rxllm
from rxllm import ErrorEvent, Event, Fake, TextDelta, web
from rxllm import operators as ops
from rxllm.testing.loopback import Loopback, Reply, chat
from tests.closing import STALLED
from tests.programs import python
from tests.runtime.support import model
from tests.waiting import PATIENCE
from tests.web.serving import App, Browser, assert_left, decoded, get, serving

pytestmark = pytest.mark.sockets


def hello(text: str = "Hi") -> rxllm.Stream[Event]:
    return rxllm.stream_generate(Fake(["Hel", "lo"]), text)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = decoded(response.content)
    assert not any(isinstance(event, ErrorEvent) for event in events)
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


def test_a_starlette_route_returns_it() -> None:
    async def chat(request: Request) -> Any:
        response: Any = web.streaming_response(hello(request.query_params["q"]))
        response.headers["x-run"] = "7"
        response.set_cookie("seen", "yes")
        return response

    response = asyncio.run(get(Starlette(routes=[Route("/chat", chat)]), "/chat?q=Hi"))
    assert text_of(response) == "Hello"
    assert (response.headers["x-run"], response.cookies["seen"]) == ("7", "yes")


def test_a_fastapi_route_returns_it() -> None:
    app = FastAPI()
    done: list[str] = []

    @app.get("/chat")
    async def chat(q: str, tasks: BackgroundTasks) -> Response:
        tasks.add_task(done.append, q)
        response: Any = web.streaming_response(hello(q))
        return response

    assert text_of(asyncio.run(get(app, "/chat?q=Hi"))) == "Hello"
    assert done == ["Hi"]


def test_a_fastapi_function_without_async_returns_it() -> None:
    app = FastAPI()

    @app.post("/chat")
    def chat(q: str):
        return web.streaming_response(hello(q))

    assert text_of(asyncio.run(get(app, "/chat?q=Hi", "POST"))) == "Hello"


def litestar(make: Any) -> App:
    @route("/chat")
    async def chat(q: FromQuery[str]) -> ASGIApp:
        return web.streaming_response(make(q), headers={"x-run": "7"})

    @post("/chat")
    async def send(data: JSONBody[dict[str, str]]) -> ASGIApp:
        return web.streaming_response(make(data["q"]))

    app: Any = Litestar([chat, send], logging_config=None)
    return app


def test_a_litestar_route_returns_it() -> None:
    response = asyncio.run(get(litestar(hello), "/chat?q=Hi"))
    assert (text_of(response), response.headers["x-run"]) == ("Hello", "7")
    assert "connection" not in response.headers


def test_a_litestar_post_returns_it() -> None:
    async def main() -> httpx.Response:
        async with serving(litestar(hello)) as port, httpx.AsyncClient(timeout=PATIENCE) as client:
            return await client.post(f"http://127.0.0.1:{port}/chat", json={"q": "Hi"})

    assert text_of(asyncio.run(main())) == "Hello"


def test_leaving_litestar_disposes_and_leaves_the_next_request_alone() -> None:
    async def main() -> httpx.Response:
        app = litestar(lambda q: rxllm.stream_generate(model(server), "Hi") if q == "ask" else hello(q))
        async with serving(app) as port, await Browser.ask(port, "/chat?q=ask") as leaves:
            await leaves.read_until(b'"c"')
            async with await Browser.ask(port, "/chat?q=ask") as stays, httpx.AsyncClient(timeout=PATIENCE) as client:
                await stays.read_until(b'"c"')
                leaves.leave()
                await assert_left(port, server.connections[0], "/chat?q=ask")
                assert server.connections[1].closed_at is None
                return await client.get(f"http://127.0.0.1:{port}/chat?q=Hi")

    with Loopback([STALLED, STALLED, Reply(chat("Hi"))]) as server:
        assert text_of(asyncio.run(main())) == "Hello"


def _wrapped(make: Any) -> App:
    async def chat(request: Request) -> Any:
        return web.streaming_response(make())

    async def pass_on(request: Request, call_next: Any) -> Response:
        return await call_next(request)

    middleware = [Middleware(GZipMiddleware), Middleware(BaseHTTPMiddleware, dispatch=pass_on)]
    return Starlette(routes=[Route("/", chat)], middleware=middleware)


def test_it_streams_through_middleware() -> None:
    assert text_of(asyncio.run(get(_wrapped(hello)))) == "Hello"


def test_leaving_is_seen_through_middleware() -> None:
    async def main() -> None:
        app = _wrapped(lambda: rxllm.stream_generate(model(server), "Hi"))
        async with serving(app) as port, await Browser.ask(port) as browser:
            await browser.read_until(b'"c"')
            browser.leave()
            await assert_left(port, server.connections[0])

    with Loopback([STALLED, Reply(chat("Hi"))]) as server:
        asyncio.run(main())


@pytest.mark.judges
def test_it_needs_no_framework() -> None:
    code = """
import sys, rxllm
from rxllm import web
web.streaming_response(rxllm.stream_generate(rxllm.Fake("Hello"), "Hi"))
print(*(name for name in ("starlette", "uvicorn") if name in sys.modules))
"""
    ran = python("-c", code)
    assert (ran.stderr, ran.stdout.strip()) == ("", "")


# A forgotten await


@pytest.mark.parametrize("make", [rxllm.chat, rxllm.generate, rxllm.stream])
@pytest.mark.parametrize("nested", [False, True])
def test_fastapi_refuses_a_stream_in_one_sentence_and_calls_no_model(make: Any, nested: bool) -> None:
    app, fake = FastAPI(), Fake("Hello")

    @app.get("/async")
    async def forgotten():
        return {"answer": make(fake, "Hi")} if nested else make(fake, "Hi")

    @app.get("/sync")
    def plain():
        return {"answer": make(fake, "Hi")} if nested else make(fake, "Hi")

    for path in ("/async", "/sync"):
        with pytest.raises(TypeError, match=r"^a Stream has no JSON form, .*; write return await stream or") as caught:
            asyncio.run(in_process(app, path))
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
    assert fake.requests == []


def test_starlette_refuses_a_stream_and_calls_no_model() -> None:
    fake = Fake("Hello")

    async def forgotten(request: Request) -> Any:
        return rxllm.chat(fake, "Hi")

    async def as_json(request: Request) -> Any:
        return JSONResponse(rxllm.chat(fake, "Hi"))

    app = Starlette(routes=[Route("/plain", forgotten), Route("/json", as_json)])
    for path in ("/plain", "/json"):
        with pytest.raises(TypeError, match="Stream"):
            asyncio.run(in_process(app, path))
    assert fake.requests == []


def test_litestar_awaits_a_stream() -> None:
    @route("/chat")
    async def forgotten() -> str:
        answer: Any = hello().pipe(ops.to_text())
        return answer

    assert asyncio.run(get(Litestar([forgotten], logging_config=None), "/chat")).text == "Hello"


def test_a_stream_is_no_mapping() -> None:
    fake = Fake("Hello")
    with pytest.raises(TypeError, match=r"a Stream is not a mapping: .*chat\(\.\.\.\)\.run\(\), or await it"):
        dict(rxllm.chat(fake, "Hi"))  # type: ignore[call-overload]
    assert fake.requests == []


async def in_process(app: ASGIApp, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get(path)

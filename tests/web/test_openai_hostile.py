"""Clients that leave, do not read, or send nonsense: a clear error or a close, and nothing is left open."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import Engine, Fake, OpenAIChat, ToolCall, ToolContext, ValidationError, tool, web
from rxllm.testing.loopback import Loopback, Reply, Request, chat, chat_chunk, endless
from rxllm.web import _openai_app
from tests.closing import assert_closed
from tests.examples import examples
from tests.waiting import PATIENCE, wait_until
from tests.web.served import Served

HI: Any = {"model": "m0", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = {**HI, "stream": True}
NEXT: Any = {"model": "m1", "messages": [{"role": "user", "content": "The next call."}]}


def post(server: Served, body: Any, query: str = "") -> httpx.Response:
    return httpx.post(f"{server.url}/chat/completions{query}", json=body, timeout=PATIENCE)


def text_of(answer: httpx.Response) -> str:
    return answer.json()["choices"][0]["message"]["content"]


def connected(server: Served, body: bytes = b"", head: str = "", length: int | None = None) -> socket.socket:
    """A socket on which a request has been sent."""
    connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    length_field = f"Content-Length: {len(body) if length is None else length}\r\n" if "chunked" not in head else ""
    first = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{head}{length_field}\r\n"
    connection.sendall(first.encode() + body)
    return connection


def proxied(provider: Loopback) -> Engine:
    return Engine(OpenAIChat(base_url=provider.url), model="m", retry=False)


@contextmanager
def endless_model(**options: Any) -> Generator[tuple[Loopback, Served]]:
    """A provider that never ends, except for `NEXT`, and the server in front of it, with two models."""

    def answer(request: Request) -> Reply:
        return Reply(chat("Hello")) if b"The next call" in request.body else Reply(endless(lambda i: CHUNK))

    with (
        Loopback(answer) as provider,
        Served.of(proxied(provider), proxied(provider), **options) as server,
    ):
        yield provider, server


CHUNK = chat_chunk("x" * 20_000)


@pytest.mark.sockets
@pytest.mark.parametrize("body", [STREAM, HI], ids=["streamed", "whole"])
def test_a_client_that_leaves_closes_the_providers_socket(body: Any) -> None:
    with endless_model() as (provider, server):
        idle = server.tasks()
        client = connected(server, json.dumps(body).encode())
        wait_until(lambda: provider.requests)
        if body is STREAM:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.close()
        assert text_of(post(server, NEXT)) == "Hello"  # over a connection pool of its own
        assert_closed(provider.connections[0])
        wait_until(server.tasks, idle.__eq__)


@pytest.mark.sockets
def test_a_client_that_leaves_cancels_the_engines_tools() -> None:
    started, contexts = threading.Event(), list[ToolContext]()

    @tool
    async def slow(context: ToolContext) -> str:
        contexts.append(context)
        started.set()
        await asyncio.Event().wait()
        return "late"

    with Served.of(Engine(Fake(ToolCall("c", "slow", {})), tools=[slow]), Fake("Hello")) as server:
        client = connected(server, json.dumps(STREAM).encode())
        assert started.wait(PATIENCE)
        client.close()
        assert text_of(post(server, NEXT)) == "Hello"
        assert contexts[0].cancelled.is_set()


@pytest.mark.judges
def test_a_slow_client_holds_back_the_model() -> None:
    with endless_model() as (provider, server):
        slow = connected(server, json.dumps(STREAM).encode())
        slow.recv(100)
        with connected(server, json.dumps({**STREAM, "model": "m1"}).encode()) as quick:
            read = 0
            while read < 30_000_000:  # which the slow one could have had too
                read += len(quick.recv(1_000_000))
        seen = provider.connections[0].bytes_sent
        assert seen < 20e6  # what the sockets hold
        wait_until(lambda: slow.recv(1_000_000) and provider.connections[0].bytes_sent > seen)
        slow.close()
        provider.connections[0].wait_closed(PATIENCE)


@pytest.mark.judges
def test_a_client_that_never_reads_ends_in_time_and_disturbs_nobody() -> None:
    threads = threading.active_count()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (others if scope.get("query_string") == b"other" else limited)(scope, receive, send)

    with Loopback(lambda _: Reply(endless(lambda i: CHUNK))) as provider:
        limited = web.openai_app({"m0": proxied(provider)}, timeout=1.0)
        others = web.openai_app({"m1": Fake("Hello")})
        with Served(app) as server:
            idle = server.tasks()
            clients = [connected(server, json.dumps(STREAM).encode()) for _ in range(5)]
            assert text_of(post(server, NEXT, "?other")) == "Hello"
            wait_until(lambda: len(provider.requests) == 5 and provider.open_count == 0)
            for client in clients:
                client.close()
            wait_until(server.tasks, idle.__eq__)
    wait_until(lambda: threading.active_count() <= threads + 1)  # the portal of rxllm's own tests may have begun


@pytest.mark.sockets
def test_a_silent_stream_has_heartbeats_and_then_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_openai_app, "HEARTBEAT", 1.0)
    go = asyncio.Event()

    async def speak(request: Any, call: Any) -> Any:
        await go.wait()
        yield rxllm.TextDelta("Hello")

    with Served.of(speak) as server, connected(server, json.dumps(STREAM).encode(), "Connection: close\r\n") as client:
        answer = b""
        while b":\n\n" not in answer:
            answer += client.recv(1000)
        assert b"data:" not in answer
        server.call(go.set)
        while received := client.recv(1000):
            answer += received
    assert b'"content":"Hello"' in answer
    assert b"data: [DONE]" in answer


def status_of(client: socket.socket) -> bytes:
    with client:
        return client.recv(1000).split(b" ", 2)[1]


@pytest.mark.sockets
def test_a_body_that_is_too_large() -> None:
    with Served.of(Fake("Hello"), max_body=1000) as server:
        idle = server.tasks()
        assert status_of(connected(server, b"{", length=1001)) == b"413"
        chunked = b"".join(b"%x\r\n%b\r\n" % (500, b" " * 500) for _ in range(3))
        assert status_of(connected(server, chunked, "Transfer-Encoding: chunked\r\n")) == b"413"
        assert post(server, HI).status_code == 200
        wait_until(server.tasks, idle.__eq__)


@pytest.mark.sockets
def test_half_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_openai_app, "READING", 1.0)
    with Served.of(Fake("Hello")) as server:
        idle = server.tasks()
        assert status_of(connected(server, b'{"mo', length=100)) == b"408"
        connected(server, b'{"mo', length=100).close()  # and one that leaves
        wait_until(server.tasks, idle.__eq__)


@pytest.mark.sockets
def test_more_requests_than_there_is_place_for() -> None:
    with endless_model(max_requests=2) as (provider, server):
        clients = [connected(server, json.dumps(STREAM).encode()) for _ in range(2)]
        wait_until(lambda: provider.open_count == 2)
        refused = post(server, HI)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        clients.pop().close()
        accepted = wait_until(lambda: post(server, NEXT), lambda answer: answer.status_code != 503)
        assert text_of(accepted) == "Hello"
        clients.pop().close()


@pytest.mark.sockets
def test_a_body_that_arrives_slowly_takes_no_place() -> None:
    with Served.of(Fake("Hello"), max_requests=1) as server:
        slow = [connected(server, b'{"model": "m0", ', length=10_000) for _ in range(3)]
        assert text_of(post(server, HI)) == "Hello"
        for client in slow:
            client.close()


@pytest.mark.sockets
@pytest.mark.parametrize("length", ["9" * 5000, "0" * 5000 + "9" * 20])
def test_a_huge_content_length_is_too_large(length: str) -> None:
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}
    scope |= {"headers": [(b"content-length", length.encode())]}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is read")

    asyncio.run(web.openai_app({"m": Fake("Hi")})(scope, receive, send))
    assert sent[0]["status"] == 413


def answer_to(body: bytes, engine: Any = None, path: str = "chat/completions", method: str = "POST") -> httpx.Response:
    app = web.openai_app({"m0": engine or Fake("Hello")})

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://served/v1/") as client:
            return await client.request(method, path, content=body)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"\xff",
        b"null",
        b"[" * 100000,
        b'{"model": "m0", "messages": ' + b"[" * 70 + b"]" * 70,
        b'{"x": ' + b"[" * 70 + b"]" * 70 + b"}",
        b'{"model": NaN}',
        b'{"model": "\\ud800"}',
    ],
)
def test_bodies_that_are_no_requests(body: bytes) -> None:
    answer = answer_to(body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


WRONG: list[tuple[str, Any, str]] = [
    ("model", 1, "model"),
    ("model", None, "model"),
    ("messages", [], "messages"),
    ("messages", "Hi", "messages"),
    ("messages", [1], "messages[0]"),
    ("messages", [{"role": "wizard", "content": "x"}], "messages[0].role"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"role": "tool", "content": "x", "tool_call_id": "a"}], "messages[0].tool_call_id"),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
     "messages[0]"),
    ("messages", [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}], "messages[0]"),
    ("temperature", 3, "temperature"),
    ("temperature", "hot", "temperature"),
    ("max_tokens", 0, "max_completion_tokens"),
    ("max_completion_tokens", 1.5, "max_completion_tokens"),
    ("stop", [1], "stop"),
    ("seed", "x", "seed"),
    *((name, 10**400, param) for name, param in (
        ("seed", "seed"), ("max_tokens", "max_completion_tokens"), ("temperature", "temperature"))),
    ("seed", -(10**400), "seed"),
    ("reasoning_effort", 1, "reasoning_effort"),
    ("response_format", {"type": "xml"}, "response_format"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}, "response_format"),
    ("tools", {}, "tools"),
    ("tools", [{"type": "custom"}], "tools[0]"),
    ("tools", [{"type": "function", "function": {"name": "a b"}}], "tools[0].name"),
    ("tools", [{"type": "function", "function": {"name": "a", "parameters": []}}], "tools[0].parameters"),
    ("tool_choice", "auto", "tool_choice"),
    ("stream", 1, "stream"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("n", 2, "n"),
    ("logprobs", True, "logprobs"),
    ("parallel_tool_calls", False, "parallel_tool_calls"),
    ("functions", [], "functions"),
    ("frequency_penalty", 0.5, "frequency_penalty"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "param"), WRONG, ids=lambda value: str(value)[:30])
def test_what_is_wrong_is_named(field: str, value: Any, param: str) -> None:
    answer = answer_to(json.dumps({**HI, field: value}).encode())
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert len(error["message"]) < 300


@pytest.mark.sockets
def test_a_file_that_the_provider_does_not_take_is_the_clients_fault() -> None:
    file = {"type": "file", "file": {"file_data": "data:application/x;base64,JVBERg==", "filename": "a.x"}}
    with Loopback(lambda _: Reply(chat("Hello"))) as provider:
        body = json.dumps({**HI, "messages": [{"role": "user", "content": [file]}]}).encode()
        answer = answer_to(body, proxied(provider))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
words = st.sampled_from(
    ["user", "assistant", "tool", "system", "m0", "auto", "function", "text", "image_url", "json_schema"]
)
shaped = st.recursive(
    anything | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({}, optional=dict.fromkeys(
            ("role", "content", "type", "function", "name", "tool_calls", "tool_call_id", "id", "arguments", "text",
             "parameters", "json_schema", "schema", "image_url", "url", "strict", "include_usage"), inner
        ))
    ),
    max_leaves=12,
)  # fmt: skip
FIELDS = [
    "messages",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "seed",
    "reasoning_effort",
    "response_format",
    "stream",
    "stream_options",
    "n",
    "user",
    "metadata",
    "logit_bias",
    "modalities",
    "store",
    "service_tier",
]


@settings(deadline=None, max_examples=examples(400))
@given(st.dictionaries(st.sampled_from(FIELDS), shaped, min_size=1, max_size=3))
def test_any_json_in_any_field_is_an_answer_or_a_clear_error(fields: Any) -> None:
    answer = answer_to(json.dumps({**HI, **fields}).encode())
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]


@settings(deadline=None, max_examples=examples(200))
@given(st.dictionaries(st.text(max_size=8), anything, max_size=3) | anything)
def test_any_json_as_a_body_is_a_clear_error(body: Any) -> None:
    assert answer_to(json.dumps(body).encode()).status_code in (400, 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "chat/completions", 405),
        ("POST", "models", 405),
        ("GET", "models/a/../../x", 404),
        ("GET", "", 404),
        ("GET", "models/%2e%2e%2fetc%2fpasswd", 404),
        ("POST", "completions", 404),
        ("GET", "models/m0", 200),
    ],
)
def test_other_paths_and_methods(method: str, path: str, status: int) -> None:
    assert answer_to(b"", path=path, method=method).status_code == status


def test_it_can_be_mounted_below_another_path() -> None:
    app, sent = web.openai_app({"m0": Fake("Hello")}), list[Any]()

    async def main() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/llm/v1/models", "root_path": "/llm", "headers": []}
        await app(scope, asyncio.Event().wait, send)

    asyncio.run(main())
    assert sent[0]["status"] == 200


def test_a_websocket_is_closed() -> None:
    sent: list[Any] = []

    async def main() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        await web.openai_app({"m0": Fake("Hello")})({"type": "websocket"}, asyncio.Event().wait, send)

    asyncio.run(main())
    assert sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize(
    ("engines", "options"),
    [({}, {}), ([Fake("Hi")], {}), ({"": Fake("Hi")}, {}), ({1: Fake("Hi")}, {}), ({"m": Fake("Hi")}, {"key": ""})]
    + [({"m": Fake("Hi")}, {name: value}) for name in ("timeout", "max_body", "max_requests") for value in (0, "x")]
    + [({"m": Engine(Fake("Hi"), params={"temperature": "hot"})}, {})],
)
def test_wrong_arguments_raise_at_the_call(engines: Any, options: Any) -> None:
    with pytest.raises(ValidationError):
        web.openai_app(engines, **options)


def test_an_unknown_provider_raises_at_the_call() -> None:
    with pytest.raises(rxllm.EngineError):
        web.openai_app({"m": "nobody:model"})


def test_many_runs_are_forgotten() -> None:
    from rxllm.web._openai_answer import Memory

    memory = Memory(most=3)
    for i in range(10):
        thread = rxllm.Thread((rxllm.user(f"Hi {i}"),))
        events = rxllm.chat(Fake(ToolCall("c", "f", {})), thread, tools=[rxllm.Tool("f", manual=True)])
        memory.keep("m", thread, thread, events.run())
    assert len(memory) == 3

"""Keys that expire, and headers for one call."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import threading
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Anthropic, Engine, EngineError, Gemini, Ollama, OpenAIChat, ValidationError, keys
from rxllm import operators as ops
from rxllm.adapters import OpenAIImages, connect
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.values import Call
from tests.waiting import PATIENCE

pytestmark = pytest.mark.sockets

TOKEN = "token-0123456789"
HELLO = Reply(chat("Hello"))
BUSY = Reply.of_json({"error": {"message": "busy"}}, 503)
AT_ONCE = {"max_attempts": 3, "base_delay": 0.0, "jitter": 0.0}


class Tokens:
    """A source of tokens that expire: each is another one."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"{TOKEN}-{self.count}"

    async def later(self) -> str:
        await asyncio.sleep(0)
        return self()

    def promised(self) -> Any:
        return self.later()


def sent_keys(server: Loopback) -> list[str]:
    return [request.headers["authorization"].removeprefix("Bearer ") for request in server.requests]


@pytest.mark.parametrize("kind", ["sync", "async", "a function that returns an awaitable"])
def test_a_function_gives_the_key_of_each_attempt(kind: str) -> None:
    tokens = Tokens()
    key = {"sync": tokens, "async": tokens.later}.get(kind, tokens.promised)
    with Loopback([BUSY, BUSY, HELLO, HELLO]) as server:
        engine = Engine(OpenAIChat(base_url=server.url, api_key=key), model="m", retry=AT_ONCE)
        assert rxllm.generate(engine, "Hi").run().output_text == "Hello"
        assert rxllm.generate(engine, "Hi").run().output_text == "Hello"
        assert sent_keys(server) == [f"{TOKEN}-{number}" for number in range(1, 5)]


def test_the_call_and_the_store_take_a_function_too() -> None:
    tokens = Tokens()
    with Loopback(HELLO) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m")
        keys.put("openai", lambda: "from-the-store")
        try:
            assert callable(keys.get("openai"))
            rxllm.generate(engine, "Hi").run()
            rxllm.generate(engine, "Hi", api_key=tokens.later).run()
        finally:
            keys.clear()
        assert sent_keys(server) == ["from-the-store", f"{TOKEN}-1"]


@pytest.mark.parametrize(
    ("adapter", "header", "prefix"),
    [
        (OpenAIChat, "authorization", "Bearer "),
        (rxllm.OpenAIResponses, "authorization", "Bearer "),
        (Anthropic, "x-api-key", ""),
        (Gemini, "x-goog-api-key", ""),
        (Ollama, "authorization", "Bearer "),
        (lambda **connection: connect("vllm", **connection), "authorization", "Bearer "),
    ],
)
def test_every_wire_sends_it(adapter: Any, header: str, prefix: str) -> None:
    with Loopback(Reply.of_json({"error": "no"}, 401)) as server:
        engine = Engine(adapter(base_url=server.url, api_key=Tokens()), model="m")
        with pytest.raises(AdapterError):
            rxllm.generate(engine, "Hi", headers={"x-trace": "7"}).run()
    assert server.requests[0].headers[header] == f"{prefix}{TOKEN}-1"
    assert server.requests[0].headers["x-trace"] == "7"


def test_images_take_it_too() -> None:
    with Loopback(Reply.of_json({"data": [{"b64_json": "R0lGODlh"}]})) as server:
        adapter = OpenAIImages(base_url=server.url, api_key=Tokens().later)
        response = rxllm.generate_image(adapter, "a kestrel", model="m", headers={"x-trace": "7"}).run()
    assert len(response.images) == 1
    assert sent_keys(server) == [f"{TOKEN}-1"]
    assert server.requests[0].headers["x-trace"] == "7"


def test_a_slow_function_does_not_hold_up_other_calls() -> None:
    """A plain function runs in a thread, where it may block."""
    other_is_done = threading.Event()

    def slow() -> str:
        assert other_is_done.wait(PATIENCE)
        return TOKEN

    async def main(server: Loopback) -> None:
        engine = Engine(OpenAIChat(base_url=server.url), model="m")
        first = asyncio.create_task(ask(engine, slow))
        await ask(engine, "other")
        other_is_done.set()
        await first
        assert sent_keys(server) == ["other", TOKEN]

    async def ask(engine: Engine, key: Any) -> None:
        assert (await rxllm.generate(engine, "Hi", api_key=key)).output_text == "Hello"

    with Loopback(HELLO) as server:
        asyncio.run(main(server))


def failing() -> str:
    raise RuntimeError(f"the token service refuses {TOKEN}")


async def failing_later() -> str:
    return failing()


@pytest.mark.parametrize("key", [failing, failing_later, iter(()).__next__])
def test_a_function_that_fails_is_a_typed_error_with_its_cause(key: Any) -> None:
    with Loopback(HELLO) as server, pytest.raises(EngineError, match="api_key function for openai raised") as caught:
        rxllm.generate(Engine(OpenAIChat(base_url=server.url, api_key=key), model="m"), "Hi").run()
    assert (caught.value.reason, server.requests) == ("missing_key", [])
    assert isinstance(caught.value.__cause__, RuntimeError | StopIteration)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "NoneType"), (b"secret-bytes", "bytes"), (" ", "an empty string"), ({"k": "secret"}, "dict")],
)
def test_nonsense_is_a_typed_error_that_does_not_show_it(value: Any, kind: str) -> None:
    with pytest.raises(EngineError, match=kind) as caught:
        rxllm.generate(Engine(OpenAIChat(), model="m"), "Hi", api_key=lambda: value).run()
    assert caught.value.reason == "missing_key"
    assert "secret" not in str(caught.value)


def test_a_functions_own_error_of_the_network_is_retried() -> None:
    attempts: list[int] = []

    def key() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise AdapterError("network_error", "the token service could not be reached")
        return TOKEN

    with Loopback(HELLO) as server:
        engine = Engine(OpenAIChat(base_url=server.url, api_key=key), model="m", retry=AT_ONCE)
        assert rxllm.generate(engine, "Hi").run().output_text == "Hello"
        assert sent_keys(server) == [TOKEN]


def test_the_key_that_a_function_returns_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Loopback(Reply.of_json({"error": {"message": f"{TOKEN} is refused"}}, 401)) as server:
        adapter = OpenAIChat(base_url=server.url, api_key=lambda: TOKEN)
        with pytest.raises(AdapterError, match="is refused") as caught:
            rxllm.generate(Engine(adapter, model="m"), "Hi").run()
    assert TOKEN not in f"{caught.value!r} {vars(caught.value)} {adapter!r} {caplog.text}"


def test_build_does_not_call_a_function() -> None:
    request = rxllm.request("Hi", model="m")
    with pytest.raises(EngineError, match=r"pass the key itself: Call\(api_key=...\)"):
        OpenAIChat(api_key=Tokens()).build(request, Call())


def test_an_adapter_with_a_function_is_copied_and_pickled() -> None:
    adapter = OpenAIChat(api_key=Tokens())
    assert copy.deepcopy(adapter)._api_key is adapter._api_key
    assert pickle.loads(pickle.dumps(adapter))._api_key is None


def test_a_key_of_another_kind_is_refused_with_the_kinds_there_are() -> None:
    with pytest.raises(ValidationError, match="a string, a function that returns one, or None") as caught:
        OpenAIChat(api_key=b"secret")  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    with pytest.raises(ValidationError, match="api_key must be a string, or a function"):
        rxllm.generate(Engine(OpenAIChat()), "Hi", api_key=3)  # type: ignore[arg-type]


# Headers


def test_a_calls_headers_win_over_the_adapters_and_those_over_the_wires() -> None:
    with Loopback(HELLO) as server:
        adapter = OpenAIChat(base_url=server.url, api_key="key", headers={"X-Team": "blue", "X-App": "mine"})
        engine = Engine(adapter, model="m", params={"headers": {"x-app": "yours", "x-run": "1"}})
        rxllm.generate(engine, "Hi", headers={"x-team": "red", "Authorization": "Basic abc"}).run()
        rxllm.generate(engine, "Hi").run()
    first, second = (
        [request.headers.get(name) for name in ("x-team", "x-app", "x-run")] for request in server.requests
    )
    assert (first, second) == (["red", "yours", "1"], ["blue", "yours", "1"])
    assert [request.headers["authorization"] for request in server.requests] == ["Basic abc", "Bearer key"]


def test_every_request_of_a_chat_has_them() -> None:
    @rxllm.tool
    def now() -> str:
        """Return the time."""
        return "noon"

    call = {"index": 0, "id": "c0", "function": {"name": "now", "arguments": "{}"}}
    asks = Reply(
        [b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode(), b"data: [DONE]\n\n"]
    )
    with Loopback([asks, HELLO]) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m", tools=[now])
        assert rxllm.chat(engine, "What time is it?", headers={"x-run": "1"}).run().output_text == "Hello"
    assert [request.headers["x-run"] for request in server.requests] == ["1", "1"]


def test_headers_do_not_go_to_another_engine() -> None:
    """They may hold what only this provider may know."""
    with Loopback(Reply.of_json({"error": "no"}, 500)) as first, Loopback(HELLO) as second:
        other = Engine(OpenAIChat(base_url=second.url), model="m")
        engine = Engine(OpenAIChat(base_url=first.url), model="m", retry=False, operators=(ops.fallback(other),))
        assert rxllm.generate(engine, "Hi", headers={"x-secret": TOKEN}).run().output_text == "Hello"
    assert first.requests[0].headers["x-secret"] == TOKEN
    assert "x-secret" not in second.requests[0].headers


@pytest.mark.parametrize("wrong", [{"x-run": 1, "x-team": "blue-team"}, ["blue-team"], "x-team: blue-team"])
def test_other_headers_are_refused_at_once_and_not_shown(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="headers must be a mapping whose names and values are strings") as caught:
        rxllm.generate(rxllm.Fake("Hello"), "Hi", headers=wrong)
    assert "blue" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"x-team": 1}, {1: "blue"}, ["blue-team"], "x-team: blue-team"])
def test_so_are_those_of_an_adapter(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="headers must be a mapping whose names and values are strings") as caught:
        OpenAIChat(headers=wrong)
    assert "blue" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "x team", "x-team\r\nx-run", "x-téam", "x:team", "Content-Length", "transfer-encoding"]
)
@pytest.mark.parametrize("transport", ["httpx", "aiohttp"])
def test_a_header_that_no_request_can_have_is_not_sent(name: str, transport: Any) -> None:
    rxllm.http.use_transport(transport)
    try:
        with Loopback(HELLO) as server:
            answer = rxllm.generate(Engine(OpenAIChat(base_url=server.url), model="m"), "Hi", headers={name: "7"})
            with pytest.raises(ValidationError) as caught:
                answer.run()
    finally:
        rxllm.http.use_transport(None)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_request", ("headers", name.lower()))
    assert server.requests == []


def test_the_value_of_a_header_is_not_shown() -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(Engine(OpenAIChat(api_key="key"), model="m"), "Hi", headers={"x-team": "blue\n"}).run()
    assert caught.value.errors[0][0] == ("headers", "x-team")
    engine = Engine(OpenAIChat(), params={"headers": {"x-team": "blue"}})
    assert "blue" not in f"{caught.value} {Call(headers={'x-team': 'blue'})} {engine}"

"""One line, or one variable, and every call goes over aiohttp."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import Engine, EngineError, OpenAIChat, ValidationError
from rxllm.adapters import connect
from rxllm.testing.loopback import Loopback, Reply, chat
from tests.runtime.support import finished, script

HELLO = Reply(chat("Hello"))


@pytest.fixture(autouse=True)
def _choose_anew() -> Iterator[None]:
    yield
    rxllm.http.use_transport(None)


def transport_of(adapter: Any) -> str:
    """The library that a call of `adapter` on a new loop goes over."""

    async def main() -> str:
        assert (await rxllm.generate(Engine(adapter, model="m"), "Hi")).output_text == "Hello"
        return type(adapter._clients.any()).__module__.partition(".")[0].replace("httpx_aiohttp", "aiohttp")

    return asyncio.run(main())


@pytest.mark.sockets
@pytest.mark.parametrize("name", ["httpx", "httpx2", "aiohttp"])
@pytest.mark.parametrize("choose", ["a line of code", "the environment"])
def test_every_named_model_is_called_over_it(name: Any, choose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if choose == "the environment":
        monkeypatch.setenv("RXLLM_TRANSPORT", name)
    else:
        monkeypatch.setenv("RXLLM_TRANSPORT", "nonsense")
        rxllm.http.use_transport(name)
    with Loopback(HELLO) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert transport_of(connect("openai")) == name


@pytest.mark.sockets
def test_httpx_is_the_default_though_aiohttp_is_installed() -> None:
    with Loopback(HELLO) as server:
        adapter = OpenAIChat(base_url=server.url)
        assert transport_of(adapter) == "httpx"
        rxllm.http.use_transport("aiohttp")
        assert transport_of(adapter) == "aiohttp"  # on a new loop
        rxllm.http.use_transport(None)
        assert transport_of(adapter) == "httpx"


@pytest.mark.sockets
def test_in_a_notebook_the_next_call_of_a_named_model_goes_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its calls share one loop."""

    def library() -> str:
        assert rxllm.generate("openai:gpt-5", "Hi").run().output_text == "Hello"
        return type(next(iter(connect("openai")._clients._by_loop.values())).first).__module__

    with Loopback(HELLO) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert library() == "httpx"
        rxllm.http.use_transport("aiohttp")
        assert library().startswith("httpx_aiohttp")


def test_a_client_of_ones_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a mock: a suite that has one does not reach the network."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"".join(chat("Hello")), headers={"content-type": "text/event-stream"})

    rxllm.http.use_transport("aiohttp")
    mock = OpenAIChat(client=lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)), api_key="key")
    assert rxllm.generate(Engine(mock, model="m"), "Hi").run().output_text == "Hello"


def test_a_name_that_is_none_is_answered_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="name must be 'httpx', 'httpx2' or 'aiohttp', not 'aiohtp'"):
        rxllm.http.use_transport("aiohtp")  # type: ignore[arg-type]
    monkeypatch.setenv("RXLLM_TRANSPORT", "requests")
    with pytest.raises(ValidationError, match="RXLLM_TRANSPORT must be 'httpx', 'httpx2' or 'aiohttp'"):
        rxllm.generate(Engine(OpenAIChat(base_url="http://127.0.0.1:1"), model="m"), "Hi").run()
    with pytest.raises(ValidationError, match="RXLLM_TRANSPORT"):
        rxllm.generate("groq:m", "Hi")


@pytest.mark.parametrize(("name", "package"), [("aiohttp", "httpx_aiohttp"), ("httpx2", "httpx2")])
def test_without_its_package_the_extra_is_named(name: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EngineError, match=rf"pip install 'rxllm\[{name}\]'") as caught:
        rxllm.http.use_transport(name)
    assert caught.value.reason == "missing_dependency"
    monkeypatch.setenv("RXLLM_TRANSPORT", name)
    with pytest.raises(EngineError, match=rf"pip install 'rxllm\[{name}\]'"):
        rxllm.generate(Engine(OpenAIChat(base_url="http://127.0.0.1:1"), model="m"), "Hi").run()


def test_aiohttp_refuses_a_socks_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would speak HTTP to it."""
    rxllm.http.use_transport("aiohttp")
    monkeypatch.setenv("ALL_PROXY", "socks5://me:password@127.0.0.1:1")
    with pytest.raises(EngineError, match=r"SOCKS proxy.*use the transport 'httpx'") as caught:
        rxllm.generate(Engine(OpenAIChat(base_url="http://model.invalid"), model="m"), "Hi").run()
    assert "password" not in str(caught.value)


@pytest.mark.judges
def test_a_program_needs_no_line_of_code() -> None:
    code = """
        import sys, rxllm
        from rxllm import Engine, OpenAIChat
        engine = Engine(OpenAIChat(base_url=sys.argv[1]), model="m")
        print(rxllm.generate(engine, "Hi").run().output_text, "aiohttp" in sys.modules, "httpcore" in sys.modules)
    """
    with Loopback(HELLO) as server:
        environment = {**os.environ, "RXLLM_TRANSPORT": "aiohttp"}
        out = finished(script(code, server.url, env=environment))
    assert out == (0, "Hello True False\n", "")

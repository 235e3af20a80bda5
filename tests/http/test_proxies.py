"""Proxies and certificates of the environment: which calls take a proxy, and what is said of one that is wrong."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import certifi
import httpx
import pytest

import rxllm
from rxllm import AdapterError, Engine, EngineError, LLMError, OpenAIChat, generate, mcp
from rxllm.adapters import aiohttp_client
from rxllm.http import clients
from rxllm.http.clients import httpx_client
from rxllm.http.proxies import proxy_for
from rxllm.testing.loopback import Loopback, Reply, chat
from tests.runtime.support import model

ANSWER = Reply(chat("Hello"))
CLIENTS: dict[str, Any] = {
    "httpx": httpx_client,
    "httpx2": lambda: httpx_client("httpx2"),
    "aiohttp": aiohttp_client,
}
VARIABLES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"]

each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def answer_of(url: str, client: Any) -> str:
    """An answer of the model at `url`, whose clients are closed at the end."""

    async def main() -> str:
        return (
            await generate(Engine(OpenAIChat(base_url=url, client=client), model="m", retry=False), "Hi")
        ).output_text

    return asyncio.run(main())


IPV6 = ["fd00::/8", "::1/128", "fe80::/10", "[::1]", "::1", "[::1]:8080", "[fd00::]/8", "fe80::1%eth0", "a b", "[", "*"]


@pytest.mark.sockets
@each_client
@pytest.mark.parametrize("no_proxy", [*IPV6, ",".join(IPV6[:4]), "127.0.0.0/8", "10.0.0.0/8,,localhost"])
def test_a_form_of_no_proxy_keeps_no_call(no_proxy: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with Loopback(ANSWER) as server:
        assert answer_of(server.url, client) == "Hello"


@pytest.mark.sockets
@each_client
@pytest.mark.parametrize("no_proxy", ["127.0.0.1", "127.0.0.0/8", "fd00::/8, 127.0.0.1/32", "*", "http://127.0.0.1"])
def test_an_exempt_host_is_called_without_the_proxy(
    no_proxy: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with Loopback(ANSWER) as server:
        assert answer_of(server.url, client) == "Hello"
        server.wait_until(lambda: server.open_count == 0)


@pytest.mark.sockets
@each_client
def test_all_other_hosts_are_called_through_the_proxy(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loopback(ANSWER) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "fd00::/8,[::1],127.0.0.1,example.com")
        assert answer_of("http://model.example", client) == "Hello"
        assert proxy.requests[0].path == "http://model.example/chat/completions"
        proxy.wait_until(lambda: proxy.open_count == 0)


@pytest.mark.parametrize(
    ("no_proxy", "direct", "proxied"),
    [
        ("fd00::/8", ["[fd12::1]", "[fdff::1]:8080"], ["[fe80::1]", "[::1]", "fd00", "10.0.0.1"]),
        ("::1/128", ["[::1]"], ["[::2]"]),
        ("fe80::/10", ["[fe80::1]", "[febf::1]"], ["[fec0::1]"]),
        ("[::1]", ["[::1]", "[0:0:0:0:0:0:0:1]:99"], ["[::2]", "1"]),
        ("::1", ["[::1]"], ["[::2]"]),
        ("[::1]:80", ["[::1]", "[::1]:80"], ["[::1]:81"]),
        ("[fd00::]/8", ["[fd12::1]"], ["[::1]"]),
        ("10.0.0.0/8", ["10.1.2.3"], ["11.0.0.1", "10.example"]),
        ("10.0.0.1", ["10.0.0.1", "10.0.0.1:8080"], ["10.0.0.11"]),
        ("example.com", ["example.com", "EXAMPLE.com:81", "a.example.com"], ["badexample.com", "example.com.evil"]),
        (".example.com", ["a.example.com"], ["example.com", "badexample.com"]),
        ("*.example.com", ["a.example.com", "b.a.example.com"], ["example.com"]),
        ("Example.COM:81", ["example.com:81"], ["example.com", "example.com:8181"]),
        ("http://example.com", ["example.com"], ["other.com"]),
        ("https://example.com", [], ["example.com"]),
        ("example.com , other.com,", ["example.com", "other.com"], ["third.com"]),
        ("example.com,*", ["example.com", "[::1]", "third.com"], []),
        (",:,[],://,/8,*x", [], ["example.com", "[::1]", "10.0.0.1"]),
        ("", [], ["example.com", "localhost"]),
    ],
)
def test_no_proxy_exempts_its_hosts_and_no_others(
    no_proxy: str, direct: list[str], proxied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert [proxy_for(f"http://{host}/v1") for host in direct] == [None] * len(direct)
    assert [proxy_for(f"http://{host}/v1") for host in proxied] == ["http://proxy.example:3128"] * len(proxied)


def test_the_proxy_of_the_scheme_goes_before_the_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://all.example")
    monkeypatch.setenv("https_proxy", "http://secure.example")
    monkeypatch.setenv("FTP_PROXY", "http://ftp.example")
    found = [proxy_for(f"{scheme}://model.example") for scheme in ("http", "https")]
    assert found == ["http://all.example", "http://secure.example"]


# Proxies that do not answer


def error_of(url: str, client: Any) -> LLMError:
    with pytest.raises(LLMError) as raised:
        answer_of(url, client)
    return raised.value


@pytest.mark.sockets
@each_client
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("url", ["http://model.example/v1", "https://model.example/v1", "http://127.0.0.1:2/v1"])
def test_a_dead_proxy_is_named(variable: str, url: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable.replace("HTTP_", "HTTPS_" if url.startswith("https") else "HTTP_"), "127.0.0.1:1")
    error = error_of(url, client)
    assert isinstance(error, AdapterError)
    assert error.reason == "network_error"
    assert url in error.message
    assert "the environment sets the proxy http://127.0.0.1:1:" in error.message
    assert "is the server running" not in error.message


@pytest.mark.sockets
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of aiohttp, for what httpx-aiohttp passes
@each_client
def test_the_password_of_a_dead_proxy_is_not_in_the_error(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://me:s3cret@127.0.0.1:1")
    error = error_of("http://model.example/v1", client)
    assert "http://127.0.0.1:1" in error.message
    assert "s3cret" not in f"{error!r} {error.__cause__!r} {error.__context__!r}"


@pytest.mark.sockets
@pytest.mark.parametrize("client", [httpx_client, aiohttp_client, httpx.AsyncClient])
def test_a_proxy_that_hangs_up_is_named(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def main() -> LLMError:
            async def hang_up(reader: Any, writer: Any) -> None:
                await reader.read(1)
                writer.close()

            async with await asyncio.start_server(hang_up, sock=listener):
                engine = Engine(OpenAIChat(base_url="http://model.example", client=client), model="m", retry=False)
                with pytest.raises(AdapterError) as raised:
                    await generate(engine, "Hi")
                return raised.value

        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("HTTP_PROXY", proxy)
        assert f"the environment sets the proxy {proxy}:" in asyncio.run(main()).message


@pytest.mark.sockets
@pytest.mark.parametrize(
    "client",
    [httpx_client, aiohttp_client, lambda: httpx.AsyncClient(trust_env=False)],
    ids=["httpx", "aiohttp", "own"],
)
def test_a_proxy_that_was_not_asked_is_not_named(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:3")
    monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
    error = error_of("http://127.0.0.1:1/v1", client)
    assert "proxy" not in error.message
    assert "is the server running?" in error.message


@pytest.mark.sockets
def test_images_and_mcp_name_a_dead_proxy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    painter = rxllm.images.OpenAIImages(base_url="http://model.example", api_key="k")
    image = rxllm.generate_image(painter, "A dot.", model="m", retry=False)
    for call in (image, mcp.tools("http://server.example/mcp")):
        with pytest.raises(LLMError, match=r"the environment sets the proxy http://127\.0\.0\.1:1:"):
            call.run()


# Certificates


@pytest.fixture
def forgotten() -> Any:
    """The certificates are loaded again, before and after."""
    clients._certificates.cache_clear()
    yield
    clients._certificates.cache_clear()


@pytest.mark.sockets
@pytest.mark.usefixtures("forgotten")
@each_client
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("", "has no certificates"),
        ("no certificates at all", "has no certificates"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "has no certificates"),
    ],
    ids=["missing", "empty", "text", "broken"],
)
def test_a_bad_certificate_file_is_named(
    content: str | None, fault: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with Loopback(ANSWER) as server:
        error = error_of(server.url, client)
        assert isinstance(error, EngineError)
        assert error.reason == "invalid_engine"
        assert f"SSL_CERT_FILE {fault}: got " in error.message
        assert str(path)[:70] in error.message
        monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
        assert answer_of(server.url, client) == "Hello"


@pytest.mark.sockets
@pytest.mark.usefixtures("forgotten")
def test_a_folder_in_place_of_a_certificate_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path))
    with Loopback(ANSWER) as server, pytest.raises(EngineError, match="SSL_CERT_FILE"):
        generate(model(server), "Hi").run()


@pytest.mark.sockets
@pytest.mark.usefixtures("forgotten")
def test_a_certificate_folder_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    with Loopback(ANSWER) as server:
        with pytest.raises(EngineError, match=r"SSL_CERT_DIR cannot be read .*set it to a folder"):
            generate(model(server), "Hi").run()
        monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}:{tmp_path}")
        assert generate(model(server), "Hi").run().output_text == "Hello"

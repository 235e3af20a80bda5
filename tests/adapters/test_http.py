"""The base of the adapters that speak HTTP: what is asked, with which key, and what an author must write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import httpx2
import pytest

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    EngineError,
    Event,
    LLMError,
    Message,
    MessageCompleted,
    MessageStarted,
    OpenAIChat,
    Request,
    TextCompleted,
    TextDelta,
    ValidationError,
    generate,
    keys,
    stream_generate,
    user,
)
from rxllm.adapters import HTTPAdapter
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.values import Call

KEY = "sk-sentinel-0123456789"
ASKED = Request((user("Hi"),), model="m")


@pytest.fixture(autouse=True)
def _no_key_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


class Words(HTTPAdapter):
    """A third party's: one word a line, in plain text."""

    provider = "words"
    default_base_url = "https://words.invalid"

    def build(self, request: Request, call: Call) -> httpx.Request:
        return self.post("say", {"text": request.messages[-1].text}, call, headers={"x-key": self.key(call) or ""})

    def decoder(self, request: Request, *, raw: bool = False) -> Lines:
        return Lines()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError:
        return AdapterError("unknown", body.decode(), provider=self.provider, status=status)


class Lines:
    def __init__(self) -> None:
        self.text = ""

    def feed(self, data: bytes) -> list[Event]:
        begun: list[Event] = [] if self.text else [MessageStarted(Message("assistant"))]
        self.text += data.decode()
        return [*begun, TextDelta(data.decode())]

    def close(self) -> list[Event]:
        return [TextCompleted(self.text), MessageCompleted(Message("assistant", self.text), "stop")]


def authorization(adapter: OpenAIChat, call: Call | None = None) -> str | None:
    return adapter.build(ASKED, call or Call()).headers.get("authorization")


@pytest.mark.sockets
def test_an_adapter_is_build_decoder_and_error() -> None:
    with Loopback([Reply([b"one ", b"two"]), Reply(b"no", status=418)]) as server:
        engine = Engine(Words(base_url=server.url), retry=False)
        assert generate(engine, "Count!").run().output_text == "one two"
        assert (server.requests[0].path, server.requests[0].json) == ("/say", {"text": "Count!"})
        with pytest.raises(AdapterError, match="no") as caught:
            generate(engine, "Count!").run()
        assert caught.value.status == 418


@pytest.mark.sockets
def test_a_server_of_ones_own_may_need_no_key() -> None:
    """Nor does its refusal: what it says is what is raised."""

    class Keyless(Words):
        def build(self, request: Request, call: Call) -> httpx.Request:
            return self.post("say", {}, call, headers={})

    with Loopback(Reply(b"no", status=418)) as server:
        adapter = Keyless(base_url=server.url)
        adapter.default_base_url = adapter.base_url  # type: ignore[misc]
        with pytest.raises(AdapterError, match="no"):
            generate(Engine(adapter, retry=False), "Count!").run()


@pytest.mark.parametrize(
    "url", ["http://host:99999", "http://host:abc", "http://host:-1", "http://127.0.0.1:70000/v1", "http://[::1"]
)
def test_an_address_that_cannot_be_is_a_typed_error(url: str) -> None:
    with pytest.raises(AdapterError, match="port") as caught:
        generate(Engine(OpenAIChat(base_url=url), model="m"), "Hi").run()
    assert caught.value.reason == "invalid_request"


@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ("nonsense://me:password@x", "invalid_engine"),
        ("http://me:password@host:abc", "invalid_engine"),
        ("http://me:password@127.0.0.1:99999", "invalid_request"),
    ],
)
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_that_cannot_be_is_a_typed_error(
    proxy: str, reason: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, proxy)
    with pytest.raises(LLMError) as caught:
        generate(Engine(OpenAIChat(base_url="http://model.invalid"), model="m"), "Hi").run()
    assert caught.value.reason == reason
    assert "password" not in f"{caught.value} {caught.value.__cause__!r}"


@pytest.mark.sockets
def test_build_gives_the_request_and_sends_nothing() -> None:
    with Loopback() as server:
        adapter = OpenAIChat(base_url=server.url + "/v1/", api_key=KEY, headers={"x-mine": "yes"})
        built = adapter.build(ASKED, Call())
        assert (built.method, str(built.url)) == ("POST", server.url + "/v1/chat/completions")
        assert (built.headers["authorization"], built.headers["x-mine"]) == (f"Bearer {KEY}", "yes")
        assert json.loads(built.read())["model"] == "m"
        assert server.connections == []


@pytest.mark.sockets
def test_what_is_built_is_what_is_sent() -> None:
    with Loopback(Reply(chat("Hello"))) as server:
        adapter = OpenAIChat(base_url=server.url, api_key=KEY)
        generate(Engine(adapter, model="m"), "Hi").run()
        built = adapter.build(ASKED, Call())
    (sent,) = server.requests
    assert (sent.method, sent.path, sent.body) == (built.method, built.url.path, built.read())
    assert {name: sent.headers[name] for name in ("authorization", "content-type", "host")} == {
        name: built.headers[name] for name in ("authorization", "content-type", "host")
    }


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_given_client_builds_the_request(library: Any) -> None:
    async def main() -> Any:
        async with library.AsyncClient(headers={"x-mine": "yes"}) as client:
            return OpenAIChat(client=client, api_key=KEY).build(ASKED, Call())

    built = asyncio.run(main())
    assert isinstance(built, library.Request)
    assert built.headers["x-mine"] == "yes"


def test_the_key_is_looked_for_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, bare = OpenAIChat(api_key="adapter"), OpenAIChat()
    monkeypatch.setenv("OPENAI_API_KEY", "environment")
    assert authorization(bare) == "Bearer environment"
    keys.put("openai", "store")
    try:
        assert authorization(bare) == "Bearer store"
        assert authorization(adapter) == "Bearer adapter"
        assert authorization(adapter, Call(api_key="call")) == "Bearer call"
        assert authorization(adapter, Call(api_key="")) == "Bearer adapter"
        assert authorization(adapter, Call(api_key=" \n")) == "Bearer adapter"
        assert keys.get("openai") == "store"
    finally:
        keys.delete("openai")
    assert keys.get("openai") == "environment"


def test_a_missing_key_names_every_place() -> None:
    errors: list[Exception] = []
    stream_generate(Engine(OpenAIChat(), model="m"), "Hi").subscribe(on_error=errors.append)
    with pytest.raises(EngineError) as caught:
        generate(Engine(OpenAIChat(), model="m"), "Hi").run()
    assert (caught.value.reason, caught.value.provider) == ("missing_key", "openai")
    for place in ("api_key=", "rxllm.keys.put('openai'", "OPENAI_API_KEY"):
        assert place in caught.value.message
    assert len(caught.value.metadata["checked_sources"]) == 5
    asyncio.run(asyncio.sleep(0))


def test_other_servers_may_need_no_key() -> None:
    assert authorization(OpenAIChat(base_url="http://127.0.0.1:1")) is None


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "\x00", "é", " a"])
def test_a_header_that_cannot_be_sent_is_named_and_not_shown(bad: str) -> None:
    with pytest.raises(ValidationError) as caught:
        OpenAIChat(api_key=KEY, headers={"x-mine": KEY + bad if bad != " a" else bad}).build(ASKED, Call())
    assert caught.value.errors[0][0] == ("headers", "x-mine")
    assert KEY not in f"{caught.value} {caught.value!r} {vars(caught.value)}"


def test_what_json_cannot_say_is_an_invalid_request() -> None:
    with pytest.raises(ValidationError) as caught:
        generate(Engine(OpenAIChat(api_key=KEY), model="m"), "Hi", options={"x": object()}).run()
    assert caught.value.reason == "invalid_request"


def test_no_key_in_any_repr() -> None:
    adapter = OpenAIChat(api_key=KEY, headers={"x-key": KEY})
    shown = repr(adapter) + repr(Engine(adapter)) + repr(Call(api_key=KEY))
    assert KEY not in shown
    assert repr(adapter) == "OpenAIChat('https://api.openai.com/v1')"


@pytest.mark.parametrize(("adapter", "call", "read"), [(None, None, 600.0), (7.0, None, 7.0), (7.0, 3.0, 3.0)])
def test_the_timeout_is_the_longest_silence(adapter: float | None, call: float | None, read: float) -> None:
    built = OpenAIChat(api_key=KEY, timeout=adapter).build(ASKED, Call(timeout=call))
    assert built.extensions["timeout"]["read"] == read
    assert built.extensions["timeout"]["connect"] == 10.0
    assert built.extensions["timeout"]["pool"] is None


def test_a_recorded_stream_is_replayed_by_feeding_its_decoder() -> None:
    decoder = OpenAIChat().decoder(ASKED)
    events = [event for chunk in chat("Hel", "lo") for event in decoder.feed(chunk)] + decoder.close()
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["Hel", "lo"]


@pytest.mark.parametrize("url", ["nonsense", "ftp://example.invalid", "http://"])
def test_a_base_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(rxllm.ValidationError, match="must begin with http"):
        rxllm.OpenAIChat(base_url=url)


def test_an_adapter_that_lacks_a_method_cannot_be_made() -> None:
    class Half(rxllm.adapters.HTTPAdapter):
        provider = "half"
        default_base_url = "http://127.0.0.1:1"

    with pytest.raises(TypeError, match="build"):
        Half()  # type: ignore[abstract]


def test_a_call_without_a_model_says_how_to_name_one() -> None:
    with pytest.raises(rxllm.EngineError, match="write model=") as caught:
        rxllm.generate("openai", "Hi", api_key="key").run()
    assert caught.value.reason == "missing_model"


# A wrong address


PAGE = b"\n<!DOCTYPE html><html><body>Please log in</body></html>"


def refusal(reply: Reply, query: str = "") -> AdapterError:
    with Loopback(reply) as server, pytest.raises(AdapterError) as caught:
        generate(Engine(OpenAIChat(base_url=f"{server.url}{query}", api_key=KEY), model="m"), "Hi").run()
    return caught.value


@pytest.mark.sockets
@pytest.mark.parametrize("status", [302, 404, 405])
def test_where_nothing_is_the_address_is_told_without_its_query(status: int) -> None:
    error = refusal(Reply.of_json({"error": {"message": "not here"}}, status), f"?key={KEY}&api-version=1")
    assert (error.reason, error.status) == ("invalid_request", status)
    assert error.message.startswith("not here (http://127.0.0.1:")
    assert error.message.endswith("/chat/completions)")
    assert KEY not in f"{error!r} {vars(error)}"


@pytest.mark.sockets
def test_other_refusals_say_what_the_provider_says() -> None:
    assert refusal(Reply.of_json({"error": {"message": "no"}}, 400)).message == "no"


@pytest.mark.sockets
@pytest.mark.parametrize("body", [PAGE, [b"\n", PAGE[1:]], [PAGE[:2], PAGE[2:]]], ids=["whole", "blank first", "cut"])
@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=utf-8"])
def test_a_page_is_no_stream(body: Any, kind: str) -> None:
    error = refusal(Reply(body, headers={"Content-Type": kind}), f"?key={KEY}")
    assert (error.reason, error.status, error.provider) == ("malformed_response", 200, "openai")
    assert f"/chat/completions returned a web page ({kind})" in error.message
    assert "base_url" in error.message
    assert KEY not in f"{error!r} {vars(error)}"


@pytest.mark.sockets
def test_a_stream_that_calls_itself_a_page_is_read() -> None:
    with Loopback(Reply([b"\n", *chat("Hel", "lo")], headers={"Content-Type": "text/html"})) as server:
        engine = Engine(OpenAIChat(base_url=server.url, api_key=KEY), model="m")
        assert generate(engine, "Hi").run().output_text == "Hello"

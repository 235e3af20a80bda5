"""A key, wherever it is passed, is not in anything that rxllm shows."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import string
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import Anthropic, Engine, EngineError, ErrorEvent, Gemini, LLMError, OpenAIChat, keys, serializer
from rxllm import operators as ops
from rxllm.testing.loopback import Loopback, Reply, chat_chunk
from rxllm.wire.lenient import Odd

SECRETS = st.text(string.ascii_letters + string.digits + "-_.+/=:~'\\&?#", min_size=12, max_size=40).map("sk-".__add__)
BASE = "https://model.example/v1"
ADAPTERS = [OpenAIChat, Anthropic, Gemini]


@pytest.fixture(autouse=True)
def _no_keys() -> Iterator[None]:
    keys.clear()
    yield
    keys.clear()


PLACES = {
    "call": lambda key: ({}, {"api_key": key}),
    "adapter": lambda key: ({"api_key": key}, {}),
    "store": lambda key: (keys.put("openai", key) or keys.put("anthropic", key) or keys.put("google", key) or {}, {}),
    "header": lambda key: ({"headers": {"api-key": key}}, {}),
    "bearer": lambda key: ({"headers": {"Authorization": f"Bearer {key}"}}, {}),
    "query": lambda key: ({"base_url": f"{BASE}?api-version=1&key={quote(key, safe='')}"}, {}),
    "user": lambda key: ({"base_url": f"https://me:{quote(key, safe='')}@model.example/v1"}, {}),
    "client": lambda key: ({"client_headers": {"x-api-key": key}}, {}),
    "options": lambda key: ({}, {"options": {"extra_headers": {"x-api-key": key}}}),
}
"""How a key is given: what the adapter is made with, and what the call."""


def echoes(key: str) -> list[Any]:
    """Answers of servers that say which key they were given, and what a transport may raise."""
    error = {"error": {"message": f"the key {key} is refused", "type": key, "code": key, "param": [key]}}
    sse = {"content-type": "text/event-stream"}
    return [
        httpx.Response(401, json=error),
        httpx.Response(404, text=f"nothing at ?key={quote(key, safe='')}"),
        httpx.Response(503, text="x" * 480 + key),
        httpx.Response(200, text=f"<html>{key}", headers={"content-type": "text/html"}),
        httpx.Response(200, content=chat_chunk("Hi") + f"data: {json.dumps(error)}\n\n".encode(), headers=sse),
        httpx.Response(200, content=f"data: {{{key}\n\n".encode(), headers=sse),
        httpx.ConnectError(f"no way to {key}"),
        httpx.InvalidURL(f"invalid: {key}"),
    ]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=SECRETS, place=st.sampled_from(sorted(PLACES)), adapter_class=st.sampled_from(ADAPTERS))
def test_no_key_is_shown_wherever_it_is_given(
    key: str, place: str, adapter_class: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    keys.clear()
    made, options = PLACES[place](key)
    for answer in echoes(key):
        for text in shown(adapter_class, answer, dict(made), options):
            assert key not in text
            assert quote(key, safe="") not in text
    logged = [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert logged
    assert not [text for text in logged if key in text or quote(key, safe="") in text]


def shown(adapter_class: Any, answer: Any, made: dict[str, Any], options: dict[str, Any]) -> list[str]:
    """All that a call shows of itself and of its failure."""
    told: list[Any] = []
    events: list[Any] = []
    failures: list[Exception] = []
    headers = made.pop("client_headers", None)

    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(handle), headers=headers)

    adapter = adapter_class(**{"base_url": BASE, "client": client, **made})
    policy = {"max_attempts": 2, "base_delay": 0.0, "jitter": 0.0}
    params = {"options": options["options"]} if "options" in options else {}
    engine = Engine(adapter, model="m", observers=(told.append,), retry=policy, params=params)
    try:
        events += rxllm.stream_generate(engine, "Hi", **options)
    except Exception as error:
        failures.append(error)
    errors = [*failures, *(event.error for event in events if isinstance(event, ErrorEvent))]
    assert errors
    texts = [repr(value) for value in (adapter, engine, told, events, errors)]
    texts += [f"{error} {vars(error)} {''.join(traceback.format_exception(error))}" for error in errors]
    texts += [serializer.to_json(value) for value in (*events, *errors)]
    return texts + [pickle.dumps(error).decode("latin-1") for error in errors]


KEY = "sk-sentinel-0123456789"


def test_an_engine_takes_no_key_and_shows_none() -> None:
    for make in (lambda: Engine(params={"api_key": KEY}), lambda: Engine().with_params(api_key=KEY)):
        with pytest.raises(EngineError, match=r"keys\.put") as caught:
            make()
        assert caught.value.reason == "invalid_engine"
        assert KEY not in repr(caught.value)
    hidden = {"headers": {"x-api-key": KEY, "x-title": "Mine"}, "tokens": [{"access_token": KEY}]}
    engine = Engine(params={"options": hidden}, metadata=hidden, context=hidden)
    assert KEY not in repr(engine)
    assert repr(engine).count("'x-title': 'Mine'") == 3


@pytest.mark.parametrize(
    "options",
    [
        {"apikey": KEY},
        {"extra_headers": {"Authorization": KEY}},
        {"headers": [("x-team", KEY)]},
        {"api_key": KEY.encode()},
        {"options": [("api_key", KEY)]},
        {"metadata": [("token", KEY)]},
        {"tool_choice": [{"token": KEY}]},
        {"x" * 100: {"key": KEY}},
    ],
)
def test_no_error_about_options_shows_a_key(options: Any) -> None:
    with pytest.raises(LLMError) as caught:
        rxllm.generate(OpenAIChat(), "Hi", **options)
    assert KEY not in f"{caught.value!r} {caught.value} {vars(caught.value)}"


@pytest.mark.parametrize("bad", [KEY + "\ud800", KEY + "\x00", KEY.encode(), [KEY]], ids=ascii)
@pytest.mark.parametrize("place", ["adapter", "call"])
def test_a_key_that_cannot_be_sent_is_a_typed_error_that_does_not_show_it(place: str, bad: Any) -> None:
    given = [{"api_key": bad}, {}]
    own, options = given if place == "adapter" else reversed(given)
    with pytest.raises(LLMError) as caught:
        rxllm.generate(OpenAIChat(base_url=BASE, **own), "Hi", model="m", retry=False, **options).run()
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert KEY not in f"{caught.value!r} {vars(caught.value)}"


def test_a_pickled_address_has_no_key() -> None:
    engine = Engine(OpenAIChat(base_url=f"https://me:{KEY}@example.com/v1?api-version=2&api_key={KEY}"))
    data = pickle.dumps(engine)
    assert KEY.encode() not in data
    assert pickle.loads(data).adapter.base_url == "https://example.com/v1?api-version=2"


@pytest.mark.parametrize("url", [f"example.com?key={KEY}", f"ftp://me:{KEY}@example.com", f"me:{KEY}@example.com"])
def test_no_error_about_a_base_url_shows_a_key(url: str) -> None:
    with pytest.raises(LLMError) as caught:
        OpenAIChat(base_url=url)
    assert KEY not in repr(caught.value)


def test_an_error_of_a_url_that_is_none_shows_no_key() -> None:
    adapter = OpenAIChat(base_url=f"http://host:abc/v1?key={KEY}")
    with pytest.raises(LLMError) as caught:
        rxllm.generate(adapter, "Hi", model="m", retry=False).run()
    assert KEY not in f"{''.join(traceback.format_exception(caught.value))} {vars(caught.value)}"


def test_a_redacted_error_has_no_cause_that_shows_the_key() -> None:
    error = rxllm.AdapterError("network_error", "no way")
    error.__cause__ = OSError(f"no way to {KEY}")
    assert keys.redacted(error, KEY).__cause__ is None
    assert keys.redacted(error, "sk-another-key").__cause__ is error.__cause__


FORGED = "down\r\n2026-01-01 ERROR root: stolen \x1b[31m\u202e\x9b\u2028end"


@pytest.mark.sockets
@pytest.mark.parametrize("client", [httpx, httpx2], ids=lambda library: library.__name__)
def test_a_key_in_a_reason_phrase_does_not_reach_the_clients_log(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    head = b"HTTP/1.1 401 bad key Bearer sk-0123456789abcdef\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server, client.AsyncClient() as own:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            adapter = OpenAIChat(base_url=url, api_key="sk-0123456789abcdef", client=own)
            with pytest.raises(LLMError):
                await rxllm.generate(Engine(adapter, model="m", retry=False), "Hi")

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert '"HTTP/1.1 401 Unauthorized"' in caplog.text
    assert "sk-" not in caplog.text


@pytest.mark.sockets
def test_the_providers_words_in_a_log_line_are_one_printable_line(caplog: pytest.LogCaptureFixture) -> None:
    refused = Reply.of_json({"error": {"message": f"{FORGED} sk-0123456789abcdef", "type": "server_error"}}, 503)
    retry = {"max_attempts": 2, "base_delay": 0.0, "jitter": 0.0}
    with Loopback(refused) as server:
        adapter = OpenAIChat(base_url=server.url, api_key="sk-0123456789abcdef")
        response = rxllm.generate(Engine(adapter, model="m", retry=retry), "Hi").pipe(ops.errors_as_events())
        response.to_list().run()
    (line,) = [record.getMessage() for record in caplog.records if "attempt 1" in record.getMessage()]
    assert "stolen" in line
    assert line.isprintable()
    assert "sk-" not in line


def test_the_names_of_a_providers_fields_are_printable_in_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("rxllm")
    log.warning("%s: %s; %r", "openai", Odd(("a\nb\x1b",), "c\u202e", "a text"), ValueError("\x1b"))
    log.warning("%s", "two lines\nof rxllm's own, \x1b[2J")
    log.warning("%d of %.1f: %.3s", 3, 2.5, "abcdef")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].isprintable()
    assert lines[1:] == ["two lines\nof rxllm's own, \\x1b[2J", "3 of 2.5: abc"]

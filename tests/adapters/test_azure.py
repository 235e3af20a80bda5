"""OpenAI's models on Azure: by name, at the resource's address, with a key or a token of Entra ID."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from rxllm import Engine, LLMError, generate, keys
from rxllm.adapters import AzureChat, AzureResponses, azure
from rxllm.adapters._connect import _shared, connect
from rxllm.models import priced
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import Call, EngineError, Request, Tool, Usage, ValidationError, system, user
from tests.adapters.clouds import ask, parts
from tests.judges import absent
from tests.programs import python_without

pytestmark = pytest.mark.judges

KEY = "0123456789abcdef0123456789abcdef"
TOKEN = "eyJ0eXAiOiJKV1QifQ.eyJhdWQiOiJhaSJ9.c2lnbmF0dXJl"
VERSION = "2024-10-21"
DATED = f"/openai/deployments/mine?api-version={VERSION}"
WHOLE = Request(
    (system("Be brief."), user("Hi")),
    "mine",
    (Tool("look", "Look.", {"type": "object", "properties": {"place": {"type": "string"}}}),),
    "auto",
    max_tokens=9,
    reasoning_effort="low",
)
ANSWER = Reply([b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n', b"data: [DONE]\n\n"])


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN", "OPENAI_API_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    keys.clear()
    _shared.cache_clear()
    azure._token_provider.cache_clear()
    yield
    _shared.cache_clear()
    azure._token_provider.cache_clear()


# The SDK judges the requests


CREDENTIALS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a key": (KEY, {"api_key": KEY}),
    "a token": (TOKEN, {"azure_ad_token": TOKEN}),
    "a token provider": (lambda: TOKEN, {"azure_ad_token_provider": lambda: TOKEN}),
}


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_a_dated_version_is_asked_as_azures_client_asks_it(credential: str) -> None:
    ours, theirs = CREDENTIALS[credential]
    with Loopback() as server:
        body = ask(server, AzureChat(base_url=f"{server.url}{DATED}", api_key=ours), WHOLE).json
        sdk = openai.AzureOpenAI(azure_endpoint=server.url, api_version=VERSION, max_retries=0, **theirs)
        list(sdk.chat.completions.create(**body))
    mine, its = map(parts, server.requests)
    assert mine == its
    assert mine["path"] == "/openai/deployments/mine/chat/completions"


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_a_dated_version_of_the_responses_api(credential: str) -> None:
    ours, theirs = CREDENTIALS[credential]
    with Loopback() as server:
        url = f"{server.url}/openai?api-version=2025-04-01-preview"
        body = ask(server, AzureResponses(base_url=url, api_key=ours), WHOLE).json
        sdk = openai.AzureOpenAI(azure_endpoint=server.url, api_version="2025-04-01-preview", max_retries=0, **theirs)
        list(sdk.responses.create(**body))
    mine, its = map(parts, server.requests)
    assert mine == its


def test_v1_is_asked_as_openais_client_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint of the variable needs no path, and a token is a bearer token in both."""
    with Loopback() as server:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"{server.url}/")
        monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", TOKEN)
        sdk = openai.OpenAI(base_url=f"{server.url}/openai/v1/", api_key=lambda: TOKEN, max_retries=0)
        list(sdk.chat.completions.create(**ask(server, connect("azure"), WHOLE).json))
        list(sdk.responses.create(**ask(server, connect("azure-responses"), WHOLE).json))
    chat, its_chat, responses, its_responses = map(parts, server.requests)
    assert chat == its_chat
    assert responses == its_responses
    assert (chat["path"], responses["path"]) == ("/openai/v1/chat/completions", "/openai/v1/responses")
    assert chat["body"]["max_completion_tokens"] == 9


# Names, addresses and keys


def test_a_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with Loopback(ANSWER) as server:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url)
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
        assert generate("azure:mine", "Hi", retry=False).run().output_text == "Hi"
    (asked,) = server.requests
    assert (asked.headers["api-key"], asked.json["model"]) == (KEY, "mine")
    assert "authorization" not in asked.headers


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("https://r.openai.azure.com", "https://r.openai.azure.com/openai/v1"),
        ("https://r.openai.azure.com/openai/v1/", "https://r.openai.azure.com/openai/v1"),
        ("https://r.services.ai.azure.com/api/projects/p", "https://r.services.ai.azure.com/api/projects/p/openai/v1"),
        (
            "https://r.openai.azure.com/openai?api-version=preview",
            "https://r.openai.azure.com/openai?api-version=preview",
        ),
    ],
)
def test_the_endpoints_that_azure_shows(endpoint: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", endpoint)
    assert AzureChat().base_url == AzureResponses().base_url == url


def test_a_missing_address_names_the_variable() -> None:
    with pytest.raises(ValidationError, match="AZURE_OPENAI_ENDPOINT") as caught:
        generate("azure:mine", "Hi", api_key=KEY, retry=False).run()
    assert caught.value.reason == "invalid_option"


def test_openais_settings_do_not_reach_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "OpenAI's")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example")
    with Loopback() as server:
        asked = ask(server, AzureChat(base_url=f"{server.url}/openai/v1"), WHOLE)
    assert not asked.headers.keys() & {"authorization", "api-key"}


def test_a_header_of_ones_own_replaces_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    for headers in ({"Authorization": "Bearer mine"}, {"Api-Key": "mine"}):
        with Loopback() as server:
            asked = ask(server, AzureChat(base_url=f"{server.url}/openai/v1", headers=headers), WHOLE)
        sent = {name: text for name, text in asked.headers.items() if name in ("authorization", "api-key")}
        assert sent == {name.lower(): text for name, text in headers.items()}


def test_prices_are_those_of_the_model_that_answered() -> None:
    usage = Usage(1_000_000, 1000)
    cost = priced("azure:mine", usage, response_model="gpt-4.1-2025-04-14").total_cost
    assert cost == priced("openai:gpt-4.1", usage).total_cost
    assert cost is not None


# Tokens


def test_a_token_provider_is_asked_for_each_attempt() -> None:
    tokens = iter([f"{TOKEN}1", f"{TOKEN}2"])
    busy = Reply.of_json({"error": {"code": "429", "message": "Slow down"}}, 429, **{"retry-after-ms": "1"})
    with Loopback(lambda asked: busy if len(server.requests) == 1 else ANSWER) as server:
        adapter = AzureChat(base_url=f"{server.url}/openai/v1", api_key=lambda: next(tokens))
        assert generate(Engine(adapter, model="mine"), "Hi").run().output_text == "Hi"
    assert [asked.headers["authorization"] for asked in server.requests] == [f"Bearer {TOKEN}1", f"Bearer {TOKEN}2"]


class Login:
    """A credential of azure-identity, whose tokens live for `seconds`."""

    def __init__(self, seconds: float = 3600) -> None:
        self.seconds, self.scopes = seconds, list[str]()

    def get_token(self, *scopes: str, **_: Any) -> Any:
        self.scopes += scopes
        return SimpleNamespace(token=f"{TOKEN}{len(self.scopes)}", expires_on=int(time.time() + self.seconds))


@pytest.mark.parametrize(("seconds", "tokens"), [(3600, 1), (120, 3)])
def test_azure_identitys_provider_renews_a_token_before_it_ends(seconds: float, tokens: int) -> None:
    try:
        from azure.identity import get_bearer_token_provider
    except ImportError:
        absent("azure-identity", "pip install 'rxllm[azure]'")
    login = Login(seconds)
    with Loopback(ANSWER) as server:
        provider: Any = get_bearer_token_provider(login, azure.SCOPE)  # pyright: ignore
        adapter = AzureChat(base_url=f"{server.url}/openai/v1", api_key=provider)
        for _ in range(3):
            generate(Engine(adapter, model="mine", retry=False), "Hi").run()
    sent = [asked.headers["authorization"] for asked in server.requests]
    assert len(login.scopes) == len({*sent}) == tokens


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for azure-identity, whose default login gives `token` or raises it."""
    stand_in = SimpleNamespace(token=TOKEN, asked=[])

    def provide() -> str:
        if isinstance(stand_in.token, Exception):
            raise stand_in.token
        return stand_in.token

    def get_bearer_token_provider(credential: Any, *scopes: str) -> Any:
        stand_in.asked.append((credential, scopes))
        return provide

    stand_in.DefaultAzureCredential = lambda: "the default login"
    stand_in.get_bearer_token_provider = get_bearer_token_provider
    monkeypatch.setitem(sys.modules, "azure", SimpleNamespace(identity=stand_in))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "azure.identity", stand_in)  # type: ignore[arg-type]
    return stand_in


def token_at(url: str) -> Any:
    return asyncio.run(AzureChat(base_url=url).with_key(Call())).api_key


@pytest.mark.parametrize(
    "host", ["r.openai.azure.com", "r.services.ai.azure.com", "r.openai.azure.us", "r.cognitiveservices.azure.com"]
)
def test_without_a_key_the_default_login_is_used_at_azures_addresses(host: str, identity: SimpleNamespace) -> None:
    assert token_at(f"https://{host}/openai/v1") == TOKEN
    assert token_at(f"https://{host}/openai/v1") == TOKEN
    assert identity.asked == [("the default login", (azure.SCOPE,))]  # one login for all calls


def test_the_login_goes_to_azure_alone(identity: SimpleNamespace) -> None:
    for url in (
        "https://example.org/openai/v1",
        "https://azure.com.example.org",
        "https://example.org/?x=r.azure.com/",
    ):
        assert token_at(url) is None
    assert not identity.asked


def test_a_failed_login_says_where_it_looked(identity: SimpleNamespace) -> None:
    identity.token = ValueError("no login")
    with pytest.raises(EngineError, match=r"AZURE_OPENAI_API_KEY.*az login") as caught:
        token_at("https://r.openai.azure.com/openai/v1")
    assert (caught.value.reason, caught.value.__cause__) == ("missing_key", identity.token)


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = """
import os, rxllm
os.environ["AZURE_OPENAI_ENDPOINT"] = "https://r.openai.azure.com"
os.environ.pop("AZURE_OPENAI_API_KEY", None), os.environ.pop("AZURE_OPENAI_AD_TOKEN", None)
try:
    rxllm.generate("azure:mine", "Hi", retry=False).run()
except rxllm.EngineError as error:
    print(error.reason, error.message, sep=": ")
"""
    ran = python_without(["azure.identity"], code)
    assert ran.stdout.startswith("missing_key: no API key for azure"), ran.stderr
    assert "pip install 'rxllm[azure]'" in ran.stdout


# Secrets and errors


@pytest.mark.parametrize("secret", [KEY, TOKEN])
def test_a_key_appears_nowhere(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = Reply.of_json({"error": {"code": "401", "message": f"Access denied: {secret}"}}, 401)
    with Loopback(refusal) as server:
        adapter = AzureChat(base_url=f"{server.url}/openai/v1", api_key=secret)
        with pytest.raises(LLMError) as caught:
            generate(Engine(adapter, model="mine", retry=False), "Hi").run()
    error = caught.value
    assert error.reason == "authentication_failed"
    for text in (repr(error), str(error), json.dumps(error.fields(), default=str), repr(adapter), caplog.text):
        assert secret not in text
    assert secret.encode() not in pickle.dumps(adapter)


FILTERED = {"hate": {"filtered": True, "severity": "high"}, "jailbreak": {"filtered": False, "detected": False}}
INNER = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": FILTERED}
NO_DEPLOYMENT = {
    "error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}
}


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, {"error": {"code": "content_filter", "message": "Filtered", "innererror": INNER}}, "content_filter"),
        (
            401,
            {"statusCode": 401, "message": "Access denied due to invalid subscription key."},
            "authentication_failed",
        ),
        (404, NO_DEPLOYMENT, "invalid_request"),
        (429, {"error": {"code": "429", "message": "Rate limit is exceeded."}}, "rate_limited"),
        (503, {"error": {"code": "InternalServerError", "message": "Busy"}}, "provider_unavailable"),
    ],
)
@pytest.mark.parametrize("kind", [AzureChat, AzureResponses])
def test_errors_keep_their_reasons(kind: Any, status: int, body: Any, reason: str) -> None:
    with Loopback(Reply.of_json(body, status, **{"retry-after-ms": "1500"})) as server:
        adapter = kind(base_url=f"{server.url}/openai/v1", api_key=KEY)
        with pytest.raises(LLMError) as caught:
            generate(Engine(adapter, model="mine", retry=False), "Hi").run()
    error: Any = caught.value
    assert (error.reason, error.provider, error.status, error.retry_after) == (reason, "azure", status, 1.5)


def test_a_filtered_answer_says_so() -> None:
    frames = [
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]},
        {"choices": [{"index": 0, "delta": {"content": "Well"}}]},
        {"choices": [{"index": 0, "finish_reason": "content_filter", "content_filter_results": FILTERED}]},
    ]
    answer = Reply([*(f"data: {json.dumps(frame)}\n\n".encode() for frame in frames), b"data: [DONE]\n\n"])
    with Loopback(answer) as server:
        adapter = AzureChat(base_url=f"{server.url}/openai/v1", api_key=KEY)
        response = generate(Engine(adapter, model="mine", retry=False), "Hi").run()
    assert response.finish_reason == "content_filter"
    assert response.metadata["content_filter_results"]["hate"]["filtered"] is True

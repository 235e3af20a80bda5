"""Gemini and Claude on Vertex AI: by name, in a project and a location, with the login of google-auth."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
import google.auth
import google.auth.credentials
import google.auth.exceptions
import pytest
from google import genai
from google.genai import types

from rxllm import Engine, LLMError, count_tokens, generate, keys, serializer
from rxllm.adapters import Gemini, Vertex, vertex
from rxllm.adapters._connect import _shared, connect
from rxllm.models import priced
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import Call, EngineError, Request, TokenCount, Tool, Usage, ValidationError, system, user
from tests.adapters import streams
from tests.adapters.clouds import ask, parts
from tests.programs import python_without

pytestmark = pytest.mark.judges

TOKEN = "ya29.a-token-of-google"
API_KEY = "AIzaSyD-a-key-of-google"
GEMINI, CLAUDE = "gemini-2.5-pro", "claude-sonnet-4-5@20250929"
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
VARIABLES = (
    *("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_VERTEX_BASE_URL", "GOOGLE_API_KEY", "CLOUD_ML_REGION"),
    *("ANTHROPIC_VERTEX_PROJECT_ID", "ANTHROPIC_VERTEX_BASE_URL", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"),
)


class Login(google.auth.credentials.Credentials):
    """Credentials whose tokens live for `seconds`."""

    def __init__(self, seconds: float = 3600, quota: str | None = None) -> None:
        super().__init__()
        self.seconds, self.refreshed = seconds, 0
        self._quota_project_id = quota
        self.failure: Exception | None = None

    def refresh(self, request: Any) -> None:
        if self.failure:
            raise self.failure
        self.refreshed += 1
        self.token = f"{TOKEN}{self.refreshed}"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=self.seconds)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    keys.clear()
    _shared.cache_clear()
    monkeypatch.setattr(vertex, "default_token", vertex.GoogleToken())
    yield
    _shared.cache_clear()


@pytest.fixture
def adc(monkeypatch: pytest.MonkeyPatch) -> Login:
    """The application default credentials, of the project "adc-project"."""
    login = Login()
    monkeypatch.setattr(google.auth, "default", lambda scopes: (login, "adc-project"))
    return login


# The SDKs judge the requests


def whole(model: str) -> Request:
    tool = Tool("look", "Look.", SCHEMA)
    # The newest version of Anthropic's API, and its client, have no temperature.
    temperature = 0.5 if model == GEMINI else None
    return Request((system("Be brief."), user("Hi")), model, (tool,), "auto", temperature, max_tokens=9)


def camel(said: Any) -> Any:
    """Return `said`, a body of the SDK, with its names in camel case."""
    match said:
        case dict():
            names = {name: name[0] + name.title().replace("_", "")[1:] if "_" in name else name for name in said}
            return {names[name]: item if name == "properties" else camel(item) for name, item in said.items()}
        case list():
            return [camel(item) for item in said]
        case _:
            return said


@pytest.mark.parametrize("location", ["us-central1", "global", "eu"])
def test_gemini_is_asked_as_googles_client_asks_it(location: str) -> None:
    declared = types.FunctionDeclaration(name="look", description="Look.", parameters_json_schema=SCHEMA)
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.AUTO)
    config = types.GenerateContentConfig(
        system_instruction=[types.Part(text="Be brief.")],
        temperature=0.5,
        max_output_tokens=9,
        tools=[types.Tool(function_declarations=[declared])],
        tool_config=types.ToolConfig(function_calling_config=calling),
    )
    turn = types.Content(role="user", parts=[types.Part(text="Hi")])
    ours, theirs = Login(quota="payer"), Login(quota="payer")
    theirs.refresh(None)
    with Loopback() as server:
        place: dict[str, Any] = {"project": "my-project", "location": location}
        ask(server, Vertex(**place, credentials=ours, base_url=server.url), whole(GEMINI))
        options = types.HttpOptions(base_url=server.url)
        sdk = genai.Client(vertexai=True, **place, credentials=theirs, http_options=options)
        list(sdk.models.generate_content_stream(model=GEMINI, contents=[turn], config=config))
    mine, its = map(parts, server.requests)
    its["body"] = camel(its["body"])
    its["body"]["systemInstruction"].pop("role")  # the Gemini API has none
    assert mine == its
    assert mine["headers"]["x-goog-user-project"] == "payer"
    assert mine["path"].startswith(f"/v1beta1/projects/my-project/locations/{location}/publishers/google/models/")


def test_claude_is_asked_as_anthropics_client_asks_it() -> None:
    with Loopback() as server:
        place = {"base_url": f"{server.url}/v1", "project": "my-project", "location": "us-east5"}
        request = whole(CLAUDE)
        asked = ask(server, Vertex(**place, api_key=TOKEN), request, options={"betas": ["one-beta", "two"]})
        version = asked.json["anthropic_version"]
        sdk = anthropic.AnthropicVertex(
            region="us-east5", project_id="my-project", access_token=TOKEN, base_url=place["base_url"], max_retries=0
        )
        body = {name: item for name, item in asked.json.items() if name != "anthropic_version"}
        body |= {"model": CLAUDE, "extra_headers": {"anthropic-beta": "one-beta,two"}}
        list(sdk.messages.create(**body, extra_body={"anthropic_version": version}))
    mine, its = map(parts, server.requests)
    assert mine == its
    assert mine["body"]["anthropic_version"] == vertex.CLAUDE_VERSION
    assert "model" not in mine["body"]


def test_claudes_version_is_an_option() -> None:
    version = {"anthropic_version": "2026-10-21"}  # what Anthropic's client sends
    with Loopback() as server:
        asked = ask(server, Vertex(project="p", api_key=TOKEN, base_url=server.url), whole(CLAUDE), options=version)
    assert asked.json["anthropic_version"] == "2026-10-21"


def test_tokens_are_counted_as_the_sdks_count_them() -> None:
    answer = Reply.of_json({"totalTokens": 42, "input_tokens": 42})
    with Loopback(answer) as server:
        adapter = Vertex(project="p", location="us-east5", api_key=TOKEN, base_url=server.url)
        for model in (GEMINI, CLAUDE):
            assert count_tokens(Engine(adapter, model=model), "Hi").run() == TokenCount(42)
        login = Login()
        login.token = TOKEN
        options = types.HttpOptions(base_url=server.url)
        client = genai.Client(vertexai=True, project="p", location="us-east5", credentials=login, http_options=options)
        turn = types.Content(role="user", parts=[types.Part(text="Hi")])
        client.models.count_tokens(model=GEMINI, contents=[turn])
        sdk = anthropic.AnthropicVertex(
            region="us-east5", project_id="p", access_token=TOKEN, base_url=f"{server.url}/v1", max_retries=0
        )
        sdk.messages.count_tokens(model=CLAUDE, messages=[{"role": "user", "content": "Hi"}])
    gemini, claude, its_gemini, its_claude = map(parts, server.requests)
    assert gemini == its_gemini
    its_claude["body"]["anthropic_version"] = vertex.CLAUDE_VERSION
    assert claude == its_claude


@pytest.mark.parametrize("location", ["global", "us", "eu", "us-central1", "europe-west1"])
def test_each_location_has_the_address_that_the_sdks_use(location: str) -> None:
    place = {"project": "p", "location": location}
    built = Vertex(**place, api_key=TOKEN).build(whole(GEMINI), Call()).url
    its = genai.Client(vertexai=True, **place, credentials=Login())._api_client._http_options.base_url
    assert f"{built.scheme}://{built.host}/" == its
    built = Vertex(**place, api_key=TOKEN).build(whole(CLAUDE), Call()).url
    sdk = anthropic.AnthropicVertex(region=location, project_id="p", access_token=TOKEN)
    assert f"{built.scheme}://{built.host}/v1/" == str(sdk.base_url)


@pytest.mark.parametrize("host", ["aiplatform", "aiplatform.us.rep", "aiplatform.eu.rep", "us-central1-aiplatform"])
def test_a_token_is_a_bearer_token_at_every_host_of_vertex(host: str) -> None:
    url = f"https://{host}.googleapis.com/v1/projects/p/locations/l/publishers/google"
    for key, header in ((TOKEN, "authorization"), (API_KEY, "x-goog-api-key")):
        built = Gemini(base_url=url, api_key=key).build(whole(GEMINI), Call())
        assert {"authorization", "x-goog-api-key"} & built.headers.keys() == {header}


# Names and settings


@pytest.mark.parametrize(("model", "answer"), [(GEMINI, streams.GEMINI), (CLAUDE, streams.ANTHROPIC)])
def test_a_name_is_enough(model: str, answer: Any, adc: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loopback(Reply(answer)) as server:
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        response = generate(f"vertex:{model}", "Hi", retry=False).run()
    assert response.output_text
    assert "/projects/adc-project/locations/global/" in server.requests[0].path
    assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}1"


def test_one_engine_asks_both_families(adc: Login) -> None:
    answers = {"google": Reply(streams.GEMINI), "anthropic": Reply(streams.ANTHROPIC)}
    with Loopback(lambda asked: answers[asked.path.split("/publishers/")[1].split("/")[0]]) as server:
        engine = Engine(Vertex(base_url=server.url), model=GEMINI, retry=False)
        assert generate(engine, "Hi").run().output_text
        assert generate(engine, "Hi", model=CLAUDE).run().output_text
    assert adc.refreshed == 1


def placed(adapter: Vertex, model: str) -> tuple[str, str]:
    """Return the project and the location that `adapter` asks for `model`."""
    path = adapter.build(Request((user("Hi"),), model), Call(api_key=TOKEN)).url.path.split("/")
    return path[path.index("projects") + 1], path[path.index("locations") + 1]


def test_the_variables_of_both_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "googles")
    assert placed(Vertex(), GEMINI) == placed(Vertex(), CLAUDE) == ("googles", "global")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-central1")
    monkeypatch.setenv("ANTHROPIC_VERTEX_PROJECT_ID", "anthropics")
    monkeypatch.setenv("CLOUD_ML_REGION", "eu")
    assert placed(Vertex(), GEMINI) == ("googles", "us-central1")
    assert placed(Vertex(), CLAUDE) == ("anthropics", "eu")
    assert placed(Vertex(project="mine", location="us"), CLAUDE) == ("mine", "us")
    monkeypatch.setenv("ANTHROPIC_VERTEX_BASE_URL", "https://proxy.example/v1")
    built = Vertex().build(Request((user("Hi"),), CLAUDE), Call(api_key=TOKEN))
    assert str(built.url).startswith("https://proxy.example/v1/projects/anthropics/locations/eu/publishers/anthropic/")


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-2.5-pro", "projects/p/locations/us/publishers/google/models/gemini-2.5-pro"),
        ("publishers/meta/models/llama-4", "projects/p/locations/us/publishers/meta/models/llama-4"),
        ("endpoints/123", "projects/p/locations/us/endpoints/123"),
        ("projects/q/locations/us/endpoints/123", "projects/q/locations/us/endpoints/123"),
    ],
)
def test_the_paths_of_other_models(model: str, path: str) -> None:
    built = Vertex(project="p", location="us", api_key=TOKEN).build(Request((user("Hi"),), model), Call())
    assert built.url.path == f"/v1beta1/{path}:streamGenerateContent"


def test_the_path_of_a_claude_with_its_publisher() -> None:
    request = Request((user("Hi"),), f"publishers/anthropic/models/{CLAUDE}")
    built = Vertex(project="p", location="us", api_key=TOKEN).build(request, Call())
    assert built.url.path == f"/v1/projects/p/locations/us/publishers/anthropic/models/{CLAUDE}:streamRawPredict"


def test_an_api_key_without_a_project_is_express_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    with Loopback() as server:
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        monkeypatch.setenv("GOOGLE_API_KEY", API_KEY)
        ask(server, connect("vertex"), Request((user("Hi"),), GEMINI))
        sdk = genai.Client(vertexai=True, api_key=API_KEY, http_options=types.HttpOptions(base_url=server.url))
        list(sdk.models.generate_content_stream(model=GEMINI, contents="Hi"))
    mine, its = map(parts, server.requests)
    assert mine == its
    assert mine["headers"]["x-goog-api-key"] == API_KEY


def test_a_project_comes_before_an_api_key_of_the_environment(adc: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", API_KEY)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    with Loopback() as server:
        asked = ask(server, Vertex(base_url=server.url), Request((user("Hi"),), GEMINI))
    assert asked.headers["authorization"] == f"Bearer {TOKEN}1"
    assert "x-goog-api-key" not in asked.headers


@pytest.mark.parametrize(
    ("wrong", "message"), [({"project": "p", "location": "evil.example/"}, "location"), ({}, "GOOGLE_CLOUD_PROJECT")]
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Vertex(**wrong).build(Request((user("Hi"),), GEMINI), Call(api_key=TOKEN))
    with pytest.raises(ValidationError, match="credentials"):
        Vertex(credentials=Login(), api_key=TOKEN)


def test_prices_are_those_of_the_models_makers() -> None:
    usage = Usage(1_000_000, 1000)
    for model, other in ((GEMINI, "google:gemini-2.5-pro"), (CLAUDE, "anthropic:claude-sonnet-4-5")):
        cost = priced(f"vertex:{model}", usage).total_cost
        assert cost == priced(other, usage).total_cost
        assert cost is not None


# The login


@pytest.mark.parametrize(("seconds", "refreshed"), [(3600, 1), (60, 3)])
def test_a_token_is_renewed_before_it_ends(seconds: float, refreshed: int) -> None:
    login = Login(seconds)
    with Loopback(Reply(streams.GEMINI)) as server:
        adapter = Vertex(project="p", credentials=login, base_url=server.url)
        for _ in range(3):
            generate(Engine(adapter, model=GEMINI, retry=False), "Hi").run()
    assert login.refreshed == refreshed
    assert server.requests[-1].headers["authorization"] == f"Bearer {TOKEN}{refreshed}"


def test_calls_at_once_share_one_login() -> None:
    token, start = vertex.GoogleToken(Login()), threading.Barrier(8)

    def ask_for_it(_: int) -> str:
        start.wait()
        return token()

    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(ask_for_it, range(8))} == {f"{TOKEN}1"}


def test_the_scope_is_added_where_credentials_need_one() -> None:
    class Scoped(Login, google.auth.credentials.Scoped):
        requires_scopes = True

        def with_scopes(self, scopes: Any, default_scopes: Any = None) -> Login:
            with_scope = Login()
            with_scope.scopes = scopes  # type: ignore[attr-defined]
            return with_scope

    token = vertex.GoogleToken(Scoped())
    token()
    assert token.credentials.scopes == [vertex.SCOPE]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (google.auth.exceptions.TransportError("no route"), "network_error"),
        (google.auth.exceptions.RefreshError("busy", retryable=True), "network_error"),
        (google.auth.exceptions.RefreshError("invalid_grant"), "missing_key"),
        (google.auth.exceptions.DefaultCredentialsError("none"), "missing_key"),
    ],
)
def test_a_failed_login_has_a_reason(failure: Exception, reason: str) -> None:
    login = Login()
    login.failure = failure
    with pytest.raises(LLMError) as caught:
        asyncio.run(Vertex(project="p", credentials=login).with_key(Call()))
    assert (caught.value.reason, caught.value.provider, caught.value.__cause__) == (reason, "vertex", failure)  # type: ignore[attr-defined]


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = """
import rxllm
try:
    rxllm.generate("vertex:gemini-2.5-pro", "Hi", retry=False).run()
except rxllm.EngineError as error:
    print(error.reason, error.message, sep=": ")
"""
    ran = python_without(["google.auth"], code)
    assert ran.stdout.startswith("missing_dependency: "), ran.stderr
    assert "pip install 'rxllm[vertex]'" in ran.stdout


def test_a_request_cannot_be_built_before_the_login() -> None:
    with pytest.raises(EngineError, match="api_key=") as caught:
        Vertex(project="p").build(Request((user("Hi"),), GEMINI), Call())
    assert caught.value.reason == "missing_key"


def test_a_header_of_ones_own_replaces_the_login() -> None:
    with Loopback() as server:
        adapter = Vertex(project="p", base_url=server.url, headers={"Authorization": "Bearer mine"})
        asked = ask(server, adapter, Request((user("Hi"),), GEMINI))
    assert asked.headers["authorization"] == "Bearer mine"


# Secrets and errors


@pytest.mark.parametrize("model", [GEMINI, CLAUDE])
def test_a_token_appears_nowhere(model: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = {"code": 401, "message": f"Invalid: {TOKEN}1", "status": "UNAUTHENTICATED"}
    with Loopback(Reply.of_json({"error": refusal}, 401)) as server:
        adapter = Vertex(project="p", credentials=Login(), base_url=server.url)
        with pytest.raises(LLMError) as caught:
            generate(Engine(adapter, model=model, retry=False), "Hi").run()
    error = caught.value
    for text in (repr(error), str(error), serializer.to_json(error), repr(adapter), repr(vars(adapter)), caplog.text):
        assert TOKEN not in text
    pickled = pickle.dumps(adapter)
    assert TOKEN.encode() not in pickled
    assert pickle.loads(pickled).project == "p"
    assert copy.deepcopy(adapter)._api_key is adapter._api_key  # copies share one login


EXPIRED = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_TOKEN_EXPIRED"}


@pytest.mark.parametrize(
    ("status", "error", "reason", "code"),
    [
        (400, {"code": 400, "status": "INVALID_ARGUMENT"}, "invalid_request", "INVALID_ARGUMENT"),
        (
            401,
            {"code": 401, "status": "UNAUTHENTICATED", "details": [EXPIRED]},
            "authentication_failed",
            "UNAUTHENTICATED",
        ),
        (403, {"code": 403, "status": "PERMISSION_DENIED"}, "authentication_failed", "PERMISSION_DENIED"),
        (404, {"code": 404, "status": "NOT_FOUND"}, "invalid_request", "NOT_FOUND"),
        (429, {"code": 429, "status": "RESOURCE_EXHAUSTED"}, "rate_limited", "RESOURCE_EXHAUSTED"),
        (429, {"type": "rate_limit_error"}, "rate_limited", "rate_limit_error"),
        (503, {"code": 503, "status": "UNAVAILABLE"}, "provider_unavailable", "UNAVAILABLE"),
        (529, {"type": "overloaded_error"}, "provider_unavailable", "overloaded_error"),
    ],
)
@pytest.mark.parametrize("model", [GEMINI, CLAUDE])
def test_errors_keep_their_reasons(model: str, status: int, error: dict[str, Any], reason: str, code: str) -> None:
    with Loopback(Reply.of_json({"error": {"message": "No", **error}}, status)) as server:
        engine = Engine(Vertex(project="p", api_key=TOKEN, base_url=server.url), model=model, retry=False)
        with pytest.raises(LLMError) as caught:
            generate(engine, "Hi").run()
    raised: Any = caught.value
    assert (raised.reason, raised.provider, raised.code, raised.status) == (reason, "vertex", code, status)


def test_a_blocked_prompt_keeps_its_reason() -> None:
    frame = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 3}}
    with Loopback(Reply([f"data: {json.dumps(frame)}\n\n".encode()])) as server:
        engine = Engine(Vertex(project="p", api_key=TOKEN, base_url=server.url), model=GEMINI, retry=False)
        response = generate(engine, "Hi").run()
    assert response.finish_reason == "content_filter"

"""The compatible APIs of Bedrock Mantle, with the SDKs of OpenAI and Anthropic as judges where they are installed."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import rxllm
from botocore.credentials import Credentials
from rxllm import Request, user
from rxllm.testing.loopback import Loopback
from rxllm.values import Call

from rxllm_bedrock import MantleChat, MantleClaude, MantleResponses, connect_mantle

REGION = "us-west-2"
CLAUDE, GPT, OSS = "anthropic.claude-sonnet-4-5", "openai.gpt-5.4", "openai.gpt-oss-120b"
KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


@pytest.mark.parametrize(
    ("model", "kind", "path"),
    [
        (OSS, MantleChat, "/v1/chat/completions"),
        (GPT, MantleResponses, "/openai/v1/responses"),
        (CLAUDE, MantleClaude, "/anthropic/v1/messages"),
    ],
)
def test_the_model_decides_which_api_it_is(model: str, kind: type[Any], path: str) -> None:
    adapter = connect_mantle(model, region=REGION, api_key="k")
    assert type(adapter) is kind
    request = adapter.build(Request((user("Hi"),), model), Call())
    assert str(request.url) == f"https://bedrock-mantle.{REGION}.api.aws{path}"
    assert (request.headers["authorization"], request.headers.get("x-api-key")) == ("Bearer k", None)


def sent(server: Loopback, adapter: Any, model: str) -> Any:
    with contextlib.suppress(rxllm.LLMError):  # the server's answer does not matter
        rxllm.generate(adapter, "Hi", model=model, max_tokens=9, retry=False).run()
    return server.requests[-1]


def signer(request: Any) -> str:
    """Return who has signed: the key id, the region and the service. Each client signs headers of its own."""
    text = request.headers["authorization"]
    scope = re.match(r"AWS4-HMAC-SHA256 Credential=(\w+)/\d{8}/([\w-]+)/([\w-]+)/aws4_request,", text)
    return " ".join(scope.groups()) if scope else text


def test_claude_is_asked_as_anthropics_client_asks_it() -> None:
    anthropic = pytest.importorskip("anthropic")
    login = {"aws_access_key": KEYS[0], "aws_secret_key": KEYS[1], "aws_region": REGION}
    with Loopback() as server:
        own = MantleClaude(base_url=f"{server.url}/anthropic/v1", region=REGION, credentials=Credentials(*KEYS))
        ours = sent(server, own, CLAUDE)
        client = anthropic.AnthropicBedrockMantle(**login, base_url=f"{server.url}/anthropic", max_retries=0)
        with contextlib.suppress(Exception):
            messages: Any = [{"role": "user", "content": "Hi"}]
            client.messages.create(model=CLAUDE, max_tokens=9, messages=messages, stream=True)
        theirs = server.requests[-1]
    assert (ours.method, ours.path, signer(ours)) == (theirs.method, theirs.path, signer(theirs))
    assert signer(ours) == f"{KEYS[0]} {REGION} bedrock-mantle"
    assert ours.json == theirs.json
    default = str(anthropic.AnthropicBedrockMantle(**login).base_url).rstrip("/")
    assert MantleClaude.default_base_url.replace("REGION", REGION) == f"{default}/v1"


@pytest.mark.parametrize("login", [{"api_key": "k"}, {"access_key_id": KEYS[0], "secret_access_key": KEYS[1]}])
def test_gpt_is_asked_as_openais_client_asks_it(login: dict[str, str]) -> None:
    openai, bedrock = pytest.importorskip("openai"), pytest.importorskip("openai.providers").bedrock
    own_login = {"api_key": "k"} if "api_key" in login else {"credentials": Credentials(*KEYS)}
    with Loopback() as server:
        ours = sent(server, MantleResponses(base_url=f"{server.url}/openai/v1", region=REGION, **own_login), GPT)
        provider = bedrock(region=REGION, base_url=f"{server.url}/openai/v1", **login)
        with contextlib.suppress(Exception):
            openai.OpenAI(provider=provider, max_retries=0).responses.create(model=GPT, input="Hi", stream=True)
        theirs = server.requests[-1]
    assert (ours.method, ours.path, signer(ours)) == (theirs.method, theirs.path, signer(theirs))
    assert (ours.json["model"], ours.json["stream"]) == (GPT, True)


@pytest.mark.parametrize("login", [{"api_key": "k"}, {"credentials": Credentials(*KEYS)}])
def test_the_rest_of_an_answer_is_asked_for_in_the_region_and_with_the_login(login: dict[str, Any]) -> None:
    adapter = MantleResponses(region=REGION, **login)
    answer = adapter.kept_answer(None, adapter.decoder(Request((), GPT, options={"background": True})))
    assert answer is not None
    answer.reopen("r1")
    for request in (answer.resume(Call()), answer.stop(Call())):
        assert request.url.host == f"bedrock-mantle.{REGION}.api.aws"
        assert request.url.path.startswith("/openai/v1/responses/r1")
        how = "Bearer k" if "api_key" in login else f"AWS4-HMAC-SHA256 Credential={KEYS[0]}/"
        assert request.headers["authorization"].startswith(how)

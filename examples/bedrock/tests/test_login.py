"""Where the key, the credentials and the region come from, and what is sent for each."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import rxllm
from botocore.credentials import Credentials, RefreshableCredentials
from rxllm import EngineError, Request, keys, user
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import Call
from wire import BEGIN, delta, end

from rxllm_bedrock import Bedrock, _login

HI = Request((user("Hi"),), "amazon.nova-lite-v1:0")
REPLY = Reply([BEGIN, delta(0, text="Hi"), *end()])
VARIABLES = ("AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE")
VARIABLES += ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    keys.clear()
    _login.session.cache_clear()


def sent(adapter: Any, request: Request = HI, **call: Any) -> Any:
    """Return the request that `adapter` would send."""

    async def build() -> Any:
        ready = await adapter.with_key(Call(**call))
        await adapter.prepare(request, ready)
        return adapter.build(request, ready)

    return asyncio.run(build())


def authorization(adapter: Any, **call: Any) -> str:
    return sent(adapter, **call).headers.get("authorization", "").partition("/")[0]


def test_a_key_is_a_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "from-the-environment")
    request = sent(Bedrock())
    assert request.headers["authorization"] == "Bearer from-the-environment"
    assert str(request.url) == (
        "https://bedrock-runtime.eu-west-1.amazonaws.com/model/amazon.nova-lite-v1%3A0/converse-stream"
    )


def test_what_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Credentials("AKIDOWN", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert authorization(Bedrock()) == "AWS4-HMAC-SHA256 Credential=AKIDENV"
    assert authorization(Bedrock(credentials=own)) == "AWS4-HMAC-SHA256 Credential=AKIDOWN"
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "env")
    assert authorization(Bedrock(credentials=own)) == "Bearer env"  # as in botocore
    assert authorization(Bedrock(credentials=own), api_key="mine") == "Bearer mine"
    assert authorization(Bedrock(headers={"Authorization": "Basic x"}, credentials=own)) == "Basic x"


OWN = (
    "https://bedrock-runtime.us-east-1.amazonaws.com",
    "https://bedrock-runtime-fips.us-east-1.amazonaws.com/",
    "https://bedrock-runtime.cn-north-1.amazonaws.com.cn:443",
    "https://bedrock-runtime.us-east-1.api.aws",
    "https://vpce-0a1b-c2d3-us-east-1a.bedrock-runtime.us-east-1.vpce.amazonaws.com",
)
OTHERS = (
    "http://127.0.0.1:1",
    "https://proxy.example",
    "https://amazonaws.com.example",
    "https://some-bucket.s3.amazonaws.com",
    "https://bedrock-runtime.s3.us-east-1.amazonaws.com",
    "https://abc123.execute-api.us-east-1.amazonaws.com/prod",
    "https://bedrock-runtime.us-east-1.amazonaws.com.example",
    "https://bedrock-runtime.us-east-1.amazonaws.com@proxy.example",
    "https://bedrock-runtime.us-east-1.elb.amazonaws.com",
    "https://x-bedrock-runtime.us-east-1.amazonaws.com",
    "http://bedrock-runtime.us-east-1.amazonaws.com",
)


def test_credentials_from_the_chain_are_for_amazon_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")
    for url in OTHERS:
        assert authorization(Bedrock(base_url=url, region="us-east-1")) == "", url
    for url in OWN:
        assert authorization(Bedrock(base_url=url, region="us-east-1")) == "AWS4-HMAC-SHA256 Credential=AKIDENV", url
    endpoint = sent(Bedrock(base_url="https://vpce-1.bedrock-runtime.eu-west-1.vpce.amazonaws.com", region="eu-west-1"))
    assert endpoint.headers["x-amz-security-token"] == "a-session-token"


def test_the_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="bedrock needs a region: set AWS_REGION"):
        sent(Bedrock(api_key="k"))
    (tmp_path / "AWS_CONFIG_FILE").write_text("[default]\nregion = from-profile\n")
    _login.session.cache_clear()
    assert sent(Bedrock(api_key="k")).url.host == "bedrock-runtime.from-profile.amazonaws.com"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "default-region")
    assert sent(Bedrock(api_key="k")).url.host == "bedrock-runtime.default-region.amazonaws.com"
    monkeypatch.setenv("AWS_REGION", "the-region")
    assert sent(Bedrock(api_key="k")).url.host == "bedrock-runtime.the-region.amazonaws.com"
    assert sent(Bedrock(api_key="k", region="mine")).url.host == "bedrock-runtime.mine.amazonaws.com"


def test_without_a_login_the_error_names_the_ways() -> None:
    with pytest.raises(EngineError, match="or AWS credentials: botocore found none") as caught:
        sent(Bedrock(region="eu-west-1"))
    assert caught.value.reason == "missing_key"


def test_expiring_credentials_are_renewed_before_each_attempt() -> None:
    renewals: list[int] = []

    def renew() -> dict[str, str]:
        renewals.append(1)
        expiry = datetime.now(UTC) + timedelta(seconds=30)  # always about to expire
        return {
            "access_key": f"AKID{len(renewals)}",
            "secret_key": "secret",
            "token": "t",
            "expiry_time": expiry.isoformat(),
        }

    credentials = RefreshableCredentials.create_from_metadata(renew(), renew, "test")
    with Loopback(REPLY) as server:
        bedrock = Bedrock(base_url=server.url, region="eu-west-1", credentials=credentials)
        for _ in range(2):
            rxllm.generate(bedrock, "Hi", model="m").run()
        ids = [request.headers["authorization"].partition("=")[2].partition("/")[0] for request in server.requests]
    assert len(set(ids)) == 2


def test_a_failing_login_is_an_error_of_ours() -> None:
    class Failing:
        def get_frozen_credentials(self) -> Any:
            from botocore.exceptions import UnauthorizedSSOTokenError

            raise UnauthorizedSSOTokenError()

    with pytest.raises(EngineError, match="botocore raised UnauthorizedSSOTokenError") as caught:
        sent(Bedrock(region="eu-west-1", credentials=Failing()))
    assert caught.value.reason == "missing_key"


def test_no_error_and_no_pickle_shows_a_secret() -> None:
    token = "a-very-secret-session-token"
    refusal = Reply.of_json({"message": f"the token {token} has expired"}, 403)
    with Loopback(refusal) as server:
        bedrock = Bedrock(base_url=server.url, region="eu-west-1", credentials=Credentials("AKID", "secret-key", token))
        with pytest.raises(rxllm.AdapterError) as caught:
            rxllm.generate(bedrock, "Hi", model="m", retry=False).run()
    assert token not in f"{caught.value!r} {caught.value.__dict__}"
    pickled = pickle.dumps(bedrock)
    assert b"secret-key" not in pickled
    assert b"a-very-secret" not in pickled
    with pytest.raises(EngineError, match="pickled without the secrets in its credentials"):
        pickle.loads(pickled).build(HI, Call())


def test_the_names_are_found() -> None:
    assert {"bedrock", "bedrock-mantle"} <= set(rxllm.adapters.providers())
    for name in ("bedrock:amazon.nova-lite-v1:0", "bedrock-mantle:openai.gpt-oss-20b"):
        assert rxllm.Engine.from_model(name).adapter.provider == name.partition(":")[0]
    assert rxllm.Engine.from_model("bedrock:amazon.nova-lite-v1:0").model == "amazon.nova-lite-v1:0"

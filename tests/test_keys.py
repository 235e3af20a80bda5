"""Where keys come from, what a missing one says, and that none is ever shown."""

from __future__ import annotations

import json
import logging
import pickle
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import Anthropic, Engine, EngineError, Gemini, OpenAIChat, Request, keys, serializer, user
from rxllm.testing.loopback import chat_chunk
from rxllm.values import Call

ASKED = Request((user("Hi"),), model="m")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "MINE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    keys.clear()
    yield
    keys.clear()


def sent(adapter: OpenAIChat, call: Call | None = None) -> str | None:
    """The key that `adapter` would send."""
    header = adapter.build(ASKED, call or Call()).headers.get("authorization")
    return header and header.removeprefix("Bearer ")


def write(path: Path, text: str) -> None:
    path.write_text(text)


# The chain


def test_each_source_comes_before_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (keys.get("openai"), keys.source("openai")) == (None, None)
    write(tmp_path / ".env", "OPENAI_API_KEY=from-dotenv")
    assert keys.get("openai") is None
    assert keys.load_dotenv() is True
    assert (keys.get("openai"), keys.source("openai"), sent(OpenAIChat())) == ("from-dotenv", "dotenv", "from-dotenv")
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert (keys.get("openai"), keys.source("openai")) == ("from-environment", "environment")
    keys.put("openai", "from-store")
    assert (keys.get("openai"), keys.source("openai")) == ("from-store", "store")
    assert sent(OpenAIChat()) == "from-store"
    assert sent(OpenAIChat(api_key="from-adapter")) == "from-adapter"
    assert sent(OpenAIChat(api_key="from-adapter"), Call(api_key="from-call")) == "from-call"


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_key_is_none(empty: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path / ".env", "OPENAI_API_KEY=last")
    keys.load_dotenv()
    keys.put("openai", empty)
    monkeypatch.setenv("OPENAI_API_KEY", empty)
    assert sent(OpenAIChat(api_key=empty), Call(api_key=empty)) == "last"


def test_white_space_round_a_key_is_not_part_of_it() -> None:
    keys.put("openai", " key\n")
    assert keys.get("openai") == "key"


def test_a_key_is_put_read_and_forgotten() -> None:
    keys.put("openai", "first")
    keys.put("openai", "second")
    assert (keys.get("openai"), keys.source("openai"), keys.get("mine")) == ("second", "store", None)
    keys.delete("openai")
    assert (keys.get("openai"), keys.source("openai")) == (None, None)


def test_any_provider_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE_API_KEY", "mine")
    assert keys.get("mine") == "mine"


# dotenv


def test_a_dotenv_file_is_found_upwards_and_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path / ".env", "OPENAI_API_KEY=first")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert keys.load_dotenv() is True
    write(tmp_path / ".env", "OPENAI_API_KEY=second")
    assert keys.get("openai") == "first"
    assert keys.load_dotenv() is True
    assert keys.get("openai") == "second"


def test_a_dotenv_file_says_it_in_many_ways_and_leaves_the_environment_alone(tmp_path: Path) -> None:
    import os

    lines = ["# keys", "", "export OPENAI_API_KEY='a$HOME'", 'MINE_API_KEY="b"', "nonsense", "EMPTY_API_KEY="]
    write(tmp_path / "my.env", "\n".join(lines))
    assert keys.load_dotenv(tmp_path / "my.env") is True
    assert (keys.get("openai"), keys.get("mine"), keys.get("empty")) == ("a$HOME", "b", None)
    assert "OPENAI_API_KEY" not in os.environ


def test_a_dotenv_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert keys.load_dotenv() is False
    assert keys.load_dotenv(tmp_path / "none.env") is False
    assert keys.get("openai") is None


def test_clear_forgets_everything(tmp_path: Path) -> None:
    write(tmp_path / ".env", "OPENAI_API_KEY=a")
    keys.load_dotenv()
    keys.put("mine", "b")
    keys.clear()
    assert (keys.get("openai"), keys.get("mine")) == (None, None)
    keys.put("mine", "c")
    keys.delete("mine")
    keys.delete("mine")
    assert keys.get("mine") is None


def test_without_python_dotenv_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dotenv", None)
    with pytest.raises(EngineError, match=r"rxllm\[dotenv\]") as caught:
        keys.load_dotenv()
    assert caught.value.reason == "missing_dependency"


# Missing


def missing() -> EngineError:
    with pytest.raises(EngineError) as caught:
        rxllm.generate(Engine(OpenAIChat(), model="m"), "Hi").run()
    assert (caught.value.reason, caught.value.provider) == ("missing_key", "openai")
    return caught.value


def test_a_missing_key_names_every_place_and_what_became_of_the_dotenv_file(tmp_path: Path) -> None:
    error = missing()
    for place in ("api_key=... to the call or the adapter", "keys.put('openai'", "OPENAI_API_KEY", "none is loaded"):
        assert place in error.message
    assert len(error.metadata["checked_sources"]) == 5
    keys.load_dotenv()
    assert f"{tmp_path / '.env'}, which does not exist" in missing().message
    write(tmp_path / ".env", "OTHER=1")
    keys.load_dotenv()
    assert f"OPENAI_API_KEY in the dotenv file {tmp_path / '.env'}" in missing().message


# Nothing shows a key

SECRETS = st.text(string.ascii_letters + string.digits + "-_.+/=:~", min_size=12, max_size=40).map("sk-".__add__)
ADAPTERS = [OpenAIChat, Anthropic, Gemini]


def echoes(key: str) -> list[httpx.Response]:
    """Answers of servers that say which key they were given."""
    error = {"error": {"message": f"the key {key} is refused", "type": key, "code": key, "status": key, "param": [key]}}
    sse = {"content-type": "text/event-stream"}
    return [
        httpx.Response(401, json=error, headers={"x-request-id": key, "request-id": key}),
        httpx.Response(422, json={"detail": [{"msg": key, "input": {key: key}}]}),
        httpx.Response(503, text="x" * 480 + key),
        httpx.Response(200, content=chat_chunk("Hi") + f"data: {json.dumps(error)}\n\n".encode(), headers=sse),
        httpx.Response(200, content=f"event: error\ndata: {json.dumps({'type': 'error', **error})}\n\n", headers=sse),
        httpx.Response(200, content=f"data: {key}\n\n", headers=sse),
    ]


@pytest.mark.judges
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(key=SECRETS, place=st.sampled_from(["call", "adapter", "store", "environment", "dotenv"]))
def test_no_key_is_ever_shown(
    key: str, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG, logger="rxllm")
    caplog.clear()
    keys.clear()
    with monkeypatch.context() as patched:
        for adapter_class in ADAPTERS:
            variable = keys.variable_for(adapter_class.provider)
            if place == "store":
                keys.put(adapter_class.provider, key)
            if place == "environment":
                patched.setenv(variable, key)
            if place == "dotenv":
                write(tmp_path / ".env", f"{variable}='{key}'\n")
                keys.load_dotenv()
            for reply in echoes(key):
                for text in said(adapter_class, reply, key, place):
                    assert key not in text
    logged = [each for each in caplog.records if each.name == "rxllm"]
    assert logged
    assert not [each for each in logged if key in f"{each.getMessage()} {each.__dict__}"]


def said(adapter_class: Any, reply: httpx.Response, key: str, place: str) -> list[str]:
    """All that a call shows of itself, and of its failure."""
    told: list[Any] = []
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    adapter = adapter_class(
        api_key=key if place == "adapter" else None,
        client=lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)),
    )
    policy = {"max_attempts": 2, "base_delay": 0.0, "jitter": 0.0}
    engine = Engine(adapter, model="m", observers=(told.append,), retry=policy)
    made: list[Any] = []
    failures: list[Any] = []
    stream = rxllm.stream_generate(engine, "Hi", **({"api_key": key} if place == "call" else {}))
    try:
        made += stream
    except Exception as error:
        failures.append(error)
    assert any(key in value for value in sent[0].headers.values())
    errors = [*failures, *(event.error for event in made if isinstance(event, rxllm.ErrorEvent))]
    assert errors
    texts = [repr(each) for each in (adapter, engine, Call(api_key=key), told, made, errors)]
    texts += [f"{error} {vars(error)} {error.__cause__!r}" for error in errors]
    texts += [serializer.to_json(each) for each in (*made, *errors)]
    return texts + [pickle.dumps(error).decode("latin-1") for error in errors]


def test_a_short_key_is_no_secret() -> None:
    error = rxllm.AdapterError("invalid_request", "a test failed")
    assert keys.redacted(error, "test") is error
    assert keys.redacted(error, None) is error


def test_what_is_redacted_keeps_its_class_and_cause() -> None:
    error = rxllm.AdapterError("rate_limited", "no sk-12345678", retry_after=3.0, metadata={"a": ("sk-12345678", 1)})
    error.__cause__ = ValueError("x")
    shown = keys.redacted(error, "sk-12345678")
    assert shown == rxllm.AdapterError("rate_limited", "no [key]", retry_after=3.0, metadata={"a": ("[key]", 1)})
    assert shown.__cause__ is error.__cause__


def test_a_key_that_is_no_text_is_refused_when_it_is_put() -> None:
    with pytest.raises(rxllm.ValidationError, match="must be a string"):
        rxllm.keys.put("openai", 3)  # type: ignore[arg-type]
    assert rxllm.keys.get("openai") != 3

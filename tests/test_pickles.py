"""Engines, tools and requests travel to other processes: by name or by value, and never with a key."""

from __future__ import annotations

import copy
import json
import os
import pickle
import string
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import (
    AdapterError,
    Anthropic,
    Budget,
    Engine,
    EngineError,
    Fake,
    Gemini,
    Local,
    Ollama,
    OpenAIChat,
    OpenAIResponses,
    RetryPolicy,
    Tool,
    tool,
)
from rxllm import operators as ops
from rxllm.adapters import providers
from rxllm.images import FakeImages, GeminiImages, OpenAIImages
from rxllm.values import Call, ImageResponse, pickles

HTTP = (OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama, OpenAIImages, GeminiImages)
DUMPS = (pickle.dumps, cloudpickle.dumps)
CANARIES = st.text(string.ascii_letters + string.digits, min_size=24, max_size=40).map("sk-".__add__)


@tool
def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def shout(request: Any) -> str:
    return request.messages[-1].text.upper()


def again(value: Any) -> list[Any]:
    return [pickle.loads(dumps(value)) for dumps in DUMPS]


def answer(engine: Engine) -> str:
    return rxllm.generate(engine, "Hi").run().output_text


# Keys


@pytest.mark.parametrize("adapter", HTTP)
@given(canary=CANARIES)
@settings(max_examples=5, deadline=None)
def test_no_key_is_in_a_pickle(adapter: Any, canary: str) -> None:
    headers = {"Authorization": f"Bearer {canary}", "X-Api-Key": canary, "X-Team": "blue"}
    url = f"https://me:{canary}@example.com/v1?api_key={canary}"
    made = adapter(api_key=canary, headers=headers, base_url=url)
    params = {"headers": headers}
    engines = [
        made,
        Engine(made, params=params),
        Engine(Fake("Hi"), image_adapter=made),
        Engine(
            Fake("Hi"), operators=[ops.fallback(Fake("a"), Engine(made)) if hasattr(made, "stream") else ops.cost()]
        ),
        Engine(Fake("Hi"), tools=[Engine(made, params=params).as_tool(name="expert")]),
    ]
    for engine in engines:
        for dumps in DUMPS:
            data = dumps(engine)
            assert canary.encode() not in data
            pickle.loads(data)
    assert pickle.loads(pickle.dumps(made)).headers == {"X-Team": "blue"}


@pytest.mark.parametrize("name", sorted(providers()))
def test_every_provider_leaves_its_key_behind(name: str) -> None:
    try:
        engine = Engine.from_model(f"{name}:m", api_key="sk-canary-of-a-key")
    except EngineError:
        pytest.skip("it takes no key")
    for dumps in DUMPS:
        assert b"canary" not in dumps(engine)


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama])
@pytest.mark.parametrize("secret", [{"api_key": "sk-1"}, {"headers": {"x-api-key": "sk-1"}}, {"api_key": lambda: "sk"}])
def test_a_missing_key_says_where_it_must_come_from(adapter: Any, secret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = adapter(base_url="http://127.0.0.1:1", **secret)
    for name in (*os.environ,):
        if name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    for copied in (*again(made), *again(again(made)[0])):
        with pytest.raises(EngineError, match=r"in the process that uses the adapter, set .*_API_KEY in") as caught:
            rxllm.generate(copied, "Hi", model="m").run()
        assert caught.value.reason == "missing_key"
        assert caught.value.metadata["left_behind"] == list(secret)
        assert copied.key(Call(api_key="sk-2")) == "sk-2"
    monkeypatch.setenv(rxllm.keys.variable_for(adapter.provider), "sk-3")
    assert again(made)[0].key(Call()) == "sk-3"


@pytest.mark.sockets
def test_an_adapter_without_secrets_needs_none_elsewhere() -> None:
    copied = again(OpenAIChat(base_url="http://127.0.0.1:1/v1", headers={"X-Team": "blue"}))[0]
    with pytest.raises(AdapterError, match=r"127\.0\.0\.1"):
        rxllm.generate(copied, "Hi", model="m", retry=False).run()


# Engines


OPERATORS: dict[str, Callable[[], Any]] = {
    "cost": ops.cost,
    "fallback": lambda: ops.fallback(OpenAIChat(), "anthropic:m", Engine(Fake("a"), operators=[ops.cost()])),
    "circuit_breaker": lambda: ops.circuit_breaker(2),
    "restart": ops.restart,
    "time_limits": lambda: ops.time_limits(first=5.0),
    "guard": lambda: ops.guard(lambda text: "no" not in text),
    "redact": lambda: ops.redact("secret"),
    "map_text": lambda: ops.map_text(lambda text: text),
    "smooth": ops.smooth,
    "tap": lambda: ops.tap(lambda event: None),
    "budget": lambda: ops.budget(5_000),
    "retry_before_content": lambda: ops.retry_before_content(RetryPolicy(max_attempts=2)),
    "verify": ops.verify,
    "include_raw_chunks": lambda: ops.include_raw_chunks(True),
    "filter_deltas": lambda: ops.filter_deltas(thinking=False),
    "finally_result": lambda: ops.finally_result(lambda result, outcome: None),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_travel(name: str) -> None:
    for engine in again(Engine(Fake("Hello"), operators=[OPERATORS[name]()])):
        assert answer(engine) == "Hello"


def test_the_other_settings_travel() -> None:
    seen: list[Any] = []
    engine = Engine(
        Fake(shout),
        model="m",
        tools=[double],
        params={"temperature": 0.0},
        context={"a": 1},
        prepare=[lambda request: request, rxllm.alongside(lambda request: True)],
        observers=[seen.append, lambda telemetry: None],
        retry=RetryPolicy(max_attempts=5),
        tool_result_encoder=lambda result: "x",
        metadata={"b": 2},
    )
    for copied in again(engine):
        assert answer(copied) == "HI"
        for name in ("model", "tools", "params", "context", "retry", "metadata"):
            assert getattr(copied, name) == getattr(engine, name)
    assert seen == []  # what a method is bound to is a copy elsewhere


@pytest.mark.parametrize("adapter", [Fake("Hi"), Local(), FakeImages(script=[])])
def test_adapters_without_http_travel(adapter: Any) -> None:
    for copied in again(adapter):
        assert type(copied) is type(adapter)


def test_an_engine_s_adapter_travels_by_value() -> None:
    mark = "!"
    images = FakeImages(lambda request: ImageResponse())
    engine = Engine(Fake(lambda request: request.messages[-1].text + mark), image_adapter=images)
    for copied in again(engine):
        assert answer(copied)[-1] == "!"
    lock, fault = threading.Lock(), r"^adapter of the engine cannot be pickled: .*lock.*; leave it out"
    for dumps in DUMPS:
        with pytest.raises(pickle.PicklingError, match=fault):
            dumps(Engine(Fake(lambda request: str(lock))))


@pytest.mark.parametrize("dumps", DUMPS)
def test_what_calls_share_stays(dumps: Any) -> None:
    for operator, fault in [(ops.rate_limited(5), "rate limit"), (ops.budget(Budget(tokens=5)), "a Budget")]:
        engine = Engine(Fake("Hi"), operators=[ops.cost(), operator])
        with pytest.raises(pickle.PicklingError, match=rf"operators\[1\] cannot be pickled.*{fault}") as caught:
            dumps(engine)
        assert "leave that out" not in str(caught.value)  # it says what to write instead
        with pytest.raises(pickle.PicklingError, match=rf"operators\[0\].*operators\[1\] cannot be pickled.*{fault}"):
            dumps(Engine(Fake("Hi"), operators=[ops.fallback(engine)]))
        assert operator.is_shared
    assert not getattr(ops.budget(5), "is_shared", False)
    assert not getattr(ops.cost(), "is_shared", False)


def test_a_circuit_breaker_begins_closed() -> None:
    down = Engine(Fake(AdapterError("provider_unavailable")), operators=[ops.circuit_breaker(1)], retry=False)
    for _ in range(2):
        with pytest.raises(AdapterError):
            answer(down)
    with pytest.raises(AdapterError, match=r"provider_unavailable$"):
        answer(again(down)[0])


# Tools


def test_a_tool_of_a_module_travels_by_its_name() -> None:
    assert [copied is double for copied in again(double)] == [True, True]
    assert again(rxllm.request("Hi", tools=[double]))[0].tools[0] is double


def test_other_tools_travel_by_value() -> None:
    factor = 3

    @tool(approval=True, timeout=2.0)
    def triple(x: int) -> int:
        """Triple a number."""
        return factor * x

    for copied in again(triple):
        assert (copied.name, copied.description, copied.schema) == ("triple", "Triple a number.", triple.schema)
        assert (copied.approval, copied.timeout, copied(2)) == (True, 2.0, 6)
        assert copied.bind({"x": 4}, None)() == 12
    for copied in again(tool(name="add", handler=lambda arguments: arguments["a"] + factor)):
        assert (copied.name, copied.handler({"a": 1})) == ("add", 4)


def test_a_tool_that_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    @tool
    def guarded(x: int) -> int:
        with lock:
            return x

    @tool
    def forever(x: int) -> int:
        return forever(x)

    for made, fault in [
        (guarded, r"the tool 'guarded' cannot be pickled: cannot pickle '_thread.lock'.*; leave it out"),
        (tool(name="add", handler=lambda _: lock), r"the handler of the tool 'add' cannot be pickled: .*lock"),
        (forever, "the tool 'forever' cannot be pickled: it refers to itself; define it in a module"),
    ]:
        for dumps in DUMPS:
            for travelling in (made, Engine(tools=[made]), rxllm.request("Hi", tools=[made])):
                with pytest.raises(pickle.PicklingError, match=fault):
                    dumps(travelling)


def test_without_cloudpickle_the_error_names_the_tool_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "_cloudpickle", lambda: None)
    for made, what in [
        (tool(approval=True)(shout), "the tool 'shout'"),
        (Tool("add", handler=lambda _: 1), "the handler of the tool 'add'"),
        (Engine(operators=[ops.tap(lambda _: None)]), r"operators\[0\]"),
    ]:
        with pytest.raises(pickle.PicklingError, match=rf"{what} cannot be pickled.*pip install 'rxllm\[cluster\]'"):
            pickle.dumps(made)


_SCRIPT = """
import pickle, sys
from rxllm import Engine, Fake, tool

@tool
def triple(x: int) -> int:
    return 3 * x

sys.stdout.buffer.write(pickle.dumps(Engine(Fake("Hi"), tools=[triple])))
"""


@pytest.mark.judges
def test_a_tool_of_a_script_or_notebook_travels_by_value() -> None:
    data = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, check=True, timeout=60).stdout
    engine = pickle.loads(data)
    assert engine.tools[0](4) == 12
    assert json.dumps(engine.tools[0].schema)


class Signing(rxllm.OpenAIChat):
    """A subclass with secrets of its own."""

    def __init__(self, secret_access_key: str, **options: Any) -> None:
        super().__init__(**options)
        self.secret_access_key = secret_access_key
        self._session_token = "token-0123456789"
        self.region = "eu-west-1"


def test_a_subclass_s_own_secrets_are_not_in_the_pickle_of_its_engine() -> None:
    engine = rxllm.Engine(Signing("secret-0123456789", base_url="http://localhost:1"), model="m")
    data = pickle.dumps(engine)
    assert b"0123456789" not in data
    restored = pickle.loads(data).adapter
    assert (restored.region, restored.secret_access_key, restored._session_token) == ("eu-west-1", None, None)
    assert copy.copy(engine.adapter).secret_access_key == "secret-0123456789"

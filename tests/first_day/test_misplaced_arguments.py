"""Arguments that people pass to an adapter, an engine or a Fake as other libraries take them: the error says what to
write."""

from __future__ import annotations

import pickle
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import (
    Anthropic,
    Engine,
    EngineError,
    Fake,
    Gemini,
    Ollama,
    OpenAIChat,
    OpenAIResponses,
    ValidationError,
    testing,
)
from rxllm import operators as ops
from tests.waiting import wait_until

ADAPTERS: list[Any] = [
    OpenAIChat,
    OpenAIResponses,
    Anthropic,
    Gemini,
    Ollama,
    rxllm.images.OpenAIImages,
    rxllm.images.GeminiImages,
]


def fault(make: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(EngineError) as caught:
        make(*args, **options)
    assert caught.value.reason == "unknown_option"
    assert "__init__" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_model_belongs_to_the_engine(adapter: Any) -> None:
    name = adapter.__name__
    expected = f"{name} has no option 'model'; pass the model to the engine, as in Engine({name}(...), model=\"...\")"
    assert fault(adapter, model="m", base_url="http://x.example").startswith(expected)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_address_is_passed_by_keyword_and_what_was_passed_may_be_a_key(adapter: Any) -> None:
    message = fault(adapter, "sk-secret-or-address")
    assert message == f"{adapter.__name__} takes its options by keyword: api_key, base_url, client, headers, timeout"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("base_ur", " (did you mean 'base_url'?)"),
        ("url", "; write base_url=..."),
        ("api_base", "; write base_url=..."),
        ("http_client", "; write client=..."),
        ("default_headers", "; write headers={...}"),
        ("max_retries", '; write Engine(OpenAIChat(...), retry={"max_attempts": 3})'),
        ("temperature", '; pass it to the call or, for all calls, to the engine: params={"temperature": ...}'),
        ("organization", "; it takes api_key, base_url, client, headers, timeout"),
    ],
)
def test_an_option_that_an_adapter_does_not_have(name: str, remedy: str) -> None:
    assert fault(OpenAIChat, **{name: 1}).startswith(f"OpenAIChat has no option {name!r}{remedy}")


def test_the_local_model_has_a_name_and_no_address() -> None:
    message = fault(rxllm.Local, "small.gguf", base_url="http://x.example")
    assert message == "Local has no option 'base_url'; it takes model, n_ctx, client, headers, timeout"


def test_an_engine_says_where_things_belong() -> None:
    assert fault(Engine, OpenAIChat(), temperature=0) == (
        "Engine has no option 'temperature'; if it is a call option, write params={'temperature': 0}"
    )
    for name in ("base_url", "api_key", "headers", "timeout", "client"):
        for adapter in (OpenAIChat(), Engine("openai:gpt-5")):
            message = fault(Engine, adapter, **{name: "secret"})
            assert f'Engine.from_model("openai:gpt-5", {name}=...)' in message
            assert "secret" not in message
    assert "(did you mean 'system'?)" in fault(Engine, Fake("x"), instructions="Be brief.")
    assert "(did you mean 'tools'?)" in fault(Engine, Fake("x"), tool=[])
    assert "params={'options': ...}" in fault(Engine, Fake("x"), options={"a": 1})
    assert "has no option 'temprature'" in fault(replace, Engine(Fake("x")), temprature=0)
    assert "secret" not in fault(Engine, "openai:gpt-5", openai_api_key="secret")


def test_arguments_that_fit_are_taken_as_before() -> None:
    assert [*signature(OpenAIChat).parameters] == ["api_key", "base_url", "client", "headers", "timeout"]
    assert [*signature(Engine).parameters][:3] == ["adapter", "model", "tools"]
    engine = Engine(OpenAIChat(base_url="http://x.example"), model="m")
    assert pickle.loads(pickle.dumps(engine)).model == replace(engine).model == "m"


def test_an_error_of_an_adapter_s_own_is_not_changed() -> None:
    class Mine(OpenAIChat):
        def _environment_url(self) -> str | None:
            raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        Mine()


def test_streams_are_merged_by_keyword_as_in_dict() -> None:
    streams = {name: rxllm.generate(Fake(name.upper()), "Hi") for name in ("a", "b")}
    for merged in (rxllm.merge_labelled(**streams), rxllm.merge_labelled({"a": streams["a"]}, b=streams["b"])):
        assert sorted((item.label, item.item.output_text) for item in merged) == [("a", "A"), ("b", "B")]  # type: ignore[union-attr]
    for wrong in ({}, None, [streams["a"]]):
        with pytest.raises(ValidationError, match="streams must be a non-empty mapping"):
            rxllm.merge_labelled(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="must be an Observable"):
        rxllm.merge_labelled(a=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [rxllm.Timeouts(first=3), 0, -1, "3", True])
def test_the_timeout_of_an_adapter_is_a_number(timeout: Any) -> None:
    with pytest.raises(ValidationError, match=r"timeout must be a positive number of seconds.*params={'timeout'"):
        rxllm.OpenAIChat(api_key="k", timeout=timeout)
    assert rxllm.OpenAIChat(api_key="k", timeout=2.5).timeout == 2.5


def test_what_the_advice_writes_runs(tmp_path: Path) -> None:
    limited = Engine(Fake("Hi"), params={"timeout": rxllm.Timeouts(first=10)})
    assert rxllm.generate(limited, "Hi").run().output_text == "Hi"
    model = Fake("Hi")
    for _ in range(2):
        cassette = testing.Cassette(tmp_path / "answers.jsonl", model)
        assert rxllm.generate(cassette, "Hi").run().output_text == "Hi"
    assert len(model.requests) == 1


def test_a_share_without_a_grace_is_cancelled_with_its_last_watcher() -> None:
    ended: list[str] = []
    source = rxllm.stream_generate(Fake(["Hel", ("delay", 100), "lo"]), "Hi").finally_action(lambda: ended.append("x"))

    def watch(shared: Any) -> None:
        first, second = (iter(shared) for _ in range(2))
        next(first)
        next(second)
        first.close()
        assert not ended
        second.close()

    watch(source.pipe(ops.share_folded()))
    wait_until(lambda: ended == ["x"])

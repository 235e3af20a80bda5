"""The mistakes that everyone makes once: each is answered with what to write."""

from __future__ import annotations

import asyncio
import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

import rxllm
from rxllm import Engine, EngineError, Fake, MessageStarted, TextDelta
from tests.programs import python

STARTED, DELTA = MessageStarted(rxllm.assistant("")), TextDelta("Hi")
ENGINE = Engine(Fake("Hi"))


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    yield
    rxllm.keys.clear()


@pytest.mark.parametrize(
    ("value", "name", "remedy"),
    [
        (
            STARTED,
            "choices",
            "; write event.delta if the event is a TextDelta; to receive only the text, use .pipe(ops.text())",
        ),
        (
            DELTA,
            "choices",
            "; write event.delta if the event is a TextDelta; to receive only the text, use .pipe(ops.text())",
        ),
        (
            STARTED,
            "delta",
            "; write isinstance(event, rxllm.TextDelta) to check the event first; to receive only the text, "
            "use .pipe(ops.text())",
        ),
        (DELTA, "detla", " (did you mean 'delta'?)"),
        (DELTA, "wholly_different", ""),
        (ENGINE, "generate", "; write rxllm.generate(engine, request)"),
        (ENGINE, "chat", "; write rxllm.chat(engine, thread)"),
        (ENGINE, "stream", "; write rxllm.stream(engine, thread), or rxllm.stream_generate(engine, request)"),
        (ENGINE, "run", "; write rxllm.generate(engine, request).run()"),
        (ENGINE, "with_tool", " (did you mean 'with_tools'?)"),
    ],
)
def test_a_name_that_is_not_there_is_answered(value: Any, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(value, name)
    assert str(caught.value) == f"{type(value).__name__!r} object has no attribute {name!r}{remedy}"
    assert name not in dir(value)
    assert not hasattr(value, name)


@pytest.mark.parametrize("value", [STARTED, DELTA])
def test_an_event_is_copied_and_pickled_as_before(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == copy.deepcopy(value) == value


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("AuthenticationError", "rxllm.AdapterError, and check whether error.reason is 'authentication_failed'"),
        ("RateLimitError", "rxllm.AdapterError, and check whether error.reason is 'rate_limited'"),
        ("api_key", "rxllm.keys.put('openai', ...)"),
    ],
)
def test_the_names_of_other_libraries_errors_and_keys(name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute") as caught:
        getattr(rxllm, name)
    assert f"; write {remedy}" in str(caught.value)


def test_a_key_is_not_assigned_to_the_module() -> None:
    module: Any = rxllm
    with pytest.raises(AttributeError, match=r"write rxllm\.keys\.put\('openai', \.\.\.\)"):
        module.api_key = "sk-secret"
    assert not hasattr(rxllm, "api_key")


@pytest.mark.judges
def test_the_module_is_patched_and_pickled_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rxllm, "generate", 3)
    assert rxllm.generate == 3
    monkeypatch.undo()
    assert cloudpickle.loads(cloudpickle.dumps(rxllm)) is rxllm
    ask = cloudpickle.loads(cloudpickle.dumps(lambda: rxllm.generate(Fake("Hi"), "Hello").run().output_text))
    assert ask() == "Hi"
    ran = python("-c", "import importlib, rxllm; print(importlib.reload(rxllm).generate.__name__)")
    assert ran.stdout.strip() == "generate", ran.stderr


def test_a_key_for_a_provider_that_is_nearly_one_is_kept_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"there is no provider 'opnai' \(did you mean 'openai'\?\)") as caught:
        rxllm.keys.put("opnai", "sk-secret")
    assert caught[0].filename == __file__
    assert "sk-secret" not in str(caught[0].message)
    assert rxllm.keys.get("opnai") == "sk-secret"


@pytest.mark.parametrize("provider", ["openai", "mistral", "acme", "zzz"])
def test_a_known_provider_and_one_of_ones_own_bring_no_warning(provider: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rxllm.keys.put(provider, "sk-secret")


@pytest.mark.parametrize("engine", [Engine(Fake("x"), params={"temprature": 0}), ENGINE.with_params(temprature=0)])
def test_a_misspelt_option_of_an_engine_is_answered_at_the_call(engine: Engine) -> None:
    with pytest.raises(EngineError, match=r"no option 'temprature' \(did you mean 'temperature'\?\)"):
        rxllm.generate(engine, "Hi")


@pytest.mark.parametrize("function", [rxllm.generate, rxllm.stream_generate, rxllm.chat, rxllm.stream, rxllm.step])
def test_a_forgotten_engine(function: Any) -> None:
    with pytest.raises(TypeError, match=r"missing 1 required positional argument") as caught:
        function("Hi")
    name = "request" if "generate" in function.__name__ else "thread"
    call = f"{function.__name__}(engine, {name}, ...)"
    remedy = f"write {call}, with an engine, such as 'openai:gpt-5', as the first argument"
    assert str(caught.value).endswith(remedy)


def test_a_picture_as_the_third_argument() -> None:
    generate: Any = rxllm.generate
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given") as caught:
        generate(Fake("x"), "What is this?", "photo.png")
    assert str(caught.value).endswith("put it into the message: rxllm.user(text, path)")


def test_a_stream_that_is_awaited_and_then_iterated_makes_two_calls() -> None:
    fake = Fake(scripts=[["first"], ["second"]])

    async def main() -> list[str]:
        stream = rxllm.stream_generate(fake, "Hi")
        await stream
        return [event.delta async for event in stream if isinstance(event, TextDelta)]

    assert asyncio.run(main()) == ["second"]
    assert len(fake.requests) == 2


def test_an_awaited_stream_is_its_last_item_which_has_no_items() -> None:
    async def main() -> None:
        last: Any = await rxllm.stream_generate(Fake("Hi"), "Hi")
        async for _ in last:
            pass

    with pytest.raises(TypeError, match="'async for' requires an object with __aiter__ method, got MessageCompleted"):
        asyncio.run(main())

"""The catalogue of models: what is put there, found there and chosen from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import EngineError, Usage, ValidationError, models, serializer
from rxllm.values import ModelInfo


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    models.clear()
    yield
    models.clear()


def test_entries_are_put_got_and_forgotten() -> None:
    first, second = ModelInfo("a:one"), ModelInfo("b:two", vision=True)
    models.put(first, second)
    assert (models.get("a:one"), models.get("b:two"), models.get("a:two")) == (first, second, None)
    models.put(ModelInfo("a:one", tools=True))
    assert models.entries() == [ModelInfo("a:one", tools=True), second]
    models.delete("a:one")
    models.delete("never there")
    assert models.entries() == [second]


def test_a_model_may_have_colons_and_a_provider_two_names() -> None:
    models.put(ModelInfo("ollama:qwen3:0.6b", tools=True), ModelInfo("gemini:flash", vision=True))
    assert models.find("ollama", "qwen3:0.6b") == ModelInfo("ollama:qwen3:0.6b", tools=True)
    assert models.find("google", "flash") == models.get("gemini:flash") == ModelInfo("gemini:flash", vision=True)


def test_an_entry_is_a_value() -> None:
    info = ModelInfo("a:one", tools=True, context_tokens=8192, input_price=0.1, metadata={"since": 2025})
    assert serializer.from_json(serializer.to_json(info), ModelInfo) == info
    assert (info.provider, repr(ModelInfo("a:one", tools=False))) == ("a", "ModelInfo(name='a:one', tools=False)")


@pytest.mark.parametrize("wrong", ["a:one", None, {"name": "a:one"}])
def test_what_is_no_entry_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="must be a ModelInfo"):
        models.put(wrong)
    assert models.entries() == []


def test_a_model_is_chosen_by_what_it_can_do() -> None:
    models.put(
        ModelInfo("a:one", tools=True),
        ModelInfo("b:two", tools=True, vision=True),
        ModelInfo("google:three", vision=True, tools=False),
    )
    assert models.select().name == "a:one"
    assert models.select(require=["vision"]).name == "b:two"
    assert models.select(require=["tools"], prefer=["b"]).name == "b:two"
    assert models.select(require=["tools"], prefer=["gemini", "a"]).name == "a:one"
    assert models.select(prefer=["gemini"]).name == "google:three"


def test_where_none_can_that_is_said() -> None:
    with pytest.raises(EngineError, match=r"\(models: 0; required: any model\)") as caught:
        models.select()
    assert caught.value.reason == "missing_model"
    models.put(ModelInfo("a:one", tools=True))
    with pytest.raises(EngineError, match=r"no suitable model \(models: 1; required: vision\)"):
        models.select(require=["vision"])
    with pytest.raises(ValidationError, match="'speed' is not a capability; choose from tools, json_schema"):
        models.select(require=["speed"])


@given(st.lists(st.builds(ModelInfo, st.sampled_from(["a:x", "b:x", "c:x"]), st.sampled_from([True, False, None]))))
def test_a_chosen_model_has_what_is_required(entries: list[ModelInfo]) -> None:
    models.clear()
    models.put(*entries)
    able = [each for each in models.entries() if each.tools is True]
    if able:
        assert models.select(require=["tools"], prefer=["c", "b"]) in able
    else:
        with pytest.raises(EngineError):
            models.select(require=["tools"])


HAIKU, USAGE = "anthropic:claude-3-haiku-20240307", Usage(1_000_000, 100_000)


def test_a_usage_is_priced_by_its_entry_or_else_by_the_price_list() -> None:
    assert models.priced(HAIKU, USAGE).total_cost == 0.375
    assert models.priced("anthropic:mine", USAGE) == USAGE
    assert models.priced("anthropic:mine", USAGE, response_model="claude-3-haiku-20240307").total_cost == 0.375
    models.put(ModelInfo(HAIKU, tools=True), ModelInfo("anthropic:mine", input_price=1.0, output_price=10.0))
    assert models.priced(HAIKU, USAGE).total_cost == 0.375
    assert models.priced("anthropic:mine", USAGE).total_cost == 2.0


def test_costs_that_are_stated_stay() -> None:
    stated = Usage(1_000_000, 100_000, total_cost=9.0)
    assert models.priced(HAIKU, stated).total_cost == 9.0


@pytest.mark.parametrize("usage", [None, {"input_tokens": 3}])
@pytest.mark.parametrize("name", [HAIKU, "nobody:knows"])
def test_what_is_priced_is_a_usage(name: str, usage: Any) -> None:
    with pytest.raises(ValidationError, match=r"usage must be an rxllm[.]Usage"):
        models.priced(name, usage)


@pytest.mark.parametrize("name", ["gpt-4o", ":gpt-4o", "openai:", "", 3])
def test_a_usage_is_priced_for_a_model_with_its_provider(name: Any) -> None:
    with pytest.raises(ValidationError, match="provider:model") as raised:
        models.priced(name, USAGE)
    assert raised.value.reason == "invalid_option"

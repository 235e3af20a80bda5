"""A call without a model: what to write depends on the engine."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import Anthropic, Engine, EngineError, Ollama, OpenAIChat, OpenAIResponses, generate

HERE = "http://127.0.0.1:9/v1"


def fault(engine: Any) -> str:
    with pytest.raises(EngineError) as caught:
        generate(engine, "Hi", api_key="k").run()
    assert caught.value.reason == "missing_model"
    return caught.value.message


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, Anthropic, rxllm.Gemini, Ollama])
def test_an_adapter_with_its_own_address_stays(adapter: Any) -> None:
    remedy = f'write model="..." in the call, or Engine({adapter.__name__}(...), model="...")'
    assert fault(adapter(base_url=HERE)).endswith(remedy)


@pytest.mark.parametrize("engine", ["openai", OpenAIChat(), "groq", Engine.from_model("groq", base_url=HERE)])
def test_a_provider_is_written_with_its_model(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    name = "groq" if engine == "groq" or isinstance(engine, Engine) else "openai"
    assert fault(engine).endswith(f'write model="...", or "{name}:..." as the engine')

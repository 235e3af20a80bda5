"""``model="provider:model"``: the name of an engine in the place of a model's name."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import Anthropic, Engine, OpenAIChat, ValidationError
from rxllm.images import OpenAIImages
from rxllm.testing.loopback import Loopback, Reply, chat


@pytest.mark.parametrize(
    ("engine", "model"),
    [
        ("openai:gpt-5", "anthropic:claude-opus-4-5"),
        (OpenAIChat(), "openai:gpt-5"),
        (Anthropic(), "google:gemini-2.5-pro"),
        ("groq:llama-3.3-70b", "mistral:mistral-large-latest"),
    ],
)
def test_the_name_of_another_engine_is_not_sent_as_a_model(engine: Any, model: str) -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(engine, "Hi", model=model, api_key="k").run()
    fault = f"{model!r} also names a provider; pass it as the engine: generate({model!r}, ...)"
    assert (caught.value.reason, caught.value.errors) == ("invalid_option", ((("model",), fault),))


def test_an_image_model_too() -> None:
    with pytest.raises(ValidationError, match="also names a provider"):
        rxllm.generate_image(Engine(image_adapter=OpenAIImages()), "a dot", model="openai:gpt-image-1").run()


@pytest.mark.sockets
@pytest.mark.parametrize("model", ["llama3:8b", "mistral:7b", "openai:gpt-5"])
def test_another_server_names_its_models_as_it_likes(model: str) -> None:
    with Loopback(Reply(chat("Hello"))) as server:
        rxllm.generate(OpenAIChat(base_url=server.url), "Hi", model=model).run()
        assert server.requests[0].json["model"] == model


@pytest.mark.parametrize("model", ["ft:gpt-4o-mini:acme::7p4lURel", "gpt-5", "llama3:8b"])
def test_a_name_with_a_colon_is_fine_if_it_begins_with_no_provider(model: str) -> None:
    assert OpenAIChat()._check_model(model) is None  # pyright: ignore[reportPrivateUsage]


def test_ollama_s_models_may_be_called_like_a_provider() -> None:
    assert rxllm.Ollama()._check_model("mistral:7b") is None  # pyright: ignore[reportPrivateUsage]

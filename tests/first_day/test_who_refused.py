"""A refusal says whom it comes from: a program may ask several providers and models."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Anthropic, Engine, OpenAIChat
from rxllm.images import OpenAIImages
from rxllm.testing.loopback import Loopback, Reply

pytestmark = pytest.mark.sockets


def refusal(adapter: Any, status: int, body: Any) -> AdapterError:
    with Loopback(Reply.of_json(body, status)) as server:
        engine = Engine(adapter(base_url=server.url, api_key="sk-private"), model="small")
        with pytest.raises(AdapterError) as caught:
            rxllm.generate(engine, "Hi", retry=False).run()
    assert "sk-private" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("adapter", "status", "body", "message"),
    [
        (OpenAIChat, 500, {}, "HTTP 500 (openai, model small)"),
        (Anthropic, 529, {}, "HTTP 529 (anthropic, model small)"),
        (
            OpenAIChat,
            401,
            {"error": {"message": "Incorrect API key provided: sk-private", "code": "invalid_api_key"}},
            "Incorrect API key provided: [key] (openai, model small)",
        ),
        (OpenAIChat, 429, {"error": {"message": "Too many requests"}}, "Too many requests (openai, model small)"),
    ],
)
def test_the_provider_and_the_model_are_named(adapter: Any, status: int, body: Any, message: str) -> None:
    assert refusal(adapter, status, body).message == message


def test_an_address_where_nothing_is_is_shown() -> None:
    assert "/chat/completions)" in refusal(OpenAIChat, 404, {}).message


def test_an_image_model_is_named_too() -> None:
    with Loopback(Reply.of_json({}, 500)) as server:
        engine = Engine(image_adapter=OpenAIImages(base_url=server.url, api_key="sk-private"))
        with pytest.raises(rxllm.ImageAdapterError, match=r"HTTP 500 \(openai, model painter\)"):
            rxllm.generate_image(engine, "a dot", model="painter", retry=False).run()

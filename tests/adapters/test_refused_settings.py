"""A provider rejects a setting: the error's message suggests what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Anthropic, Engine, OpenAIChat, OpenAIResponses, models
from rxllm.adapters import connect
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import ModelInfo

pytestmark = pytest.mark.sockets


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    models.clear()
    yield
    models.clear()


def error_of(text: str, param: str | None = None) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": text, "param": param}}


def rejection(adapter: Any, model: str, reply: Any, *, status: int = 400, **options: Any) -> tuple[AdapterError, Any]:
    """Return the error, and the body that the server received."""
    with Loopback(Reply.of_json(reply, status)) as server:
        engine = Engine(adapter(base_url=server.url, api_key="k"), model=model)
        with pytest.raises(AdapterError) as caught:
            rxllm.generate(engine, "Hi", retry=False, **options).run()
    return caught.value, server.requests[0].json


COOL = {"temperature": 0.2}


def test_the_setting_is_sent_as_asked_and_the_remedy_is_in_the_message() -> None:
    text = "`temperature` is deprecated for this model."
    error, body = rejection(Anthropic, "claude-opus-5-5", error_of(text), **COOL)
    assert body["temperature"] == 0.2
    assert error.message == (
        f"{text}; as far as rxllm knows, claude-opus-5-5 does not accept this temperature (leave temperature out)"
    )
    assert (error.reason, error.status, error.code) == ("invalid_request", 400, "invalid_request_error")


def test_only_what_the_provider_names_is_suggested_if_it_names_anything() -> None:
    options: dict[str, Any] = {**COOL, "tool_choice": "required", "options": {"tools": [{"name": "a"}]}}
    text = "tool_choice forces tool use is not compatible with this model"
    error, _ = rejection(Anthropic, "claude-opus-5-5", error_of(text), **options)
    assert "tool_choice='auto'" in error.message
    assert "temperature" not in error.message
    error, _ = rejection(Anthropic, "claude-opus-5-5", error_of("Invalid request"), **options)
    assert "tool_choice='auto'" in error.message
    assert "leave temperature out" in error.message


@pytest.mark.parametrize(
    ("adapter", "model", "reply", "options", "remedy"),
    [
        (
            OpenAIResponses,
            "gpt-5.5-2026-04-23",
            error_of("Unsupported parameter: 'temperature' is not supported with this model.", "temperature"),
            COOL,
            "with reasoning_effort='none', it would be accepted",
        ),
        (
            OpenAIChat,
            "gpt-5-mini",
            error_of("Unsupported value: 'reasoning_effort' does not support 'none' with this model."),
            {"reasoning_effort": "none"},
            "use one of minimal, low, medium, high, or leave reasoning_effort out",
        ),
        (
            Anthropic,
            "claude-fable-5-1",
            error_of('"thinking.type.disabled" is not supported for this model.'),
            {"reasoning_effort": "none"},
            "use one of minimal, low, medium, high, xhigh, max",
        ),
        (
            Anthropic,
            "claude-opus-4-7",
            error_of('"thinking.type.enabled" is not supported for this model.'),
            {"options": {"thinking": {"type": "enabled", "budget_tokens": 2000}}},
            "set reasoning_effort instead of a budget",
        ),
        (
            lambda **options: connect("openrouter", **options),
            "openai/gpt-5",
            {"error": {"code": 400, "message": "Provider returned error"}},
            {"top_p": 0.5},
            "leave top_p out",
        ),
    ],
)
def test_remedies(adapter: Any, model: str, reply: Any, options: dict[str, Any], remedy: str) -> None:
    assert remedy in rejection(adapter, model, reply, **options)[0].message


@pytest.mark.parametrize(
    ("model", "status", "text", "options"),
    [
        ("claude-opus-5-5", 400, "max_tokens: too high", {}),
        ("claude-opus-5-5", 400, "prompt is too long: 210000 tokens > 200000 maximum", COOL),
        ("claude-opus-5-5", 529, "Overloaded", COOL),
        ("unknown", 400, "temperature: no", COOL),
    ],
)
def test_other_errors_stay_as_they_are(model: str, status: int, text: str, options: dict[str, Any]) -> None:
    assert (
        "as far as rxllm knows" not in rejection(Anthropic, model, error_of(text), status=status, **options)[0].message
    )


def test_an_entry_of_the_program_has_the_last_word() -> None:
    models.put(ModelInfo("anthropic:claude-opus-5-5", sampling=True))
    text = "`temperature` is deprecated for this model."
    assert rejection(Anthropic, "claude-opus-5-5", error_of(text), **COOL)[0].message == text

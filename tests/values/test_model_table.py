"""What models accept: the rows of the table, the names that find them, and what is suggested instead."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm.values import ModelInfo, Request, user
from rxllm.values.model_table import EFFORTS, Takes, base_name, takes

FORCED = {"tool_choice": "required"}
COOL = {"temperature": 0.2}


def refused(model: str, **fields: Any) -> set[str]:
    known = takes(model)
    return set() if known is None else set(known.refused(Request((user("Hi"),), model, **fields)))


@pytest.mark.parametrize(
    ("models", "no_effort", "sampling", "forced"),
    [
        ("claude-opus-4-7 claude-opus-4-8 claude-sonnet-5", "", False, True),
        ("claude-opus-5 claude-haiku-5-5", "", False, True),
        ("claude-sonnet-5-5", "", False, False),
        ("claude-opus-5-5 claude-fable-5-1 claude-fable-5-2 claude-mythos-5-1 claude-mythos-5-2", "none", False, False),
        ("claude-fable-5 claude-mythos-5", "none", False, True),
        ("claude-opus-4-6 claude-sonnet-4-6", "xhigh", True, True),
        ("claude-sonnet-4-5 claude-3-7-sonnet-20250219 claude-opus-4", "", True, True),
        ("o3 o4-mini", "none minimal xhigh max", False, True),
        ("gpt-5 gpt-5-mini", "none xhigh max", False, True),
        ("gpt-5.1", "minimal xhigh max", True, True),
        ("gpt-5.5 gpt-5.6-sol", "minimal", False, True),
        ("gpt-6-astra", "none minimal", False, True),
        ("gpt-5-chat-latest gpt-4o gpt-4.1-mini claude-3-5-haiku-20241022", " ".join(EFFORTS), True, True),
        ("claude-opus-7 gpt-7 llama-3 gpt-6-luna gemini-3-flash my-deployment", "", True, True),
    ],
)
def test_rows(models: str, no_effort: str, sampling: bool, forced: bool) -> None:
    for model in models.split():
        missing = {effort for effort in EFFORTS if refused(model, reasoning_effort=effort)}
        assert missing >= set(no_effort.split()), model
        assert (no_effort != "") == bool(missing), model
        assert bool(refused(model, **COOL)) is not sampling, model
        assert bool(refused(model, options={"top_k": 4})) is not sampling, model
        assert bool(refused(model, **FORCED)) is not forced, model


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-6", "gpt-5.1", "gpt-5.4-mini"])
def test_some_models_accept_sampling_only_while_they_do_not_think(model: str) -> None:
    assert refused(model, **COOL, reasoning_effort="low") == {"temperature"}
    assert refused(model, **COOL, reasoning_effort="none") == set()


def test_a_model_that_thinks_by_default_accepts_it_once_thinking_is_off() -> None:
    assert refused("gpt-5.5", top_p=0.5) == {"top_p"}
    assert refused("gpt-5.5", top_p=0.5, reasoning_effort="none") == set()
    known = takes("gpt-5.5")
    assert known is not None
    assert "reasoning_effort='none'" in known.refused(Request(model="gpt-5.5", top_p=0.5))["top_p"]
    known = takes("claude-opus-5-5")
    assert known is not None
    assert "none" not in known.refused(Request(model="claude-opus-5-5", top_p=0.5))["top_p"]


@pytest.mark.parametrize(
    ("model", "thinking", "is_refused"),
    [
        ("claude-opus-4-6", {"type": "enabled", "budget_tokens": 2000}, False),
        ("claude-opus-4-7", {"type": "enabled", "budget_tokens": 2000}, True),
        ("claude-opus-5", {"type": "disabled"}, False),
        ("claude-opus-5", {"type": "adaptive"}, False),
        ("claude-sonnet-5-5", {"type": "disabled"}, True),
        ("claude-sonnet-5-5", {"type": "between_tools"}, False),
        ("claude-opus-5-5", {"type": "between_tools"}, True),
        ("claude-fable-5", {"type": "disabled"}, True),
        ("another", {"type": "disabled"}, False),
    ],
)
def test_forms_of_thinking(model: str, thinking: Any, is_refused: bool) -> None:
    assert refused(model, options={"thinking": thinking}) == ({"thinking"} if is_refused else set())


@pytest.mark.parametrize(
    ("choice", "is_refused"),
    [
        ("auto", False),
        ("none", False),
        ("look_up", True),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "look_up"}, True),
        ({"type": "function", "function": {"name": "look_up"}}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, False),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, False),
    ],
)
def test_forced_choices(choice: Any, is_refused: bool) -> None:
    assert bool(refused("claude-sonnet-5-5", tool_choice=choice)) is is_refused
    assert bool(refused("claude-sonnet-5-5", options={"tool_choice": choice})) is is_refused


@pytest.mark.parametrize(
    "spelling",
    [
        "claude-sonnet-5-5",
        "claude-sonnet-5-5-20260901",
        "claude-sonnet-5-5-latest",
        "claude-sonnet-5-5@20260901",
        "claude-sonnet-5-5@default",
        "claude-sonnet-5-5[1m]",
        "Claude-Sonnet-5.5",
        "anthropic/claude-sonnet-5.5",
        "anthropic/claude-sonnet-5.5:beta",
        "openrouter/anthropic/claude-sonnet-5.5",
        "anthropic.claude-sonnet-5-5",
        "us.anthropic.claude-sonnet-5-5-20260901-v1:0",
        "global.anthropic.claude-sonnet-5-5-v1:0",
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-5-5-v1:0",
        "publishers/anthropic/models/claude-sonnet-5-5@20260901",
        "databricks-claude-sonnet-5-5",
    ],
)
def test_every_spelling_of_a_name_finds_its_row(spelling: str) -> None:
    assert base_name(spelling) == "claude-sonnet-5-5"
    assert takes(spelling) is takes("claude-sonnet-5-5") is not None


def test_a_longer_name_is_another_model() -> None:
    assert takes("claude-opus-5-5") != takes("claude-opus-5")
    assert takes("claude-opus-4-20250514") == takes("claude-opus-4-1") != takes("claude-opus-4-7")
    assert [takes(name) for name in ("", None, "claude-opus-5-51", "o", "claude")] == [None] * 5


def test_an_entry_overrides_the_table() -> None:
    known = takes("claude-opus-5-5")
    assert known is not None
    asked_for: dict[str, Any] = {**COOL, **FORCED, "reasoning_effort": "none"}
    request = Request(model="claude-opus-5-5", **asked_for)
    assert set(known.refused(request)) == set(asked_for)
    entry = ModelInfo("anthropic:claude-opus-5-5", sampling=True, forced_tool_choice=True, reasoning_efforts=("none",))
    assert known.overridden(entry).refused(request) == {}
    assert known.overridden(ModelInfo("anthropic:claude-opus-5-5", tools=True)) == known
    entry = ModelInfo("acme:own", sampling=False, forced_tool_choice=False, reasoning_efforts=())
    assert set(Takes().overridden(entry).refused(request)) == set(asked_for)


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("gpt-5", {"reasoning": {"effort": "none"}}, {"reasoning_effort"}),
        ("gpt-5", {"reasoning_effort": "none"}, {"reasoning_effort"}),
        ("gpt-5.5", {"reasoning": {"effort": "none"}, "temperature": 0.2}, set()),
        ("gpt-5.1", {"reasoning": {"effort": "low"}, "temperature": 0.2}, {"temperature"}),
        ("claude-opus-4-6", {"output_config": {"effort": "xhigh"}}, {"reasoning_effort"}),
        (
            "claude-sonnet-4-5",
            {"thinking": {"type": "enabled"}, "top_k": 3, "tool_choice": "x"},
            {"top_k", "tool_choice"},
        ),
        ("claude-sonnet-4-5", {"thinking": {"type": "disabled"}, "top_k": 3, "tool_choice": "x"}, set()),
    ],
)
def test_options_count_like_fields(model: str, options: Any, expected: set[str]) -> None:
    assert refused(model, options=options) == expected

"""What a model's entry refuses."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm import ValidationError, serializer
from rxllm.values import ModelInfo


@pytest.mark.parametrize(
    ("name", "held"),
    [
        *[("name", held) for held in (3, None, "", ":small", "openai:")],
        *[("tools", held) for held in ("no", 1, 0)],
        ("tools_with_schema", "yes"),
        *[("context_tokens", held) for held in (0, -1, 1.5, True, "8k")],
        ("max_output_tokens", 0),
        *[("input_price", held) for held in (-1, "x", True, float("nan"), float("inf"))],
        ("cache_write_input_price", -0.1),
        *[("metadata", held) for held in (None, [("a", 1)])],
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name: str, held: Any) -> None:
    with pytest.raises(ValidationError, match=name) as caught:
        ModelInfo(**{"name": "a:one", name: held})
    assert caught.value.reason == "invalid_option"
    assert [path for path, _ in caught.value.errors] == [(name,)]
    assert repr(held) in caught.value.message


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        ModelInfo("", tools="no", input_price=-1)  # type: ignore[arg-type]
    assert [path for path, _ in caught.value.errors] == [("name",), ("tools",), ("input_price",)]


@pytest.mark.parametrize(
    "info",
    [
        ModelInfo("fake"),
        ModelInfo("ollama:qwen3:0.6b", tools=False, context_tokens=1, input_price=0, output_price=0.0),
        ModelInfo("a:one", input_price=2, metadata={"since": (2025,)}),
    ],
)
def test_what_makes_sense_is_exact_in_json(info: ModelInfo) -> None:
    again = serializer.from_json(serializer.to_json(info))
    assert again == info
    assert repr(again) == repr(info)


def test_json_that_makes_no_sense_is_refused_too() -> None:
    with pytest.raises(ValidationError, match="input_price"):
        serializer.from_json('{"$": "ModelInfo", "name": "a:one", "input_price": -1.0}')

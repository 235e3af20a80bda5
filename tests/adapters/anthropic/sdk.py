"""Requests to Anthropic, which the types of its SDK check."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rxllm.adapters.anthropic import Anthropic
from rxllm.values import (
    Call,
    Message,
    Request,
)
from tests import tiers
from tests.adapters.sdk import assert_fits

MODEL = "claude-sonnet-4-5"


def built(request: Request, **options: Any) -> Any:
    return Anthropic(api_key="k", **options).build(request, Call())


def body(request: Request, base_url: str | None = None) -> dict[str, Any]:
    said = msgspec.json.decode(built(request, base_url=base_url).content)
    check(said)
    return said


def check(said: dict[str, Any]) -> None:
    """The SDK's types are those of a later version of the API, which has no temperature."""
    if tiers.leaves_out_judges:
        return
    params = pytest.importorskip("anthropic.types.beta.message_create_params")
    kind, base = params.MessageCreateParamsStreaming, params.MessageCreateParamsBase
    assert said.keys() <= {*kind.__annotations__, *base.__annotations__, "temperature"}
    assert_fits(params.__name__, kind.__name__, said)


def asked(*messages: Message, model: str = MODEL, **fields: Any) -> dict[str, Any]:
    return body(Request(messages, model, **fields))

"""Requests to Anthropic, which the types of its SDK check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

import msgspec
import pytest

from rxllm.adapters.anthropic import Anthropic
from rxllm.values import (
    Call,
    Message,
    Request,
)

pydantic = pytest.importorskip("pydantic")
params = pytest.importorskip("anthropic.types.beta.message_create_params")
MODEL = "claude-sonnet-4-5"


def built(request: Request, **options: Any) -> Any:
    return Anthropic(api_key="k", **options).build(request, Call())


def body(request: Request, base_url: str | None = None) -> dict[str, Any]:
    said = msgspec.json.decode(built(request, base_url=base_url).content)
    check(said)
    return said


def check(said: dict[str, Any]) -> None:
    """The SDK's types are those of a later version of the API, which has no temperature."""
    kind = params.MessageCreateParamsStreaming
    assert said.keys() <= kind.__annotations__.keys() | params.MessageCreateParamsBase.__annotations__.keys() | {
        "temperature"
    }
    consume(types().validate_python(said))


@cache
def types() -> Any:
    return pydantic.TypeAdapter(params.MessageCreateParamsStreaming)


def consume(held: Any) -> None:
    # Pydantic validates an Iterable only as it is read.
    if isinstance(held, Mapping):
        held = list(cast(Mapping[str, Any], held).values())
    if isinstance(held, list | tuple | Iterator) or type(held).__name__ == "ValidatorIterator":
        for each in cast(list[Any], held):
            consume(each)


def asked(*messages: Message, model: str = MODEL, **fields: Any) -> dict[str, Any]:
    return body(Request(messages, model, **fields))

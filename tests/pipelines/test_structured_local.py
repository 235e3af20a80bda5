"""Structured answers of the real model, in this process: skipped where it cannot be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest

import rxllm
from rxllm import EngineError, Local
from rxllm.adapters.local.server import find_weights

pytestmark = pytest.mark.sockets

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")


@dataclass
class City:
    continent: Literal["Africa", "America", "Asia", "Europe"]
    millions: Annotated[int, msgspec.Meta(ge=0, le=9)]


@pytest.fixture(scope="module")
def local() -> Local:
    try:
        find_weights()
    except EngineError as error:
        pytest.skip(str(error))
    return Local()


@pytest.mark.judges
def test_the_grammar_binds_the_answer_to_a_class(local: Local) -> None:
    asked = rxllm.generate(
        local, "Tell me about Paris, the capital of France.", response_format=City, temperature=0.0, max_tokens=60
    )
    city = asked.run().parsed
    assert isinstance(city, City)
    assert 0 <= city.millions <= 9


@pytest.mark.judges
def test_the_grammar_binds_the_answer_to_a_schema(local: Local) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"prime": {"type": "boolean"}},
        "required": ["prime"],
        "additionalProperties": False,
    }
    said = rxllm.json_schema("answer", schema)
    parsed = rxllm.generate(local, "Is 6 prime?", response_format=said, temperature=0.0, max_tokens=40).run().parsed
    assert parsed in ({"prime": True}, {"prime": False})


@pytest.mark.judges
def test_an_answer_that_is_cut_short_does_not_fit(local: Local) -> None:
    with pytest.raises(rxllm.ValidationError) as caught:
        rxllm.generate(local, "Tell me about Paris.", response_format=City, temperature=0.0, max_tokens=4).run()
    assert caught.value.metadata["finish_reason"] == "length"
    assert caught.value.metadata["usage"].output_tokens == 4

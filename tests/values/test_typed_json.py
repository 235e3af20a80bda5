"""Typed results through JSON: the data stays, and the response_format gives the value back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import rxllm
from rxllm import ChatResult, Fake, Response, ValidationError, chat, generate, session, step
from rxllm.durable import open_runs
from rxllm.serializer import from_json, to_json


@dataclass
class City:
    name: str
    founded: date = date(1535, 1, 18)
    twins: list[str] = field(default_factory=list)


class Model(pydantic.BaseModel):
    name: str


class Struct(msgspec.Struct):
    name: str


ANSWER = '{"name": "Lima", "founded": "1535-01-18", "twins": []}'
DATA = {"name": "Lima", "founded": "1535-01-18", "twins": []}


@pytest.mark.parametrize("ask", [generate, step, chat])
def test_json_keeps_the_data_and_the_format_gives_the_value_back(ask: Any) -> None:
    result = ask(Fake(ANSWER), "Where?", response_format=City).run()
    text = to_json(result)
    plain = from_json(text)
    assert (type(plain), plain.parsed, plain.output_text) == (type(result), DATA, ANSWER)
    typed = from_json(text, response_format=City)
    assert (typed, typed.parsed) == (result, City("Lima"))
    assert from_json(text, type(result), response_format=City) == result
    assert to_json(plain) == text


@pytest.mark.parametrize(
    ("kind", "answer"),
    [(Model, '{"name": "Lima"}'), (Struct, '{"name": "Lima"}'), (list[City], f'{{"value": [{ANSWER}]}}')],
)
def test_it_does_so_for_every_kind_of_type(kind: Any, answer: str) -> None:
    result = chat(Fake(answer), "Where?", response_format=kind).run()
    assert result.parsed is not None
    assert from_json(to_json(result), response_format=kind) == result


def test_turns_and_lists_have_their_values_too() -> None:
    turn = session.start(Fake(ANSWER), "Where?", response_format=City).run()
    assert from_json(to_json(turn), response_format=City) == turn
    many = [turn.result, generate(Fake(ANSWER), "Where?", response_format=City).run()]
    assert from_json(to_json(many), response_format=City) == many


def test_another_format_is_an_error_and_what_failed_stays() -> None:
    text = to_json(generate(Fake(ANSWER), "Where?", response_format=City).run())
    with pytest.raises(ValidationError) as caught:
        from_json(text, response_format=list[int])
    assert caught.value.reason == "invalid_output"
    failed = chat(Fake("no city"), "Where?", response_format=City).run()
    assert from_json(to_json(failed), response_format=City) == failed
    called = Response(output_text="x", tool_calls=(rxllm.ToolCall("c", "f"),), finish_reason="tool_calls")
    assert from_json(to_json(called), response_format=City) == called


def test_a_durable_run_gives_the_value_back(tmp_path: Path) -> None:
    runs = open_runs(
        tmp_path / "runs.db", {"ask": lambda question: rxllm.stream(Fake(ANSWER), question, response_format=City)}
    )
    id = runs.start("ask", "Where?").run()
    assert runs.result(id).run().parsed is None
    result = runs.result(id, response_format=City).run()
    assert isinstance(result, ChatResult)
    assert result.parsed == City("Lima")

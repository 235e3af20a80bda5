"""Arguments that stand for a stream or an operator are checked where they are passed."""

from __future__ import annotations

from typing import Any

import pytest
import reactivex
from reactivex import operators as rx

import rxllm
from rxllm import Engine, EngineError, Fake, ValidationError
from rxllm import operators as ops

EVENTS = rxllm.stream_generate(Fake("Hi"), "Hello")


@pytest.mark.parametrize("function", [rxllm.run, rxllm.to_iter, rxllm.to_async_iter])
@pytest.mark.parametrize("given", [3, None, "a text", [1], rxllm.generate])
def test_what_is_no_stream(function: Any, given: Any) -> None:
    with pytest.raises(ValidationError, match=f"{function.__name__}: source must be an Observable, such as") as caught:
        function(given)
    assert caught.value.reason == "invalid_option"


@pytest.mark.parametrize(
    "given", [ops.text, ops.tap, ops.to_response, ops.run_tools, ops.filter_deltas, rx.map, rx.last]
)
def test_an_operator_without_its_brackets(given: Any) -> None:
    fake = Fake("never asked")
    with pytest.raises(ValidationError) as caught:
        rxllm.stream_generate(fake, "Hi").pipe(ops.tap(print), given)
    ((path, fault),) = caught.value.errors
    assert path == ("operators", 1)
    name = given.__name__
    assert fault == f"{name} is a function that makes an operator: write {name}(...), with parentheses"
    assert fake.requests == []
    with pytest.raises(EngineError, match="with parentheses") as refused:
        Engine(fake, operators=(given,))
    assert refused.value.reason == "invalid_engine"


@pytest.mark.parametrize("given", [3, None, "text", Fake("Hi")])
def test_what_is_no_operator(given: Any) -> None:
    with pytest.raises(ValidationError, match="must be a function that takes an Observable and returns one, not"):
        EVENTS.pipe(given)
    with pytest.raises(EngineError, match=r"operators\[0\]: must be a function"):
        Engine(Fake("Hi"), operators=(given,))
    with pytest.raises(EngineError, match="must be a function"):
        Engine(Fake("Hi")).with_operators(given)


def test_every_public_operator_is_refused_without_brackets_and_taken_with_them() -> None:
    for name in ops.__all__:
        with pytest.raises(ValidationError, match="parentheses"):
            EVENTS.pipe(getattr(ops, name))
    made: list[Any] = [ops.text(), rx.map(str), rx.last(), lambda source: source, rxllm.Stream.of, list]
    for operator in made[:-1]:
        assert isinstance(EVENTS.pipe(operator), reactivex.Observable)
    assert EVENTS.pipe(ops.text(), made[-1]) == ["Hi"]

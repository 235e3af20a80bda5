"""The Stream: an Observable whose pipes and methods return Streams."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from pathlib import Path

import pytest
import reactivex
from reactivex import Observable
from reactivex import operators as rx
from reactivex.scheduler import ImmediateScheduler

import rxllm
from rxllm import Fake, Stream, ToolCall, ValidationError, tool
from rxllm.runtime import _stream_methods

ARGUMENTS = {"count": 2, "index": 0, "key": 0, "duetime": 1.0, "timespan": 1.0, "scheduler": ImmediateScheduler()}


def methods_typed_as_streams() -> list[str]:
    tree = ast.parse(Path(_stream_methods.__file__).read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return sorted({node.name for each in classes for node in ast.walk(each) if isinstance(node, ast.FunctionDef)})


def test_a_subscription_is_whole_before_its_first_event_comes():
    """Else `take(1)` would dispose what it has not been given yet, and a second request would go out."""
    slow = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            fake = Fake(ToolCall("c0", "nothing", {}), "done")
            rxllm.stream(fake, "Hi", tools=[tool(name="nothing", handler=lambda arguments: "")]).take(1).run()
            assert len(fake.requests) == 1
    finally:
        sys.setswitchinterval(slow)


def test_of_wraps_an_observable_once() -> None:
    stream = Stream.of(reactivex.of(1, 2))
    assert isinstance(stream, Stream)
    assert Stream.of(stream) is stream


def test_pipes_and_methods_return_streams() -> None:
    stream = Stream.of(reactivex.of(1, 2, 3))
    for result in (
        stream.pipe(rx.map(str)),
        stream.pipe(),
        stream.take(1),
        stream.map(str).filter(bool),
        stream.materialize().dematerialize(),
        stream.pluck("key"),
    ):
        assert isinstance(result, Stream)
    assert stream.pipe(rx.map(str), rx.last()).run() == "3"


@pytest.mark.parametrize("name", methods_typed_as_streams())
def test_a_method_that_is_typed_as_a_stream_returns_one(name: str) -> None:
    stream = Stream.of(reactivex.of(1, 2, 3))
    parameters = inspect.signature(getattr(Observable, name)).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    result = getattr(stream, name)(*(ARGUMENTS.get(parameter, stream) for parameter in required))
    assert isinstance(result, Stream)


def test_streams_are_added_and_sliced() -> None:
    stream = both = Stream.of(reactivex.of(1, 2, 3))
    both += stream
    for result, items in ((stream + stream, [1, 2, 3] * 2), (both, [1, 2, 3] * 2), (stream[1:], [2, 3])):
        assert isinstance(result, Stream)
        assert list(result) == items


def test_what_is_not_an_observable_at_the_end_of_a_pipe_is_returned_as_it_is() -> None:
    assert Stream.of(reactivex.of(1, 2)).pipe(rx.map(str), Stream.of, list) == ["1", "2"]


def test_it_can_be_run_awaited_and_iterated_again_and_again() -> None:
    stream = Stream.of(reactivex.of(1, 2, 3))

    async def main() -> tuple[int, list[int]]:
        return await stream, [item async for item in stream]

    for _ in range(2):
        assert (stream.run(), list(stream), asyncio.run(main())) == (3, [1, 2, 3], (3, [1, 2, 3]))


def test_an_argument_of_pipe_that_is_not_an_operator_is_refused() -> None:
    with pytest.raises(ValidationError, match="operators") as caught:
        Stream.of(reactivex.of(1)).pipe(rx.map(str), rx.last)
    assert caught.value.errors[0][0] == ("operators", 1)

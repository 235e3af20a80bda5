"""Scripts for `Fake` as people first write them: they work, or the error says how to write them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import rxllm
from rxllm import EngineError, Fake, Request, ToolCall, Usage, ValidationError
from rxllm import operators as ops
from rxllm.testing import World, simulate


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_a_tool_call_needs_no_id() -> None:
    fake = Fake(
        [
            ("tool_call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
            ("tool_call", {"name": "add", "arguments": {}}),
        ],
        "The sum is 3.",
    )
    result = rxllm.chat(fake, "What is 1 + 2?", tools=[add]).run()
    assert [call.id for call in result.steps[0].response.tool_calls] == ["call_0", "call_1"]
    assert [message.text for message in result.thread.messages][2] == "3"
    assert result.output_text == "The sum is 3."


def test_a_tool_call_that_names_no_tool_says_which_fields_there_are() -> None:
    with pytest.raises(ValidationError, match="the fields of a tool call are id, name, arguments, raw_arguments"):
        Fake(("tool_call", {"id": "c1", "args": {}}))


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"delay": 0.1}, 'put it in the script: Fake([("delay", 0.1), "Hello"])'),
        ({"usage": Usage(3, 1)}, 'put it in the script: Fake(["Hello", rxllm.Usage(3, 5)])'),
        ({"responses": ["a", "b"]}, 'pass one argument for each answer: Fake("first", "second")'),
        ({"tool_calls": []}, 'put it in the script: Fake([rxllm.ToolCall("c1", "add", {"a": 1})], "done")'),
        ({"model": "m"}, 'pass the model to the engine: Engine(Fake("Hello"), model="...")'),
        ({"scirpt": []}, "(did you mean 'script'?)"),
    ],
)
def test_an_option_that_belongs_into_the_script_says_how(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(EngineError) as caught:
        Fake("Hello", **options)
    assert remedy in caught.value.message


def test_several_arguments_are_several_answers_and_a_list_is_the_pieces_of_one() -> None:
    several, pieces = Fake("a", "b"), Fake(["a", "b"])
    assert [rxllm.generate(several, "Hi").run().output_text for _ in "12"] == ["a", "b"]
    assert rxllm.generate(pieces, "Hi").run().output_text == "ab"


async def slow_answer(request: Request) -> list[Any]:
    await asyncio.sleep(0)
    return ["You said ", request.messages[-1].text]


class Slow:
    async def answer(self, request: Request) -> list[Any]:
        return await slow_answer(request)


@pytest.mark.parametrize("function", [slow_answer, Slow().answer])
def test_an_async_function_is_awaited(function: Callable[[Request], Any]) -> None:
    fake = Fake(function)
    assert rxllm.generate(fake, "Hi").run().output_text == "You said Hi"
    assert asyncio.run(_ask(fake)) == "You said Ho"
    assert [request.messages[-1].text for request in fake.requests] == ["Hi", "Ho"]
    assert [*rxllm.stream_generate(fake, "Hi").pipe(ops.text())] == ["You said ", "Hi"]


async def _ask(fake: Fake) -> str:
    return (await rxllm.generate(fake, "Ho")).output_text


def test_an_async_function_that_waits_too_long_is_cancelled() -> None:
    async def main(world: World) -> None:
        cancelled = asyncio.Event()

        async def hang(request: Request) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return "late"

        with pytest.raises(rxllm.AdapterError) as caught:
            await rxllm.generate(Fake(hang), "Hi", timeout=30, retry=False)
        assert caught.value.reason == "timeout"
        await cancelled.wait()

    assert simulate(main, faults=()).duration == pytest.approx(30, abs=5)


def test_an_async_function_fails_as_a_plain_one_does() -> None:
    async def fail(request: Request) -> str:
        raise ValueError("not today")

    async def nothing(request: Request) -> Any:
        return None

    with pytest.raises(ValueError, match="not today"):
        rxllm.generate(Fake(fail), "Hi").run()
    with pytest.raises(ValidationError, match="None is not a valid script item"):
        rxllm.generate(Fake(nothing), "Hi").run()


def test_a_tool_call_in_a_script_may_have_its_arguments_as_text() -> None:
    fake = Fake(ToolCall("c1", "add", raw_arguments='{"a": 1, "b": 2}'), "done")
    assert rxllm.chat(fake, "Hi", tools=[add]).run().thread.messages[2].text == "3"

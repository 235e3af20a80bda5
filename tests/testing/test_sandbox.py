"""Code that names its model, without that model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rxllm
from rxllm import Engine, EngineError, Fake, session, tool
from rxllm.images import FakeImages
from rxllm.runtime.context_variables import current_place
from rxllm.testing import sandbox
from rxllm.values import Image
from tests.operators.threads import together

DOT = Image.from_data_uri("data:image/gif;base64,R0lGODlhAQABAAAAACw=")


def primes(engine: str = "openai:gpt-5") -> str:
    """The code under test."""
    return rxllm.generate(engine, "Name three primes.").run().output_text


def test_every_engine_that_is_a_string_is_the_one_given() -> None:
    with sandbox(Fake("2, 3, 5.")) as fake:
        assert [primes(name) for name in ("openai:gpt-5", "local", "nobody:knows")] == ["2, 3, 5."] * 3
    assert [request.model for request in fake.requests] == ["gpt-5", None, "knows"]


def test_every_function_of_the_facade_and_sessions_too() -> None:
    with sandbox(Fake("Hi")):
        assert rxllm.chat("openai:gpt-5", "Hello").run().output_text == "Hi"
        assert rxllm.step("openai:gpt-5", "Hello").run().response.output_text == "Hi"
        assert [response.output_text for response in rxllm.generate_many("openai:gpt-5", ["a", "b"])] == ["Hi", "Hi"]
        assert session.start("openai:gpt-5", "Hello").run().session.thread.messages[-1].text == "Hi"
        assert Engine.from_model("openai:gpt-5").model == "gpt-5"


def test_an_engine_brings_what_it_has() -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    played = Fake(rxllm.ToolCall("c", "add", {"a": 1, "b": 2}), "3")
    with sandbox(Engine(played, model="small", tools=[add])) as engine:
        assert rxllm.chat("local", "1 + 2").run().output_text == "3"
        assert engine.adapter is played
    assert [request.model for request in played.requests] == ["small", "small"]


def test_images_too() -> None:
    with sandbox(FakeImages(DOT)) as fake:
        assert rxllm.generate_image("openai:gpt-image-1", "a dot").run().images == (DOT,)
    assert fake.requests[0].model == "gpt-image-1"
    with sandbox(Engine(Fake("Hi"), image_adapter=FakeImages(DOT))) as engine:
        assert rxllm.generate_image("gemini:gemini-2.5-flash-image", "a dot").run().images == (DOT,)
        assert primes() == "Hi"
    assert engine.image_adapter.requests[0].model == "gemini-2.5-flash-image"


def test_what_was_not_given_is_not_reached() -> None:
    with sandbox(Fake("Hi")), pytest.raises(EngineError, match="image adapter"):
        rxllm.generate_image("openai:gpt-image-1", "a dot").run()
    with sandbox(FakeImages(DOT)), pytest.raises(EngineError) as caught:
        primes()
    assert caught.value.reason == "missing_adapter"


def test_an_engine_that_was_made_before_stays() -> None:
    mine = Engine(Fake("mine"))
    with sandbox(Fake("other")):
        assert rxllm.generate(mine, "Hi").run().output_text == "mine"


def test_a_call_that_is_made_inside_may_run_outside() -> None:
    with sandbox(Fake("Hi")):
        call = rxllm.generate("openai:gpt-5", "Hello")
    assert call.run().output_text == "Hi"


def test_one_inside_another() -> None:
    with sandbox(Fake("outer")):
        with sandbox(Fake("inner")):
            assert primes() == "inner"
        assert primes() == "outer"


def test_no_trace_is_left_also_by_an_exception() -> None:
    with pytest.raises(KeyError), sandbox(Fake("Hi")):
        raise KeyError
    assert current_place.get().engine is None
    with pytest.raises(EngineError, match="nobody"):
        primes("nobody:knows")


def test_side_by_side_they_do_not_meet() -> None:
    async def one(text: str, mine: asyncio.Event, other: asyncio.Event) -> str:
        with sandbox(Fake(text)):
            mine.set()
            await other.wait()  # both are inside
            inner = asyncio.create_task(later())
            return (await rxllm.generate("openai:gpt-5", "Hi")).output_text + (await inner)

    async def later() -> str:
        return (await rxllm.generate("local", "Hi")).output_text

    async def main() -> list[str]:
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(one("a", first, second), one("b", second, first))

    assert asyncio.run(main()) == ["aa", "bb"]


def test_it_reaches_the_threads_that_take_the_context_along_and_no_others() -> None:
    seen: list[Any] = []

    async def main() -> None:
        seen.append(await asyncio.to_thread(primes))

    with sandbox(Fake("Hi")):
        asyncio.run(main())
        together(lambda: seen.append(current_place.get().engine))
    assert seen == ["Hi", None]

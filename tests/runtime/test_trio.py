"""Under trio a stream that is awaited says what to write, and reading it in a thread works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from rxllm import EngineError, Fake, generate, to_async_iter

trio = pytest.importorskip("trio")


async def awaited() -> Any:
    return await generate(Fake("Hi"), "Hello")


async def iterated() -> None:
    async for _ in generate(Fake("Hi"), "Hello"):
        pass


async def entered() -> None:
    async with to_async_iter(generate(Fake("Hi"), "Hello")):
        pass


def on_anyio(main: Callable[[], Any]) -> Any:
    return anyio.run(main, backend="trio")


@pytest.mark.parametrize("run", [trio.run, on_anyio])
@pytest.mark.parametrize("main", [awaited, iterated, entered])
def test_an_awaited_stream_names_the_remedy(main: Any, run: Any) -> None:
    with pytest.raises(EngineError) as raised:
        run(main)
    assert raised.value.reason == "wrong_loop"
    assert "only on an asyncio event loop" in raised.value.message
    assert "await trio.to_thread.run_sync(stream.run)" in raised.value.message


def test_a_stream_is_read_in_a_thread() -> None:
    response: Any = trio.run(trio.to_thread.run_sync, generate(Fake("Hi"), "Hello").run)
    assert response.output_text == "Hi"

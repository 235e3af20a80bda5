"""A reader that is behind holds the server back, and in the end nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import reactivex

from rxllm import (
    Event,
    Fake,
    Stream,
    TextDelta,
    ToolCall,
    from_async_iter,
    generate,
    stream,
    stream_generate,
    stream_step,
    to_async_iter,
    to_iter,
    tool,
)
from rxllm import operators as ops
from rxllm.testing.loopback import DONE, Loopback, Reply, chat_chunk, chat_finish
from tests.runtime.support import ON_BOTH, Engine, model
from tests.waiting import PATIENCE

CHUNKS = 6000
CHUNK = chat_chunk("x" * 4000)
ALL = CHUNKS * len(CHUNK)
LONG = Reply([*[CHUNK] * CHUNKS, chat_finish(), DONE])

Make = Callable[[Engine], Stream[Event]]

WAYS: dict[str, Make] = {
    "generate": lambda engine: stream_generate(engine, "Hi"),
    "step": lambda engine: stream_step(engine, "Hi"),
    "chat": lambda engine: stream(engine, "Hi"),
    "operators": lambda engine: (
        stream_generate(engine, "Hi").pipe(ops.tap(bool)).filter(lambda event: True).map(lambda event: event)
    ),
    "retry": lambda engine: stream_generate(engine, "Hi", retry=True),
    "merge": lambda engine: Stream.of(reactivex.merge(stream_generate(engine, "Hi"))),
}


def assert_held_back(server: Loopback) -> None:
    """Check that the server still has most of the first answer, though a whole second one has come on the same loop."""
    first, second = server.connections
    assert second.bytes_sent >= ALL
    assert first.bytes_sent < ALL * 0.6


@pytest.mark.judges
@pytest.mark.parametrize("way", WAYS)
def test_for_holds_the_server_back(way: str) -> None:
    with Loopback(LONG) as server, to_iter(WAYS[way](model(server)), maxsize=8) as events:
        first = next(events)
        generate(model(server), "Hi").run()
        assert_held_back(server)
        deltas = [event.delta for event in (first, *events) if isinstance(event, TextDelta)]
    assert sum(map(len, deltas)) == CHUNKS * 4000


@pytest.mark.judges
@ON_BOTH
@pytest.mark.parametrize("way", ["generate", "chat"])
def test_async_for_holds_the_server_back(way: str) -> None:
    async def main() -> int:
        async with to_async_iter(WAYS[way](model(server)), maxsize=8) as events:
            await anext(events)
            await generate(model(server), "Hi")
            assert_held_back(server)
            return sum([len(event.delta) async for event in events if isinstance(event, TextDelta)])

    with Loopback(LONG) as server:
        assert asyncio.run(main()) == CHUNKS * 4000


@pytest.mark.sockets
def test_a_subscriber_is_not_held_back() -> None:
    with Loopback(LONG) as server:
        assert len(generate(model(server), "Hi").run().output_text) == CHUNKS * 4000


@pytest.mark.parametrize("maxsize", [1, 2, 64])
def test_no_more_than_maxsize_waits(maxsize: int) -> None:
    made: list[int] = []

    async def count() -> Any:
        for i in range(2000):
            made.append(i)
            yield i

    ahead: list[int] = []
    with to_iter(from_async_iter(count), maxsize=maxsize) as items:
        for i in items:
            ahead.append(len(made) - i - 1)
    assert len(made) == 2000
    assert max(ahead) <= maxsize + 1


@pytest.mark.judges
@pytest.mark.parametrize("maxsize", [1, 64])
def test_a_reader_and_a_source_on_two_threads_never_wait_for_each_other(maxsize: int) -> None:
    async def count() -> Any:
        for i in range(20_000):
            yield i

    with to_iter(from_async_iter(count), maxsize=maxsize) as items:
        assert list(items) == list(range(20_000))


@pytest.mark.parametrize("maxsize", [1, 3])
def test_fake_is_held_back(maxsize: int) -> None:
    """It plays on by itself once the reader has caught up."""
    played: list[Event] = []
    fake = Fake([f"{i} " for i in range(500)])
    with to_iter(stream_generate(fake, "Hi").pipe(ops.tap(played.append)), maxsize=maxsize) as events:
        texts: list[str] = []
        for event in events:
            assert len(played) <= len(texts) + maxsize + 4
            texts += [event.delta] if isinstance(event, TextDelta) else []
    assert "".join(texts).split() == [str(i) for i in range(500)]


def test_fake_is_held_back_on_a_loop() -> None:
    async def main() -> None:
        played: list[Event] = []
        fake = Fake([f"{i} " for i in range(500)])
        texts: list[str] = []
        async with to_async_iter(stream_generate(fake, "Hi").pipe(ops.tap(played.append)), maxsize=2) as events:
            async for event in events:
                assert len(played) <= len(texts) + 6
                texts += [event.delta] if isinstance(event, TextDelta) else []
        assert "".join(texts).split() == [str(i) for i in range(500)]

    asyncio.run(main())


@pytest.mark.sockets
def test_a_tools_own_call_is_not_held_back_by_the_reader() -> None:
    """It has a reader of its own: the tool."""
    answered = threading.Event()

    @tool
    def ask(question: str) -> str:
        """Ask another model."""
        text = generate(model(server), question).run().output_text
        answered.set()
        return text

    fake = Fake(["Let me ask. ", *["... "] * 40, ToolCall("c0", "ask", {"question": "?"})], "Done.")
    with Loopback(Reply([chat_chunk("a"), chat_chunk("b"), chat_finish(), DONE])) as server:
        with to_iter(stream(fake, "Hi", tools=[ask]), maxsize=48) as events:
            next(events)
            assert answered.wait(PATIENCE)
        server.wait_until(lambda: len(server.requests) == 1)


@pytest.mark.parametrize("make", [to_iter, to_async_iter])
def test_maxsize_must_be_at_least_one(make: Any) -> None:
    with pytest.raises(ValueError, match="maxsize"):
        make(reactivex.of(1), maxsize=0)


def test_leaving_while_held_back_ends_the_source() -> None:
    closed = threading.Event()

    async def count() -> Any:
        try:
            for i in range(1000):
                yield i
        finally:
            closed.set()

    with to_iter(from_async_iter(count), maxsize=1) as items:
        next(items)
    assert closed.wait(PATIENCE)


def test_several_sources_share_one_readers_pace() -> None:
    made: list[int] = []

    async def count() -> Any:
        for i in range(300):
            made.append(i)
            yield i

    async def main() -> None:
        taken = 0
        async with to_async_iter(reactivex.merge(from_async_iter(count), from_async_iter(count)), maxsize=4) as items:
            async for _ in items:
                taken += 1
                assert len(made) <= taken + 8
        assert taken == 600

    asyncio.run(main())

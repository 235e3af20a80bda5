"""One stream, all the ways to listen to it, wherever one is."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any

import pytest
import reactivex
from reactivex import operators as rx
from reactivex.internal.exceptions import SequenceContainsNoElementsError

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    EngineError,
    Fake,
    Stream,
    ToolCall,
    chat,
    from_async_iter,
    generate,
    stream_generate,
    tool,
)
from rxllm.testing.loopback import Loopback, Reply, chat_chunk, chat_finish
from rxllm.testing.loopback import chat as said
from tests.runtime.support import model
from tests.waiting import PATIENCE, until

ANSWER = Reply(said("Hel", "lo"))


def ask(engine: Engine) -> Stream[str]:
    return stream_generate(engine, "Hi").pipe(rxllm.operators.to_text())


def blocking_ways(engine: Engine) -> list[str]:
    heard: list[str] = []
    done = threading.Event()
    ask(engine).subscribe(heard.append, on_completed=done.set)
    assert done.wait(PATIENCE)
    return [ask(engine).run(), *ask(engine), *rxllm.to_iter(ask(engine)), rxllm.run(ask(engine)), *heard]


async def async_ways(engine: Engine) -> list[str]:
    heard: list[str] = []
    ask(engine).subscribe(heard.append)
    await until(lambda: bool(heard))
    return [await ask(engine), *[text async for text in ask(engine)], *heard]


@pytest.mark.sockets
def test_every_way_one_after_another() -> None:
    """In a script, under asyncio, in a thread, and once more."""
    with Loopback(ANSWER) as server:
        engine = model(server)
        texts = [*blocking_ways(engine), *asyncio.run(async_ways(engine))]
        thread = threading.Thread(target=lambda: texts.extend(blocking_ways(engine)))
        thread.start()
        thread.join(PATIENCE)
        texts += [*asyncio.run(async_ways(engine)), *blocking_ways(engine)]
        asyncio.run_coroutine_threadsafe(rxllm.aclose(engine), rxllm.runtime.call_loop()).result(PATIENCE)
    assert texts == ["Hello"] * 21


@pytest.mark.sockets
def test_blocking_ways_in_a_thread_beside_a_running_loop() -> None:
    with Loopback(ANSWER) as server:
        engine = model(server)

        async def main() -> list[str]:
            return await asyncio.to_thread(blocking_ways, engine)

        assert asyncio.run(main()) == ["Hello"] * 5


@pytest.mark.sockets
def test_many_threads_at_once() -> None:
    with Loopback(ANSWER) as server:
        engine, texts = model(server), list[str]()
        threads = [threading.Thread(target=lambda: texts.append(ask(engine).run())) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert texts == ["Hello"] * 16


@pytest.mark.sockets
def test_a_tool_asks_another_model_in_its_thread() -> None:
    with Loopback(ANSWER) as server:
        engine = model(server)

        @tool
        def consult(question: str) -> str:
            """Ask somebody."""
            return generate(engine, question).run().output_text

        fake = Fake(ToolCall("c0", "consult", {"question": "?"}), "Done.")
        assert [
            message.text for message in chat(fake, "Hi", tools=[consult]).run().thread if message.role == "tool"
        ] == ["Hello"]

        async def main() -> Any:
            fake = Fake(ToolCall("c0", "consult", {"question": "?"}), "Done.")
            return await chat(fake, "Hi", tools=[consult])

        assert asyncio.run(main()).output_text == "Done."


@pytest.mark.sockets
def test_an_async_tool_awaits_another_model() -> None:
    with Loopback(ANSWER) as server:
        engine = model(server)

        @tool
        async def consult(question: str) -> str:
            """Ask somebody."""
            return (await generate(engine, question)).output_text

        fake = Fake(ToolCall("c0", "consult", {"question": "?"}), "Done.")
        result = chat(fake, "Hi", tools=[consult]).run()
        assert result.steps[0].tool_results[0].text == "Hello"


def test_run_on_a_running_loop_warns_with_the_other_form() -> None:
    async def main() -> None:
        with pytest.warns(RuntimeWarning, match="await stream") as caught:
            assert ask(Engine(Fake("Hello"))).run() == "Hello"
        assert caught[0].filename == __file__

    asyncio.run(main())


@pytest.mark.sockets
def test_run_on_a_running_loop_works_with_a_real_call() -> None:
    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert ask(model(server)).run() == "Hello"

    with Loopback(ANSWER) as server:
        asyncio.run(main())


@pytest.mark.parametrize("way", [lambda stream: stream.run(), list])
def test_blocking_on_the_portals_own_thread_is_refused(way: Any) -> None:
    """It would wait for itself."""

    async def inner() -> Any:
        try:
            way(generate(Fake("Hello"), "Hi"))
        except RuntimeError as error:
            yield str(error)

    assert "await" in from_async_iter(inner).run()


def test_an_empty_stream_has_no_last_item() -> None:
    empty = Stream.of(reactivex.empty())
    with pytest.raises(SequenceContainsNoElementsError):
        empty.run()
    with pytest.raises(SequenceContainsNoElementsError):
        asyncio.run(_last(empty))
    assert list(empty) == []


async def _last(stream: Any) -> Any:
    return await stream


def test_run_and_iterators_take_any_observable() -> None:
    source = reactivex.of(1, 2)
    assert rxllm.run(source) == 2
    with rxllm.to_iter(source) as items:
        assert list(items) == [1, 2]

    async def main() -> list[int]:
        async with rxllm.to_async_iter(reactivex.timer(0.01).pipe(rx.map(lambda _: 3))) as items:
            return [item async for item in items]

    assert asyncio.run(main()) == [3]
    assert rxllm.run(reactivex.timer(0.01)) == 0


def test_the_last_item_may_come_from_another_thread() -> None:
    """The waiting loop is woken."""

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        def play() -> None:
            observer.on_next(1)
            observer.on_completed()

        asyncio.get_running_loop().call_soon(threading.Thread(target=play).start)  # once the loop waits

    assert asyncio.run(_last(Stream(subscribe))) == 1


def test_an_error_is_raised_once_and_the_stream_can_be_run_again() -> None:
    stream = generate(Fake(AdapterError("timeout"), "Hello"), "Hi", retry=False)
    with pytest.raises(AdapterError):
        stream.run()
    assert stream.run().output_text == "Hello"


@pytest.mark.sockets
def test_chunks_and_ends_arrive_in_one_piece_or_many() -> None:
    """However the bytes are cut, the events are the same."""
    body = b"".join([chat_chunk("Hel"), chat_chunk("lo"), chat_finish()])
    results: list[Any] = []
    for size in (1, 7, len(body)):
        with Loopback(Reply([body[i : i + size] for i in range(0, len(body), size)])) as server:
            results.append(list(stream_generate(model(server), "Hi")))
    assert results[0] == results[1] == results[2]


def test_a_stream_that_is_awaited_without_a_loop_of_asyncio_names_the_remedy() -> None:
    stream = generate(Fake("Hi"), "Hello")
    for awaiting in (stream.__await__(), stream.__aiter__().__anext__()):
        with pytest.raises(EngineError, match=r"asyncio event loop.*trio\.to_thread\.run_sync\(stream\.run\)"):
            awaiting.send(None)

"""One stream, all the ways to listen to it, wherever one is."""

from __future__ import annotations

import asyncio
import sys
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
    Fake,
    Stream,
    StreamError,
    ToolCall,
    chat,
    from_async_iter,
    generate,
    stream_generate,
    tool,
)
from rxllm.testing.loopback import Loopback, Reply, chat_chunk, chat_finish
from rxllm.testing.loopback import chat as said
from tests.runtime.support import STALLED, model, until

ANSWER = Reply(said("Hel", "lo"))


def ask(engine: Engine) -> Stream[str]:
    return stream_generate(engine, "Hi").pipe(rxllm.operators.to_text())


def blocking_ways(engine: Engine) -> list[str]:
    heard: list[str] = []
    done = threading.Event()
    ask(engine).subscribe(heard.append, on_completed=done.set)
    assert done.wait(5)
    return [ask(engine).run(), *ask(engine), *rxllm.to_iter(ask(engine)), rxllm.run(ask(engine)), *heard]


async def async_ways(engine: Engine) -> list[str]:
    heard: list[str] = []
    ask(engine).subscribe(heard.append)
    await until(lambda: bool(heard))
    return [await ask(engine), *[text async for text in ask(engine)], *heard]


def test_every_way_one_after_another() -> None:
    """In a script, under asyncio, in a thread, and once more."""
    with Loopback(ANSWER) as server:
        engine = model(server)
        texts = [*blocking_ways(engine), *asyncio.run(async_ways(engine))]
        thread = threading.Thread(target=lambda: texts.extend(blocking_ways(engine)))
        thread.start()
        thread.join(10)
        texts += [*asyncio.run(async_ways(engine)), *blocking_ways(engine)]
        asyncio.run_coroutine_threadsafe(rxllm.aclose(engine), rxllm.runtime.call_loop()).result(5)
    assert texts == ["Hello"] * 21


def test_blocking_ways_in_a_thread_beside_a_running_loop() -> None:
    with Loopback(ANSWER) as server:
        engine = model(server)

        async def main() -> list[str]:
            return await asyncio.to_thread(blocking_ways, engine)

        assert asyncio.run(main()) == ["Hello"] * 5


def test_many_threads_at_once() -> None:
    with Loopback(ANSWER) as server:
        engine, texts = model(server), list[str]()
        threads = [threading.Thread(target=lambda: texts.append(ask(engine).run())) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert texts == ["Hello"] * 16


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


def test_for_on_a_running_loop_warns_with_the_other_form() -> None:
    async def main() -> None:
        with pytest.warns(RuntimeWarning, match="async for") as caught:
            assert list(ask(Engine(Fake("Hello")))) == ["Hello"]
        assert caught[0].filename == __file__

    asyncio.run(main())


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

        threading.Timer(0.02, play).start()

    async def main() -> int:
        return await asyncio.wait_for(_last(Stream(subscribe)), 2)

    assert asyncio.run(main()) == 1


def test_an_error_is_raised_once_and_the_stream_can_be_run_again() -> None:
    stream = generate(Fake(AdapterError("timeout"), "Hello"), "Hi", retry=False)
    with pytest.raises(AdapterError):
        stream.run()
    assert stream.run().output_text == "Hello"


def test_an_iterators_error_is_raised_after_the_items_and_once() -> None:
    items = iter(reactivex.of(1).pipe(rx.concat(reactivex.throw(KeyError("x")))).pipe(Stream.of))
    assert next(items) == 1
    with pytest.raises(KeyError):
        next(items)
    assert list(items) == []


def test_an_iterator_that_was_closed_gives_nothing() -> None:
    with Loopback(STALLED) as server:
        items = rxllm.to_iter(stream_generate(model(server), "Hi"))
        next(items)
        items.close()
        items.close()
        assert list(items) == []
        server.connections[0].wait_closed()


def test_an_iterator_that_was_never_asked_makes_no_call() -> None:
    with Loopback(ANSWER) as server:
        with rxllm.to_iter(ask(model(server))):
            pass
        iter(ask(model(server)))
        assert server.connections == []


def test_the_loops_end_closes_a_live_call(caplog: pytest.LogCaptureFixture) -> None:
    """Its subscriber is told, and nothing is destroyed pending."""
    told: list[Exception] = []

    async def main() -> None:
        seen: list[Any] = []
        stream_generate(model(server), "Hi").subscribe(seen.append, told.append)
        await until(lambda: len(seen) == 4)

    with Loopback(STALLED) as server:
        asyncio.run(main())
        server.connections[0].wait_closed(1)
    (error,) = told
    assert isinstance(error, StreamError)
    assert error.reason == "cancelled"
    assert caplog.text == ""


def test_context_variables_reach_the_subscriber() -> None:
    import contextvars

    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def main() -> list[str]:
        name.set("mine")
        heard: list[str] = []
        await stream_generate(model(server), "Hi").do_action(lambda event: heard.append(name.get()))
        return heard

    with Loopback(ANSWER) as server:
        assert set(asyncio.run(main())) == {"mine"}


def test_an_async_iterator_is_closed_when_it_is_left() -> None:
    closed: list[str] = []

    async def count() -> Any:
        try:
            for i in range(100):
                yield i
        finally:
            closed.append("yes")

    async def main() -> None:
        assert await from_async_iter(count).take(2) == 1
        await until(lambda: closed == ["yes"])

    asyncio.run(main())


def test_chunks_and_ends_arrive_in_one_piece_or_many() -> None:
    """However the bytes are cut, the events are the same."""
    body = b"".join([chat_chunk("Hel"), chat_chunk("lo"), chat_finish()])
    results: list[Any] = []
    for size in (1, 7, len(body)):
        with Loopback(Reply([body[i : i + size] for i in range(0, len(body), size)])) as server:
            results.append(list(stream_generate(model(server), "Hi")))
    assert results[0] == results[1] == results[2]


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

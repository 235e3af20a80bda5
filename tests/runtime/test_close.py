"""However a call is left, the server sees its connection close within 50 ms."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from typing import Any

import httpx
import pytest
from reactivex import Subject
from reactivex import operators as rx

from rxllm import (
    Engine,
    Event,
    OpenAIChat,
    Request,
    TextDelta,
    generate,
    stream,
    stream_generate,
    to_async_iter,
    to_iter,
)
from rxllm import operators as ops
from rxllm.testing.loopback import STALL, Loopback, Reply, chat_chunk, chat_finish
from rxllm.values import Call
from tests.runtime.support import (
    HTTPX_ONLY,
    ON_BOTH,
    SILENT,
    STALLED,
    assert_prompt,
    close_times,
    finished,
    model,
    now,
    on_loop,
    script,
    until,
    until_closed,
)

pytestmark = ON_BOTH


def is_last(event: Event) -> bool:
    """Whether `event` is the last one before the server stalls."""
    return isinstance(event, TextDelta) and event.delta == "c"


async def dispose(server: Loopback) -> float:
    events: list[Event] = []
    subscription = stream_generate(model(server), "Hi").subscribe(events.append)
    await until(lambda: bool(events) and is_last(events[-1]))
    acted = now()
    subscription.dispose()
    return acted


async def dispose_in_another_thread(server: Loopback) -> float:
    events: list[Event] = []
    subscription = stream_generate(model(server), "Hi").subscribe(events.append)
    await until(lambda: bool(events) and is_last(events[-1]))

    def act() -> float:
        acted = now()
        subscription.dispose()
        return acted

    return await asyncio.to_thread(act)


async def dispose_before_the_headers(server: Loopback) -> float:
    subscription = stream_generate(model(server), "Hi").subscribe()
    await until(lambda: bool(server.requests))
    acted = now()
    subscription.dispose()
    return acted


async def cancel_the_awaiting_task(server: Loopback) -> float:
    seen = asyncio.Event()

    async def answer() -> Any:
        return await stream_generate(model(server), "Hi").do_action(lambda event: is_last(event) and seen.set())

    task = asyncio.create_task(answer())
    await seen.wait()
    acted = now()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return acted


async def time_out_the_awaiting_task(server: Loopback) -> float:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(generate(model(server), "Hi"), 0.3)
    return now()


async def break_async_for(server: Loopback) -> float:
    async for event in stream_generate(model(server), "Hi"):
        if is_last(event):
            break
    return now()


async def leave_async_with(server: Loopback) -> float:
    async with to_async_iter(stream_generate(model(server), "Hi")) as events:
        async for event in events:
            if is_last(event):
                acted = now()
                break
    return acted


async def raise_in_async_for(server: Loopback) -> float:
    with pytest.raises(KeyError):  # noqa: PT012
        async for event in stream_generate(model(server), "Hi"):
            if is_last(event):
                acted = now()
                raise KeyError
    return acted


async def take(server: Loopback) -> float:
    await stream_generate(model(server), "Hi").take(3)
    return now()


async def the_timeout_operator(server: Loopback) -> float:
    acted = 0.0

    def note(error: Exception) -> None:
        nonlocal acted
        acted = now()

    subscription = stream_generate(model(server), "Hi").pipe(rx.timeout(0.3)).subscribe(on_error=note)
    await until(lambda: acted > 0)
    subscription.dispose()
    return acted


async def a_whole_chat(server: Loopback) -> float:
    events: list[Event] = []
    chat = stream(model(server), "Hi").pipe(ops.tap(events.append), ops.to_chat_result())
    subscription = chat.subscribe()
    await until(lambda: bool(events) and is_last(events[-1]))
    acted = now()
    subscription.dispose()
    return acted


@pytest.mark.parametrize(
    "act",
    [
        dispose,
        dispose_in_another_thread,
        cancel_the_awaiting_task,
        time_out_the_awaiting_task,
        break_async_for,
        leave_async_with,
        raise_in_async_for,
        take,
        the_timeout_operator,
        a_whole_chat,
    ],
)
def test_left_on_a_loop(act: Any) -> None:
    assert_prompt(close_times(on_loop(act)))


def test_disposed_before_the_headers() -> None:
    assert_prompt(close_times(on_loop(dispose_before_the_headers), SILENT))


def test_disposed_on_a_used_connection_before_the_headers() -> None:
    """A connection that is used again says nothing of connecting."""

    async def act(server: Loopback) -> float:
        engine = model(server)
        await generate(engine, "Hi")
        subscription = stream_generate(engine, "Hi").subscribe()
        await until(lambda: len(server.requests) == 2)
        acted = now()
        subscription.dispose()
        return acted

    times: list[float] = []
    for _ in range(5):
        with Loopback([Reply([chat_chunk("a"), chat_finish()]), SILENT]) as server:
            acted = on_loop(act)(server)
            times.append(server.connections[0].wait_closed() - acted)
            assert len(server.connections) == 1
    assert_prompt(times)


def test_disposed_behind_a_redirect_before_the_headers() -> None:
    async def main(here: Loopback, there: Loopback) -> float:
        client = httpx.AsyncClient(follow_redirects=True)
        subscription = stream_generate(model(here, client=client), "Hi").subscribe()
        await until(lambda: bool(there.requests))
        acted = now()
        subscription.dispose()
        await until_closed(there.connections[0])
        await client.aclose()
        return acted

    times: list[float] = []
    for _ in range(5):
        with Loopback(SILENT) as there:
            moved = Reply(status=307, headers={"Location": f"{there.url}/chat/completions"})
            with Loopback(moved) as here:
                acted = asyncio.run(main(here, there))
            times.append(there.connections[0].wait_closed() - acted)
    assert_prompt(times)


@HTTPX_ONLY
def test_disposed_while_it_connects() -> None:
    """The close comes with the connection; dispose returns at once, and nothing is delivered."""

    async def act(server: Loopback) -> float:
        events: list[Any] = []
        subscription = stream_generate(model(server, client=httpx.AsyncClient), "Hi").subscribe(
            events.append, events.append
        )
        await asyncio.sleep(0)
        subscription.dispose()
        await until(lambda: bool(server.connections))
        await asyncio.sleep(0.02)
        assert events == []
        return server.connections[0].accepted_at

    assert_prompt(close_times(on_loop(act)))


@HTTPX_ONLY
def test_disposed_while_a_timed_out_connection_closes() -> None:
    """Cancelled at this moment, httpcore would leave the connection open for good."""

    async def act(server: Loopback) -> float:
        acted = 0.0

        async def trace(name: str, info: Any) -> None:
            nonlocal acted
            if name == "http11.response_closed.started":
                acted = now()
                subscription.dispose()

        class Traced(OpenAIChat):
            def build(self, request: Request, call: Call) -> Any:
                made = super().build(request, call)
                made.extensions["trace"] = trace
                return made

        engine = Engine(Traced(base_url=server.url, timeout=0.2), model="m", retry=False)
        subscription = stream_generate(engine, "Hi").subscribe()
        await until(lambda: acted > 0)
        return acted

    assert_prompt(close_times(on_loop(act)))


def dispose_on_the_portal(server: Loopback) -> float:
    seen = threading.Event()
    events = stream_generate(model(server), "Hi").do_action(lambda event: is_last(event) and seen.set())
    subscription = events.subscribe()
    assert seen.wait(5)
    acted = now()
    subscription.dispose()
    return acted


def take_and_run(server: Loopback) -> float:
    stream_generate(model(server), "Hi").take(3).run()
    return now()


def break_for(server: Loopback) -> float:
    for event in stream_generate(model(server), "Hi"):
        if is_last(event):
            break
    return now()


def leave_with(server: Loopback) -> float:
    with to_iter(stream_generate(model(server), "Hi")) as events:
        for event in events:
            if is_last(event):
                acted = now()
                break
    return acted


def raise_in_for(server: Loopback) -> float:
    with pytest.raises(KeyError):  # noqa: PT012
        for event in stream_generate(model(server), "Hi"):
            if is_last(event):
                acted = now()
                raise KeyError
    return acted


@pytest.mark.parametrize("act", [dispose_on_the_portal, take_and_run, break_for, leave_with, raise_in_for])
def test_left_without_a_loop(act: Any) -> None:
    assert_prompt(close_times(act))


def test_a_reader_that_is_behind_leaves() -> None:
    """The pump waits for the reader then, not for the socket."""

    def act(server: Loopback) -> float:
        with to_iter(stream_generate(model(server), "Hi"), maxsize=1) as events:
            next(events)
            server.wait_requests(1)
            return now()

    assert_prompt(close_times(act))


@pytest.mark.parametrize("reads", [1, 3])
def test_a_raising_subscriber_is_told_once_and_after_the_close(reads: int) -> None:
    told: list[Exception] = []

    async def act(server: Loopback) -> float:
        seen: list[Event] = []
        errors: list[Exception] = []
        acted = 0.0

        def on_next(event: Event) -> None:
            nonlocal acted
            seen.append(event)
            if len(seen) == reads:
                acted = now()
                raise KeyError("mine")

        stream_generate(model(server), "Hi").subscribe(on_next, errors.append)
        await until(lambda: bool(errors))
        await until(lambda: server.open_count == 0)
        assert len(seen) == reads
        told.extend(errors)
        return acted

    times = close_times(on_loop(act))
    assert [repr(error) for error in told] == ["KeyError('mine')"] * len(times)
    assert_prompt(times)


def test_a_raising_subscriber_without_on_error_reaches_the_loops_handler() -> None:
    told: list[Exception] = []

    async def act(server: Loopback) -> float:
        contexts: list[dict[str, Any]] = []
        acted = 0.0

        def on_next(event: Event) -> None:
            nonlocal acted
            acted = now()
            raise KeyError("mine")

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: contexts.append(context))
        stream_generate(model(server), "Hi").subscribe(on_next)
        await until(lambda: bool(contexts))
        await until(lambda: server.open_count == 0)
        told.extend(context["exception"] for context in contexts)
        return acted

    times = close_times(on_loop(act))
    assert [repr(error) for error in told] == ["KeyError('mine')"] * len(times)
    assert_prompt(times)


def test_a_subscribers_own_transport_error_is_not_the_streams() -> None:
    """What a subscriber raises is never taken for a broken connection, though it be one of httpx."""
    import httpx

    seen: list[Any] = []

    async def act(server: Loopback) -> float:
        acted = 0.0

        def on_next(event: Event) -> None:
            nonlocal acted
            seen.append(event)
            acted = now()
            raise httpx.ConnectError("mine")

        errors: list[Exception] = []
        stream_generate(model(server), "Hi").subscribe(on_next, errors.append)
        await until(lambda: bool(errors))
        assert [repr(error) for error in errors] == ["ConnectError('mine')"]
        return acted

    assert_prompt(close_times(on_loop(act), rounds=3))
    assert len(seen) == 3


def test_switch_map_closes_the_former_answer() -> None:
    async def act(server: Loopback) -> float:
        engine, questions, events = model(server), Subject[str](), list[Event]()
        answers = questions.pipe(rx.switch_map(lambda question: stream_generate(engine, question)))
        subscription = answers.subscribe(events.append)
        questions.on_next("one")
        await until(lambda: bool(events) and is_last(events[-1]))
        acted = now()
        questions.on_next("two")
        await until(lambda: len(server.requests) == 2 and server.connections[0].closed_at is not None)
        subscription.dispose()
        await until(lambda: server.open_count == 0)
        return acted

    assert_prompt(close_times(on_loop(act)))


def test_disposed_after_the_answer_while_the_server_keeps_it_open() -> None:
    """The end marker has come, the end of the body has not."""
    done = Reply([chat_chunk("a"), chat_finish(), b"data: [DONE]\n\n", STALL])

    async def act(server: Loopback) -> float:
        seen: list[str] = []
        subscription = stream_generate(model(server), "Hi").subscribe(lambda event: seen.append(type(event).__name__))
        await until(lambda: "MessageCompleted" in seen)
        acted = now()
        subscription.dispose()
        return acted

    assert_prompt(close_times(on_loop(act), done))


INTERRUPTED = """
import sys
from rxllm import Engine, OpenAIChat, generate, stream_generate
stream = stream_generate(Engine(OpenAIChat(base_url=sys.argv[1]), model="m"), "Hi")
try:
    %s
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.long
@HTTPX_ONLY
@pytest.mark.parametrize("way", ["stream.run()", "list(stream)"])
@pytest.mark.parametrize("reply", [STALLED, SILENT], ids=["stalled", "silent"])
def test_interrupted_in_a_script(way: str, reply: Reply) -> None:
    def act(server: Loopback) -> float:
        process = script(INTERRUPTED % way, server.url)
        server.wait_requests(1)
        threading.Event().wait(0.05)  # until it waits
        acted = now()
        process.send_signal(signal.SIGINT)
        server.connections[0].wait_closed()
        assert finished(process) == (0, "interrupted\n", "")
        return acted

    assert_prompt(close_times(act, reply, rounds=3))


def test_an_abandoned_iterator_is_closed_by_the_garbage_collector() -> None:
    with Loopback(STALLED) as server:
        items = iter(stream_generate(model(server), "Hi"))
        next(items)
        cycle: list[Any] = [items]
        cycle.append(cycle)
        del items, cycle
        gc.collect()
        server.connections[0].wait_closed()

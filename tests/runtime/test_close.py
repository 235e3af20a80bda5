"""However a call is left, its connection closes before a next call is answered."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
from typing import Any

import httpx
import pytest
from reactivex import Subject
from reactivex import operators as rx
from reactivex.scheduler import VirtualTimeScheduler

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
from rxllm.testing import World, simulate
from rxllm.testing.loopback import STALL, Loopback, Reply, chat_chunk, chat_finish
from rxllm.values import Call
from tests.closing import SILENT, STALLED, also_next, assert_closed, assert_closes, next_call
from tests.runtime.support import HTTPX_ONLY, ON_BOTH, finished, model, script
from tests.waiting import until, wait_until

pytestmark = [ON_BOTH, pytest.mark.sockets]


def is_last(event: Event) -> bool:
    """Whether `event` is the last one before the server stalls."""
    return isinstance(event, TextDelta) and event.delta == "c"


def has_stalled(events: list[Event]) -> bool:
    return bool(events) and is_last(events[-1])


async def dispose(server: Loopback) -> None:
    events: list[Event] = []
    subscription = stream_generate(model(server), "Hi").subscribe(events.append)
    await until(lambda: has_stalled(events))
    subscription.dispose()


async def dispose_in_another_thread(server: Loopback) -> None:
    events: list[Event] = []
    subscription = stream_generate(model(server), "Hi").subscribe(events.append)
    await until(lambda: has_stalled(events))
    await asyncio.to_thread(subscription.dispose)


async def dispose_before_the_headers(server: Loopback) -> None:
    subscription = stream_generate(model(server), "Hi").subscribe()
    await until(lambda: server.requests)
    subscription.dispose()


async def cancel_the_awaiting_task(server: Loopback) -> None:
    seen = asyncio.Event()

    async def answer() -> Any:
        return await stream_generate(model(server), "Hi").do_action(lambda event: is_last(event) and seen.set())

    task = asyncio.create_task(answer())
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_out_the_awaiting_task(server: Loopback) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            await stream_generate(model(server), "Hi").do_action(lambda event: is_last(event) and limit.reschedule(0))


async def break_async_for(server: Loopback) -> None:
    async for event in stream_generate(model(server), "Hi"):
        if is_last(event):
            break


async def leave_async_with(server: Loopback) -> None:
    async with to_async_iter(stream_generate(model(server), "Hi")) as events:
        async for event in events:
            if is_last(event):
                break


async def raise_in_async_for(server: Loopback) -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        async for event in stream_generate(model(server), "Hi"):
            if is_last(event):
                raise KeyError


async def take(server: Loopback) -> None:
    await stream_generate(model(server), "Hi").take(3)


async def the_timeout_operator(server: Loopback) -> None:
    events, errors, time = list[Event](), list[Exception](), VirtualTimeScheduler()
    limited = stream_generate(model(server), "Hi").pipe(rx.timeout(5.0, scheduler=time))
    limited.subscribe(events.append, errors.append)
    await until(lambda: has_stalled(events))
    await asyncio.to_thread(time.advance_by, 6.0)  # its timers have a thread of their own
    assert len(errors) == 1


async def a_whole_chat(server: Loopback) -> None:
    events: list[Event] = []
    chat = stream(model(server), "Hi").pipe(ops.tap(events.append), ops.to_chat_result())
    subscription = chat.subscribe()
    await until(lambda: has_stalled(events))
    subscription.dispose()


@pytest.mark.parametrize(
    "leave",
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
def test_a_call_that_is_left_on_a_loop_closes_its_connection(leave: Any) -> None:
    assert_closes(leave)


def test_disposed_before_the_headers() -> None:
    assert_closes(dispose_before_the_headers, SILENT)


def test_disposed_on_a_used_connection_before_the_headers() -> None:
    """A connection that is used again says nothing of connecting."""

    async def leave(server: Loopback) -> None:
        engine = model(server)
        await generate(engine, "Hi")
        subscription = stream_generate(engine, "Hi").subscribe()
        await until(lambda: len(server.requests) == 2)
        assert len(server.connections) == 1
        subscription.dispose()

    assert_closes(leave, [Reply([chat_chunk("a"), chat_finish()]), SILENT])


def test_disposed_behind_a_redirect_before_the_headers() -> None:
    async def main(here: Loopback, there: Loopback) -> None:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            subscription = stream_generate(model(here, client=client), "Hi").subscribe()
            await until(lambda: there.requests)
            subscription.dispose()
            await next_call(there)
            assert_closed(there.connections[0])

    with Loopback(also_next(SILENT)) as there:
        moved = Reply(status=307, headers={"Location": f"{there.url}/chat/completions"})
        with Loopback(moved) as here:
            asyncio.run(main(here, there))


@HTTPX_ONLY
def test_disposed_while_it_connects() -> None:
    """The close comes with the connection; dispose returns at once, and nothing is delivered."""
    events: list[Any] = []

    async def leave(server: Loopback) -> None:
        engine = model(server, client=httpx.AsyncClient)
        subscription = stream_generate(engine, "Hi").subscribe(events.append, events.append)
        await asyncio.sleep(0)
        subscription.dispose()
        await until(lambda: server.connections)

    assert_closes(leave)
    assert events == []


@HTTPX_ONLY
def test_disposed_while_a_timed_out_connection_closes() -> None:
    """Cancelled at this moment, httpcore would leave the connection open for good."""

    async def app(world: World) -> float:
        disposed = asyncio.Event()
        server = world.serve(STALLED)

        async def trace(name: str, info: Any) -> None:
            if name == "http11.response_closed.started":
                disposed.set()
                subscription.dispose()

        class Traced(OpenAIChat):
            def build(self, request: Request, call: Call) -> Any:
                made = super().build(request, call)
                made.extensions["trace"] = trace
                return made

        engine = Engine(Traced(base_url=server.url, timeout=5.0), model="m", retry=False)
        subscription = stream_generate(engine, "Hi").subscribe()
        await disposed.wait()
        await until(lambda: not server.open_connections())
        assert_closed(server.connections[0])
        return asyncio.get_running_loop().time()

    assert simulate(app, faults=()).value == pytest.approx(5.0, abs=0.1)


def dispose_on_the_portal(server: Loopback) -> None:
    events: list[Event] = []
    subscription = stream_generate(model(server), "Hi").subscribe(events.append)
    wait_until(lambda: has_stalled(events))
    subscription.dispose()


def take_and_run(server: Loopback) -> None:
    stream_generate(model(server), "Hi").take(3).run()


def break_for(server: Loopback) -> None:
    for event in stream_generate(model(server), "Hi"):
        if is_last(event):
            break


def leave_with(server: Loopback) -> None:
    with to_iter(stream_generate(model(server), "Hi")) as events:
        for event in events:
            if is_last(event):
                break


def raise_in_for(server: Loopback) -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        for event in stream_generate(model(server), "Hi"):
            if is_last(event):
                raise KeyError


@pytest.mark.parametrize("leave", [dispose_on_the_portal, take_and_run, break_for, leave_with, raise_in_for])
def test_a_call_that_is_left_without_a_loop_closes_its_connection(leave: Any) -> None:
    assert_closes(leave)


def test_a_reader_that_is_behind_leaves() -> None:
    """The pump waits for the reader then, not for the socket."""

    def leave(server: Loopback) -> None:
        emitted: list[Event] = []
        with to_iter(stream_generate(model(server), "Hi").do_action(emitted.append), maxsize=1) as events:
            next(events)
            wait_until(lambda: len(emitted) >= 2)

    assert_closes(leave)


@pytest.mark.parametrize("reads", [1, 3])
def test_a_raising_subscriber_is_told_once_and_its_connection_closes(reads: int) -> None:
    seen: list[Event] = []
    told: list[Exception] = []

    async def leave(server: Loopback) -> None:
        def on_next(event: Event) -> None:
            seen.append(event)
            if len(seen) == reads:
                raise KeyError("mine")

        stream_generate(model(server), "Hi").subscribe(on_next, told.append)
        await until(lambda: told)

    assert_closes(leave)
    assert [repr(error) for error in told] == ["KeyError('mine')"]
    assert len(seen) == reads


def test_a_raising_subscriber_without_on_error_reaches_the_loops_handler() -> None:
    told: list[Any] = []

    async def leave(server: Loopback) -> None:
        def on_next(event: Event) -> None:
            raise KeyError("mine")

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        stream_generate(model(server), "Hi").subscribe(on_next)
        await until(lambda: told)

    assert_closes(leave)
    assert [repr(error) for error in told] == ["KeyError('mine')"]


def test_a_subscribers_own_transport_error_is_not_the_streams() -> None:
    """What a subscriber raises is never taken for a broken connection, though it be one of httpx."""
    seen: list[Event] = []
    told: list[Exception] = []

    async def leave(server: Loopback) -> None:
        def on_next(event: Event) -> None:
            seen.append(event)
            raise httpx.ConnectError("mine")

        stream_generate(model(server), "Hi").subscribe(on_next, told.append)
        await until(lambda: told)

    assert_closes(leave)
    assert [repr(error) for error in told] == ["ConnectError('mine')"]
    assert len(seen) == 1


def test_switch_map_closes_the_former_answer() -> None:
    async def leave(server: Loopback) -> None:
        engine, questions, events = model(server), Subject[str](), list[Event]()
        answers = questions.pipe(rx.switch_map(lambda question: stream_generate(engine, question)))
        subscription = answers.subscribe(events.append)
        questions.on_next("one")
        await until(lambda: has_stalled(events))
        questions.on_next("two")
        await until(lambda: len(server.requests) == 2)
        await next_call(server)
        assert_closed(server.connections[0])
        assert server.connections[1].closed_by is None
        subscription.dispose()

    assert_closes(leave)


def test_disposed_after_the_answer_while_the_server_keeps_it_open() -> None:
    """The end marker has come, the end of the body has not."""
    done = Reply([chat_chunk("a"), chat_finish(), b"data: [DONE]\n\n", STALL])

    async def leave(server: Loopback) -> None:
        seen: list[str] = []
        subscription = stream_generate(model(server), "Hi").subscribe(lambda event: seen.append(type(event).__name__))
        await until(lambda: "MessageCompleted" in seen)
        subscription.dispose()

    assert_closes(leave, done)


INTERRUPTED = """
import sys, threading
from types import SimpleNamespace
from rxllm import Engine, OpenAIChat, generate, stream_generate
from tests.closing import next_call
from tests.waiting import blocks_in, wait_until
def say_when_it_waits():
    wait_until(lambda: blocks_in("rxllm.runtime._reading"))
    print("waits", flush=True)
stream = stream_generate(Engine(OpenAIChat(base_url=sys.argv[1]), model="m"), "Hi")
threading.Thread(target=say_when_it_waits, daemon=True).start()
try:
    %s
except KeyboardInterrupt:
    next_call(SimpleNamespace(url=sys.argv[1])).run()
    print("interrupted", flush=True)
    sys.stdin.read()
"""


@pytest.mark.judges
@HTTPX_ONLY
@pytest.mark.parametrize("way", ["stream.run()", "list(stream)"])
@pytest.mark.parametrize("reply", [STALLED, SILENT], ids=["stalled", "silent"])
def test_interrupted_in_a_script(way: str, reply: Reply) -> None:
    with Loopback(also_next(reply)) as server:
        process = script(INTERRUPTED % way, server.url, stdin=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        wait_until(lambda: server.requests)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert_closed(server.connections[0])  # before the program's end, which would close everything
        assert finished(process) == (0, "", "")


def test_an_abandoned_iterator_is_closed_by_the_garbage_collector() -> None:
    def leave(server: Loopback) -> None:
        items = iter(stream_generate(model(server), "Hi"))
        next(items)
        cycle: list[Any] = [items]
        cycle.append(cycle)
        del items, cycle
        gc.collect()

    assert_closes(leave)

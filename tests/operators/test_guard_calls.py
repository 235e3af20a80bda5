"""Guards on real calls: chats and their tools, loops and threads, and the sockets that a trip and a dispose close."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from reactivex import of, timer
from reactivex import operators as rx
from reactivex.testing import TestScheduler

import rxllm
from rxllm import Engine, Fake, Request, StreamError, Thread, ToolCall, alongside, assistant, tool, user
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    MessageStarted,
    TextDelta,
    ToolCallCompleted,
    ToolExecutionStarted,
)
from rxllm.runtime import Hold, Stream, current_gate
from rxllm.testing.loopback import (
    DONE,
    STALL,
    Loopback,
    Reply,
    chat_chunk,
    chat_event,
    chat_finish,
)
from rxllm.testing.marbles import record
from tests.closing import SILENT, also_next, assert_closed, assert_closes, next_call
from tests.operators.support import LONG, assert_held_back
from tests.runtime.support import model
from tests.waiting import turns, until, wait_until


def no_secret(text: str) -> bool:
    return "secret" not in text


async def no_secret_later(text: str) -> bool:
    await turns()  # a tool must not overtake it
    return "secret" not in text


def no_secret_as_stream(text: str) -> Any:
    return timer(0.02).pipe(rx.map(lambda _: no_secret(text)))


every_check = pytest.mark.parametrize("check", [no_secret, no_secret_later, no_secret_as_stream])

Guarded = Callable[[Any, Any, list[Any]], Any]


def inside(adapter: Any, check: Any, tools: list[Any]) -> Any:
    return rxllm.stream(Engine(adapter, "m", operators=[ops.guard(check)], retry=False), "Hi", tools=tools)


def outside(adapter: Any, check: Any, tools: list[Any]) -> Any:
    return rxllm.stream(Engine(adapter, "m", retry=False), "Hi", tools=tools).pipe(ops.guard(check))


wherever = pytest.mark.parametrize("guarded", [inside, outside])


class Tools:
    """A tool that notes its calls, which have the numbers `x`."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def all(self) -> list[Any]:
        @tool
        def look(x: int = 0) -> str:
            self.calls.append(x)
            return "seen"

        return [look]

    def call_last(self) -> None:
        """Have another chat call the tool with 9: what is not called before that is not called."""
        rxllm.chat(Fake(ToolCall("c9", "look", {"x": 9}), "Done."), "Hi", tools=self.all()).run()


# Chats


@every_check
@wherever
def test_no_tool_of_a_step_that_trips_runs(guarded: Guarded, check: Any) -> None:
    tools = Tools()
    fake = Fake(["Fine. The secret is out. ", ToolCall("c1", "look")], "Done.")
    events = list(guarded(fake, check, tools.all()))
    tools.call_last()
    assert tools.calls == [9]
    assert len(fake.requests) == 1
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == "Fine. "
    assert not any(isinstance(event, ToolCallCompleted | ToolExecutionStarted) for event in events)
    (error,) = [event.error for event in events if isinstance(event, ErrorEvent)]
    assert (error.reason, error.metadata["text"]) == ("guard_tripped", "The secret is out.")


@every_check
@wherever
def test_a_later_steps_tools_wait_too(guarded: Guarded, check: Any) -> None:
    tools = Tools()
    fake = Fake(["Fine.", ToolCall("c1", "look", {"x": 1})], ["A secret.", ToolCall("c2", "look", {"x": 2})], "Done.")
    guarded(fake, check, tools.all()).run()
    tools.call_last()
    assert tools.calls == [1, 9]


@every_check
@wherever
def test_tools_run_when_the_text_before_them_has_passed(guarded: Guarded, check: Any) -> None:
    tools = Tools()
    turns = (["Let me see.", ToolCall("c1", "look", {"x": 1})], ["Done."])
    result = guarded(Fake(*turns), check, tools.all()).pipe(ops.to_chat_result()).run()
    assert (tools.calls, result.halted_reason, result.final_response.output_text) == ([1], "completed", "Done.")
    assert result == rxllm.chat(Fake(*turns), "Hi", tools=Tools().all()).run()


def test_tools_outside_wait_for_text_without_an_end() -> None:
    """A source that only completes gives no event at which the last sentence would end."""
    for check, calls in ((no_secret_later, [0]), (lambda text: False, [])):
        tools = Tools()
        source = of(MessageStarted(assistant("")), TextDelta("No end"), ToolCallCompleted("c1", "look", {}, "{}"))
        Stream.of(source).pipe(ops.run_tools(tools.all(), thread=Thread((user("Hi"),))), ops.guard(check)).run()
        assert tools.calls == calls


def test_a_chat_keeps_only_the_text_that_was_shown() -> None:
    engine = Engine(Fake("Fine. The secret is out. More."), operators=[ops.guard(no_secret)])
    result = rxllm.chat(engine, "Hi").run()
    assert result.final_response is not None
    assert (result.halted_reason, result.final_response.output_text) == ("error", "Fine. ")
    assert result.error == result.final_response.error
    assert "out" not in repr(result.thread)
    assert rxllm.generate(engine, "Hi").run().finish_reason == "error"


def test_a_guard_before_the_first_event_is_raised() -> None:
    async def silent(request: Request, call: Any) -> Any:
        yield TextDelta("secret")

    events = rxllm.stream_generate(silent, "Hi").pipe(ops.only(TextDelta), ops.guard(no_secret))
    with pytest.raises(StreamError, match="tripped"):
        events.run()


@every_check
def test_two_guards_are_both_heard(check: Any) -> None:
    seen: list[str] = []

    def also(text: str) -> None:
        seen.append(text)

    engine = Engine(Fake("Fine. The secret is out."), operators=[ops.guard(check), ops.guard(also)])
    assert rxllm.generate(engine, "Hi").run().output_text == "Fine. "
    assert seen == ["Fine. "]


@pytest.mark.parametrize("guarded", [inside, outside])
def test_tools_wait_in_virtual_time_too(guarded: Guarded) -> None:
    def check(text: str) -> Any:
        return timer(2).pipe(rx.map(lambda _: no_secret(text)))

    tools = Tools()
    fake = Fake(["Fine.", ToolCall("c1", "look", {"x": 1})], ["A secret.", ToolCall("c2", "look", {"x": 2})], "Done.")
    notes = record(TestScheduler(), lambda: guarded(fake, check, tools.all()))
    assert tools.calls == [1]
    assert notes[-1][:2] == (4, "end")


# Loops, threads and back-pressure


@every_check
def test_it_is_read_in_every_way(check: Any) -> None:
    engine = Engine(Fake("One. Two."), operators=[ops.guard(check)])

    async def main() -> None:
        assert (await rxllm.generate(engine, "Hi")).output_text == "One. Two."
        assert "".join([piece async for piece in rxllm.stream_generate(engine, "Hi").pipe(ops.text())]) == "One. Two."

    asyncio.run(main())
    assert "".join(rxllm.stream_generate(engine, "Hi").pipe(ops.text())) == "One. Two."
    assert rxllm.generate(engine, "Hi").run().output_text == "One. Two."
    done = threading.Event()
    rxllm.generate(engine, "Hi").subscribe(on_completed=done.set)
    wait_until(done.is_set)


def test_text_is_released_on_the_loop_of_the_call() -> None:
    threads = set[int]()

    def other_thread(text: str) -> Any:
        return timer(0.001).pipe(rx.ignore_elements())

    async def main() -> None:
        engine = Engine(Fake("One. Two."), operators=[ops.guard(other_thread)])
        await rxllm.stream_generate(engine, "Hi").pipe(ops.tap(lambda event: threads.add(threading.get_ident())))

    asyncio.run(main())
    assert threads == {threading.get_ident()}


@pytest.mark.sockets
def test_a_check_that_never_ends_slows_the_source_down() -> None:
    async def never(text: str) -> None:
        await asyncio.Event().wait()

    async def main(server: Loopback) -> None:
        subscription = rxllm.stream_generate(model(server), "Hi").pipe(ops.guard(never)).subscribe()
        await until(lambda: server.connections)
        await rxllm.generate(model(server), "Hi")
        assert_held_back(server)
        subscription.dispose()
        await until(lambda: server.connections[0].closed_by == "client")

    with Loopback(LONG) as server:
        asyncio.run(main(server))


def test_many_events_without_a_sentences_end_are_checked_so_that_the_source_goes_on() -> None:
    checked: list[int] = []

    async def check(text: str) -> None:
        await asyncio.sleep(0)
        checked.append(len(text))

    engine = Engine(Fake(["x"] * 5000), operators=[ops.guard(check, every=10_000)])
    assert len(rxllm.generate(engine, "Hi").run().output_text) == 5000
    assert sum(checked) == 5000
    assert 1 < len(checked) < 10


def test_each_step_waits_for_the_reader_and_no_earlier_guard() -> None:
    gates: list[Any] = []

    class Watching(Fake):
        def stream(self, request: Any, call: Any) -> Any:
            gates.append(current_gate())
            return super().stream(request, call)

    fake = Watching(["One.", ToolCall("c1", "look")], ["Two.", ToolCall("c2", "look")], "Three.")

    async def main() -> None:
        async for _ in inside(fake, no_secret_later, Tools().all()):
            pass

    asyncio.run(main())
    assert len(gates) == 3
    assert [isinstance(gate, Hold) for gate in gates] == [True] * 3
    readers = [gate._reader for gate in gates]
    assert readers[0] is not None
    assert readers[0] is readers[1] is readers[2]
    assert not isinstance(readers[0], Hold)


def test_a_slow_reader_still_slows_the_source_behind_a_guard() -> None:
    counts: list[int] = []

    async def main() -> None:
        emitted = 0

        def count(event: Any) -> None:
            nonlocal emitted
            emitted += 1

        source = rxllm.stream_generate(Fake(["One. "] * 500), "Hi").pipe(ops.tap(count), ops.guard(no_secret))
        async with rxllm.to_async_iter(source, 8) as items:
            async for _ in items:
                counts.append(emitted)
                await asyncio.sleep(0)

    asyncio.run(main())
    assert counts[0] < 30
    assert len(counts) > 500


# Sockets


def assert_all_closed(*servers: Loopback) -> None:
    for server in servers:
        next_call(server).run()
        *connections, _ = server.connections
        for connection in connections:
            assert_closed(connection)


@pytest.mark.sockets
@pytest.mark.parametrize("check", [no_secret, no_secret_later])
def test_a_trip_closes_the_models_socket(check: Any) -> None:
    async def trip(server: Loopback) -> None:
        response = await rxllm.generate(model(server).with_operators(ops.guard(check)), "Hi")
        assert response.output_text == "Fine. "

    assert_closes(trip, Reply([chat_chunk("Fine. "), chat_chunk("A secret. "), chat_chunk("M"), STALL]))


def with_call(text: str) -> list[Any]:
    function = {"name": "look", "arguments": "{}"}
    call = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
    return [chat_chunk(text), chat_event(call), chat_finish("tool_calls"), DONE]


@pytest.mark.sockets
@wherever
def test_a_trip_in_a_later_step_of_a_chat_closes_its_socket(guarded: Guarded) -> None:
    tools = Tools()

    steps = [Reply(with_call("Let me see.")), Reply([chat_chunk("A secret. "), chat_chunk("M"), STALL])]
    with Loopback(also_next(steps)) as server:
        events = list(guarded(model(server).adapter, no_secret, tools.all()))
        assert len(server.requests) == 2
        assert tools.calls == [0]
        assert any(isinstance(event, ErrorEvent) for event in events)
        assert_all_closed(server)


@contextlib.contextmanager
def guarded_servers() -> Iterator[tuple[Loopback, Loopback]]:
    """A model that says a few sentences, and a small one, for the checks, that says nothing."""
    main = Reply([chat_chunk("A secret.\nTwo.\nThree.\n4"), STALL])
    with Loopback(also_next(main)) as talking, Loopback(also_next(SILENT)) as silent:
        yield talking, silent


@pytest.mark.sockets
def test_a_dispose_closes_the_model_and_the_guards_that_are_models() -> None:
    with guarded_servers() as (main, small):
        judge = model(small)

        def check(text: str) -> Any:
            return rxllm.generate(judge, f"Is this fine? {text}").map(lambda response: response.output_text == "yes")

        subscription = rxllm.stream_generate(model(main), "Hi").pipe(ops.guard(check)).subscribe()
        small.wait_requests(2)
        subscription.dispose()
        assert_all_closed(main, small)


def test_a_small_model_is_a_guard() -> None:
    def verdict(request: rxllm.Request) -> str:
        return "no" if "secret" in request.messages[-1].text else "yes"

    judge = Fake(verdict)

    def check(text: str) -> Any:
        return rxllm.generate(judge, f"Is this fine? {text}").map(lambda response: response.output_text == "yes")

    response = rxllm.generate(Engine(Fake("Fine. A secret."), operators=[ops.guard(check)]), "Hi").run()
    assert response.output_text == "Fine. "
    assert response.error is not None


@pytest.mark.sockets
def test_a_trip_closes_the_guards_that_still_run() -> None:
    async def check(text: str) -> bool:
        if "secret" in text:
            await until(lambda: len(small.requests) == 2)
            return False
        await rxllm.generate(model(small), text)
        return True

    with guarded_servers() as (main, small):
        guarded = rxllm.stream_generate(model(main), "Hi").pipe(ops.guard(check, max_lag=60.0))
        (*_, error) = guarded
        assert isinstance(error, ErrorEvent)
        assert error.error.reason == "guard_tripped"
        assert_all_closed(main, small)


# Guards of the input


@pytest.mark.parametrize(
    ("verdict", "reason", "message"),
    [
        (False, "guard_tripped", "the guard 'moderate' tripped"),
        ("off topic", "guard_tripped", "the guard 'moderate' tripped: off topic"),
        (3, "guard_failed", "the guard 'moderate' returned 3, which is not a verdict"),
    ],
)
@pytest.mark.parametrize("as_stream", [True, False])
def test_a_guard_of_the_input_has_the_same_verdicts(verdict: Any, reason: str, message: str, as_stream: bool) -> None:
    def moderate(request: Request) -> Any:
        return timer(0.01).pipe(rx.map(lambda _: verdict)) if as_stream else verdict

    seen: list[Any] = []
    engine = Engine(Fake("Hello"), prepare=[alongside(moderate)])
    with pytest.raises(StreamError) as caught:
        rxllm.stream(engine, "Hi").pipe(ops.tap(seen.append)).run()
    assert caught.value.reason == reason
    assert caught.value.message.startswith(message)
    assert caught.value.metadata["guard"] == "moderate"
    assert seen == []


@pytest.mark.sockets
def test_a_trip_of_the_input_closes_the_answers_socket() -> None:
    async def trip(server: Loopback) -> None:
        async def check(request: Request) -> bool:
            await until(lambda: server.connections and server.connections[0].bytes_sent > 0)
            return False

        engine = Engine(model(server).adapter, "m", prepare=[alongside(check)], retry=False)
        with pytest.raises(StreamError, match="the guard 'check' tripped"):
            await rxllm.generate(engine, "Hi")

    assert_closes(trip, Reply([chat_chunk("a"), STALL]))


@pytest.mark.sockets
def test_an_answer_that_waits_for_its_check_is_slowed_down() -> None:
    passed = asyncio.Event()

    async def check(request: Request) -> None:
        await passed.wait()

    async def main(server: Loopback) -> None:
        engine = Engine(model(server).adapter, "m", prepare=[alongside(check)], retry=False)
        texts: list[str] = []
        subscription = rxllm.stream_generate(engine, "Hi").pipe(ops.text()).subscribe(texts.append)
        await until(lambda: server.connections)
        await rxllm.generate(model(server), "Hi")
        assert_held_back(server)
        assert texts == []
        passed.set()
        await until(lambda: len(texts) > 2048)  # it goes on
        subscription.dispose()
        await until(lambda: server.connections[0].closed_by == "client")

    with Loopback(LONG) as server:
        asyncio.run(main(server))

"""``SystemExit``, outcomes of pytest and the like are raised where somebody waits, and end nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import reactivex
from reactivex import Subject

import rxllm
from rxllm import Engine, Event, Fake, Request, Stream, TextDelta, ToolCall, generate, stream_generate, tool
from rxllm import operators as ops
from rxllm.runtime import call_loop
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.values import Call
from tests.closing import STALLED
from tests.runtime.support import finished, model, script
from tests.waiting import PATIENCE, until, wait_until


class Outcome(BaseException):
    """As pytest's own are."""


EXITS: list[BaseException] = [SystemExit(3), KeyboardInterrupt(), Outcome("no"), GeneratorExit()]
WAYS: dict[str, Callable[[Stream[Any]], Any]] = {
    "run": lambda stream: stream.run(),
    "for": list,
    "await": lambda stream: asyncio.run(_last(stream)),
    "async for": lambda stream: asyncio.run(_all(stream)),
}


async def _last(stream: Stream[Any]) -> Any:
    return await stream


async def _all(stream: Stream[Any]) -> list[Any]:
    return [item async for item in stream]


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def hello(request: Any = None, call: Any = None) -> Fake:
    return Fake(["Hel", ("delay", 0.001), "lo"])


def calls(name: str) -> Fake:
    return Fake(ToolCall("c0", name, {}), "Done.")


def with_tool(error: BaseException, **options: Any) -> Stream[Any]:
    @tool
    def look() -> str:
        raise error

    return rxllm.stream(calls("look"), "Hi", tools=[look], **options)


def with_async_tool(error: BaseException) -> Stream[Any]:
    @tool
    async def look() -> str:
        await asyncio.sleep(0)
        raise error

    return rxllm.stream(calls("look"), "Hi", tools=[look])


def with_generator(error: BaseException) -> Stream[Any]:
    async def adapter(request: Request, call: Call) -> AsyncIterator[Event]:
        yield TextDelta("Hel")
        raise error

    return stream_generate(adapter, "Hi")


def with_adapter(error: BaseException) -> Stream[Any]:
    class Adapter:
        def stream(self, request: Request, call: Call) -> Any:
            raise error

    return stream_generate(Adapter(), "Hi")


def with_answered_tool(error: BaseException, **options: Any) -> Stream[Any]:
    @tool
    def look() -> str:
        raise ValueError("no")

    return rxllm.stream(calls("look"), "Hi", tools=[look], **options)


def with_approver(error: BaseException) -> Stream[Any]:
    look = tool(name="look", handler=lambda arguments: "seen", approval=True)
    return rxllm.stream(calls("look"), "Hi", tools=[look], approve=raising(error))


PLACES: dict[str, Callable[[BaseException], Stream[Any]]] = {
    "on_event": lambda error: generate(hello(), "Hi", on_event=raising(error)),
    "tap": lambda error: stream_generate(hello(), "Hi").pipe(ops.tap(raising(error))),
    "a reactivex operator": lambda error: stream_generate(hello(), "Hi").map(raising(error)),
    "an engine's operator": lambda error: generate(Engine(hello(), operators=[ops.tap(raising(error))]), "Hi"),
    "behind catch and retry": lambda error: (
        stream_generate(hello(), "Hi").map(raising(error)).retry(3).catch(reactivex.of("caught"))
    ),
    "the end": lambda error: stream_generate(hello(), "Hi").do_action(on_completed=raising(error)),
    "continue_with": lambda error: stream_generate(hello(), "Hi").pipe(ops.continue_with(raising(error))),
    "a parser": lambda error: stream_generate(hello(), "Hi").pipe(ops.to_response(raising(error))),
    "halt_when": lambda error: rxllm.stream(
        Fake(ToolCall("c0", "look", {})), "Hi", tools=[seen], halt_when=raising(error)
    ),
    "on_progress": lambda error: rxllm.generate_many(hello(), ["a", "b"], on_progress=raising(error)),
    "a request of many": lambda error: rxllm.generate_many(hello(), ["a", "b"], on_event=raising(error)),
    "one of several": lambda error: rxllm.merge_labelled({"a": stream_generate(hello(), "Hi").map(raising(error))}),
    "a race": lambda error: rxllm.race(stream_generate(hello(), "Hi").pipe(ops.tap(raising(error)))),
    "smooth": lambda error: stream_generate(Fake("word " * 9), "Hi").pipe(ops.smooth(), ops.tap(raising(error))),
    "snapshots": lambda error: stream_generate(hello(), "Hi").pipe(ops.snapshots(0.01), ops.tap(raising(error))),
    "stall_warning": lambda error: stream_generate(Fake(["Hel", ("delay", 5), "lo"]), "Hi").pipe(
        ops.stall_warning(0.01, raising(error))
    ),
    "a generator": with_generator,
    "an adapter": with_adapter,
    "an observer": lambda error: generate(Engine(hello(), observers=[raising(error)]), "Hi"),
    "an encoder": lambda error: rxllm.stream(calls("look"), "Hi", tools=[seen], tool_result_encoder=raising(error)),
    "an approver": with_approver,
    "on_tool_error": lambda error: with_answered_tool(error, on_tool_error=raising(error)),
}
TOOLS: dict[str, Callable[[BaseException], Stream[Any]]] = {
    "a tool": with_tool,
    "an async tool": with_async_tool,
    "an executor": lambda error: rxllm.stream(calls("look"), "Hi", tools=[seen], tool_executor=raising(error)),
}
seen = tool(name="look", handler=lambda arguments: "seen")


@pytest.mark.parametrize("error", EXITS, ids=repr)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_whoever_waits_gets_it(place: Callable[[BaseException], Stream[Any]], error: BaseException) -> None:
    for way in WAYS.values():
        with pytest.raises(type(error)) as caught:
            way(place(error))
        assert caught.value is error
    assert generate(hello(), "Hi").run().output_text == "Hello"  # rxllm's own loop goes on


@pytest.mark.parametrize("place", TOOLS.values(), ids=TOOLS)
def test_an_outcome_of_a_test_ends_a_chat_from_its_tools_too(place: Callable[..., Stream[Any]]) -> None:
    for way in WAYS.values():
        with pytest.raises(Outcome):
            way(place(Outcome("no")))


@pytest.mark.parametrize("place", TOOLS.values(), ids=TOOLS)
def test_a_tool_that_exits_has_failed_as_before(place: Callable[..., Stream[Any]]) -> None:
    result = place(SystemExit(1)).run().result
    assert "tried to end the process" in result.thread[-2].text


def test_a_waiter_that_no_context_leads_to_is_reached_through_the_operators() -> None:
    questions = Subject[str]()
    answers = questions.switch_map(lambda question: stream_generate(hello(), question).map(raising(Outcome("no"))))

    def ask() -> None:
        wait_until(lambda: questions.observers)
        questions.on_next("Hi")

    asker = threading.Thread(target=ask)
    asker.start()
    with pytest.raises(Outcome):
        rxllm.run(answers)
    asker.join()


@pytest.mark.sockets
@pytest.mark.parametrize("error", [SystemExit(3), Outcome("no")], ids=repr)
@pytest.mark.parametrize("at", ["on_next", "on_error", "smoothed", "an operator"])
def test_where_nobody_waits_it_is_logged_once_and_the_call_is_closed(
    at: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with Loopback(STALLED) as server, caplog.at_level(logging.ERROR):
        stream = stream_generate(model(server), "Hi")
        if at == "on_next":
            stream.subscribe(raising(error))
        elif at == "on_error":
            stream.map(lambda event: 1 / 0).subscribe(on_error=raising(error))
        elif at == "smoothed":
            stream.pipe(ops.smooth()).subscribe(raising(error))
        else:
            stream.pipe(ops.tap(raising(error))).subscribe()
        server.wait_requests(1)
        server.connections[0].wait_closed()
        assert server.connections[0].closed_by == "client"
        assert generate(hello(), "Hi").run().output_text == "Hello"
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [type(error)]


def test_a_place_in_the_queue_is_given_back() -> None:
    limited = Engine(hello(), operators=[ops.rate_limited(concurrent=1)])
    failing = limited.with_operators(ops.tap(raising(Outcome("no"))))
    for _ in range(2):
        with pytest.raises(Outcome):
            generate(failing, "Hi").run()
    ended = threading.Event()
    stream_generate(failing, "Hi").subscribe(on_error=lambda error: ended.set())
    assert ended.wait(PATIENCE)
    assert generate(limited, "Hi").run().output_text == "Hello"


@pytest.mark.judges
@pytest.mark.parametrize(
    "code",
    [
        "ask().map(lambda event: 1 / 0).subscribe(on_error=lambda error: sys.exit(1))",
        "ask().subscribe(lambda event: sys.exit(1))",
        "call_loop().call_soon_threadsafe(sys.exit, 1)\nassert generate(engine, 'Hi').run().output_text == 'Hello'",
        "asyncio.run_coroutine_threadsafe(leave(), call_loop())\nassert generate(engine, 'Hi').run().output_text",
    ],
    ids=["on_error", "on_next", "a callback of the loop", "a task of the loop"],
)
def test_the_process_goes_on_and_its_exit_code_is_its_own(code: str) -> None:
    begin = """
import asyncio, sys
from rxllm import Engine, OpenAIChat, generate, stream_generate
from rxllm.runtime import call_loop
engine = Engine(OpenAIChat(base_url=sys.argv[1]), model="m", retry=False)
def ask():
    return stream_generate(engine, "Hi")
async def leave():
    sys.exit(1)
"""
    with Loopback(Reply(chat("Hel", "lo"))) as server:
        code, out, err = finished(script(begin + code + "\nprint('bye')", server.url))
    assert (code, out) == (0, "bye\n")
    assert "SystemExit: 1" in err


def test_nobody_who_has_stopped_waiting_swallows_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A subscription that a callback starts outlives the stream, whose waiter is gone."""
    gone, done = threading.Event(), threading.Event()

    async def late(request: Request, call: Call) -> AsyncIterator[Event]:
        await until(gone.is_set)
        yield TextDelta("late")

    def begin_another(event: Event) -> None:
        if isinstance(event, TextDelta):
            stream_generate(late, "Hi").do_action(on_completed=later).subscribe()

    def later() -> None:
        call_loop().call_soon(done.set)
        raise LookupError("late")

    with caplog.at_level(logging.ERROR):
        generate(Fake("Hello"), "Hi", on_event=begin_another).run()
        gone.set()
        assert done.wait(PATIENCE)
        assert generate(hello(), "Hi").run().output_text == "Hello"
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [LookupError]

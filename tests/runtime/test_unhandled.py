"""Errors that no ``on_error`` takes reach whoever waits for the end, so that nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from reactivex import Observable, abc

from rxllm import Engine, Event, Fake, Request, Stream, StreamError, TextDelta, generate, stream_generate
from rxllm import operators as ops
from rxllm.runtime import conclude, fail
from rxllm.runtime.back_pressure import read_by
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.values import Call
from tests.runtime.support import model
from tests.waiting import until


def raising(at: str) -> Callable[[Observable[Any]], Stream[Any]]:
    """Raises in the handler of the source's end, or of its error."""

    def boom(*_: Any) -> None:
        raise LookupError(at)

    def operator(source: Observable[Any]) -> Stream[Any]:
        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            on_error = boom if at == "error" else observer.on_error
            on_completed = boom if at == "end" else observer.on_completed
            return source.subscribe(observer.on_next, on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator


async def generator(request: Request, call: Call) -> AsyncIterator[Event]:
    yield TextDelta("Hi")


ENGINES = {"Fake": Fake("Hi"), "a pause": Fake(["Hi", ("delay", 0.001), "Ho"]), "a generator": generator}
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


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_whoever_waits_for_the_end_is_told(engine: Any, way: Callable[[Stream[Any]], Any]) -> None:
    with pytest.raises(LookupError, match="end"):
        way(stream_generate(engine, "Hello").pipe(raising("end")))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_whoever_waits_is_told_when_the_handler_of_an_error_raises(way: Callable[[Stream[Any]], Any]) -> None:
    torn = Fake(["Hel", StreamError("truncated")])
    with pytest.raises(LookupError, match="error"):
        way(stream_generate(torn, "Hello").pipe(ops.raise_errors(), raising("error")))


@pytest.mark.sockets
def test_among_an_engine_s_operators_and_over_http() -> None:
    with Loopback(Reply(chat("Hi"))) as server, pytest.raises(LookupError, match="end"):
        generate(model(server).with_operators(raising("end")), "Hello").run()
    with pytest.raises(LookupError, match="end"):
        generate(Engine(generator, operators=[raising("end")]), "Hello").run()


def test_a_plain_subscription_is_told_by_the_loop_as_before() -> None:
    told: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        stream_generate(generator, "Hello").pipe(raising("end")).subscribe()
        await until(lambda: told)

    asyncio.run(main())
    assert [type(error) for error in told] == [LookupError]


class Subscriber(abc.ObserverBase[Any]):
    """Notes what comes, and raises `error` where it is told to."""

    def __init__(self, **raising: BaseException) -> None:
        self.calls: list[Any] = []
        self._raising = raising

    def _note(self, name: str, value: Any = None) -> None:
        self.calls.append((name, value))
        if name in self._raising:
            raise self._raising[name]

    def on_next(self, value: Any) -> None:
        self._note("next", value)

    def on_error(self, error: Exception) -> None:
        self._note("error", error)

    def on_completed(self) -> None:
        self._note("completed")


MINE = KeyError("mine")


def test_concluding_emits_and_completes() -> None:
    subscriber = Subscriber()
    conclude(subscriber, [1, 2])
    assert subscriber.calls == [("next", 1), ("next", 2), ("completed", None)]


def test_an_exception_of_a_subscriber_at_the_last_items_is_its_own_error() -> None:
    subscriber = Subscriber(next=MINE)
    conclude(subscriber, [1, 2])
    assert subscriber.calls == [("next", 1), ("error", MINE)]


def test_an_exception_of_the_handler_of_an_error_goes_to_whoever_waits(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[BaseException] = []
    with read_by(None, lambda error: heard.append(error) is None):
        fail(Subscriber(error=MINE), LookupError())
    assert (heard, caplog.text) == ([MINE], "")
    fail(Subscriber(error=MINE), LookupError())
    assert "unhandled error" in caplog.text


def test_an_exit_goes_to_on_error_only_where_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[BaseException] = []
    subscriber, error = Subscriber(), SystemExit(3)
    with read_by(None, lambda error: heard.append(error) is None):
        fail(subscriber, error)
    assert (heard, subscriber.calls, caplog.text) == ([error], [], "")
    fail(subscriber, error)
    assert subscriber.calls == [("error", error)]
    assert caplog.text.count("unhandled error") == 1

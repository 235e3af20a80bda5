"""The option ``timeout``: for every adapter, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from reactivex import Observable, never
from reactivex.testing import ReactiveTest, TestScheduler

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    ErrorEvent,
    Event,
    Fake,
    Request,
    RetryPolicy,
    StreamError,
    TextDelta,
    Timeouts,
    ToolCall,
    ValidationError,
    chat,
    generate,
    stream_generate,
    tool,
)
from rxllm import operators as ops
from rxllm.runtime import Stream, retrying
from rxllm.testing import World, simulate
from rxllm.testing.marbles import record
from rxllm.values import Call

AGAIN = RetryPolicy(max_attempts=3, base_delay=10, jitter=0)


class Noting(Fake):
    """Remembers each call."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(*turns)
        self.calls: list[Call] = []

    def stream(self, request: Request, call: Call) -> Any:
        self.calls.append(call)
        return super().stream(request, call)


def at(*delays_and_words: Any) -> list[Any]:
    """A script: a number is a pause."""
    return [("delay", each) if isinstance(each, int) else each for each in delays_and_words]


def response(adapter: Any, disposed: int | None = None, **opts: Any) -> tuple[int, Any]:
    """When the response or the error comes, and it."""
    notes = record(TestScheduler(), lambda: generate(adapter, "Hi", **opts), disposed)
    tick, _, what = notes[0]
    return tick, what


def test_a_number_is_the_longest_silence_of_every_adapter() -> None:
    tick, answer = response(Fake(at("Hel", 20, "lo")), timeout=5, retry=False)
    assert (tick, answer.output_text, answer.error.reason) == (5, "Hel", "timeout")
    assert answer.error.metadata == {"limit": "idle", "seconds": 5, "events": 2}
    assert response(Fake(at(4, "Hel", 4, "lo", 4)), timeout=5)[1].output_text == "Hello"


def test_the_silence_before_the_first_content_too() -> None:
    """A first frame is no content."""
    tick, answer = response(Fake(at(20, "Hello")), timeout=5, retry=False)
    assert (tick, answer.output_text, answer.error.metadata["limit"]) == (5, "", "first")


def test_a_first_content_that_is_late_is_a_failed_attempt() -> None:
    """The limits are each attempt's: 5 s, 10 s of waiting, and the next one has its own 5."""
    model = Fake(at(20, "late"), at(4, "Hello"))
    tick, answer = response(model, timeout=Timeouts(first=5), retry=AGAIN)
    assert (tick, answer.output_text, len(model.requests)) == (19, "Hello", 2)


def test_the_last_late_attempt_is_the_error() -> None:
    class Silent:
        def stream(self, request: Request, call: Call) -> Observable[Event]:
            return never()

    tick, error = response(Silent(), timeout=Timeouts(first=5), retry=AGAIN)
    assert tick == 5 + 10 + 5 + 20 + 5
    assert (type(error), error.reason) == (AdapterError, "timeout")
    assert error.metadata == {"limit": "first", "seconds": 5, "events": 0}


def test_the_total_is_for_all_attempts_together() -> None:
    model = Fake(at(20, "late"))
    tick, error = response(model, timeout=Timeouts(first=5, total=17), retry=AGAIN)
    assert (tick, len(model.requests), error.metadata["limit"]) == (17, 2, "total")


def test_a_custom_adapter_is_held_to_it() -> None:
    class Slow:
        def stream(self, request: Request, call: Call) -> Observable[Event]:
            return TestScheduler().create_cold_observable(ReactiveTest.on_next(1, TextDelta("never played")))

    tick, error = response(Slow(), timeout=3, retry=False)
    assert (tick, error.reason) == (3, "timeout")


def test_an_async_generator_is_ended() -> None:
    ended: list[str] = []

    async def slow(request: Request, call: Call) -> Any:
        try:
            yield TextDelta("Hel")
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    async def app(world: World) -> Any:
        return await generate(slow, "Hi", timeout=5)

    answer = simulate(app, faults=()).value
    assert (answer.output_text, type(answer.error)) == ("Hel", StreamError)
    assert ended == ["slow"]


def test_each_response_of_a_chat_has_its_own() -> None:
    @tool
    def nap() -> str:
        return "done"

    model = Fake(at(4, ToolCall("c0", "nap", {})), at(4, "Hello"), at(9, "late"))
    engine = Engine(model, tools=(nap,), params={"timeout": Timeouts(total=6)})
    scheduler = TestScheduler()
    ((tick, _, result), _) = record(scheduler, lambda: chat(engine, "Hi"))
    assert (tick, result.halted_reason) == (8, "completed")


def test_the_engine_s_middleware_comes_after_it() -> None:
    other = Fake("Hello")
    engine = Engine(Fake(at(20, "late")), operators=(ops.fallback(other),), retry=False)
    tick, answer = response(engine, timeout=Timeouts(total=5))
    assert (tick, answer.output_text) == (5, "Hello")


@pytest.mark.parametrize(
    ("timeout", "silence"),
    [
        (None, None),
        (7, 7),
        (Timeouts(first=30, idle=5), 30),
        (Timeouts(first=5, idle=30), 30),
        (Timeouts(first=5), None),
        (Timeouts(idle=5), None),
        (Timeouts(total=5), None),
    ],
)
def test_an_adapter_reads_it_as_the_longest_wait_for_bytes(timeout: Any, silence: float | None) -> None:
    """Where not every silence has a limit, a transport keeps its own."""
    model = Noting("Hello")
    generate(model, "Hi", **({} if timeout is None else {"timeout": timeout})).run()
    assert model.calls[0].timeout == silence


def test_without_it_nothing_is_added() -> None:
    """No stage between an adapter's stream and the retry."""
    made: list[Any] = []

    class Plain:
        def stream(self, request: Request, call: Call) -> Observable[Event]:
            made.append(Counted())
            return made[-1]

    class Counted(Stream[Event]):
        def pipe(self, *operators: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise AssertionError("nothing is to be applied to it")

        def __init__(self) -> None:
            super().__init__(lambda observer, scheduler: never().subscribe(observer))

    stream_generate(Plain(), "Hi").subscribe().dispose()
    assert len(made) == 1
    assert retrying(lambda: made[0], RetryPolicy(max_attempts=1)) is made[0]


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5", True, (1, 2), {"first": 1}])
@pytest.mark.parametrize("function", [rxllm.generate, rxllm.stream_step, rxllm.chat, rxllm.session.reply])
def test_what_makes_no_sense_raises_at_the_call(function: Any, wrong: Any) -> None:
    args = (rxllm.Session(), "Hi") if function is rxllm.session.reply else ("Hi",)
    with pytest.raises(ValidationError) as caught:
        function(Fake("Hello"), *args, timeout=wrong)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", ("timeout",))


def test_so_does_an_engine_s() -> None:
    with pytest.raises(ValidationError, match="timeout"):
        generate(Engine(Fake("Hello"), params={"timeout": -1}), "Hi")


@pytest.mark.parametrize("name", ["first", "idle", "total"])
def test_a_limit_that_makes_no_sense_is_named(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Timeouts(**{name: 0})
    assert [path for path, _ in caught.value.errors] == [(name,)]
    with pytest.raises(ValidationError) as caught:
        Timeouts(first=-1, idle=0)
    assert [path for path, _ in caught.value.errors] == [("first",), ("idle",)]


def test_an_answer_in_time_is_untouched() -> None:
    bare = list(stream_generate(Fake(["Hel", "lo"]), "Hi"))
    timed = list(stream_generate(Fake(["Hel", "lo"]), "Hi", timeout=Timeouts(first=60, idle=60, total=60)))
    assert timed == bare
    assert not any(isinstance(event, ErrorEvent) for event in timed)

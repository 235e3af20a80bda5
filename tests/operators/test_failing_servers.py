"""The operators of time and failure against servers that stall, drop, fail late and answer slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rxllm import (
    AdapterError,
    Engine,
    Event,
    StreamError,
    TextDelta,
    Timeouts,
    Usage,
    generate,
    stream,
    stream_generate,
)
from rxllm import operators as ops
from rxllm.testing import World, simulate
from rxllm.testing.loopback import (
    DONE,
    STALL,
    Cut,
    Loopback,
    Pause,
    Reply,
    chat,
    chat_chunk,
    chat_finish,
    endless,
)
from tests.runtime.support import SILENT, STALLED, assert_prompt, close_times, model, now, on_loop, until, until_closed

SOON = 0.1
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
COST = Usage(5, 3, total_tokens=8)
WHOLE = [chat_chunk("Hel"), chat_chunk("lo"), chat_finish(usage=USAGE), DONE]
TORN = [chat_chunk("Hel"), chat_chunk("l"), Cut.RESET]
PING = b": keep-alive\n\n"


def pinging() -> Reply:
    """A server that says that it is alive, and nothing else."""
    return Reply(endless(lambda i: chat_chunk("a") if i == 0 else PING, every=0.01))


def simulated(app: Callable[[World], Awaitable[Any]]) -> Any:
    """What `app` returns, in virtual time; at its end no connection is open, and nothing else is left behind."""
    return simulate(app, faults=()).value


def told(events: Any) -> Callable[[Loopback], float]:
    """When the subscriber of ``events(server)`` hears the first error, streamed or raised; the loop lives on.

    Once more if the time was over before there was a connection.
    """

    async def act(server: Loopback) -> float:
        heard: list[float] = []
        while not server.connections:
            heard.clear()
            subscription = events(server).pipe(ops.raise_errors()).subscribe(on_error=lambda error: heard.append(now()))
            await until(lambda: bool(heard))
            subscription.dispose()
        return max(heard[0], server.connections[0].accepted_at)

    return on_loop(act)


# A connection that has timed out is closed


@pytest.mark.parametrize("reply", [STALLED, SILENT], ids=["stalled", "silent"])
@pytest.mark.parametrize("limit", ["idle", "total"])
def test_the_operator_closes_a_connection_that_has_timed_out(reply: Reply, limit: str) -> None:
    limits = {"first": SOON, limit: SOON}
    assert_prompt(
        close_times(told(lambda server: stream_generate(model(server), "Hi").pipe(ops.time_limits(**limits))), reply)
    )


def test_pings_do_not_keep_a_silent_model_alive() -> None:
    """Over HTTP each is a read, which an HTTP client's own timeout takes for an answer."""
    times: list[float] = []
    for _ in range(3):
        with Loopback(lambda request: pinging()) as server:
            acted = told(lambda server: stream_generate(model(server, timeout=1.0), "Hi", timeout=SOON))(server)
            times.append(server.connections[0].wait_closed() - acted)
    assert_prompt(times)


@pytest.mark.parametrize("timeout", [SOON, Timeouts(first=SOON, idle=SOON), Timeouts(total=SOON)], ids=repr)
def test_so_does_the_option(timeout: Any) -> None:
    assert_prompt(close_times(told(lambda server: stream_generate(model(server), "Hi", timeout=timeout)), rounds=3))


def test_what_came_before_the_limit_is_kept() -> None:
    async def app(world: World) -> Any:
        server = world.serve(Reply([b"".join(WHOLE[:2]), STALL]))
        return await generate(model(server), "Hi", timeout=Timeouts(idle=10.0))

    response = simulated(app)
    assert (response.output_text, response.finish_reason) == ("Hello", "error")
    assert response.error == StreamError(
        "timeout",
        "no more content arrived for 10 s (timeout 'idle', after 3 events)",
        provider="openai",
        metadata={"limit": "idle", "seconds": 10.0, "events": 3},
    )


def test_a_first_content_that_is_late_is_asked_for_again() -> None:
    """The first connection is closed, the second answers."""

    async def app(world: World) -> None:
        server = world.serve([SILENT, Reply(WHOLE)])
        response = await generate(model(server), "Hi", timeout=Timeouts(first=30.0), retry={"base_delay": 5.0})
        assert (response.output_text, len(server.requests)) == ("Hello", 2)
        assert server.connections[0].closed_at == pytest.approx(30.0, abs=0.05)

    simulated(app)


def test_a_slow_answer_in_time_is_an_answer() -> None:
    slow = [each for frame in WHOLE for each in (Pause(2.0), frame)]
    warned: list[Any] = []

    async def app(world: World) -> str:
        engine = model(world.serve(Reply(slow, before=0.5)))
        events = stream_generate(engine, "Hi", timeout=Timeouts(first=5, idle=5, total=20))
        return await events.pipe(ops.stall_warning(5, lambda *given: warned.append(given)), ops.to_text())

    assert simulated(app) == "Hello"
    assert warned == []


def test_a_stall_is_told_once_and_ends_nothing() -> None:
    warned: list[tuple[float, int]] = []

    async def app(world: World) -> str:
        server = world.serve(Reply([WHOLE[0], Pause(100.0), *WHOLE[1:]]))
        warning = ops.stall_warning(5.0, lambda seconds, events: warned.append((seconds, events)))
        return await stream_generate(model(server), "Hi").pipe(warning, ops.to_text())

    assert (simulated(app), warned) == ("Hello", [(5.0, 2)])


# Fallback

REFUSALS = {
    "a status": Reply.of_json({"error": {"message": "overloaded"}}, 503),
    "a cut": Reply([chat_chunk(""), Cut.RESET]),
    "an end too soon": Reply([]),
    "silence": SILENT,
}


@pytest.mark.parametrize("reply", REFUSALS.values(), ids=REFUSALS)
def test_another_server_answers_and_the_first_one_s_connection_is_closed(reply: Reply) -> None:
    async def app(world: World) -> None:
        first, second = world.serve(reply), world.serve(Reply(WHOLE))
        engine = model(first).with_operators(ops.fallback(model(second)))
        response = await generate(engine, "Hi", timeout=Timeouts(first=60.0))
        assert (response.output_text, response.usage) == ("Hello", COST)
        assert [request.json["messages"] for request in second.requests] == [
            request.json["messages"] for request in first.requests
        ]
        if reply in (REFUSALS["a cut"], REFUSALS["silence"]):  # the others can be used again
            assert first.open_count == 0

    simulated(app)


def test_a_connection_that_is_fallen_back_from_is_closed_at_once() -> None:
    times: list[float] = []
    for _ in range(3):
        with Loopback(SILENT) as first, Loopback(STALLED) as second:
            engine = model(first).with_operators(ops.time_limits(first=0.5), ops.fallback(model(second)))

            async def act(first: Loopback = first, second: Loopback = second, engine: Engine = engine) -> None:
                events: list[Event] = []
                subscription = stream_generate(engine, "Hi").subscribe(events.append)
                await until(lambda: bool(second.requests))
                await until_closed(first.connections[0])
                times.append((first.connections[0].closed_at or 0.0) - second.connections[0].accepted_at)
                await until(lambda: TextDelta("c", "block_0") in events)
                subscription.dispose()
                await until(lambda: second.open_count == 0)

            asyncio.run(act())
    assert_prompt(times)


def test_no_text_is_doubled_when_the_first_server_fails_late() -> None:
    """There had been content: it is an error, and nobody else is asked."""
    with Loopback(Reply(TORN)) as first, Loopback(Reply(WHOLE)) as second:
        response = generate(model(first).with_operators(ops.fallback(model(second))), "Hi").run()
        assert (response.output_text, response.finish_reason) == ("Hell", "error")
        assert second.requests == []


# Restart


@pytest.mark.parametrize("cut", [Cut.RESET, Cut.FIN, None], ids=["reset", "fin", "end"])
def test_a_torn_answer_begins_again_and_nothing_is_doubled(cut: Cut | None) -> None:
    torn = [chat_chunk("Hel"), chat_chunk("l"), *([cut] if cut else [])]
    with Loopback([Reply(torn), Reply(WHOLE)]) as server:
        engine = model(server).with_operators(ops.restart({"base_delay": 0.0, "jitter": 0.0}), ops.verify())
        result = stream(engine, "Hi").pipe(ops.to_chat_result()).run()
        assert (result.output_text, result.usage, result.halted_reason) == ("Hello", COST, "completed")
        assert len({request.body for request in server.requests}) == 1
        assert len(server.requests) == 2


def test_a_stalled_answer_begins_again_and_its_connection_is_closed() -> None:
    async def app(world: World) -> str:
        server = world.serve([STALLED, Reply(b"".join(WHOLE))])
        engine = model(server).with_operators(ops.restart({"base_delay": 1.0, "jitter": 0.0}))
        text = (await generate(engine, "Hi", timeout=Timeouts(idle=30.0))).output_text
        assert server.connections[0].closed_at == pytest.approx(30.0, abs=0.05)
        return text

    assert simulated(app) == "Hello"


def test_disposed_while_it_waits_to_begin_again() -> None:
    with Loopback([Reply(TORN), Reply(WHOLE)]) as server:

        async def act() -> None:
            events: list[Event] = []
            engine = model(server).with_operators(ops.restart({"base_delay": 60.0}))
            subscription = stream_generate(engine, "Hi").subscribe(events.append)
            await until(lambda: len(server.requests) == 1 and server.open_count == 0)
            subscription.dispose()

        asyncio.run(act())
        assert len(server.requests) == 1


# The circuit breaker


def test_a_server_that_is_down_is_left_alone() -> None:
    down = Reply.of_json({"error": {"message": "overloaded"}}, 503)
    states: list[str] = []
    with Loopback([down, down, Reply(chat("Hello"))]) as server, Loopback(Reply(WHOLE)) as other:
        breaker = ops.circuit_breaker(2, cooldown=3600, on_change=states.append)
        engine = model(server).with_operators(breaker)
        for _ in range(3):
            with pytest.raises(AdapterError):
                generate(engine, "Hi").run()
        with pytest.raises(AdapterError) as caught:
            generate(engine, "Hi").run()
        assert (len(server.requests), states, caught.value.metadata) == (2, ["open"], {"circuit": "open"})
        assert 3500 < (caught.value.retry_after or 0) <= 3600
        falling = engine.with_operators(ops.fallback(model(other)))
        assert generate(falling, "Hi").run().output_text == "Hello"
        assert len(server.requests) == 2

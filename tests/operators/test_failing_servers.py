"""The operators of time and failure against servers that stall, drop, fail late and answer slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rxllm import (
    AdapterError,
    Event,
    LLMError,
    Stream,
    StreamError,
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
from tests.closing import SILENT, STALLED, assert_closes
from tests.runtime.support import model
from tests.waiting import until

LATENCIES = 0.1
"""Virtual seconds that are enough for what travels on the network."""

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
COST = Usage(5, 3, total_tokens=8)
WHOLE = [chat_chunk("Hel"), chat_chunk("lo"), chat_finish(usage=USAGE), DONE]
TORN = [chat_chunk("Hel"), chat_chunk("l"), Cut.RESET]
PING = b": keep-alive\n\n"


def simulated(app: Callable[[World], Awaitable[Any]]) -> Any:
    """What `app` returns, in virtual time; at its end no connection is open, and nothing else is left behind."""
    return simulate(app, faults=()).value


def assert_closes_at_ten_seconds(reply: Reply, ask: Callable[[Loopback], Stream[Event]]) -> None:
    """Check that the call fails after ten virtual seconds, and that the server sees the close then."""

    async def timing_out(world: World) -> None:
        server = world.serve(reply)
        with pytest.raises(LLMError) as raised:
            await ask(server).pipe(ops.raise_errors())
        assert raised.value.reason == "timeout"
        assert time.monotonic() == pytest.approx(10.0, abs=LATENCIES)
        await asyncio.sleep(1.0)
        assert server.connections[0].closed_at == pytest.approx(10.0, abs=LATENCIES)
        assert server.connections[0].closed_by == "client"

    simulated(timing_out)


# A connection that has timed out is closed


@pytest.mark.parametrize("reply", [STALLED, SILENT], ids=["stalled", "silent"])
@pytest.mark.parametrize("limit", ["idle", "total"])
def test_the_operator_closes_a_connection_that_has_timed_out(reply: Reply, limit: str) -> None:
    limits = {"first": 10.0, limit: 10.0}
    assert_closes_at_ten_seconds(
        reply, lambda server: stream_generate(model(server), "Hi").pipe(ops.time_limits(**limits))
    )


@pytest.mark.parametrize("reply", [STALLED, SILENT], ids=["stalled", "silent"])
@pytest.mark.parametrize("timeout", [10.0, Timeouts(first=10.0, idle=10.0), Timeouts(total=10.0)], ids=repr)
def test_the_option_closes_a_connection_that_has_timed_out(timeout: Any, reply: Reply) -> None:
    assert_closes_at_ten_seconds(reply, lambda server: stream_generate(model(server), "Hi", timeout=timeout))


@pytest.mark.sockets
@pytest.mark.parametrize(
    "ask",
    [
        lambda server: stream_generate(model(server), "Hi", timeout=Timeouts(idle=1.0)),
        lambda server: stream_generate(model(server), "Hi").pipe(ops.time_limits(idle=1.0)),
    ],
    ids=["option", "operator"],
)
def test_the_socket_of_a_call_that_has_timed_out_is_closed(ask: Callable[[Loopback], Stream[Event]]) -> None:
    async def time_out(server: Loopback) -> None:
        with pytest.raises(StreamError, match="timeout 'idle'"):
            await ask(server).pipe(ops.raise_errors())

    assert_closes(time_out)


def test_pings_do_not_keep_a_silent_model_alive() -> None:
    """Over HTTP each is a read, which an HTTP client's own timeout takes for an answer."""
    pings = Reply(endless(lambda i: chat_chunk("a") if i == 0 else PING, every=1.0))
    assert_closes_at_ten_seconds(
        pings, lambda server: stream_generate(model(server, timeout=5.0), "Hi", timeout=Timeouts(first=10.0, idle=10.0))
    )


def test_content_before_the_limit_is_kept() -> None:
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

    async def asking_again(world: World) -> None:
        server = world.serve([SILENT, Reply(WHOLE)])
        response = await generate(model(server), "Hi", timeout=Timeouts(first=30.0), retry={"base_delay": 5.0})
        assert (response.output_text, len(server.requests)) == ("Hello", 2)
        assert server.connections[0].closed_at == pytest.approx(30.0, abs=LATENCIES)

    simulated(asking_again)


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
    async def falling_back(world: World) -> None:
        first, second = world.serve(SILENT), world.serve(Reply([*WHOLE[:2], Pause(60.0), *WHOLE[2:]]))
        engine = model(first).with_operators(ops.time_limits(first=10.0), ops.fallback(model(second)))
        assert (await generate(engine, "Hi")).output_text == "Hello"
        assert second.connections[0].accepted_at == pytest.approx(10.0, abs=LATENCIES)
        assert first.connections[0].closed_at == pytest.approx(10.0, abs=LATENCIES)
        assert first.connections[0].closed_by == "client"

    simulated(falling_back)


@pytest.mark.sockets
def test_no_text_is_doubled_when_the_first_server_fails_late() -> None:
    """There had been content: it is an error, and nobody else is asked."""
    with Loopback(Reply(TORN)) as first, Loopback(Reply(WHOLE)) as second:
        response = generate(model(first).with_operators(ops.fallback(model(second))), "Hi").run()
        assert (response.output_text, response.finish_reason) == ("Hell", "error")
        assert second.requests == []


# Restart


@pytest.mark.sockets
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
    async def beginning_again(world: World) -> str:
        server = world.serve([STALLED, Reply(b"".join(WHOLE))])
        engine = model(server).with_operators(ops.restart({"base_delay": 1.0, "jitter": 0.0}))
        text = (await generate(engine, "Hi", timeout=Timeouts(idle=30.0))).output_text
        assert server.connections[0].closed_at == pytest.approx(30.0, abs=LATENCIES)
        return text

    assert simulated(beginning_again) == "Hello"


@pytest.mark.sockets
def test_a_call_that_is_left_before_it_begins_again_sends_no_second_request() -> None:
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


@pytest.mark.sockets
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

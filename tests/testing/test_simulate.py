"""Programs in simulation: time that passes at once, faults from a seed, and failures that are found again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import reactivex
from reactivex import operators as rx
from reactivex.scheduler import NewThreadScheduler

import rxllm
from rxllm import AdapterError, LLMError, Stream, Timeouts, ValidationError, session, tool
from rxllm import operators as ops
from rxllm.testing import FAULTS, SimulationError, World, simulate, simulate_cancels, simulate_many
from rxllm.testing.loopback import STALL, Cut, Pause, Reply, chat, chat_chunk, endless
from tests.programs import python
from tests.testing.simulated import BUGS, chat_with_tools, children, double, engine_of, fingerprints, slowly, with_tools

App = Callable[[World], Awaitable[Any]]


# Time, threads and randomness


def test_time_passes_at_once_and_every_clock_agrees() -> None:
    async def app(world: World) -> list[float]:
        clocks = [time.monotonic, time.perf_counter, time.time, asyncio.get_running_loop().time]
        before = [clock() for clock in clocks]
        await asyncio.sleep(3600)
        return [clock() - start for clock, start in zip(clocks, before, strict=True)]

    assert simulate(app).value == pytest.approx([3600.0] * 4)


def test_timers_of_rx_run_on_the_loop() -> None:
    async def app(world: World) -> list[tuple[int, float, str]]:
        ticks: list[tuple[int, float, str]] = []
        ended = asyncio.Event()

        def tick(i: int) -> None:
            ticks.append((i, time.monotonic(), threading.current_thread().name))

        reactivex.interval(10.0).pipe(rx.take(3), rx.debounce(1.0)).subscribe(tick, on_completed=ended.set)
        await ended.wait()
        return ticks

    here = threading.current_thread().name
    # The last tick comes with the end, which `debounce` does not delay.
    ticks = simulate(app, faults=()).value
    assert [(i, round(seconds, 3), thread) for i, seconds, thread in ticks] == [
        (0, 11.0, here),
        (1, 21.0, here),
        (2, 30.0, here),
    ]


def test_blocking_functions_run_in_place_and_their_sleep_delays_their_results() -> None:
    @tool(name="double")
    def slow_double(x: int) -> int:
        """Double a number."""
        time.sleep(5)
        return 2 * x

    async def app(world: World) -> Any:
        result = await rxllm.chat(engine_of(world.serve(with_tools)), "?", tools=[slow_double], tool_timeout=x)
        await asyncio.to_thread(time.sleep, 100.0)
        return [message.text for message in result.thread if message.role == "tool"], time.monotonic()

    x = 9.0
    threads = threading.active_count()
    results, seconds = simulate(app, faults=()).value
    assert 105 < seconds < 106
    assert threading.active_count() <= threads
    x = 3.0
    timed_out, seconds = simulate(app, faults=()).value
    assert 103 < seconds < 104
    assert timed_out != results


def test_a_notebook_may_simulate_too() -> None:
    async def app(world: World) -> str:
        await asyncio.sleep(60)
        return "done"

    async def cell() -> Any:
        return simulate(app).value

    assert asyncio.run(cell()) == "done"


def test_nothing_may_block_the_loop_or_start_a_thread() -> None:
    async def block(world: World) -> None:
        rxllm.generate(rxllm.Fake("Hi"), "Hello").run()

    async def start(world: World) -> None:
        threading.Thread(target=print).start()

    with pytest.raises(SimulationError, match="cannot wait for its own calls"):
        simulate(block)
    with pytest.raises(SimulationError, match="threads are not allowed in a simulation"):
        simulate(start)


def test_a_thread_is_a_failure_even_where_its_error_is_swallowed() -> None:
    async def app(world: World) -> None:
        reactivex.of(1).pipe(rx.observe_on(NewThreadScheduler())).subscribe()

    with pytest.raises(SimulationError, match="the app started a thread"):
        simulate(app)


def test_threads_simulate_one_after_the_other_and_leave_the_process_as_it_was() -> None:
    def trace() -> tuple[Any, ...]:
        return simulate(children, 3).trace

    def functions() -> tuple[Any, ...]:
        return time.monotonic, os.urandom, threading.Thread.start, random.getstate(), gc.isenabled()

    before, expected = functions(), trace()
    with ThreadPoolExecutor(3) as pool:
        assert [future.result() for future in [pool.submit(trace) for _ in range(9)]] == [expected] * 9
    assert functions() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_app_that_is_stopped_leaves_the_process_as_it_was(error: BaseException) -> None:
    async def app(world: World) -> None:
        random.seed(world.seed)
        await asyncio.sleep(1)
        raise error

    before = time.monotonic, random.getstate(), gc.isenabled()
    with pytest.raises(type(error)):
        simulate(app, 1)
    assert (time.monotonic, random.getstate(), gc.isenabled()) == before


def test_a_simulation_inside_another_is_refused() -> None:
    async def app(world: World) -> None:
        simulate(chat_with_tools)

    with pytest.raises(SimulationError, match="cannot run inside another"):
        simulate(app)
    assert simulate(chat_with_tools, faults=()).value == "It is 42."


def test_randomness_comes_from_the_seed_and_the_process_has_its_own_again() -> None:
    async def app(world: World) -> tuple[float, bytes, float]:
        return random.random(), os.urandom(4), world.random.random()

    random.seed(5)
    expected = random.random()
    random.seed(5)
    first, again, other = (simulate(app, seed).value for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)
    assert random.random() == expected
    assert os.urandom(4) != os.urandom(4)


# The network


def test_a_script_of_a_loopback_runs_in_simulation() -> None:
    async def app(world: World) -> Any:
        server = world.serve([Reply([chat_chunk("Hel"), Pause(9.0), Cut.FIN]), Reply(chat("Hello"))])
        first, second = [await rxllm.generate(engine_of(server), "Hi") for _ in range(2)]
        assert first.error is not None
        return first.error.reason, second.output_text, [request.path for request in server.requests]

    assert simulate(app, faults=()).value == ("truncated", "Hello", ["/chat/completions"] * 2)


def test_a_server_waits_for_a_client_that_does_not_read() -> None:
    async def app(world: World) -> tuple[int, int]:
        server = world.serve(lambda request: Reply(endless(lambda i: chat_chunk("x" * 1000))))
        stream = rxllm.stream_generate(engine_of(server), "Hi").pipe(ops.text())
        async with rxllm.to_async_iter(stream, maxsize=4) as texts:
            await anext(texts)
            await asyncio.sleep(60)
            early = server.connections[0].bytes_sent
            await asyncio.sleep(60)
            return early, server.connections[0].bytes_sent

    early, late = simulate(app, faults=()).value
    assert early == late < 400_000


def test_a_connection_is_kept_and_used_again() -> None:
    async def app(world: World) -> int:
        server = world.serve(Reply(chat("Hi")))
        engine = engine_of(server)
        for _ in range(3):
            await rxllm.generate(engine, "Hi")
        return len(server.connections)

    assert simulate(app, faults=()).value == 1


def test_aiohttp_and_plain_sockets_are_told_what_a_simulation_lacks() -> None:
    async def app(world: World) -> None:
        await asyncio.open_connection("127.0.0.1", 443, ssl=True)

    with pytest.raises(SimulationError, match="no TLS"):
        simulate(app)


SYSTEM: dict[str, Callable[[], Awaitable[Any]]] = {
    "create_server": lambda: asyncio.start_server(print, "127.0.0.1", 0),
    "subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
    "create_datagram_endpoint": lambda: asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol),
}


@pytest.mark.parametrize("name", SYSTEM)
def test_what_reaches_the_system_is_told_so(name: str) -> None:
    async def app(world: World) -> None:
        await SYSTEM[name]()

    with pytest.raises(SimulationError, match=f"cut off from the operating system and has no loop.{name}"):
        simulate(app)


def test_a_host_outside_is_told_so_and_a_port_without_a_server_is_in_the_trace() -> None:
    async def outside(world: World) -> None:
        world.serve(Reply(chat("Hi")))
        await rxllm.generate(rxllm.OpenAIChat(base_url="http://example.org:8000", api_key="k"), "Hi", model="m")

    async def closed(world: World) -> None:
        await rxllm.generate(rxllm.OpenAIChat(base_url="http://127.0.0.1:8001", api_key="k"), "Hi", model="m")

    with pytest.raises(SimulationError, match="a simulation has no host"):
        simulate(outside, faults=())
    with pytest.raises(SimulationError, match="no server in this simulation listens on port 8001"):
        simulate(closed, faults=())


# Faults, failures and their replay


@pytest.mark.judges
def test_every_kind_of_fault_strikes() -> None:
    runs = simulate_many(chat_with_tools, range(150))
    struck = {kind for run in runs for fault in run.faults for kind in FAULTS if f"fault: {kind}" in fault.what}
    assert struck == set(FAULTS) - {"reorder"}
    assert any(not run.faults for run in runs)
    assert any(isinstance(run.error, LLMError) for run in runs)


def test_tasks_that_wake_up_together_do_so_in_an_order_of_the_seed() -> None:
    async def app(world: World) -> tuple[int, ...]:
        order: list[int] = []

        async def add(i: int) -> None:
            await asyncio.sleep(1.0)
            order.append(i)

        async with asyncio.TaskGroup() as group:
            for i in range(4):
                group.create_task(add(i))
        return tuple(order)

    assert simulate(app, faults=()).value == (0, 1, 2, 3)
    assert len({run.value for run in simulate_many(app, range(60), faults={"reorder"})}) > 5


@pytest.mark.parametrize("app", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found_and_found_again_by_its_seed(app: App) -> None:
    with pytest.raises(SimulationError) as found:
        simulate_many(app, range(1000))
    with pytest.raises(SimulationError) as again:
        simulate(app, found.value.seed)
    assert again.value.trace == found.value.trace
    assert str(again.value) == str(found.value)
    assert f"simulate({app.__name__}, seed={found.value.seed}, " in str(found.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("lost_cancel", "tasks were left behind"), ("lost_place", "has lost 1 of its slots")],
)
def test_a_sweep_of_cancels_finds_what_a_cancel_breaks(name: str, problem: str) -> None:
    with pytest.raises(SimulationError, match=problem):
        simulate_cancels(BUGS[name])


@pytest.mark.judges
def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    names, seeds = ("chat_with_tools", "children", *BUGS), ("130", "155")
    expected = fingerprints(names, range(*map(int, seeds)))
    ran = python("-m", "tests.testing.simulated", *seeds, *names, env={"PYTHONHASHSEED": "4711"})
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == expected


def test_an_app_that_waits_for_ever_fails_with_its_stack() -> None:
    async def app(world: World) -> None:
        await asyncio.Event().wait()

    async def later(world: World) -> None:
        while True:
            await asyncio.sleep(3600)

    with pytest.raises(SimulationError, match=r"waits forever(?s:.)*in app\n(?s:.)*in wait"):
        simulate(app)
    with pytest.raises(SimulationError, match="not ended after 86400 s"):
        simulate(later)


def test_what_is_left_behind_is_a_failure() -> None:
    async def task(world: World) -> None:
        world.note("starts a task")
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(asyncio.sleep(3600)))

    async def connection(world: World) -> None:
        client = httpx.AsyncClient()
        tasks.append(client)
        await client.get(world.serve(Reply(b"Hi")).url)

    def fail(event: Any) -> None:
        raise ValueError("mine")

    async def unheard(world: World) -> None:
        rxllm.stream_generate(engine_of(world.serve(slowly)), "Hi").subscribe(fail)
        await asyncio.sleep(1)

    tasks: list[Any] = []
    with pytest.raises(SimulationError, match=r"tasks were left behind\n  sleep#"):
        simulate(task, faults=())
    with pytest.raises(SimulationError, match="1 connections to port 8000 were left open"):
        simulate(connection, faults=())
    with pytest.raises(SimulationError, match="unhandled error"):
        simulate(unheard, faults=())


def test_an_error_of_a_call_is_a_failure_only_without_a_fault() -> None:
    async def app(world: World) -> None:
        raise AdapterError("network_error", "?")

    with pytest.raises(SimulationError, match="the app raised AdapterError"):
        simulate(app, faults=())


@pytest.mark.parametrize(
    "options",
    [
        *({"faults": faults} for faults in ("cut", {"rain"}, None, [["cut"]], iter(["cut"]))),
        *({"limit": limit} for limit in (0, "1", None, float("nan"))),
        {"cancel": 0},
        {"seed": 1.5},
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        simulate(chat_with_tools, **options)


def test_an_app_without_a_name_fails_as_others_do() -> None:
    async def app(world: World, error: Exception) -> None:
        raise error

    with pytest.raises(SimulationError, match="the app raised ValueError"):
        simulate(functools.partial(app, error=ValueError()))
    with pytest.raises(ValidationError, match="seeds must be an iterable"):
        simulate_many(chat_with_tools, 100)  # type: ignore[arg-type]


# rxllm itself


async def sync_tools(world: World) -> None:
    @tool(name="double")
    def in_a_thread(x: int) -> int:
        """Double a number."""
        time.sleep(0.5)
        return 2 * x

    await world.cancellable(rxllm.chat(engine_of(world.serve(with_tools)), "?", tools=[in_a_thread]))


async def streaming_tools(world: World) -> None:
    inner = engine_of(world.serve(slowly))

    @tool(name="double")
    def ask(x: int) -> Any:
        """Ask another model, piece by piece."""
        return rxllm.stream_generate(inner, "Hi").pipe(ops.text())

    await world.cancellable(rxllm.stream(engine_of(world.serve(with_tools)), "?", tools=[ask]).to_list())


async def leaving(world: World) -> None:
    async def read() -> None:
        async for text in rxllm.stream_generate(engine_of(server), "Hi").pipe(ops.text()):
            if text == "20 ":
                break
            await asyncio.sleep(world.random.random())

    server = world.serve(lambda request: Reply(endless(every=0.05)))
    await world.cancellable(read())


async def hedging(world: World) -> None:
    stream = rxllm.stream_generate(engine_of(world.serve(slowly)), "Hi")
    await world.cancellable(rxllm.hedge(stream, after=0.2).pipe(ops.to_response()))


async def racing(world: World) -> None:
    streams = [rxllm.stream_generate(engine_of(world.serve(slowly)), "Hi") for _ in range(3)]
    await world.cancellable(rxllm.race(*streams).pipe(ops.to_response()))


async def falling_back(world: World) -> None:
    first, second = (rxllm.stream_generate(engine_of(world.serve(slowly)), "Hi", timeout=3.0) for _ in range(2))
    response = await world.cancellable(first.pipe(ops.fallback(second), ops.to_response()))
    assert response is None or response.error is not None or response.output_text == "Hello world!"


async def many(world: World) -> None:
    engine = engine_of(world.serve(slowly))
    limits = Timeouts(first=5.0, idle=5.0, total=20.0)
    responses = rxllm.generate_many(engine, map(str, range(6)), concurrency=4, timeout=limits).to_list()
    for response in await world.cancellable(responses) or ():
        assert response.error is not None or response.output_text == "Hello world!"


async def conversations(world: World) -> None:
    engine = engine_of(world.serve(with_tools))
    turn = await world.cancellable(session.start(engine, "Double 21!", tools=[double]))
    if turn is not None and turn.result.error is None:
        await world.cancellable(session.reply(engine, turn.session, "Again!"))


async def silence(world: World) -> None:
    engine = engine_of(world.serve(Reply([chat_chunk("a"), STALL])))
    response = await world.cancellable(rxllm.generate(engine, "Hi", timeout=Timeouts(idle=2.0, total=5.0)))
    assert response is None or response.error is not None


async def bounded_pool(world: World) -> None:
    """A user's own client, with room for two calls: after a cancel it has room again."""
    server = world.serve(slowly)
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=2), verify=False) as client:
        adapter = rxllm.OpenAIChat(base_url=server.url, api_key="k", client=client)
        await world.cancellable(rxllm.generate_many(adapter, list("abcd"), model="m").to_list())
        await asyncio.sleep(60)
        with contextlib.suppress(LLMError):
            await asyncio.wait_for(rxllm.generate(adapter, "Hi", model="m", retry=False), 1000)


async def rate_limit(world: World) -> None:
    async def ask() -> None:
        with contextlib.suppress(LLMError):
            await rxllm.generate(engine, "Hi", timeout=Timeouts(total=20.0))

    engine = engine_of(world.serve(slowly), operators=[ops.rate_limited(2)])
    await world.cancellable(asyncio.gather(*(ask() for _ in range(4))))
    await asyncio.wait_for(ask(), 500)


async def type_ahead(world: World) -> None:
    def answer(i: int) -> Any:
        return rxllm.stream_generate(engine, str(i)).pipe(ops.to_text()).catch(lambda error, source: reactivex.of(""))

    engine = engine_of(world.serve(slowly))
    keys = reactivex.interval(0.4).pipe(rx.take(5), rx.map(answer), rx.switch_latest(), rx.debounce(0.1))
    await world.cancellable(Stream.of(keys).to_list())


APPS: list[App] = [sync_tools, children, streaming_tools, leaving, hedging, racing, falling_back, many, conversations]
APPS += [silence, bounded_pool, rate_limit, type_ahead]


@pytest.mark.judges
@pytest.mark.parametrize("app", APPS, ids=[app.__name__ for app in APPS])  # type: ignore[attr-defined]
def test_rxllm_leaves_nothing_behind_whatever_happens(app: App) -> None:
    simulate_many(app, range(60))
    simulate_cancels(app)


# Failures


def test_an_update_that_is_lost_when_a_ready_task_waits_is_found() -> None:
    async def app(world: World) -> None:
        total = 0

        async def add(pauses: int) -> None:
            nonlocal total
            for _ in range(pauses):
                await asyncio.sleep(0)
            before = total
            await asyncio.sleep(0)
            total = before + 1

        await asyncio.gather(add(0), add(2))
        assert total == 2, "an update is lost"

    simulate(app, faults=())
    with pytest.raises(SimulationError, match="an update is lost"):
        simulate_many(app, range(1000))


def test_a_failure_has_the_faults_that_matter_and_no_others() -> None:
    async def app(world: World) -> None:
        order: list[int] = []

        async def note(number: int) -> None:
            order.append(number)

        await asyncio.gather(*map(note, range(5)))
        assert order == [0, 1, 2, 3, 4], "out of order"

    with pytest.raises(SimulationError) as caught:
        simulate_many(app, range(1000))
    assert "faults=('reorder',)" in str(caught.value)
    with pytest.raises(SimulationError, match="out of order"):
        simulate(app, caught.value.seed, faults=("reorder",))


def test_retries_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def app(world: World) -> Any:
        server = world.serve([Reply(b"", status=503), Reply(chat("Hi"))])
        return (await rxllm.generate(engine_of(server), "Hi")).output_text

    with caplog.at_level("WARNING", "rxllm"):
        assert simulate(app, faults=()).value == "Hi"
    assert caplog.text == ""

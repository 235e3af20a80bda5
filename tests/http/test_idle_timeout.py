"""The idle timeout: one timer for the whole body of a response, in place of the transport's."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import pytest

from rxllm import Engine, Event, OpenAIChat, Response, StreamError, TextDelta, generate, stream_generate, to_async_iter
from rxllm.http.timeouts import LAST_CHANCE_SECONDS, IdleTimeout
from rxllm.runtime import Pump, Stream, pumped
from rxllm.testing import World, simulate, simulate_many
from rxllm.testing.loopback import DONE, STALL, Cut, Loopback, Pause, Reply, chat, chat_chunk, chat_finish
from tests.http.support import held
from tests.runtime.support import ON_BOTH, model, run_on
from tests.waiting import until, wait_until

SHORT = 5.0


def elapsed(since: float) -> float:
    return time.monotonic() - since


def text_of(events: list[Event]) -> str:
    return "".join(getattr(event, "delta", "") for event in events)


def simulated(work: Callable[[], Awaitable[Any]]) -> Any:
    """What `work` returns, in virtual time."""

    async def app(world: World) -> Any:
        return await work()

    return simulate(app, faults=()).value


def answer(reply: Reply, seconds: float, **options: Any) -> Response[Any]:
    """The answer of a model that replies so, in virtual time and on a network in memory."""

    async def app(world: World) -> Any:
        return await generate(model(world.serve(reply), timeout=seconds), "Hi", **options)

    return simulate(app, faults=()).value


def watched(body: Callable[[IdleTimeout], Awaitable[None]], seconds: float | None = SHORT) -> Stream[float]:
    """How long `body` took, inside an `IdleTimeout`."""

    async def run(pump: Pump[float]) -> None:
        begun = time.monotonic()
        try:
            async with IdleTimeout(pump, seconds) as watch:
                await body(watch)
        except TimeoutError:
            pump.emit((elapsed(begun),))

    return pumped(run)


async def hang(watch: IdleTimeout) -> None:
    await asyncio.Event().wait()


def test_silence_is_an_error_once_it_lasts_so_long() -> None:
    assert simulated(lambda: watched(hang)) == pytest.approx(SHORT + LAST_CHANCE_SECONDS)


def test_every_byte_begins_it_anew() -> None:
    async def talk(watch: IdleTimeout) -> None:
        begun = time.monotonic()
        while elapsed(begun) < 3 * SHORT:
            watch.restart()
            await asyncio.sleep(1.0)
        await hang(watch)

    assert simulated(lambda: watched(talk)) == pytest.approx(4 * SHORT - 1.0 + LAST_CHANCE_SECONDS)


def test_a_pause_is_no_silence() -> None:
    async def ignore(watch: IdleTimeout) -> None:
        watch.pause()
        await asyncio.sleep(3 * SHORT)

    assert simulated(lambda: watched(ignore).to_list()) == []


def test_an_error_inside_is_itself() -> None:
    async def fail(watch: IdleTimeout) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        watched(fail).run()


def test_no_timer_is_left() -> None:
    async def timers(seconds: float | None) -> list[Any]:
        inside: list[Any] = []

        async def look(watch: IdleTimeout) -> None:
            inside.extend(waiting())

        await watched(look, seconds).to_list()
        assert waiting() == []
        return inside

    def waiting() -> list[Any]:
        scheduled: Any = getattr(asyncio.get_running_loop(), "_scheduled")  # noqa: B009
        return [timer for timer in scheduled if not timer.cancelled()]

    assert asyncio.run(timers(None)) == []
    assert len(asyncio.run(timers(SHORT))) == 1


def test_a_held_pump_is_not_interrupted() -> None:
    """Cancelled while it closes, httpcore keeps the connection."""

    async def close(pump: Pump[str]) -> None:
        async with IdleTimeout(pump, SHORT):
            pump.hold()
            await asyncio.sleep(3 * SHORT)
        pump.emit(("closed",))

    assert simulated(lambda: pumped(close)) == "closed"


# In the HTTP source


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("seconds", [7.0, None])
def test_the_transport_watches_the_head_and_we_the_body(library: Any, seconds: float | None) -> None:
    told: list[tuple[str, Any]] = []
    sent: list[Any] = []

    class Body(library.AsyncByteStream):
        def __init__(self, request: Any) -> None:
            self._request = request

        async def __aiter__(self) -> AsyncIterator[bytes]:
            told.append(("body", self._request.extensions["timeout"]["read"]))
            for piece in chat("Hi"):
                yield piece

    class Transport(library.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            told.append(("head", request.extensions["timeout"]["read"]))
            sent.append(request)
            return library.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(request))

    client = library.AsyncClient(transport=Transport(), timeout=60.0)
    engine = Engine(OpenAIChat(base_url="http://127.0.0.1:1", client=client, timeout=seconds), model="m")
    assert generate(engine, "Hi").run().output_text == "Hi"
    assert told == [("head", seconds or 60.0), ("body", None)]
    assert sent[0].extensions["timeout"]["read"] == (seconds or 60.0), "whoever sends it again finds it as it was"
    assert "trace" not in sent[0].extensions


def test_a_client_without_timeouts_has_none() -> None:
    async def app(world: World) -> str:
        server = world.serve(Reply([chat_chunk("a"), Pause(3600.0), *chat("b")]))
        async with httpx.AsyncClient(timeout=None) as client:
            return (await generate(model(server, client=client), "Hi")).output_text

    assert simulate(app, faults=()).value == "ab"


class LaterLoop(asyncio.SelectorEventLoop):
    """A loop whose clock the test puts forward."""

    later = 0.0

    def time(self) -> float:
        return super().time() + self.later


@pytest.mark.sockets
@ON_BOTH
def test_a_loop_that_stood_still_reads_first_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a notebook's does while a cell computes."""
    loop, events, still = LaterLoop(), list[Event](), threading.Event()
    words = [chat_chunk(str(i)) for i in range(8)]
    monkeypatch.setattr("rxllm.http.timeouts.time", SimpleNamespace(monotonic=loop.time))

    async def main(server: Loopback) -> None:
        stream_generate(model(server, timeout=20.0), "Hi").subscribe(events.append)
        await until(lambda: text_of(events) == "0")
        sent = server.connections[0].bytes_sent
        still.set()
        wait_until(lambda: server.connections[0].bytes_sent > sent + sum(map(len, words[1:])))
        loop.later += 30.0
        await until(lambda: type(events[-1]).__name__ in ("MessageCompleted", "ErrorEvent"))

    reply = Reply(
        itertools.chain(words[:1], held(still.is_set), words[1:], held(lambda: "7" in text_of(events)), chat())
    )
    with Loopback(reply) as server:
        run_on(lambda: loop, main(server))
    assert text_of(events) == "01234567"
    assert type(events[-1]).__name__ == "MessageCompleted"


@ON_BOTH
def test_a_packed_body_is_not_silent_while_its_bytes_come() -> None:
    """The decoder of gzip gives nothing before it has enough."""
    packed = gzip.compress(b"".join(chat("Hi")))
    pieces = [each for at in range(0, len(packed), 8) for each in (packed[at : at + 8], Pause(3.0))]
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    assert answer(Reply(pieces, headers=headers), seconds=50.0).output_text == "Hi"


PINGS = [piece for _ in range(400) for piece in (b": ping\n\n", Pause(2.0))]


@ON_BOTH
@pytest.mark.parametrize("before", [[], [chat_chunk("Hello")]], ids=["before the first word", "after it"])
def test_pings_do_not_end_the_silence_that_an_adapter_bounds(before: list[Any]) -> None:
    error = answer(Reply([*before, *PINGS]), seconds=30.0).error
    assert isinstance(error, StreamError)
    assert error.reason == "timeout"
    assert "sent nothing for longer than the timeout of 30 s" in error.message


@ON_BOTH
def test_a_calls_own_timeout_goes_before_the_adapters() -> None:
    slow = [b": ping\n\n", Pause(50.0), *chat("Hi")]
    assert answer(Reply(slow), seconds=10.0).error is not None
    assert answer(Reply(slow), 10.0, timeout=2000.0).output_text == "Hi"


@ON_BOTH
def test_a_long_frame_that_comes_slowly_is_no_silence() -> None:
    frame = chat_chunk("Hello")
    pieces = [each for at in range(0, len(frame), 8) for each in (frame[at : at + 8], Pause(3.0))]
    assert answer(Reply([*pieces, chat_finish(), DONE]), seconds=30.0).output_text == "Hello"


@ON_BOTH
def test_a_consumer_that_is_behind_is_no_silence() -> None:
    words = [chat_chunk(str(i)) for i in range(10)]

    async def read_slowly(world: World) -> list[Any]:
        engine = model(world.serve(Reply([*words, chat_finish(), DONE])), timeout=50.0)
        received: list[Any] = []
        async with to_async_iter(stream_generate(engine, "Hi"), maxsize=1) as events:
            async for event in events:
                received.append(event)
                await asyncio.sleep(70.0 if len(received) == 3 else 0.0)
        return received

    received = simulate(read_slowly, faults=()).value
    assert text_of(received) == "0123456789"
    assert type(received[-1]).__name__ == "MessageCompleted"


@ON_BOTH
def test_a_connection_that_stays_open_after_the_last_word_is_no_silence() -> None:
    response = answer(Reply([*chat("Hi"), STALL]), seconds=5.0)
    assert (response.output_text, response.error) == ("Hi", None)


@pytest.mark.parametrize("end", ["dispose", "cut"])
def test_a_call_that_ends_just_when_it_is_too_silent_keeps_no_place_in_the_pool(end: str) -> None:
    """Otherwise the close is cancelled, and httpcore 1.0.9 counts the connection for ever, which a simulation sees."""

    async def app(world: World) -> None:
        over, gap = asyncio.Event(), SHORT + LAST_CHANCE_SECONDS + world.random.choice([-0.0001, 0.0, 0.0001])

        def hear(event: Event) -> None:
            if type(event) is TextDelta and end == "dispose":
                asyncio.get_running_loop().call_later(gap, wait_and_leave, world.seed // 3)

        def wait_and_leave(turns: int) -> None:
            if turns > 0:
                asyncio.get_running_loop().call_soon(wait_and_leave, turns - 1)
            else:
                subscription.dispose()
                over.set()

        broken = [Pause(gap), Cut.FIN] if end == "cut" else [STALL]
        server = world.serve(Reply([chat_chunk("a"), *broken]))
        async with httpx.AsyncClient(timeout=SHORT, verify=False) as client:
            source = stream_generate(model(server, client=client), "Hi")
            subscription = source.subscribe(hear, on_completed=over.set)
            await over.wait()
            await until(lambda: not server.open_connections())

    simulate_many(app, range(60), faults=["reorder"])

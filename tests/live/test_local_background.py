"""The real model's answers, over connections that are cut at random: nothing is lost, and a dispose stops the model."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import Engine, MessageCompleted, TextDelta, stream_generate, tool
from rxllm.adapters.local import Local
from rxllm.adapters.local.server import find_weights
from rxllm.values import EngineError
from tests.examples import share
from tests.waiting import until

pytestmark = pytest.mark.judges

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")

STORY = "Write a story of a fox."
OPTIONS = {"background": True}


@pytest.fixture(scope="module")
def local() -> Local:
    try:
        find_weights()
    except EngineError as error:
        pytest.skip(str(error))
    adapter = Local()
    rxllm.generate(adapter, "Hi", max_tokens=1).run()  # starts the server
    return adapter


class Line:
    """A line to the server at `url`. Each of its connections is cut after ``cut()`` bytes of the server's output."""

    def __init__(self, url: str, cut: Callable[[], int | None]) -> None:
        self._target = httpx.URL(url)
        self._cut = cut
        self.requests: list[str] = []

    @contextlib.asynccontextmanager
    async def open(self, adapter: Local) -> AsyncIterator[Local]:
        """Yield an adapter whose calls use this line."""
        server = await asyncio.start_server(self._connect, "127.0.0.1")
        through = Local()
        through._server = adapter._server
        through.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield through
        finally:
            server.close()
            await through.aclose()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._target.host, self._target.port)
        remaining = self._cut()
        sending = asyncio.create_task(self._send(reader, server_writer))
        try:
            while data := await server_reader.read(1000 if remaining is None else min(1000, remaining)):
                writer.write(data)
                await writer.drain()
                remaining = remaining and remaining - len(data)
                if remaining == 0:
                    break
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            for each in (writer, server_writer):
                each.transport.abort()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if data.startswith((b"POST", b"GET", b"DELETE")):
                    self.requests.append(data.partition(b" HTTP")[0].decode())
                writer.write(data)
        writer.transport.abort()  # the client has left


def cuts(seed: int, count: int) -> Iterator[int | None]:
    drawn = random.Random(seed)
    for _ in range(count):
        yield drawn.randint(400, 4000)
    while True:
        yield None


def story(adapter: Local, **options: Any) -> rxllm.Stream[Any]:
    retry = {"base_delay": 0.0, "jitter": 0.0, "max_attempts": 10}
    return stream_generate(
        adapter, STORY, options=OPTIONS, temperature=0.0, seed=1, retry=retry, **{"max_tokens": 40, **options}
    )


def essence(events: list[Any]) -> Any:
    """Return what two answers of the model have in common: not their ids and times."""
    last = events[-1]
    assert isinstance(last, MessageCompleted), last
    texts = [event.delta for event in events if isinstance(event, TextDelta)]
    return texts, [type(event) for event in events], last.message.text, last.finish_reason


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.judges) for seed in range(1, share(20)))])
def test_an_answer_over_a_line_that_is_cut_at_random_equals_the_uncut_one(local: Local, seed: int) -> None:
    async def main() -> None:
        drawn = cuts(seed, 5)
        line = Line(local.base_url, lambda: next(drawn))
        async with line.open(local) as through:
            assert essence(await story(through).to_list()) == whole
        methods = [request.partition(" ")[0] for request in line.requests]
        assert methods[:2] == ["POST", "GET"]
        assert methods.count("POST") == 1
        assert "DELETE" not in methods

    whole = essence(story(local).to_list().run())
    asyncio.run(main())


@pytest.mark.judges
def test_a_tool_call_over_a_line_that_is_cut_is_whole(local: Local) -> None:
    @tool
    def get_weather(city: str) -> str:
        """The current weather in a city."""
        return f"sunny in {city}"

    async def main() -> None:
        drawn = cuts(3, 3)
        line = Line(local.base_url, lambda: next(drawn))
        async with line.open(local) as through:
            engine = Engine(through, params={"options": OPTIONS}, retry={"base_delay": 0.0, "max_attempts": 10})
            response = await rxllm.generate(engine, "What is the weather in Paris?", tools=[get_weather])
        assert [call.arguments for call in response.tool_calls] == [call.arguments for call in whole.tool_calls]
        assert len([request for request in line.requests if request.startswith("POST")]) == 1

    whole = rxllm.generate(local, "What is the weather in Paris?", tools=[get_weather]).run()
    assert whole.tool_calls
    asyncio.run(main())


async def stopped(adapter: Local) -> int:
    """Wait until the model generates nothing. Return how many tokens its last answer has, or the longest of several."""
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:

        async def slots() -> list[dict[str, Any]]:
            return (await client.get(adapter.base_url.removesuffix("/v1") + "/slots")).json()

        idle = await until(slots, lambda seen: not any(slot["is_processing"] for slot in seen))
    return max(token["n_decoded"] for slot in idle for token in slot.get("next_token", ()))


@pytest.mark.parametrize("after", [0, 3])
def test_a_dispose_stops_the_model(local: Local, after: int) -> None:
    async def main() -> None:
        line = Line(local.base_url, lambda: None)
        async with line.open(local) as through:
            seen: list[Any] = []
            events = story(through, max_tokens=3000, include_raw_chunks=True)
            subscription = events.subscribe(seen.append)
            await until(lambda: len(line.requests) == 1 and len(seen) >= after)
            subscription.dispose()
            await until(lambda: [request.partition(" ")[0] for request in line.requests] == ["POST", "DELETE"])
            assert await stopped(local) < 1000, "the context has room for twice as many"

    asyncio.run(main())


def test_without_the_option_a_cut_is_an_error(local: Local) -> None:
    async def main() -> None:
        line = Line(local.base_url, lambda: 3000)
        async with line.open(local) as through:
            response = await rxllm.generate(through, STORY, max_tokens=40, temperature=0.0)
        assert response.error is not None
        assert [request.partition(" ")[0] for request in line.requests] == ["POST"]

    asyncio.run(main())

"""How long an answer may be silent: one watch for the whole body, and none of the transport's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import pytest

from rxllm import Engine, OpenAIChat, generate, stream_generate, to_iter
from rxllm.runtime._silence import Silence
from rxllm.testing.loopback import DONE, STALL, Loopback, Pause, Reply, chat, chat_chunk, chat_finish
from tests.runtime.support import model, until

SHORT = 0.05


def elapsed(since: float) -> float:
    return time.monotonic() - since


def test_silence_is_an_error_once_it_lasts_so_long() -> None:
    async def main() -> float:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            async with Silence(SHORT):
                await asyncio.Event().wait()
        return elapsed(begun)

    assert SHORT <= asyncio.run(main()) < 1


def test_what_is_heard_begins_it_anew() -> None:
    async def main() -> float:
        async def talk(begun: float) -> None:
            async with Silence(SHORT) as silence:
                while elapsed(begun) < 3 * SHORT:
                    silence.listen()
                    await asyncio.sleep(0)
                await asyncio.Event().wait()

        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            await talk(begun)
        return elapsed(begun)

    assert 4 * SHORT <= asyncio.run(main()) < 1


def test_what_is_ignored_is_no_silence() -> None:
    async def main() -> None:
        async with Silence(SHORT) as silence:
            silence.ignore()
            await asyncio.sleep(3 * SHORT)

    asyncio.run(main())


def test_without_a_limit_there_is_no_timer() -> None:
    """Nor is one left when it is over."""

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        async with Silence(None):
            kept = list(loop._scheduled)  # type: ignore[attr-defined]
        async with Silence(SHORT):
            pass
        return [*kept, *(timer for timer in loop._scheduled if not timer.cancelled())]  # type: ignore[attr-defined]

    assert asyncio.run(main()) == []


def test_a_cancelled_task_is_cancelled() -> None:
    async def main() -> None:
        async def quiet() -> None:
            async with Silence(60):
                await asyncio.Event().wait()

        task = asyncio.create_task(quiet())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())


# In the HTTP source


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("seconds", [7.0, None])
def test_the_transport_watches_the_head_and_we_the_body(library: Any, seconds: float | None) -> None:
    told: list[tuple[str, Any]] = []

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
            return library.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(request))

    client = library.AsyncClient(transport=Transport(), timeout=60.0)
    engine = Engine(OpenAIChat(base_url="http://127.0.0.1:1", client=client, timeout=seconds), model="m")
    assert generate(engine, "Hi").run().output_text == "Hi"
    assert told == [("head", seconds or 60.0), ("body", None)]


def test_a_client_without_timeouts_has_none() -> None:
    async def main(server: Loopback) -> str:
        async with httpx.AsyncClient(timeout=None) as client:
            return (await generate(model(server, client=client), "Hi")).output_text

    with Loopback(Reply([chat_chunk("a"), Pause(0.1), *chat("b")])) as server:
        assert asyncio.run(main(server)) == "ab"


def test_a_loop_that_stood_still_reads_first_what_came_meanwhile() -> None:
    """As a notebook's does while a cell computes."""

    async def main(server: Loopback) -> list[Any]:
        events: list[Any] = []
        stream_generate(model(server, timeout=0.2), "Hi").subscribe(events.append)
        await until(lambda: len(events) > 1)
        time.sleep(0.5)
        await until(lambda: type(events[-1]).__name__ in ("MessageCompleted", "ErrorEvent"))
        return events

    words = [each for i in range(8) for each in (chat_chunk(str(i)), Pause(0.1))]
    with Loopback(Reply([*words, chat_finish(), DONE])) as server:
        events = asyncio.run(main(server))
    assert "".join(getattr(event, "delta", "") for event in events) == "01234567"
    assert type(events[-1]).__name__ == "MessageCompleted"


def test_a_consumer_that_is_behind_is_no_silence() -> None:
    words = [chat_chunk(str(i)) for i in range(10)]
    with Loopback(Reply([*words, chat_finish(), DONE])) as server:
        deltas: list[str] = []
        with to_iter(stream_generate(model(server, timeout=0.1), "Hi"), maxsize=1) as events:
            for event in events:
                deltas.append(getattr(event, "delta", ""))
                if len(deltas) == 3:
                    time.sleep(0.4)
    assert "".join(deltas) == "0123456789"
    assert type(event).__name__ == "MessageCompleted"


def test_a_connection_that_stays_open_after_the_last_word_is_no_silence() -> None:
    with Loopback(Reply([*chat("Hi"), STALL])) as server:
        response = generate(model(server, timeout=0.05), "Hi").run()
    assert (response.output_text, response.error) == ("Hi", None)

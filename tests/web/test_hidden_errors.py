"""What is hidden from a browser is in the server's log: once, with its traceback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import AdapterError, Event, Fake, Stream, ToolCall, ToolError, web
from rxllm.durable import open_runs
from rxllm.web._codec import PROTOCOLS
from tests.web.serving import app_of, get

pytestmark = pytest.mark.sockets

SECRET = "the prompt of account 4711 was refused"


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "rxllm"):
        yield


def failing() -> Stream[Event]:
    return rxllm.stream(Fake(AdapterError("invalid_request", SECRET)), "Hi", retry=False)


def failing_late() -> Stream[Event]:
    return rxllm.stream(Fake(["Hel", AdapterError("invalid_request", SECRET)]), "Hi", retry=False)


def only_record(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    (record,) = [record for record in caplog.records if record.name == "rxllm"]
    return record


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("make", [failing, failing_late])
def test_an_error_is_logged_once(protocol: str, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    body = asyncio.run(get(app_of(make, protocol))).text
    assert SECRET not in body
    record = only_record(caplog)
    assert (record.levelname, SECRET in record.getMessage()) == ("ERROR", True)
    assert record.exc_info is not None


def test_a_missing_key_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    body = asyncio.run(get(app_of(lambda: rxllm.stream("openai:gpt-5", "Hi")))).text
    assert "OPENAI_API_KEY" not in body
    assert "OPENAI_API_KEY" in only_record(caplog).getMessage()
    assert "Traceback" in caplog.text


def test_two_filters_in_a_row_log_it_once(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(get(app_of(lambda: failing_late().pipe(web.for_client()))))
    assert SECRET in only_record(caplog).getMessage()


def test_all_watchers_of_a_run_in_memory_log_it_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        runs = web.Runs()
        runs.start("a", failing_late())
        for _ in range(3):
            await get(app_of(lambda: runs.watch("a")))

    asyncio.run(main())
    assert SECRET in only_record(caplog).getMessage()


@pytest.mark.parametrize("make", [failing, failing_late])
def test_all_watchers_of_a_durable_run_log_it_once(tmp_path: Path, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with open_runs(str(tmp_path / "runs.db"), {"ask": lambda text: make()}) as runs:
            id = await runs.start("ask", "Hi")
            for _ in range(3):
                body = (await get(app_of(lambda: runs.watch(id)))).text
                assert SECRET not in body

    asyncio.run(main())
    record = only_record(caplog)
    assert SECRET in record.getMessage()
    assert record.exc_info is not None


def pay() -> str:
    raise LookupError(SECRET)


def pay_the_wrong_way() -> str:
    raise ToolError("handler_raised", SECRET)


@pytest.mark.parametrize("tool", [pay, pay_the_wrong_way])
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_tools_error_is_logged_once(
    tmp_path: Path, tool: Any, is_durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def make(_: object = None) -> Stream[Event]:
        call = ToolCall("c1", tool.__name__, {})
        return rxllm.stream(Fake(scripts=[[call], ["Done"]]), "Hi", tools=[tool])

    async def main() -> None:
        if not is_durable:
            assert SECRET not in (await get(app_of(make))).text
            return
        async with open_runs(str(tmp_path / "runs.db"), {"ask": make}) as runs:
            id = await runs.start("ask", "Hi")
            for _ in range(2):
                assert SECRET not in (await get(app_of(lambda: runs.watch(id)))).text

    asyncio.run(main())
    assert only_record(caplog).levelname == "WARNING"
    assert SECRET in caplog.text
    assert "Traceback" in caplog.text


def test_a_stop_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        runs = web.Runs()
        runs.start("a", rxllm.stream_generate(Fake(["Hi", ("delay", 3600)]), "Hi"))
        runs.cancel("a")
        await get(app_of(lambda: runs.watch("a")))

    asyncio.run(main())
    assert not [record for record in caplog.records if record.name == "rxllm"]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("reason", ["invalid_request", "network_error", "unknown"])
def test_openai_app_logs_an_error_once(is_streamed: bool, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    app = web.openai_app({"m": rxllm.Engine(Fake(AdapterError(reason, SECRET)), retry=False)})
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": is_streamed}

    async def main() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.post("/v1/chat/completions", json=question)).text

    assert SECRET not in asyncio.run(main())
    assert SECRET in only_record(caplog).getMessage()
    assert "Traceback" in caplog.text


def test_openai_app_logs_a_tools_error_once(caplog: pytest.LogCaptureFixture) -> None:
    call = ToolCall("c1", "pay_the_wrong_way", {})
    app = web.openai_app({"m": rxllm.Engine(Fake(scripts=[[call], ["Done"]]), tools=[pay_the_wrong_way])})
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}

    async def main() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.post("/v1/chat/completions", json=question)).text

    assert SECRET not in asyncio.run(main())
    assert SECRET in only_record(caplog).getMessage()

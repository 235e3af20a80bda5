"""``logging.getLogger("rxllm").setLevel(logging.DEBUG)``: four lines for each request, and nothing that is private."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

import rxllm
from rxllm import Engine, OpenAIChat, RetryPolicy
from rxllm import operators as ops
from rxllm.images import OpenAIImages
from rxllm.testing import PNG, World, simulate
from rxllm.testing.loopback import STALL, Cut, Loopback, Reply, Script, chat, chat_chunk
from tests.waiting import wait_until

pytestmark = pytest.mark.sockets

PRIVATE = "a private question"
KEY = "sk-a-private-key"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """What the logger ``rxllm`` has written, with ids and seconds left out."""
    caplog.set_level(logging.DEBUG, "rxllm")

    def lines() -> list[str]:
        for text in (record.getMessage() for record in caplog.records):
            assert not re.search(f"{PRIVATE}|{KEY}|an answer|user|password|version", text)
        messages = [record.getMessage() for record in caplog.records if record.name == "rxllm"]
        return [re.sub(r"after \d+\.\d\d s", "after T", re.sub(r":\d+/", ":PORT/", line)) for line in messages]

    return lines


def ask(server: Loopback, timeout: float | None = None, retry: Any = False) -> rxllm.Stream[Any]:
    url = server.url.replace("http://", "http://user:password@") + "?api-version=1"
    engine = Engine(OpenAIChat(base_url=url, api_key=KEY, timeout=timeout), model="gpt-5", retry=retry)
    return rxllm.stream_generate(engine, PRIVATE, request_id="r1").pipe(ops.errors_as_events())


def asking(script: Script, retry: Any = False) -> None:
    """Ask a server that follows `script`."""
    with Loopback(script) as server:
        ask(server, retry=retry).run()


SENT = "request r1: POST http://127.0.0.1:PORT/chat/completions (openai, model gpt-5)"


def test_an_answer_is_four_lines(lines: Any) -> None:
    asking(Reply(chat("an answer")))
    assert lines() == [
        SENT,
        "request r1: status 200 after T",
        "request r1: first event after T",
        "request r1: completed after T",
    ]


def test_a_refusal_says_why(lines: Any) -> None:
    error = {"error": {"message": f"{PRIVATE} by {KEY} is refused"}}
    asking(Reply.of_json(error, 400, x_request_id="req_7"))
    assert lines() == [
        SENT,
        "request r1: status 400 after T",
        "request r1: failed (AdapterError invalid_request) after T",
    ]


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (Reply(before=STALL), ["failed (AdapterError timeout)"]),
        (Reply([chat_chunk("an answer"), Cut.RESET]), ["status 200", "first event", "failed (StreamError truncated)"]),
        (Reply([chat_chunk("an answer"), STALL]), ["status 200", "first event", "failed (StreamError timeout)"]),
    ],
    ids=["silence", "cut", "stall"],
)
def test_a_failure_is_the_last_line(lines: Any, reply: Reply, end: list[str]) -> None:
    async def main(world: World) -> None:
        logging.getLogger("rxllm").filters.pop()  # a simulation logs errors only
        await ask(world.serve(reply), timeout=30)

    simulate(main, faults=())
    assert lines() == [SENT, *(f"request r1: {what} after T" for what in end)]


def test_a_server_that_is_not_there(lines: Any) -> None:
    engine = Engine(OpenAIChat(base_url="http://127.0.0.1:9/v1", api_key=KEY), model="m", retry=False)
    with pytest.raises(rxllm.AdapterError):
        rxllm.generate(engine, PRIVATE).run()
    assert lines()[-1].endswith(": failed (AdapterError network_error) after T")


def test_a_stream_that_is_left_is_cancelled(lines: Any) -> None:
    with Loopback(Reply([chat_chunk("an answer"), STALL])) as server:
        adapter = OpenAIChat(base_url=server.url, api_key=KEY)
        rxllm.stream_generate(adapter, PRIVATE, model="m", request_id="r1").take(1).run()
        server.connections[0].wait_closed()
    wait_until(lambda: "cancelled" in lines()[-1])
    assert lines()[1:] == [f"request r1: {what} after T" for what in ("status 200", "first event", "cancelled")]


def test_each_attempt_and_the_wait_between_them(lines: Any) -> None:
    replies = [Reply.of_json({"error": {"message": "busy"}}, 503), Reply(chat("an answer"))]
    asking(replies, retry=RetryPolicy(base_delay=0))
    shown = lines()
    assert shown[0] == shown[4] == SENT
    assert shown[2] == "request r1: failed (AdapterError provider_unavailable) after T"
    assert "attempt 1" in shown[3]
    assert shown[-1] == "request r1: completed after T"


def test_images_too(lines: Any) -> None:
    with Loopback(Reply.of_json({"data": [{"b64_json": PNG.to_base64()}]})) as server:
        adapter = OpenAIImages(base_url=server.url, api_key=KEY)
        rxllm.generate_image(adapter, PRIVATE, model="gpt-image-1", request_id="r1").run()
    assert lines() == [
        "request r1: POST http://127.0.0.1:PORT/images/generations (openai, model gpt-image-1)",
        "request r1: status 200 after T",
        "request r1: completed after T",
    ]


def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rxllm")
    asking(Reply(chat("an answer")))
    assert [record for record in caplog.records if record.name == "rxllm"] == []

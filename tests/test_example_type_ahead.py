"""The window of examples/type_ahead.py, typed into by Textual's own pilot, with real connections behind it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxllm.testing.loopback import STALL, Loopback, Reply, Request, chat, chat_chunk
from tests.closing import SILENT, assert_closed
from tests.programs import EXAMPLES, example, python
from tests.runtime.support import model
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.sockets

pytest.importorskip("textual", reason="the example's window needs rxllm[test]")


@contextlib.asynccontextmanager
async def window(pause: float = 0.1, **servers: Loopback) -> AsyncIterator[Any]:
    """Yield the running app, whose models are the servers, and which asks after a pause of so many seconds."""
    module = example("type_ahead")
    module.PAUSE = pause
    app = module.TypeAhead({name: model(server) for name, server in servers.items()})
    async with app.run_test():
        yield app


def shown(app: Any, name: str) -> str:
    return str(app.query_one(f"#{name}").render())


def struck_out(app: Any) -> list[str]:
    lanes = app.query_one("#lanes").render()
    return [str(lanes)[span.start : span.end] for span in lanes.spans if span.style.strike]


def type_in(app: Any, *keys: str) -> None:
    """Type at the end, without the pauses of the pilot's own keys."""
    field = app.query_one("Input")
    for key in keys:
        field.value += key


async def until_closed(server: Loopback) -> None:
    await until(lambda: server.connections[0].closed_at is not None)


def test_the_first_to_answer_goes_on_and_the_others_are_closed() -> None:
    async def main() -> None:
        async with window(pause=2.0, slow=slow, quick=quick, dead=dead) as app:
            type_in(app, *"Why is the sea salt?")
            await until(lambda: shown(app, "answer") == "Rivers bring it.")
            slow_lane, quick_lane, dead_lane = shown(app, "lanes").splitlines()
            assert re.fullmatch(r"quick +first after \d+\.\d s", quick_lane)
            assert [slow_lane.split(), dead_lane.split()] == [["slow", "cancelled"], ["dead", "cancelled"]]
            assert struck_out(app) == ["slow", "dead"]
            for server in (slow, dead):
                await until_closed(server)
        for server in (slow, quick, dead):
            (request,) = server.requests  # one for all the keys
            assert request.json["messages"][-1]["content"] == "Why is the sea salt?"

    def answer(_: Request) -> Reply:
        slow.wait_requests(1, PATIENCE), dead.wait_requests(1, PATIENCE)
        return Reply(chat("Rivers ", "bring it."))

    with Loopback(SILENT) as slow, Loopback(answer) as quick, Loopback(SILENT) as dead:
        asyncio.run(main())


def test_typing_on_cancels_the_running_answer() -> None:
    async def main() -> None:
        async with window(one=one, other=other) as app:
            type_in(app, "Tell me")
            await until(lambda: "0 1 2" in shown(app, "answer"))
            type_in(app, " a joke")
            await until(lambda: shown(app, "answer") == "A joke.")
            assert_closed(one.connections[0])
        assert one.requests[1].json["messages"][-1]["content"] == "Tell me a joke"

    begun = [chat_chunk("0 "), chat_chunk("1 "), chat_chunk("2 "), STALL]
    with Loopback([Reply(begun), Reply(chat("A joke."))]) as one, Loopback(SILENT) as other:
        asyncio.run(main())


def test_leaving_closes_what_is_running() -> None:
    async def main() -> None:
        async with window(one=one) as app:
            type_in(app, "Hi")
            await until(lambda: "Hello" in shown(app, "answer"))
        await until_closed(one)

    with Loopback(Reply([chat_chunk("Hello"), STALL])) as one:
        asyncio.run(main())


def test_a_failure_is_shown_and_the_next_question_is_answered() -> None:
    async def main() -> None:
        async with window(one=one) as app:
            type_in(app, "Hi")
            await until(lambda: "The key is wrong" in shown(app, "answer"))
            assert shown(app, "lanes").split() == ["one", "failed"]
            type_in(app, "!")
            await until(lambda: shown(app, "answer") == "Hello!")

    refusal = Reply.of_json({"error": {"message": "The key is wrong"}}, 401)
    with Loopback([refusal, Reply(chat("Hello!"))]) as one:
        asyncio.run(main())


def test_the_stand_ins_answer() -> None:
    async def main() -> None:
        module = example("type_ahead")
        app = module.TypeAhead({"Ada": module.stand_in("Ada"), "Alan": module.stand_in("Alan")})
        async with app.run_test() as pilot:
            await pilot.press(*"Hm?")
            await until(lambda: "'Hm?'" in shown(app, "answer") and "first" in shown(app, "lanes"))
            winner = {"Ada": "Alan", "Alan": "Ada"}[struck_out(app)[0]]
            await until(lambda: f"I am {winner}" in shown(app, "answer"))

    asyncio.run(main())


@pytest.mark.judges
def test_in_a_pipe_each_line_is_a_question_and_the_lanes_are_plain_lines() -> None:
    finished = python(str(EXAMPLES / "type_ahead.py"), input="Why?\nHow?\n")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "\x1b" not in finished.stdout
    paragraphs = finished.stdout.strip().split("\n\n")
    assert len(paragraphs) == 4  # the lanes and the answer, twice
    for lanes, answer, question in zip(paragraphs[::2], paragraphs[1::2], ("Why?", "How?"), strict=True):
        (winner,) = re.findall(r"(\w+) +first after \d+\.\d s", lanes)
        assert lanes.count("cancelled") == 2
        assert answer.startswith(f"You ask: {question!r} I am {winner}")

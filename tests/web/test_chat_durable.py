"""`web.chat` over durable runs: its server is killed in the middle of an answer, and the browser returns to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rxllm import Engine, Fake, RunError, ToolCall, ValidationError, durable, tool, web
from rxllm.session import MemorySessions
from rxllm.testing.loopback import DONE, STALL, Loopback, Reply, chat, chat_chunk, chat_event, chat_finish
from rxllm.web import _chat, _chat_turns
from tests.runtime.support import ROOT
from tests.waiting import PATIENCE, until
from tests.web.chat_server import endpoint
from tests.web.chats import (
    ASKS,
    PAYS,
    Page,
    Slow,
    approval,
    ask,
    body,
    browser,
    opens_at_return,
    paid,
    pay,
    says,
    text_of,
)
from tests.web.chats import thread as stored

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "note", "arguments": '{"text": "tea"}'}}
LEASE = 600.0
ANSWER = ["Be brief.", "Note tea.", "", "noted", "Once upon a time."]


@contextlib.asynccontextmanager
async def server(
    folder: Path, url: str, lease: float = LEASE
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Page]]:
    command = [sys.executable, "-m", "tests.web.chat_server", str(folder), url, str(lease)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
            yield process, Page(client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def post_until(page: Page, text: str, seen: str, then: Any) -> None:
    """Post a message, and call `then` once the answer contains `seen`."""
    answer = ""
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        async with page.client.stream("POST", page.path, json=body(page.id, says(text))) as response:
            async for frame in web.from_sse(response.aiter_bytes()):
                answer += frame.get("delta", "")
                if seen in answer:
                    then()
    assert seen in answer


async def begun_and_killed(folder: Path, url: str) -> None:
    async with server(folder, url, lease=1.0) as (process, page):  # the next server waits for its end
        await post_until(page, "Note tea.", "Once ", lambda: process.send_signal(signal.SIGKILL))
        assert await process.wait() == -signal.SIGKILL


class Provider:
    """A provider that calls the tool, and then stalls in the middle of its answer until `go` is set."""

    def __init__(self) -> None:
        self.is_healed = False

    def __call__(self, request: Any) -> Reply:
        if request.json["messages"][-1]["role"] != "tool":
            return Reply([chat_event({"tool_calls": [CALL]}), chat_finish("tool_calls"), DONE])
        return Reply(chat("Once ", "upon a time.") if self.is_healed else [chat_chunk("Once "), STALL])


async def saved(folder: Path) -> list[str]:
    async with durable.open_runs(folder / "runs.db", {}) as runs:
        return await stored(runs.sessions)


@pytest.mark.judges
def test_the_browser_returns_to_the_answer_of_a_server_that_was_killed(tmp_path: Path) -> None:
    async def main(model: Loopback) -> None:
        await begun_and_killed(tmp_path, model.url)
        provider.is_healed = True
        async with server(tmp_path, model.url) as (_, page):
            tabs = await asyncio.gather(page.back(), page.back())
            assert [text_of(tab).endswith("Once upon a time.") for tab in tabs] == [True, True]
            assert [frame["type"] for frame in web.from_sse(tabs[0].content)][-1] == "finish"
            assert (await page.back()).status_code == 204
        assert await saved(tmp_path) == ANSWER

    provider = Provider()
    with Loopback(provider) as model:
        asyncio.run(main(model))
    assert (tmp_path / "notes").read_text() == "tea\n"
    assert len(model.requests) == 3  # one for the first step, and two for the one that was interrupted


@pytest.mark.judges
def test_a_message_to_a_server_that_was_killed_waits_for_the_answer(tmp_path: Path) -> None:
    """With one tab in the old answer and one that posts, the answer is continued and saved once."""

    async def main(model: Loopback) -> None:
        await begun_and_killed(tmp_path, model.url)
        provider.is_healed = True
        async with server(tmp_path, model.url) as (_, page):
            while (again := await page.say("Note tea.")).status_code == 409:
                pass
            assert again.status_code == 200
        assert await saved(tmp_path) == [*ANSWER, *ANSWER[1:]]

    provider = Provider()
    with Loopback(provider) as model:
        asyncio.run(main(model))


@pytest.mark.judges
def test_a_turn_that_lost_its_server_can_be_stopped(tmp_path: Path) -> None:
    async def main(model: Loopback) -> None:
        await begun_and_killed(tmp_path, model.url)
        async with server(tmp_path, model.url) as (_, page):
            assert (await page.stop()).status_code == 204
            assert (await page.back()).status_code == 204
        assert (await saved(tmp_path))[:4] == ANSWER[:4]

    with Loopback(Provider()) as model:
        asyncio.run(main(model))


# In one process


def visited(tmp_path: Path, act: Any, *script: Any, **options: Any) -> Any:
    async def main() -> Any:
        engine = Engine(Fake(*script), tools=[pay, ask], retry=False)
        runs = durable.open_runs(tmp_path / "runs.db", {}, lease=LEASE, flush_after=0.01)
        async with runs, browser(web.chat(engine, runs.sessions, runs=runs, **options)) as client:
            return await act(Page(client), runs)

    return asyncio.run(main())


def test_messages_approvals_and_questions(tmp_path: Path) -> None:
    paid.clear()

    async def act(page: Page, runs: durable.Runs) -> None:
        await page.say("Pay 5.")
        assert (await page.back()).status_code == 204
        assert (await page.post(approval("c2"))).status_code == 400
        assert text_of(await page.post(approval())) == "Paid."
        await page.say("Book a train.")
        assert (await runs.session("c")).session.status == "awaiting_user"
        assert text_of(await page.say("Rome")) == "Booked."
        assert paid == [5]
        assert await stored(runs.sessions) == [
            *("Be brief.", "Pay 5.", "", "paid 5", "Paid."),
            *("Book a train.", "", (await stored(runs.sessions))[7], "Where to?", "Rome", "Booked."),
        ]

    visited(tmp_path, act, PAYS, "Paid.", ToolCall("c3", ASKS.name, {}), "Booked.", system="Be brief.")


def test_ag_ui_tools_are_kept_with_the_run(tmp_path: Path) -> None:
    async def act(page: Page, runs: durable.Runs) -> None:
        message = {"id": "m1", "role": "user", "content": "Where am I?"}
        request = {"threadId": "c", "runId": "r", "messages": [message]}
        tools = [{"name": "locate", "description": "d", "parameters": {"type": "object"}}]
        halted = await page.client.post(page.path, json={**request, "tools": tools})
        assert list(web.from_sse(halted.content))[-1]["outcome"]["pendingToolCallIds"] == ["c1"]

    visited(tmp_path, act, ToolCall("c1", "locate", {}), "x", protocol="ag-ui", client_tools=["locate"])


@pytest.mark.judges
def test_leaving_and_stopping(tmp_path: Path) -> None:
    async def main(model: Loopback) -> None:
        app, runs = endpoint(tmp_path, model.url, LEASE)
        async with runs, browser(app) as client:
            page = Page(client)
            for turns, end in enumerate(("leave", "stop")):
                before = [*ANSWER[1:4], "Once "]
                posting = asyncio.create_task(page.say("Note tea."))
                expected = ["Be brief.", *before * (turns + 1)]
                await until(lambda: stored(runs.sessions), expected.__eq__)
                assert (await page.say("Another!")).status_code == 409
                if end == "stop":
                    assert (await page.stop()).status_code == 204
                    assert "Once " in (await posting).text
                else:
                    posting.cancel()
                await until(lambda: model.connections[-1].closed_at is not None)
                await until(lambda: runs.session("c"), lambda session: session.run is None)
            assert await stored(runs.sessions) == ["Be brief.", *before * 2]

    with Loopback(Provider()) as model:
        asyncio.run(main(model))


@pytest.mark.parametrize("kind", ["memory", "durable"])
@pytest.mark.parametrize("end", ["leave", "stop"])
def test_a_tool_that_is_stopped_does_not_run_again(tmp_path: Path, kind: str, end: str) -> None:
    begun: list[int] = []

    @tool(name="pay", approval=True)
    async def slow(amount: int) -> None:
        begun.append(amount)
        await asyncio.Event().wait()

    async def main() -> None:
        engine = Engine(Fake(PAYS, "I do not know whether it is paid."), tools=[slow])
        async with contextlib.AsyncExitStack() as stack:
            runs = await stack.enter_async_context(durable.open_runs(tmp_path / "runs.db", {}))
            store, given = (MemorySessions(), None) if kind == "memory" else (runs.sessions, runs)
            app = web.chat(engine, store, runs=given)
            page = Page(await stack.enter_async_context(browser(app)))
            await page.say("Pay 5.")
            posting = asyncio.create_task(page.post(approval()))
            await until(lambda: bool(begun))
            await page.stop() if end == "stop" else posting.cancel()
            again = await page.post(approval())
            assert (text_of(again), begun) == ("I do not know whether it is paid.", [5])
            assert "already have done some" in str((await store.load("c")).session.messages[-2].content)

    asyncio.run(main())


@pytest.mark.parametrize("busy", ["refuse", "wait"])
def test_two_processes_begin_one_turn(tmp_path: Path, busy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_chat.PATIENCE, "wait", 3600.0)

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            pages = []
            for _ in range(2):
                runs = await stack.enter_async_context(durable.open_runs(tmp_path / "runs.db", {}))
                app = web.chat(Fake("Hello"), runs.sessions, runs=runs, busy=busy)
                pages.append(Page(await stack.enter_async_context(browser(app))))
            answers = await asyncio.gather(*(page.say("Hi") for page in pages for _ in range(3)))
            statuses = [answer.status_code for answer in answers]
            assert set(statuses) <= {200, 409}
            assert statuses.count(200) >= 1
            if busy == "wait":
                assert 409 not in statuses
            texts = await stored(runs.sessions)
            assert texts == ["Hi", "Hello"] * statuses.count(200)

    asyncio.run(main())


@pytest.mark.parametrize("end", ["leaves", "is slow"])
def test_a_claim_that_is_left_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The next request continues the turn, and does not wait for the lease, which would take ten minutes."""

    async def act(page: Page, runs: durable.Runs) -> None:
        store, go, claims = runs._store, asyncio.Event(), list[str]()
        claim = store.claim

        async def slow(id: str, owner: str, seconds: float) -> Any:
            lease = await claim(id, owner, seconds)
            claims.append(id)
            await go.wait()
            return lease

        monkeypatch.setattr(store, "claim", slow)
        if end == "is slow":
            monkeypatch.setattr(_chat_turns, "STORE_SECONDS", 2.0)
        posting = asyncio.create_task(page.say("Hi"))
        await until(lambda: bool(claims))
        if end == "leaves":
            posting.cancel()
        else:
            assert (await posting).status_code == 503
            monkeypatch.undo()
        await asyncio.wait([posting])
        go.set()
        assert text_of(await page.back()) == "Hello"
        assert await stored(runs.sessions) == ["Hi", "Hello"]

    visited(tmp_path, act, "Hello", background=True)


def test_in_the_background_a_turn_is_not_ended_by_leaving(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        async with durable.open_runs(tmp_path / "runs.db", {}) as runs:
            app = web.chat(slow.model, runs.sessions, runs=runs, background=True)
            async with browser(opens_at_return(app, slow.go)) as client:
                page = Page(client)
                posting = asyncio.create_task(page.say("A story!"))
                await until(lambda: slow.asked == 1)
                posting.cancel()
                await asyncio.wait([posting])
                assert text_of(await page.back()) == "Once upon."
                assert await stored(runs.sessions) == ["A story!", "Once upon."]

    asyncio.run(main())


def test_a_turn_that_cannot_be_stopped_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(page: Page, runs: durable.Runs) -> None:
        def fail(id: str) -> Any:
            raise RunError("store_unavailable", "the secret place is on fire")

        runs.cancel = fail  # type: ignore[method-assign]
        response = await page.say("Hi")
        assert (text_of(response), "secret" in response.text) == ("Hello", False)

    visited(tmp_path, act, "Hello")
    (record,) = [record for record in caplog.records if record.name == "rxllm"]
    assert "the secret place" in record.getMessage()


def test_a_full_process(tmp_path: Path) -> None:
    async def act(page: Page, runs: durable.Runs) -> None:
        posting = asyncio.create_task(page.say("A story!"))
        await until(lambda: bool(runs.produced))
        assert (await Page(page.client, "d").say("Hi")).status_code == 503
        posting.cancel()

    visited(tmp_path, act, ["Once ", ("delay", 3600), "upon."], max_running=1)


def test_the_store_must_be_the_runs_own(tmp_path: Path) -> None:
    with durable.open_runs(tmp_path / "runs.db", {}) as runs:
        with pytest.raises(ValidationError, match=r"runs\.sessions"):
            web.chat(Fake("Hi"), MemorySessions(), runs=runs)
        web.chat(Fake("Hi"), runs.sessions, runs=runs)
        with pytest.raises(ValidationError, match="path at which these runs do not serve a chat yet, not '/api/chat'"):
            web.chat(Fake("Hi"), runs.sessions, runs=runs)
        web.chat(Fake("Hi"), runs.sessions, runs=runs, path="/api/other")


def test_half_an_emoji_is_a_400(tmp_path: Path) -> None:
    async def act(page: Page, runs: durable.Runs) -> int:
        content = b'{"id": "c", "messages": [{"role": "user", "parts": [{"type": "text", "text": "\\ud83d"}]}]}'
        json = {"content-type": "application/json"}
        return (await page.client.post(page.path, content=content, headers=json)).status_code

    assert visited(tmp_path, act, "Hi") in (200, 400)

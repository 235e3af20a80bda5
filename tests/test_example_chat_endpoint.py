"""examples/chat_endpoint as its users run it: a real server, which is killed, and a page in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from rxllm.testing.loopback import DONE, Loopback, Pause, Reply, Request, chat, chat_chunk, chat_event, chat_finish
from tests.programs import EXAMPLES
from tests.waiting import PATIENCE, pauses, until, wait_until
from tests.web.chats import Page, approval, text_of

pytestmark = pytest.mark.judges

ORDER = {"index": 0, "id": "c1", "function": {"name": "order", "arguments": '{"item": "pizza", "amount": 2}'}}
LINES = 40


class Provider:
    """A provider that orders, tells a story that ends once `go` is set, and otherwise repeats the message."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, request: Request) -> Reply:
        last = request.json["messages"][-1]
        if last["role"] == "tool":
            return Reply(chat(f"The shop says: {last['content']}."))
        if last["content"] == "Order":
            return Reply([chat_event({"tool_calls": [ORDER]}), chat_finish("tool_calls"), DONE])
        return Reply(self._story()) if last["content"] == "Story" else Reply(chat(f"You wrote {last['content']}."))

    def _story(self) -> Iterator[bytes | Pause]:
        yield chat_chunk("Once ")
        yield from pauses(self.go.is_set)
        yield from chat("upon a time.")


class Server:
    """The example as a process, started as its first lines say."""

    def __init__(self, folder: Path, provider: Loopback) -> None:
        self._log, self._port, self._starts = folder / "log", "0", 0
        environment = {**os.environ, "RXLLM_MODEL": "openai:m", "OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": "k"}
        self._command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES / "chat_endpoint"), "app:app"]
        self._options: Any = {"cwd": folder, "env": environment}

    def start(self) -> None:
        """Start the server, at the port of its first start."""
        self._starts += 1
        with self._log.open("a") as log:
            self._process = subprocess.Popen([*self._command, "--port", self._port], stderr=log, **self._options)
        started = wait_until(self._lines_of_start, lambda found: len(found) == self._starts)
        self.url, self._port = started[-1]

    def _lines_of_start(self) -> list[tuple[str, str]]:
        return re.findall(r"running on (http://.*:(\d+)) ", self._log.read_text())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def story() -> Provider:
    return Provider()


@pytest.fixture
def server(tmp_path: Path, story: Provider) -> Iterator[Server]:
    with Loopback(story) as provider:
        server = Server(tmp_path, provider)
        server.start()
        try:
            yield server
        finally:
            story.go.set()
            server.kill()


def test_the_program_is_as_short_as_it_claims() -> None:
    assert len((EXAMPLES / "chat_endpoint" / "app.py").read_text().splitlines()) <= LINES


@contextlib.asynccontextmanager
async def visitor(server: Server) -> Any:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        await client.get("/")
        yield Page(client, (await client.get("/history")).json()["id"])


async def history(page: Page) -> Any:
    found = (await page.client.get("/history")).json()
    return found["messages"], found["pending"]


def test_an_approval_and_foreign_ids(server: Server) -> None:
    async def main() -> None:
        async with visitor(server) as page, visitor(server) as other:
            assert page.id != other.id
            await page.say("Order")
            waits = {"c1": "order(item='pizza', amount=2)"}
            assert await history(page) == ([["user", "Order"], ["assistant", ""]], waits)
            spy = Page(other.client, page.id)
            statuses = [(await ask).status_code for ask in (spy.say("Hi"), spy.back(), spy.stop())]
            assert statuses == [404] * 3
            assert (await other.post(approval())).status_code == 400
            assert text_of(await page.post(approval())) == "The shop says: 2 pizza ordered."
            assert (await history(page))[1] == {}

    asyncio.run(main())


def test_tabs_and_stopping(server: Server, story: Provider) -> None:
    async def main() -> None:
        async with visitor(server) as page:
            first = asyncio.create_task(page.say("Story"))
            begun = [["user", "Story"], ["assistant", "Once "]]
            await until(lambda: history(page), lambda found: found[0] == begun)
            assert (await page.say("Hi")).status_code == 409
            assert (await page.stop()).status_code == 204
            await first
            assert text_of(await page.say("Hi")) == "You wrote Hi."

    asyncio.run(main())


def test_sixty_browsers(server: Server) -> None:
    async def talk(number: int) -> None:
        async with visitor(server) as page:
            for text in (f"{number}a", f"{number}b"):
                assert text_of(await page.say(text)) == f"You wrote {text}."
            assert len((await history(page))[0]) == 4

    async def main() -> None:
        await asyncio.gather(*map(talk, range(60)))

    asyncio.run(main())


# The page in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    import importlib.util

    from tests.judges import absent, judge

    if importlib.util.find_spec("playwright") is None:
        absent("playwright", "pip install 'rxllm[browser]'", "browser")
    chromium = judge("chromium", "browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


def shown(tab: Any) -> list[str]:
    return tab.eval_on_selector_all("#chat p:not(.note)", "found => found.map(node => node.textContent.trim())")


def until_shown(tab: Any, *expected: str) -> None:
    wait_until(lambda: shown(tab), [*expected].__eq__)


def send(tab: Any, text: str) -> None:
    tab.get_by_label("Message").fill(text)
    tab.get_by_label("Message").press("Enter")


def test_the_page(browser: Any, server: Server, story: Provider) -> None:
    """An approval, a reload in the middle of an answer, a second tab, and a server that is killed."""
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(server.url)
    send(tab, "Order")
    tab.get_by_role("button", name="Approve").wait_for()
    tab.reload()
    tab.get_by_role("button", name="Approve").click()
    until_shown(tab, "Order", "order(item='pizza', amount=2)   ✓", "The shop says: 2 pizza ordered.")
    send(tab, "Story")
    asked = ["Order", "order(item='pizza', amount=2)   ✓", "The shop says: 2 pizza ordered.", "Story"]
    until_shown(tab, *asked, "Once")
    tab.reload()
    reloaded = ["Order", "The shop says: 2 pizza ordered.", "Story"]
    until_shown(tab, *reloaded, "Once")
    second = context.new_page()
    second.goto(server.url)
    until_shown(second, *reloaded, "Once")
    server.kill()
    story.go.set()
    server.start()
    until_shown(tab, *reloaded, "Once upon a time.")
    until_shown(second, *reloaded, "Once upon a time.")
    send(second, "Thanks")
    until_shown(second, *reloaded, "Once upon a time.", "Thanks", "You wrote Thanks.")
    context.close()


def test_a_call_may_have_any_id(browser: Any) -> None:
    """Names that every JavaScript object has are ids like others."""
    ids = ["constructor", "__proto__", "toString"]
    pending = {"pending": {id: f"order {id}" for id in ids}, "approvals": {id: f"{id}:1" for id in ids}}
    answers = {
        "/": {"path": EXAMPLES / "chat_endpoint" / "page.html", "content_type": "text/html"},
        "/history": {"json": {"id": "c", "messages": [["user", "Order"]], **pending}},
        "/api/chat": {"status": 204},
        "/api/chat/c/stream": {"status": 204},
    }
    context = browser.new_context()
    context.route("http://page.test/**", lambda route: route.fulfill(**answers[urlsplit(route.request.url).path]))
    tab = context.new_page()
    tab.goto("http://page.test/")
    with tab.expect_request("http://page.test/api/chat") as sent:
        for _ in ids:
            tab.get_by_role("button", name="Approve").first.click()
    parts = sent.value.post_data_json["messages"][0]["parts"]
    assert [(part["toolCallId"], part["approval"]) for part in parts] == [
        (id, {"id": f"{id}:1", "approved": True}) for id in ids
    ]
    context.close()

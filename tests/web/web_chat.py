"""The page of examples/web_chat in a real browser, with a real server as its provider."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from itertools import chain
from types import ModuleType
from typing import Any

import pytest

import rxllm
from rxllm.testing.loopback import DONE, Loopback, Pause, Reply, Request, chat, chat_chunk, chat_event, chat_finish
from tests.judges import absent, judge
from tests.programs import example
from tests.waiting import PATIENCE, pauses
from tests.waiting import wait_until as wait_until_true

MARKDOWN = """\
## Prices

A **bold** claim about `snake_case`:

| Fruit | Price |
|:--|--:|
| Apple | 2.50 |

1. one
   - nested
2. two

```python
if 1 < 2:
    print("<b>")
```

See [the list](https://example.org/list_of_fruits).
"""


healed = threading.Event()
"""Set by a test once the provider is to answer what it has failed at before."""

goes_on = threading.Event()
"""Cleared by a test that looks at half of a call's arguments, and set when it has."""

asked: list[str] = []
"""The paths for which the page's server was asked."""


def call(name: str, *pieces: str, index: int = 0) -> Iterator[bytes | Pause]:
    first = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    yield chat_event({"tool_calls": [first]})
    for number, piece in enumerate(pieces):
        yield from pauses(goes_on.is_set) if number else ()
        yield chat_event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})


CALLED = (chat_finish("tool_calls"), DONE)


def thinking(*pieces: str) -> list[bytes | Pause]:
    return [item for piece in pieces for item in (chat_event({"reasoning_content": piece}), Pause(0.05))]


def story() -> Iterator[bytes | Pause]:
    yield from thinking("The user wants ", "a long story. ", "I begin with the sea.")
    for number in range(10_000):
        yield chat_chunk(f"Wave {number} rolls in. " + ("\n\n" if number % 12 == 11 else ""))
        yield Pause(0.03)


def pieces(text: str, size: int = 5) -> Iterator[bytes | Pause]:
    for begin in range(0, len(text), size):
        yield chat_chunk(text[begin : begin + size])
        yield Pause(0.002)


def reply(request: Request) -> Reply:
    messages = request.json["messages"]
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    if messages[-1]["role"] == "tool":
        return Reply([chat_chunk("The tool says: "), Pause(0.05), *chat(messages[-1]["content"])])
    match prompts[-1].split()[0]:
        case "Story":
            return Reply(story())
        case "Order":
            begun = [*thinking("Two of them."), chat_chunk("I order them.")]
            return Reply(chain(begun, call("order", '{"item": "pizza', '", "amount": 2}'), CALLED))
        case "Expert":
            return Reply([*call("expert", '{"prompt": "Where is it sunny?"}'), *CALLED])
        case "Both":
            calls = [call("order", f'{{"item": "pizza", "amount": {index}}}', index=index) for index in (0, 1)]
            return Reply([*calls[0], *calls[1], *CALLED])
        case "Markdown":
            return Reply([*thinking("Some *Markdown*."), *pieces(MARKDOWN), *chat("")])
        case "Repeat":
            return Reply([*pieces(prompts[-1].removeprefix("Repeat "), 7), *chat("")])
        case "Half":
            return Reply(chat("The whole.") if healed.is_set() else [*pieces("The first **half")])
        case "Broken":
            if healed.is_set():
                return Reply(chat("Better."))
            return Reply.of_json({"error": {"message": "no such model: secret"}}, status=404)
        case _:
            return Reply(chat(f"You wrote: {', '.join(prompts)}."))


@pytest.fixture(scope="module")
def chromium() -> str:
    for package, extra in (("playwright", "browser"), ("starlette", "web"), ("uvicorn", "web")):
        if importlib.util.find_spec(package) is None:
            absent(package, f"pip install 'rxllm[{extra}]'", "browser")
    return judge("chromium", "browser")


@pytest.fixture
def provider() -> Iterator[Loopback]:
    healed.clear()
    goes_on.set()
    asked.clear()
    with Loopback(reply) as server:
        yield server


@pytest.fixture(scope="module")
def app(chromium: str) -> ModuleType:
    return example("web_chat/app")


@pytest.fixture
def url(app: ModuleType, provider: Loopback) -> Iterator[str]:
    """The address of a server in a thread of its own."""
    import uvicorn

    model = rxllm.Engine(rxllm.OpenAIChat(base_url=provider.url, api_key="k"), model="m", retry=False)
    models = {"scripted": model.with_tools(app.order, app.AGENT), "plain": model}
    web_app = app.web_app(models)

    async def recorded(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope.get("path", ""))
        await web_app(scope, receive, send)

    config = uvicorn.Config(recorded, port=0, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until_true(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE)  # a loaded machine draws late
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """The page. It raises no error, and asks no other server."""
    page = browser.new_page(viewport={"width": 1100, "height": 760}, color_scheme="light")
    page.set_default_timeout(1000 * PATIENCE)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: request.url.startswith(url) or faults.append(request.url))
    page.goto(url)
    yield page
    page.close()
    assert faults == []


def send(page: Any, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def wait_until(page: Any, condition: str, argument: Any = None) -> None:
    """Wait until the function `condition` is true. The page's policy forbids Playwright's ``wait_for_function``."""
    loop = """async (argument) => {
        const holds = CONDITION
        while (!holds(argument)) await new Promise(requestAnimationFrame)
    }"""
    page.evaluate(loop.replace("CONDITION", condition), argument)


def words(page: Any) -> str:
    """Return all that the panes show, at rest."""
    wait_until(page, "() => [...document.querySelectorAll('.pane')].every((pane) => pane.dataset.state !== 'running')")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.locator("main").inner_text()


def wait_for_answer(page: Any) -> None:
    """Wait until the last turn has ended."""
    from playwright.sync_api import expect

    expect(page.locator(".turn").last).to_have_attribute("data-state", "ended")
    expect(page.locator("#send")).to_be_enabled()

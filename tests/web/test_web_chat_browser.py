"""The page of examples/web_chat in a real browser, driven as a person does. The provider is a real server.

RXLLM_PICTURES names a folder for pictures of the page, light and dark. ``python -m docs.pictures`` takes the picture of
the README in this way.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rxllm
from rxllm.testing.loopback import DONE, Loopback, Pause, Reply, Request, chat, chat_chunk, chat_event, chat_finish
from tests.judges import absent, judge
from tests.programs import example

BOUND = 0.1
"""Within so many seconds of the stop, or of the closed tab, the provider sees its connection closed."""

NASTY = (
    '<script>document.title = "hacked"</script><img src="http://127.0.0.1:9/x.png" onerror="document.title=1"><b>b</b>'
)

pytestmark = pytest.mark.timeout(300)


def call(name: str, *pieces: str, index: int = 0) -> list[bytes | Pause]:
    first = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    chunks: list[bytes | Pause] = [chat_event({"tool_calls": [first]})]
    for piece in pieces:
        chunks += [Pause(0.3), chat_event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})]
    return chunks


CALLED = (chat_finish("tool_calls"), DONE)


def thinking(*pieces: str) -> list[bytes | Pause]:
    return [item for piece in pieces for item in (chat_event({"reasoning_content": piece}), Pause(0.05))]


def story() -> Iterator[bytes | Pause]:
    yield from thinking("The user wants ", "a long story. ", "I begin with the sea.")
    for number in range(10_000):
        yield chat_chunk(f"Wave {number} rolls in. " + ("\n\n" if number % 12 == 11 else ""))
        yield Pause(0.03)


def reply(request: Request) -> Reply:
    messages = request.json["messages"]
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    if messages[-1]["role"] == "tool":
        return Reply([chat_chunk("The tool says: "), Pause(0.05), *chat(messages[-1]["content"])])
    match prompts[-1].split()[0]:
        case "Story":
            return Reply(story())
        case "Order":
            body = [
                *thinking("Two of them."),
                chat_chunk("I order them."),
                *call("order", '{"item": "pizza', '", "amount": 2}'),
            ]
            return Reply([*body, *CALLED])
        case "Expert":
            return Reply([*call("expert", '{"prompt": "Where is it sunny?"}'), *CALLED])
        case "Both":
            calls = [call("order", f'{{"item": "pizza", "amount": {index}}}', index=index) for index in (0, 1)]
            return Reply([*calls[0], *calls[1], *CALLED])
        case "Nasty":
            return Reply(chat(NASTY))
        case "Broken":
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
    models = {"one": model.with_tools(app.order, app.AGENT), "two": model}
    config = uvicorn.Config(app.web_app(models), port=0, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """The page. It raises no error, and asks no other server."""
    page = browser.new_page(viewport={"width": 1100, "height": 760}, color_scheme="light")
    page.set_default_timeout(15_000)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: request.url.startswith(url) or faults.append(request.url))
    page.goto(url)
    yield page
    page.close()
    assert faults == []


def picture(page: Any, name: str) -> None:
    folder = os.environ.get("RXLLM_PICTURES")
    for scheme in ("dark", "light") if folder else ():
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=f"{folder}/{name}-{scheme}.png")


def test_the_picture_of_the_readme_shows_this_page(page):
    from playwright.sync_api import expect

    page.set_viewport_size({"width": 860, "height": 500})
    send(page, "Order two pizzas, please.")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    page.mouse.move(0, 0)
    folder = os.environ.get("RXLLM_PICTURES")
    if folder:
        page.emulate_media(color_scheme="light")
        page.screenshot(path=f"{folder}/web_chat.png")
        (Path(folder) / "web_chat.txt").write_text(page.locator("body").inner_text())
    shown = Path(__file__).parents[2] / "docs" / "pictures" / "web_chat.txt"
    assert page.locator("body").inner_text() == shown.read_text(), "run python -m docs.pictures"


def send(page: Any, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def assert_prompt(times: list[float]) -> None:
    """The median counts: a shared machine may hold up one of several."""
    print("closed after", ", ".join(f"{1000 * seconds:.1f} ms" for seconds in times))
    assert statistics.median(times) < BOUND


def test_an_answer_streams_below_folded_thoughts_and_stop_keeps_what_came(page, provider):
    from playwright.sync_api import expect

    send(page, "Story of the sea")
    pane = page.locator(".pane")
    expect(pane).to_have_attribute("data-state", "running")
    expect(pane.locator(".text")).to_contain_text("Wave 40")
    thoughts = pane.locator(".thinking")
    expect(thoughts.locator(".thought")).to_be_hidden()
    picture(page, "streaming")
    thoughts.locator("summary").click()
    expect(thoughts.locator(".thought")).to_have_text("The user wants a long story. I begin with the sea.")
    turns = pane.locator(".turns")
    at_the_end = "box => box.scrollHeight - box.scrollTop - box.clientHeight < 60"
    page.wait_for_function(at_the_end, arg=turns.element_handle())
    pane.get_by_role("button", name="Stop").click()
    provider.connections[-1].wait_closed()
    expect(pane.locator(".end")).to_have_text("stopped")
    expect(pane.get_by_role("button", name="Stop")).to_be_hidden()
    expect(pane.locator(".text")).to_contain_text("Wave 40")
    picture(page, "stopped")
    send(page, "Which?")
    expect(pane.locator(".text").last).to_have_text("You wrote: Story of the sea, Which?.")


@pytest.mark.parametrize("label", ["Approve", "Deny"])
def test_a_tool_card_shows_its_arguments_waits_for_approval_and_shows_its_result(page, label):
    from playwright.sync_api import expect

    send(page, "Order two pizzas")
    card = page.locator(".tool")
    expect(card).to_have_attribute("data-state", "arguments")
    expect(card.locator(".arguments")).to_have_text('{"item": "pizza')
    expect(card).to_have_attribute("data-state", "waiting")
    expect(card.locator(".arguments")).to_have_text('{"item": "pizza", "amount": 2}')
    expect(page.locator("#send")).to_be_disabled()
    if label == "Approve":
        picture(page, "approval")
    else:
        page.reload()
    card.get_by_role("button", name=label).click()
    expect(card).to_have_attribute("data-state", "done" if label == "Approve" else "failed")
    expect(card.locator(".result")).to_contain_text("2 x pizza" if label == "Approve" else "denied")
    expect(page.locator(".text").last).to_contain_text("The tool says: ")
    expect(card.locator(".ask")).to_have_count(0)
    expect(page.locator("#send")).to_be_enabled()


def test_the_work_of_an_agent_is_inside_the_card_of_its_call(page):
    from playwright.sync_api import expect

    send(page, "Expert please")
    card = page.locator(".turn > .answer > .step > .tool")
    inner = card.locator(".inner .tool")
    expect(inner).to_have_count(2, timeout=30_000)
    expect(inner.nth(0).locator(".state").first).to_have_text("looking at the sky over Paris")
    expect(inner.nth(0)).to_have_attribute("data-state", "done")
    expect(inner.nth(1)).to_have_attribute("data-state", "failed")
    expect(inner.nth(1).locator("> summary")).to_contain_text("failed: handler_raised")
    expect(card.locator("> .inner > .step > .text")).to_have_text("Take sunglasses.")
    expect(card).to_have_attribute("data-state", "done")
    expect(page.locator(".turn > .answer > .step > .text")).to_have_text("The tool says: Take sunglasses.")
    picture(page, "agent")


def test_two_models_answer_side_by_side_and_each_has_its_own_stop(page, provider):
    from playwright.sync_api import expect

    page.get_by_label("Side by side").check()
    panes = page.locator(".pane")
    expect(panes).to_have_count(2)
    send(page, "Story for two")
    for number in range(2):
        expect(panes.nth(number).locator(".text")).to_contain_text("Wave 15")
    picture(page, "side-by-side")
    panes.nth(1).get_by_role("button", name="Stop").click()
    expect(panes.nth(1).locator(".end")).to_have_text("stopped")
    expect(panes.nth(0)).to_have_attribute("data-state", "running")
    assert provider.open_count == 1
    panes.nth(0).get_by_role("button", name="Stop").click()
    expect(panes.nth(0).locator(".end")).to_have_text("stopped")


def test_a_reload_shows_what_was_written_and_then_goes_on_live(page, provider):
    from playwright.sync_api import expect

    send(page, "Hello")
    expect(page.locator(".text")).to_have_text("You wrote: Hello.")
    send(page, "Story of the sea")
    expect(page.locator(".text").last).to_contain_text("Wave 10")
    page.reload()
    expect(page.locator(".user")).to_have_text(["Hello", "Story of the sea"])
    expect(page.locator(".text").first).to_have_text("You wrote: Hello.")
    expect(page.locator(".text").last).to_contain_text("Wave 0 rolls in. Wave 1 ")
    expect(page.locator(".text").last).to_contain_text("Wave 80")
    assert len(provider.requests) == 2


def test_the_stop_button_closes_the_connection_to_the_model(page, provider):
    from playwright.sync_api import expect

    times = []
    for number in range(5):
        send(page, "Story of the sea")
        expect(page.locator(".turn").nth(number).locator(".text")).to_contain_text("Wave 5")
        stopped = time.monotonic()
        page.get_by_role("button", name="Stop").click()
        times.append(provider.connections[-1].wait_closed() - stopped)
        expect(page.locator(".end").nth(number)).to_have_text("stopped")
    assert_prompt(times)


def test_a_closed_tab_closes_the_connection_to_the_model(browser, url, provider):
    from playwright.sync_api import expect

    times = []
    for _ in range(5):
        tab = browser.new_page()
        tab.goto(url)
        send(tab, "Story of the sea")
        expect(tab.locator(".text")).to_contain_text("Wave 5")
        closed = time.monotonic()
        tab.close(run_before_unload=True)  # as when a person closes it
        times.append(provider.connections[-1].wait_closed() - closed)
    assert_prompt(times)


def test_what_a_model_writes_is_text_and_never_html(page):
    from playwright.sync_api import expect

    send(page, "Nasty <i>now</i>")
    expect(page.locator(".text")).to_have_text(NASTY)
    expect(page.locator(".user")).to_have_text("Nasty <i>now</i>")
    assert page.locator(".turns").locator("script, img, b, i").count() == 0
    assert page.title() == "rxllm: a chat in the browser"


def test_an_error_of_the_provider_is_shown_without_its_words_and_the_chat_goes_on(page):
    from playwright.sync_api import expect

    send(page, "Broken")
    expect(page.locator(".end.error")).to_contain_text("failed: ")
    expect(page.locator("body")).not_to_contain_text("secret")
    send(page, "Again")
    expect(page.locator(".text")).to_have_text("You wrote: Broken, Again.")


def test_a_connection_that_breaks_is_made_again(page):
    from playwright.sync_api import expect

    broken = []

    def break_once(route):
        broken.append(route.request.method)
        route.abort() if len(broken) == 1 else route.continue_()

    page.route("**/0/*", break_once)
    page.reload()
    expect(page.locator(".status")).to_have_text("reconnecting …")
    expect(page.locator(".status")).to_have_text("")
    assert broken == ["GET", "GET"]
    send(page, "Hello")
    expect(page.locator(".text")).to_have_text("You wrote: Hello.")


def test_two_calls_are_sent_when_both_are_answered(page):
    from playwright.sync_api import expect

    send(page, "Both of them")
    cards = page.locator(".tool")
    cards.nth(1).get_by_role("button", name="Approve").click()
    expect(cards.nth(1)).to_have_attribute("data-state", "called")
    expect(page.locator(".status")).to_have_text("waits for you")
    cards.nth(0).get_by_role("button", name="Deny").click()
    expect(cards.nth(0)).to_have_attribute("data-state", "failed")
    expect(cards.nth(1)).to_have_attribute("data-state", "done")

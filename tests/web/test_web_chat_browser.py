"""The page of examples/web_chat in a real browser, driven as a person does. The provider is a real server.

RXLLM_PICTURES names a folder for pictures of the page, light and dark. ``python -m docs.pictures`` takes the picture of
the README in this way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.closing import assert_closed
from tests.waiting import PATIENCE, wait_until
from tests.web.web_chat import asked, goes_on, healed, send, wait_for_answer, words

pytestmark = [pytest.mark.timeout(300), pytest.mark.judges]


def picture(page: Any, name: str) -> None:
    folder = os.environ.get("RXLLM_PICTURES")
    for scheme in ("dark", "light") if folder else ():
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=f"{folder}/{name}-{scheme}.png")


def test_the_picture_of_the_readme_shows_this_page(page):
    from playwright.sync_api import expect

    page.set_viewport_size({"width": 860, "height": 560})
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


def test_an_answer_streams_below_folded_thoughts_and_stop_keeps_what_came(page):
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
    pane.get_by_role("button", name="Stop").click()
    expect(pane.locator(".end")).to_have_text("stopped")
    expect(pane.get_by_role("button", name="Stop")).to_be_hidden()
    expect(pane.locator(".text")).to_contain_text("Wave 40")
    picture(page, "stopped")
    send(page, "Which?")
    expect(pane.locator(".text").last).to_have_text("You wrote: Story of the sea, Which?.")


@pytest.mark.parametrize("label", ["Approve", "Deny"])
def test_a_tool_card_shows_its_arguments_waits_for_approval_and_shows_its_result(page, label):
    from playwright.sync_api import expect

    goes_on.clear()
    send(page, "Order two pizzas")
    card = page.locator(".tool")
    expect(card).to_have_attribute("data-state", "arguments")
    expect(card.locator(".arguments")).to_have_text('{"item": "pizza')
    goes_on.set()
    expect(card).to_have_attribute("data-state", "waiting")
    expect(card.locator(".arguments")).to_have_text('{"item": "pizza", "amount": 2}')
    expect(page.locator("#send")).to_be_disabled()
    if label == "Approve":
        picture(page, "approval")
    else:
        page.reload()
    card.get_by_role("button", name=label).click()
    expect(card).to_have_attribute("data-state", "done" if label == "Approve" else "denied")
    expect(card.locator(".result")).to_have_text("2 x pizza, here tomorrow" if label == "Approve" else "")
    expect(card.locator(".state")).to_have_text("done" if label == "Approve" else "denied")
    expect(page.locator(".text").last).to_contain_text("The tool says: ")
    expect(card.locator(".ask")).to_have_count(0)
    expect(page.locator("#send")).to_be_enabled()


def test_the_work_of_an_agent_is_inside_the_card_of_its_call(page):
    from playwright.sync_api import expect

    send(page, "Expert please")
    card = page.locator(".turn > .answer > .content > .step > .tool")
    inner = card.locator(".inner .tool")
    expect(inner).to_have_count(2)
    expect(inner.nth(0).locator(".state").first).to_have_text("looking at the sky over Paris")
    expect(inner.nth(0)).to_have_attribute("data-state", "done")
    expect(inner.nth(1)).to_have_attribute("data-state", "failed")
    expect(inner.nth(1).locator("> summary")).to_contain_text("failed: the tool reported an error")
    expect(card.locator("> .inner > .step > .text")).to_have_text("Take sunglasses.")
    expect(card).to_have_attribute("data-state", "done")
    expect(page.locator(".turn > .answer > .content > .step > .text")).to_have_text("The tool says: Take sunglasses.")
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
    provider.wait_until(lambda: provider.open_count == 1, PATIENCE)
    panes.nth(0).get_by_role("button", name="Stop").click()
    expect(panes.nth(0).locator(".end")).to_have_text("stopped")


def test_a_reload_shows_what_was_written_and_then_goes_on_live(page, provider):
    from playwright.sync_api import expect

    send(page, "Hello")
    expect(page.locator(".text")).to_have_text("You wrote: Hello.")
    send(page, "Story of the sea")
    expect(page.locator(".text").last).to_contain_text("Wave 10")
    page.reload()
    expect(page.locator(".user .content")).to_have_text(["Hello", "Story of the sea"])
    expect(page.locator(".text").first).to_have_text("You wrote: Hello.")
    expect(page.locator(".text").last).to_contain_text("Wave 0 rolls in. Wave 1 ")
    expect(page.locator(".text").last).to_contain_text("Wave 80")
    assert len(provider.requests) == 2


def test_the_stop_button_closes_the_connection_to_the_model(page, provider):
    from playwright.sync_api import expect

    send(page, "Story of the sea")
    expect(page.locator(".text")).to_contain_text("Wave 5")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".end")).to_have_text("stopped")
    send(page, "Which?")
    expect(page.locator(".text").last).to_contain_text("You wrote: ")
    assert_closed(provider.connections[0])


def test_a_closed_tab_closes_the_connection_to_the_model(browser, url, provider, page):
    from playwright.sync_api import expect

    tab = browser.new_page()
    tab.goto(url)
    send(tab, "Story of the sea")
    expect(tab.locator(".text")).to_contain_text("Wave 5")
    tab.close(run_before_unload=True)  # as when a person closes it
    wait_until(lambda: any(path.endswith("/leave") for path in asked))
    send(page, "Hello")
    expect(page.locator(".text")).to_have_text("You wrote: Hello.")
    assert_closed(provider.connections[0])


@pytest.mark.parametrize("prompt", ["Broken", "Half of it"])
def test_an_error_is_one_sentence_with_a_retry_that_leaves_no_trace(page, provider, prompt):
    from playwright.sync_api import expect

    send(page, "Hello")
    wait_for_answer(page)
    send(page, prompt)
    error = page.locator(".error")
    fault = "The provider rejected the request." if prompt == "Broken" else "The answer broke off."
    expect(error).to_have_count(1)
    expect(error.locator("p")).to_contain_text(fault)
    expect(page.locator(".turn").last.locator(".end")).to_have_count(0)
    expect(page.locator("body")).not_to_contain_text("secret")
    picture(page, f"error-{prompt[:4]}")
    shown = words(page)
    page.reload()
    expect(error).to_have_count(1)
    assert words(page) == shown
    error.get_by_role("button", name="Retry").click()
    expect(page.locator("#send")).to_be_enabled()
    expect(error).to_have_count(1)  # it has failed again
    healed.set()
    error.get_by_role("button", name="Retry").click()
    answer = "Better." if prompt == "Broken" else "The whole."
    expect(page.locator(".text")).to_have_text(["You wrote: Hello.", answer])
    expect(error).to_have_count(0)
    assert [message["content"] for message in provider.requests[-1].json["messages"] if message["role"] == "user"] == [
        "Hello",
        prompt,
    ]
    shown = words(page)
    page.reload()
    expect(page.locator(".text")).to_have_text(["You wrote: Hello.", answer])
    assert words(page) == shown


def test_a_message_that_the_server_never_got_has_a_retry(page):
    from playwright.sync_api import expect

    page.route("**/0", lambda route: route.abort() if route.request.method == "POST" else route.continue_())
    send(page, "Hello")
    expect(page.locator(".user .content")).to_have_text("Hello")
    expect(page.locator(".error p")).to_have_text("The connection broke, and the message was not sent.")
    expect(page.locator(".user .content")).to_have_text("Hello")
    page.unroute("**/0")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".text")).to_have_text("You wrote: Hello.")
    expect(page.locator(".user")).to_have_count(1)
    expect(page.locator(".error")).to_have_count(0)


def test_a_message_that_the_server_refuses_is_shown_with_its_words(page, app, monkeypatch):
    from playwright.sync_api import expect

    monkeypatch.setattr(app, "TURNS", 0)
    send(page, "Hello")
    expect(page.locator(".error")).to_have_text("This chat is full. Start a new one.")
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    expect(page.locator("#send")).to_be_enabled()


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
    expect(cards.nth(0)).to_have_attribute("data-state", "denied")
    expect(cards.nth(1)).to_have_attribute("data-state", "done")

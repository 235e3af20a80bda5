"""The page of examples/web_chat as it is seen, read aloud and attacked: Markdown, speakers, focus, width."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.web.web_chat import MARKDOWN, send, wait_for_answer, wait_until, words

pytestmark = [pytest.mark.timeout(300), pytest.mark.judges]

HOSTILE = [
    "<script>document.title = 'hacked'</script>",
    '<img src="http://127.0.0.1:9/x.png" onerror="document.title=1">',
    "<svg onload=alert(1)><iframe src=javascript:alert(1)></iframe></svg>",
    "<b onclick='document.title=1'>bold</b>\n\n<style>body { display: none }</style>",
    "[click](javascript:document.title=1)",
    "[click](JaVaScRiPt:document.title=1) [click](java\tscript:document.title=1)",
    "[click](&#106;avascript:document.title=1) [click](\x01javascript:document.title=1)",
    "[click](data:text/html,<script>document.title=1</script>) [click](vbscript:x) [click](file:///etc/passwd)",
    "<javascript:document.title=1> [ref]\n\n[ref]: javascript:document.title=1 'title'",
    '![phone home](http://127.0.0.1:9/x.png "title" onerror=1) ![x](data:image/svg+xml,<svg/onload=alert(1)>)',
    "[![inner](http://127.0.0.1:9/x.png)](http://127.0.0.1:9/y)",
    "[relative](/leave) [fragment](#x) [scheme-less](//127.0.0.1:9/x)",
    '[quote](https://example.org/"onmouseover="document.title=1)',
    '```html"><script>document.title=1</script>\n<script>document.title=1</script>\n```',
    "`<script>document.title=1</script>` **<i>x</i>** <u>",
    "| <script>document.title=1</script> | b |\n|---|---|\n| <img src=x onerror=alert(1)> | [c](javascript:x) |",
    "&lt;script&gt;document.title=1&lt;/script&gt; &#60;script&#62; &#0; &#x110000;",
    "> " * 4000 + "deep",
    "[" * 4000,
    "__proto__ constructor\n\n[__proto__]: constructor\n\n[__proto__]",
]
"""Answers of a model that attacks the page: scripts, handlers, links that run code, images that phone home, HTML."""

ATTRIBUTES = {"class", "data-type", "href", "target", "rel", "style", "start"}


def words_at_the_end(page: Any) -> str:
    """Return all that the page shows once the answer has ended, or waits for an approval."""
    from playwright.sync_api import expect

    expect(page.locator(".turn").last).to_have_attribute("data-state", "ended")
    return words(page)


DRAW = """async ([text, size]) => {
    const { Markdown, add } = await import("/files/markdown.js")
    const box = add(document.body, "div")
    const blocks = []
    const markdown = new Markdown(box, (block) => blocks.push(block.dataset.type))
    for (let i = 0; i < text.length; i += size) {
        markdown.append(text.slice(i, i + size))
        markdown.draw()
    }
    markdown.end()
    box.remove()
    return { html: box.innerHTML, text: box.textContent, blocks }
}"""


def draw(page: Any, text: str, size: int | None = None) -> Any:
    """Draw `text` in pieces of `size` characters, or at once."""
    return page.evaluate(DRAW, [text, size or max(1, len(text))])


def test_markdown_is_drawn_while_it_streams(page):
    from playwright.sync_api import expect

    send(page, "Markdown please")
    text = page.locator(".text")
    expect(text.get_by_role("heading", name="Prices")).to_be_visible()
    expect(text.locator("strong")).to_have_text("bold")
    expect(text.locator("p > code")).to_have_text("snake_case")
    expect(text.get_by_role("columnheader")).to_have_text(["Fruit", "Price"])
    expect(text.get_by_role("cell")).to_have_text(["Apple", "2.50"])
    expect(text.locator("ol > li > ul > li")).to_have_text("nested")
    link = text.get_by_role("link", name="the list")
    expect(link).to_have_attribute("href", "https://example.org/list_of_fruits")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(page.locator(".thought em")).to_have_text("Markdown")
    faces = "element => getComputedStyle(element).fontFamily"
    assert text.locator("pre code").evaluate(faces).endswith("monospace")


def test_code_is_copied_as_the_model_wrote_it(page):
    from playwright.sync_api import expect

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    send(page, "Markdown please")
    copy = page.get_by_role("button", name="Copy")
    wait_for_answer(page)
    page.clock.install()
    page.clock.pause_at(datetime.now() + timedelta(hours=1))
    copy.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == 'if 1 < 2:\n    print("<b>")'
    page.clock.run_for(2000)
    expect(copy).to_be_visible()


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_text_in_pieces_is_drawn_as_the_whole_text_is(page, size):
    more = (
        "\n[a][1] and\n\n[b][1]\n\n[1]: https://example.org\n\nTitle\n===\n\n- [x] done\n- [ ] open\n\n~~~\nopen code"
    )
    whole = draw(page, MARKDOWN + more)
    assert whole["blocks"] == [
        *("heading", "paragraph", "table", "list", "code", "paragraph"),
        *("paragraph", "paragraph", "heading", "list", "code"),
    ]
    assert draw(page, MARKDOWN + more, size)["html"] == whole["html"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Fish &amp; chips &lt;3 &copy; &#8364;5", "Fish & chips <3 &copy; €5"),
        (
            r"\(a_1 \cdot b_1\) and \[x\] and $$\sum_i x_i$$ for $5",
            r"\(a_1 \cdot b_1\) and \[x\] and $$\sum_i x_i$$ for $5",
        ),
        (r"a \* b \_ c", "a * b _ c"),
        ("<b>bold</b> & <i>", "<b>bold</b> & <i>"),
        ("one\ntwo", "one\ntwo"),
        ("", ""),
    ],
)
def test_entities_formulas_and_html_are_text(page, text, shown):
    assert draw(page, text)["text"] == shown


FORBIDDEN = {"script", "img", "iframe", "svg", "style", "b", "i", "u", "form", "input", "object", "embed"}

DRAW_HOSTILE = """async ([text, size]) => {
    window.alert = () => (document.title = "alerted")
    const { Markdown, add } = await import("/files/markdown.js")
    const box = add(document.body, "div")
    const markdown = new Markdown(box)
    for (let i = 0; i < text.length; i += size) markdown.append(text.slice(i, i + size))
    markdown.end()
    await new Promise((done) => setTimeout(done))
    const elements = [...box.querySelectorAll("*")].map((element) => ({
        tag: element.localName,
        attributes: Object.fromEntries([...element.attributes].map(({ name, value }) => [name, value])),
    }))
    const links = [...box.querySelectorAll("a")].map((link) => [link.textContent, link.protocol])
    box.remove()
    return { elements, links, text: box.textContent }
}"""


@pytest.mark.parametrize("size", [7, 10_000])
def test_hostile_markdown_does_nothing(page, size):
    """The page's fixture fails for each request to another server."""
    before = page.locator("body *").count()
    for hostile in HOSTILE:
        drawn = page.evaluate(DRAW_HOSTILE, [hostile, size])
        assert drawn["text"].strip(), hostile
        for element in drawn["elements"]:
            assert element["tag"] not in FORBIDDEN, hostile
            assert set(element["attributes"]) <= ATTRIBUTES, hostile
        for label, protocol in drawn["links"]:
            assert protocol in ("http:", "https:", "mailto:"), hostile
            assert label not in ("click", "ref", "relative", "fragment", "scheme-less", "c"), hostile
    assert page.locator("body *").count() == before
    assert page.title() == "rxllm: a chat in the browser"


def test_a_hostile_conversation_does_nothing(page):
    from playwright.sync_api import expect

    attack = " ".join(HOSTILE[:4] + HOSTILE[8:10])
    send(page, f"Repeat {attack}")
    wait_for_answer(page)
    expect(page.locator(".user .content")).to_have_text(f"Repeat {attack}", use_inner_text=True)
    page.reload()
    expect(page.locator(".text")).to_contain_text("<script>document.title")
    assert page.locator("main").locator("script, img, iframe, svg, b, style").count() == 0
    assert page.title() == "rxllm: a chat in the browser"


def test_the_browser_refuses_scripts_and_html_from_elsewhere(page):
    refused = """async () => {
        const refused = []
        const note = ({ effectiveDirective }) => refused.push(effectiveDirective)
        document.addEventListener("securitypolicyviolation", note)
        try { document.body.innerHTML += "<b>x</b>" } catch (error) { refused.push(error.name) }
        const image = document.createElement("img")
        image.src = "/x.png"
        document.body.append(image)
        const script = document.createElement("script")
        try { script.textContent = "document.title = 1" } catch (error) { refused.push(error.name) }
        await new Promise((done) => (image.onerror = done))
        return refused
    }"""
    assert {"TypeError", "img-src", "require-trusted-types-for"} <= set(page.evaluate(refused))


def messages(page: Any) -> list[tuple[str, str]]:
    """Return the speaker and the text of each message in the browser's accessibility tree."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    by_id = {node["nodeId"]: node for node in nodes}

    def text(node: Any) -> str:
        if node["role"]["value"] == "StaticText":
            return node["name"]["value"]
        return " ".join(filter(None, (text(by_id[id]) for id in node.get("childIds", ()) if id in by_id)))

    articles = [node for node in nodes if node["role"]["value"] == "article" and not node["ignored"]]
    return [(node["name"]["value"], text(node)) for node in articles]


def test_each_message_in_the_accessibility_tree_has_its_speaker(page):
    from playwright.sync_api import expect

    page.get_by_label("Side by side").check()
    send(page, "Hello")
    expect(page.locator(".text")).to_have_count(2)
    expect(page.locator("#send")).to_be_enabled()
    words(page)
    found = [
        ("You", "You Hello"),
        ("scripted", "scripted You wrote: Hello."),
        ("You", "You Hello"),
        ("plain", "plain You wrote: Hello."),
    ]
    assert messages(page) == found
    expect(page.get_by_role("region", name="Conversation with plain")).to_be_visible()
    page.reload()
    expect(page.locator(".text")).to_have_count(2)
    assert messages(page) == found


def test_an_answer_is_read_aloud_in_paragraphs_with_its_speaker(page):
    from playwright.sync_api import expect

    live = page.locator("#live")
    expect(live).to_have_attribute("aria-live", "polite")
    page.evaluate("""() => {
        window.changes = 0
        const observer = new MutationObserver((changes) => (window.changes += changes.length))
        observer.observe(document.getElementById("live"), { childList: true, subtree: true, characterData: true })
    }""")
    send(page, "Repeat A **first** paragraph.\n\n```py\nprint(1)\n```\n\nA second paragraph, in many pieces.")
    wait_for_answer(page)
    expect(live.locator("p")).to_have_text(
        ["scripted: A first paragraph.", "A block of code.", "A second paragraph, in many pieces."]
    )
    assert page.evaluate("window.changes") == 3
    page.reload()
    expect(page.locator(".text")).to_be_visible()
    words(page)
    expect(live).to_be_empty()
    send(page, "Order two pizzas")
    expect(live.locator("p")).to_have_text(["scripted: I order them.", "order waits for your approval."])


BREAKABLE = """() => {
    const whole = window.fetch
    window.fetch = async (url, options) => {
        const response = await whole(url, options)
        if (options.method !== "POST") return response
        const transform = (chunk, control) => window.isBroken ? control.error(Error("broken")) : control.enqueue(chunk)
        return new Response(response.body.pipeThrough(new TransformStream({ transform })), response)
    }
}"""


def test_a_reconnection_reads_nothing_twice(page):
    from playwright.sync_api import expect

    page.evaluate(BREAKABLE)
    send(page, "Story of the sea")
    expect(page.locator("#live")).to_contain_text("scripted: Wave 0 rolls in. ")
    page.evaluate("window.isBroken = true")
    expect(page.locator(".status")).to_have_text("reconnecting …")
    expect(page.locator(".status")).to_have_text("running …")
    expect(page.locator("#live")).to_contain_text("Wave 96 rolls in. ")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#live p").last).to_have_text("Stopped.")
    *waves, _, _ = [text.removeprefix("scripted: ") for text in page.locator("#live p").all_inner_texts()]
    first = int(waves[0].split()[1])
    assert [int(text.split()[1]) for text in waves] == [first + 12 * n for n in range(len(waves))]


def test_the_cursor_stays_in_the_field(page):
    from playwright.sync_api import expect

    field = page.get_by_label("Message")
    expect(field).to_be_focused()
    page.get_by_role("button", name="Order two pizzas.").click()
    expect(field).to_be_focused()
    page.get_by_role("button", name="Approve").click()
    expect(field).to_be_focused()
    expect(page.locator(".text").last).to_contain_text("The tool says: ")
    expect(page.locator("#send")).to_be_enabled()
    send(page, "Story of the sea")
    expect(page.locator(".text").last).to_contain_text("Wave 3")
    page.get_by_role("button", name="Stop").click()
    expect(field).to_be_focused()
    expect(page.locator(".end").last).to_have_text("stopped")
    expect(field).to_be_focused()
    send(page, "Broken")
    page.get_by_role("button", name="Retry").press("Enter")
    expect(field).to_be_focused()


def test_enter_sends_and_shift_with_enter_begins_a_line(page):
    from playwright.sync_api import expect

    field = page.get_by_label("Message")
    field.press_sequentially("one")
    field.press("Shift+Enter")
    field.press_sequentially("two")
    expect(page.locator(".user")).to_have_count(0)
    field.press("Enter")
    expect(page.locator(".user .content")).to_have_text("one\ntwo", use_inner_text=True)
    expect(field).to_have_value("")


@pytest.mark.parametrize(
    ("prompt", "click"),
    [
        ("Markdown", None),
        ("Expert please", None),
        ("Order two", None),
        ("Order two", "Approve"),
        ("Order two", "Deny"),
        ("Story", "Stop"),
    ],
)
def test_a_reload_shows_the_same_words(page, prompt, click):
    from playwright.sync_api import expect

    send(page, prompt)
    if click:
        place = page.locator(".ask") if prompt.startswith("Order") else page.locator(".text", has_text="Wave 5 ")
        expect(place).to_be_visible()  # not what is read aloud
        page.get_by_role("button", name=click).click()
        expect(page.locator(".ask")).to_have_count(0)
    shown = words_at_the_end(page)
    page.reload()
    assert words_at_the_end(page) == shown


def test_an_answer_of_an_agent_and_an_error_of_a_tool_are_shown_once(page):
    send(page, "Expert please")
    wait_for_answer(page)
    card = page.locator(".turn > .answer > .content > .step > .tool").inner_text()
    assert card.count("Take sunglasses.") == 1
    assert card.count("error") == 1
    assert '{\n  "city": "Paris",\n  "sky": "sunny",\n  "celsius": 21\n}' in card


def wait_for_more_text(page: Any) -> None:
    length = page.locator(".text").evaluate("element => element.textContent.length")
    wait_until(page, "(length) => document.querySelector('.text').textContent.length > length + 1000", length)


def test_the_page_follows_the_text_until_the_reader_scrolls_up(page):
    from playwright.sync_api import expect

    page.set_viewport_size({"width": 375, "height": 400})
    send(page, "Story of the sea")
    expect(page.locator(".text")).to_contain_text("Wave 60 ")
    at_end = """() => {
        const { scrollHeight, scrollTop, clientHeight } = document.querySelector(".turns")
        return scrollTop > 200 && scrollHeight - scrollTop - clientHeight < 60
    }"""
    wait_until(page, at_end)
    page.locator(".turns").hover()
    page.mouse.wheel(0, -5000)
    wait_until(page, "() => document.querySelector('.turns').scrollTop === 0")
    wait_for_more_text(page)
    assert page.locator(".turns").evaluate("element => element.scrollTop") == 0
    page.locator(".turns").evaluate("element => element.scrollTo(0, element.scrollHeight)")
    wait_for_more_text(page)
    wait_until(page, at_end)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_shows_one_model_and_nothing_is_cut_off(page, scheme):
    from playwright.sync_api import expect

    page.emulate_media(color_scheme=scheme)
    page.get_by_label("Side by side").check()
    expect(page.locator(".pane")).to_have_count(2)
    page.set_viewport_size({"width": 699, "height": 740})
    expect(page.locator(".pane")).to_have_count(1)
    expect(page.get_by_label("Side by side")).to_be_hidden()
    page.set_viewport_size({"width": 375, "height": 740})
    send(page, f"Repeat {MARKDOWN}\n\n| {'a wide | ' * 12}\n|{'-|' * 12}\n\n{'long' * 60}")
    wait_for_answer(page)
    for box in ("html", ".turns"):
        assert page.locator(box).evaluate("element => element.scrollWidth - element.clientWidth") == 0
    table = page.locator(".table").last
    assert table.evaluate("element => element.scrollWidth > element.clientWidth")
    page.set_viewport_size({"width": 700, "height": 740})
    expect(page.locator(".pane")).to_have_count(2)
    expect(page.locator(".text")).to_have_count(1)  # the second model was not asked


CONTRAST = """() => {
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        return 0.2126 * x + 0.7152 * y + 0.0722 * z
    }
    const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number)
    const ground = (element) => {
        for (; element; element = element.parentElement) {
            const colour = rgb(getComputedStyle(element).backgroundColor)
            if (colour[3] !== 0) return colour
        }
        return [255, 255, 255]
    }
    const faint = []
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement
        const isShown = walker.currentNode.data.trim() && element.checkVisibility()
        if (!isShown || element.closest("script, :disabled")) continue
        const [a, b] = [rgb(getComputedStyle(element).color), ground(element)].map(light)
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
        if (ratio < 4.5) faint.push([element.outerHTML.slice(0, 80), ratio])
    }
    return faint
}"""


@pytest.mark.parametrize("prompt", ["Markdown", "Order", "Broken", "Expert please"])
def test_every_text_has_enough_contrast(page, prompt):
    from playwright.sync_api import expect

    send(page, prompt)
    expect(page.locator(".turn")).to_have_attribute("data-state", "ended")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) == [], scheme

"""Cards as a browser draws them: readable on any page, tables that scroll, styles that stay in their own output."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from docs.pictures.displays import DISPLAYS, PAGES, TABLE, done, page
from rxllm.display import _html
from rxllm.events import TextCompleted
from tests.judges import absent, judge

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"), pytest.mark.judges]

SCHEMES = [("light", "dark"), ("dark", "light"), ("light", "light"), ("dark", "dark")]

CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const paint = colours => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
    const light = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    return 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  };
  const found = [];
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const element = nodes.currentNode.parentElement;
    if (!nodes.currentNode.data.trim() || element.closest("style, h2")) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const [back, text] = [paint(behind), paint([...behind, getComputedStyle(element).color])];
    found.push([(Math.max(back, text) + 0.05) / (Math.min(back, text) + 0.05), nodes.currentNode.data]);
  }
  return found;
}"""

BROKEN_WORDS = """() => [...document.querySelectorAll("th, td")].flatMap(cell => {
  const broken = [];
  const nodes = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    for (const word of nodes.currentNode.data.matchAll(/[^\\s-]+/g)) {
      const range = document.createRange();
      range.setStart(nodes.currentNode, word.index);
      range.setEnd(nodes.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) broken.push(word[0]);
    }
  }
  return broken;
})"""

STYLES = """() => [...document.querySelectorAll("#new, #new *")].map(element => {
  const style = getComputedStyle(element), before = getComputedStyle(element, "::before");
  return [...style].map(name => style[name]).join() + before.backgroundColor + before.display;
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent("playwright", "pip install 'rxllm[browser]'", "browser")
    chromium = judge("chromium", "browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Any]]:
    """A function that opens a page with the HTML, in a window of this width under a system of this colour scheme."""
    pages = []

    def open_page(html: str, width: int = 1280, system: str = "light") -> Any:
        pages.append(browser.new_page(viewport={"width": width, "height": 800}, color_scheme=system))
        pages[-1].set_content(html)
        return pages[-1]

    yield open_page
    for opened in pages:
        opened.close()


@pytest.mark.parametrize("name", DISPLAYS)
def test_every_display_can_be_drawn(name: str) -> None:
    assert DISPLAYS[name]().startswith("<")


# Colours


@pytest.mark.parametrize(("scheme", "system"), SCHEMES)
def test_every_text_is_readable_on_a_light_and_on_a_dark_page_whatever_the_system_prefers(
    show: Callable[..., Any], scheme: str, system: str
) -> None:
    contrasts = show(page(scheme, DISPLAYS), system=system).evaluate(CONTRASTS)
    assert len(contrasts) > 100
    assert [(ratio, text) for ratio, text in contrasts if ratio < 4] == []


@pytest.mark.parametrize("scheme", PAGES)
def test_a_card_has_the_colour_of_the_text_around_it(show: Callable[..., Any], scheme: str) -> None:
    opened = show(page(scheme, ["card-tool-done"]), system="light")
    colours = "() => [...document.querySelectorAll('body, .rxllm-text, pre, b')].map(e => getComputedStyle(e).color)"
    found = opened.evaluate(colours)
    assert len(found) >= 4
    assert len(set(found)) == 1


def test_the_style_does_not_ask_what_the_system_prefers() -> None:
    assert "prefers-color-scheme" not in _html.STYLE
    assert "light-dark" not in _html.STYLE


@pytest.mark.parametrize(
    ("display", "colour"),
    [
        ("card-streaming", "blue"),
        ("card-tool-running", "blue"),
        ("card-approval", "amber"),
        ("card-question", "amber"),
        ("card-table", "green"),
        ("card-error", "red"),
        ("card-cut", "red"),
        ("card-stopped", "dim"),
    ],
)
def test_the_dot_has_one_colour_for_one_meaning(show: Callable[..., Any], display: str, colour: str) -> None:
    opened = show(page("light", [display]))
    dot = "() => getComputedStyle(document.querySelector('footer'), '::before').backgroundColor"
    expected = """colour => {
        const probe = document.querySelector("footer").appendChild(document.createElement("i"));
        probe.style.backgroundColor = `var(--${colour})`;
        return getComputedStyle(probe).backgroundColor;
    }"""
    assert opened.evaluate(dot) == opened.evaluate(expected, colour)


# Tables and code


@pytest.mark.parametrize("width", [375, 700, 1280])
def test_a_wide_table_scrolls_inside_its_card_and_breaks_no_word(show: Callable[..., Any], width: int) -> None:
    opened = show(page("light", ["card-table"]), width)
    assert opened.evaluate(BROKEN_WORDS) == []
    assert opened.evaluate("() => document.documentElement.scrollWidth") <= width
    scrolls = "() => { const e = document.querySelector('.rxllm-table'); return e.scrollWidth > e.clientWidth }"
    assert opened.evaluate(scrolls) == (width < 900)
    assert opened.evaluate("() => getComputedStyle(document.querySelector('.rxllm-table')).overflowX") == "auto"


def test_code_has_a_monospaced_face_of_its_own_and_its_long_lines_scroll(show: Callable[..., Any]) -> None:
    opened = show(page("light", ["card-code"]), 375)
    widths = """() => [...document.querySelectorAll("pre code, p code, p")].map(element => {
        const widths = ["iiiiiiii", "MMMMMMMM"].map(text => {
            const span = element.appendChild(document.createElement("span"));
            span.textContent = text;
            const width = span.getBoundingClientRect().width;
            span.remove();
            return width;
        });
        return [element.tagName, widths[0] === widths[1]];
    })"""
    assert {(tag, is_even) for tag, is_even in opened.evaluate(widths)} == {("CODE", True), ("P", False)}
    assert opened.evaluate("() => { const e = document.querySelector('pre'); return e.scrollWidth > e.clientWidth }")
    assert opened.evaluate("() => document.documentElement.scrollWidth") <= 375


# Side by side


def test_three_cards_stand_in_one_row_at_700_pixels_and_wrap_evenly_below(show: Callable[..., Any]) -> None:
    boxes = """() => [...document.querySelectorAll("article")].map(element => {
        const box = element.getBoundingClientRect();
        return [box.x, box.y, box.width];
    })"""
    for width, rows in ((1280, 1), (732, 1), (560, 2), (375, 3)):  # the page has margins of 16 pixels
        found = show(page("light", ["card-three"]), width).evaluate(boxes)
        assert len({y for _, y, _ in found}) == rows, width
        assert max(box[2] for box in found) - min(box[2] for box in found) < 1, width


# Scope


def test_every_rule_is_inside_the_scope_of_its_version() -> None:
    rules = [rule for rule in _html.STYLE.split("}") if rule]
    assert len(rules) > 40
    scope = f".{_html._SCOPE}.{_html._SCOPE}"
    assert [rule for rule in rules if not rule.startswith((f"{scope} ", f"{scope}{{"))] == []
    assert [rule for rule in rules if re.search(r",(?![^()]*\))", rule.partition("{")[0])] == []


def test_the_scope_is_another_one_for_another_style() -> None:
    assert f"rxllm-{zlib.crc32(_html._RULES.encode()):08x}" == _html._SCOPE


OLD = """<div class="rxllm"><style>.rxllm{--dim:red;--line:red;--red:blue;--soft:red;color:red;display:flex;gap:99px}
.rxllm article{flex:1 1 260px;padding:99px;border:9px solid red}.rxllm.rxllm article table{display:block}
.rxllm footer,.rxllm-note,.rxllm-source,:is(.rxllm-tool,.rxllm-error,.rxllm-words) span{color:red;font-size:99px}
.rxllm footer::before{background:red}.rxllm .rxllm-plain{margin:99px}.rxllm td{overflow-wrap:break-word}
.rxllm-tool{border-left:9px solid red;padding:2px 0 2px 8px;margin:6px 0}.rxllm-agent{margin:4px 0 0 8px}
.rxllm-tool:is([data-state=waiting],[data-state=stopped],[data-state=failed]){border-color:blue}
.rxllm-words{width:99px;max-width:1%;margin:8px 0 8px auto;padding:99px;border-radius:0;background:red}
.rxllm-words span{margin-left:99px}.rxllm-error{border-left:9px solid red;padding:2px 0 2px 8px;margin:6px 0}
.rxllm-error b{color:red}.rxllm-tool .rxllm-error{border:0;padding:0}</style><article>old</article></div>"""
"""An output whose style has rules for classes anywhere on the page, as the first outputs had."""


def other_version(html: str) -> str:
    """The output as another version of the library might have drawn it."""
    html = html.replace(_html._SCOPE, "rxllm-00000000")
    return re.sub(r"(padding|margin|gap|border-radius|font-size):[^;}]*", r"\1:33px", html).replace("66%", "10%")


@pytest.mark.parametrize("version", ["before", "other"])
@pytest.mark.parametrize(
    "display", ["card-agent", "card-tool-failed", "card-cut", "card-table", "card-whole", "value-thread", "value-usage"]
)
def test_outputs_of_two_versions_on_one_page_do_not_change_each_other(
    show: Callable[..., Any], display: str, version: str
) -> None:
    new = f'<div id="new">{DISPLAYS[display]()}</div>'
    other = OLD if version == "before" else other_version(DISPLAYS["card-whole"]() + DISPLAYS["value-thread"]())
    alone = show(new).evaluate(STYLES)
    assert len(alone) > 5
    assert show(new + other).evaluate(STYLES) == alone
    below = show(f'<div style="height:0;overflow:hidden">{other}</div>{new}').evaluate(STYLES)
    assert below == alone


def test_a_value_does_not_change_the_cards_on_its_page(show: Callable[..., Any]) -> None:
    new = f'<div id="new">{done(TextCompleted(TABLE))}</div>'
    alone = show(new).evaluate(STYLES)
    assert show(new + DISPLAYS["value-usage"]() + DISPLAYS["value-thread"]()).evaluate(STYLES) == alone

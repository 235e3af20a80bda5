"""Whatever a model writes, cut anywhere: the rest of the card is intact, and nothing becomes a script or a request."""

import re
from html.parser import HTMLParser

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rxllm.display import _markdown
from rxllm.display._card import Card
from rxllm.display._html import cards_html
from rxllm.events import (
    FileAdded,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
    ToolResultEncoded,
)
from rxllm.values import ToolError
from tests.examples import examples

PIECES = (
    *(
        "```",
        "~~~",
        "`",
        "\n",
        "\n\n",
        "    ",
        "> ",
        "- ",
        "1. ",
        "# ",
        "| a | b |\n|---|---|\n| c |",
        "***",
        "_",
        "[",
        "](",
        ")",
    ),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</div>", "</article>", "</style>", "<!--", "-->"),
    *("<details open>", "<b onclick='x'>", "&lt;", "&#60;script&#62;", "<![CDATA[", "<?", "\\", '"', "'", ">"),
    *(
        "[x](javascript:alert(1))",
        "[x](data:text/html,x)",
        "[]()",
        "![i](https://evil.example/i.png)",
        "<javascript:alert(1)>",
    ),
    *("[a](https://example.org 'ti\"tle')", "<https://example.org>", "[r]: javascript:x\n[r]", "```html onload=x\n"),
    *("$$", "\\[", "\\]", "\\begin{a}", "\\end{a}", "$a_b$"),
    *(
        "$5 and $6",
        "$$x$$",
        "\\(x\\)",
        "\u202e",
        "\u2066",
        "\u200f",
        "אבג",
        "\x00",
        "\x1b[31m",
        "\ud800",
        "\r",
        "word ",
    ),
)

models_text = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=12).map("".join)

VOID = {"img", "br", "hr"}
OWN = {"div", "style", "article", "header", "footer", "details", "summary", "pre", "code", "span", "b", "bdi", "a"}
BLOCKS = {"p", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td"}
TAGS = VOID | OWN | BLOCKS | {"em", "strong", "s", "h1", "h2", "h3", "h4", "h5", "h6"}
ATTRIBUTES = {"class", "dir", "data-state", "href", "rel", "target", "title", "alt", "src", "start", "style"}


class Reader(HTMLParser):
    """Reads a card as a browser would, checks its tags, and takes the text of each of its rows."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.texts = []

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in ATTRIBUTES, name
            assert name != "style" or value in ("text-align:left", "text-align:right", "text-align:center")
            assert name != "href" or value.lower().startswith(("http://", "https://", "mailto:"))
            assert name != "src" or value.startswith("data:image/png;base64,")
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class", "")))
            if len(self.open) == 3:
                self.texts.append("")

    def handle_endtag(self, tag):
        assert tag not in VOID
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if len(self.open) >= 3:
            self.texts[-1] += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    handle_decl = handle_pi = unknown_decl = handle_comment


def read(html):
    html.encode()  # as it is sent
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader.texts


def card(text):
    """A card that has `text` in each of its places, between others."""
    folded = Card(0.0)
    for event in (
        ThinkingDelta(text),
        TextCompleted("before", "a"),
        TextDelta(text, "b"),
        ToolCallStarted("c0", text),
        ToolCallCompleted("c0", text, {}, text),
        ToolExecutionStarted("c0", text, {}),
        ToolProgress("c0", text, text),
        ToolCallCompleted("c1", "tool", {}, "{}"),
        ToolExecutionStarted("c1", "tool", {}),
        ToolExecutionCompleted("c1", "tool", None, ToolError("timeout", text)),
        ToolCallCompleted("c2", "tool", {}, "{}"),
        ToolResultEncoded("c2", text),
        SourceAdded({"url": text, "title": text}),
        FileAdded({"mime_type": text, "url": text, "name": text}),
        TextCompleted("behind", "d"),
    ):
        folded = folded.add(event, 1.0)
    return folded


@settings(max_examples=examples(300))
@given(models_text, st.integers(min_value=0, max_value=200))
@example("```\nunclosed", 200)
@example("- a\n  - b\n    ```", 200)
@example("$5 and $6", 200)
@example("\u202edrowssap", 200)
@example("![x](http://a.b/c.png)", 200)
def test_any_text_cut_anywhere_leaves_the_rest_of_the_card_alone(text, cut):
    text = text[:cut] or "nothing"
    rows = read(cards_html({text: card(text), "other": card("plain")}, 2.0))
    plain = read(cards_html({"plain": card("plain"), "other": card("plain")}, 2.0))
    assert len(rows) == len(plain)
    half = len(plain) // 2
    assert rows[half:] == plain[half:]  # the other card
    assert [row for row in rows[:half] if row in ("before\n", "behind\n")] == ["before\n", "behind\n"]


@given(models_text, st.lists(st.integers(min_value=1, max_value=9), max_size=60))
@example("1. a\n\n2. b\n\n3. c", [1] * 20)
@example("a\n$$\nx\n- y\n$$\nz\n\n$$\n\nb\n\\[ c\n# d\n", [1] * 50)
@example("a\n\n```\nb\n\nc\n```\n\nd\n===\n", [1] * 40)
def test_a_text_that_grows_is_drawn_as_if_it_had_come_at_once(text, sizes):
    text = text.replace("]:", "] ")  # an address for links is known from where it stands on
    _markdown._finished.clear()
    expected = _markdown.markdown(text)
    _markdown._finished.clear()
    position = 0
    for size in sizes:
        position += size
        _markdown.markdown(text[:position])
    assert _markdown.markdown(text) == expected


@given(models_text)
def test_dollars_are_marked_as_no_mathematics(text):
    html = cards_html({None: card(text)}, 2.0)
    assert re.match(r'<div class="rxllm-output rxllm-[0-9a-f]{8} tex2jax_ignore mathjax_ignore">', html)


@given(models_text)
def test_every_text_of_the_model_is_isolated_in_its_direction(text):
    """Each stands in an element of its own with ``dir=auto``, or in ``<bdi>``."""

    class Isolated(Reader):
        def handle_starttag(self, tag, attrs):
            super().handle_starttag(tag, attrs)
            if tag not in VOID:
                self.open[-1] = (tag, "isolated" if tag == "bdi" or ("dir", "auto") in attrs else "")

        def handle_data(self, data):
            if "\u202e" in data:
                assert any(kind == "isolated" for _, kind in self.open)
            super().handle_data(data)

    reader = Isolated()
    reader.feed(cards_html({"\u202e" + text: card("\u202e" + text)}, 2.0))
    reader.close()

"""Turn a model's Markdown into HTML that is safe: no HTML of the model's own, no images, no links but web and mail."""

from __future__ import annotations

import html
import re
from functools import lru_cache
from importlib import import_module
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)


def clean(text: str) -> str:
    """Return `text` with a mark for each character that no screen shows: control characters and half surrogates.

    >>> clean("a\\x1b[31m\\r\\nb")
    'a�[31m\\nb'
    """
    return _CONTROL.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def escape(text: str) -> str:
    """Return `text` as HTML, also between quotes.

    >>> escape("<b> & c")
    '&lt;b&gt; &amp; c'
    """
    return html.escape(clean(text))


@lru_cache(256)
def markdown(text: str) -> str:
    """Return the HTML of `text`; without markdown-it-py, the text as it is.

    >>> markdown("*Hi* <script>")
    '<p dir="auto"><em>Hi</em> &lt;script&gt;</p>\\n'
    """
    parser = _parser()
    if parser is None:
        return f'<pre dir="auto">{escape(text)}</pre>'
    return parser.render(clean(text))


@lru_cache(1)
def _parser() -> Any:
    try:
        markdown_it: Any = import_module("markdown_it")
    except ImportError:
        return None
    parser = markdown_it.MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
    parser.validateLink = is_link
    parser.core.ruler.push("rxllm", _set_attributes)
    return parser


def is_link(url: str) -> bool:
    """Return whether `url` leads to the web or to a mail."""
    return _LINK.match(url) is not None


_BLOCKS = frozenset(("paragraph_open", "heading_open", "bullet_list_open", "ordered_list_open", "table_open", "fence"))


def _set_attributes(state: Any) -> None:
    # Each block has its own direction, and is isolated: no control character of one reorders another.
    for token in state.tokens:
        if token.type in _BLOCKS:
            token.attrSet("dir", "auto")
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer")
                child.attrSet("target", "_blank")

"""Turn a model's Markdown into HTML that is safe: no HTML of the model's own, no images, no links but web and mail."""

from __future__ import annotations

import contextlib
import html as entities
import re
from collections import deque
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
    return entities.escape(clean(text))


Finished = tuple[str, str, dict[str, Any]]

_finished: deque[Finished] = deque(maxlen=32)
"""Of the latest texts: the source of the blocks that will not change, their HTML, and the addresses of their links."""


def markdown(text: str) -> str:
    """Return the HTML of `text`; without markdown-it-py, the text as it is.

    >>> markdown("*Hi* <script>")
    '<p dir="auto"><em>Hi</em> &lt;script&gt;</p>\\n'

    Of a text that grows, only what is behind its finished blocks is read again.
    """
    parser = _parser()
    if parser is None:
        return f'<pre dir="auto">{escape(text)}</pre>'
    text = clean(text)
    known: Finished = ("", "", {})
    for old in list(_finished):
        known = old if len(old[0]) > len(known[0]) and text.startswith(old[0]) else known
    source, html, env = known
    tail = text[len(source) :]
    tokens = parser.parse(tail, env)
    # The start of a block closes those before it once its line is complete: "2" may become "2.", a list's next item.
    complete = tail.count("\n")
    starts = [n for n, token in enumerate(tokens) if token.level == 0 and token.map and token.map[0] < complete]
    last = starts[-1] if starts else 0
    if last:
        lines = tail.split("\n")[: tokens[last].map[0]]
        html += parser.renderer.render(tokens[:last], parser.options, env)
        _remember(known, (source + "".join(f"{line}\n" for line in lines), html, env))
    return html + parser.renderer.render(tokens[last:], parser.options, env)


def _remember(old: Finished, new: Finished) -> None:
    with contextlib.suppress(ValueError):
        _finished.remove(old)
    _finished.append(new)


@lru_cache(1)
def _parser() -> Any:
    try:
        markdown_it: Any = import_module("markdown_it")
    except ImportError:
        return None
    parser = markdown_it.MarkdownIt("commonmark", {"html": False, "xhtmlOut": False})
    parser.enable(["table", "strikethrough"]).disable("image")
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
                if not is_link(child.attrs.get("href", "")):  # as of "[]()"
                    child.attrs.pop("href", None)
                child.attrSet("rel", "noopener noreferrer")
                child.attrSet("target", "_blank")

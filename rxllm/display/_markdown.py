"""Convert a model's Markdown to safe HTML."""

from __future__ import annotations

import contextlib
import html as entities
import re
from collections import deque
from functools import lru_cache
from importlib import import_module
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """Replace control characters and lone surrogates in `text`, and normalize its line endings.

    >>> clean("a\\x1b[31m\\r\\nb")
    'a�[31m\\nb'
    """
    return _CONTROL.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


_BIDI = re.compile(r"[\u202a-\u202e\u2066-\u2069]")


def clean_line(text: str) -> str:
    r"""Clean `text` for a terminal, where a bidirectional control character would reorder what follows it.

    >>> clean_line("pay \u202e001")
    'pay \\u202e001'
    """
    return _BIDI.sub(lambda found: f"\\u{ord(found[0]):04x}", clean(text))


def escape(text: str) -> str:
    """Escape `text` for use in HTML and in HTML attributes.

    >>> escape("<b> & c")
    '&lt;b&gt; &amp; c'
    """
    return entities.escape(clean(text))


_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)


def is_link(url: str) -> bool:
    return _LINK.match(url) is not None


Finished = tuple[str, str, dict[str, Any]]


_finished: deque[Finished] = deque(maxlen=32)
"""The finished blocks of recently converted texts.

Each entry holds the Markdown of the finished blocks of a text, their HTML and their link definitions.
"""


def markdown(text: str) -> str:
    """Convert Markdown `text` to HTML.

    >>> markdown("*Hi* <script>")
    '<p dir="auto"><em>Hi</em> &lt;script&gt;</p>\\n'

    If markdown-it-py is not installed, the text is shown unformatted. If a text is converted again after it has grown,
    the blocks that were already finished are not parsed again.
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
    # A block is finished once the first line of the next block is complete. Until then, "2" could still become "2.",
    # which would be another item in the same list.
    complete = tail.count("\n")
    starts = [n for n, token in enumerate(tokens) if token.level == 0 and token.map and token.map[0] < complete]
    last = starts[-1] if starts else 0
    if last:
        lines = tail.split("\n")[: tokens[last].map[0]]
        html += parser.renderer.render(tokens[:last], parser.options, env)
        with contextlib.suppress(ValueError):
            _finished.remove(known)
        _finished.append((source + "".join(f"{line}\n" for line in lines), html, env))
    return html + parser.renderer.render(tokens[last:], parser.options, env)


@lru_cache(1)
def _parser() -> Any:
    try:
        markdown_it: Any = import_module("markdown_it")
    except ImportError:
        return None
    parser = markdown_it.MarkdownIt("commonmark", {"html": False, "xhtmlOut": False})
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.inline.ruler.before("escape", "math", _math)
    parser.block.ruler.before("fence", "math_block", _math_block, {"alt": ["paragraph", "reference", "blockquote"]})
    parser.add_render_rule("table_open", _table_html)
    parser.add_render_rule("table_close", _table_html)
    parser.add_render_rule("math", _math_html)
    parser.add_render_rule("math_block", _math_html)
    parser.validateLink = is_link
    parser.core.ruler.push("rxllm", _set_attributes)
    return parser


_MATH = re.compile(
    r"\$\$.{1,2000}?\$\$|\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]|\\begin\{(\w+\*?)\}.{1,2000}?\\end\{\1\}"
    r"|\$(?![\s$])(?:[^$\\\n`]|\\.){1,500}(?<!\s)\$(?!\d)",
    re.DOTALL,
)
_PRICE = re.compile(r"\$\d[^$\\]*+\$\w")
"""Matches a price followed by another dollar sign, as in ``$5 (or $x``."""

_MATH_OPENING = re.compile(r"\$\$|\\\[|\\begin\{(\w+\*?)\}")


def _math(state: Any, silent: bool) -> bool:
    """Leave inline LaTeX as it was written."""
    found = _MATH.match(state.src, state.pos, state.posMax)
    if found is None or _PRICE.match(state.src, state.pos, state.posMax):
        return False
    if not silent:
        state.push("math", "code", 0).content = found[0]
    state.pos = found.end()
    return True


def _math_block(state: Any, start: int, end: int, silent: bool) -> bool:
    """Leave multi-line LaTeX as it was written.

    A block ends with its closing delimiter or before an empty line. An opening delimiter begins a block even if no
    closing delimiter follows. Otherwise, a closing delimiter that arrives later would change blocks that are already
    finished.
    """

    def line(number: int) -> str:
        return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]

    opening = _MATH_OPENING.match(line(start))
    if opening is None or state.is_code_block(start):
        return False
    closing = {"$$": "$$", "\\[": "\\]"}.get(opening[0], f"\\end{{{opening[1]}}}")
    if closing in line(start)[opening.end() :]:
        return False  # `_math` handles it
    if silent:
        return True
    last = start + 1
    while last < end and not state.isEmpty(last) and state.sCount[last] >= state.blkIndent:
        last += 1
        if closing in line(last - 1):
            break
    token = state.push("math_block", "pre", 0)
    token.content, token.map = state.getLines(start, last, state.blkIndent, False).rstrip("\n"), [start, last]
    state.line = last
    return True


def _math_html(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    return f'<{token.tag} class="rxllm-math" dir="auto">{escape(token.content)}</{token.tag}>'


def _table_html(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    """Wrap a table in a scrollable element."""
    tag = renderer.renderToken(tokens, index, options, env)
    return f'<div class="rxllm-table">{tag}' if tokens[index].nesting == 1 else f"{tag}</div>"


_BLOCKS = frozenset(("paragraph_open", "heading_open", "bullet_list_open", "ordered_list_open", "table_open", "fence"))


def _set_attributes(state: Any) -> None:
    # Bidirectional control characters in one block must not reorder the text of another block.
    for token in state.tokens:
        if token.type in _BLOCKS:
            token.attrSet("dir", "auto")
        for child in token.children or ():
            if child.type == "link_open":
                if not is_link(child.attrs.get("href", "")):  # for example, "[]()"
                    child.attrs.pop("href", None)
                child.attrSet("rel", "noopener noreferrer")
                child.attrSet("target", "_blank")

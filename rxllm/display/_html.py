"""Draw cards and a model's Markdown as HTML without scripts, in colours that match the surrounding page."""

from __future__ import annotations

import base64
import contextlib
import html as entities
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

from rxllm.display._card import Card, Correction, Note, Row, ToolRow, rows_and_status, truncate
from rxllm.values import FilePart, ImagePart, LLMError, SourcePart, TextPart, ThinkingPart

SHOWN = 2_000
"""The number of characters after which arguments, progress and results are cut off."""


def cards_html(cards: Mapping[str | None, Card], now: float) -> str:
    """Return the HTML of `cards` at the time `now`, side by side if they have labels.

    >>> html = cards_html({None: Card(begun=0.0)}, 1.5)
    >>> html[html.index("<footer") :]
    '<footer><bdi>waiting for the first token, 1.5 s</bdi></footer></article></div>'
    """
    return page("".join(_card(card, label, now) for label, card in cards.items()))


def page(drawn: str) -> str:
    """Wrap `drawn` in an element with the style of the cards."""
    # The two "ignore" classes keep JupyterLab and nbconvert from treating dollar signs as math delimiters.
    return f'<div class="rxllm tex2jax_ignore mathjax_ignore"><style>{STYLE}</style>{drawn}</div>'


def _card(card: Card, label: str | None, now: float) -> str:
    title = "" if label is None else f"<header>{isolate(label)}</header>"
    if card.has_value:
        error = card.error or card.state.error
        body = f'<div class="rxllm-value">{_value(card.value)}</div>{"" if error is None else _error(error)}'
        texts = [card.look] if card.look in ("stopped", "failed") else []
    else:
        found, texts = rows_and_status(card, now)
        body = rows_html(found, opened=card.look == "running")
    return article(card.look, title + body, texts)


def article(look: str, body: str, texts: Iterable[str]) -> str:
    """Return the HTML of a card with this `body` and a status line made of `texts`."""
    line = " · ".join(map(isolate, texts))
    footer = f"<footer>{line}</footer>" if line else ""
    return f'<article data-state="{look}">{body}{footer}</article>'


def rows_html(rows: Sequence[Row], *, opened: bool) -> str:
    """Return the HTML of `rows`, with all thinking folded, except in the last row if `opened` is True.

    While thinking streams, users cannot unfold it themselves, because every redraw would fold it again.
    """
    last = rows[-1] if rows and opened else None
    if isinstance(last, ThinkingPart) and last.text:
        return "".join(map(row_html, rows[:-1])) + _thinking(last.text, " open")
    return "".join(map(row_html, rows))


def row_html(row: Row) -> str:
    """Return the HTML of a row."""
    match row:
        case TextPart(text=text):
            return f'<div class="rxllm-text" dir="auto">{markdown(text)}</div>'
        case ThinkingPart(text=""):
            return ""
        case ThinkingPart(text=text):
            return _thinking(text)
        case ToolRow():
            return _tool(row)
        case SourcePart(source=source):
            return f'<div class="rxllm-source">{_source(source)}</div>'
        case FilePart(file=file):
            return f'<div class="rxllm-file">{_file(file)}</div>'
        case ImagePart(image=image):
            return f'<div class="rxllm-file">{isolate(repr(image))}</div>'
        case Note(error=Exception() as error):
            return _error(error)
        case Note(text=text):
            return f'<div class="rxllm-note">{isolate(text)}</div>'
        case Correction(text=text, used=used):
            unused = "" if used else "<span>not used</span>"
            return f'<div class="rxllm-words" dir="auto">{escape(truncate(text, SHOWN))}{unused}</div>'


def _thinking(text: str, attribute: str = "") -> str:
    body = f'<div><div dir="auto">{markdown(text)}</div></div>'
    return f"<details{attribute}><summary>Thinking</summary>{body}</details>"


def _tool(row: ToolRow) -> str:
    name, arguments = isolate(row.call.name), isolate(truncate(row.arguments, SHOWN))
    about = " · ".join((row.description, *map(isolate, row.facts)))
    head = f"<b>{name}</b> <code>{arguments}</code> <span>{about}</span>"
    body = f'<div class="rxllm-agent">{"".join(map(row_html, row.rows))}</div>' if row.rows else ""
    body += "" if row.progress is None else _block("progress", _text(row.progress))
    if row.error is not None:
        body += _error(row.error)
    elif row.result is not None:
        body += _block("result", row.result)
    return f'<div class="rxllm-tool" data-state="{row.state}"><div>{head}</div>{body}</div>'


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _block(kind: str, text: str) -> str:
    return f'<pre class="rxllm-{kind}" dir="auto">{escape(truncate(text, SHOWN))}</pre>'


def _error(error: Exception) -> str:
    fields = error.fields() if isinstance(error, LLMError) else {}
    names = ("reason", "provider", "status", "code", "retry_after")
    facts = ", ".join(f"{name.replace('_', ' ')} {fields[name]}" for name in names if name in fields)
    about = f" <span>{isolate(facts)}</span>" if facts else ""
    message = f'<div dir="auto">{escape(truncate(str(error), SHOWN))}</div>'
    return f'<div class="rxllm-error"><b>{isolate(type(error).__name__)}</b>{about}{message}</div>'


def _source(source: Mapping[str, Any]) -> str:
    url = str(source.get("url") or source.get("uri") or "")
    title = str(source.get("title") or source.get("cited_text") or source.get("text") or url or source)
    return _link(url, title) if is_link(url) else isolate(truncate(title, SHOWN))


def _link(url: str, title: str) -> str:
    return f'<a href="{escape(url)}" rel="noopener noreferrer" target="_blank">{isolate(truncate(title, SHOWN))}</a>'


_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def _file(file: Mapping[str, Any]) -> str:
    mime, data, url = str(file.get("mime_type") or ""), file.get("data"), str(file.get("url") or "")
    name = str(file.get("name") or mime or "file")
    if mime in _IMAGES and isinstance(data, bytes):
        return f'<img alt="{escape(name)}" src="data:{mime};base64,{_base64(data)}">'
    return _link(url, name) if is_link(url) else isolate(name)


@lru_cache(4)
def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _value(value: Any) -> str:
    """Return the HTML of any value: its own HTML if it has any, or else its Markdown, its picture or its repr."""
    for name, draw in (("_repr_html_", str), ("_repr_markdown_", markdown), ("_repr_mimebundle_", _pictures)):
        method: Any = getattr(cast(Any, type(value)), name, None)
        with contextlib.suppress(Exception):  # if one fails, try the next
            if method is not None and (shown := method(value)):
                return draw(shown)
    return f'<pre dir="auto">{escape(_text(value))}</pre>'


def _pictures(bundle: Any) -> str:
    found: Iterable[tuple[str, Any]] = bundle.items()
    return bundle.get("text/html") or "".join(
        f'<img alt="" src="data:{mime};base64,{data}">' for mime, data in found if mime in _IMAGES
    )


def isolate(text: str) -> str:
    """Return `text` as HTML that cannot change the writing direction of the surrounding text."""
    return f"<bdi>{escape(text)}</bdi>"


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """Replace all control characters and lone surrogates in `text` with the replacement character.

    >>> clean("a\\x1b[31m\\r\\nb")
    'a�[31m\\nb'
    """
    return _CONTROL.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def escape(text: str) -> str:
    """Escape `text` for use in HTML, including attributes.

    >>> escape("<b> & c")
    '&lt;b&gt; &amp; c'
    """
    return entities.escape(clean(text))


_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)


def is_link(url: str) -> bool:
    """Whether `url` is a web address or an email link."""
    return _LINK.match(url) is not None


Finished = tuple[str, str, dict[str, Any]]


_finished: deque[Finished] = deque(maxlen=32)
"""For each recent text: the source of its finished blocks, their HTML, and the link addresses they define."""


def markdown(text: str) -> str:
    """Return the HTML of Markdown `text`, or of the plain text if markdown-it-py is not installed.

    >>> markdown("*Hi* <script>")
    '<p dir="auto"><em>Hi</em> &lt;script&gt;</p>\\n'

    When a text grows, its finished blocks are not parsed again.
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
    # A block is finished when the first line of the next block is complete. Until then, that line could still turn out
    # to belong to the block. For example, "2" might become "2.", another item of a list.
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
    parser.validateLink = is_link
    parser.core.ruler.push("rxllm", _set_attributes)
    return parser


_BLOCKS = frozenset(("paragraph_open", "heading_open", "bullet_list_open", "ordered_list_open", "table_open", "fence"))


def _set_attributes(state: Any) -> None:
    # Each block gets its own writing direction, so that a control character in one cannot reorder another.
    for token in state.tokens:
        if token.type in _BLOCKS:
            token.attrSet("dir", "auto")
        for child in token.children or ():
            if child.type == "link_open":
                if not is_link(child.attrs.get("href", "")):  # "[]()"
                    child.attrs.pop("href", None)
                child.attrSet("rel", "noopener noreferrer")
                child.attrSet("target", "_blank")


STYLE = """
.rxllm{--fg:var(--jp-content-font-color1,#1f2328);--dim:var(--jp-content-font-color2,#59636e);
--line:var(--jp-border-color2,#d1d9e0);--soft:var(--jp-layout-color2,#f3f4f6);--blue:var(--jp-brand-color1,#0969da);
--red:var(--jp-error-color1,#cf222e);--green:var(--jp-success-color1,#1a7f37);--amber:var(--jp-warn-color1,#9a6700);
display:flex;flex-wrap:wrap;gap:12px;color:var(--fg);font-size:14px;line-height:1.5;margin:4px 0}
@media (prefers-color-scheme:dark){.rxllm{--fg:var(--jp-content-font-color1,#e6edf3);
--dim:var(--jp-content-font-color2,#9198a1);--line:var(--jp-border-color2,#3d444d);
--soft:var(--jp-layout-color2,#212830);--blue:var(--jp-brand-color1,#4493f8);--red:var(--jp-error-color1,#f85149);
--green:var(--jp-success-color1,#3fb950);--amber:var(--jp-warn-color1,#d29922)}}
.rxllm article{flex:1 1 260px;min-width:0;max-width:900px;border:1px solid var(--line);border-radius:6px;
padding:8px 12px;overflow-wrap:anywhere}
.rxllm header{font-weight:600;border-bottom:1px solid var(--line);margin-bottom:8px;padding-bottom:4px}
.rxllm footer,.rxllm-note,.rxllm-source,:is(.rxllm-tool,.rxllm-error,.rxllm-words) span{color:var(--dim);font-size:12px}
.rxllm footer{margin-top:6px}
.rxllm footer::before{content:"";display:inline-block;width:8px;height:8px;border-radius:4px;margin-right:6px;
background:var(--green)}
.rxllm [data-state=running]>footer::before{background:var(--blue)}
.rxllm :is([data-state=waiting],[data-state=stopped])>footer::before{background:var(--amber)}
.rxllm [data-state=failed]>footer::before{background:var(--red)}
.rxllm.rxllm article :is(pre,code){font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:13px;
color:var(--fg);background:var(--soft);border-radius:4px}
.rxllm.rxllm article code{padding:1px 4px}
.rxllm.rxllm article pre{margin:6px 0;padding:6px 8px;max-height:320px;overflow:auto;white-space:pre-wrap}
.rxllm.rxllm article pre code{padding:0}
.rxllm.rxllm article a{color:var(--blue)}
.rxllm.rxllm article :is(p,ul,ol){margin:0 0 8px}
.rxllm.rxllm article :is(h1,h2,h3,h4,h5,h6){font-size:1.1em;margin:8px 0 4px;line-height:1.3}
.rxllm.rxllm article table{border-collapse:collapse;margin:6px 0;display:block;overflow-x:auto}
.rxllm.rxllm article :is(th,td){border:1px solid var(--line);padding:2px 8px;text-align:start}
.rxllm.rxllm article blockquote{margin:0 0 8px;padding-left:10px;border-left:3px solid var(--line);color:var(--dim)}
.rxllm details{color:var(--dim);margin:4px 0}
.rxllm details>div{border-left:2px solid var(--line);padding-left:10px;max-height:320px;overflow:auto}
.rxllm [data-state=running]>details[open]>div{max-height:160px;display:flex;flex-direction:column-reverse}
.rxllm summary{cursor:pointer;font-size:12px}
.rxllm.rxllm article .rxllm-tool code{white-space:normal}
.rxllm-tool{border-left:3px solid var(--green);padding:2px 0 2px 8px;margin:6px 0}
.rxllm-tool:is([data-state=arguments],[data-state=running],[data-state=called]){border-color:var(--blue)}
.rxllm-tool:is([data-state=waiting],[data-state=needed],[data-state=stopped]){border-color:var(--amber)}
.rxllm-tool[data-state=failed]{border-color:var(--red)}
.rxllm-agent{margin:4px 0 0 8px}
.rxllm-words{width:fit-content;max-width:80%;margin:8px 0 8px auto;padding:4px 10px;border-radius:6px;
background:var(--soft);white-space:pre-wrap}
.rxllm-words span{margin-left:8px}
.rxllm-error{border-left:3px solid var(--red);padding:2px 0 2px 8px;margin:6px 0}
.rxllm-error b{color:var(--red)}
.rxllm-tool .rxllm-error{border:0;padding:0}
.rxllm.rxllm article img{max-width:100%;max-height:480px;border-radius:4px}
""".strip().replace("\n", "")

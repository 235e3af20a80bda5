"""Draw cards as HTML: one string without scripts and outside addresses, in the colours of the page around it."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from rxllm.display._card import Card, Note, Row, ToolRow, Words, clipped, rows_and_status
from rxllm.display._markdown import escape, is_link, markdown
from rxllm.display._style import STYLE
from rxllm.values import FilePart, ImagePart, LLMError, SourcePart, TextPart, ThinkingPart

SHOWN = 2_000
"""How many characters of arguments, progress and results are shown."""

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def cards_html(cards: Mapping[str | None, Card], now: float) -> str:
    """Return the HTML of `cards` at the time `now`: side by side, if they have labels.

    >>> html = cards_html({None: Card(begun=0.0)}, 1.5)
    >>> html[html.index("<footer") :]
    '<footer><bdi>waiting for the first token, 1.5 s</bdi></footer></article></div>'
    """
    return page("".join(_card(card, label, now) for label, card in cards.items()))


def page(drawn: str) -> str:
    """Return what is drawn with the style it needs."""
    # Both classes keep JupyterLab and nbconvert from reading dollars as mathematics.
    return f'<div class="rxllm tex2jax_ignore mathjax_ignore"><style>{STYLE}</style>{drawn}</div>'


def _card(card: Card, label: str | None, now: float) -> str:
    title = "" if label is None else f"<header>{isolated(label)}</header>"
    if card.has_value:
        error = card.error or card.state.error
        body = f'<div class="rxllm-value">{_value(card.value)}</div>{"" if error is None else _error(error)}'
        texts = [card.look] if card.look in ("stopped", "failed") else []
    else:
        found, texts = rows_and_status(card, now)
        body = rows_html(found, opened=card.look == "running")
    return article(card.look, title + body, texts)


def article(look: str, body: str, texts: Iterable[str]) -> str:
    """Return the frame of a card: its body, and its status line of `texts`."""
    line = " · ".join(map(isolated, texts))
    footer = f"<footer>{line}</footer>" if line else ""
    return f'<article data-state="{look}">{body}{footer}</article>'


def rows_html(rows: Sequence[Row], *, opened: bool) -> str:
    """Return the HTML of `rows`; thinking is folded, except the last row's if it is `opened`: it streams.

    A reader cannot unfold what streams: each draw would fold it again.
    """
    last = rows[-1] if rows and opened else None
    if isinstance(last, ThinkingPart) and last.text:
        return "".join(map(row_html, rows[:-1])) + _thinking(last.text, " open")
    return "".join(map(row_html, rows))


def row_html(row: Row) -> str:
    """Return the HTML of one row."""
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
            return f'<div class="rxllm-file">{isolated(repr(image))}</div>'
        case Note():
            return _note(row)
        case Words(text=text, used=used):
            unused = "" if used else "<span>not used</span>"
            return f'<div class="rxllm-words" dir="auto">{escape(clipped(text, SHOWN))}{unused}</div>'


def _thinking(text: str, attribute: str = "") -> str:
    body = f'<div><div dir="auto">{markdown(text)}</div></div>'
    return f"<details{attribute}><summary>Thinking</summary>{body}</details>"


def _tool(row: ToolRow) -> str:
    name, arguments = isolated(row.call.name), isolated(clipped(row.arguments, SHOWN))
    about = " · ".join((row.description, *map(isolated, row.facts)))
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
    return f'<pre class="rxllm-{kind}" dir="auto">{escape(clipped(text, SHOWN))}</pre>'


def _note(note: Note) -> str:
    return _error(note.error) if note.error is not None else f'<div class="rxllm-note">{isolated(note.text)}</div>'


def _error(error: Exception) -> str:
    fields = error.fields() if isinstance(error, LLMError) else {}
    names = ("reason", "provider", "status", "code", "retry_after")
    facts = ", ".join(f"{name.replace('_', ' ')} {fields[name]}" for name in names if name in fields)
    about = f" <span>{isolated(facts)}</span>" if facts else ""
    message = f'<div dir="auto">{escape(clipped(str(error), SHOWN))}</div>'
    return f'<div class="rxllm-error"><b>{isolated(type(error).__name__)}</b>{about}{message}</div>'


def _source(source: Mapping[str, Any]) -> str:
    url = str(source.get("url") or source.get("uri") or "")
    title = str(source.get("title") or source.get("cited_text") or source.get("text") or url or source)
    return _link(url, title) if is_link(url) else isolated(clipped(title, SHOWN))


def _link(url: str, title: str) -> str:
    return f'<a href="{escape(url)}" rel="noopener noreferrer" target="_blank">{isolated(clipped(title, SHOWN))}</a>'


def _file(file: Mapping[str, Any]) -> str:
    mime, data, url = str(file.get("mime_type") or ""), file.get("data"), str(file.get("url") or "")
    name = str(file.get("name") or mime or "file")
    if mime in _IMAGES and isinstance(data, bytes):
        return f'<img alt="{escape(name)}" src="data:{mime};base64,{_base64(data)}">'
    return _link(url, name) if is_link(url) else isolated(name)


@lru_cache(4)
def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _value(value: Any) -> str:
    """Return the HTML of any value: its own, its Markdown, its picture, or its repr."""
    for name, draw in (("_repr_html_", str), ("_repr_markdown_", markdown), ("_repr_mimebundle_", _pictures)):
        method: Any = getattr(cast(Any, type(value)), name, None)
        with contextlib.suppress(Exception):  # of somebody's repr: there is another
            if method is not None and (shown := method(value)):
                return draw(shown)
    return f'<pre dir="auto">{escape(_text(value))}</pre>'


def _pictures(bundle: Any) -> str:
    found: Iterable[tuple[str, Any]] = bundle.items()
    return bundle.get("text/html") or "".join(
        f'<img alt="" src="data:{mime};base64,{data}">' for mime, data in found if mime in _IMAGES
    )


def isolated(text: str) -> str:
    """Return `text` as HTML whose direction ends with it."""
    return f"<bdi>{escape(text)}</bdi>"

"""Draw cards as HTML without scripts."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast
from zlib import crc32

import msgspec

from rxllm.display._card import Card, Correction, Note, Row, ToolRow, rows_and_status, truncate
from rxllm.display._markdown import escape, is_link, markdown
from rxllm.display._words import error_text
from rxllm.values import FilePart, ImagePart, LLMError, SourcePart, TextPart, ThinkingPart

SHOWN = 2_000
"""The maximum number of characters shown for a detail, such as a call's arguments, its progress or its result."""

LINE, INDENTED = 60, 100_000
"""Length limits, in characters.

A call's arguments are shown on the tool's line if they have at most `LINE` characters and no line break. JSON is
indented if it has fewer than `INDENTED` characters.
"""


def cards_html(cards: Mapping[str | None, Card], now: float) -> str:
    """Return `cards` as HTML, as they look at the time `now`.

    >>> html = cards_html({None: Card(begun=0.0)}, 1.5)
    >>> html[html.index("<footer") :]
    '<footer><bdi>waiting for the first token</bdi> · <bdi>1.5 s</bdi></footer></article></div>'
    """
    return page("".join(_card(card, label, now) for label, card in cards.items()))


def page(drawn: str) -> str:
    # The "ignore" classes keep MathJax from treating dollar signs as math.
    classes = f"rxllm-output {_SCOPE} tex2jax_ignore mathjax_ignore"
    return f'<div class="{classes}"><style>{STYLE}</style>{drawn}</div>'


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
    """Return the HTML of a card with a status line."""
    line = " · ".join(map(isolate, texts))
    footer = f"<footer>{line}</footer>" if line else ""
    return f'<article data-state="{look}">{body}{footer}</article>'


def rows_html(rows: Sequence[Row], *, opened: bool) -> str:
    """Return the HTML of `rows`. If `opened` is True and the last row contains thinking, that row is expanded.

    Each redraw replaces the row. If the row were drawn collapsed, a user who had expanded it would see it close again.
    """
    last = rows[-1] if rows and opened else None
    if isinstance(last, ThinkingPart) and last.text:
        return "".join(map(row_html, rows[:-1])) + _thinking(last.text, " open")
    return "".join(map(row_html, rows))


def row_html(row: Row) -> str:
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
            unused = "" if used else '<span class="rxllm-about">not used</span>'
            return f'<div class="rxllm-words" dir="auto">{escape(truncate(text, SHOWN))}{unused}</div>'


def _thinking(text: str, attribute: str = "") -> str:
    body = f'<div><div dir="auto">{markdown(text)}</div></div>'
    return f'<details class="rxllm-thinking"{attribute}><summary>Thinking</summary>{body}</details>'


def _tool(row: ToolRow) -> str:
    is_short = len(row.arguments) <= LINE and "\n" not in row.arguments
    arguments = f"<code>{isolate(row.arguments)}</code> " if is_short else ""
    about = " · ".join((row.description, *map(isolate, row.facts)))
    head = f'<b>{isolate(row.call.name)}</b> {arguments}<span class="rxllm-about">{about}</span>'
    body = "" if is_short else block("arguments", row.arguments)
    body += f'<div class="rxllm-agent">{"".join(map(row_html, row.rows))}</div>' if row.rows else ""
    body += "" if row.progress is None else block("progress", _text(row.progress))
    if row.error is not None:
        body += _error(row.error)
    elif row.result is not None:
        body += block("result", row.result)
    return f'<div class="rxllm-tool" data-state="{row.state}"><div>{head}</div>{body}</div>'


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def block(kind: str, text: str) -> str:
    """Return the HTML of a tool's arguments, progress or result. JSON is indented."""
    return f'<pre class="rxllm-{kind}" dir="auto">{escape(truncate(_indented(text), SHOWN))}</pre>'


def _indented(text: str) -> str:
    if text.startswith(("{", "[")) and len(text) < INDENTED:
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):  # not JSON, or cut off
            return msgspec.json.format(text, indent=2)
    return text


def _error(error: Exception) -> str:
    """Return the HTML of an error. Everything after the first line of the message is collapsed."""
    sentence, _, more = error_text(error).partition("\n")
    fields = error.fields() if isinstance(error, LLMError) else {}
    found = [form.format(str(fields[name]).replace("_", " ")) for name, form in _FACTS.items() if name in fields]
    facts = [fact for fact in (type(error).__name__, *found) if fact.removeprefix("HTTP ") not in sentence]
    about = f'<div class="rxllm-about">{isolate(" · ".join(facts))}</div>' if facts else ""
    folded = f'<details><summary>Details</summary><pre dir="auto">{escape(truncate(more, SHOWN))}</pre></details>'
    shown = f'<div dir="auto">{escape(truncate(sentence, SHOWN))}</div>{about}{folded if more.strip() else ""}'
    return f'<div class="rxllm-error">{shown}</div>'


_FACTS = {"reason": "{}", "provider": "{}", "status": "HTTP {}", "code": "{}", "retry_after": "retry after {} s"}


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
    """Return any value as HTML. If the value does not define its own HTML, Markdown or picture, show its text."""
    for name, draw in (("_repr_html_", str), ("_repr_markdown_", markdown), ("_repr_mimebundle_", _pictures)):
        method: Any = getattr(cast(Any, type(value)), name, None)
        with contextlib.suppress(Exception):  # if a method fails, try the next one
            if method is not None and (shown := method(value)):
                return draw(shown)
    return f'<pre dir="auto">{escape(_text(value))}</pre>'


def _pictures(bundle: Any) -> str:
    found: Iterable[tuple[str, Any]] = bundle.items()
    return bundle.get("text/html") or "".join(
        f'<img alt="" src="data:{mime};base64,{data}">' for mime, data in found if mime in _IMAGES
    )


def isolate(text: str) -> str:
    """Return `text` as HTML whose writing direction does not affect the text around it."""
    return f"<bdi>{escape(text)}</bdi>"


_RULES = """
${--dim:color-mix(in srgb,currentColor 66%,transparent);--line:color-mix(in srgb,currentColor 18%,transparent);
--soft:color-mix(in srgb,currentColor 6%,transparent);--blue:color-mix(in srgb,#2f81f7 80%,currentColor);
--green:color-mix(in srgb,#2da44e 80%,currentColor);--amber:color-mix(in srgb,#d9901a 85%,currentColor);
--red:color-mix(in srgb,#e5484d 80%,currentColor);--mono:var(--jp-code-font-family,var(--vscode-editor-font-family,
ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace));display:grid;gap:12px;
grid-template-columns:repeat(auto-fit,minmax(min(100%,200px),1fr));font-size:14px;line-height:1.5;margin:4px 0}
$ article{display:flex;flex-direction:column;gap:8px;box-sizing:border-box;min-width:0;border:1px solid var(--line);
border-radius:8px;padding:12px 16px;overflow-wrap:anywhere}
$ article:only-of-type{max-width:900px}
$ article>*{margin-block:0}
$ $ article{border:0;padding:0}
$ header{font-weight:600}
$ footer{margin-top:auto;color:var(--dim);font-size:12px;font-variant-numeric:tabular-nums}
$ footer bdi{display:inline-block;max-width:100%}
$ footer::before{content:"";display:inline-block;width:8px;height:8px;border-radius:4px;margin-inline-end:6px;
background:var(--dim)}
$ [data-state=running]>footer::before{background:var(--blue)}
$ [data-state=waiting]>footer::before{background:var(--amber)}
$ [data-state=done]>footer::before{background:var(--green)}
$ [data-state=failed]>footer::before{background:var(--red)}
$ [data-state=value]>footer::before{display:none}
$ article :is(pre,code){font-family:var(--mono);font-size:13px;line-height:1.45;color:inherit;background:var(--soft);
border-radius:4px}
$ article code{padding:1px 4px;white-space:pre-wrap}
$ article pre{margin:0;padding:8px 10px;max-height:320px;overflow:auto;white-space:pre-wrap}
$ article pre code{padding:0;background:none;white-space:pre}
$ article pre.rxllm-math{white-space:pre}
$ article code.rxllm-math{padding:0;background:none}
$ article a{color:var(--blue);text-decoration:underline}
$ article :is(.rxllm-text,.rxllm-thinking>div>div)>*{margin:0 0 8px}
$ article :is(.rxllm-text,.rxllm-thinking>div>div)>:last-child{margin-bottom:0}
$ article :is(p,ul,ol,blockquote){margin:0 0 8px}
$ article :is(ul,ol){padding-inline-start:1.7em;list-style:disc}
$ article ol{list-style:decimal}
$ article :is(li,blockquote)>:last-child{margin-bottom:0}
$ article :is(h1,h2,h3,h4,h5,h6){font-size:1.1em;font-weight:600;margin:8px 0 4px;line-height:1.3}
$ :is(.rxllm-table,.rxllm-value){overflow-x:auto}
$ article table{border-collapse:collapse;font-size:13px;width:max-content;max-width:max(100%,900px);margin:0}
$ article :is(th,td){border:0;border-bottom:1px solid var(--line);padding:4px 16px 4px 0;text-align:start;
vertical-align:top;overflow-wrap:normal;word-break:normal}
$ article :is(th,td):last-child{padding-inline-end:0}
$ article th{font-weight:600;white-space:nowrap}
$ article td.rxllm-number{text-align:end;font-variant-numeric:tabular-nums}
$ article blockquote{padding-inline-start:10px;border-inline-start:3px solid var(--line);color:var(--dim)}
$ article img{max-width:100%;max-height:480px;border-radius:4px}
$ details.rxllm-thinking{color:var(--dim)}
$ details.rxllm-thinking>div{border-inline-start:2px solid var(--line);margin-top:4px;padding-inline-start:10px;
max-height:320px;overflow:auto}
$ [data-state=running]>details[open]>div{max-height:160px;display:flex;flex-direction:column-reverse}
$ summary{display:list-item;cursor:pointer;font-size:12px}
$ :is(.rxllm-note,.rxllm-source,.rxllm-about){color:var(--dim);font-size:12px}
$ :is(.rxllm-tool,.rxllm-error){display:flex;flex-direction:column;gap:6px;margin:0;padding:0;
border-inline-start:3px solid var(--line);padding-inline-start:10px}
$ .rxllm-tool>div:first-child{display:flex;flex-wrap:wrap;align-items:baseline;gap:0 8px}
$ .rxllm-tool b{font-family:var(--mono);font-size:13px}
$ article .rxllm-tool>div>code{padding:0;background:none}
$ .rxllm-tool:is([data-state=arguments],[data-state=running],[data-state=called]){border-color:var(--blue)}
$ .rxllm-tool:is([data-state=waiting],[data-state=needed]){border-color:var(--amber)}
$ .rxllm-tool[data-state=done]{border-color:var(--green)}
$ :is(.rxllm-tool[data-state=failed],.rxllm-error){border-color:var(--red)}
$ .rxllm-tool .rxllm-error{border:0;padding:0}
$ .rxllm-error{gap:2px}
$ .rxllm-agent{display:flex;flex-direction:column;gap:8px;margin:0}
$ .rxllm-words{width:fit-content;max-width:80%;margin:0 0 0 auto;padding:4px 10px;border-radius:6px;
background:var(--soft);white-space:pre-wrap}
$ .rxllm-words span{margin-left:8px}
$ .rxllm-role{color:var(--dim);font-size:12px;font-weight:600}
$ .rxllm-plain{white-space:pre-wrap}
$ :is(section,.rxllm-folded){display:flex;flex-direction:column;gap:4px}
$ figure{display:inline-block;margin:0 8px 8px 0;max-width:100%;vertical-align:top}
""".strip().replace("\n", "")

_SCOPE = f"rxllm-{crc32(_RULES.encode()):08x}"
"""The CSS class of all HTML drawn here.

It is derived from the style sheet, so two versions of rxllm never share rules.
"""

# Doubling the class makes these rules override the rules of the surrounding page.
STYLE = _RULES.replace("$", f".{_SCOPE}.{_SCOPE}")

"""Draw values in the hand of the cards, which is what notebooks show of them: a body and a status line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rxllm.collector import StreamCollector
from rxllm.display._card import Card, Note, rows_and_status, spent
from rxllm.display._html import article, isolated, page, row_html
from rxllm.display._markdown import escape, is_link, markdown
from rxllm.display._messages import (
    LONG,
    MANY,
    clip,
    count,
    cut,
    folded,
    message_html,
    message_rows,
    part_html,
    thread_html,
)
from rxllm.engine import Engine, settings
from rxllm.values import (
    ChatResult,
    ImagePart,
    ImageResponse,
    Message,
    Partial,
    Response,
    Session,
    StepResult,
    TextPart,
    Thread,
    Tool,
    Turn,
    Usage,
)

_STYLE = (
    ".rxllm .rxllm-role{color:var(--dim);font-size:12px;font-weight:600;margin-top:8px}"
    ".rxllm .rxllm-plain{white-space:pre-wrap;margin:0 0 8px}"
    ".rxllm article>section:first-child>.rxllm-role{margin-top:0}"
    ".rxllm article>section:last-child>.rxllm-plain:last-child{margin-bottom:0}"
    ".rxllm details.rxllm-folded{color:inherit}"
    ".rxllm.rxllm article td.rxllm-number{text-align:end;font-variant-numeric:tabular-nums}"
    ".rxllm td,.rxllm th{overflow-wrap:break-word}"
    ".rxllm figure{display:inline-block;margin:0 8px 8px 0;max-width:100%;vertical-align:top}"
    ".rxllm [data-state=value]>footer::before{display:none}"
    ".rxllm .rxllm article{border:0;padding:0}"
)

_LOOKS = {"completed": "done", "idle": "done", "error": "failed", "tool_error": "failed"}

Drawing = tuple[str, Sequence[str], str]
"""A body, the texts of the status line, and how the value looks: as a card's states, or ``value``."""


def value_html(value: Any) -> str | None:
    """Return the HTML of a value; None if it has no drawing of its own.

    >>> html = value_html(Message("user", "<b>"))
    >>> html[html.index("<article") :]
    '<article data-state="value"><section><div class="rxllm-role"><bdi>user</bdi></div>\
<div class="rxllm-plain" dir="auto">&lt;b&gt;</div></section></article></div>'
    """
    drawing = _drawing(value)
    if drawing is None:
        return None
    body, texts, look = drawing
    return page(f"<style>{_STYLE}</style>{article(look, body, [clip(text) for text in texts if text])}")


def _drawing(value: Any) -> Drawing | None:
    match value:
        case Response() | StepResult():
            return _answer(cast(Any, value))
        case ChatResult():
            return _chat(cast(Any, value))
        case Session():
            return _session(value, Usage())
        case Turn(session=session, result=result):
            return _session(session, result.usage)
        case Thread():
            return thread_html(value), [count(len(value), "message")], "value"
        case Message():
            return message_html(value), [], "value"
        case ImageResponse():
            return _images(value)
        case Usage():
            return _usage(value), [], "value"
        case Tool():
            return _tool(value)
        case Engine():
            entries = settings(value) | {"tools": ", ".join(tool.name for tool in value.tools[:MANY]) or None}
            return _table(("engine", ""), [line for line in entries.items() if line[1] is not None]), [], "value"
        case Partial():
            text = json.dumps(value.so_far, indent=2, ensure_ascii=False) if value else ""
            body = f'<pre dir="auto">{escape(cut(text))}</pre>'
            return body, [value.state], "done" if value.state == "done" else "running"
        case StreamCollector():
            found, _ = rows_and_status(Card(0.0, value, has_events=True, has_tools=True), 0.0)
            body = "".join(part_html(row, "assistant") for row in found[:MANY])
            texts = [value.finish_reason or "streaming", *spent(value.usage)]
            return body, texts, "done" if value.finish_reason else "running"
        case _:
            text: Any = getattr(value, "_repr_markdown_", None)
            return None if text is None else (markdown(text()), [], "value")


def _answer(value: Response[Any] | StepResult[Any]) -> Drawing:
    response, results = (value.response, value.tool_results) if isinstance(value, StepResult) else (value, ())
    message = response.message or Message("assistant", response.output_text, tool_calls=response.tool_calls)
    body = "".join(message_rows(message, results))
    if response.parsed is not None:
        body = f'<pre dir="auto">{escape(clip(repr(response.parsed)))}</pre>{folded("Text", body)}'
    texts = [response.finish_reason or "", response.model or "", *spent(value.usage)]
    return body + _error(response.error), texts, "failed" if response.error else "done"


def _chat(chat: ChatResult[Any]) -> Drawing:
    body = thread_html(chat.thread, "waiting" if chat.halted_reason == "approval" else "called") + _steps(chat.steps)
    if chat.pending_question:
        body += message_html(Message("assistant", chat.pending_question))
    models = dict.fromkeys(step.response.model for step in chat.steps if step.response.model)
    reason = chat.halted_reason or ""
    texts = [reason, ", ".join(models), count(len(chat.steps), "step"), *spent(chat.usage)]
    return body + _error(chat.error), texts, _LOOKS.get(reason, "stopped")


def _session(session: Session, usage: Usage) -> Drawing:
    error = session.metadata.get("error") if session.status == "error" else None
    names = ", ".join(call.name for call in session.pending_tool_calls[:MANY])
    texts = [session.status, f"waits for {names}" if names else "", *spent(usage), session.id or ""]
    texts += [f"next: {', '.join(session.legal)}"] if session.legal else []
    return thread_html(session.thread) + _error(error), texts, _LOOKS.get(session.status, "stopped")


def _error(error: Any) -> str:
    note = Note("", error) if isinstance(error, Exception) else Note(f"error: {clip(str(error))}")
    return "" if error is None else row_html(note)


def _images(response: ImageResponse) -> Drawing:
    body = ""
    for image in response.images[:MANY]:
        url = str(image.data)[:LONG] if image.source == "url" else ""
        picture = f'<img alt="" src="{escape(url)}">' if is_link(url) else part_html(ImagePart(image), "assistant")
        note = row_html(Note(clip(image.revised_prompt))) if image.revised_prompt else ""
        body += f"<figure>{picture}{note}</figure>"
    usage = Usage(response.usage.input_tokens, response.usage.output_tokens, total_cost=response.usage.total_cost)
    return body, [response.model or "", count(len(response.images), "image"), *spent(usage)], "value"


def _usage(usage: Usage) -> str:
    entries = {**vars(usage), **usage.tool_usage, **usage.extra, "total": usage.total}
    return _table(("usage", ""), [line for line in entries.items() if isinstance(line[1], int | float)])


def _steps(steps: Sequence[StepResult[Any]]) -> str:
    names = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "total_cost")
    lines: list[Sequence[Any]] = []
    for number, step in enumerate(steps, 1):
        calls = ", ".join(call.name for call in step.response.tool_calls) or None
        lines.append((number, step.response.finish_reason, calls, *(getattr(step.usage, name) for name in names)))
    head = ("step", "finish_reason", "tool_calls", *names)
    return folded(count(len(steps), "step"), _table(head, lines)) if len(steps) > 1 else ""


def _tool(tool: Tool) -> Drawing:
    properties = cast(Mapping[str, Any], tool.schema.get("properties") or {})
    lines: list[Sequence[Any]] = []
    for name, entry in properties.items():
        spec: dict[str, Any] = {**entry} if isinstance(entry, Mapping) else {}
        about, default = spec.pop("description", None), spec.pop("default", None)
        needed = "required" if name in (tool.schema.get("required") or ()) else default
        lines.append((name, _type(spec), needed, about))
    table = _table(("argument", "type", "default", "description"), lines) if lines else ""
    body = f"<b>{isolated(clip(tool.name))}</b>{part_html(TextPart(tool.description), 'user')}{table}"
    return body, ["run by the caller" if tool.manual else "", "needs approval" if tool.approval else ""], "value"


def _type(spec: Mapping[str, Any]) -> str:
    if set(spec) <= {"type", "anyOf", "title"} and all(set(other) == {"type"} for other in spec.get("anyOf", ())):
        return " | ".join(str(other.get("type", "any")) for other in spec.get("anyOf", [spec]))
    return json.dumps(spec, default=str, ensure_ascii=False)


def _table(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return a table without the columns in which nothing is."""
    columns = [index for index in range(len(head)) if any(line[index] is not None for line in lines)]
    titles = "".join(f"<th>{head[index]}</th>" for index in columns)
    body = "".join(f"<tr>{''.join(_cell(line[index]) for index in columns)}</tr>" for line in lines[:MANY])
    more = row_html(Note(f"{len(lines) - MANY:,} more")) if len(lines) > MANY else ""
    return f"<table><tr>{titles}</tr>{body}</table>{more}"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="rxllm-number">{value:{"," if isinstance(value, int) else ".6g"}}</td>'
    return f"<td>{isolated(clip('' if value is None else str(value)))}</td>"

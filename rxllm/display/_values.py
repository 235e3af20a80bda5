"""Draw values in the hand of the cards, which is what notebooks show of them: parts, tool rows and a status line.

Everything is bounded, so that a long thread or a huge answer leaves the notebook usable: of many messages the first
and the last are shown, those before the last folded, and the rest only counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

from rxllm.collector import StreamCollector
from rxllm.display._card import Card, Note, Row, ToolRow, content_of, rows, rows_of, spent
from rxllm.display._html import article, clipped, isolated, page, row_html
from rxllm.display._markdown import escape, is_link, markdown
from rxllm.engine import Engine, settings
from rxllm.values import (
    ChatResult,
    FilePart,
    Image,
    ImagePart,
    ImageResponse,
    LLMError,
    Message,
    Partial,
    Response,
    Session,
    SourcePart,
    StepResult,
    TextPart,
    ThinkingPart,
    Thread,
    Tool,
    ToolCall,
    Turn,
    Usage,
    ValidationError,
)

OPEN = 8
"""How many of the last messages of a long thread are open."""

FOLDED = 100
"""How many before them can be unfolded."""

ROOM = 300_000
"""How much HTML there is before no older message is drawn."""

LONG = 50_000
"""How many characters of one text are shown."""

MANY = 200
"""How many parts of a message, and how many rows of a table, are shown."""

_STYLE = (
    ".rxllm .rxllm-role{color:var(--dim);font-size:12px;font-weight:600;margin-top:8px}"
    ".rxllm .rxllm-plain{white-space:pre-wrap;margin:0 0 8px}"
    ".rxllm details.rxllm-folded{color:inherit}"
    ".rxllm.rxllm article td.rxllm-number{text-align:end;font-variant-numeric:tabular-nums}"
    ".rxllm [data-state=value]>footer::before{display:none}"
    ".rxllm .rxllm article{border:0;padding:0}"
)

_LOOKS = {"completed": "done", "idle": "done", "error": "failed", "tool_error": "failed"}
_LOOKS |= {"done": "done", "growing": "running", "missing": "running"}


State = Literal["called", "waiting"]
"""What an unanswered tool call is."""


class Drawing(NamedTuple):
    body: str
    texts: Sequence[str]
    look: str = "value"


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
    texts = [clipped(text) for text in drawing.texts if text]
    return page(f"<style>{_STYLE}</style>{article(drawing.look, drawing.body, texts)}")


def _drawing(value: Any) -> Drawing | None:
    match value:
        case Response() | StepResult():
            return _answer(cast(Any, value))
        case ChatResult():
            return _chat(cast(Any, value))
        case Session():
            return _session(value, ())
        case Turn(session=session, result=result):
            usage = result.usage if isinstance(result, ChatResult) else result.response.usage
            return _session(session, spent(usage))
        case Thread():
            return Drawing(_thread(value), [_count(len(value), "message")])
        case Message():
            return Drawing(_message(value), [])
        case ImageResponse():
            return _images(value)
        case Usage():
            return Drawing(_usage(value), [])
        case Tool():
            return _tool(value)
        case Engine():
            return Drawing(_table([(name, _setting(name, entry)) for name, entry in settings(value).items()]), [])
        case Partial():
            return _partial(cast(Any, value))
        case StreamCollector():
            body = "".join(_part(row, "assistant") for row in islice(rows(Card(0.0, value), 0.0), MANY))
            steps = _count(len(value.steps), "step") if value.steps else ""
            texts = [value.finish_reason or "streaming", steps, *spent(value.usage)]
            return Drawing(body, texts, "done" if value.finish_reason else "running")
        case Image():
            return None  # it has its own
        case _:
            text: Any = getattr(cast(Any, type(value)), "_repr_markdown_", None)
            return None if text is None else Drawing(markdown(text(value)), [])


def _answer(value: Response[Any] | StepResult[Any]) -> Drawing:
    response = value.response if isinstance(value, StepResult) else value
    results = value.tool_results if isinstance(value, StepResult) else ()
    message = response.message or Message("assistant", response.output_text, tool_calls=response.tool_calls)
    body = "".join(_rows(message, results)) + _error(response.error)
    if response.parsed is not None:
        body = f'<pre dir="auto">{escape(clipped(repr(response.parsed)))}</pre>{_folded("Text", body)}'
    texts = [response.finish_reason or "", response.model or "", *spent(response.usage)]
    return Drawing(body, texts, "failed" if response.error else "done")


def _chat(chat: ChatResult[Any]) -> Drawing:
    body = _thread(chat.thread, "waiting" if chat.halted_reason == "approval" else "called") + _steps(chat.steps)
    if chat.pending_question:
        body += _message(Message("assistant", chat.pending_question))
    models = dict.fromkeys(step.response.model for step in chat.steps if step.response.model)
    reason = chat.halted_reason or ""
    texts = [reason, ", ".join(models), _count(len(chat.steps), "step"), *spent(chat.usage)]
    return Drawing(body + _error(chat.error), texts, _LOOKS.get(reason, "stopped"))


def _session(session: Session, cost: Sequence[str]) -> Drawing:
    error = session.metadata.get("error") if session.status == "error" else None
    names = ", ".join(call.name for call in session.pending_tool_calls[:MANY])
    texts = [session.status, f"waits for {names}" if names else "", *cost, session.id or ""]
    texts += [f"next: {', '.join(session.legal)}"] if session.legal else []
    note = error if isinstance(error, LLMError) or error is None else RuntimeError(error)
    return Drawing(_thread(session.thread) + _error(note), texts, _LOOKS.get(session.status, "stopped"))


def _thread(thread: Thread, unanswered: State = "called") -> str:
    exchanges: list[tuple[int, Message, list[Message]]] = []  # a message and the tools' answers behind it, from there
    for index, message in enumerate(thread):
        if message.role == "tool" and exchanges:
            exchanges[-1][2].append(message)
        else:
            exchanges.append((index, message, []))
    drawn: list[str] = []
    for _, message, answers in reversed(exchanges[1:]):
        if len(drawn) == OPEN + FOLDED or sum(map(len, drawn)) > ROOM:
            break
        drawn.append(_message(message, answers, unanswered))
    drawn.reverse()
    starts = [start for start, _, _ in exchanges]
    hidden = starts[1 : len(starts) - len(drawn) + 1]
    note = Note(f"{hidden[-1] - hidden[0]:,} more messages: thread[{hidden[0]}:{hidden[-1]}]") if hidden[1:] else None
    folded = ("" if note is None else row_html(note)) + "".join(drawn[:-OPEN])
    between = _folded(_count(starts[-OPEN] - starts[1], "message"), folded) if folded else ""
    first = "".join(_message(message, answers, unanswered) for _, message, answers in exchanges[:1])
    return first + between + "".join(drawn[-OPEN:])


def _message(message: Message, answers: Iterable[Message] = (), unanswered: State = "called") -> str:
    name = f"{message.role} {message.name}" if message.name else message.role
    body = "".join(_rows(message, answers, unanswered))
    if message.role == "system" and len(message.text) > 600:
        return _folded(name, f"<section>{body}</section>")
    return f'<section><div class="rxllm-role">{isolated(clipped(name))}</div>{body}</section>'


def _rows(message: Message, answers: Iterable[Message], unanswered: State = "called") -> Iterator[str]:
    by_id = {answer.tool_call_id: answer for answer in answers}

    def row(call: ToolCall) -> ToolRow:
        answer = by_id.get(call.id)
        if answer is None:
            return ToolRow(call, unanswered)
        return ToolRow(call, "done", result=content_of(answer))

    found = [*rows_of(message, row)]
    if isinstance(message.content, dict):
        found = [TextPart(content_of(message))]
    yield from (_part(entry, message.role) for entry in found[:MANY])
    if len(found) > MANY:
        yield row_html(Note(f"{len(found) - MANY:,} more parts"))
    known = {call.id for call in message.tool_calls}
    for answer in islice(by_id.values(), MANY):
        if answer.tool_call_id not in known:
            yield _message(answer)
        else:  # its text is in the row of the call
            yield from (_part(part, "tool") for part in answer.parts if isinstance(part, ImagePart | FilePart))


def _part(row: Row, role: str) -> str:
    match row:
        case TextPart(text=text) if role == "tool":
            return f'<pre dir="auto">{escape(clipped(text))}</pre>'
        case TextPart(text=text) if role != "assistant":  # people's texts are shown as they wrote them
            return f'<div class="rxllm-plain" dir="auto">{escape(_cut(text))}</div>'
        case TextPart(text=text):
            return row_html(TextPart(_cut(text)))
        case ThinkingPart(text=text):
            return row_html(ThinkingPart(_cut(text)))
        case ImagePart(image=image):
            return row_html(FilePart(_as_file(image)))
        case SourcePart(source=source):
            return row_html(SourcePart(_cut_all(source)))
        case FilePart(file=file):
            return row_html(FilePart(_cut_all(file)))
        case _:
            return row_html(row)


def _as_file(image: Image) -> dict[str, Any]:
    try:
        return {"mime_type": image.mime_type, "name": repr(image), "data": image.to_binary()}
    except (ValidationError, OSError):  # it is elsewhere, or cannot be read
        return {"name": clipped(repr(image)), "url": _cut(str(image.data))}


def _cut(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}\n\n… {len(text) - LONG:,} more characters"


def _cut_all(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: clipped(entry) if isinstance(entry, str) else entry for name, entry in data.items()}


def _error(error: Exception | None) -> str:
    return "" if error is None else row_html(Note("", error))


def _images(response: ImageResponse) -> Drawing:
    body = ""
    for image in response.images[:MANY]:
        if is_link(str(image.data)) and image.source == "url":
            body += f'<img alt="" src="{escape(str(image.data))}">'
        else:
            body += row_html(FilePart(_as_file(image)))
        body += row_html(Note(clipped(image.revised_prompt))) if image.revised_prompt else ""
    usage = response.usage
    tokens = Usage(usage.input_tokens, usage.output_tokens, total_cost=usage.total_cost)
    return Drawing(body, [response.model or "", _count(len(response.images), "image"), *spent(tokens)])


def _usage(usage: Usage) -> str:
    lines = [
        ("input", usage.input_tokens, usage.input_cost),
        ("input, cached", usage.cached_input_tokens, None),
        ("input, written to the cache", usage.cache_write_input_tokens, None),
        ("output", usage.output_tokens, usage.output_cost),
        ("output, reasoning", usage.reasoning_tokens, None),
        *((name, entry, None) for name, entry in {**usage.tool_usage, **usage.extra}.items()),
        ("total", usage.total, usage.total_cost),
    ]
    return _table([line for line in lines if line[1:] != (None, None)], ("", "tokens", "cost"))


def _steps(steps: Sequence[StepResult[Any]]) -> str:
    if len(steps) < 2:
        return ""
    lines: list[Sequence[Any]] = []
    for number, step in enumerate(steps, 1):
        response, usage = step.response, step.response.usage
        calls = ", ".join(call.name for call in response.tool_calls)
        tokens = (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens, usage.reasoning_tokens)
        lines.append((number, response.finish_reason, calls or None, *tokens, usage.total_cost))
    head = ("step", "ended with", "calls", "input", "cached", "output", "reasoning", "cost")
    return _folded(_count(len(steps), "step"), _table(lines, head))


def _tool(tool: Tool) -> Drawing:
    properties = cast(Mapping[str, Any], tool.schema.get("properties") or {})
    required = tool.schema.get("required") or ()
    lines: list[Sequence[Any]] = []
    for name, spec in properties.items():
        spec = dict(spec) if isinstance(spec, Mapping) else {}
        about, default = spec.pop("description", None), spec.pop("default", None)
        spec.pop("title", None)
        kind = spec["type"] if list(spec) == ["type"] else json.dumps(spec, default=str)
        lines.append((name, kind, "required" if name in required else default, about))
    table = _table(lines, ("argument", "type", "default", "description")) if lines else ""
    body = f"<b>{isolated(clipped(tool.name))}</b>{_part(TextPart(tool.description), 'tool')}{table}"
    return Drawing(body, ["run by the caller" if tool.manual else "", "needs approval" if tool.approval else ""])


def _setting(name: str, entry: Any) -> str:
    return ", ".join(tool.name for tool in entry[:MANY]) if name == "tools" else repr(entry)


def _partial(partial: Partial[Any]) -> Drawing:
    text = json.dumps(partial.so_far, indent=2, ensure_ascii=False) if partial else ""
    return Drawing(f'<pre dir="auto">{escape(_cut(text))}</pre>', [partial.state], _LOOKS[partial.state])


def _table(lines: Sequence[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Return a table without the columns in which nothing is."""
    columns = [
        index for index in range(len(lines[0]) if lines else 0) if any(line[index] is not None for line in lines)
    ]
    titles = "".join(f"<th>{escape(head[index])}</th>" for index in columns) if head else ""
    body = "".join(f"<tr>{''.join(_cell(line[index]) for index in columns)}</tr>" for line in lines[:MANY])
    more = row_html(Note(f"{len(lines) - MANY:,} more")) if len(lines) > MANY else ""
    return f"<table>{f'<tr>{titles}</tr>' if head else ''}{body}</table>{more}"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="rxllm-number">{value:,}</td>' if isinstance(value, int) else f"<td>{value:.6g}</td>"
    return f"<td>{isolated(clipped('' if value is None else str(value)))}</td>"


def _folded(title: str, body: str) -> str:
    return f'<details class="rxllm-folded"><summary>{isolated(clipped(title))}</summary>{body}</details>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

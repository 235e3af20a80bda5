"""Draw values, messages and threads for notebooks.

All output is limited in size, so that notebooks stay usable. A long thread shows its first message and its latest
messages. Of the messages in between, the later ones can be expanded, and the earlier ones are only counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from os import PathLike
from typing import Any, Literal, cast

from rxllm.collector import StreamCollector
from rxllm.display._card import (
    Card,
    Note,
    Row,
    ToolRow,
    chat_ending,
    content_of,
    rows_and_status,
    rows_of,
    truncate,
    usage_texts,
)
from rxllm.display._export import HTML_HEAD, export
from rxllm.display._html import SHOWN, article, block, isolate, page, row_html
from rxllm.display._markdown import escape, is_link, markdown
from rxllm.display._timeline import timeline
from rxllm.display._words import Look, count, ending
from rxllm.engine import Engine, settings
from rxllm.values import (
    ChatResult,
    FilePart,
    Image,
    ImagePart,
    ImageResponse,
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
    times_of,
)

OPEN, FOLDED = 8, 100
"""The limits on the messages of a thread.

In addition to the thread's first message, at most `OPEN` of the latest messages are shown, and at most `FOLDED` of the
messages before them can be expanded. A message and the results of its tool calls count as one message.
"""

ROOM = 300_000
"""The limit for a thread's HTML, in characters.

Messages are drawn from the latest to the earliest. Once the HTML is longer than this limit, the remaining messages are
left out, except the thread's first message.
"""

LONG = 50_000
"""The maximum length of a piece of text, in characters."""

MANY = 200
"""The maximum number of parts, images or table rows to show."""

Drawing = tuple[str, Sequence[str], Look | Literal["value"]]
"""The HTML of a card's body, the texts for its status line, and its look."""


def value_html(value: Any, path: str | PathLike[str] | None = None) -> str | None:
    """Return a value as HTML, or None if its type has no HTML form. If `path` is given, write a page, and return None.

    >>> html = value_html(Message("user", "<b>"))
    >>> html[html.index("<article") :]
    '<article data-state="value"><section><div class="rxllm-role"><bdi>user</bdi></div>\
<div class="rxllm-plain" dir="auto">&lt;b&gt;</div></section></article></div>'
    """
    drawing = _drawing(value)
    if drawing is None:
        return None
    body, texts, look = drawing
    drawn = page(article(look, body, [clip(text) for text in texts if text]))
    return export(drawn + (timeline(value).html() if times_of(value) else ""), path, head=HTML_HEAD)


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
            counts = {**vars(value), **value.tool_usage, **value.extra, "total": value.total}
            lines = [line for line in counts.items() if isinstance(line[1], int | float)]
            return _table(("usage", ""), lines), [], "value"
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
            look, words = ending(value.finish_reason) if value.finish_reason else ("running", "streaming")
            return body, [words, *usage_texts(value.usage)], look
        case _:
            text: Any = getattr(value, "_repr_markdown_", None)
            return None if text is None else (markdown(text()), [], "value")


def _answer(value: Response[Any] | StepResult[Any]) -> Drawing:
    response, results = (value.response, value.tool_results) if isinstance(value, StepResult) else (value, ())
    message = response.message or Message("assistant", response.output_text, tool_calls=response.tool_calls)
    body = "".join(message_rows(message, results))
    if response.parsed is not None:
        body = f'<pre dir="auto">{escape(clip(repr(response.parsed)))}</pre>{fold("Text", body)}'
    look, words = ending("error" if response.error else response.finish_reason)
    return body + _error(response.error), [words, response.model or "", *usage_texts(value.usage)], look


def _chat(chat: ChatResult[Any]) -> Drawing:
    body = thread_html(chat.thread, _UNANSWERED.get(chat.halted_reason or "", "called")) + _steps(chat.steps)
    if chat.pending_question:
        body += message_html(Message("assistant", chat.pending_question))
    models = dict.fromkeys(step.response.model for step in chat.steps if step.response.model)
    look, words = ending("error") if chat.error else chat_ending(chat)
    texts = [words, ", ".join(models), count(len(chat.steps), "step"), *usage_texts(chat.usage)]
    return body + _error(chat.error), texts, look


State = Literal["called", "waiting", "needed"]

_UNANSWERED: dict[str, State] = {"approval": "waiting", "manual_tool_calls": "needed"}


def _session(session: Session, usage: Usage) -> Drawing:
    error = session.metadata.get("error") if session.status == "error" else None
    names = ", ".join(call.name for call in session.pending_tool_calls[:MANY])
    look, words = ending(session.status)
    texts = [words, f"waits for {names}" if names else "", *usage_texts(usage), session.id or ""]
    texts += [f"next: {', '.join(session.legal)}"] if session.legal else []
    return thread_html(session.thread) + _error(error), texts, look


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
    return body, [response.model or "", count(len(response.images), "image"), *usage_texts(usage)], "value"


def _steps(steps: Sequence[StepResult[Any]]) -> str:
    names = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "total_cost")
    lines: list[Sequence[Any]] = []
    for number, step in enumerate(steps, 1):
        calls = ", ".join(call.name for call in step.response.tool_calls) or None
        lines.append((number, step.response.finish_reason, calls, *(getattr(step.usage, name) for name in names)))
    head = ("step", "finish_reason", "tool_calls", *names)
    return fold(count(len(steps), "step"), _table(head, lines)) if len(steps) > 1 else ""


def _tool(tool: Tool) -> Drawing:
    properties = cast(Mapping[str, Any], tool.schema.get("properties") or {})
    lines: list[Sequence[Any]] = []
    for name, entry in properties.items():
        spec: dict[str, Any] = {**entry} if isinstance(entry, Mapping) else {}
        about, default = spec.pop("description", None), spec.pop("default", None)
        needed = "required" if name in (tool.schema.get("required") or ()) else default
        lines.append((name, _type(spec), needed, about))
    table = _table(("argument", "type", "default", "description"), lines) if lines else ""
    body = f"<b>{isolate(clip(tool.name))}</b>{part_html(TextPart(tool.description), 'user')}{table}"
    return body, ["run by the caller" if tool.manual else "", "needs approval" if tool.approval else ""], "value"


def _type(spec: Mapping[str, Any]) -> str:
    if set(spec) <= {"type", "anyOf", "title"} and all(set(other) == {"type"} for other in spec.get("anyOf", ())):
        return " | ".join(str(other.get("type", "any")) for other in spec.get("anyOf", [spec]))
    return json.dumps(spec, default=str, ensure_ascii=False)


def _table(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return the HTML of a table, leaving out its empty columns."""
    columns = [index for index in range(len(head)) if any(line[index] is not None for line in lines)]
    titles = "".join(f"<th>{head[index]}</th>" for index in columns)
    body = "".join(f"<tr>{''.join(_cell(line[index]) for index in columns)}</tr>" for line in lines[:MANY])
    more = row_html(Note(f"{len(lines) - MANY:,} more")) if len(lines) > MANY else ""
    return f'<div class="rxllm-table"><table><tr>{titles}</tr>{body}</table></div>{more}'


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="rxllm-number">{value:{"," if isinstance(value, int) else ".6g"}}</td>'
    return f"<td>{isolate(clip('' if value is None else str(value)))}</td>"


def thread_html(thread: Thread, unanswered: State = "called") -> str:
    """Return the HTML of a thread. `unanswered` is the state shown for calls that have no answer."""
    exchanges: list[tuple[int, Message, list[Message]]] = []  # (index, message, answers to its tool calls)
    for index, message in enumerate(thread):
        if message.role == "tool" and exchanges:
            exchanges[-1][2].append(message)
        else:
            exchanges.append((index, message, []))
    drawn: list[str] = []
    for _, message, answers in reversed(exchanges[1:]):
        if len(drawn) == OPEN + FOLDED or sum(map(len, drawn)) > ROOM:
            break
        drawn.append(message_html(message, answers, unanswered))
    drawn.reverse()
    starts = [start for start, _, _ in exchanges] + [len(thread)]
    # The first exchange and ``exchanges[last:]`` are shown, and ``exchanges[left:last]`` are folded. The rest are only
    # counted.
    left, last = len(exchanges) - len(drawn), len(exchanges) - min(OPEN, len(drawn))
    earlier = "".join(drawn[:-OPEN])
    if left > 1:
        more = f"{starts[left] - starts[1]:,} more messages: thread[{starts[1]}:{starts[left]}]"
        earlier = row_html(Note(more)) + earlier
    between = fold(count(starts[last] - starts[1], "message"), earlier) if earlier else ""
    first = "".join(message_html(message, answers, unanswered) for _, message, answers in exchanges[:1])
    return first + between + "".join(drawn[-OPEN:])


def message_html(message: Message, answers: Iterable[Message] = (), unanswered: State = "called") -> str:
    """Return the HTML of a message and the `answers` to its tool calls."""
    name = clip(f"{message.role} {message.name or ''}".strip())
    body = "".join(message_rows(message, answers, unanswered))
    if message.role == "system" and len(message.text) > 600:
        return fold(name, f"<section>{body}</section>")
    return f'<section><div class="rxllm-role">{isolate(name)}</div>{body}</section>'


def message_rows(message: Message, answers: Iterable[Message], unanswered: State = "called") -> Iterator[str]:
    """Yield the HTML of each part of a message. A tool call's row also shows its answer."""
    by_id = {answer.tool_call_id: answer for answer in answers}
    calls = {call.id for call in message.tool_calls}

    def row(call: ToolCall) -> ToolRow:
        answer = by_id.get(call.id)
        return ToolRow(call, "done" if answer else unanswered, result=content_of(answer) if answer else None)

    is_mapping = isinstance(message.content, dict)
    found = [TextPart(content_of(message))] if is_mapping else [*rows_of(message, row)]
    yield from (part_html(entry, message.role) for entry in found[:MANY])
    if len(found) > MANY:
        yield row_html(Note(f"{len(found) - MANY:,} more parts"))
    for answer in islice(by_id.values(), MANY):
        if answer.tool_call_id not in calls:
            yield message_html(answer)
        else:  # the call's row already has the text
            yield from (part_html(part, "tool") for part in answer.parts if isinstance(part, ImagePart | FilePart))


def part_html(row: Row, role: str) -> str:
    match row:
        case TextPart(text=text) if role == "tool":
            return block("result", clip(text))
        case TextPart(text=text) if role != "assistant":  # only the model's text is Markdown
            return f'<div class="rxllm-plain" dir="auto">{escape(cut(text))}</div>'
        case TextPart(text=text):
            return row_html(TextPart(cut(text)))
        case ThinkingPart(text=text):
            return row_html(ThinkingPart(cut(text)))
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
    except (ValidationError, OSError):  # the image is remote or cannot be read
        return {"name": clip(repr(image)), "url": cut(str(image.data))}


def cut(text: str) -> str:
    """Return `text`, cut off after `LONG` characters."""
    return text if len(text) <= LONG else f"{text[:LONG]}\n\n… {len(text) - LONG:,} more characters"


def clip(text: str) -> str:
    """Truncate secondary text, such as a name."""
    return truncate(text, SHOWN)


def _cut_all(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: clip(entry) if isinstance(entry, str) else entry for name, entry in data.items()}


def fold(title: str, body: str) -> str:
    """Return the HTML of `body`, collapsed below a title that expands it."""
    return f'<details class="rxllm-folded"><summary>{isolate(clip(title))}</summary>{body}</details>'

"""Draw messages: threads, of which long ones are folded, and the parts of a message in the hand of the cards.

Everything is bounded, so that a long thread or a huge answer leaves the notebook usable: of many messages the first
and the last are shown, those before the last folded, and the rest only counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal

from rxllm.display._card import Note, Row, ToolRow, clipped, content_of, rows_of
from rxllm.display._html import SHOWN, isolated, row_html
from rxllm.display._markdown import escape
from rxllm.values import (
    FilePart,
    Image,
    ImagePart,
    Message,
    SourcePart,
    TextPart,
    ThinkingPart,
    Thread,
    ToolCall,
    ValidationError,
)

OPEN, FOLDED = 8, 100  # how many of the last messages are open, and how many before them can be unfolded
ROOM = 300_000  # how much HTML there is before no older message is drawn
LONG = 50_000  # how many characters of one text are shown
MANY = 200  # how many parts of a message, images, and rows of a table

State = Literal["called", "waiting"]


def thread_html(thread: Thread, unanswered: State = "called") -> str:
    """Return the HTML of a thread; `unanswered` is how its tool calls without an answer look."""
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
        drawn.append(message_html(message, answers, unanswered))
    drawn.reverse()
    starts = [start for start, _, _ in exchanges] + [len(thread)]
    left, last = len(exchanges) - len(drawn), len(exchanges) - min(OPEN, len(drawn))  # the first drawn, the first open
    earlier = "".join(drawn[:-OPEN])
    if left > 1:
        more = f"{starts[left] - starts[1]:,} more messages: thread[{starts[1]}:{starts[left]}]"
        earlier = row_html(Note(more)) + earlier
    between = folded(count(starts[last] - starts[1], "message"), earlier) if earlier else ""
    first = "".join(message_html(message, answers, unanswered) for _, message, answers in exchanges[:1])
    return first + between + "".join(drawn[-OPEN:])


def message_html(message: Message, answers: Iterable[Message] = (), unanswered: State = "called") -> str:
    """Return the HTML of a message with its role, and of the tools' `answers` behind it."""
    name = clip(f"{message.role} {message.name or ''}".strip())
    body = "".join(message_rows(message, answers, unanswered))
    if message.role == "system" and len(message.text) > 600:
        return folded(name, f"<section>{body}</section>")
    return f'<section><div class="rxllm-role">{isolated(name)}</div>{body}</section>'


def message_rows(message: Message, answers: Iterable[Message], unanswered: State = "called") -> Iterator[str]:
    """Yield the HTML of the parts of a message, with the answers in the rows of their calls."""
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
        else:  # its text is in the row of the call
            yield from (part_html(part, "tool") for part in answer.parts if isinstance(part, ImagePart | FilePart))


def part_html(row: Row, role: str) -> str:
    """Return the HTML of a part of a message by `role`."""
    match row:
        case TextPart(text=text) if role == "tool":
            return f'<pre dir="auto">{escape(clip(text))}</pre>'
        case TextPart(text=text) if role != "assistant":  # people's texts are shown as they wrote them
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
    except (ValidationError, OSError):  # it is elsewhere, or cannot be read
        return {"name": clip(repr(image)), "url": cut(str(image.data))}


def cut(text: str) -> str:
    """Return the beginning of a long text, and how long it is."""
    return text if len(text) <= LONG else f"{text[:LONG]}\n\n… {len(text) - LONG:,} more characters"


def clip(text: str) -> str:
    """Return the beginning of what is not a message's own text."""
    return clipped(text, SHOWN)


def _cut_all(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: clip(entry) if isinstance(entry, str) else entry for name, entry in data.items()}


def folded(title: str, body: str) -> str:
    """Return `body` behind its title, to be unfolded."""
    return f'<details class="rxllm-folded"><summary>{isolated(clip(title))}</summary>{body}</details>'


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "step"), count(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

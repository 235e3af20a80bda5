"""A conversation as one text, for a model that is to read it and not to continue it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rxllm.values import FilePart, ImagePart, Message, Part, TextPart
from rxllm.values.json_text import json_text


def transcript(before: str, messages: Sequence[Message]) -> str:
    """Return what `messages` say, behind the summary of what was `before`, if there is one.

    >>> from rxllm.values import assistant, user
    >>> print(transcript("The user likes foxes.", [user("A name for one?"), assistant("Rex.")]))
    summary of what came before: The user likes foxes.
    <BLANKLINE>
    user: A name for one?
    <BLANKLINE>
    assistant: Rex.

    Thinking is left out; of images and files there is only the name or the type.
    """
    head = [f"summary of what came before: {before}"] if before else []
    return "\n\n".join((*head, *_lines(messages)))


def _lines(messages: Iterable[Message]) -> Iterator[str]:
    names: dict[str | None, str] = {}
    for message in messages:
        text = _text(message)
        if message.role == "tool":
            yield f"result of {names.get(message.tool_call_id, 'a tool')}: {text}"
        elif text:
            yield f"{message.role}: {text}"
        for call in message.tool_calls:
            names[call.id] = call.name
            yield f"{message.role} calls {call.name}({call.raw_arguments or json_text(call.arguments)})"


def _text(message: Message) -> str:
    if isinstance(message.content, dict):
        return json_text(message.content)
    return "".join(map(_shown, message.parts)).strip()


def _shown(part: Part) -> str:
    match part:
        case TextPart(text=text):
            return text
        case ImagePart():
            return " [image] "
        case FilePart(file=file):
            return f" [file {file.get('name') or file.get('mime_type') or 'without a name'}] "
        case _:
            return ""

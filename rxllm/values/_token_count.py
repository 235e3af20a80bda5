"""Counts of the tokens in a request, and the estimate that needs no tokenizer."""

from __future__ import annotations

from typing import Any

from rxllm.values._encode import Value, value
from rxllm.values._json import json_bytes
from rxllm.values._message import FilePart, ImagePart, Message, Part, SourcePart, TextPart, ThinkingPart, ToolCallPart
from rxllm.values._request import Request

BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
"""What a message costs besides its content: its role, and the marks around it."""

FILE_TOKENS = 1000
"""What an image or a file counts that is not text; providers take about 250 to 1,600 for an image."""

LOW_DETAIL_TOKENS = 100


@value
class TokenCount(Value):
    """How many tokens a request has. `estimated` is False if the provider has counted them."""

    tokens: int
    estimated: bool = False


def estimated_tokens(request: Request) -> int:
    """Return about how many tokens `request` has: its messages, its tools and its format.

    >>> estimated_tokens(Request((Message("user", "Name three primes."),)))
    9

    Four bytes of UTF-8 are a token, so four letters of English, or three tokens for four characters of Chinese. A
    message has 4 tokens more, an image or a file that is not text 1,000, an image of ``detail="low"`` 100.
    """
    tools = [{"name": tool.name, "description": tool.description, "schema": tool.schema} for tool in request.tools]
    form = request.response_format if isinstance(request.response_format, dict) else None
    extra = sum(_tokens(len(json_bytes(data))) for data in (*tools, form) if data is not None)
    return extra + sum(map(message_tokens, request.messages))


def message_tokens(message: Message) -> int:
    """Return about how many tokens `message` has, as `estimated_tokens` counts them.

    >>> message_tokens(Message("assistant", "2, 3, 5."))
    6
    """
    content = message.content
    size = len(json_bytes(content)) if isinstance(content, dict) else 0
    for call in message.tool_calls:
        size += len(call.name) + len((call.raw_arguments or "").encode(errors="replace") or json_bytes(call.arguments))
    parts = message.parts
    size += sum(map(_size, parts))
    return MESSAGE_TOKENS + _tokens(size) + sum(map(_tokens_of_file, parts))


def _size(part: Part) -> int:
    match part:
        case TextPart(text=text) | ThinkingPart(text=text):
            return len(text.encode(errors="replace"))
        case FilePart(file={"data": bytes(data)}) if _is_text(part):
            return len(data)
        case SourcePart(source=data):
            return len(json_bytes(data))
        case ToolCallPart() | ImagePart() | FilePart():
            return 0
        case _:
            return len(json_bytes(part.data))


def _tokens_of_file(part: Part) -> int:
    if isinstance(part, ImagePart):
        return LOW_DETAIL_TOKENS if part.detail == "low" else FILE_TOKENS
    return FILE_TOKENS if isinstance(part, FilePart) and not _is_text(part) else 0


def _is_text(part: FilePart) -> bool:
    file: dict[str, Any] = part.file
    kind = str(file.get("mime_type"))
    return isinstance(file.get("data"), bytes) and (kind.startswith("text/") or "json" in kind or "xml" in kind)


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)

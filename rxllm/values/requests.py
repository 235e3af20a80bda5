"""Requests, call settings and token counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rxllm.values.base import Value, value
from rxllm.values.function_tools import as_tool
from rxllm.values.json_text import json_bytes, python_number
from rxllm.values.messages import FilePart, ImagePart, Message, Part, SourcePart, TextPart, ThinkingPart, ToolCallPart
from rxllm.values.tools import Tool
from rxllm.values.usage import Usage

ApiKey = str | Callable[[], str | Awaitable[str]]
"""An API key, or a function that returns one. The function is called for every attempt to send a request."""

_NUMBERS = ("temperature", "max_tokens", "seed", "top_p")


@value
class Request(Value):
    """A request to any provider's model.

    * `tools`: functions become tools, as with ``rxllm.tool``.
    * `tool_choice`: ``"auto"``, ``"none"``, ``"required"`` or a tool's name.
    * `temperature`: from 0 to 2.
    * `top_p`: above 0, at most 1.
    * `max_tokens`: the maximum length of the answer.
    * `stop`: a string counts as one stop sequence.
    * `response_format`: a type, ``"text"``, ``{"type": "json_object"}`` or the result of `json_schema`.
    * `options`: merged into the provider's request body unchanged.
    """

    messages: tuple[Message, ...] = ()
    model: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str | dict[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    reasoning_effort: str | None = None
    response_format: str | dict[str, Any] | None = None
    structured_finalize: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    top_p: float | None = None  # last, because programs may pass fields by position

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        super().__post_init__()
        for name in _NUMBERS:
            if (number := getattr(self, name)) is not None:
                object.__setattr__(self, name, python_number(number))
        if isinstance(self.tools, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            # `rxllm.validate` rejects anything that is not a tool.
            object.__setattr__(self, "tools", tuple(as_tool(t) if callable(t) else t for t in self.tools))


def json_schema(name: str, schema: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Return a `response_format` for JSON that matches `schema`.

    >>> json_schema("city", {"type": "object"})["strict"]
    True
    """
    return {"type": "json_schema", "name": name, "schema": schema, "strict": strict}


@dataclass(frozen=True)
class Call:
    """The settings that an adapter receives with a request.

    They are never stored, and they are not part of the `Request`.

    * `api_key`: the key, or a function that returns it. HTTP adapters call the function before they send the request.
    * `headers`: added to the HTTP request.
    * `raw`: whether to also emit ``RawChunk`` events.
    * `timeout`: the maximum time between two reads, in seconds.
    * `observers`: the functions that receive telemetry.
    * `trace_headers`: a `Tracer`'s headers for this attempt. All other headers override these.
    * `retry`: the retry policy, which also applies when the adapter reconnects. After a reconnection, the adapter
      calls ``on_reattached(seconds, error)``.
    * `on_secrets`: called with the secrets of each HTTP request, such as the key that a function has returned.
    * `on_lost`: called with an error if an earlier process's answer has been lost. The request is then sent again.
    * `on_retry`: called with an error before the adapter itself sends a changed request, because the server refused
      part of the first one.

    The repr omits the API key and all headers.
    """

    request_id: str = ""
    api_key: ApiKey | None = field(default=None, repr=False)
    timeout: float | None = None
    raw: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    observers: tuple[Callable[[Any], object], ...] = ()
    trace_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    retry: Any = None
    on_reattached: Callable[[float, Exception], object] | None = field(default=None, repr=False)
    on_lost: Callable[[Exception], object] | None = field(default=None, repr=False)
    on_secrets: Callable[[list[str]], object] | None = field(default=None, repr=False)
    on_retry: Callable[[Exception], object] | None = field(default=None, repr=False)


BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
"""The estimated number of tokens for a message's role and delimiters."""

FILE_TOKENS = 1000
"""The estimated number of tokens for an image or a binary file. Providers count 250 to 1,600 tokens for an image."""

LOW_DETAIL_TOKENS = 100


@value
class TokenCount(Value):
    """The number of tokens in a request.

    `estimated` is False if the provider counted the tokens.
    """

    tokens: int
    estimated: bool = False


def estimated_tokens(request: Request) -> int:
    """Estimate the number of tokens in a request's messages, tools and response format.

    >>> estimated_tokens(Request((Message("user", "Name three primes."),)))
    9

    Four bytes of UTF-8 count as one token. So four English letters are one token, and four Chinese characters are
    three. Each message adds 4 tokens. An image or binary file counts as 1,000. An image with ``detail="low"`` counts as
    100.
    """
    tools = [{"name": tool.name, "description": tool.description, "schema": tool.schema} for tool in request.tools]
    form = request.response_format if isinstance(request.response_format, dict) else None
    extra = sum(_tokens(len(json_bytes(data))) for data in (*tools, form) if data is not None)
    return extra + sum(map(message_tokens, request.messages))


CHARACTERS_PER_TOKEN = 4
"""The number of characters of an answer that are estimated as one token."""


def estimated_usage(request: Request, answer: str) -> Usage:
    """Estimate the usage of a call whose provider reported none: `answer` is the text that has arrived so far.

    >>> estimated_usage(Request((Message("user", "Name three primes."),)), "2, 3")
    Usage(input_tokens=9, output_tokens=1)
    """
    return Usage(estimated_tokens(request), -(-len(answer) // CHARACTERS_PER_TOKEN))


def message_tokens(message: Message) -> int:
    """Estimate the number of tokens in a message; see `estimated_tokens`.

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

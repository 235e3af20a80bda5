"""A request to a model, and the call that carries it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rxllm.values._encode import Value, value
from rxllm.values._function_tool import as_tool
from rxllm.values._json import python_number
from rxllm.values._message import Message
from rxllm.values._tool import Tool

ApiKey = str | Callable[[], str | Awaitable[str]]
"""A key, or a function that returns one for each attempt at a call: a token that expires. It may be async."""

_NUMBERS = ("temperature", "max_tokens", "seed", "top_p")


@value
class Request(Value):
    """One request to a model, the same for every provider.

    Functions in `tools` become tools, as ``rxllm.tool`` makes them. `tool_choice` is ``"auto"``, ``"none"``,
    ``"required"`` or a tool's name; `temperature` is 0 to 2, `top_p` above 0 to 1; `max_tokens` limits the answer; a
    text as `stop` is one stop word; `response_format` is ``"text"``, ``{"type": "json_object"}`` or the result of
    `json_schema`; `options` is merged into the provider's request body unchanged.
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
    top_p: float | None = None  # last, so that requests written by position stay what they are

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        super().__post_init__()
        for name in _NUMBERS:
            if (number := getattr(self, name)) is not None:
                object.__setattr__(self, name, python_number(number))
        if isinstance(self.tools, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            # What is neither a tool nor a function is left to `rxllm.validate`.
            object.__setattr__(self, "tools", tuple(as_tool(t) if callable(t) else t for t in self.tools))


def json_schema(name: str, schema: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Return a `response_format` that asks for JSON that fits `schema`.

    >>> json_schema("city", {"type": "object"})["strict"]
    True
    """
    return {"type": "json_schema", "name": name, "schema": schema, "strict": strict}


@dataclass(frozen=True)
class Call:
    """What an adapter may know of a call besides the request; it is never stored or sent.

    `api_key` is a string by the time that an adapter over HTTP builds its request, to which it adds `headers`; `raw`
    asks the adapter for ``RawChunk`` events; `timeout` is the longest silence between two reads, in seconds;
    `observers` receive telemetry values. `trace_headers` are a `Tracer`'s for this attempt; those of the adapter and
    the call win over them. The repr leaves out the key and the headers.
    """

    request_id: str = ""
    api_key: ApiKey | None = field(default=None, repr=False)
    timeout: float | None = None
    raw: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    observers: tuple[Callable[[Any], object], ...] = ()
    trace_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

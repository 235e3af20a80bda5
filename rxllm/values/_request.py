"""What is asked of a model."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from rxllm.values._message import Message
from rxllm.values._tool import Tool
from rxllm.values._value import Value, value


@value
class Request(Value):
    """One question to a model, in no provider's terms.

    `tool_choice` is ``"auto"``, ``"none"``, ``"required"`` or a tool's name; `temperature` 0 to 2; `max_tokens` bounds
    the answer, in tokens; `response_format` is ``"text"``, ``{"type": "json_object"}`` or what `json_schema` makes;
    `options` is merged into the provider's own request body as it is.
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


def json_schema(name: str, schema: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """A `response_format` that asks for JSON of this schema.

    >>> json_schema("city", {"type": "object"})["strict"]
    True
    """
    return {"type": "json_schema", "name": name, "schema": schema, "strict": strict}

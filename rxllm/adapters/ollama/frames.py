"""The lines of Ollama's responses as types, with the fields that are read."""

from __future__ import annotations

from typing import Any

import msgspec

PROVIDER = "ollama"
OWN = {"provider": PROVIDER}
"""The `provider_data` of its thinking: nothing is signed, but only its own thinking goes back."""


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: dict[str, Any] | str | None = None


class ToolCallEntry(msgspec.Struct, gc=False):
    id: str | None = None
    function: Function | None = None


class MessageDelta(msgspec.Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCallEntry] | None = None


class Line(msgspec.Struct, gc=False):
    message: MessageDelta | None = None
    response: str | None = None  # this and the next of /api/generate
    thinking: str | None = None
    logprobs: Any = None
    done: bool | None = None
    error: Any = None


class FirstLine(Line, gc=False):
    """A line with the model, read until that is known."""

    model: str | None = None

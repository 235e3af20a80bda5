"""What the model asks for."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from rxllm.values._value import Value, value


@value
class ToolCall(Value):
    """A call that the model makes.

    `arguments` is the parsed object and `raw_arguments` the text it came from. Text that is no JSON object is kept:
    `arguments` is then empty and ``metadata["error"]`` says why. ``metadata["server"]`` marks a call that the provider
    runs itself; such calls are shown, never executed.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    raw_arguments: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={held!r}" for name, held in self.arguments.items())
        return f"{self.name}({given})" if not self.metadata.get("error") else f"{self.name}({self.raw_arguments!r})"

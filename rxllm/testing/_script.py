"""What a service is told to answer, and what it has seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rxllm.values import FinishReason, LLMError, ToolCall, Usage

if TYPE_CHECKING:
    from rxllm.testing.loopback import Request

REQUEST_ID = "req-conformance"
"""The provider's own name of a call that it refuses."""


@dataclass(frozen=True)
class Script:
    """How a service answers a call: `thinking` and `texts`, a piece each, then `calls`, `usage`, and the end.

    `finish_reason` is why it ends: by itself ``"tool_calls"`` with calls and ``"stop"`` without. Instead of a proper
    end there may be an `error`, of the reason that the adapter is to give it; without texts and calls it refuses the
    call before it streams. A service that `stalls` says nothing more, for ever.
    """

    texts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    error: LLMError | None = None
    stalls: bool = False
    thinking: tuple[str, ...] = ()
    usage: Usage | None = None
    finish_reason: FinishReason = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        if not self.finish_reason:
            object.__setattr__(self, "finish_reason", "tool_calls" if self.calls else "stop")

    @property
    def refuses(self) -> bool:
        """Whether it fails before it has said anything."""
        return self.error is not None and not self.texts and not self.calls


@dataclass(frozen=True)
class Served:
    """An adapter, and what its service has seen: how many calls were `asked`, and how many were `left` by the asker.

    `requests` are those of a service over HTTP, as ``Loopback.requests`` has them; without them the cases of what is
    sent are skipped.
    """

    adapter: Any
    asked: Callable[[], int]
    left: Callable[[], int] = lambda: 0
    requests: Callable[[], Sequence[Request]] | None = None

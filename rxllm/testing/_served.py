"""What a service is told to answer, and what it has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rxllm.values import LLMError, ToolCall

REQUEST_ID = "req-conformance"
"""The provider's own name of a call that it refuses."""


@dataclass(frozen=True)
class Script:
    """How a service answers a call: `texts`, a piece each, then `calls`, then the end.

    Instead of a proper end there may be an `error`, of the reason that the adapter is to give it; without texts and
    calls it refuses the call before it streams. A service that `stalls` says nothing more, for ever.
    """

    texts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    error: LLMError | None = None
    stalls: bool = False

    @property
    def refuses(self) -> bool:
        """Whether it fails before it has said anything."""
        return self.error is not None and not self.texts and not self.calls


@dataclass(frozen=True)
class Served:
    """An adapter, and what its service has seen: how many calls were `asked`, and how many were `left` by the asker."""

    adapter: Any
    asked: Callable[[], int]
    left: Callable[[], int] = lambda: 0

"""What a service is told to answer, and what it has seen: what the suites of tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rxllm.values import FinishReason, LLMError, Tool, ToolCall, Usage

if TYPE_CHECKING:
    from rxllm.testing.loopback import Request

REQUEST_ID = "req-conformance"
"""The provider's own name of a call that it refuses."""

TEXTS = ("Two, ", "three ", "and five.")
CALLS = (ToolCall("call_a", "f", {"x": 1}), ToolCall("call_b", "f", {"x": 2}))
TOOL = Tool("f", "A tool.", {"type": "object", "properties": {"x": {"type": "integer"}}})
THOUGHTS = ("Let me ", "see.")
USAGE = Usage(11, 7)


@dataclass(frozen=True)
class Script:
    """How a service answers a call: `thinking` and `texts`, a piece each, then `calls`, `usage`, and the end.

    `finish_reason` says why it ends; the default is ``"tool_calls"`` with calls and ``"stop"`` without. Instead of a
    proper end there may be an `error`, with the reason that the adapter is to report; without texts and calls, the
    service refuses the call before it streams. A service that `stalls` sends nothing more, for ever.
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
        """Whether it fails before it has sent anything."""
        return self.error is not None and not self.texts and not self.calls


@dataclass(frozen=True)
class Served:
    """An adapter, and what its service has seen: how many calls were `asked`, and how many of them were `left`.

    `requests` are those of a service over HTTP, as ``Loopback.requests`` has them; without them the cases of what is
    sent are skipped.
    """

    adapter: Any
    asked: Callable[[], int]
    left: Callable[[], int] = lambda: 0
    requests: Callable[[], Sequence[Request]] | None = None


def missing(suite: object, hook: str) -> NoReturn:
    """Raise ``NotImplementedError``, which names the hook that the suite's author has yet to write."""
    raise NotImplementedError(f"{type(suite).__name__} has no {hook}(); its docstring in the base says what it returns")

"""What travels beside a request, and is in no value that is stored or sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rxllm.values._tool_call import ToolCall


@dataclass(frozen=True)
class Call:
    """What an adapter may know of the call besides the request.

    `raw` asks it for ``RawChunk`` events; `timeout` is in seconds, the longest silence between two reads; `observers`
    receive telemetry values. The key is never shown.
    """

    request_id: str = ""
    api_key: str | None = field(default=None, repr=False)
    timeout: float | None = None
    raw: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    observers: tuple[Callable[[Any], object], ...] = ()


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of its call; given to every parameter annotated with this class.

    `progress` sends a ``ToolProgress`` event at once. `cancelled` is set when nobody waits for the result any more.
    """

    tool_call: ToolCall
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session_id: str | None = None
    request_id: str | None = None
    engine: Any = None
    progress: Callable[[Any], None] = lambda data: None
    cancelled: threading.Event = field(default_factory=threading.Event)

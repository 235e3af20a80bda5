"""The operators, for ``.pipe(...)``: ``from rxllm import operators as ops``.

``to_x()`` emits exactly one item, a bare noun emits many. reactivex's own operators are methods of every stream.
"""

from rxllm.operators._continue_with import continue_with
from rxllm.operators._errors_as_events import errors_as_events
from rxllm.operators._filter_deltas import filter_deltas
from rxllm.operators._include_raw_chunks import include_raw_chunks
from rxllm.operators._lift import lift
from rxllm.operators._only import only
from rxllm.operators._raise_errors import raise_errors
from rxllm.operators._run_tools import run_tools
from rxllm.operators._scan_collect import scan_collect
from rxllm.operators._tap import tap
from rxllm.operators._text import text
from rxllm.operators._thinking import thinking
from rxllm.operators._to_chat_result import to_chat_result
from rxllm.operators._to_response import to_response
from rxllm.operators._to_session import to_session
from rxllm.operators._to_step_result import to_step_result
from rxllm.operators._to_text import to_text
from rxllm.operators._tool_calls import tool_calls
from rxllm.operators._usage import usage

__all__ = [
    "continue_with",
    "errors_as_events",
    "filter_deltas",
    "include_raw_chunks",
    "lift",
    "only",
    "raise_errors",
    "run_tools",
    "scan_collect",
    "tap",
    "text",
    "thinking",
    "to_chat_result",
    "to_response",
    "to_session",
    "to_step_result",
    "to_text",
    "tool_calls",
    "usage",
]

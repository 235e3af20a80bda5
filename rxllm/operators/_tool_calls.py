"""Emit the tool calls of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reactivex import Observable

from rxllm.collector import is_incomplete, is_server
from rxllm.events import Event, ToolCallCompleted
from rxllm.operators._shared.event_operators import extract
from rxllm.runtime import Stream
from rxllm.values import ToolCall


def tool_calls() -> Callable[[Observable[Event]], Stream[ToolCall]]:
    """Emit the completed tool calls that the client has to answer. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source           --start--c1--{..}--c1.done--end--|
        tool_calls()     -------------------c1------------|

    >>> from rxllm import Fake, ToolCall, stream_generate
    >>> list(stream_generate(Fake(ToolCall("c1", "add", {"a": 1})), "Hi").pipe(tool_calls()))
    [add(a=1)]

    Those of agents, which answer them themselves, are not among them.
    """
    return extract("tool_calls", lambda: _call, ToolCallCompleted)


def _call(event: Event) -> Iterable[ToolCall]:
    if not isinstance(event, ToolCallCompleted):
        return ()
    call = event.tool_call
    return () if is_server(call) or is_incomplete(call) else (call,)

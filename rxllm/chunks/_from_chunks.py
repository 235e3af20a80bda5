"""Chunks as events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from reactivex import Observable

from rxllm.chunks._chunk import StreamChunk
from rxllm.chunks._events import events_of
from rxllm.chunks._feed import ChunkFeeder
from rxllm.events import Event
from rxllm.runtime import Stream
from rxllm.values import Message


def from_chunks(
    messages: Iterable[Message] = (),
) -> Callable[[Observable[StreamChunk | Mapping[str, Any]]], Stream[Event]]:
    """Turn one response's `StreamChunk`s, or plain mappings of their fields, into the events that every adapter emits.

    ::

        source             --text--call--fragment--meta--|
        from_chunks()      --(ab)--(cd)--e---------u-----(fg|)

    a: ``MessageStarted``, b: ``TextDelta``, c: ``TextCompleted``, d: ``ToolCallStarted``, e: ``ToolCallDelta``,
    u: ``UsageUpdated``, f: ``ToolCallCompleted``, g: one ``MessageCompleted``, however many meta chunks there are.

    >>> from reactivex import of
    >>> from rxllm import chunks, operators as ops
    >>> call = chunks.tool_call("add", metadata={"id": "c1", "start": True})
    >>> rest = chunks.meta({"tool_call_args": {"index": 0, "fragment": '{"a": 1}'}, "finish_reason": "tool_use"})
    >>> of(chunks.text("I will."), call, rest).pipe(from_chunks(), ops.to_response()).run()
    Response('I will.', calls=[add(a=1)], tool_calls, 0 tokens)

    `messages` are those that are answered: calls without an id then get one that is unique in the thread. A failing
    source is an ``ErrorEvent`` once everything open is closed, and so is a meta chunk with an ``error``, which ends the
    stream; an ``LLMError`` before the first chunk goes to ``on_error``. A source that just completes has meant
    ``stop``. Calls whose arguments are no JSON object, or were announced and never came, have ``metadata["error"]``.
    Chunks of unknown types, and keys of unknown meaning, are ``RawChunk``s.
    """
    answered = tuple(messages)
    return events_of(lambda: ChunkFeeder(answered))

"""Any event, and the sequences of events that adapters may emit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import strategies as st

from rxllm import events as ev
from rxllm import values as va
from rxllm.collector import fold_message, is_server
from rxllm.testing.strategies._values import (
    chat_results,
    errors,
    finish_reasons,
    free,
    ids,
    maps,
    messages,
    step_results,
    texts,
    usages,
)

_event_fields: dict[str, st.SearchStrategy[Any]] = {
    "id": ids,
    "message": messages,
    "finish_reason": finish_reasons,
    "raw_finish_reason": st.none() | texts,
    "usage": usages,
    "error": errors,
    "result": free,
    "data": free,
    "attempt": st.integers(1, 9),
    "content": texts,
}


def _event(cls: type[ev.Event]) -> st.SearchStrategy[Any]:
    given: dict[str, st.SearchStrategy[Any]] = {}
    for spec in msgspec.structs.fields(cls):
        mapping = "Mapping" in str(spec.type)
        given[spec.name] = maps if mapping else _event_fields.get(spec.name, texts)
    special: dict[type[ev.Event], dict[str, st.SearchStrategy[Any]]] = {
        ev.StepCompleted: {"result": step_results},
        ev.ChatCompleted: {"result": chat_results},
        # A raw usage with other names raises, as it should; the one test of that makes its own.
        ev.RawChunk: {"kind": texts.filter(lambda kind: kind != "usage")},
    }
    return st.builds(cls, **{**given, **special.get(cls, {})})


events = st.one_of([_event(cls) for cls in ev.EVENT_CLASSES]) | st.builds(
    ev.RawChunk, st.just("usage"), st.fixed_dictionaries({}, optional={"input_tokens": st.integers(0, 99)})
)
"""Any event at all."""

event_lists = st.lists(events, max_size=8)
"""Any events in any order: what no adapter emits, and a fold must bear."""


@st.composite
def _block(draw: st.DrawFn, kind: str, block: str | None) -> list[ev.Event]:
    pieces = draw(st.lists(texts, max_size=3))
    text = "".join(pieces)
    if kind == "text":
        return [*(ev.TextDelta(piece, block) for piece in pieces), ev.TextCompleted(text, block)]
    completed = ev.ThinkingCompleted(text, draw(st.none() | texts), draw(st.none() | maps), block)
    return [*(ev.ThinkingDelta(piece, block) for piece in pieces), completed]


@st.composite
def _call(draw: st.DrawFn, call: str) -> list[ev.Event]:
    name = draw(st.sampled_from(["add", "get_weather"]))
    arguments = draw(st.dictionaries(texts, st.integers() | texts, max_size=2))
    raw = msgspec.json.encode(arguments).decode()
    cut = draw(st.integers(0, len(raw)))
    metadata = draw(st.sampled_from([{}, {}, {"server": True}, {"error": "incomplete"}]))
    return [
        ev.ToolCallStarted(call, name, metadata if "server" in metadata else {}),
        ev.ToolCallDelta(call, raw[:cut]),
        ev.ToolCallDelta(call, raw[cut:]),
        ev.ToolCallCompleted(call, name, arguments, raw, metadata),
    ]


@st.composite
def _lawful(draw: st.DrawFn) -> list[ev.Event]:
    body: list[ev.Event] = []
    for i in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "thinking", "call", "source", "usage"]))
        match kind:
            case "call":
                body += draw(_call(f"call_{i}"))
            case "source":
                body.append(ev.SourceAdded(draw(maps)))
            case "usage":
                body.append(ev.UsageUpdated(replace(draw(usages), total_tokens=i)))  # said once per change
            case _:
                body += draw(_block(kind, draw(st.sampled_from([None, str(i)]))))
    started = ev.MessageStarted(va.Message("assistant", metadata={"id": "r", "model": "m"}))
    message = fold_message([started, *body])
    waits = any(not is_server(call) for call in message.tool_calls)
    waiting: st.SearchStrategy[va.FinishReason | None] = st.sampled_from(["tool_calls", "length", "content_filter"])
    reasons = waiting if waits else finish_reasons
    completed = ev.MessageCompleted(message, draw(reasons.filter(lambda reason: reason != "error")))
    return [started, *body, draw(st.sampled_from([completed, ev.ErrorEvent(va.StreamError("truncated"))]))]


lawful_events = _lawful()
"""One response as every adapter emits it: bookends, closed blocks, calls with deltas, one end."""

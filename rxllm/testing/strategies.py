"""Hypothesis strategies for values, errors and events.

>>> from hypothesis import given
>>> from rxllm.testing import strategies
>>> @given(strategies.lawful_events)
... def test_it_begins_with_its_start(events):
...     assert type(events[0]).__name__ == "MessageStarted"
>>> test_it_begins_with_its_start()

=================================================================  ================================================
`lawful_events`                                                    the events of a valid response
`lawful_chats`                                                     the events of a valid chat, with tools and agents
`events`, `event_lists`                                            any event; a list of any events in any order
`errors`                                                           any rxllm error
`values`                                                           any rxllm value
`messages`, `requests`, `responses`, `threads`, `tools` and so on  values of one type
`chunked(data)`                                                    `data`, cut into chunks at arbitrary places
=================================================================  ================================================

This module needs hypothesis, which rxllm does not install.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import msgspec

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "rxllm.testing.strategies needs hypothesis: pip install hypothesis", name=error.name
    ) from error

from rxllm import events as ev
from rxllm import values as va
from rxllm.collector import StreamCollector, fold_message, is_server
from rxllm.testing.event_checks import cut
from rxllm.values.errors import ERROR_CLASSES

__all__ = [
    "chat_results",
    "chunked",
    "errors",
    "event_lists",
    "events",
    "finish_reasons",
    "free",
    "halts",
    "ids",
    "images",
    "lawful_chats",
    "lawful_events",
    "maps",
    "messages",
    "parts",
    "requests",
    "responses",
    "spendings",
    "step_results",
    "texts",
    "threads",
    "tool_calls",
    "tools",
    "usages",
    "values",
]

# Values

texts = st.text(max_size=12)
ids = st.sampled_from(["a", "b", "c"]) | texts
finish_reasons: st.SearchStrategy[va.FinishReason | None] = st.sampled_from(
    [None, "stop", "length", "tool_calls", "content_filter", "error", "other"]
)

floats = st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | st.integers() | floats | texts | st.binary(max_size=6)
keys = texts | st.sampled_from(["$", "type", "v"]) | st.integers() | st.tuples(st.integers(), texts)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3)


free = st.recursive(scalars, _nested, max_leaves=6)
maps = st.dictionaries(st.sampled_from(["$", "type", "v", "reason"]) | texts, free, max_size=3)

usages = st.builds(
    va.Usage,
    input_tokens=st.none() | st.integers(0, 9999),
    output_tokens=st.none() | st.integers(0, 9999),
    total_cost=st.none() | st.floats(0, 10),
    extra=maps,
)
tool_calls = st.builds(va.ToolCall, id=ids, name=texts, arguments=maps, raw_arguments=st.none() | texts, metadata=maps)
images = st.builds(
    va.Image,
    source=st.sampled_from(["binary", "base64", "url"]),  # JSON may contain "file" only if `local_files` is true
    data=st.binary(max_size=8) | texts,
    mime_type=st.none() | texts,
    width=st.none() | st.integers(1, 4096),
)
parts = st.one_of(
    st.builds(va.TextPart, texts, maps),
    st.builds(va.ImagePart, images, st.sampled_from(["auto", "low", "high"])),
    st.builds(va.ThinkingPart, texts, st.none() | texts, st.none() | maps),
    st.builds(va.SourcePart, maps),
    st.builds(va.FilePart, maps),
    st.builds(va.ToolCallPart, ids),
    st.builds(va.ProviderPart, texts, maps),
)
messages = st.builds(
    va.Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts | st.lists(parts, max_size=3).map(tuple) | maps,
    name=st.none() | texts,
    tool_call_id=st.none() | ids,
    tool_calls=st.lists(tool_calls, max_size=2).map(tuple),
    metadata=maps,
)
threads = st.builds(va.Thread, st.lists(messages, max_size=3).map(tuple), maps)
tools = st.builds(
    va.Tool,
    name=texts,
    description=texts,
    schema=maps,
    manual=st.booleans(),
    approval=st.booleans(),
    metadata=maps,
    timeout=st.just("default") | st.none() | st.floats(0.001, 600),
)
requests = st.builds(
    va.Request,
    messages=st.lists(messages, max_size=2).map(tuple),
    model=st.none() | texts,
    tools=st.lists(tools, max_size=2).map(tuple),
    tool_choice=st.none() | texts | maps,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    max_tokens=st.none() | st.integers(1, 9999),
    stop=st.lists(texts, max_size=2).map(tuple),
    response_format=st.none() | texts | maps,
    structured_finalize=st.booleans(),
    options=maps,
    metadata=maps,
)


@st.composite
def _errors(draw: st.DrawFn) -> va.LLMError:
    cls = draw(st.sampled_from([ERROR_CLASSES[name] for name in va.__all__ if name in ERROR_CLASSES]))
    fields: dict[str, Any] = {"reason": draw(st.sampled_from(sorted(cls.REASONS))), "metadata": draw(maps)}
    fields |= {"message": draw(st.none() | texts)}
    for name in cls.FIELDS:
        fields[name] = draw(_error_fields.get(name, st.none() | texts))
    return cls(**fields)


_paths = st.lists(texts | st.integers(0, 9), max_size=3).map(tuple)
_error_fields: dict[str, st.SearchStrategy[Any]] = {
    "status": st.none() | st.integers(400, 599),
    "retry_after": st.none() | st.floats(0, 100),
    "event_index": st.none() | st.integers(0, 99),
    "errors": st.lists(st.tuples(_paths, texts), max_size=2).map(tuple),
}

errors = _errors()
responses = st.builds(
    va.Response,
    message=st.none() | messages,
    output_text=texts,
    tool_calls=st.lists(tool_calls, max_size=2).map(tuple),
    finish_reason=finish_reasons,
    raw_finish_reason=st.none() | texts,
    usage=usages,
    error=st.none() | errors,
    parsed=free,
    id=st.none() | texts,
    model=st.none() | texts,
    metadata=maps,
)


def _manual(call: va.ToolCall) -> dict[str, Any]:
    return {"manual_tool_calls": (call,)}


step_results = st.builds(
    va.StepResult,
    thread=threads,
    response=responses,
    tool_results=st.lists(messages, max_size=2).map(tuple),
    done=st.booleans(),
    metadata=maps | st.builds(_manual, tool_calls),
)
chat_results = st.builds(
    va.ChatResult,
    thread=threads,
    final_response=st.none() | responses,
    steps=st.lists(step_results, max_size=1).map(tuple),
    halted_reason=st.none() | texts,
    pending_tool_calls=st.lists(tool_calls, max_size=1).map(tuple),
    usage=usages,
    error=st.none() | errors,
    metadata=maps,
)
halts = st.builds(va.Halt, texts, free, st.none() | texts, maps)
spendings = st.builds(
    va.Spending,
    tokens=st.integers(0, 9999),
    usd=st.none() | st.floats(0, 10),
    estimated=st.integers(0, 9999),
    reserved=st.integers(0, 9999),
    reserved_usd=st.floats(0, 10),
)
values = st.one_of(
    *(usages, tool_calls, images, parts, messages, threads, tools, requests, responses),
    *(step_results, chat_results, halts, spendings),
)

# Events

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
    "used": st.booleans(),
    "refusal": st.booleans(),
    "estimated_tokens": st.none() | st.integers(0, 9),
    "parts": st.lists(parts, max_size=2).map(tuple),
}


def _event(cls: type[ev.Event]) -> st.SearchStrategy[Any]:
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for spec in msgspec.structs.fields(cls):
        mapping = "Mapping" in str(spec.type)
        fields[spec.name] = maps if mapping else _event_fields.get(spec.name, texts)
    special: dict[type[ev.Event], dict[str, st.SearchStrategy[Any]]] = {
        ev.StepCompleted: {"result": step_results},
        ev.ChatCompleted: {"result": chat_results, "unparsed": st.none()},
        ev.RawChunk: {"kind": texts.filter(lambda kind: kind != "usage")},  # the kind "usage" is read as a UsageUpdated
        ev.PartAdded: {"part": st.builds(va.ProviderPart, texts, maps)},
    }
    return st.builds(cls, **{**fields, **special.get(cls, {})})


_own_events = st.one_of([_event(cls) for cls in ev.EVENT_CLASSES if cls is not ev.Nested])
events = _own_events | st.builds(ev.Nested, st.lists(texts, min_size=1, max_size=3).map(tuple), _own_events)
"""Any event."""

event_lists = st.lists(events, max_size=8)
"""Lists of arbitrary events, in any order. Code that folds events must accept every such list."""


@st.composite
def _block(draw: st.DrawFn, kind: str, block: str | None) -> list[ev.Event]:
    pieces = draw(st.lists(texts, max_size=3))
    text = "".join(pieces)
    if kind == "text":
        refusal = draw(st.booleans())
        return [*(ev.TextDelta(piece, block, refusal) for piece in pieces), ev.TextCompleted(text, block, refusal)]
    completed = ev.ThinkingCompleted(text, draw(st.none() | texts), draw(st.none() | maps), block)
    hidden = [ev.ThinkingDelta("", block, tokens) for tokens in draw(st.lists(st.integers(0, 9), max_size=1))]
    return [*hidden, *(ev.ThinkingDelta(piece, block) for piece in pieces), completed]


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
def _body(draw: st.DrawFn, kinds: list[str], prefix: str = "") -> list[ev.Event]:
    body: list[ev.Event] = []
    for i, kind in enumerate(kinds):
        match kind:
            case "call":
                body += draw(_call(f"call_{prefix}{i}"))
            case "source":
                body.append(ev.SourceAdded(draw(maps)))
            case "usage":
                body.append(ev.UsageUpdated(replace(draw(usages), total_tokens=i)))  # makes all usages differ
            case _:
                body += draw(_block(kind, draw(st.sampled_from([None, str(i)]))))
    return [ev.MessageStarted(va.Message("assistant", metadata={"id": "r", "model": "m"})), *body]


_kinds = st.lists(st.sampled_from(["text", "thinking", "call", "source", "usage"]), max_size=4)


@st.composite
def _lawful(draw: st.DrawFn) -> list[ev.Event]:
    body = draw(_kinds.flatmap(_body))
    message = fold_message(body)
    waits = any(not is_server(call) for call in message.tool_calls)
    waiting: st.SearchStrategy[va.FinishReason | None] = st.sampled_from(["tool_calls", "length", "content_filter"])
    reasons = waiting if waits else finish_reasons
    completed = ev.MessageCompleted(message, draw(reasons.filter(lambda reason: reason != "error")))
    return [*body, draw(st.sampled_from([completed, ev.ErrorEvent(va.StreamError("truncated"))]))]


lawful_events = _lawful()
"""The events of a valid response."""


@st.composite
def _chat(draw: st.DrawFn, depth: int, ends: str = "completed") -> list[ev.Event]:
    """Draw the events of a chat that has up to `depth` levels of agents."""
    events: list[ev.Event] = []
    state = StreamCollector(va.Thread((va.user("Hi"),)))
    for number in range(draw(st.integers(1, 3)), 0, -1):
        continues = number > 1 or ends == "approval"
        kinds = [kind for kind in draw(_kinds) if continues or kind != "call"] + ["call"] * continues
        step = draw(_body(kinds, f"{number}_"))
        message = fold_message(step)
        ended = [*step, ev.MessageCompleted(message, "tool_calls" if message.tool_calls else "stop")]
        calls = reduce(StreamCollector.apply_event, ended, state).to_response().tool_calls
        halts = ends == "approval" and number == 1 and bool(calls)  # the last call is left unanswered
        executions: dict[str, list[ev.Event]] = {}
        for call in calls:
            kind = "open" if halts and call is calls[-1] else draw(st.sampled_from(["tool", "agent", "broken"]))
            executions[call.id] = draw(_execution(call, kind, depth))
        step = draw(_early(step, ended[-1:], executions))
        result = reduce(StreamCollector.apply_event, step, state).to_step_result()
        result = replace(result, done=True, metadata={"halted_reason": ends}) if halts else result
        step.append(ev.StepCompleted(result))
        state = reduce(StreamCollector.apply_event, step, state)
        events += step
        if not calls:
            break
        if number > 1 and draw(st.booleans()):
            events.append(ev.Steered(va.user(draw(texts))))
    return [*events, ev.ChatCompleted(replace(state.to_chat_result(), halted_reason=ends))]


@st.composite
def _early(
    draw: st.DrawFn, response: list[ev.Event], end: list[ev.Event], executions: dict[str, list[ev.Event]]
) -> list[ev.Event]:
    """Draw the events of a step. Its tools may start before `end`, the last events of its response."""
    step: list[ev.Event] = []
    running: list[list[ev.Event]] = []
    for event in response:
        step.append(event)
        if isinstance(event, ev.ToolCallCompleted) and event.id in executions and draw(st.booleans()):
            running.append(executions[event.id])
        if isinstance(event, ev.ToolCallDelta) and draw(st.booleans()):
            begun = executions.get(event.id, [])[:1]  # a tool can read arguments that are still being written
            if begun and isinstance(begun[0], ev.ToolExecutionStarted):
                step += begun
                del executions[event.id][:1]
        for execution in running:
            most = sum(not isinstance(event, ev.ToolResultEncoded) for event in execution)
            count = draw(st.integers(0, most))
            step += execution[:count]
            del execution[:count]
    return [*step, *end, *(event for execution in executions.values() for event in execution)]


@st.composite
def _execution(draw: st.DrawFn, call: va.ToolCall, kind: str, depth: int) -> list[ev.Event]:
    started = ev.ToolExecutionStarted(call.id, call.name, call.arguments)
    nested: list[ev.Event] = []
    if kind != "tool" and depth:
        inner = draw(_chat(depth - 1, "approval" if kind == "open" and depth > 1 else "completed"))
        inner = inner[: draw(st.integers(0, len(inner) - 1))] if kind == "broken" else inner
        paths = ((event.path, event.event) if isinstance(event, ev.Nested) else ((), event) for event in inner)
        nested = [ev.Nested((call.id, *path), event) for path, event in paths]
    if kind == "open":
        return [started, *nested]
    error = va.ToolError("handler_raised", tool_name=call.name) if kind == "broken" else None
    result = draw(texts)
    completed = ev.ToolExecutionCompleted(call.id, call.name, None if error else result, error)
    return [started, *nested, completed, ev.ToolResultEncoded(call.id, result)]


lawful_chats = st.sampled_from([2, 1, 0]).flatmap(
    lambda depth: st.sampled_from(["completed", "completed", "approval"]).flatmap(lambda ends: _chat(depth, ends))
)
"""The events of a valid chat, as ``stream`` emits them.

A chat can contain several steps, tool calls, agents that are nested up to two levels deep, and messages that the user
sends while the chat is running. Some chats end while a call waits for approval.
"""


@st.composite
def chunked(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Draw `data`, cut into chunks at arbitrary places. Some chunks may be empty."""
    return cut(data, *draw(st.lists(st.integers(0, len(data)), max_size=30)))


def __dir__() -> list[str]:
    return __all__

"""Any value, and any error."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rxllm import values as va
from rxllm.values.errors import ERROR_CLASSES

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
    source=st.sampled_from(["binary", "base64", "url", "file"]),
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
)
requests = st.builds(
    va.Request,
    messages=st.lists(messages, max_size=2).map(tuple),
    model=st.none() | texts,
    tools=st.lists(tools, max_size=2).map(tuple),
    tool_choice=st.none() | texts | maps,
    temperature=st.none() | st.floats(0, 2),
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
    named: dict[str, Any] = {"reason": draw(st.sampled_from(sorted(cls.REASONS))), "metadata": draw(maps)}
    named |= {"message": draw(st.none() | texts)}
    for name in cls.FIELDS:
        named[name] = draw(_error_fields.get(name, st.none() | texts))
    return cls(**named)


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
values = st.one_of(
    usages,
    tool_calls,
    images,
    parts,
    messages,
    threads,
    tools,
    requests,
    responses,
    step_results,
    chat_results,
    halts,
)

"""Chunks as nobody should make them, and everybody may."""

from __future__ import annotations

from hypothesis import strategies as st

from rxllm.chunks import StreamChunk
from rxllm.testing import strategies

anything = st.none() | strategies.texts | st.integers() | strategies.free | strategies.maps
index = st.sampled_from([0, 1, None, "0"]) | anything
fragments = st.fixed_dictionaries({}, optional={"index": index, "fragment": strategies.texts | anything})
known = st.fixed_dictionaries(
    {},
    optional={
        "id": strategies.ids | anything,
        "index": index,
        "name": anything,
        "start": st.booleans(),
        "builtin?": st.booleans(),
        "raw_arguments": anything,
        "signature": anything,
        "tool_call_args": fragments | anything,
        "tool_call_metadata": st.fixed_dictionaries({"index": index, "metadata": anything}) | anything,
        "reasoning_details": anything,
        "logprobs": anything,
        "annotations": anything,
        "finish_reason": anything,
        "usage": st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "x"]), anything) | anything,
        "keepalive?": anything,
        "provider_event": anything,
        "response_id": anything,
        "model": anything,
    },
)
any_chunks = st.builds(
    StreamChunk,
    type=st.sampled_from(["content", "thinking", "tool_call", "meta", "content_part"]) | anything,
    text=strategies.texts | anything,
    name=st.sampled_from(["add", "mul"]) | anything,
    arguments=strategies.maps | anything,
    metadata=known | anything,
    content_part=strategies.parts | anything,
)

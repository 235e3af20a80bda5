"""Hypothesis strategies of the completion dialect."""

from __future__ import annotations

from hypothesis import strategies as st

from rxllm.chunks import CompletionChunk, ToolCallDelta
from rxllm.testing.strategies import finish_reasons, texts, usages


def deltas() -> st.SearchStrategy[ToolCallDelta]:
    """Any piece of a call: ids, names and arguments may lack, change and come late."""
    ids = st.none() | st.sampled_from(["", "a", "b"])
    indexes = st.integers(0, 3) | st.just(10**9)
    return st.builds(ToolCallDelta, indexes, ids, st.none() | st.sampled_from(["", "add", "sub"]), texts)


def completions() -> st.SearchStrategy[CompletionChunk]:
    """Any chunk at all."""
    calls = st.lists(deltas(), max_size=2).map(tuple)
    return st.builds(CompletionChunk, texts, calls, st.booleans(), st.none() | usages, finish_reasons)


@st.composite
def replies(draw: st.DrawFn) -> list[CompletionChunk]:
    """The chunks of a well-behaved model: text, then calls of which the first piece has id and name, then the end."""
    chunks = [CompletionChunk.text(piece) for piece in draw(st.lists(texts, max_size=4))]
    for index in range(draw(st.integers(0, 3))):
        pieces = ["{", f'"x": {draw(st.integers())}', "}"]
        chunks.append(CompletionChunk(tool_calls=(ToolCallDelta(index, f"c{index}", draw(texts) or "f"),)))
        chunks += [CompletionChunk(tool_calls=(ToolCallDelta(index, arguments_delta=piece),)) for piece in pieces]
    return [*chunks, CompletionChunk.final_chunk(draw(st.none() | usages), draw(finish_reasons))]

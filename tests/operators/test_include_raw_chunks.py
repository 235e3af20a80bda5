from __future__ import annotations

from rxllm import operators as ops
from rxllm.events import RawChunk, TextDelta
from rxllm.testing.marbles import check

VALUES = {"r": RawChunk("chunk", {"x": 1}), "u": RawChunk("usage", {"input_tokens": 3}), "d": TextDelta("Hi")}


def test_raw_chunks_are_dropped_and_usage_never_is() -> None:
    check(
        ops.include_raw_chunks(),
        "-r-d-u-|",
        "^------!",
        "---d-u-|",
        **VALUES,
    )


def test_raw_chunks_pass_where_they_are_asked_for() -> None:
    check(
        ops.include_raw_chunks(True),
        "-r-d-u-|",
        "^------!",
        "-r-d-u-|",
        **VALUES,
    )

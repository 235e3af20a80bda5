from __future__ import annotations

from rxllm import operators as ops
from rxllm.events import PartAdded, RawChunk, TextDelta, UsageUpdated
from rxllm.testing.marbles import check
from rxllm.values import ProviderPart, Usage

VALUES = {
    "r": RawChunk("chunk", {"x": 1}),
    "u": UsageUpdated(Usage(3)),
    "p": PartAdded(ProviderPart("a", {})),
    "d": TextDelta("Hi"),
}


def test_raw_chunks_are_dropped_and_usage_and_parts_never_are() -> None:
    check(
        ops.include_raw_chunks(),
        "-r-d-up|",
        "^------!",
        "---d-up|",
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

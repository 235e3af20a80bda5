"""Building blocks for adapters. They do no I/O, and use neither Rx nor a clock.

===============  ==========================================================================================
module           purpose
===============  ==========================================================================================
``framing``      Split a byte stream into frames: server-sent events, NDJSON lines, or JSON array elements.
``frames``       The base class for decoders, which handles malformed frames.
``event_order``  Turn what a decoder reports into events in the right order, and end the stream properly.
``tool_calls``   Assemble tool calls whose arguments arrive in pieces.
===============  ==========================================================================================

To write a decoder for an adapter, subclass `FrameDecoder`. The decoder receives frames from a `Framing`, such as
`SSEDecoder` or `NDJSONFraming`. It reports their content to `Blocks`, which creates the events. `CallTracker` chooses
the ids of tool calls.
"""

from typing import TYPE_CHECKING

from rxllm._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rxllm.wire.event_order import Blocks
    from rxllm.wire.frames import FrameDecoder, Framing
    from rxllm.wire.framing import Frame, JSONArrayDecoder, NDJSONDecoder, NDJSONFraming, SSEDecoder
    from rxllm.wire.tool_calls import CallTracker

__all__ = [
    "Blocks",
    "CallTracker",
    "Frame",
    "FrameDecoder",
    "Framing",
    "JSONArrayDecoder",
    "NDJSONDecoder",
    "NDJSONFraming",
    "SSEDecoder",
]

# The names are imported on first use. If type checkers could see `__getattr__`, they would accept any name.
if not TYPE_CHECKING:
    __getattr__ = lazy_exports(
        __name__,
        {
            "event_order": "Blocks",
            "frames": "FrameDecoder Framing",
            "framing": "Frame JSONArrayDecoder NDJSONDecoder NDJSONFraming SSEDecoder",
            "tool_calls": "CallTracker",
        },
    )


def __dir__() -> list[str]:
    return __all__

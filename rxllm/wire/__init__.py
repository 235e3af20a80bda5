"""Building blocks for adapters. They turn bytes into frames and frames into events, without I/O, Rx or a clock.

===============  ==========================================================================================
module           purpose
===============  ==========================================================================================
``framing``      Split a byte stream into frames: server-sent events, NDJSON lines, or JSON array elements.
``frames``       The base class for decoders, which handles malformed frames.
``event_order``  Turn what a decoder reports into events in the right order, and end the stream.
``tool_calls``   Assemble tool calls whose arguments arrive in pieces.
===============  ==========================================================================================

To write an adapter's decoder, subclass `FrameDecoder`. It takes frames from a `Framing`, such as `SSEDecoder` or
`NDJSONFraming`, and reports their content to `Blocks`, which creates the events. `CallTracker` chooses the calls' ids.
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

# Import the modules lazily: a program without HTTP adapters needs none of them. Hide `__getattr__` from type checkers:
# if they saw it, they would accept any name.
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

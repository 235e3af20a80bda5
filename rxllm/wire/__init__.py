"""Building blocks for adapters, without I/O, Rx or a clock.

===============  ==========================================================================================
module           purpose
===============  ==========================================================================================
``framing``      Split a byte stream into frames: server-sent events, NDJSON lines, or JSON array elements.
``frames``       The base class for decoders, which handles malformed frames.
``event_order``  Turn what a decoder reports into events in the right order, and end the stream.
``tool_calls``   Assemble tool calls whose arguments arrive in pieces.
===============  ==========================================================================================

To write an adapter's decoder, subclass `FrameDecoder`. A `Framing`, such as `SSEDecoder` or `NDJSONFraming`, gives it
frames. It reports their content to `Blocks`, which creates the events. `CallTracker` chooses the calls' ids.
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

# The names are imported lazily. Type checkers must not see `__getattr__`.
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

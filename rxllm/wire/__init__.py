"""From bytes to frames to events, without I/O, Rx or a clock; for authors of adapters.

==================================  ===========================================================================
file                                holds
==================================  ===========================================================================
``framing``                         bytes to frames, in any pieces: server-sent events, NDJSON, JSON arrays
``frames``                          the base of the decoders: typed frames, and what a malformed one means
``event_order``                     reports of a decoder to events in their order; how a stream ends, or is cut
``tool_calls``                      calls whose arguments come in pieces
==================================  ===========================================================================

A decoder of an adapter is a `FrameDecoder` over a `Framing` (`SSEDecoder`, `NDJSONFraming`), which reports to `Blocks`;
`CallTracker` gives tool calls their ids.
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

if not TYPE_CHECKING:  # to a type checker every name would be there
    # A program without an adapter over HTTP needs none of them.
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

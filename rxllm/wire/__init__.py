"""Turn bytes into frames and frames into events, without I/O, Rx or a clock; for authors of adapters.

==================================  ===========================================================================
file                                holds
==================================  ===========================================================================
``framing``                         bytes, however split, to frames: server-sent events, NDJSON, JSON arrays
``frames``                          the base class of decoders: typed frames and malformed ones
``event_order``                     a decoder's reports to ordered events, up to the end of the stream
``tool_calls``                      tool calls whose arguments arrive in pieces
==================================  ===========================================================================

An adapter's decoder is a `FrameDecoder`: it reads the frames of a `Framing` (`SSEDecoder`, `NDJSONFraming`) and reports
to `Blocks`. `CallTracker` gives tool calls their ids.
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

if not TYPE_CHECKING:  # a type checker would accept every name
    # A program without an adapter over HTTP needs none of these modules.
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

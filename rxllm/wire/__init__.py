"""From bytes to frames to events, without I/O, Rx or a clock; for authors of adapters.

==================================  ===========================================================================
file                                holds
==================================  ===========================================================================
``sse``, ``ndjson``, ``json_array`` bytes to frames, in any pieces; ``pending`` keeps the unfinished one
``frames``                          the base of the decoders: typed frames, and what a malformed one means
``event_order``                     reports of a decoder to events in their order; how a stream ends, or is cut
``block_ids``, ``tool_calls``       ids of blocks; calls whose arguments come in pieces
==================================  ===========================================================================

A decoder of an adapter is a `FrameDecoder` over a `Framing` (`SSEDecoder`, `NDJSONFraming`), which reports to `Blocks`;
`CallTracker` gives tool calls their ids.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxllm.wire.event_order import Blocks
    from rxllm.wire.frames import FrameDecoder, Framing
    from rxllm.wire.json_array import JSONArrayDecoder
    from rxllm.wire.ndjson import NDJSONDecoder, NDJSONFraming
    from rxllm.wire.sse import Frame, SSEDecoder
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

_MODULES = {
    "Blocks": "event_order",
    "CallTracker": "tool_calls",
    "Frame": "sse",
    "FrameDecoder": "frames",
    "Framing": "frames",
    "JSONArrayDecoder": "json_array",
    "NDJSONDecoder": "ndjson",
    "NDJSONFraming": "ndjson",
    "SSEDecoder": "sse",
}


def __getattr__(name: str) -> Any:
    # A program without an adapter over HTTP needs none of them.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__

"""From bytes to frames to events, without I/O, Rx or a clock.

==================================  ===========================================================================
file                                holds
==================================  ===========================================================================
``sse``, ``ndjson``, ``json_array`` bytes to frames, in any pieces; ``pending`` keeps the unfinished one
``frames``                          the base of the decoders: typed frames, and what a malformed one means
``event_order``                     reports of a decoder to events in their order; how a stream ends, or is cut
``block_ids``, ``tool_calls``       ids of blocks; calls whose arguments come in pieces
==================================  ===========================================================================
"""

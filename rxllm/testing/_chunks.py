"""Bytes in chunks, as a network may deliver them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise


def cut(data: bytes, *places: int) -> list[bytes]:
    """`data` in chunks that end at `places`; a place that is named twice, 0 or the length gives an empty chunk.

    >>> cut(b"hello", 1, 3)
    [b'h', b'el', b'lo']

    Raises ``ValueError`` for a place outside.
    """
    if any(not 0 <= place <= len(data) for place in places):
        raise ValueError(f"the places {sorted(places)} do not all lie in {len(data)} bytes")
    return [data[start:end] for start, end in pairwise((0, *sorted(places), len(data)))]


def chunkings(data: bytes, *, cuts: int | None = None, seed: int = 0) -> Iterator[list[bytes]]:
    """Every way of `data` that a decoder must read alike: whole, byte by byte, the same with empty chunks in between,
    and in two at every place.

    >>> for chunks in chunkings(b"hi!"):
    ...     print(chunks)
    [b'hi!']
    [b'h', b'i', b'!']
    [b'', b'h', b'', b'i', b'', b'!', b'']
    [b'h', b'i!']
    [b'hi', b'!']

    That is a decoding for each byte. With `cuts`, for long data, there are two ways only: whole, and with so many cuts
    at random places, the same ones for a `seed`.
    """
    yield [data]
    if cuts is not None:
        yield cut(data, *random.Random(seed).sample(range(len(data)), min(cuts, len(data))))
        return
    each = [data[place : place + 1] for place in range(len(data))]
    yield each
    yield [b"", *(chunk for byte in each for chunk in (byte, b""))]
    for place in range(1, len(data)):
        yield cut(data, place)

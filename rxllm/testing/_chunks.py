"""`cut` and `chunkings`: bytes in chunks, as a network may deliver them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import msgspec


def cut(data: bytes, *places: int) -> list[bytes]:
    """Return `data` in chunks that end at `places`; 0, the length, or a repeated place gives an empty chunk.

    >>> cut(b"hello", 1, 3)
    [b'h', b'el', b'lo']

    Raises ``ValueError`` for a place outside `data`.
    """
    if any(not 0 <= place <= len(data) for place in places):
        raise ValueError(f"the places {sorted(places)} do not all lie in {len(data)} bytes")
    return [data[start:end] for start, end in pairwise((0, *sorted(places), len(data)))]


def chunkings(data: bytes, *, cuts: int | None = None, seed: int = 0) -> Iterator[list[bytes]]:
    """Yield the ways to cut `data` that a decoder must read alike: whole, byte by byte, the same with empty chunks in
    between, and in two at every place.

    >>> for chunks in chunkings(b"hi!"):
    ...     print(chunks)
    [b'hi!']
    [b'h', b'i', b'!']
    [b'', b'h', b'', b'i', b'', b'!', b'']
    [b'h', b'i!']
    [b'hi', b'!']

    That is about one decoding for each byte. With `cuts`, for long data, there are only two: whole, and with so many
    cuts at random places, which depend on `seed` alone.
    """
    yield [data]
    if cuts is not None:
        yield cut(data, *random.Random(seed).sample(range(len(data)), min(cuts, len(data))))
        return
    single = [data[place : place + 1] for place in range(len(data))]
    yield single
    yield [b"", *(chunk for byte in single for chunk in (byte, b""))]
    for place in range(1, len(data)):
        yield cut(data, place)


_WRONG: tuple[Any, ...] = (None, 7, "x", [1], {"x": 1})


def malformed(frame: bytes) -> Iterator[bytes]:
    """Yield `frame` cut in half, and with each value of its JSON object, if it has one, replaced or left out."""
    yield frame[: len(frame) // 2]
    begin, end = frame.find(b"{"), frame.rfind(b"}") + 1
    with contextlib.suppress(msgspec.DecodeError):
        for variant in _variants(msgspec.json.decode(frame[begin:end])):
            yield frame[:begin] + msgspec.json.encode(variant) + frame[end:]


def _variants(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        for name, entry in fields.items():
            yield {key: other for key, other in fields.items() if key != name}
            yield from ({**fields, name: wrong} for wrong in (*_WRONG, *_variants(entry)))
    elif isinstance(value, list):
        entries = cast(list[Any], value)
        for place, entry in enumerate(entries):
            yield from ([*entries[:place], wrong, *entries[place + 1 :]] for wrong in (*_WRONG, *_variants(entry)))

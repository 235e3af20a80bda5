"""Decompress response bodies in slices, because a few compressed bytes can expand to gigabytes."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import httpx


SLICE_BYTES = 1 << 16
"""The maximum size of a decompressed slice, in bytes."""

ENCODINGS = "gzip, deflate"
"""The value of the ``accept-encoding`` header: the encodings that can be decompressed in slices."""

MOST_LAYERS = 4
"""The maximum number of encodings of one body. Each needs memory of its own."""

_NAMES = {"gzip", "x-gzip", "deflate"}
_GZIP, _ZLIB, _RAW = 31, 15, -15
_HEAD_BYTES = 2
_MAGIC = b"\x1f\x8b"
"""The first bytes of a gzip member."""


class DecompressionError(ValueError):
    """Raised if a body does not have the encoding that its headers name, or has one that was not asked for."""


def is_decompressed_here(response: httpx.Response) -> bool:
    return not response.is_stream_consumed and all(name in _NAMES for name in _encodings(response))


def body_of(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the decompressed body in pieces.

    If the bytes that have arrived produce no output yet, the piece is empty. Raises ``DecompressionError`` if the body
    has an encoding that the request did not ask for.
    """
    _check(response)
    if not is_decompressed_here(response):
        return cast("AsyncGenerator[bytes, None]", response.aiter_bytes())
    raw = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
    layers = [_Decompressor(name) for name in reversed(_encodings(response))]
    return _decompressed(raw, layers) if layers else raw


def _check(response: httpx.Response) -> None:
    # If a package such as brotli is installed, httpx would decompress the whole body at once.
    names = [] if response.is_stream_consumed else _encodings(response)
    asked = response.request.headers.get("accept-encoding", "").lower() if {*names} - _NAMES else ""
    for name in names:
        if name not in _NAMES and name not in [each.partition(";")[0].strip() for each in asked.split(",")]:
            raise DecompressionError(f"the body has the encoding {name[:80]!r}, which was not asked for")
    if len(names) > MOST_LAYERS:
        raise DecompressionError(f"the body has {len(names)} encodings, more than {MOST_LAYERS}")


def _encodings(response: httpx.Response) -> list[str]:
    names = (name.strip() for name in response.headers.get("content-encoding", "").lower().split(","))
    return [name for name in names if name not in ("", "identity")]


async def _decompressed(raw: AsyncGenerator[bytes, None], layers: list[_Decompressor]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(raw):
        async for data in raw:
            count = 0
            for piece in _through(layers, data):
                if count:
                    await asyncio.sleep(0)  # let other tasks run
                count += 1
                yield piece
            if not count:
                yield b""


def _through(layers: list[_Decompressor], data: bytes) -> Iterable[bytes]:
    if not layers:
        return (data,)
    return (piece for outer in layers[0].feed(data) for piece in _through(layers[1:], outer))


class _Decompressor:
    """Decompresses a body that consists of one or more members.

    RFC 1952 allows several gzip members. Some servers also send several zlib streams. Whatever else follows a member is
    ignored, as in browsers.
    """

    def __init__(self, name: str) -> None:
        self._is_gzip = name != "deflate"
        self._inflate: Any = None  # None between members
        self._head: bytes = b""
        self._has_begun = False
        self._is_over = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        # zlib copies the input that it leaves, so that large inputs with small members would take quadratic time.
        for start in range(0, len(data), SLICE_BYTES):
            yield from self._feed(data[start : start + SLICE_BYTES])

    def _feed(self, data: bytes) -> Iterator[bytes]:
        is_full = False  # if a slice is full, zlib may still hold more output
        while (data or is_full) and not self._is_over:
            if self._inflate is None:
                data = self._begin(data)
                continue
            try:
                piece = self._inflate.decompress(data, SLICE_BYTES)
            except zlib.error as error:
                raise DecompressionError(str(error)) from error
            is_full = len(piece) == SLICE_BYTES
            data = self._inflate.unconsumed_tail
            if self._inflate.eof:
                data, self._inflate, is_full = self._inflate.unused_data, None, False
            if piece:
                yield piece

    def _begin(self, data: bytes) -> bytes:
        """Begin the next member, and return its bytes so far, or nothing if they are too few or no member."""
        data = self._head + data
        if self._has_begun:
            data = data.lstrip(b"\0")  # members may be padded
        if len(data) < _HEAD_BYTES:
            self._head = data
            return b""
        wbits = _GZIP if self._is_gzip else _ZLIB if _has_head(data) else _RAW
        if self._has_begun:
            self._is_over = wbits == _RAW or (wbits == _GZIP and data[:_HEAD_BYTES] != _MAGIC)
        self._inflate, self._head, self._has_begun = zlib.decompressobj(wbits), b"", True
        return data


def _has_head(data: bytes) -> bool:
    # RFC 1950 requires a zlib header, but some servers leave it out.
    return data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:_HEAD_BYTES], "big") % 31 == 0

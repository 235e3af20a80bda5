"""Decompress response bodies in slices, because a few compressed bytes can expand to gigabytes."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import httpx


SLICE_BYTES = 1 << 16
"""The maximum size of a decompressed slice, in bytes."""

_NAMES = {"gzip", "x-gzip", "deflate"}
_GZIP, _ZLIB, _RAW = 31, 15, -15
_HEAD_BYTES = 2


class DecompressionError(ValueError):
    """Raised if the body of a response does not have the encoding that its headers name."""


def is_decompressed_here(response: httpx.Response) -> bool:
    return not response.is_stream_consumed and all(name in _NAMES for name in _encodings(response))


def body_of(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the decompressed body in pieces.

    If the bytes that have arrived produce no output yet, the piece is empty.
    """
    if not is_decompressed_here(response):
        return cast("AsyncGenerator[bytes, None]", response.aiter_bytes())
    raw = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
    layers = [_Decompressor(name) for name in reversed(_encodings(response))]
    return _decompressed(raw, layers) if layers else raw


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
    def __init__(self, name: str) -> None:
        self._inflate = zlib.decompressobj(_GZIP) if name != "deflate" else None  # deflate: see `_has_head`
        self._head = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, self._head = self._head + data, b""
        if self._inflate is None and len(data) < _HEAD_BYTES:
            self._head = data
            return
        inflate = self._inflate = self._inflate or zlib.decompressobj(_ZLIB if _has_head(data) else _RAW)
        piece = b"-"
        # If a slice is full, zlib may still hold more output.
        while (data or len(piece) == SLICE_BYTES) and not inflate.eof:
            try:
                piece = inflate.decompress(data, SLICE_BYTES)
            except zlib.error as error:
                raise DecompressionError(str(error)) from error
            data = inflate.unconsumed_tail
            if piece:
                yield piece


def _has_head(data: bytes) -> bool:
    # RFC 1950 requires a zlib header, but some servers leave it out.
    return data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:_HEAD_BYTES], "big") % 31 == 0

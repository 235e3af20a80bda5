"""Compressed bodies: read piece by piece, in little memory, whatever they expand to."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rxllm import AdapterError, ErrorEvent, generate, stream_generate
from rxllm.http.decompression import SLICE_BYTES, DecompressionError, body_of
from rxllm.testing.loopback import Loopback, Reply
from tests.runtime.support import ON_BOTH, model


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "twice": ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
    "not at all": ("identity", lambda data: data),
}
LARGE = b"".join(b"%d" % i for i in range(60_000))


def pieces_of(packed: bytes, encoding: str, size: int) -> list[bytes]:
    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(packed), size):
            yield packed[at : at + size]

    async def main() -> list[bytes]:
        return [piece async for piece in body_of(httpx.Response(200, headers=headers, content=chunks()))]

    headers = {"content-encoding": encoding}
    return asyncio.run(main())


@settings(max_examples=30, deadline=None)
@given(
    data=st.binary(max_size=300) | st.sampled_from([bytes(3 * SLICE_BYTES), bytes(2 * SLICE_BYTES + 1), LARGE]),
    name=st.sampled_from(sorted(PACKERS)),
    size=st.integers(1, 1000) | st.just(1 << 20),
)
@example(b"Hi", "raw deflate", 1)
@example(b"Hi", "deflate", 1)
def test_a_packed_body_says_the_same_however_it_is_cut(data: bytes, name: str, size: int) -> None:
    encoding, pack = PACKERS[name]
    packed = pack(data)
    if len(packed) > 10_000:
        size = max(size, 1000)
    pieces = pieces_of(packed, encoding, size)
    assert b"".join(pieces) == data
    if name != "not at all":
        assert all(len(piece) <= SLICE_BYTES for piece in pieces)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_not_packed_as_it_says_is_an_error(encoding: str) -> None:
    with pytest.raises(DecompressionError):
        pieces_of(b"\xff" * 100, encoding, 50)


@pytest.mark.sockets
@ON_BOTH
def test_it_is_a_typed_error_of_the_call() -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    with Loopback(Reply(b"no gzip at all", headers=headers)) as server:
        events = list(stream_generate(model(server), "Hi"))
    assert isinstance(events[-1], ErrorEvent)
    assert "DecompressionError" in events[-1].error.message


MIB = 1 << 20


@pytest.mark.sockets
@ON_BOTH
@pytest.mark.parametrize("status", [200, 500])
def test_a_bomb_takes_no_memory(status: int) -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    spaces = gzip.compress(bytes(128 * MIB), 9)
    with Loopback(Reply(spaces, status, headers)) as server:
        outcome, peak = measured(lambda: generate(model(server), "Hi").run())
    error = outcome if isinstance(outcome, AdapterError) else outcome.error
    assert error is not None
    assert peak < 64 * MIB


def measured(act: Callable[[], Any]) -> tuple[Any, int]:
    """What `act` gives or raises, and the most memory that it took."""
    tracemalloc.start()
    try:
        outcome = act()
    except AdapterError as error:
        outcome = error
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return outcome, peak

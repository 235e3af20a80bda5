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
from rxllm.testing.loopback import Loopback, Reply, chat
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


@settings(max_examples=30, deadline=None)
@given(
    members=st.lists(st.binary(max_size=300) | st.just(bytes(SLICE_BYTES)), min_size=1, max_size=5),
    name=st.sampled_from(["gzip", "x-gzip", "deflate", "twice"]),
    size=st.integers(1, 1000) | st.just(1 << 20),
)
@example([b"Hel", b"lo"], "gzip", 1)
@example([b"Hel", b"", b"lo"], "deflate", 1)
def test_members_one_after_another_are_one_body(members: list[bytes], name: str, size: int) -> None:
    encoding, pack = PACKERS[name]
    packed = b"".join(map(pack, members))
    assert b"".join(pieces_of(packed, encoding, size)) == b"".join(members)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("rest", "encoding"),
    [
        (b"", "gzip"),
        (b"\0", "gzip"),
        (bytes(100), "gzip"),
        (b"\x1f", "gzip"),
        (b"\x1fno member", "gzip"),
        (b"no member", "gzip"),
        (b"no member" + gzip.compress(b"no", mtime=0), "gzip"),
        (b"no member", "deflate"),
    ],
)
def test_what_follows_the_last_member_is_passed_over(rest: bytes, encoding: str, size: int) -> None:
    _, pack = PACKERS[encoding]
    assert b"".join(pieces_of(pack(b"Hel") + pack(b"lo") + rest, encoding, size)) == b"Hello"


def test_padding_between_members_is_passed_over() -> None:
    assert b"".join(pieces_of(gzip.compress(b"Hel") + bytes(9) + gzip.compress(b"lo"), "gzip", 5)) == b"Hello"


def test_a_member_that_is_broken_is_an_error() -> None:
    with pytest.raises(DecompressionError):
        pieces_of(gzip.compress(b"Hello") + b"\x1f\x8b" + b"\xff" * 50, "gzip", 20)


def test_many_small_members_in_one_read_take_linear_time() -> None:
    """Each is 20 bytes: when all that remained was copied for each, this took minutes."""
    assert b"".join(pieces_of(gzip.compress(b"") * 200_000 + gzip.compress(b"Hi"), "gzip", 1 << 30)) == b"Hi"


@pytest.mark.sockets
@ON_BOTH
@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate"])
def test_a_stream_whose_chunks_are_members_of_their_own_is_read_to_its_end(encoding: str) -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": encoding}
    _, pack = PACKERS[encoding]
    with Loopback(Reply([pack(chunk) for chunk in chat("Hel", "lo")], headers=headers)) as server:
        response = generate(model(server), "Hi").run()
    assert (response.output_text, response.finish_reason, response.error) == ("Hello", "stop", None)


@pytest.mark.sockets
@ON_BOTH
def test_it_is_a_typed_error_of_the_call() -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    with Loopback(Reply(b"no gzip at all", headers=headers)) as server:
        events = list(stream_generate(model(server), "Hi"))
    assert isinstance(events[-1], ErrorEvent)
    assert "DecompressionError" in events[-1].error.message


REFUSED = ["br", "zstd", "gzip, br", "compress", "x" * 200, "gzip, " * 4 + "gzip", "deflate, " * 500 + "gzip"]


@pytest.mark.sockets
@ON_BOTH
@pytest.mark.parametrize("encoding", REFUSED, ids=lambda encoding: encoding[:10])
def test_an_encoding_that_was_not_asked_for_is_refused_before_the_body_is_read(encoding: str) -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": encoding}
    with Loopback(Reply(chat("Hi"), headers=headers)) as server:
        response = generate(model(server), "Hi").run()
        generate(model(server, headers={"accept-encoding": "br"}), "Hi").run()
    assert response.error is not None
    assert "DecompressionError" in str(response.error)
    assert len(str(response.error)) < 500
    assert [request.headers["accept-encoding"] for request in server.requests] == ["gzip, deflate", "br"]


@pytest.mark.sockets
def test_a_client_of_the_users_asks_only_for_encodings_that_are_read_in_slices() -> None:
    async def main() -> str:
        async with httpx.AsyncClient(headers={"accept-encoding": "br, zstd"}) as client:
            return (await generate(model(server, client=client), "Hi")).output_text

    with Loopback(Reply(chat("Hi"))) as server:
        assert asyncio.run(main()) == "Hi"
    assert server.requests[0].headers["accept-encoding"] == "gzip, deflate"


MIB = 1 << 20


@pytest.mark.sockets
@ON_BOTH
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(("members", "size"), [(1, 128 * MIB), (16, 8 * MIB)])
def test_a_bomb_takes_no_memory(status: int, members: int, size: int) -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    spaces = gzip.compress(bytes(size), 9) * members
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

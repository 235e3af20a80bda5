from __future__ import annotations

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from rxllm.testing import chunkings, cut, strategies

data = st.binary(max_size=12)


@given(data, st.data())
def test_a_cut_loses_nothing_and_ends_where_it_was_told(whole: bytes, draw: st.DataObject) -> None:
    places = draw.draw(st.lists(st.integers(0, len(whole))))
    chunks = cut(whole, *places)
    assert b"".join(chunks) == whole
    ends = [len(b"".join(chunks[: count + 1])) for count in range(len(chunks))]
    assert ends == [*sorted(places), len(whole)]


@pytest.mark.parametrize("place", [-1, 6])
def test_a_place_outside_is_refused(place: int) -> None:
    with pytest.raises(ValueError, match="every position must be between 0 and 5"):
        cut(b"hello", place)


@given(data)
def test_every_chunking_is_the_same_data(whole: bytes) -> None:
    ways = list(chunkings(whole))
    assert {b"".join(way) for way in ways} == {whole}
    assert all([whole[:at], whole[at:]] in ways for at in range(1, len(whole)))


def test_there_is_every_cut_and_every_byte_and_empty_chunks() -> None:
    ways = list(chunkings(b"abc"))
    assert [b"abc"] in ways
    assert [b"a", b"b", b"c"] in ways
    assert [b"a", b"bc"] in ways
    assert [b"ab", b"c"] in ways
    assert any(b"" in way for way in ways)


def test_long_data_is_cut_at_random_but_always_alike() -> None:
    long = bytes(range(256)) * 40
    whole, cut_up = chunkings(long, cuts=50)
    assert whole == [long]
    assert len(cut_up) == 51
    assert b"".join(cut_up) == long
    assert list(chunkings(long, cuts=50))[1] == cut_up != list(chunkings(long, cuts=50, seed=1))[1]
    assert list(chunkings(b"ab", cuts=50))[1] == [b"", b"a", b"b"]


@given(st.data(), data)
def test_the_strategy_gives_the_same_data(draw: st.DataObject, whole: bytes) -> None:
    assert b"".join(draw.draw(strategies.chunked(whole))) == whole


def test_the_strategy_shrinks_to_one_chunk_and_finds_empty_ones() -> None:
    assert find(strategies.chunked(b"hello"), lambda chunks: True) == [b"hello"]
    assert b"" in find(strategies.chunked(b"hello"), lambda chunks: b"" in chunks)

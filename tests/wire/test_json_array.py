"""The elements of a JSON array, however it is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.testing import cut
from rxllm.values import StreamError
from rxllm.wire import framing
from rxllm.wire.framing import JSONArrayDecoder

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(['"', "\\", '\\"}]', "]{[,", "é€😀"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


def decode(*reads: bytes, **options: Any) -> list[bytes]:
    decoder = JSONArrayDecoder(**options)
    return [frame for read in reads for frame in decoder.feed(read)] + decoder.close()


@given(st.lists(OBJECTS, max_size=4), st.sampled_from([None, 2]), st.booleans(), st.lists(st.integers(0, 400)))
def test_any_cut_of_any_array(elements: list[Any], indent: int | None, ascii_only: bool, cuts: list[int]):
    body = json.dumps(elements, indent=indent, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    whole = decode(body)
    assert [json.loads(frame.decode(errors="surrogatepass")) for frame in whole] == elements
    assert decode(*cut(body, *(place for place in cuts if place < len(body)))) == whole
    assert decode(*(bytes([each]) for each in body)) == whole


def test_an_element_is_given_as_soon_as_it_is_complete():
    decoder = JSONArrayDecoder()
    assert decoder.feed(b' \n[ {"a": 1}') == [b'{"a": 1}']
    assert decoder.feed(b',\r\n{"b": [{}]}\n, {') == [b'{"b": [{}]}']
    assert not decoder.ended
    assert decoder.feed(b"}]") == [b"{}"]
    assert decoder.ended
    assert decoder.feed(b"[{}]") == []


@pytest.mark.parametrize(
    ("body", "frames"),
    [
        (b"[]", []),
        (b'[{},[],1,"a",nul]', [b"{}", b"[]", b"1", b'"a"', b"nul"]),
        (b'[{"a"', []),
        (b"{}", []),
        (b"", []),
        (b"[{]}]", [b"{]", b"}"]),
    ],
)
def test_what_is_odd(body: bytes, frames: list[bytes]):
    assert decode(body) == frames
    assert decode(*(bytes([each]) for each in body)) == frames


def test_no_element_may_be_too_long():
    body = b'[{"a": 1}, {"a": "%b"}]' % (b"x" * 100)
    for reads in ([body], [bytes([each]) for each in body]):
        decoder = JSONArrayDecoder(max_frame=50)
        given = []
        with pytest.raises(StreamError) as caught:  # noqa: PT012
            for read in reads:
                given += decoder.feed(read)
            decoder.close()
        assert given == [b'{"a": 1}']
        assert caught.value.reason == "oversized_frame"


def test_an_element_in_many_reads_is_searched_once():
    long = b'{"a": "' + b"x" * 300_000 + b'\\""}'
    assert decode(b"[", *(long[i : i + 100] for i in range(0, len(long), 100)), b"]") == [long]


def test_a_string_is_an_element_whatever_is_in_it() -> None:
    data = rb'["a, ]b", "{", "q\"", "", 1]'
    for place in range(len(data)):
        decoder = JSONArrayDecoder()
        elements = [*decoder.feed(data[:place]), *decoder.feed(data[place:])]
        assert elements == [b'"a, ]b"', b'"{"', rb'"q\""', b'""', b"1"]
        assert decoder.ended


def test_a_read_of_many_elements_is_not_searched_to_its_end_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    is_element = framing._is_element
    monkeypatch.setattr(framing, "_is_element", lambda text: tried.append(len(text)) or is_element(text))
    data = b"[" + b'{"a": 1}, ' * 10_000 + b"]"
    assert JSONArrayDecoder().feed(data) == [b'{"a": 1}'] * 10_000
    assert sum(tried) <= len(data)

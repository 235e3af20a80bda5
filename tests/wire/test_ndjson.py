"""The lines of newline-delimited JSON, however they are cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.testing import cut
from rxllm.values import StreamError
from rxllm.wire.ndjson import NDJSONDecoder


def decode(*reads: bytes, **options: Any) -> list[bytes]:
    decoder = NDJSONDecoder(**options)
    return [frame for read in reads for frame in decoder.feed(read)] + decoder.close()


@given(
    st.lists(st.dictionaries(st.text(), st.text())),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.lists(st.integers(0, 400)),
)
def test_any_cut_of_any_lines(values: list[Any], end: str, cuts: list[int]):
    body = "".join(json.dumps(value) + end for value in values).encode()
    whole = decode(body)
    assert [json.loads(frame) for frame in whole] == values
    assert decode(*cut(body, *(place for place in cuts if place < len(body)))) == whole
    assert decode(*(bytes([each]) for each in body)) == whole


@pytest.mark.parametrize(
    ("body", "frames"),
    [
        (b"", []),
        (b"\n \r\n", []),
        (b'\xef\xbb\xbf{"a": 1}\n', [b'{"a": 1}']),
        (b'{"a": 1}', [b'{"a": 1}']),
        (b'{"a": 1}\n{"b"', [b'{"a": 1}']),
        ('{"a": "\u2028\u0085"}\n'.encode(), ['{"a": "\u2028\u0085"}'.encode()]),
        (b"nonsense\n", [b"nonsense"]),
    ],
)
def test_what_is_a_line(body: bytes, frames: list[bytes]):
    assert decode(body) == frames
    assert decode(*(bytes([each]) for each in body)) == frames


def test_no_line_may_be_too_long():
    body = b'{"a": 1}\n{"a": "%b"}\n' % (b"x" * 100)
    for reads in ([body], [bytes([each]) for each in body]):
        decoder = NDJSONDecoder(max_frame=50)
        given = []
        with pytest.raises(StreamError) as caught:  # noqa: PT012
            for read in reads:
                given += decoder.feed(read)
            decoder.close()
        assert given == [b'{"a": 1}']
        assert caught.value.reason == "oversized_frame"

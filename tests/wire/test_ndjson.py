"""The lines of newline-delimited JSON, however they are cut."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import AdapterError, Event, MessageCompleted, TextDelta, wire
from rxllm.testing import cut
from rxllm.values import StreamError
from rxllm.wire.framing import NDJSONDecoder


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


def test_a_frame_decoder_reads_ndjson_as_it_is() -> None:
    class Words(wire.FrameDecoder):
        def read(self, kind: str, payload: Any, frame: bytes, /) -> None:
            assert kind == "line"
            self.blocks.text(payload.get("word", ""))
            if payload.get("last"):
                self.end(over=True)

        def error_of(self, payload: Any) -> AdapterError:
            return AdapterError("unknown", str(payload))

    def read(*reads: bytes, max_frame: int = 99) -> list[Event]:
        framing = wire.NDJSONFraming(max_frame=max_frame)
        decoder = Words(framing, wire.Blocks(), msgspec.json.Decoder(), provider="words", raw=False)
        return [event for data in reads for event in decoder.feed(data)] + decoder.close()

    events = read(b'{"word": "Hel"}\n{"wo', b'rd": "lo"}\r\n{"last": true}')
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["Hel", "lo"]
    assert isinstance(events[-1], MessageCompleted)
    assert read(b'{"word": "too long"}\n', max_frame=5)[-1].error.reason == "oversized_frame"  # type: ignore[union-attr]

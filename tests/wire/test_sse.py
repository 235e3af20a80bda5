"""The rules of the event-stream format, and that no cut changes what is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.testing import cut
from rxllm.values import StreamError
from rxllm.wire.framing import SSEDecoder

PIECES = [
    b"data: {}\n\n",
    b"data: 1\r\n\r\n",
    b"data:2\r\r",
    b": ping\n\n",
    b"id: 7\n\n",
    b"event: error\n",
    b"data:\n\n",
    b"data: a\ndata: b\n\n",
    b"data\n",
    b"retry: 3\n",
    b"\n",
    b"\r",
    b"\xef\xbb\xbf",
    'data: "\u2028\u0085é"\n\n'.encode(),
    b"data: [DONE]",
    b'data: {"a"',
    b'{"whole": 1}',
    b"nonsense\n",
    b"x" * 40,
    b"error: x",
]


def frames(*reads: bytes, max_frame: int = 2**20):
    decoder = SSEDecoder(max_frame=max_frame)
    given = [frame for read in reads for frame in decoder.feed(read)]
    return given + decoder.close()


def outcome(*reads: bytes, max_frame: int):
    decoder, given = SSEDecoder(max_frame=max_frame), []
    try:
        for read in reads:
            given += decoder.feed(read)
        given += decoder.close()
    except StreamError as error:
        return given, error.reason
    return given, None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'data: {"a": 1}\n\n', [("message", b'{"a": 1}')]),
        (b"data:1\n\n", [("message", b"1")]),
        (b"data:  1\n\n", [("message", b" 1")]),
        (b"data: 1\r\n\r\n", [("message", b"1")]),
        (b"data: 1\r\rdata: 2\r\r", [("message", b"1"), ("message", b"2")]),
        (b"\xef\xbb\xbfdata: 1\n\n", [("message", b"1")]),
        (b": a comment\n\ndata: 1\n\n", [("message", b"1")]),
        (b"data: 1\n: a comment\n\n", [("message", b"1")]),
        (b"event: error\ndata: 1\n\ndata: 2\n\n", [("error", b"1"), ("message", b"2")]),
        (b"event: ping\n\ndata: 1\n\n", [("message", b"1")]),
        (b'error: {"code": 500}\n\ndata: [DONE]\n\n', [("error", b'{"code": 500}'), ("message", b"[DONE]")]),
        (b"data: 1\nerror: gone\n\n", [("message", b"1"), ("error", b"gone")]),
        (b"data: 1\n\nerror: gone", [("message", b"1"), ("error", b"gone")]),
        (b"data: a\ndata: b\n\n", [("message", b"a\nb")]),
        (b"data\ndata: b\n\n", [("message", b"\nb")]),
        (b"retry: 10\nunknown: x\ndata: 1\n\n", [("message", b"1")]),
        (b"\n\n\ndata: 1\n\n\n\n", [("message", b"1")]),
        (b" data: 1\n\n", []),
    ],
)
def test_the_format(body, expected):
    assert frames(body) == expected


def test_an_id_alone_dispatches_nothing():
    assert frames(b"id: 7\n\n: ping\n\ndata: 1\n\n") == [("message", b"1")]


def test_an_empty_heartbeat_dispatches_nothing():
    assert frames(b"data:\n\ndata: \n\ndata\n\ndata: 1\n\n") == [("message", b"1")]


def test_only_cr_and_lf_end_a_line():
    data = '{"a": "\u2028\u0085\x0b\x0c"}'.encode()
    assert frames(b"data: %b\n\n" % data) == [("message", data)]


def test_a_lf_in_the_next_read_belongs_to_its_cr():
    assert frames(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [("message", b"a\nb")]


def test_the_last_event_needs_no_blank_line_if_it_is_complete():
    assert frames(b'data: {"a": 1}') == [("message", b'{"a": 1}')]
    assert frames(b"data: [DONE]\n") == [("message", b"[DONE]")]
    assert frames(b'data: {"a": ') == []


def test_a_body_that_is_one_json_document_is_one_frame():
    assert frames(b'\n{"a":\r\n', b"\n 1}") == [("message", b'{"a":\n\n 1}')]
    assert frames(b'{"a": ') == []


@pytest.mark.parametrize(
    "body", [b"data: %b\n\n" % (b"x" * 50), b": " + b"x" * 50, b"{" + b"x" * 50, b"data: xx\n" * 20]
)
def test_an_oversized_frame_raises_after_the_frames_before_it(body):
    before = b"" if body.startswith(b"{") else b"data: 1\n\n"
    expected = [("message", b"1")] if before else []
    whole = outcome(before + body, b"", max_frame=40)
    single = outcome(*(bytes([each]) for each in before + body), max_frame=40)
    assert whole == single == (expected, "oversized_frame")


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b"  \n", b" ", b"\xef\xbb\xbf\n"])
@pytest.mark.parametrize("body", [b'data: {"a": 1}\n\n', b'{"a": 1}'])
def test_blank_lines_before_the_first_frame_are_not_kept(blank, body):
    """Otherwise, every read would copy all of them."""
    body = b"\n" + body if blank == b" " else body
    reads = [blank, *(blank[-1:] for _ in range(100)), body]
    assert frames(*reads, max_frame=20) == [("message", b'{"a": 1}')]


def test_many_frames_in_one_read_are_not_oversized():
    assert len(frames(b"data: 1\n\n" * 100, max_frame=10)) == 100


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=20),
    max_frame=st.sampled_from([12, 30, 2**20]),
)
def test_any_cut_gives_the_same_frames(pieces, cuts, max_frame):
    body = b"".join(pieces)
    cut_up = outcome(*cut(body, *(place for place in cuts if place < len(body))), max_frame=max_frame)
    assert cut_up == outcome(body, max_frame=max_frame)
    assert outcome(*(bytes([each]) for each in body), max_frame=max_frame) == outcome(body, max_frame=max_frame)


@pytest.mark.parametrize(
    ("lengths", "fits"), [((12, 7), True), ((12, 8), False), ((6, 6, 6), True), ((6, 6, 7), False)]
)
def test_the_bound_of_several_lines_is_that_of_their_joined_text(lengths: tuple[int, ...], fits: bool) -> None:
    body = b"".join(b"data:" + b"x" * length + b"\n" for length in lengths) + b"\n"
    for reads in ([body], [bytes([each]) for each in body]):
        given, reason = outcome(*reads, max_frame=20)
        assert (len(given), reason) == ((1, None) if fits else (0, "oversized_frame"))

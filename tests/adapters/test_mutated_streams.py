"""Whatever a server sends, a decoder raises nothing: what came before stands, and the events are lawful.

Hypothesis puts odd values, lines and bytes into streams that were written by hand and into recorded ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxllm import LLMError, Request
from rxllm.adapters import OpenAIChat
from rxllm.adapters.local.tools import CallDecoder
from rxllm.collector import StreamCollector
from rxllm.events import ErrorEvent
from rxllm.serializer import from_json, to_json
from rxllm.testing import cut
from tests.adapters import streams
from tests.adapters.mutated import DECODERS, Make, decode, mutant, mutants
from tests.corpus import recordings
from tests.examples import examples
from tests.wire.lawful import lawful

LONGEST = 50_000
"""Recorded streams of more bytes are left out: there is nothing in them that shorter ones have not."""


def assert_holds(make: Make, body: bytes, raw: bool, places: Sequence[float]) -> None:
    """Holds the laws on the decoder: of order, of chunking, and of JSON."""
    events = decode(make, raw, body)
    lawful(events)
    assert decode(make, raw, *cut(body, *(int(place * len(body)) for place in places))) == events
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
        assert not isinstance(event, ErrorEvent) or isinstance(event.error, LLMError)
        assert from_json(to_json(event)) == event
    response = state.to_response()
    assert from_json(to_json(response)) == response


cuts = st.lists(st.floats(0, 1), max_size=6)


@pytest.mark.parametrize("wire", DECODERS)
@given(data=st.data(), raw=st.booleans(), places=cuts)
@settings(max_examples=examples(300))
def test_no_mutation_of_a_hand_written_stream_escapes(
    wire: str, data: st.DataObject, raw: bool, places: list[float]
) -> None:
    make, bodies = DECODERS[wire]
    assert_holds(make, mutant(data, bodies), raw, places)


@cache
def recorded(wire: str) -> list[bytes]:
    return [recording.body for recording in recordings(wire) if len(recording.body) <= LONGEST]


@pytest.mark.parametrize("wire", DECODERS)
@given(data=st.data(), raw=st.booleans(), places=cuts)
def test_no_mutation_of_a_recorded_stream_escapes(
    wire: str, data: st.DataObject, raw: bool, places: list[float]
) -> None:
    assert_holds(DECODERS[wire][0], mutant(data, recorded(wire)), raw, places)


@given(body=mutants(streams.CHAT), raw=st.booleans(), places=cuts)
def test_no_mutation_escapes_from_the_calls_in_text_of_a_local_model(
    body: bytes, raw: bool, places: list[float]
) -> None:
    assert_holds(lambda raw: CallDecoder(OpenAIChat().decoder(Request(), raw=raw), Request()), body, raw, places)


@pytest.mark.parametrize("wire", DECODERS)
def test_the_streams_written_by_hand_are_read(wire: str) -> None:
    make, bodies = DECODERS[wire]
    for body in bodies:
        assert_holds(make, body, False, [0.5])
        assert len(decode(make, False, body)) > 1

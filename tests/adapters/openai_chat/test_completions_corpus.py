"""Every recorded stream of the legacy completions, ``choices[].text``, through the decoder of chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.collector import StreamCollector
from rxllm.events import Event, RawChunk
from rxllm.testing import chunkings, cut
from rxllm.values import Request, Response
from tests.corpus import Recording, recordings
from tests.wire.lawful import apart, lawful

pytestmark = pytest.mark.judges

httpx2 = pytest.importorskip("httpx2")
openai = pytest.importorskip("openai")


def decode(*chunks: bytes) -> list[Event]:
    decoder = OpenAIChat(api_key="k").decoder(Request(model="m"))
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.close()


def fold(body: bytes) -> Response[Any]:
    state = StreamCollector()
    for event in decode(body):
        state = state.apply_event(event)
    return state.to_response()


def chunks(recording: Recording) -> list[Any]:
    """What the official SDK reads."""
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=recording.body)
    with httpx2.Client(transport=httpx2.MockTransport(lambda request: answer)) as http:
        client = openai.OpenAI(api_key="none", http_client=http, max_retries=0)
        return list(client.completions.create(model="any", prompt="any", stream=True))


def streams() -> tuple[Recording, ...]:
    found = recordings("openai-completions")
    assert len(found) >= 8
    return found


def test_every_stream_is_lawful():
    for recording in streams():
        events = decode(recording.body)
        lawful(events)
        apart(events)
        assert not any(isinstance(event, RawChunk) for event in events), recording


def test_any_cut_gives_the_same_events():
    for recording in streams():
        whole, cut_up = (decode(*chunks) for chunks in chunkings(recording.body, cuts=50))
        assert cut_up == whole, recording
        assert decode(*cut(recording.body, *range(len(recording.body)))) == whole, recording


def test_the_text_is_all_that_the_choices_say():
    for recording in streams():
        frames = [line[6:] for line in recording.body.splitlines() if line.startswith(b"data: {")]
        texts = [choice["text"] for frame in frames for choice in json.loads(frame)["choices"]]
        assert fold(recording.body).output_text == "".join(texts) != "", recording


def test_the_fold_is_what_the_sdk_reads():
    counted = 0
    for recording in streams():
        response, read = fold(recording.body), chunks(recording)
        assert response.output_text == "".join(choice.text for chunk in read for choice in chunk.choices), recording
        reasons = [choice.finish_reason for chunk in read for choice in chunk.choices if choice.finish_reason]
        assert [response.finish_reason] == [response.raw_finish_reason] == reasons, recording
        assert (response.id, response.model) == (read[0].id, read[0].model), recording
        usage = next((chunk.usage for chunk in read if chunk.usage), None)
        said = usage and (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
        mine = response.usage
        counts = (mine.input_tokens, mine.output_tokens, mine.total_tokens)
        assert counts == (said or (None, None, None)), recording
        counted += said is not None
    assert counted >= 3

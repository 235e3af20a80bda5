"""The parts of a message or a thought, from servers that count them in their own way: each is said once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.events import RawChunk, TextCompleted, ThinkingCompleted
from tests.adapters.openai_responses.support import (
    COMPLETED,
    CREATED,
    added,
    begun,
    decode,
    delta,
    done,
    frame,
    message,
    response,
    said,
)


def texts(body: bytes) -> tuple[str, list[str]]:
    events, folded = said(CREATED + body + COMPLETED)
    return folded.output_text, [event.text for event in events if isinstance(event, TextCompleted)]


def thought(id: str, *texts: str) -> dict[str, Any]:
    parts = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": id, "summary": [], "content": parts}


def part(step: str, index: int, id: str, place: int, kind: str = "content_part") -> bytes:
    return frame(f"response.{kind}.{step}", output_index=index, item_id=id, content_index=place)


def test_an_index_that_counts_the_whole_response():
    thinking = added(0, thought("r1")) + delta("reasoning_text", 0, "r1", "Hm.", content_index=0)
    thinking += done(0, thought("r1", "Hm."))
    start = added(1, message("m1")) + part("added", 1, "m1", 1)
    answer = delta("output_text", 1, "m1", "Hi ", content_index=1) + delta(
        "output_text", 1, "m1", "you", content_index=1
    )
    assert texts(thinking + start + answer + done(1, message("m1", "Hi you"))) == ("Hi you", ["Hi you"])


@pytest.mark.parametrize("first", [0, 1, 7])
def test_an_index_that_counts_the_deltas(first: int):
    pieces = ["Hi", " ", "you"]
    deltas = [delta("output_text", 0, "m1", text, content_index=first + i) for i, text in enumerate(pieces)]
    body = begun(0, "m1") + b"".join(deltas)
    assert texts(body + done(0, message("m1", "Hi you"))) == ("Hi you", ["Hi you"])
    ended = response("completed", output=[message("m1", "Hi you")])  # the item's own end is missing
    assert said(CREATED + body + ended)[1].output_text == "Hi you"


def test_thoughts_that_are_counted_over_the_response_are_said_once_too():
    body = added(0, thought("r1")) + part("added", 0, "r1", 3, "reasoning_part")
    body += delta("reasoning_text", 0, "r1", "Hm", content_index=3) + delta(
        "reasoning_text", 0, "r1", ".", content_index=4
    )
    events, _ = said(CREATED + body + done(0, thought("r1", "Hm.")) + COMPLETED)
    assert [event.text for event in events if isinstance(event, ThinkingCompleted)] == ["Hm."]


def test_the_frames_round_a_part_of_a_thought_say_nothing():
    body = added(0, thought("r1")) + part("added", 0, "r1", 0, "reasoning_part")
    body += delta("reasoning_text", 0, "r1", "Hm.", content_index=0) + part("done", 0, "r1", 0, "reasoning_part")
    events = decode(CREATED + body + done(0, thought("r1", "Hm.")) + COMPLETED)
    assert not [event for event in events if isinstance(event, RawChunk)]


def test_what_the_deltas_left_out_is_said_at_the_end():
    start = begun(0, "m1", parts=2)
    first, second = delta("output_text", 0, "m1", "One"), delta("output_text", 0, "m1", "Tw", content_index=1)
    end = done(0, message("m1", "One", "Two"))
    assert texts(start + first + end)[0] == texts(start + first + second + end)[0] == "OneTwo"
    assert texts(start + second + end)[0] == "TwOneo"  # nothing that was said is taken back


def test_an_end_in_other_words_is_not_said_again():
    assert texts(begun(0, "m1") + delta("output_text", 0, "m1", "Hi \n") + done(0, message("m1", " Hi")))[0] == "Hi \n"


WORDS = st.lists(st.text("ab ", min_size=1, max_size=3), min_size=1, max_size=5)


@given(st.lists(WORDS, min_size=1, max_size=3), st.data())
def test_a_text_is_said_once_whatever_its_indices(parts: list[list[str]], data: st.DataObject):
    pieces = [piece for part in parts for piece in part]
    places = data.draw(st.lists(st.integers(0, 9), min_size=len(pieces), max_size=len(pieces)))
    sent = data.draw(st.integers(0, len(pieces)))  # the end says the rest
    deltas = [
        delta("output_text", 0, "m1", text, content_index=place) for text, place in zip(pieces, places, strict=True)
    ]
    end = done(0, message("m1", *("".join(part) for part in parts)))
    announced = begun(0, "m1", parts=data.draw(st.integers(0, 2)))
    assert texts(announced + b"".join(deltas[:sent]) + end)[0] == "".join(pieces)

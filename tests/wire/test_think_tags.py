"""Where the thinking of an answer that is one text ends."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rxllm.wire.think_tags import MOST_SPACES, ThinkTags

PIECES = ["<think>", "</think>", "<th", "ink>", "</", "think", "<", ">", " ", "\n", "Hm.", "Hi"]


def split(*deltas: str) -> tuple[str, str]:
    tags = ThinkTags()
    pieces = [piece for delta in deltas for piece in tags.feed(delta)] + list(tags.flush())
    thinking, text = ("".join(text for thought, text in pieces if thought is kind) for kind in (True, False))
    return thinking, text


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.lists(st.integers(0, 60), max_size=6))
def test_any_cut_gives_the_same_and_nothing_but_tags_and_spaces_is_lost(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    whole = split(text)
    assert split(*(text[start:end] for start, end in pairwise(places))) == whole
    if not text.lstrip().startswith("<think>"):
        assert whole == ("", text)


def test_thinking_that_is_not_closed_is_thinking() -> None:
    assert split("<think>Hm.</thi") == ("Hm.</thi", "")


def test_only_the_first_thought_is_thinking() -> None:
    assert split("<think>a</think>b<think>c</think>") == ("a", "b<think>c</think>")


def test_many_spaces_are_text_and_are_read_once() -> None:
    tags = ThinkTags()
    assert [*tags.feed(" " * MOST_SPACES)] == [(False, " " * MOST_SPACES)]
    assert tags.is_over

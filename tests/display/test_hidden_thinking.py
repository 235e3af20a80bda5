"""Displays of thinking that is not shown: that the model thinks, and roughly how much."""

from __future__ import annotations

from rxllm.display import timeline
from rxllm.display._card import Card, rows_and_status
from rxllm.display._html import cards_html
from rxllm.events import StepRestarted, TextDelta, ThinkingCompleted, ThinkingDelta
from rxllm.values import Timed


def test_a_card_shows_that_the_model_thinks_and_roughly_how_much() -> None:
    card = Card(0.0).add(ThinkingDelta("", "a", 1200), 1.0)
    assert "thinking, about 1,200 tokens" in cards_html({None: card}, 2.0)
    card = card.add(ThinkingDelta("", "a", 34), 2.0)
    assert rows_and_status(card, 2.0)[1][0] == "thinking, about 1,234 tokens"
    assert rows_and_status(Card(0.0).add(ThinkingDelta("", "a", 0), 1.0), 1.0)[1][0] == "thinking"
    for event in (ThinkingCompleted("", "sig", id="a"), TextDelta("Hi"), StepRestarted("timeout", 2)):
        assert "thinking" not in rows_and_status(card.add(event, 3.0), 3.0)[1][0]


def test_a_timeline_shows_how_much_the_model_thinks() -> None:
    thought = [ThinkingDelta("", "a", 600), ThinkingDelta("", "a", 600), ThinkingCompleted("", "sig", id="a")]
    run = timeline([Timed(float(at), event) for at, event in enumerate([*thought, TextDelta("Hi")])])
    assert "thinking: ~1,200 tok" in str(run)
    assert "about 1,200 tokens" in run.html()

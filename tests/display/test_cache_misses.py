"""Displays of a request whose beginning changed: what changed first, what was left out, and what the cache gave."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

import rxllm
from rxllm import Usage
from rxllm.display import Timeline, timeline
from rxllm.display._card import Card, rows_and_status
from rxllm.display._timeline_rows import joined
from rxllm.events import Event, MessageCompleted, MessageStarted, TextDelta, UsageUpdated
from rxllm.values import Message, PrefixReport, Timed

TWO = {"messages.1.content.0": "system", "messages.3.content.0": "system"}
ONE = {"messages.1.content.0": "system"}


def answer(cached: int | None, model: str = "claude", **metadata: Any) -> list[Event]:
    message = rxllm.assistant("Hi")
    started = MessageStarted(Message("assistant", (), metadata={"model": model}))
    usage = Usage(10_000, 20, cached_input_tokens=cached)
    return [started, UsageUpdated(usage), TextDelta("Hi"), MessageCompleted(message, "stop", metadata=metadata)]


def drawn(*answers: list[Event]) -> Timeline:
    return timeline([Timed(float(at), event) for at, event in enumerate(chain(*answers))])


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"prefix": PrefixReport("system", TWO)}, "system changed · 2 thoughts left out"),
        ({"prefix": PrefixReport("tools: weather")}, "tools: weather changed"),
        ({"prefix": PrefixReport("message 7", ONE)}, "message 7 changed · 1 thought left out"),
        ({"prefix": PrefixReport(None, TWO)}, "2 thoughts left out"),
        ({"cache_miss_reason": {"type": "tools_changed"}}, "tools changed"),
        ({"cache_miss_reason": {"type": "unavailable"}}, ""),
        ({"prompt_cache_diagnostics": {"type": "cache_miss", "reason": "input_changed"}}, "input changed"),
        ({"prompt_cache_diagnostics": {"type": "cache_miss", "reason": "context_compacted"}}, "context compacted"),
        ({"prompt_cache_diagnostics": {"type": "cache_hit"}}, ""),
        (
            {"prefix": PrefixReport(None, ONE), "cache_miss_reason": {"type": "model_changed"}},
            "model changed · 1 thought left out",
        ),
        ({"refused_thoughts": {"error": "no", "left_out": ["messages.1.content.0"]}}, "1 thought left out"),
        ({"refused_thoughts": {"error": "no", "left_out": []}}, ""),
        ({"input_transformations": [{"type": "thinking_dropped"}, {"type": "other"}, None]}, "1 thought left out"),
        ({"input_transformations": [{"type": "reasoning", "action": "removed"}] * 2}, "2 thoughts left out"),
        ({"prefix": PrefixReport(None, TWO), "refused_thoughts": {"left_out": ["a"]}}, "3 thoughts left out"),
        ({"prefix": "pre-", "cache_miss_reason": None, "prompt_cache_diagnostics": [1], "refused_thoughts": 2}, ""),
    ],
)
def test_a_timeline_shows_what_changed_and_what_was_left_out(metadata: dict[str, Any], text: str) -> None:
    run = drawn(answer(None, **metadata))
    row = run.rows[0]
    assert (joined(row.change, row.loss), row.bars[0].kind, row.bars[0].title) == (text, "waiting", text)
    assert text in str(run)
    assert all(run.html().count(part) > 2 for part in text.split(" · "))  # the waiting bar, the row and the table


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([answer(9000), answer(0)], "cached 9,000 → 0 tok"),
        ([answer(9000), answer(400)], "cached 9,000 → 400 tok"),
        ([answer(9000), answer(None)], "cached 9,000 → 0 tok"),
        ([answer(9000), answer(0, prefix=PrefixReport("system"))], "system changed · cached 9,000 → 0 tok"),
        ([answer(9000), answer(9000)], ""),
        ([answer(0), answer(9000)], ""),
        ([answer(None), answer(None)], ""),
        ([answer(9000), answer(0, "other")], ""),  # each model has a cache of its own
        ([answer(9000), answer(0, "other"), answer(10, "claude")], "cached 9,000 → 10 tok"),
    ],
)
def test_a_timeline_shows_that_fewer_tokens_were_cached_than_in_the_call_before(
    answers: list[list[Event]], text: str
) -> None:
    run = drawn(*answers)
    assert [joined(row.change, row.loss) for row in run.rows] == [*[""] * (len(answers) - 1), text]
    assert text in run.html()


def test_a_call_without_usage_is_not_a_miss() -> None:
    silent: list[Event] = [event for event in answer(0) if not isinstance(event, UsageUpdated)]
    assert [row.loss for row in drawn(answer(9000), silent, answer(50)).rows] == ["", "", "cached 9,000 → 50 tok"]


def test_a_card_shows_what_changed() -> None:
    card = Card(0.0)
    for event in answer(0, prefix=PrefixReport("system", TWO)):
        card = card.add(event, 1.0)
    assert rows_and_status(card, 2.0)[1][-3:-1] == ["system changed", "2 thoughts left out"]

"""The spending limit of generate_many: the batch never passes it, and a request waits for what others give back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Budget, Engine, Fake, Request, Response, StreamError, Usage, ValidationError
from rxllm import operators as ops
from rxllm.events import TextDelta
from rxllm.testing.marbles import record
from rxllm.values import estimated_tokens
from tests.examples import examples

CENTS = ops.cost(price=lambda usage: replace(usage, total_cost=usage.total * 0.01))
PROMPT = estimated_tokens(rxllm.request("a"))


def answering(fake: Fake, *operators: Any) -> Engine:
    """Return an engine whose tokens cost a cent each."""
    return Engine(fake, operators=[*operators, CENTS], retry=False)


def spent(responses: list[Response]) -> float:
    return sum(response.usage.total_cost or 0.0 for response in responses)


def reasons(responses: list[Response]) -> list[str | None]:
    return [response.error.reason if response.error else None for response in responses]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("is_journaled", [False, True])
def test_requests_beyond_the_limit_are_not_sent(tmp_path: Path, ordered: bool, is_journaled: bool) -> None:
    fake = Fake([("delay", 0.001), "Hi", Usage(PROMPT, 10)])
    journal = tmp_path / "out" if is_journaled else None
    limit = 3.5 * (PROMPT + 10) / 100
    batch = rxllm.generate_many(
        answering(fake), ["a"] * 20, usd=limit, max_tokens=10, concurrency=8, ordered=ordered, journal=journal
    )
    responses = batch.run()
    assert reasons(responses).count("budget_exceeded") == 17
    assert reasons(responses).count(None) == len(fake.requests) == 3
    assert spent(responses) == pytest.approx(3 * (PROMPT + 10) / 100)
    refused = next(response for response in responses if response.error)
    assert isinstance(refused.error, StreamError)
    assert "the request was not sent" in refused.error.message
    assert (refused.finish_reason, refused.output_text) == ("error", "")


@pytest.mark.parametrize("arriving", [False, True])
def test_a_request_that_does_not_fit_waits_until_others_use_less_than_they_reserved(arriving: bool) -> None:
    scheduler = TestScheduler()
    asked: list[float] = []

    def turn(request: Request) -> Any:
        asked.append(scheduler.clock - 200)
        return [("delay", 10.0), "Hi", Usage(PROMPT, 1)]

    limit = 2.5 * (PROMPT + 990) / 100  # for two reservations, or for all six answers
    requests: Any = reactivex.repeat_value("a", 6) if arriving else ["a"] * 6
    batch = rxllm.generate_many(answering(Fake(turn)), requests, usd=limit, max_tokens=990, concurrency=4)
    notes = record(scheduler, lambda: batch)
    assert reasons([what for _, kind, what in notes if kind == "next"]) == [None] * 6
    assert asked == [0, 0, 10, 10, 20, 20]


@pytest.mark.judges
@pytest.mark.parametrize("concurrency", [1, 8, 700])
def test_a_batch_ends_even_if_nothing_fits(concurrency: int) -> None:
    fake = Fake(["Hi", Usage(1, 1)])
    batch = rxllm.generate_many(answering(fake), ["a"] * 1500, usd=0.01, max_tokens=10, concurrency=concurrency)
    assert reasons(batch.run()) == ["budget_exceeded"] * 1500
    assert fake.requests == []


@pytest.mark.judges
def test_many_waiting_requests_end_when_the_money_is_gone() -> None:
    fake = Fake([("delay", 0.001), "Hi", Usage(PROMPT, 10)])
    limit = 1.5 * (PROMPT + 10) / 100
    batch = rxllm.generate_many(answering(fake), ["a"] * 1500, usd=limit, max_tokens=10, concurrency=700)
    assert reasons(batch.run()) == [None] + ["budget_exceeded"] * 1499


def test_each_subscription_has_its_own_limit() -> None:
    fake = Fake(["Hi", Usage(PROMPT, 10)])
    batch = rxllm.generate_many(answering(fake), ["a"] * 3, usd=2 * (PROMPT + 10) / 100, max_tokens=10)
    for _ in range(2):
        assert reasons(batch.run()) == [None, None, "budget_exceeded"]


def test_stored_answers_count_when_the_batch_is_run_again(tmp_path: Path) -> None:
    fake = Fake(["Hi", Usage(PROMPT, 10)])
    for sent in (3, 3, 4):
        limit = (max(sent, 3) + 0.5) * (PROMPT + 10) / 100
        responses = rxllm.generate_many(
            answering(fake), dict.fromkeys(range(6), "a"), usd=limit, max_tokens=10, journal=tmp_path / "out"
        ).run()
        assert (reasons(responses).count(None), len(fake.requests)) == (sent, sent)
        assert spent(responses) <= limit


def test_failures_give_their_reservation_back() -> None:
    def turn(request: Request) -> Any:
        is_bad = request.messages[-1].text == "bad"
        return AdapterError("invalid_request") if is_bad else [("delay", 0.001), "Hi", Usage(PROMPT, 1)]

    limit = 1.5 * (PROMPT + 100) / 100
    batch = rxllm.generate_many(answering(Fake(turn)), ["a", "bad", "bad", "a"], usd=limit, max_tokens=100)
    assert reasons(batch.run()) == [None, "invalid_request", "invalid_request", None]


def test_without_a_price_nothing_is_sent() -> None:
    fake = Fake("Hi")
    responses = rxllm.generate_many(fake, ["a", "b"], usd=1.0).run()
    assert fake.requests == []
    for response in responses:
        assert isinstance(response.error, ValidationError)
        assert "price=" in str(response.error)


def test_a_token_limit_of_the_engine_still_refuses_at_once() -> None:
    own = ops.budget(Budget(tokens=PROMPT + 10))
    fake = Fake([("delay", 0.001), "Hi", Usage(1, 1)])
    batch = rxllm.generate_many(answering(fake, own), ["a"] * 3, usd=100.0, max_tokens=10)
    assert reasons(batch.run()) == [None, "budget_exceeded", "budget_exceeded"]


@pytest.mark.parametrize("is_journaled", [False, True])
def test_a_budget_around_the_batch_counts_requests_that_have_waited(tmp_path: Path, is_journaled: bool) -> None:
    outer = Budget(tokens=100_000)
    fake = Fake([("delay", 0.001), "Hi", Usage(PROMPT, 1)])
    limit, journal = 1.5 * (PROMPT + 1000) / 100, tmp_path / "out" if is_journaled else None
    batch = rxllm.generate_many(answering(fake), ["a"] * 5, usd=limit, max_tokens=1000, journal=journal)
    events = rxllm.Stream.of(batch).pipe(ops.budget(outer))  # type: ignore[arg-type]
    assert len(list(events)) == len(fake.requests) == 5
    assert outer.spent.tokens == 5 * (PROMPT + 1)


@pytest.mark.parametrize("fails", [False, True])
def test_waiting_requests_are_not_sent_after_the_batch_is_left(fails: bool) -> None:
    def see(event: TextDelta) -> None:
        if fails:
            raise LookupError("mine")

    fake = Fake([("delay", 1.0), "Hi", Usage(PROMPT, 1)])
    limit = 1.5 * (PROMPT + 1000) / 100
    engine = answering(fake, ops.tap(see, TextDelta))
    batch = rxllm.generate_many(engine, ["a"] * 5, usd=limit, max_tokens=1000, ordered=False)
    notes = record(TestScheduler(), lambda: batch.take(1))
    assert reasons([what for _, kind, what in notes if kind == "next"]) == ["unknown" if fails else None]
    assert len(fake.requests) == 1


@pytest.mark.parametrize("usd", [0, -1.0, "5", float("nan"), True])
def test_the_limit_is_a_number_above_0(usd: Any) -> None:
    with pytest.raises(ValidationError, match="usd must be None or a positive number of dollars"):
        rxllm.generate_many(Fake("Hi"), ["a"], usd=usd)


def test_another_call_says_where_the_option_belongs() -> None:
    with pytest.raises(rxllm.EngineError, match="budget"):
        rxllm.generate(Fake("Hi"), "a", usd=1.0)  # type: ignore[call-arg]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.booleans()), max_size=14),
    st.integers(1, 120),
    st.integers(1, 6),
)
def test_no_batch_passes_its_limit_and_none_stops_early(
    answers: list[tuple[int, int, bool]], cents: int, concurrency: int
) -> None:
    """Each answer is (the most that it may take, what it takes, whether it arrives later)."""

    def turn(request: Request) -> Any:
        most, used, is_late = answers[int(request.messages[-1].text)]
        used = min(most, used)
        return [
            *([("delay", 0.0005)] if is_late else []),
            "Hi",
            Usage(0, min(most, used), total_tokens=min(most, used)),
        ]

    fake = Fake(turn)
    requests = [rxllm.request(str(index), max_tokens=most) for index, (most, _, _) in enumerate(answers)]
    batch = rxllm.generate_many(answering(fake), requests, usd=cents / 100, concurrency=concurrency)
    responses = batch.run()
    total = spent(responses)
    assert total <= cents / 100 + 1e-9
    assert len(responses) == len(answers)
    for request, response in zip(requests, responses, strict=True):
        if response.error is not None:
            assert response.error.reason == "budget_exceeded"
            assert total + (estimated_tokens(request) + (request.max_tokens or 0)) * 0.01 > cents / 100 - 1e-9
    assert len(fake.requests) == reasons(responses).count(None)

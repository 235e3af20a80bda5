"""Budgets in dollars: they price by themselves, refuse what has no price, and are never passed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import from_iterable

import rxllm
from rxllm import (
    Budget,
    Engine,
    Fake,
    OpenAIChat,
    StreamError,
    ToolCall,
    Usage,
    ValidationError,
    chat,
    generate,
    generate_many,
    models,
    stream,
    stream_generate,
    tool,
)
from rxllm import operators as ops
from rxllm.events import Event, MessageCompleted, TextDelta, UsageUpdated
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Loopback, Reply, chat_chunk, chat_finish
from rxllm.values import ModelInfo, estimated_tokens

CENT = lambda usage: replace(usage, total_cost=usage.total * 0.01)  # noqa: E731
"""A price: every token costs a cent."""

SHAPES: dict[str, Callable[..., Any]] = {
    "of a chat": lambda **limits: ops.budget(**limits),
    "shared": lambda **limits: ops.budget(Budget(**limits)),
}


def answers(text: str, **usage: int) -> Reply:
    stated = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15} | usage
    return Reply([chat_chunk(text), chat_finish(usage=stated)])


def engine_of(server: Loopback, *operators: Any, model: str = "gpt-4o-mini") -> Engine:
    return Engine(OpenAIChat(base_url=server.url), model=model, operators=operators, retry=False)


# What has no price is not sent


@pytest.mark.sockets
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", [1, -1])
def test_a_request_without_a_price_is_not_sent(shape: str, order: int) -> None:
    with Loopback(answers("Hi")) as server:
        operators = [SHAPES[shape](usd=0.05), ops.cost()][::order]
        with pytest.raises(ValidationError) as caught:
            generate(engine_of(server, *operators, model="of-my-own"), "Hi").run()
        assert server.requests == []
    for words in ("of-my-own", "price=", 'unpriced="allow"', "not sent"):
        assert words in str(caught.value)


@pytest.mark.sockets
@pytest.mark.parametrize("shape", SHAPES)
def test_nor_is_it_below_a_pipe(shape: str) -> None:
    with Loopback(answers("Hi")) as server:
        for events in (stream, stream_generate):
            asked = events(engine_of(server, model="of-my-own"), "Hi")
            with pytest.raises(ValidationError, match="unpriced="):
                asked.pipe(SHAPES[shape](usd=0.05)).run()
        assert server.requests == []


@pytest.mark.sockets
@pytest.mark.parametrize("order", [1, -1])
def test_nor_is_it_by_a_fallback_or_by_a_tool(order: int) -> None:
    with Loopback(answers("Hi")) as server:
        unknown = engine_of(server, model="of-my-own")
        down = Fake(rxllm.AdapterError("provider_unavailable"))
        models.put(ModelInfo("fake", input_price=1.0, output_price=1.0))
        try:
            operators = [ops.fallback(unknown), ops.budget(usd=0.05)][::order]
            with pytest.raises(ValidationError, match="of-my-own"):
                generate(Engine(down, operators=operators, retry=False), "Hi").run()

            @tool
            async def ask(question: str) -> str:
                """Ask another model."""
                return (await generate(unknown, question)).output_text

            asks = Fake(ToolCall("c", "ask", {"question": "Hi"}), "Done.")
            result = chat(Engine(asks, operators=[ops.budget(usd=0.05)]), "Hi", tools=[ask]).run()
        finally:
            models.clear()
        assert "of-my-own" in result.thread[-2].text
        assert server.requests == []


def test_it_is_sent_where_that_is_allowed_and_its_stated_cost_counts() -> None:
    shared = Budget(usd=1.0, unpriced="allow")
    engine = Engine(Fake(["Noon.", Usage(6, 2, total_cost=1.5)]), operators=[ops.budget(shared)])
    assert generate(engine, "When?").run().output_text == "Noon."
    with pytest.raises(StreamError, match="0 of 1 dollars left"):
        generate(engine, "When?").run()
    loose = Engine(Fake(["Noon.", Usage(6, 2)]), operators=[ops.budget(usd=0.001, unpriced="allow")])
    assert generate(loose, "When?").run().metadata["budget"] == {"usd": 0.001, "usd_spent": None}


def test_a_stream_of_elsewhere_without_a_price_ends_before_its_next_response() -> None:
    once = [TextDelta("Hi"), UsageUpdated(Usage(1, 1)), MessageCompleted(rxllm.assistant("Hi"), "stop")]
    events: list[Event] = [*list(stream_generate(Fake(["Hi", Usage(1, 1)]), "Hi")) * 2, *once]
    seen = list(rxllm.Stream.of(from_iterable(events)).pipe(ops.budget(usd=1.0), ops.errors_as_events()))
    assert "so the stream was cut off" in str(seen[-1].error)
    assert "unpriced=" in str(seen[-1].error)
    assert sum(isinstance(event, MessageCompleted) for event in seen) == 1


@pytest.mark.parametrize(("option", "value"), [("unpriced", "yes"), ("price", 3), ("price", 0.1)])
def test_wrong_options_are_refused_at_the_call(option: str, value: Any) -> None:
    for make in (Budget, ops.budget):
        with pytest.raises(ValidationError, match=option):
            make(usd=1.0, **{option: value})
    with pytest.raises(ValidationError, match=f"{option} must be left out"):
        ops.budget(Budget(usd=1.0), **{option: CENT if option == "price" else "allow"})  # type: ignore[call-overload]


# It prices by itself, wherever it stands


@pytest.mark.sockets
@pytest.mark.parametrize("shape", SHAPES)
def test_the_price_list_is_taken_without_a_cost_operator(shape: str) -> None:
    with Loopback(answers("Hi", prompt_tokens=1_000_000)) as server:
        engine = engine_of(server, SHAPES[shape](usd=0.01))
        response = generate(engine, "Hi", max_tokens=100).run()
        assert response.metadata["budget"]["usd_spent"] == pytest.approx(0.15, rel=0.01)
        with pytest.raises(StreamError, match="was not sent"):
            generate(engine_of(server, SHAPES[shape](usd=0.00001)), "Hi", max_tokens=100).run()
        assert len(server.requests) == 1


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_engine_s_own_price_is_taken_in_either_order(shape: str, order: int) -> None:
    operators = [ops.cost(price=CENT), SHAPES[shape](usd=1.0)][::order]
    response = generate(Engine(Fake(["Noon.", Usage(6, 2)]), operators=operators), "When?", max_tokens=20).run()
    assert response.metadata["budget"] == {"usd": 1.0, "usd_spent": 0.08}
    with pytest.raises(StreamError, match="1 dollars left, and this request may use"):
        generate(Engine(Fake("Noon."), operators=operators), "When?", max_tokens=200).run()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_budget_s_price_needs_no_list(shape: str) -> None:
    engine = Engine(Fake(["Noon.", Usage(6, 2)]), operators=[SHAPES[shape](usd=1.0, price=CENT)])
    assert generate(engine, "When?", max_tokens=20).run().metadata["budget"]["usd_spent"] == 0.08


def test_a_price_that_raises_is_the_call_s_error_and_nothing_is_sent() -> None:
    fake = Fake("Hi")
    for price, error in ((lambda usage: 1 / 0, ZeroDivisionError), (lambda usage: 0.5, ValidationError)):
        with pytest.raises(error):
            generate(Engine(fake, operators=[ops.budget(usd=1.0, price=price)]), "Hi").run()
    assert fake.requests == []


def test_a_chat_halts_before_the_step_that_may_pass_it() -> None:
    asks = Fake(lambda request: [ToolCall(f"c{len(request.messages)}", "now", {}), Usage(20, 5)])
    engine = Engine(asks, operators=[ops.budget(usd=1.0, price=CENT)])

    @tool
    def now() -> str:
        """The time."""
        return "12"

    result = chat(engine, "When?", tools=[now], max_tokens=20).run()
    assert (result.halted_reason, len(asks.requests)) == ("budget", 2)
    assert result.usage.total * 0.01 <= 1.0


# What a journal has spent


def test_the_spending_in_a_journal_counts_in_the_next_run(tmp_path: Path) -> None:
    asked: list[str] = []

    def model(request: Any) -> Any:
        asked.append(request.messages[-1].text)
        return ["Yes.", Usage(10, 10)]

    def run(shared: Budget, questions: list[str]) -> list[Any]:
        engine = Engine(Fake(model), operators=[ops.budget(shared)])
        return list(generate_many(engine, questions, journal=tmp_path / "out", max_tokens=10, concurrency=1))

    def cheap() -> Budget:
        return Budget(usd=1.0, price=CENT)

    first = cheap()
    run(first, ["a", "b"])
    assert first.spent.usd == pytest.approx(0.4)
    again = cheap()  # another process
    assert [one.error is None for one in run(again, ["a", "b", "c", "d", "e", "f"])] == [True] * 5 + [False]
    assert (asked, again.spent.usd) == (["a", "b", "c", "d", "e"], pytest.approx(1.0))
    before = again.spent
    run(again, ["a", "b", "c"])  # the same process has counted them
    assert again.spent == before


# Many at once, in any order


OPERATORS: dict[str, Callable[[], Any]] = {
    "cost": lambda: ops.cost(price=CENT),
    "restart": lambda: ops.restart({"base_delay": 0, "jitter": 0}),
    "retry": lambda: ops.retry_before_content({"base_delay": 0, "jitter": 0}),
    "hedge": lambda: ops.hedge(after=2.0),
    "limit": lambda: ops.rate_limited(concurrent=5),
    "guard": lambda: ops.guard(lambda text: None),
}


class Paid:
    """A model that keeps to `max_tokens`, states what it takes, and bills what it has sent: a cent a token."""

    def __init__(self, seed: int) -> None:
        self.cents = 0
        self._random = random.Random(seed)

    async def __call__(self, request: Any, call: Any) -> AsyncIterator[Event]:
        random, tokens = self._random, estimated_tokens(request)
        if random.random() < 0.2:
            raise rxllm.AdapterError("provider_unavailable")
        self.cents += tokens
        await asyncio.sleep(random.choice([0.0, 1.0, 4.0]))
        sent = random.randint(0, request.max_tokens)
        for _ in range(sent):
            self.cents += 1
            yield TextDelta("word")
            if random.random() < 0.1:
                await asyncio.sleep(0)
        if sent and random.random() < 0.15:
            raise StreamError("truncated")
        yield UsageUpdated(Usage(tokens, sent))


@pytest.mark.judges
@settings(max_examples=20, deadline=None)
@given(
    st.permutations(["budget", *OPERATORS]),
    st.integers(0, 6),
    st.integers(1, 40),
    st.integers(1, 1500),
    st.sampled_from(["engine", "pipe", "tool"]),
    st.integers(0, 10**6),
)
def test_many_calls_at_once_never_pass_it(
    order: list[str], dropped: int, most: int, cents: int, place: str, seed: int
) -> None:
    """The documented bound is 0: every request has `max_tokens`, and the model keeps to it and to the estimate."""

    async def calling_at_once(world: World) -> tuple[Paid, Budget]:
        paid = Paid(seed)
        shared = Budget(usd=cents / 100, price=CENT)
        kept = [name for name in order if name not in [*OPERATORS][:dropped]]
        operators = [
            ops.budget(shared) if name == "budget" else OPERATORS[name]()
            for name in kept
            if name != "budget" or place == "engine"
        ]
        engine = Engine(paid.__call__, operators=operators, retry=False)

        @tool
        async def ask(question: str) -> str:
            """Ask another model."""
            return (await generate(engine, question, max_tokens=most)).output_text

        if place == "engine":
            await generate_many(engine, map(str, range(12)), max_tokens=most, concurrency=12).to_list()
        elif place == "pipe":
            many = [stream_generate(engine, str(index), max_tokens=most) for index in range(12)]
            await (
                rxllm.Stream.of(from_iterable(many))
                .flat_map(lambda one: one.pipe(ops.errors_as_events()))
                .pipe(ops.budget(shared))
                .to_list()
            )
        else:
            calls = [ToolCall(f"c{index}", "ask", {"question": str(index)}) for index in range(12)]
            asks = Fake([*calls, Usage(0, 0)], "Done.")
            with contextlib.suppress(StreamError):  # too small a budget for the first request of the chat
                await chat(Engine(asks, operators=[ops.budget(shared)]), "Go", tools=[ask], max_tokens=most)
        return paid, shared

    paid, shared = simulate(calling_at_once, faults=()).value
    assert paid.cents <= cents
    assert paid.cents / 100 <= (shared.spent.usd or 0.0) + 1e-9
    assert (shared.spent.reserved, shared.spent.reserved_usd) == (0, 0.0)


@settings(max_examples=10, deadline=None)
@given(st.integers(1_005, 2_500), st.integers(1, 8), st.sampled_from([1, 7, 40]), st.booleans())
def test_without_max_tokens_it_is_passed_by_32_tokens_or_a_delta_for_each_call(
    cents: int, calls: int, size: int, is_shared: bool
) -> None:
    sent: list[int] = []

    async def endless(request: Any, call: Any) -> AsyncIterator[Event]:
        sent.append(estimated_tokens(request))
        while True:
            sent.append(size)
            yield TextDelta("word" * size)
            await asyncio.sleep(0)

    limits: Any = {"usd": cents / 100, "price": CENT}
    operator = ops.budget(Budget(**limits)) if is_shared else ops.budget(**limits)
    engine = Engine(endless, operators=[operator], retry=False)

    async def main() -> None:
        await generate_many(engine, ["Hi"] * (calls if is_shared else 1), concurrency=8).to_list()

    asyncio.run(main())
    assert sum(sent) <= cents + calls * (32 + size)

"""One budget for calls, chats, the calls of tools and many requests, on any loop and thread."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Subject, from_iterable
from reactivex import operators as rx
from reactivex.testing import TestScheduler

import rxllm
from rxllm import (
    AdapterError,
    Budget,
    ChatResult,
    Engine,
    Event,
    Fake,
    Stream,
    StreamError,
    Thread,
    ToolCall,
    Usage,
    ValidationError,
    chat,
    generate,
    generate_many,
    models,
    resume,
    serializer,
    session,
    stream,
    stream_generate,
    tool,
    user,
)
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    Nested,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UsageUpdated,
)
from rxllm.testing import World, assert_operator, simulate_cancels
from rxllm.testing.loopback import Loopback, Reply, chat_chunk, endless
from rxllm.testing.marbles import record
from rxllm.values import (
    Image,
    Message,
    ModelInfo,
    Response,
    Spending,
    StepResult,
    ThinkingPart,
    assistant,
    estimated_tokens,
    message_tokens,
    tool_result,
)
from tests.closing import assert_closes
from tests.examples import examples
from tests.runtime.support import model
from tests.testing.simulated import engine_of, slowly
from tests.waiting import wait_until

ANSWER = ["Noon.", Usage(6, 2)]

HI = message_tokens(user("Hi"))
"""What a request with this one message reserves, beside its answer."""


def under(budget: Budget, *scripts: Any, **options: Any) -> Engine:
    return Engine(Fake(scripts=list(scripts)) if len(scripts) > 1 else Fake(*scripts), **options).with_operators(
        ops.budget(budget)
    )


def refusal(budget: Budget, **options: Any) -> StreamError:
    with pytest.raises(StreamError) as raised:
        generate(under(budget, ANSWER), "When?", **options).run()
    assert raised.value.reason == "budget_exceeded"
    return raised.value


# Reservations


def test_a_request_reserves_its_messages_and_max_tokens_and_settles_what_is_stated() -> None:
    budget = Budget(tokens=100)
    seen: list[Spending] = []
    engine = under(budget, ANSWER).with_operators(ops.tap(lambda event: seen.append(budget.spent)))
    response = generate(engine, "Whe" * 4, max_tokens=50).run()
    assert seen[0] == Spending(reserved=50 + message_tokens(user("Whe" * 4)))
    assert budget.spent == Spending(8, calls=1, unpriced=1)
    assert response.metadata == {"budget": {"tokens": 100, "tokens_spent": 8}}


@pytest.mark.parametrize(
    ("info", "options", "reserved"),
    [
        (None, {}, HI + 1000),
        (ModelInfo("fake:m", max_output_tokens=40), {}, HI + 40),
        (ModelInfo("fake:m", max_output_tokens=40), {"max_tokens": 7}, HI + 7),
    ],
)
def test_the_catalogue_and_then_a_default_limit_the_answer(info: Any, options: Any, reserved: int) -> None:
    budget, seen = Budget(tokens=5000), []
    if info is not None:
        models.put(info)
    try:
        engine = under(budget, ANSWER, model="m").with_operators(ops.tap(lambda event: seen.append(budget.spent)))
        generate(engine, "Hi", **options).run()
    finally:
        models.clear()
    assert seen[0].reserved == reserved


def test_all_that_a_request_holds_is_counted_as_count_tokens_estimates_it() -> None:
    budget, seen = Budget(tokens=5000), list[Spending]()
    fake = Fake(ANSWER)
    engine = Engine(fake, operators=[ops.budget(budget), ops.tap(lambda event: seen.append(budget.spent))])
    call = ToolCall("c", "now", {"zone": "utc"}, '{"zone": "utc"}')
    calls = Message("assistant", (ThinkingPart("Which zone?" * 4),), tool_calls=(call,))
    picture = Image.from_binary(b"GIF89a", "image/gif")
    thread = Thread((user("时" * 40, picture), calls, tool_result("c", {"a": "b" * 10})))
    generate(engine, thread, max_tokens=10, tools=[now]).run()
    assert seen[0].reserved == 10 + estimated_tokens(fake.requests[0])
    assert seen[0].reserved > 10 + 30 + 1000 + 11  # three bytes a sign, the picture, and what was thought


def test_a_request_that_would_pass_the_budget_is_not_sent() -> None:
    budget = Budget(tokens=100)
    fake = Fake(ANSWER)
    engine = Engine(fake, operators=[ops.budget(budget)])
    with pytest.raises(StreamError, match=r"has 100 of 100 tokens left, and this request may use 106, .* max_tokens"):
        generate(engine, "When?", max_tokens=100).run()
    assert (fake.requests, budget.spent) == ([], Spending())
    assert generate(engine, "When?", max_tokens=94).run().output_text == "Noon."


def test_a_later_step_that_would_pass_it_halts_the_chat() -> None:
    budget = Budget(tokens=100)  # 25 are spent and the second request may use 62; 50, and the third may use 73
    asks = Fake(lambda request: [ToolCall(f"c{len(request.messages)}", "now", {}), Usage(20, 5)])
    engine = Engine(asks, operators=[ops.budget(budget)])
    result = chat(engine, "When?", tools=[now], max_tokens=20).run()
    assert (result.halted_reason, len(asks.requests), len(result.steps)) == ("budget", 2, 2)
    assert isinstance(result.error, StreamError)
    assert result.error.reason == "budget_exceeded"
    assert [message.role for message in result.thread] == ["user", "assistant", "tool", "assistant", "tool"]
    fresh = Budget(tokens=100)
    streamed = stream(Engine(asks, operators=[ops.budget(fresh)]), "When?", tools=[now], max_tokens=20)
    assert streamed.pipe(ops.verify(), ops.to_chat_result()).run() == result
    assert fresh.spent == budget.spent == Spending(50, calls=2, unpriced=2)


def test_an_answer_within_its_reservation_is_never_cut_and_one_beyond_it_is_cut_at_the_budget() -> None:
    engine = under(Budget(tokens=1030), ["x" * 4] * 2000)
    response = generate(engine, "Hi").run()
    assert (response.finish_reason, len(response.output_text)) == ("length", 4 * (1031 - HI))
    assert response.metadata["budget"] == {"tokens": 1030, "tokens_spent": 1031}
    assert response.metadata["halted_reason"] == "budget"
    whole = generate(under(Budget(tokens=1030), ["x" * 4] * (1030 - HI)), "Hi").run()
    assert whole.finish_reason == "stop"


def test_tokens_beyond_the_reservation_of_a_running_call_are_taken_from_the_others() -> None:
    budget = Budget(tokens=200)
    source = Subject[Event]()

    class Adapter:
        def stream(self, request: Any, call: Any) -> Any:
            return source

    models.put(ModelInfo("adapter:m", max_output_tokens=50))
    try:
        engine = Engine(Adapter(), model="m", operators=[ops.budget(budget)], retry=False)
        running = stream_generate(engine, "Hi").subscribe(lambda event: None)
    finally:
        models.clear()
    source.on_next(MessageStarted(assistant("")))
    assert budget.spent.reserved == 50 + HI
    source.on_next(TextDelta("x" * 4 * 149))
    assert budget.spent.reserved == 149 + HI
    refusal(budget, max_tokens=50)
    running.dispose()
    assert budget.spent == Spending(149 + HI, calls=1, estimated=149 + HI, unpriced=1)


def test_an_estimate_is_never_more_than_max_tokens() -> None:
    """The provider keeps to them, however long the words are."""
    budget = Budget(tokens=10 + HI)
    response = generate(under(budget, ["x" * 400, "y" * 400]), "Hi", max_tokens=10).run()
    assert (response.finish_reason, budget.spent.tokens) == ("stop", 10 + HI)


# Ends


def test_usage_that_nobody_has_stated_is_estimated_and_marked() -> None:
    budget, one = Budget(tokens=5000), message_tokens(user("y" * 20)) + 10
    generate(under(budget, ["x" * 40]), "y" * 20).run()
    assert budget.spent == Spending(one, calls=1, estimated=one, unpriced=1)
    with pytest.raises(AdapterError):
        generate(under(budget, AdapterError("invalid_request")), "y" * 20).run()
    assert budget.spent == Spending(one, calls=2, estimated=one, unpriced=1)
    response = generate(under(budget, ["x" * 40, StreamError("truncated")], retry=False), "y" * 20).run()
    assert response.error is not None
    assert budget.spent == Spending(2 * one, calls=3, estimated=2 * one, unpriced=2)


def test_tokens_that_have_arrived_when_a_call_is_left_count() -> None:
    budget = Budget(tokens=5000)
    stream_generate(under(budget, [Usage(30, 1), "x" * 40, "never"]), "Hi").pipe(
        ops.only(TextDelta), rx.take(1), ops.tap(lambda event: None)
    ).run()
    assert budget.spent == Spending(41, calls=1, estimated=10, unpriced=1)


def test_a_call_that_is_left_before_its_first_event_counts_its_request() -> None:
    budget = Budget(tokens=5000)
    fake = Fake([("delay", 5), "never"])
    subscription = stream_generate(Engine(fake, operators=[ops.budget(budget)]), "Hi").subscribe()
    wait_until(lambda: fake.requests)
    assert budget.spent.reserved > 0
    subscription.dispose()
    assert budget.spent == Spending(HI, calls=1, estimated=HI, unpriced=1)


def test_a_source_that_raises_gives_back_what_was_reserved() -> None:
    def broken(events: Any) -> Any:
        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            raise ValueError("mine")

        return Stream(subscribe)

    budget = Budget(tokens=5000)
    with pytest.raises(ValueError, match="mine"):
        generate(Engine(Fake("Hi"), operators=[broken, ops.budget(budget)]), "Hi").run()
    assert budget.spent.reserved == 0


def test_a_restart_was_paid_for_in_either_order() -> None:
    torn = ["12345678", ("error", "timeout")]
    for order in (1, -1):
        budget, lost = Budget(tokens=5000), message_tokens(user("four")) + 2
        operators = [ops.restart({"base_delay": 0}), ops.budget(budget)][::order]
        response = generate(Engine(Fake(torn, ["1234", Usage(7, 1)]), operators=operators), "four").run()
        assert (response.output_text, budget.spent.tokens, budget.spent.estimated) == ("1234", lost + 8, lost)
        assert budget.spent.calls == 2


def test_each_attempt_of_a_retry_after_it_reserves_anew() -> None:
    budget = Budget(tokens=5000)
    fake = Fake(AdapterError("timeout"), ANSWER)
    retry = ops.retry_before_content({"base_delay": 0, "jitter": 0})
    response = generate(Engine(fake, operators=[ops.budget(budget), retry], retry=False), "Hi").run()
    assert (response.output_text, budget.spent) == ("Noon.", Spending(8, calls=2, unpriced=1))


@pytest.mark.parametrize("order", [1, -1])
def test_a_hedge_counts_both_in_either_order(order: int) -> None:
    budget = Budget(tokens=5000)
    operators = [ops.budget(budget), ops.hedge(after=1)][::order]
    late = [("delay", 5), "Late."]
    answer = generate(Engine(Fake(late, ANSWER), operators=operators), "Hi")
    (first, kind, response), *_ = record(TestScheduler(), lambda: answer)
    assert (first, kind, response.output_text) == (1, "next", "Noon.")
    assert (budget.spent.calls, budget.spent.tokens, budget.spent.reserved) == (2, 8 + HI, 0)


def test_a_race_counts_each_of_its_streams() -> None:
    budget = Budget(tokens=5000)
    slow, quick = under(budget, [("delay", 5), "Well."]), under(budget, ANSWER)
    record(TestScheduler(), lambda: rxllm.race(stream_generate(slow, "Hi"), stream_generate(quick, "Hi")))
    assert budget.spent == Spending(8 + HI, calls=2, estimated=HI, unpriced=2)


@pytest.mark.parametrize("order", [1, -1])
def test_a_fallback_that_shares_it_counts_each_attempt_once(order: int) -> None:
    budget = Budget(tokens=5000)
    second = under(budget, AdapterError("provider_unavailable"), retry=False)
    third = under(budget, ANSWER)
    second = second.with_operators(ops.fallback(third))
    down = Fake(AdapterError("provider_unavailable"))
    operators = [ops.fallback(second), ops.budget(budget)][::order]
    response = generate(Engine(down, operators=operators, retry=False), "Hi").run()
    assert (response.output_text, budget.spent.tokens) == ("Noon.", 8)
    assert budget.spent.calls == 3  # two of which failed before their first event


def test_a_stream_that_shares_it_counts_once_below_it() -> None:
    budget = Budget(tokens=5000)
    other = stream_generate(under(budget, ANSWER), "Hi")
    down = Engine(Fake(AdapterError("provider_unavailable")), retry=False)
    engine = down.with_operators(ops.fallback(other), ops.budget(budget))
    assert generate(engine, "Hi").run().output_text == "Noon."
    assert budget.spent == Spending(8, calls=2, unpriced=1)


def test_one_that_an_operator_asks_counts_in_the_budgets_of_its_engine() -> None:
    budget = Budget(tokens=5000)
    down = Engine(Fake(AdapterError("provider_unavailable")), retry=False)
    engine = down.with_operators(ops.fallback(stream_generate(Fake(ANSWER), "Hi")), ops.budget(budget))
    assert generate(engine, "Hi").run().output_text == "Noon."
    assert budget.spent.tokens == 8


def test_two_in_one_engine_and_one_in_a_pipe_count_once() -> None:
    budget = Budget(tokens=5000)
    engine = under(budget, ANSWER).with_operators(ops.budget(budget))
    assert stream_generate(engine, "Hi").pipe(ops.budget(budget), ops.to_text()).run() == "Noon."
    assert budget.spent == Spending(8, calls=1, unpriced=1)


@pytest.mark.parametrize("order", [1, -1])
def test_a_call_that_an_operator_makes_for_itself_counts_too(order: int) -> None:
    budget = Budget(tokens=5000)
    judge = under(budget, ["Fine.", Usage(3, 1)])

    async def check(text: str) -> None:
        await generate(judge, text)

    engine = Engine(Fake(ANSWER), operators=[ops.guard(check), ops.budget(budget)][::order])
    assert generate(engine, "Hi").run().output_text == "Noon."
    assert budget.spent == Spending(12, calls=2, unpriced=2)


# Dollars


@pytest.fixture
def priced() -> Iterator[ModelInfo]:
    entry = ModelInfo("fake:m", input_price=1_000_000.0, output_price=2_000_000.0, cached_input_price=500_000.0)
    models.put(entry)
    yield entry
    models.clear()


def test_the_catalogue_s_price_is_reserved_and_settled_with_its_discounts(priced: ModelInfo) -> None:
    budget, seen, question = Budget(usd=100.0), list[Spending](), message_tokens(user("x" * 16))
    engine = under(budget, ["Noon.", Usage(4, 2, cached_input_tokens=2)], model="m")
    engine = engine.with_operators(ops.tap(lambda event: seen.append(budget.spent)))
    generate(engine, "x" * 16, max_tokens=10).run()
    assert seen[0] == Spending(reserved=question + 10, reserved_usd=question + 20.0)
    assert budget.spent == Spending(6, usd=2 + 1 + 4.0, calls=1)
    with pytest.raises(StreamError, match=r"has 93 of 100 dollars left, and this request may use 108"):
        generate(engine, "x" * 16, max_tokens=50).run()


def test_a_call_that_is_left_has_cost_what_the_catalogue_says(priced: ModelInfo) -> None:
    budget = Budget(usd=100.0)
    engine = under(budget, ["x" * 8, "never"], model="m")
    stream_generate(engine, "Hi", max_tokens=10).pipe(ops.only(TextDelta), rx.take(1), ops.tap(print)).run()
    assert budget.spent == Spending(HI + 2, usd=HI + 4.0, calls=1, estimated=HI + 2)


def test_an_answer_is_cut_at_the_dollars_if_the_catalogue_knows_the_price(priced: ModelInfo) -> None:
    budget = Budget(usd=3000.0 + HI)
    response = generate(under(budget, ["x" * 4] * 3000, model="m"), "Hi").run()
    assert response.finish_reason == "length"
    assert 3000 < (budget.spent.usd or 0.0) - HI <= 3000 + 2 * 33  # it is looked at every 32 tokens


def test_a_cost_that_is_known_afterwards_counts_and_blocks_what_follows() -> None:
    budget = Budget(usd=1.0, unpriced="allow")
    engine = under(budget, ["Noon.", Usage(6, 2, total_cost=0.5)])
    assert [generate(engine, "Hi").run().metadata["budget"]["usd_spent"] for _ in range(2)] == [0.5, 1.0]
    assert "0 of 1 dollars left, so the request was not sent; raise the budget" in refusal(budget).message


# Concurrency


def test_of_many_requests_those_beyond_it_are_errors() -> None:
    budget = Budget(tokens=1000)
    engine = Engine(Fake([("delay", 5), *ANSWER])).with_operators(ops.budget(budget))
    many = generate_many(engine, ["When?"] * 20, max_tokens=200, concurrency=8)
    responses = [value for _, kind, value in record(TestScheduler(), lambda: many) if kind == "next"]
    answered = [response for response in responses if response.error is None]
    assert [response.output_text for response in answered] == ["Noon."] * len(answered)
    assert len(responses) == 20
    errors = [response.error for response in responses if response.error is not None]
    assert {error.reason for error in errors} == {"budget_exceeded"}
    assert len(answered) == 4  # 206 tokens each; eight at once
    assert budget.spent == Spending(32, calls=4, unpriced=4)


@pytest.mark.judges
@settings(max_examples=15, deadline=None)
@given(st.integers(50, 3000), st.integers(1, 60), st.integers(0, 12))
def test_calls_on_one_loop_and_on_many_threads_never_overspend(limit: int, most: int, used: int) -> None:
    budget = Budget(tokens=limit)
    engine = under(budget, [("delay", 0.001), "Noon.", Usage(1, min(used, most))])
    totals: list[int] = []
    engine = engine.with_operators(ops.tap(lambda event: totals.append(_committed(budget))))

    async def on_a_loop() -> list[Response]:
        return await generate_many(engine, ["When"] * 25, max_tokens=most, concurrency=25).to_list()

    with ThreadPoolExecutor(4) as threads:
        runs = list(threads.map(lambda _: asyncio.run(on_a_loop()), range(4)))
    answered = [response for run in runs for response in run if response.error is None]
    assert len([response for run in runs for response in run]) == 100
    assert budget.spent.tokens == sum(response.usage.total for response in answered)
    assert (budget.spent.calls, budget.spent.reserved) == (len(answered), 0)
    assert max(totals, default=0) <= limit
    assert len(answered) >= min(100, limit // (most + message_tokens(user("When"))))


def _committed(budget: Budget) -> int:
    return budget.spent.tokens + budget.spent.reserved


endings = st.sampled_from(["stop", "error", "left", "failed"])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(endings, st.integers(0, 50), st.integers(0, 50), st.integers(0, 8)), max_size=12))
def test_the_spending_is_the_sum_of_the_calls_reports(calls: list[tuple[str, int, int, int]]) -> None:
    budget = Budget(tokens=10**6, usd=10.0**6, unpriced="allow")
    expected = Usage(0, 0)
    for end, before, after, eighths in calls:
        usage = Usage(before, after, total_cost=eighths / 8)
        script: list[Any] = ["Noon", usage]
        if end == "failed":
            script = [AdapterError("invalid_request")]
        elif end == "error":
            script.append(StreamError("truncated"))
        elif end == "left":
            script = [usage, "", ("delay", 60.0)]
        events = stream_generate(under(budget, script, retry=False), "Hi").pipe(ops.errors_as_events())
        if end == "left":
            events = events.pipe(ops.only(UsageUpdated), rx.take(1), ops.tap(lambda event: None))
        events.run()
        expected += Usage() if end == "failed" else usage
        assert budget.spent.tokens >= 0
    spent = budget.spent
    assert (spent.tokens, spent.usd or 0.0) == (expected.total, expected.total_cost or 0.0)
    assert (spent.calls, spent.reserved, spent.reserved_usd, spent.estimated) == (len(calls), 0, 0.0, 0)
    assert serializer.from_json(serializer.to_json(spent)) == spent
    assert Budget(tokens=1, spent=spent).spent == spent


async def reserving(world: World) -> None:
    budget = Budget(tokens=20_000, usd=1.0, price=lambda usage: replace(usage, total_cost=usage.total / 1e6))
    server = world.serve(slowly)
    engine = engine_of(server, operators=[ops.budget(budget), ops.hedge(after=0.3)])

    @tool
    async def ask(question: str) -> str:
        """Ask another model."""
        return (await generate(engine_of(server), question)).output_text

    asks = Engine(Fake(ToolCall("c", "ask", {"question": "Hi"}), "Done."), operators=[ops.budget(budget)])
    everything = asyncio.gather(
        generate_many(engine, map(str, range(4)), concurrency=2).to_list(),
        stream(asks, "Hi", tools=[ask]).pipe(ops.budget(budget)).to_list(),
    )
    await world.cancellable(everything)
    await asyncio.sleep(1)
    assert (budget.spent.reserved, budget.spent.reserved_usd) == (0, 0.0)


@pytest.mark.timeout(600)
@pytest.mark.judges
def test_nothing_stays_reserved_wherever_it_is_cancelled() -> None:
    simulate_cancels(reserving)


@pytest.mark.sockets
def test_the_socket_of_a_call_that_passes_it_is_closed() -> None:
    async def ask(server: Loopback) -> None:
        response = await generate(model(server).with_operators(ops.budget(Budget(tokens=1_100))), "Hi")
        assert response.finish_reason == "length"

    assert_closes(ask, Reply(endless(lambda i: chat_chunk("word " * 20))))


def test_a_dispose_on_another_thread_settles() -> None:
    budget = Budget(tokens=5000)
    begun = threading.Event()
    engine = under(budget, ["Noon", ("delay", 60.0)])
    running = stream_generate(engine, "Hi").pipe(ops.only(TextDelta)).subscribe(lambda event: begun.set())
    wait_until(begun.is_set)
    running.dispose()
    assert budget.spent == Spending(HI + 1, calls=1, estimated=HI + 1, unpriced=1)


# The calls of tools, and agents


@tool
def now() -> str:
    """The time."""
    return "12"


def asker(child: Engine) -> Any:
    @tool
    async def ask(question: str) -> str:
        """Ask another model."""
        return (await generate(child, question, max_tokens=20)).output_text

    return ask


def asking(steps: int = 9) -> Fake:
    calls = [[ToolCall(f"c{i}", "ask", {"question": "When"}), Usage(10, 5)] for i in range(steps)]
    return Fake(scripts=[*calls, ["Done.", Usage(10, 5)]])


def test_one_that_parent_and_child_share_counts_each_call_once() -> None:
    budget = Budget(tokens=5000)
    child = Fake(["Noon.", Usage(20, 10)])
    engine = Engine(asking(2), operators=[ops.budget(budget)])
    result = chat(engine, "Go", tools=[asker(under(budget, ["Noon.", Usage(20, 10)]))], max_tokens=20).run()
    assert (result.halted_reason, budget.spent) == ("completed", Spending(3 * 15 + 2 * 30, calls=5, unpriced=5))
    again = Budget(tokens=5000)
    chat(Engine(asking(2), operators=[ops.budget(again)]), "Go", tools=[asker(Engine(child))], max_tokens=20).run()
    assert again.spent == budget.spent  # the child's engine does not know of it


def test_one_of_the_parent_holds_for_its_children(caplog: pytest.LogCaptureFixture) -> None:
    budget = Budget(tokens=100)
    child = Fake(["Noon.", Usage(20, 10)])
    engine = Engine(asking(), operators=[ops.budget(budget)])
    result = chat(engine, "Go", tools=[asker(Engine(child))], max_tokens=20).run()
    # 15 for the first step and 30 for the child leave no room for the second step, which may use 70 or more.
    assert (result.halted_reason, len(result.steps), len(child.requests)) == ("budget", 1, 1)
    assert budget.spent == Spending(45, calls=2, unpriced=2)


def test_a_chat_s_own_budget_counts_what_its_tools_use_over_its_steps() -> None:
    child = Fake(["Noon.", Usage(20, 10)])
    engine = Engine(asking(), operators=[ops.budget(tokens=100)])
    result = chat(engine, "Go", tools=[asker(Engine(child))]).run()
    assert (result.halted_reason, len(child.requests)) == (
        "budget",
        2,
    )  # the third step passes it
    assert result.final_response is not None
    assert result.final_response.metadata["budget"] == {"tokens": 100, "tokens_spent": 3 * 15 + 2 * 30}
    assert chat(engine, "Go", tools=[now]).run().steps  # the next chat begins anew


def test_a_child_is_cut_at_the_budget_of_its_parent_s_chat() -> None:
    answers: list[str] = []

    @tool
    async def ask(question: str) -> str:
        """Ask another model."""
        response = await generate(Fake(["x" * 40] * 50), question)
        answers.append(response.output_text)
        return response.output_text

    result = chat(Engine(asking(), operators=[ops.budget(tokens=100)]), "Go", tools=[ask]).run()
    assert answers == ["x" * 40 * 9]  # 15 tokens were spent, and nine pieces of 10 pass the 100
    assert (result.halted_reason, len(result.steps)) == ("budget", 1)


def test_it_reaches_a_child_s_child() -> None:
    budget = Budget(tokens=5000)
    inner = asker(Engine(Fake(["Noon.", Usage(20, 10)])))

    @tool
    async def ask(question: str) -> str:
        """Ask an agent."""
        return (await chat(asking(1), question, tools=[inner])).output_text

    chat(Engine(asking(1), operators=[ops.budget(budget)]), "Go", tools=[ask]).run()
    assert budget.spent == Spending(4 * 15 + 30, calls=5, unpriced=5)


def test_a_tool_that_runs_in_a_resumed_chat_keeps_to_it() -> None:
    budget = Budget(tokens=5000)
    child = Engine(Fake(["Noon.", Usage(20, 10)]))

    @tool(approval=True)
    async def ask(question: str) -> str:
        """Ask another model."""
        return (await generate(child, question)).output_text

    engine = Engine(asking(1), operators=[ops.budget(budget)])
    halted = chat(engine, "Go", tools=[ask]).run()
    assert (halted.halted_reason, budget.spent.tokens) == ("approval", 15)
    result = resume(engine, halted, tools=[ask], approvals={"c0": True}).run()
    assert (result.halted_reason, budget.spent) == ("completed", Spending(15 + 30 + 15, calls=3, unpriced=3))


def test_a_session_can_be_read_after_it_was_halted() -> None:
    budget = Budget(tokens=70)  # the first request may use 59, and 15 are spent when the second may use more
    engine = Engine(asking(), operators=[ops.budget(budget)])
    turn = session.start(engine, "Go", tools=[now_as_ask()], max_tokens=20).run()
    assert isinstance(turn.result, ChatResult)
    assert turn.result.halted_reason == "budget"
    assert serializer.from_json(serializer.to_json(turn.session)) == turn.session
    again = session.reply(Engine(Fake("Done.")), replace(turn.session, status="idle"), "Go on!").run()
    assert again.output_text == "Done."


def now_as_ask() -> Any:
    @tool(name="ask")
    def ask(question: str) -> str:
        """The time."""
        return "12"

    return ask


def test_in_a_pipe_it_holds_for_all_calls_of_the_chat() -> None:
    budget = Budget(tokens=5000)
    child = Engine(Fake(["Noon.", Usage(20, 10)]))
    events = stream(asking(2), "Go", tools=[asker(child)]).pipe(ops.budget(budget))
    result = events.pipe(ops.verify(), ops.to_chat_result()).run()
    assert result.halted_reason == "completed"
    assert budget.spent == Spending(3 * 15 + 2 * 30, calls=5, unpriced=5)
    tight = Budget(tokens=100)
    events = stream(asking(2), "Go", tools=[asker(child)], max_tokens=20).pipe(ops.budget(tight))
    assert events.pipe(ops.to_chat_result()).run().halted_reason == "budget"
    assert tight.spent == Spending(45, calls=2, unpriced=2)


def test_in_a_pipe_a_chat_has_a_budget_over_its_steps() -> None:
    events = stream(asking(), "Go", tools=[now_as_ask()]).pipe(ops.budget(tokens=40))
    result = events.pipe(ops.to_chat_result()).run()
    assert (result.halted_reason, len(result.steps), result.usage.total) == ("budget", 3, 45)
    assert result.error is not None
    assert "the stream has exceeded its budget of 40 tokens and was cut off" in result.error.message
    long = Fake(scripts=[[ToolCall("c0", "ask", {"question": "?"}), Usage(10, 5)], ["x" * 40] * 9])
    result = stream(long, "Go", tools=[now_as_ask()]).pipe(ops.budget(tokens=40), ops.to_chat_result()).run()
    assert (result.halted_reason, len(result.steps), result.error) == ("budget", 1, None)


def nested(*events: Event, path: tuple[str, ...] = ("c1",)) -> list[Event]:
    return [Nested(path, event) for event in events]


STEP = [
    MessageStarted(assistant("")),
    TextDelta("x" * 8),
    TextCompleted("x" * 8),
    UsageUpdated(Usage(3, 2)),
    MessageCompleted(assistant("x" * 8), "tool_calls"),
    ToolExecutionStarted("c1", "ask", {}),
]
CHILD = [
    MessageStarted(assistant("")),
    TextDelta("x" * 16),
    TextDelta("x" * 16),
    UsageUpdated(Usage(10, 20)),
    TextDelta("x" * 4),
    MessageCompleted(assistant("x" * 36), "stop"),
]
DONE = StepCompleted(StepResult(Thread(), Response(assistant("x" * 8), usage=Usage(3, 2))))


@pytest.mark.parametrize("make", [lambda: Budget(tokens=1000), None])
def test_the_events_of_agents_count_as_they_come(make: Callable[[], Budget] | None) -> None:
    shared = make() if make is not None else None
    counter = ops.budget(tokens=1000) if shared is None else ops.budget(shared)
    events = [*STEP, *nested(*CHILD), *nested(*CHILD[:2], path=("c1", "d")), DONE, *STEP[:-1]]
    seen = list(from_iterable(events).pipe(counter))
    spent = [event.metadata["budget"]["tokens_spent"] for event in seen if isinstance(event, MessageCompleted)]
    if shared is None:
        assert spent == [5, 5 + 31 + 4 + 5 - 4]  # the second child has not ended
    else:
        assert shared.spent == Spending(5 + 31 + 4 + 5, calls=4, estimated=5, unpriced=4)
    assert [event for event in seen if not isinstance(event, MessageCompleted)] == [
        event for event in events if not isinstance(event, MessageCompleted)
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_an_agent_that_passes_it_in_a_pipe_ends_the_stream(shared: bool) -> None:
    source = Subject[Event]()
    counter = ops.budget(Budget(tokens=12)) if shared else ops.budget(tokens=12)
    seen: list[Event] = []
    ends: list[str] = []
    source.pipe(counter).subscribe(seen.append, on_completed=lambda: ends.append("end"))
    for event in [*STEP, *nested(*CHILD)]:
        source.on_next(event)
    assert seen[-5:-2] == nested(*CHILD[1:3], TextCompleted("x" * 32))
    assert isinstance(seen[-2], ToolExecutionCompleted)
    assert getattr(seen[-2].error, "reason", None) == "cancelled"
    assert isinstance(seen[-1], ErrorEvent)
    assert seen[-1].error.reason == "budget_exceeded"
    assert "12 tokens" in seen[-1].error.message
    assert (ends, source.observers) == (["end"], [])


def test_a_stream_of_events_without_a_call_is_counted_and_cut() -> None:
    budget = Budget(tokens=6)
    seen = list(from_iterable([*STEP[:-1], *STEP[:-1]]).pipe(ops.budget(budget)))
    assert [event.finish_reason for event in seen if isinstance(event, MessageCompleted)] == ["tool_calls", "length"]
    assert budget.spent == Spending(7, calls=2, estimated=2, unpriced=2)


def test_a_restart_in_a_stream_of_events_counts() -> None:
    budget = Budget(tokens=100)
    list(from_iterable([*STEP[:2], StepRestarted("timeout", 2), *STEP[:-1]]).pipe(ops.budget(budget)))
    assert budget.spent == Spending(7, calls=1, estimated=2, unpriced=1)


def test_it_keeps_every_rule_of_operators() -> None:
    assert_operator(lambda: ops.budget(Budget(tokens=10**9)), without={"afresh", "apart", "subscribed_inside"})


# The value


def test_it_goes_on_where_another_program_stopped() -> None:
    first = Budget(tokens=100, usd=1.0, unpriced="allow")
    generate(under(first, ["Noon.", Usage(60, 10, total_cost=0.25)]), "Hi", max_tokens=20).run()
    text = serializer.to_json(first.spent)
    assert text == '{"$": "Spending", "tokens": 70, "usd": 0.25, "calls": 1, "v": 1}'
    again = Budget(tokens=100, usd=1.0, unpriced="allow", spent=serializer.from_json(text, Spending))
    assert again.spent == first.spent
    refusal(again, max_tokens=40)


def test_a_reservation_of_a_program_that_died_is_spent() -> None:
    died = Spending(10, 0.5, calls=1, reserved=20, reserved_usd=0.25)
    assert Budget(tokens=100, spent=died).spent == Spending(30, 0.75, calls=1, estimated=20)


def test_it_shows_its_limits_and_what_was_spent() -> None:
    assert repr(Budget(tokens=5)) == "Budget(tokens=5, spent=Spending())"
    assert repr(Budget(usd=0.5, spent=Spending(3))) == "Budget(usd=0.5, spent=Spending(tokens=3))"


def test_it_is_not_pickled() -> None:
    with pytest.raises(TypeError, match=r"create a Budget\(\.\.\., spent=spending\) in the other process"):
        pickle.dumps(Budget(tokens=5))


def test_a_copy_of_an_engine_shares_it() -> None:
    budget = Budget(tokens=5000)
    for engine in (under(budget, ANSWER), copy.deepcopy(under(budget, ANSWER))):
        generate(engine, "Hi").run()
    assert budget.spent.calls == 2


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({}, "tokens"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": 1.5}, "tokens"),
        ({"usd": 0}, "usd"),
        ({"usd": float("nan")}, "usd"),
        ({"tokens": 1, "spent": {"tokens": 3}}, "spent"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Budget(**limits)


def test_a_shared_one_has_its_own_limits() -> None:
    with pytest.raises(ValidationError, match="usd must be left out"):
        ops.budget(Budget(tokens=1), usd=1.0)  # type: ignore[call-overload]

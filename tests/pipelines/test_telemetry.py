"""What an engine's observers are told, in virtual time: each start has one finish, and durations are exact."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields
from msgspec.structs import replace as replace_struct
from reactivex import operators as rx
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Engine, Fake, Request, RetryPolicy, StreamError, ToolCall, ToolError, Usage, tool
from rxllm.pipelines import resume
from rxllm.telemetry import (
    CallDetails,
    CallFinished,
    CallStarted,
    ChatFinished,
    ChatStarted,
    FirstToken,
    RetryAttempt,
    StepFinished,
    StepStarted,
    Telemetry,
    ToolFinished,
    ToolStarted,
)
from rxllm.testing import World, simulate
from rxllm.testing.marbles import record
from rxllm.values import Call

ID = "r1"
ABOUT = (ID, "Fake", "small")
STARTS = {CallStarted: CallFinished, StepStarted: StepFinished, ToolStarted: ToolFinished, ChatStarted: ChatFinished}


@tool
def double(x: int) -> int:
    return 2 * x


def watched(fake: Any, **options: Any) -> tuple[Engine, list[Telemetry]]:
    """An engine, and what its observer is told; ids, which are random, and details have tests of their own."""
    told: list[Telemetry] = []

    def tell(value: Telemetry) -> None:
        assert value.id
        plain: Any = {"details": CallDetails()} if hasattr(value, "details") else {}
        told.append(replace_struct(value, id="", parent_id=None, path=(), **plain))

    return Engine(fake, model="small", observers=(tell,), **options), told


def heard(function: Any, fake: Any, disposed: int | None = None, engine: Any = None, **opts: Any) -> list[Telemetry]:
    """What is told of one subscription in virtual time."""
    made, told = watched(fake, **(engine or {}))
    record(TestScheduler(), lambda: function(made, "Hi", request_id=ID, **opts), disposed)
    return told


def assert_paired(told: list[Telemetry]) -> None:
    """Each start has one finish, later; spans are nested but for tools, which run side by side."""
    open_spans: list[Any] = []
    for each in told:
        if type(each) in STARTS:
            open_spans.append((STARTS[type(each)], getattr(each, "tool_call_id", None)))
        elif type(each) in STARTS.values():
            key = (type(each), getattr(each, "tool_call_id", None))
            assert key in open_spans
            assert key == open_spans[-1] or type(each) is ToolFinished
            open_spans.remove(key)
    assert open_spans == []


# One call


def test_a_call_is_timed_from_its_start_until_its_stream_has_drained() -> None:
    fake = Fake([("delay", 3.0), "Hel", ("delay", 4.0), "lo", Usage(3, 2), ("delay", 5.0)])
    for function in (rxllm.generate, rxllm.stream_generate):
        assert heard(function, fake) == [
            CallStarted(*ABOUT),
            FirstToken(*ABOUT, 3.0),
            CallFinished(*ABOUT, "completed", 12.0, "stop", Usage(3, 2)),
        ]


def test_the_finish_is_told_before_the_subscriber_hears_of_the_end() -> None:
    engine, told = watched(Fake("Hello"))
    seen: list[int] = []
    rxllm.generate(engine, "Hi").subscribe(lambda response: seen.append(len(told)))
    assert seen == [len(told)] == [3]


@pytest.mark.parametrize(
    ("script", "tokens", "finish"),
    [
        ([AdapterError("timeout")], 0, ("failed", 0.0, "error", Usage(), AdapterError("timeout"))),
        (
            ["Hi", ("delay", 2.0), StreamError("truncated")],
            1,
            ("failed", 2.0, "error", Usage(), StreamError("truncated")),
        ),
        (
            [Usage(7), ("error", "timeout")],
            0,
            ("failed", 0.0, "error", Usage(7), AdapterError("timeout", provider="fake")),
        ),
        ([("finish", "length")], 0, ("completed", 0.0, "length", Usage())),
        ([("thinking", "hm")], 1, ("completed", 0.0, "stop", Usage())),
        ([ToolCall("c1", "double")], 1, ("completed", 0.0, "tool_calls", Usage())),
    ],
)
def test_how_a_call_ended(script: list[Any], tokens: int, finish: Any) -> None:
    told = heard(rxllm.generate, Fake(script), retry=False)
    assert told[0] == CallStarted(*ABOUT)
    assert [type(each) for each in told[1:-1]] == [FirstToken] * tokens
    assert told[-1] == CallFinished(*ABOUT, *finish)


def test_the_finish_says_what_the_response_says() -> None:
    engine, told = watched(Fake(["Hello", ToolCall("c1", "double"), Usage(1, 2)]))
    response = rxllm.generate(engine, "Hi", tools=[double]).run()
    finished = told[-1]
    assert isinstance(finished, CallFinished)
    assert (finished.finish_reason, finished.usage) == (response.finish_reason, response.usage)


def test_a_call_that_is_left_is_cancelled_once() -> None:
    told = heard(rxllm.stream_generate, Fake(["a", Usage(5), ("delay", 10.0), "b"]), disposed=4)
    assert told == [
        CallStarted(*ABOUT),
        FirstToken(*ABOUT, 0.0),
        CallFinished(*ABOUT, "cancelled", 4.0, None, Usage(5)),
    ]


def test_leaving_after_the_last_word_is_not_cancelling() -> None:
    def left(engine: Any, asked: str, **opts: Any) -> Any:
        return rxllm.stream(engine, asked, **opts).pipe(
            rx.take_while(lambda event: not isinstance(event, rxllm.ChatCompleted), inclusive=True)
        )

    told = heard(left, Fake("Hello"))
    assert_paired(told)
    assert {each.outcome for each in told if isinstance(each, CallFinished | StepFinished | ChatFinished)} == {
        "completed"
    }


def test_a_request_that_is_refused_before_it_is_sent_starts_no_call() -> None:
    engine, told = watched(Fake("Hi"))
    with pytest.raises(rxllm.ValidationError):
        rxllm.generate(engine, []).run()
    assert told == []
    with pytest.raises(rxllm.ValidationError):
        rxllm.chat(engine, []).run()
    assert [type(each) for each in told] == [ChatStarted, StepStarted, StepFinished, ChatFinished]


def test_an_adapter_that_raises_has_failed() -> None:
    failure = ValueError("no")

    class Broken:
        def stream(self, request: Any, call: Any) -> Any:
            raise failure

    told = heard(rxllm.generate, Broken())
    about = (ID, "Broken", "small")
    assert told == [CallStarted(*about), CallFinished(*about, "failed", 0.0, "error", error=failure)]


@pytest.mark.sockets
def test_adapters_are_called_by_their_provider_else_by_their_name() -> None:
    async def mine(request: Any, call: Any) -> Any:
        yield rxllm.TextDelta("Hi")

    engine, told = watched(mine)
    rxllm.generate(engine, "Hi").run()
    engine, others = watched(rxllm.OpenAIChat(base_url="http://127.0.0.1:1"), retry=False)
    with pytest.raises(AdapterError):
        rxllm.generate(engine, "Hi").run()
    assert [each.provider for each in (told[0], others[0]) if isinstance(each, CallStarted)] == ["mine", "openai"]


def test_a_subscribers_exception_ends_the_call_as_failed() -> None:
    engine, told = watched(Fake("Hello"))
    failure = ValueError("no")

    def refuse(event: Any) -> None:
        raise failure

    rxllm.stream_generate(engine, "Hi").subscribe(refuse, lambda error: None)
    assert_paired(told)
    assert isinstance(told[-1], CallFinished)
    assert (told[-1].outcome, told[-1].error) == ("failed", failure)


# Retries


def test_every_retry_is_told_before_its_wait_and_the_call_spans_them_all() -> None:
    first, second = AdapterError("rate_limited", retry_after=20.0), AdapterError("timeout")
    policy = RetryPolicy(base_delay=5, jitter=0)
    assert heard(rxllm.generate, Fake([first], [second], ["Hi"]), retry=policy) == [
        CallStarted(*ABOUT),
        RetryAttempt(*ABOUT, 1, 20.0, first),
        RetryAttempt(*ABOUT, 2, 10.0, second),
        FirstToken(*ABOUT, 30.0),
        CallFinished(*ABOUT, "completed", 30.0, "stop"),
    ]


def test_the_last_failure_is_no_retry() -> None:
    error = AdapterError("timeout")
    told = heard(rxllm.generate, Fake([error]), retry={"max_attempts": 2, "base_delay": 5, "jitter": 0})
    assert [type(each) for each in told] == [CallStarted, RetryAttempt, CallFinished]
    assert told[-1] == CallFinished(*ABOUT, "failed", 5.0, "error", error=error)


def test_leaving_during_a_wait_is_cancelling() -> None:
    told = heard(rxllm.generate, Fake([AdapterError("timeout")]), 3, retry=RetryPolicy(base_delay=5, jitter=0))
    assert told[-1] == CallFinished(*ABOUT, "cancelled", 3.0, estimated_usage=Usage(5, 0))


def test_a_cancelled_call_has_the_usage_that_a_budget_estimates() -> None:
    budget = rxllm.Budget(tokens=10_000)
    fake = Fake([("thinking", "Hmm."), "12345678", ("delay", 5), "more", Usage(9, 9)])
    (*_, finished) = heard(rxllm.generate, fake, 3, {"operators": [rxllm.operators.budget(budget)]})
    assert isinstance(finished, CallFinished)
    assert finished.estimated_usage is not None
    assert (finished.outcome, finished.usage) == ("cancelled", Usage())
    assert finished.estimated_usage == Usage(5, 3)
    assert budget.spent.estimated == finished.estimated_usage.total
    (*_, whole) = heard(rxllm.generate, fake)
    assert isinstance(whole, CallFinished)
    assert (whole.usage, whole.estimated_usage) == (Usage(9, 9), None)


def test_middleware_that_asks_again_makes_another_call() -> None:
    engine, told = watched(Fake([ValueError("no")], ["Hi"]), operators=(rx.retry(2),))
    rxllm.generate(engine, "Hi").run()
    assert_paired(told)
    assert [each.outcome for each in told if isinstance(each, CallFinished)] == ["failed", "completed"]


# Steps, tools, chats


def test_a_chat_and_all_in_it_share_one_id() -> None:
    fake = Fake([("delay", 1.0), ToolCall("c1", "double", {"x": 21}), Usage(1, 1)], [("delay", 2.0), "42", Usage(2, 2)])
    assert heard(rxllm.chat, fake, tools=[double]) == [
        ChatStarted(ID),
        StepStarted(ID),
        CallStarted(*ABOUT),
        FirstToken(*ABOUT, 1.0),
        CallFinished(*ABOUT, "completed", 1.0, "tool_calls", Usage(1, 1)),
        ToolStarted(ID, "double", "c1"),
        ToolFinished(ID, "double", "c1", "completed", 0.0),
        StepFinished(ID, "completed", 1.0, "tool_calls", Usage(1, 1)),
        StepStarted(ID),
        CallStarted(*ABOUT),
        FirstToken(*ABOUT, 2.0),
        CallFinished(*ABOUT, "completed", 2.0, "stop", Usage(2, 2)),
        StepFinished(ID, "completed", 2.0, "stop", Usage(2, 2)),
        ChatFinished(ID, "completed", 3.0, "completed", 2, Usage(3, 3)),
    ]


def test_tools_are_timed_each() -> None:
    from reactivex import timer

    slow = tool(name="slow", handler=lambda arguments: timer(arguments["seconds"]))
    calls = [ToolCall(f"c{n}", "slow", {"seconds": n}) for n in (3, 1, 9)]
    told = heard(rxllm.step, Fake(list(calls)), tools=[slow], tool_timeout=5)
    finished = [each for each in told if isinstance(each, ToolFinished)]
    assert [(each.tool_call_id, each.outcome, each.seconds) for each in finished] == [
        ("c1", "completed", 1.0),
        ("c3", "completed", 3.0),
        ("c9", "failed", 5.0),
    ]
    assert isinstance(finished[-1].error, ToolError)
    assert_paired(told)


def test_running_tools_are_cancelled_with_their_step_and_chat() -> None:
    from reactivex import never

    stuck = tool(name="stuck", handler=lambda arguments: never())
    told = heard(rxllm.chat, Fake([ToolCall("c1", "stuck")]), 7, tools=[stuck])
    assert told[-3:] == [
        ToolFinished(ID, "stuck", "c1", "cancelled", 7.0),
        StepFinished(ID, "cancelled", 7.0),
        ChatFinished(ID, "cancelled", 7.0),
    ]
    assert_paired(told)


def test_a_tool_that_never_ran_is_not_told() -> None:
    guarded = replace(double, approval=True)
    told = heard(rxllm.step, Fake([ToolCall("c1", "double", {"x": 1})]), tools=[guarded], approve=lambda call: False)
    assert [type(each) for each in told] == [StepStarted, CallStarted, FirstToken, CallFinished, StepFinished]


def test_a_resumed_chat_is_told_too() -> None:
    guarded = replace(double, approval=True)
    engine, told = watched(Fake(ToolCall("c1", "double", {"x": 1}), "Done."), tools=(guarded,))
    halted = rxllm.chat(engine, "Hi").run()
    assert isinstance(told[-1], ChatFinished)
    assert told[-1].halted_reason == "approval"
    told.clear()
    resume(engine, halted, approvals={"c1": True}).run()
    assert_paired(told)
    assert [type(each).__name__ for each in told[:4]] == ["ChatStarted", "StepStarted", "ToolStarted", "ToolFinished"]


def test_a_chat_that_cannot_begin_has_failed() -> None:
    error = AdapterError("authentication_failed")
    told = heard(rxllm.chat, Fake([error]))
    assert told[-2:] == [StepFinished(ID, "failed", 0.0, error=error), ChatFinished(ID, "failed", 0.0, error=error)]


PIECES = st.sampled_from(
    ["a", ("delay", 1.0), Usage(1), ToolCall("c1", "double", {"x": 1}), ToolCall("c2", "none"), ("error", "timeout"),
     ("finish", "length"), ("finish", "tool_calls"), ValueError("no")]
)  # fmt: skip


@given(
    st.lists(st.lists(PIECES, max_size=4), min_size=1, max_size=3),
    st.sampled_from([rxllm.generate, rxllm.step, rxllm.chat, rxllm.stream]),
    st.integers(1, 12),
)
def test_each_start_has_one_finish_on_every_script_whenever_it_is_left(scripts: Any, function: Any, left: int) -> None:
    told = heard(function, Fake(scripts=scripts), left, tools=[double], retry={"base_delay": 1, "jitter": 0})
    assert_paired(told)
    assert {each.request_id for each in told} == {ID}


# Ids and observers


@pytest.mark.parametrize("options", [{}, {"request_id": "mine"}])
def test_adapter_tools_and_observers_of_a_chat_see_its_one_id(options: Any) -> None:
    ids: list[str] = []
    turns = Fake(ToolCall("c1", "look"), "Done.")

    class Listening:
        def stream(self, request: Request, call: Call) -> Any:
            ids.append(call.request_id)
            return turns.stream(request, call)

    def look(context: rxllm.ToolContext) -> None:
        ids.append(context.request_id or "")

    engine = Engine(Listening(), tools=(tool(look),), observers=(lambda event: ids.append(event.request_id),))
    rxllm.chat(engine, "Hi", **options).run()
    assert len(ids) > 5
    assert len({*ids}) == 1
    assert ids[0] == options.get("request_id", ids[0])


def test_one_id_per_outermost_call_and_nowhere_else() -> None:
    ids: set[str] = set()

    def look(context: rxllm.ToolContext) -> str:
        """Look."""
        ids.add(context.request_id or "")
        return "seen"

    engine, told = watched(Fake(ToolCall("c1", "look"), "Done.", ToolCall("c1", "look"), "Done."))
    results = [rxllm.chat(engine, "Hi", tools=[tool(look)]).run() for _ in range(2)]
    assert ids == {each.request_id for each in told}
    assert len(ids) == 2
    assert all(len(each) == 22 for each in ids)
    assert all(id not in rxllm.serializer.to_json(result) for id in ids for result in results)


def test_many_requests_are_many_calls() -> None:
    engine, told = watched(Fake("Hi"))
    rxllm.generate_many(engine, ["a", "b", "c"]).run()
    assert len({each.request_id for each in told}) == 3


def test_an_observer_that_raises_disturbs_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []

    def broken(value: Any) -> None:
        raise KeyError("broken")

    engine = Engine(Fake(ToolCall("c1", "double", {"x": 1}), "Done."), observers=(broken, told.append), tools=(double,))
    assert rxllm.chat(engine, "Hi").run().output_text == "Done."
    assert_paired(told)
    (logged,) = [each for each in caplog.records if each.name == "rxllm"]
    assert (logged.levelno, logged.exc_info is not None) == (logging.WARNING, True)
    assert "ChatStarted" in logged.getMessage()


def test_without_observers_nothing_stands_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("watched")

    monkeypatch.setattr("rxllm.pipelines._call.watch_stream", refuse)
    assert rxllm.chat(Fake("Hello"), "Hi").run().output_text == "Hello"


def test_durations_on_an_event_loop_cover_the_stream() -> None:
    async def app(world: World) -> list[Telemetry]:
        engine, told = watched(Fake([("delay", 3.0), "Hi", ("delay", 2.0)]))
        await rxllm.generate(engine, "Hi")
        return told

    _, first, finished = simulate(app, faults=()).value
    assert isinstance(first, FirstToken)
    assert isinstance(finished, CallFinished)
    assert (first.seconds, finished.seconds) == pytest.approx((3.0, 5.0), abs=0.01)


def test_neither_questions_nor_answers_are_told() -> None:
    look = tool(name="look", handler=lambda arguments: "my result")
    engine, told = watched(Fake(ToolCall("c1", "look", {"at": "my argument"}), "my answer"), tools=(look,))
    rxllm.chat(engine, [rxllm.system("my system"), rxllm.user("my question")], api_key="my-secret-key").run()
    secrets = ("my question", "my system", "my argument", "my result", "my answer", "my-secret-key")
    assert not [word for word in secrets if word in repr(told)]
    assert all(not any("message" in spec.name for spec in fields(each)) for each in told)

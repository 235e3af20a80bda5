from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from reactivex.testing import TestScheduler

from rxllm import Engine, Event, Fake, ToolCall, Usage, ValidationError, chat, generate, step, stream, stream_generate
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.testing.loopback import Loopback, Reply, chat_chunk, endless
from rxllm.testing.marbles import START, check, cold, record
from rxllm.values import StreamError, Tool, assistant
from tests.runtime.support import assert_prompt, model, until

NOW = Tool("now", "The time.", {"type": "object"}, handler=lambda arguments: "12")


def spent(limit: int, tokens: int) -> dict[str, Any]:
    return {"budget": {"tokens": limit, "tokens_spent": tokens}}


def test_what_is_within_passes_and_is_told_what_it_was() -> None:
    values: dict[str, Any] = {
        "s": MessageStarted(assistant("")),
        "t": TextDelta("1234"),
        "T": TextCompleted("1234"),
        "u": UsageUpdated(Usage(3, 2)),
        "m": MessageCompleted(assistant("1234"), "stop"),
        "M": MessageCompleted(assistant("1234"), "stop", metadata=spent(5, 5)),
    }
    check(
        ops.budget(tokens=5),
        "s-t-T-u-m|",
        "^--------!",
        "s-t-T-u-M|",
        **values,
    )


def test_a_response_that_passes_it_is_cut_and_closed() -> None:
    values: dict[str, Any] = {
        "s": MessageStarted(assistant("")),
        "h": ThinkingDelta("hm"),
        "H": ThinkingCompleted("hm"),
        "t": TextDelta("1234"),
        "T": TextCompleted("12341234"),
        "m": MessageCompleted(assistant("never"), "stop"),
    }
    scheduler = TestScheduler()
    source = cold(scheduler, "s-h-H-t-t-t-t|", values)
    told = record(scheduler, lambda: source.pipe(ops.budget(tokens=2)))
    assert [what for _, kind, what in told if kind == "next"][:-1] == [values[name] for name in "shHttT"]
    ended = told[-2][2]
    assert (ended.finish_reason, ended.metadata) == ("length", {**spent(2, 3), "halted_reason": "budget"})
    assert ended.message.text == "12341234"
    assert told[-1] == (8, "end", None)
    assert [(int(each.subscribe) - START, int(each.unsubscribe) - START) for each in source.subscriptions] == [(0, 8)]


def test_a_call_that_is_cut_is_incomplete_and_is_not_run() -> None:
    ran: list[Any] = []
    turn = [
        MessageStarted(assistant("")),
        ToolCallStarted("c", "now"),
        *(ToolCallDelta("c", piece) for piece in ('{"zone": "', "x" * 40, '"}')),
        ToolCallCompleted("c", "now", {"zone": "x" * 40}, '{"zone": "' + "x" * 40 + '"}'),
    ]
    engine = Engine(Fake(turn), operators=[ops.budget(tokens=5), ops.verify()])
    tool = Tool("now", "The time.", {"type": "object"}, handler=lambda arguments: ran.append(arguments))
    result = step(engine, "Hi", tools=[tool]).run()
    response = result.response
    assert (response.finish_reason, response.tool_calls, ran) == ("length", (), [])
    assert response.message is not None
    assert response.message.tool_calls[0].metadata == {"error": "incomplete"}


def test_what_the_provider_says_counts_more_than_what_was_estimated() -> None:
    turn = ["x" * 100, Usage(5, 10), "y" * 4]
    text = stream_generate(Fake(turn), "Hi").pipe(ops.budget(tokens=30), ops.to_response()).run()
    assert text.metadata == spent(30, 16)
    assert text.output_text == "x" * 100 + "y" * 4


def asks_twice(*usages: Usage) -> Fake:
    return Fake(scripts=[[ToolCall("c0", "now", {}), usages[0]], [ToolCall("c1", "now", {}), usages[1]], ["Noon."]])


def test_a_chat_halts_between_its_steps_once_tools_have_been_run() -> None:
    fake = asks_twice(Usage(6, 2), Usage(6, 2))
    result = chat(Engine(fake, operators=[ops.budget(tokens=10)]), "When?", tools=[NOW]).run()
    assert (result.halted_reason, len(fake.requests), result.usage) == ("budget", 2, Usage(12, 4))
    assert result.final_response.metadata == {**spent(10, 16), "halted_reason": "budget"}
    assert [message.role for message in result.thread] == ["user", "assistant", "tool", "assistant", "tool"]


def test_a_chat_s_streamed_fold_is_the_same() -> None:
    asks = Fake(lambda request: [ToolCall(f"c{len(request.messages)}", "now", {}), Usage(6, 2)])
    engine = Engine(asks, operators=[ops.budget(tokens=10)])
    result = chat(engine, "When?", tools=[NOW]).run()
    assert stream(engine, "When?", tools=[NOW]).pipe(ops.verify(), ops.to_chat_result()).run() == result
    assert result.halted_reason == "budget"


def test_each_chat_counts_anew() -> None:
    engine = Engine(Fake(["Noon.", Usage(6, 2)]), operators=[ops.budget(tokens=10)])
    assert [chat(engine, "When?").run().halted_reason for _ in range(3)] == ["completed"] * 3


def test_an_answer_that_is_complete_is_no_halt() -> None:
    result = chat(Engine(Fake(["Noon.", Usage(60, 2)]), operators=[ops.budget(tokens=10)]), "When?").run()
    assert (result.halted_reason, result.final_response.metadata) == ("completed", spent(10, 62))


def test_dollars_are_counted_over_the_steps() -> None:
    fake = asks_twice(Usage(6, 2, total_cost=0.25), Usage(6, 2, total_cost=0.5))
    result = chat(Engine(fake, operators=[ops.budget(usd=0.5)]), "When?", tools=[NOW]).run()
    assert result.halted_reason == "budget"
    assert result.final_response.metadata["budget"] == {"usd": 0.5, "usd_spent": 0.75}


def test_dollars_that_nobody_knows_are_said_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(Fake(["Noon.", Usage(6, 2)]), operators=[ops.cost(), ops.budget(usd=0.5)])
    with caplog.at_level(logging.WARNING, "rxllm"):
        response = generate(engine, "When?").run()
    assert response.metadata["budget"] == {"usd": 0.5, "usd_spent": None}
    assert "cost" in caplog.text


def test_an_error_is_the_stream_s_own() -> None:
    error = StreamError("truncated")
    values: dict[str, Any] = {"s": MessageStarted(assistant("")), "e": ErrorEvent(error)}
    check(ops.budget(tokens=1), "s-e|", "^--!", "s-e|", **values)


def test_the_socket_is_closed_when_it_is_passed() -> None:
    async def once() -> float:
        with Loopback(Reply(endless(lambda i: chat_chunk("word "), every=0.001))) as server:
            cut: list[float] = []

            def note(event: Event) -> None:
                if isinstance(event, MessageCompleted):
                    cut.append(time.monotonic())

            engine = model(server).with_operators(ops.budget(tokens=20), ops.tap(note))
            response = await generate(engine, "Hi")
            assert (response.finish_reason, response.metadata["budget"]["tokens_spent"]) == ("length", 22)
            assert response.output_text == "word " * 17
            await until(lambda: server.connections[0].closed_at is not None)
            assert server.connections[0].closed_at is not None
            return server.connections[0].closed_at - cut[0]

    assert_prompt([asyncio.run(once()) for _ in range(5)])


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({}, "tokens"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": 1.5}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"usd": 0}, "usd"),
        ({"usd": -1.0}, "usd"),
        ({"usd": float("nan")}, "usd"),
        ({"usd": "1"}, "usd"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        ops.budget(**limits)

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from reactivex import Observable, Subject, from_iterable
from reactivex.disposable import Disposable
from reactivex.testing import TestScheduler

from rxllm import (
    Engine,
    Event,
    Fake,
    ToolCall,
    Usage,
    ValidationError,
    chat,
    generate,
    json_schema,
    session,
    step,
    stream,
    stream_generate,
)
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    PartAdded,
    RawChunk,
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
from rxllm.values import ProviderPart, StreamError, Tool, assistant, message_tokens, user
from tests.closing import assert_closes
from tests.runtime.support import model

NOW = Tool("now", "The time.", {"type": "object"}, handler=lambda arguments: "12")


def dollars(limit: float) -> Any:
    """A budget of calls whose providers state what they cost."""
    return ops.budget(usd=limit, unpriced="allow")


def spent(limit: int, tokens: int) -> dict[str, Any]:
    return {"budget": {"tokens": limit, "tokens_spent": tokens}}


def test_an_answer_within_the_budget_passes_and_says_what_it_spent() -> None:
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


def test_the_providers_count_replaces_the_estimate() -> None:
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


def test_a_raw_usage_of_a_third_party_s_adapter_counts() -> None:
    usage = {"input_tokens": 8, "output_tokens": 1}
    said = Fake([RawChunk("usage", usage), "1234", RawChunk("usage", {**usage, "output_tokens": 2})])

    def ends(tokens: int) -> list[MessageCompleted]:
        return list(stream_generate(said, "Hi").pipe(ops.budget(tokens=tokens), ops.only(MessageCompleted)))

    assert ends(10) == [MessageCompleted(assistant("1234"), "stop", metadata=spent(10, 10))]
    cut = ends(9)
    assert [(end.finish_reason, end.metadata["budget"]["tokens_spent"]) for end in cut] == [("length", 10)]


def test_an_answer_that_is_cut_keeps_the_parts_for_its_provider() -> None:
    part = ProviderPart("p", {})
    cut = generate(Engine(Fake([PartAdded(part), "x" * 100]), operators=[ops.budget(tokens=10)]), "Hi").run()
    assert (cut.finish_reason, cut.message and cut.message.parts[0]) == ("length", part)


SEARCH = [
    MessageStarted(assistant("")),
    ToolCallStarted("s", "search", {"server": True}),
    ToolCallCompleted("s", "search", {}, "{}", {"server": True}),
    TextDelta("Noon."),
    TextCompleted("Noon."),
    UsageUpdated(Usage(60, 2)),
]


@pytest.mark.parametrize(
    "turn",
    [
        [*SEARCH, MessageCompleted(assistant("Noon."), "stop")],
        ["Noon.", Usage(60, 2), ("finish", "length")],
        ["Noon.", Usage(60, 2), ("finish", "other")],
        [ToolCall("c0", "now", {}), Usage(60, 2), ("finish", "content_filter")],
    ],
)
def test_a_chat_that_would_not_have_gone_on_is_not_halted(turn: Any) -> None:
    plain = chat(Fake(turn), "When?", tools=[NOW]).run()
    result = chat(Engine(Fake(turn), operators=[ops.budget(tokens=10)]), "When?", tools=[NOW]).run()
    assert result.halted_reason == plain.halted_reason == "completed"
    assert result.final_response is not None
    assert result.final_response.metadata == spent(10, 62)


def test_a_turn_that_the_provider_has_paused_is_one_that_would_go_on() -> None:
    paused = [*SEARCH, MessageCompleted(assistant("Noon."), "other", raw_finish_reason="pause_turn")]
    result = chat(Engine(Fake(paused, "Late."), operators=[ops.budget(tokens=10)]), "When?").run()
    assert (result.halted_reason, len(result.steps)) == ("budget", 1)


def test_a_restart_keeps_the_tokens_of_the_void_attempt() -> None:
    torn = ["12345678", ("error", "timeout")]
    engine = Engine(Fake(torn, "1234"), operators=[ops.restart({"base_delay": 0}), ops.budget(tokens=4)])
    response = generate(engine, "Hi").run()
    assert (response.output_text, response.finish_reason) == ("1234", "stop")
    assert response.metadata["budget"]["tokens_spent"] == 3
    engine = Engine(Fake(torn, "12345678"), operators=[ops.restart({"base_delay": 0}), ops.budget(tokens=3)])
    response = generate(engine, "Hi").run()
    assert (response.output_text, response.finish_reason) == ("12345678", "length")
    assert response.metadata["budget"]["tokens_spent"] == 4


def test_of_several_responses_in_one_stream_each_counts_by_itself() -> None:
    torn = [MessageStarted(assistant("")), TextDelta("12345678"), TextCompleted("12345678")]
    one = [*torn, UsageUpdated(Usage(2, 2)), MessageCompleted(assistant("12345678"), "stop")]
    ends = list(from_iterable([*one, *one]).pipe(ops.budget(tokens=4), ops.only(MessageCompleted)))
    assert [end.metadata for end in ends] == [spent(4, 4)] * 2


def test_a_restart_keeps_the_cost_of_the_void_attempt() -> None:
    torn = ["Noo", Usage(6, 2, total_cost=0.5), ("error", "timeout")]
    fake = Fake(torn, ["Noon.", Usage(6, 2, total_cost=0.25)])
    engine = Engine(fake, operators=[ops.restart({"base_delay": 0}), dollars(1.0)])
    assert generate(engine, "When?").run().metadata["budget"] == {"usd": 1.0, "usd_spent": 0.75}


def test_a_response_that_failed_counts_for_no_other_and_is_in_no_other_s_message() -> None:
    failed = [
        MessageStarted(assistant("")),
        TextDelta("1234"),
        TextCompleted("1234"),
        ErrorEvent(StreamError("truncated")),
    ]
    second = [MessageStarted(assistant("")), *[TextDelta("5678")] * 3]
    end = list(from_iterable([*failed, *second]).pipe(ops.budget(tokens=1), ops.only(MessageCompleted)))[-1]
    assert (end.message.text, end.metadata["budget"]["tokens_spent"]) == ("56785678", 2)


def test_the_source_is_closed_before_the_end_is_told() -> None:
    order: list[Any] = []
    observers: list[Any] = []

    def subscribe(observer: Any, scheduler: Any = None) -> Disposable:
        observers.append(observer)
        return Disposable(lambda: order.append("closed"))

    Observable[Event](subscribe).pipe(ops.budget(tokens=1)).subscribe(lambda event: order.append(type(event)))
    for piece in (MessageStarted(assistant("")), TextDelta("12345678")):
        observers[0].on_next(piece)
    assert order == [MessageStarted, TextDelta, "closed", TextCompleted, MessageCompleted]


def test_two_of_them_say_both() -> None:
    engine = Engine(Fake(["Noon.", Usage(6, 2, total_cost=0.25)]), operators=[ops.budget(tokens=10), dollars(1.0)])
    told = {"tokens": 10, "tokens_spent": 8, "usd": 1.0, "usd_spent": 0.25}
    assert generate(engine, "When?").run().metadata == {"budget": told}


def test_a_cut_says_nothing_of_costs_that_are_not_known_yet(caplog: pytest.LogCaptureFixture) -> None:
    request = message_tokens(user("When?"))
    engine = Engine(Fake(["x" * 100, "y"]), operators=[ops.budget(tokens=10, usd=1.0, unpriced="allow")])
    with caplog.at_level(logging.WARNING, "rxllm"):
        response = generate(engine, "When?").run()
    assert response.metadata["budget"] == {"tokens": 10, "tokens_spent": 25 + request, "usd": 1.0, "usd_spent": None}
    assert caplog.text == ""


def test_an_event_during_the_cut_is_cut_once() -> None:
    source = Subject[Event]()
    seen: list[Event] = []
    ends: list[str] = []

    def push(event: Event) -> None:
        seen.append(event)
        if event == TextDelta("12345678"):
            source.on_next(TextDelta("9"))

    source.pipe(ops.budget(tokens=1)).subscribe(push, on_completed=lambda: ends.append("end"))
    source.on_next(MessageStarted(assistant("")))
    source.on_next(TextDelta("12345678"))
    assert [type(event).__name__ for event in seen[1:]] == [
        "TextDelta",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted",
    ]
    assert seen[-2] == TextCompleted("123456789")
    assert ends == ["end"]


def test_a_session_goes_on_after_it() -> None:
    engine = Engine(Fake(["x" * 100], ["Noon."]), operators=[ops.budget(tokens=10)])
    turn = session.start(engine, "When?").run()
    assert (turn.result.halted_reason, turn.session.status) == ("budget", "completed")
    again = session.reply(engine, turn.session, "Shorter.").run()
    assert (again.result.halted_reason, again.output_text) == ("completed", "Noon.")
    assert [message.role for message in again.session.thread] == ["user", "assistant", "user", "assistant"]


def test_no_second_pass_follows_it() -> None:
    @dataclass
    class City:
        name: str

    fake = Fake(["x" * 100], ['{"name": "Lima"}'])
    engine = Engine(fake, operators=[ops.budget(tokens=10)])
    result = chat(engine, "Where?", response_format=City, structured_finalize=True).run()
    assert (result.halted_reason, len(fake.requests), result.error) == ("budget", 1, None)
    assert result.metadata["structured_finalize"] == {"pass_1_halted": "budget"}


def test_the_second_pass_counts_what_the_first_has_used() -> None:
    fake = Fake(["Lima.", Usage(6, 2)], ['{"name": ', '"Lima"}' + " " * 100])
    engine = Engine(fake, operators=[ops.budget(tokens=20)])
    result = chat(engine, "Where?", response_format=json_schema("x", {}), structured_finalize=True).run()
    assert (result.halted_reason, result.final_response.metadata["budget"]["tokens_spent"]) == ("budget", 37)


def test_each_chat_counts_anew() -> None:
    engine = Engine(Fake(["Noon.", Usage(6, 2)]), operators=[ops.budget(tokens=10)])
    assert [chat(engine, "When?").run().halted_reason for _ in range(3)] == ["completed"] * 3


def test_an_answer_that_is_complete_is_no_halt() -> None:
    result = chat(Engine(Fake(["Noon.", Usage(60, 2)]), operators=[ops.budget(tokens=10)]), "When?").run()
    assert (result.halted_reason, result.final_response.metadata) == ("completed", spent(10, 62))


def test_dollars_are_counted_over_the_steps() -> None:
    fake = asks_twice(Usage(6, 2, total_cost=0.25), Usage(6, 2, total_cost=0.5))
    result = chat(Engine(fake, operators=[dollars(0.5)]), "When?", tools=[NOW]).run()
    assert result.halted_reason == "budget"
    assert result.final_response.metadata["budget"] == {"usd": 0.5, "usd_spent": 0.75}


def test_an_error_is_the_stream_s_own() -> None:
    error = StreamError("truncated")
    values: dict[str, Any] = {"s": MessageStarted(assistant("")), "e": ErrorEvent(error)}
    check(ops.budget(tokens=1), "s-e|", "^--!", "s-e|", **values)


@pytest.mark.sockets
def test_the_socket_is_closed_when_it_is_passed() -> None:
    async def ask(server: Loopback) -> None:
        response = await generate(model(server).with_operators(ops.budget(tokens=20)), "Hi")
        assert (response.finish_reason, response.metadata["budget"]["tokens_spent"]) == ("length", 22)
        assert response.output_text == "word " * 17

    assert_closes(ask, Reply(endless(lambda i: chat_chunk("word "))))


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

"""Another engine's answer: fallbacks between streams and engines, and circuit breakers, in virtual time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from reactivex import Observable, Subject, never
from reactivex.testing import TestScheduler

from rxllm import (
    AdapterError,
    Engine,
    EngineError,
    ErrorEvent,
    Fake,
    Request,
    StreamError,
    ToolCall,
    Usage,
    ValidationError,
    chat,
    generate,
    json_schema,
    stream_generate,
    tool,
    user,
)
from rxllm import operators as ops
from rxllm.events import Event, MessageCompleted, MessageStarted, TextCompleted, TextDelta
from rxllm.operators._circuit_breaker import Circuit
from rxllm.runtime import current_engine_call
from rxllm.testing.marbles import START, cold, record
from rxllm.values import Call, Message
from tests.operators.threads import together

# fallback


DOWN, LIMITED = AdapterError("provider_unavailable"), AdapterError("rate_limited")
END = MessageCompleted(Message("assistant", "H"), "stop")
VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "z": MessageStarted(Message("assistant", metadata={"id": "second"})),
    "H": TextDelta("H"),
    "e": END,
}


def told(name: str, *errors: str) -> MessageCompleted:
    """The end of an answer by `name` after these errors."""
    return MessageCompleted(END.message, "stop", None, {"fallback": {"answered_by": name, "errors": errors}})


def played(*marbles: str, when: Any = None, disposed: int | None = None, **values: Any) -> tuple[list[Any], list[Any]]:
    """What is seen of the first stream with the others to fall back on, and when each was used."""
    scheduler = TestScheduler()
    first, *others = (cold(scheduler, each, {**VALUES, **values}) for each in marbles)
    notes = record(scheduler, lambda: first.pipe(ops.fallback(*others, when=when)), disposed)
    used = [
        [(each.subscribe - START, each.unsubscribe - START) for each in one.subscriptions] for one in (first, *others)
    ]
    return notes, used


def test_a_stream_that_begins_is_the_answer() -> None:
    notes, used = played("-s-H-e|", "-s-H-e|")
    assert notes == [(3, "next", VALUES["s"]), (3, "next", VALUES["H"]), (5, "next", END), (6, "end", None)]
    assert used == [[(0, 6)], []]


def test_one_that_fails_before_its_first_content_leaves_no_trace_but_in_the_metadata() -> None:
    notes, used = played("-s-X", "--z-H-e|", X=DOWN)
    assert notes == [
        (7, "next", VALUES["z"]),
        (7, "next", VALUES["H"]),
        (9, "next", told("stream 1", f"the first: {DOWN!r}")),
        (10, "end", None),
    ]
    assert used == [[(0, 3)], [(3, 10)]]


def test_an_error_event_before_the_first_content_is_a_failure_too() -> None:
    notes, used = played("-s-x|", "-H|", x=ErrorEvent(StreamError("timeout")))
    assert [what for _, kind, what in notes if kind == "next"] == [VALUES["H"]]
    assert used[1] == [(3, 5)]


def test_after_the_first_content_it_is_passed_on() -> None:
    for end, kind in (("X", "error"), ("x|", "next")):
        notes, used = played("-s-H-" + end, "-H|", X=DOWN, x=ErrorEvent(DOWN))
        assert notes[2][:2] == (5, kind)
        assert used[1] == []


def test_they_are_tried_in_their_order_until_one_answers() -> None:
    notes, used = played("-X", "-Y|", "-sHe|", "-sHe|", X=DOWN, Y=ErrorEvent(LIMITED))
    assert notes[-2][2] == told("stream 2", f"the first: {DOWN!r}", f"stream 1: {LIMITED!r}")
    assert [len(each) for each in used] == [1, 1, 1, 0]


def test_if_all_fail_the_last_failure_is_passed_on_with_the_others_as_notes() -> None:
    last = AdapterError("network_error")
    notes, _ = played("-X", "-s-Y|", X=DOWN, Y=ErrorEvent(last))
    assert notes == [(4, "next", VALUES["s"]), (4, "next", ErrorEvent(last)), (5, "end", None)]
    assert notes[1][2].error is last
    assert last.__notes__ == [f"the first: {DOWN!r}"]


def test_an_error_that_is_raised_again_collects_no_notes() -> None:
    last = AdapterError("network_error")
    for _ in range(2):
        with pytest.raises(AdapterError) as caught:
            generate(Fake(DOWN), "Hi", retry=False).run()
        engine = Engine(Fake(DOWN), operators=(ops.fallback(Fake(last)),), retry=False)
        with pytest.raises(AdapterError) as caught:
            generate(engine, "Hi", retry=False).run()
        assert caught.value is last
    assert last.__notes__ == [f"Fake: {DOWN!r}"]


def test_when_decides_which_errors_count() -> None:
    def is_limited(error: Exception) -> bool:
        return isinstance(error, AdapterError) and error.reason == "rate_limited"

    notes, _ = played("-X", "-sHe|", when=is_limited, X=DOWN)
    assert notes == [(1, "error", DOWN)]
    notes, _ = played("-X", "-sHe|", when=is_limited, X=LIMITED)
    assert notes[-1] == (5, "end", None)


def test_a_call_that_its_loop_has_ended_is_not_made_again() -> None:
    cancelled = StreamError("cancelled")
    assert played("-X", "-sHe|", X=cancelled)[0] == [(1, "error", cancelled)]


def test_an_exception_of_when_is_the_streams_error() -> None:
    failure = KeyError("mine")

    def fail(error: Exception) -> bool:
        raise failure

    assert played("-X", "-sHe|", when=fail, X=DOWN)[0] == [(1, "error", failure)]
    assert played("-x-|", "-sHe|", when=fail, x=ErrorEvent(DOWN))[0] == [(1, "error", failure)]


def test_dispose_leaves_the_one_that_runs() -> None:
    _, used = played("-X", "-s-----", disposed=5, X=DOWN)
    assert used == [[(0, 1)], [(1, 5)]]
    _, used = played("-s----", "-s-----", disposed=3)
    assert used == [[(0, 3)], []]


def test_a_fallback_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rxllm")
    played("-X", "-sHe|", X=DOWN)
    (entry,) = caplog.records
    assert entry.getMessage() == f"the first failed ({DOWN}); falling back to stream 1"


def test_a_subscriber_that_raises_is_no_failure() -> None:
    def fail(event: Event) -> None:
        raise AdapterError("timeout")

    second = Fake("Hello")
    with pytest.raises(AdapterError, match="timeout"):
        stream_generate(Fake("Hi"), "Hello").pipe(ops.fallback(stream_generate(second, "Hi")), ops.tap(fail)).run()
    assert second.requests == []


def test_what_comes_while_the_first_events_are_given_out_waits_behind_them() -> None:
    """The end too."""
    subject, told = Subject[Event](), list[Any]()

    def on_next(event: Event) -> None:
        told.append(event)
        if event is VALUES["s"]:
            subject.on_next(END)
            subject.on_completed()

    subject.pipe(ops.fallback(never())).subscribe(on_next, on_completed=lambda: told.append("end"))
    subject.on_next(VALUES["s"])
    subject.on_next(VALUES["H"])
    assert told == [VALUES["s"], VALUES["H"], END, "end"]


# Between engines


def asked(call: dict[str, Any], *, first: dict[str, Any], second: Engine, request: Any = "Hi") -> Request:
    """What `second`, a Fake's engine, is asked after the first engine has failed."""
    engine = Engine(Fake(DOWN), **first).with_operators(ops.fallback(second))
    generate(engine, request, **call).run()
    (made,) = second.adapter.requests
    return made


def test_another_engine_is_asked_the_same() -> None:
    add = tool(name="add", description="", schema={"type": "object", "properties": {}})
    format_ = json_schema("sum", {"type": "object"})
    other = Engine(Fake("{}"), model="small", params={"temperature": 0.7, "max_tokens": 9})
    call = {"temperature": 0.2, "stop": ["END"], "retry": False}
    made = asked(
        call, first={"model": "big", "tools": [add], "params": {"response_format": format_, "seed": 1}}, second=other
    )
    assert [message.text for message in made.messages] == ["Hi"]
    assert (made.tools, made.response_format) == ((add,), format_)
    assert (made.temperature, made.stop) == (0.2, ("END",))  # the call's
    assert (made.model, made.max_tokens, made.seed) == ("small", 9, None)  # its own


def test_the_model_the_key_and_the_pass_through_are_each_engine_s_own() -> None:
    keys: list[str | None] = []

    class Keyed(Fake):
        def stream(self, request: Request, call: Call) -> Any:
            keys.append(call.api_key)
            return super().stream(request, call)

    call = {"model": "big", "api_key": "sk-of-the-first", "options": {"tier": "flex"}, "retry": False}
    other = Engine(Keyed("Hello"), model="small", params={"options": {"top_k": 1}})
    made = asked(call, first={}, second=other)
    assert (made.model, made.options, keys) == ("small", {"top_k": 1}, [None])
    nameless = Engine(Fake("Hello"))
    assert asked(call, first={"model": "of the first"}, second=nameless).model == "big"
    nameless = Engine(Fake("Hello"))
    assert asked({"retry": False}, first={"model": "of the first"}, second=nameless).model is None


CARRIED: dict[str, Any] = {"temperature": 0.2, "tool_choice": "add", "reasoning_effort": "none", "max_tokens": 9}


def answered(other: Engine, request: Any = "Hi", **call: Any) -> tuple[Any, Request]:
    add = tool(name="add", description="", schema={"type": "object", "properties": {}})
    engine = Engine(Fake(DOWN), tools=(add,), operators=(ops.fallback(other),), retry=False)
    response = generate(engine, request, **call).run()
    return response.metadata.get("settings_left_out"), other.adapter.requests[0]


def test_settings_that_the_other_model_does_not_accept_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    expected = ("temperature", "tool_choice", "reasoning_effort")
    for by_request in (False, True):
        asked = {"request": Request((user("Hi"),), **CARRIED)} if by_request else CARRIED
        left_out, made = answered(Engine(Fake("Hello"), model="anthropic/claude-opus-5.5"), **asked)
        assert left_out == expected
        assert (made.temperature, made.tool_choice, made.reasoning_effort, made.max_tokens) == (None, None, None, 9)
    assert "left out temperature, tool_choice, reasoning_effort, which anthropic/claude-opus-5.5 does" in caplog.text


def test_settings_that_the_other_model_accepts_or_that_nobody_knows_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    left_out, made = answered(Engine(Fake("Hello"), model="claude-sonnet-4-5"), **CARRIED)
    assert (left_out, made.temperature, made.tool_choice, made.reasoning_effort) == (None, 0.2, "add", "none")
    left_out, made = answered(Engine(Fake("Hello"), model="new"), **CARRIED)
    assert (left_out, made.temperature, made.tool_choice, made.reasoning_effort) == (None, 0.2, "add", "none")
    assert "left out" not in caplog.text


def test_an_engine_s_own_settings_are_sent_as_they_are() -> None:
    other = Engine(Fake("Hello"), model="claude-opus-5-5", params={"temperature": 0.7, "reasoning_effort": "none"})
    left_out, made = answered(other, **CARRIED)
    assert (left_out, made.temperature, made.reasoning_effort) == (
        ("temperature", "tool_choice", "reasoning_effort"),
        0.7,
        "none",
    )
    left_out, made = answered(replace(other, adapter=Fake("Hello")))
    assert (left_out, made.temperature, made.reasoning_effort) == (None, 0.7, "none")


def test_nothing_is_told_of_a_fallback_that_is_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(Fake("Hi"), operators=(ops.fallback(Engine(Fake("no"), model="claude-opus-5-5")),))
    assert generate(engine, "Hi", temperature=0.2).run().metadata.get("settings_left_out") is None
    assert caplog.text == ""


def test_the_tools_that_run_are_the_caller_s() -> None:
    @tool
    def add(a: int, b: int) -> int:
        return a + b

    @tool
    def spend(money: int) -> None:
        raise AssertionError

    other = Engine(Fake(ToolCall("c0", "add", {"a": 1, "b": 2}), "3"), tools=(spend,))
    engine = Engine(Fake(DOWN), tools=(add,), operators=(ops.fallback(other),), retry=False)
    result = chat(engine, "1 + 2?").run()
    assert result.output_text == "3"
    assert [each.tools for each in other.adapter.requests] == [(add,), (add,)]
    assert [step.response.metadata["fallback"]["answered_by"] for step in result.steps] == ["Fake", "Fake"]


def test_its_own_operators_and_retry_apply() -> None:
    seen: list[Event] = []
    model = Fake([DOWN], ["Hello"])
    other = Engine(model, operators=(ops.tap(seen.append),), retry={"base_delay": 0.0, "jitter": 0.0})
    engine = Engine(Fake(DOWN), operators=(ops.fallback(other),), retry=False)
    assert generate(engine, "Hi").run().output_text == "Hello"
    assert len(model.requests) == 2
    assert TextDelta("Hello", "block_0") in seen


def test_it_falls_on_from_engine_to_engine() -> None:
    third = Engine(Fake("Hello"))
    second = Engine(Fake(LIMITED), operators=(ops.fallback(third),), retry=False)
    engine = Engine(Fake(DOWN), operators=(ops.fallback(second),), retry=False)
    assert generate(engine, "Hi").run().output_text == "Hello"
    several = Engine(Fake(DOWN), operators=(ops.fallback(Fake(LIMITED), Fake("Hello")),), retry=False)
    response = generate(several, "Hi", retry=False).run()
    assert response.metadata["fallback"]["errors"] == (f"Fake: {DOWN!r}", f"Fake: {LIMITED!r}")


def test_the_observers_of_the_caller_are_told_of_both() -> None:
    seen: list[str] = []

    def observer(each: Any) -> None:
        seen.append(f"{type(each).__name__} {each.model}")

    other = Engine(Fake("Hello"), model="small", observers=(observer,))
    engine = Engine(Fake(DOWN), model="big", operators=(ops.fallback(other),), observers=(observer,), retry=False)
    generate(engine, "Hi").run()
    assert seen == [
        "CallStarted big",
        "CallFinished big",
        "CallStarted small",
        "FirstToken small",
        "CallFinished small",
    ]


def test_on_event_sees_what_the_subscriber_sees_once() -> None:
    seen: list[Event] = []
    engine = Engine(Fake(DOWN), operators=(ops.fallback(Fake("Hello")),), retry=False)
    stream_generate(engine, "Hi", on_event=seen.append).run()
    assert [type(event) for event in seen] == [MessageStarted, TextDelta, TextCompleted, MessageCompleted]


def test_usage_is_that_of_the_answer() -> None:
    engine = Engine(Fake([Usage(5), ErrorEvent(DOWN)]), operators=(ops.fallback(Fake(["Hi", Usage(3, 1)])),))
    events = stream_generate(engine, "Hi", retry=False)
    assert events.pipe(ops.to_response()).run().usage == Usage(3, 1)
    assert list(events.pipe(ops.usage())) == [Usage(3, 1)]


def test_the_result_is_lawful() -> None:
    engine = Engine(Fake(DOWN), operators=(ops.fallback(Fake(["Hi", Usage(3, 1)])), ops.verify()), retry=False)
    assert generate(engine, "Hello").run().output_text == "Hi"


def test_a_name_of_a_model_is_an_engine() -> None:
    operator = ops.fallback("openai:gpt-5")
    with pytest.raises(EngineError, match="OPENAI_API_KEY") as caught:
        generate(Engine(Fake(DOWN), operators=(operator,), retry=False), "Hi").run()
    assert caught.value.__notes__ == [f"Fake: {DOWN!r}"]


def test_each_call_is_its_own() -> None:
    """The operator captures the call that it is applied to, and nothing stays behind."""
    other = Fake(lambda request: request.messages[-1].text.upper())
    engine = Engine(Fake(DOWN), operators=(ops.fallback(other),), retry=False)
    stream = generate(engine, "one")
    assert [stream.run().output_text, generate(engine, "two").run().output_text, stream.run().output_text] == [
        "ONE",
        "TWO",
        "ONE",
    ]
    assert current_engine_call.get() is None


def test_an_operator_of_one_s_own_may_know_the_call() -> None:
    known: list[Any] = []

    def note(source: Any) -> Any:
        known.append(current_engine_call.get())
        return source

    generate(replace(Engine(Fake("Hi"), model="m"), operators=(note,)), "Hello", request_id="r1").run()
    (assembly,) = known
    assert (assembly.request.model, assembly.request.messages[0].text, assembly.call.request_id) == ("m", "Hello", "r1")
    assert assembly.ask(Fake("other")).pipe(ops.to_text()).run() == "other"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ops.fallback(), "engines"),
        (lambda: ops.fallback(None), "engines"),
        (lambda: ops.fallback(Fake), "engines"),
        (lambda: ops.fallback(never(), 3), "engines"),
        (lambda: ops.fallback(Engine()), "engines"),
        (lambda: ops.fallback(never(), when="always"), "when"),  # pyright: ignore[reportArgumentType]
        (lambda: never().pipe(ops.fallback(Fake("Hi"))), "engines"),
        (lambda: stream_generate(Fake("Hi"), "Hi").pipe(ops.fallback("local")), "engines"),
    ],
)
def test_what_is_no_engine_here_is_refused_at_assembly(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))


def test_an_unknown_provider_is_refused_at_assembly() -> None:
    with pytest.raises(EngineError, match="nobody"):
        ops.fallback("nobody:small")


def test_an_engine_in_a_pipe_is_told_where_it_belongs() -> None:
    with pytest.raises(ValidationError, match=r"stream_generate\(engine, question\)"):
        stream_generate(Fake("Hi"), "Hi").pipe(ops.fallback(Fake("Hello")))


# circuit_breaker


CIRCUIT_BREAKER_DOWN = AdapterError("provider_unavailable")
CIRCUIT_BREAKER_VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "H": TextDelta("H"),
    "e": MessageCompleted(Message("assistant", "H"), "stop"),
    "t": ErrorEvent(StreamError("truncated")),
    "X": CIRCUIT_BREAKER_DOWN,
}
FAILS, WORKS = "-X", "-sHe|"


class Calls:
    """Calls of one breaker: `at(time, marbles)` makes one, `play` runs them all."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.scheduler = TestScheduler()
        self.states: list[tuple[float, str]] = []
        self.breaker = ops.circuit_breaker(
            *args, on_change=lambda state: self.states.append((self.scheduler.clock, state)), **options
        )
        self.ends: dict[float, tuple[float, Any]] = {}
        self.sources: dict[float, Any] = {}

    def at(self, time: float, marbles: str, dispose: float | None = None, **values: Any) -> Calls:
        source = self.sources[time] = cold(self.scheduler, marbles, {**CIRCUIT_BREAKER_VALUES, **values})

        def end(what: Any = None) -> None:
            self.ends[time] = (self.scheduler.clock, what)

        def begin(*_: Any) -> None:
            call: Observable[Any] = source.pipe(self.breaker)
            held = call.subscribe(on_error=end, on_completed=end, scheduler=self.scheduler)
            if dispose is not None:
                self.scheduler.schedule_absolute(dispose, lambda *_: held.dispose())

        self.scheduler.schedule_absolute(time, begin)
        return self

    def play(self) -> Calls:
        self.scheduler.start()
        return self

    @property
    def asked(self) -> list[float]:
        return [time for time, source in self.sources.items() if source.subscriptions]


def test_it_opens_after_so_many_failures_in_a_row_and_refuses_at_once() -> None:
    calls = Calls(3, cooldown=30).at(10, FAILS).at(20, FAILS).at(30, FAILS).at(40, WORKS).play()
    assert calls.states == [(31, "open")]
    assert calls.asked == [10, 20, 30]
    when, error = calls.ends[40]
    assert (when, error.reason, error.retry_after, error.metadata) == (
        40,
        "provider_unavailable",
        21.0,
        {"circuit": "open"},
    )
    assert "allowed in 21 s" in error.message


def test_a_success_in_between_begins_the_count_anew() -> None:
    calls = Calls(2).at(10, FAILS).at(20, WORKS).at(30, FAILS).at(40, WORKS).play()
    assert calls.states == []
    assert calls.asked == [10, 20, 30, 40]


def test_failures_that_are_long_past_do_not_count() -> None:
    calls = Calls(2, within=15).at(10, FAILS).at(30, FAILS).at(50, FAILS).at(60, FAILS).at(70, WORKS).play()
    assert calls.states == [(61, "open")]
    assert calls.asked == [10, 30, 50, 60]


def test_after_the_cooldown_one_call_tries_and_closes_it_with_its_first_content() -> None:
    calls = Calls(1, cooldown=20).at(10, FAILS).at(40, "-s---H---e|").at(43, WORKS).at(46, WORKS).play()
    assert calls.states == [(11, "open"), (40, "half_open"), (45, "closed")]
    assert calls.asked == [10, 40, 46]
    _, error = calls.ends[43]
    assert (error.metadata, error.retry_after) == ({"circuit": "half_open"}, 20)
    assert calls.ends[40] == (50, None)


def test_a_try_that_fails_opens_it_again_for_another_cooldown() -> None:
    calls = Calls(3, cooldown=20).at(1, FAILS).at(2, FAILS).at(3, FAILS)
    calls.at(30, FAILS).at(40, WORKS).at(55, WORKS).play()
    assert calls.states == [(4, "open"), (30, "half_open"), (31, "open"), (55, "half_open"), (57, "closed")]
    assert calls.asked == [1, 2, 3, 30, 55]


def test_a_try_that_is_left_lets_the_next_call_try() -> None:
    calls = Calls(1, cooldown=20).at(10, FAILS).at(40, "-s--------------", dispose=44).at(50, WORKS).play()
    assert calls.states == [(11, "open"), (40, "half_open"), (52, "closed")]
    assert calls.asked == [10, 40, 50]


def test_a_try_that_fails_after_its_first_content_is_a_failure_like_any_other() -> None:
    calls = Calls(2, cooldown=20).at(1, FAILS).at(2, FAILS).at(30, "-sHt|").at(40, FAILS).at(50, WORKS).play()
    assert calls.states == [(3, "open"), (30, "half_open"), (32, "closed"), (41, "open")]


def test_an_error_event_is_a_failure_though_the_stream_completes() -> None:
    calls = Calls(1).at(10, "-sHt|").at(20, WORKS).play()
    assert calls.states == [(13, "open")]
    assert calls.ends[10] == (14, None)


@pytest.mark.parametrize(
    "error", [AdapterError("invalid_request"), AdapterError("authentication_failed"), StreamError("cancelled")]
)
def test_errors_that_are_the_callers_do_not_count(error: Exception) -> None:
    calls = Calls(1).at(10, FAILS, X=error).at(20, WORKS).play()
    assert (calls.states, calls.ends[10]) == ([], (11, error))


@pytest.mark.parametrize("error", [KeyError("mine"), EngineError("missing_key")])
def test_an_error_that_says_nothing_of_the_provider_leaves_the_try_to_the_next(error: Exception) -> None:
    calls = Calls(1, cooldown=20).at(10, FAILS).at(40, FAILS, X=error).at(50, WORKS).play()
    assert calls.states == [(11, "open"), (40, "half_open"), (52, "closed")]


def test_a_try_that_fails_by_the_callers_fault_closes_it() -> None:
    calls = Calls(1, cooldown=20).at(10, FAILS).at(40, FAILS, X=AdapterError("invalid_request")).at(50, WORKS).play()
    assert calls.states == [(11, "open"), (40, "half_open"), (41, "closed")]


def test_calls_that_were_under_way_when_it_opened_change_nothing() -> None:
    calls = Calls(1, cooldown=20).at(10, "---------sHe|").at(11, FAILS).at(15, WORKS).play()
    assert calls.states == [(12, "open")]
    assert calls.ends[10] == (22, None)
    assert calls.asked == [10, 11]


def test_nor_do_they_make_the_cooldown_longer() -> None:
    calls = Calls(1, cooldown=20).at(10, "-----------------X").at(11, FAILS).at(33, WORKS).play()
    assert calls.states == [(12, "open"), (33, "half_open"), (35, "closed")]


def test_a_try_that_has_failed_cannot_recover() -> None:
    circuit = Circuit(1, 60.0, 10.0, None)
    for now in (0.0, 20.0):
        passage = circuit.enter(now)
        assert not isinstance(passage, AdapterError)
        circuit.report(passage, "failed", now)
        circuit.record_content(passage)
        assert isinstance(circuit.enter(now + 1), AdapterError)


def test_what_on_change_raises_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(state: str) -> None:
        raise KeyError("mine")

    caplog.set_level(logging.WARNING, logger="rxllm")
    engine = Engine(Fake(CIRCUIT_BREAKER_DOWN), operators=(ops.circuit_breaker(1, on_change=fail),), retry=False)
    with pytest.raises(AdapterError) as caught:
        generate(engine, "Hi").run()
    assert caught.value is CIRCUIT_BREAKER_DOWN
    assert [record.getMessage() for record in caplog.records] == ["the circuit is open", "on_change('open') failed"]


def test_the_calls_of_an_engine_share_it() -> None:
    model = Fake([CIRCUIT_BREAKER_DOWN], [CIRCUIT_BREAKER_DOWN], ["Hello"])
    engine = Engine(model, operators=(ops.circuit_breaker(2),), retry=False)
    for _ in range(4):
        with pytest.raises(AdapterError):
            generate(engine, "Hi").run()
    assert len(model.requests) == 2


def test_a_retried_call_is_one_failure() -> None:
    model = Fake([CIRCUIT_BREAKER_DOWN])
    engine = Engine(model, operators=(ops.circuit_breaker(2),), retry={"base_delay": 0.0, "jitter": 0.0})
    for _ in range(2):
        with pytest.raises(AdapterError):
            generate(engine, "Hi").run()
    assert len(model.requests) == 6


def test_of_many_threads_one_tries() -> None:
    """All ask at once, as soon as the cooldown is over."""
    circuit = Circuit(1, 60.0, 10.0, None)
    first = circuit.enter(0.0)
    assert not isinstance(first, AdapterError)
    circuit.report(first, "failed", 0.0)
    passed, guard = list[Any](), threading.Lock()

    def ask() -> None:
        answer = circuit.enter(10.0)
        with guard:
            passed.append(answer)

    together(*[ask] * 16)
    assert sum(not isinstance(each, AdapterError) for each in passed) == 1


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ops.circuit_breaker(0), "failures"),
        (lambda: ops.circuit_breaker(1.5), "failures"),  # pyright: ignore[reportArgumentType]
        (lambda: ops.circuit_breaker(within=0), "within"),
        (lambda: ops.circuit_breaker(cooldown=float("nan")), "cooldown"),
        (lambda: ops.circuit_breaker(on_change="print"), "on_change"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_invalid_arguments_are_refused(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))

"""Retries before the first content (cases: tests/runtime/test_retry.py), restarts, and errors as events and back."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from reactivex import operators as rx
from reactivex.testing import TestScheduler

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    Fake,
    Request,
    RetryPolicy,
    StreamError,
    Thread,
    ToolCall,
    Usage,
    ValidationError,
    chat,
    generate,
    serializer,
    stream,
    stream_generate,
    stream_step,
    tool,
    user,
)
from rxllm import operators as ops
from rxllm.events import (
    Custom,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    UsageUpdated,
)
from rxllm.testing.marbles import START, check, cold, record
from rxllm.values import Call, Message, Response

# retry_before_content


AT_ONCE = RetryPolicy(base_delay=0.0, jitter=0.0)
BUSY = AdapterError("rate_limited")


def answer(fake: Fake) -> Any:
    return rxllm.runtime.Stream.of(fake.stream(Request((user("Hi"),)), Call()))


def test_behind_an_adapter_it_is_what_the_facade_does() -> None:
    for script in ([[BUSY], ["Hello"]], [[BUSY], [BUSY], [BUSY]], [["Hel", StreamError("truncated")], ["Hello"]]):
        by_hand = answer(Fake(scripts=script)).pipe(ops.retry_before_content(AT_ONCE), ops.errors_as_events())
        facade = rxllm.stream_generate(Fake(scripts=script), "Hi", retry=AT_ONCE).pipe(ops.errors_as_events())
        assert list(by_hand) == list(facade)


def test_it_waits_on_the_schedulers_clock_and_subscribes_again() -> None:
    scheduler = TestScheduler()
    retries: list[tuple[int, float, Exception]] = []
    source = cold(scheduler, "--X", {"X": BUSY})
    policy = RetryPolicy(max_attempts=3, base_delay=5.0, jitter=0.0)
    operator = ops.retry_before_content(policy, on_retry=lambda *told: retries.append(told))
    assert record(scheduler, lambda: source.pipe(operator)) == [(21, "error", BUSY)]
    assert [(s.subscribe - 200, s.unsubscribe - 200) for s in source.subscriptions] == [(0, 2), (7, 9), (19, 21)]
    assert retries == [(1, 5.0, BUSY), (2, 10.0, BUSY)]


def test_reactivexs_retry_does_not_see_a_streamed_error() -> None:
    """The two channels of failure, of which the docstring warns."""
    script: list[list[Any]] = [[("error", "rate_limited")], ["Hello"]]
    assert isinstance(list(answer(Fake(scripts=script)).pipe(rx.retry(3)))[-1], ErrorEvent)
    assert answer(Fake(scripts=script)).pipe(ops.retry_before_content(AT_ONCE), ops.to_text()).run() == "Hello"


def test_below_run_tools_every_attempt_belongs_to_the_step() -> None:
    ids: list[str] = []
    engine = rxllm.Engine(Fake([BUSY], ["Hello"]), retry=False, observers=[lambda told: ids.append(told.request_id)])
    source = rxllm.stream_generate(engine, "Hi").pipe(ops.retry_before_content(AT_ONCE), ops.run_tools(thread="Hi"))
    chat = source.pipe(ops.repeat_until_halt(lambda thread: source))
    assert chat.run().result.output_text == "Hello"
    assert len(set(ids)) == 1


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("often",), "policy"), (({"attempts": 3},), "policy"), (({"max_attempts": -1},), "policy"), ((3,), "policy")],
)
def test_a_policy_that_is_none_is_refused_at_the_call(arguments: Any, name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.retry_before_content(*arguments)
    assert caught.value.errors[0][0][0] == name
    with pytest.raises(ValidationError):
        ops.retry_before_content(on_retry=3)  # type: ignore[arg-type]


def test_no_retry_is_the_source_itself() -> None:
    source = answer(Fake("Hi"))
    assert source.pipe(ops.retry_before_content(False)) is source


# restart


CUT, DOWN = StreamError("truncated"), AdapterError("provider_unavailable")
POLICY = RetryPolicy(max_attempts=3, base_delay=10, jitter=0)
NOW = {"base_delay": 0.0, "jitter": 0.0}
VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "H": TextDelta("H"),
    "h": TextCompleted("H"),
    "b": TextDelta("b"),
    "u": UsageUpdated(Usage(5)),
    "e": MessageCompleted(Message("assistant", "b"), "stop"),
    "x": ErrorEvent(CUT),
    "X": DOWN,
}


class Sources:
    """A cold source that plays another marble line each time it is subscribed."""

    def __init__(self, *marbles: str, **values: Any) -> None:
        self.scheduler = TestScheduler()
        self.sources = [cold(self.scheduler, each, {**VALUES, **values}) for each in marbles]
        self.used = 0

    def played(self, policy: Any = POLICY, disposed: int | None = None) -> list[Any]:
        from reactivex import defer

        def following(_: Any) -> Any:
            self.used += 1
            return self.sources[self.used - 1]

        return record(self.scheduler, lambda: defer(following).pipe(ops.restart(policy)), disposed)

    @property
    def subscriptions(self) -> list[tuple[float, float]]:
        each = [each for source in self.sources for each in source.subscriptions]
        return [(one.subscribe - START, one.unsubscribe - START) for one in each]


def events(notes: list[Any]) -> str:
    names = {id(event): name for name, event in VALUES.items()}
    special = {Custom: "c", StepRestarted: "r"}
    return "".join(names.get(id(what)) or special[type(what)] for _, kind, what in notes if kind == "next")


def test_a_failure_in_the_middle_begins_again_after_the_delay() -> None:
    sources = Sources("-sHuhx|", "-s-be|")
    notes = sources.played()
    said = Response(Message("assistant", "H"), "H", usage=Usage(5), finish_reason="error", error=CUT)
    assert [(tick, what) for tick, _, what in notes[4:]] == [
        (18, Custom("step_abandoned", {"response": said})),
        (18, StepRestarted("truncated", 2)),
        (18, VALUES["s"]),
        (18, VALUES["b"]),
        (19, VALUES["e"]),
        (20, None),
    ]
    assert events(notes) == "sHuh" + "cr" + "sbe"
    assert sources.subscriptions == [(0, 6), (15, 20)]


def test_a_raised_failure_in_the_middle_begins_again_too() -> None:
    sources = Sources("-sHX", "-sbe|")
    assert events(sources.played()) == "sHcrsbe"
    assert sources.subscriptions == [(0, 3), (13, 17)]


def test_what_fails_before_its_first_content_is_left_to_retry() -> None:
    sources = Sources("-s-X", "-sbe|")
    assert sources.played() == [(3, "next", VALUES["s"]), (3, "error", DOWN)]
    sources = Sources("-s-x|", "-sbe|")
    assert events(sources.played()) == "sx"


def test_once_it_has_begun_an_attempt_that_does_not_is_one_like_any_other() -> None:
    sources = Sources("-sHX", "-X", "-sbe|")
    assert events(sources.played()) == "sHcrsbe"
    assert sources.subscriptions == [(0, 3), (13, 14), (34, 38)]  # the second delay is twice the first


def test_what_was_said_stands_if_no_other_attempt_says_anything() -> None:
    """There is an error event at the end, and no word of a restart."""
    notes = Sources("-sHhx|", "-s-X", "-X").played()
    assert notes[-2][2] == ErrorEvent(DOWN)
    assert [type(what) for _, _, what in notes[:-1]] == [MessageStarted, TextDelta, TextCompleted, ErrorEvent]
    notes = Sources("-sHhx|", "-sx|", "-sx|").played()
    assert events(notes) == "sHhx"


def test_the_last_failure_is_passed_on() -> None:
    notes = Sources("-sHhx|", "-sbx|", "-sHhx|").played()
    assert events(notes) == "sHh" + "crsb" + "crsHhx"
    assert [what.attempt for _, _, what in notes if isinstance(what, StepRestarted)] == [2, 3]
    assert Sources("-sHX", "-sbX", "-sHX").played()[-1][1:] == ("error", DOWN)


@pytest.mark.parametrize("error", [AdapterError("content_filter"), KeyError("mine")])
def test_what_would_fail_again_is_passed_on(error: Exception) -> None:
    assert Sources("-sHX", "-sbe|", X=error).played()[-1] == (3, "error", error)


def test_nothing_is_seen_of_an_attempt_after_it_has_failed() -> None:
    assert events(Sources("-sHxHHHHHHHHHHHH|", "-sbe|").played()) == "sHcrsbe"


def test_dispose_during_the_wait_asks_no_more() -> None:
    sources = Sources("-sHX", "-sbe|")
    assert events(sources.played(disposed=8)) == "sH"
    assert sources.subscriptions == [(0, 3)]


def test_dispose_during_a_later_attempt_leaves_it() -> None:
    sources = Sources("-sHX", "-sb------")
    sources.played(disposed=16)
    assert sources.subscriptions == [(0, 3), (13, 16)]


def test_a_restart_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rxllm")
    Sources("-sHX", "-sbe|").played()
    (entry,) = caplog.records
    assert "attempt 1 failed after its first content" in entry.getMessage()


@pytest.mark.parametrize("policy", [False, {"max_attempts": 1}])
def test_no_second_attempt_is_no_operator(policy: Any) -> None:
    source = stream_generate(Fake("Hi"), "Hello")
    assert ops.restart(policy)(source) is source


@pytest.mark.parametrize("policy", [3, "never", {"attempts": 2}, {"max_attempts": "x"}])
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.restart(policy)
    assert (caught.value.reason, caught.value.errors[0][0][0]) == ("invalid_option", "policy")


# In the folds

TORN = ["Hel", Usage(5, 2), ("error", "timeout")]
WHOLE = ["Hello", Usage(5, 3)]


def engine(*turns: Any, **options: Any) -> Engine:
    return Engine(Fake(*turns), operators=(ops.restart(NOW), ops.verify()), retry=False, **options)


def test_no_text_is_doubled_and_usage_is_counted_once() -> None:
    response = generate(engine(TORN, WHOLE), "Hi").run()
    assert (response.output_text, response.usage, response.error) == ("Hello", Usage(5, 3), None)
    assert stream_generate(engine(TORN, WHOLE), "Hi").pipe(ops.to_text()).run() == "Hello"
    assert stream_generate(engine(TORN, WHOLE), "Hi").pipe(ops.to_response()).run() == response


def test_a_chat_counts_the_whole_step_alone() -> None:
    add = tool(name="add", description="", schema={"type": "object"}, handler=lambda arguments: 3)
    torn_call = [ToolCall("c0", "add", {}), Usage(9), ("error", "timeout")]
    call = [ToolCall("c0", "add", {}), Usage(4)]
    turns = [torn_call, call, TORN, WHOLE]
    result = chat(engine(*turns, tools=[add]), "1 + 2?").run()
    assert (result.output_text, len(result.steps), result.usage) == ("Hello", 2, Usage(9, 3))
    assert [message.role for message in result.thread] == ["user", "assistant", "tool", "assistant"]
    folded = stream(engine(*turns, tools=[add]), "1 + 2?").pipe(ops.to_chat_result()).run()
    assert folded == result
    scanned = stream(engine(*turns, tools=[add]), "1 + 2?").pipe(ops.scan_collect()).run()
    assert scanned.to_chat_result() == result


def test_the_running_usage_forgets_the_void_attempt() -> None:
    assert list(stream_generate(engine(TORN, WHOLE), "Hi").pipe(ops.usage())) == [Usage(5, 2), Usage(), Usage(5, 3)]
    silent = ["Hello"]
    assert list(stream_generate(engine(TORN, silent), "Hi").pipe(ops.usage())) == [Usage(5, 2), Usage()]


def test_strings_cannot_be_taken_back() -> None:
    """A consumer of plain text sees only what is new, and what says so is an event."""
    assert list(stream_generate(engine(TORN, WHOLE), "Hi").pipe(ops.text())) == ["Hel", "lo"]
    pieces: list[str] = []
    for event in stream_generate(engine(TORN, WHOLE), "Hi"):
        match event:
            case TextDelta(delta=delta):
                pieces.append(delta)
            case StepRestarted():
                pieces.clear()
            case _:
                pass
    assert pieces == ["Hello"]


def test_what_was_said_is_kept_aside_and_can_be_stored() -> None:
    (kept,) = list(stream_generate(engine(TORN, WHOLE), "Hi").pipe(ops.only(Custom)))
    response = kept.data["response"]
    assert (response.output_text, response.usage) == ("Hel", Usage(5, 2))
    assert serializer.from_json(serializer.to_json(kept)) == kept


def test_behind_a_step_it_is_made_again() -> None:
    model = Fake(TORN, WHOLE)
    step = stream_step(model, "Hi", retry=False).pipe(ops.restart(NOW), ops.to_step_result(Thread((user("Hi"),)))).run()
    assert step.response.output_text == "Hello"


def test_after_a_whole_step_nothing_begins_again() -> None:
    """What its tools have done would be done twice."""
    ran: list[int] = []

    @tool
    def add(a: int) -> int:
        ran.append(a)
        return a

    model = Fake(ToolCall("c0", "add", {"a": 1}), TORN, WHOLE)
    result = stream(model, "Hi", tools=[add], retry=False).pipe(ops.restart(NOW), ops.to_chat_result()).run()
    assert (result.halted_reason, ran, len(model.requests)) == ("error", [1], 2)


def test_a_subscriber_that_raises_is_no_failure_of_the_stream() -> None:
    model = Fake("Hello")
    told: list[Any] = []

    def fail(event: Event) -> None:
        if isinstance(event, TextCompleted):
            raise AdapterError("timeout")

    scheduler = TestScheduler()
    stream_generate(model, "Hi", retry=False).pipe(ops.restart(NOW)).subscribe(fail, told.append, scheduler=scheduler)
    scheduler.start()
    assert (told, len(model.requests)) == ([AdapterError("timeout")], 1)


def test_retry_restart_and_fallback_come_one_after_the_other() -> None:
    """Retry is for what fails before the first content, restart for what fails after it; then nobody falls back."""
    first, other = Fake([DOWN], TORN, [DOWN], [DOWN], [DOWN], [DOWN]), Fake("Hello")
    made = Engine(first, operators=(ops.restart(NOW), ops.fallback(other)), retry={**NOW, "max_attempts": 2})
    response = generate(made, "Hi").run()
    assert (response.output_text, response.error) == ("Hel", DOWN)  # what was said is not thrown away
    assert (len(first.requests), len(other.requests)) == (6, 0)
    made = Engine(Fake([DOWN]), operators=(ops.restart(NOW), ops.fallback(other)), retry={**NOW, "max_attempts": 2})
    assert generate(made, "Hi").run().output_text == "Hello"


# raise_errors


ERROR = StreamError("truncated")


def test_a_streamed_error_is_raised_and_releases_the_source() -> None:
    check(
        ops.raise_errors(),
        "-d-e-d-|",
        "^--!",
        "-d-X",
        d=TextDelta("Hi"),
        e=ErrorEvent(ERROR),
        X=ERROR,
    )


def test_the_two_error_operators_undo_one_another() -> None:
    check(
        lambda source: source.pipe(ops.raise_errors(), ops.errors_as_events()),
        "-d-e|",
        "^--!",
        "-d-(e|)",
        d=TextDelta("Hi"),
        e=ErrorEvent(ERROR),
    )


# errors_as_events


def test_a_raised_error_becomes_the_last_event() -> None:
    check(
        ops.errors_as_events(),
        "-d-X",
        "^--!",
        "-d-(e|)",
        d=TextDelta("Hi"),
        e=ErrorEvent(ERROR),
        X=ERROR,
    )


def test_another_exception_stays_one() -> None:
    check(
        ops.errors_as_events(),
        "-d-X",
        "^--!",
        "-d-X",
        d=TextDelta("Hi"),
        X=KeyError("a bug is no part of a stream"),
    )

"""Steps until a halt; the ways of halting are tested in tests/pipelines, and a chat by hand in tests/laws."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from reactivex import empty, from_iterable, never, of
from reactivex.disposable import Disposable
from reactivex.testing import ReactiveTest, TestScheduler

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    Fake,
    StreamError,
    Thread,
    ToolCall,
    Usage,
    ValidationError,
    stream_generate,
    tool,
    user,
)
from rxllm import operators as ops
from rxllm.events import ChatCompleted, ErrorEvent, Event, StepCompleted, TextDelta
from rxllm.runtime import Stream
from rxllm.testing.marbles import START, check, cold, record
from rxllm.values import Response, StepResult
from tests.waiting import until

# repeat_until_halt


THREAD = Thread((user("Hi"),))
CALL = ToolCall("c1", "double", {"x": 1})


@tool
def double(x: int) -> int:
    return 2 * x


def asking(model: Fake) -> Any:
    """A step by hand."""
    return lambda thread: rxllm.stream_generate(model, thread, tools=[double], retry=False).pipe(
        ops.run_tools([double], thread=thread)
    )


def chat(model: Fake, **options: Any) -> Stream[Event]:
    ask = asking(model)
    return ask(THREAD).pipe(ops.repeat_until_halt(ask, **options))


async def leave_open(step: StepResult) -> bool:
    return False


def step(finish: Any = "stop", calls: tuple[ToolCall, ...] = ()) -> StepCompleted:
    response = Response[Any](None, "", calls, finish)
    return StepCompleted(StepResult(THREAD, response, (), done=not calls))


def test_each_subscription_is_a_chat_of_its_own() -> None:
    model = Fake(CALL, "Two.", CALL, "Two.")
    source = chat(model)
    first, second = source.run(), source.run()
    assert first.result.output_text == "Two."
    assert len(first.result.steps) == 2
    assert first == second
    assert len(model.requests) == 4


def test_nothing_is_asked_after_a_dispose() -> None:
    model = Fake([("delay", 5), CALL], ["Two."])
    source = chat(model)
    record(TestScheduler(), lambda: source, 3)
    assert len(model.requests) == 1


def test_a_final_step_follows_the_end_and_its_question_stays_in_the_thread() -> None:
    model = Fake(CALL, "Two.", '{"x": 2}')
    ask = asking(model)
    result = chat(model, finalize=lambda thread: ask(thread.add_user("As JSON!"))).run().result
    assert [message.text for message in result.thread if message.role in ("user", "assistant")][-3:] == [
        "Two.",
        "As JSON!",
        '{"x": 2}',
    ]
    assert result.metadata == {"structured_finalize": {"pass_1_halted": "completed"}}


def test_turns_are_bounded_and_a_source_that_asks_no_model_is_none() -> None:
    model = Fake(CALL, CALL, "Two.")
    ask = asking(model)
    assert chat(model, max_turns=1).run().result.metadata == {"max_turns": 1}
    resumed = of(step("tool_calls", (CALL,))).pipe(ops.repeat_until_halt(ask, max_turns=1)).run().result
    assert (resumed.halted_reason, len(resumed.steps)) == ("max_turns", 2)


def test_the_usage_of_earlier_steps_counts_for_a_budget() -> None:
    engine = Engine(Fake([CALL, Usage(60, 0)], ["Two.", Usage(60, 0)]), operators=[ops.budget(tokens=100)])
    ask = asking(engine)  # type: ignore[arg-type]
    result = ask(THREAD).pipe(ops.repeat_until_halt(ask)).run().result
    assert [response.metadata["budget"]["tokens_spent"] for response in (step.response for step in result.steps)] == [
        60,
        120,
    ]


def test_all_steps_have_one_request_id_and_each_chat_its_own() -> None:
    ids: list[str | None] = []
    look = tool(name="double", handler=lambda arguments, context: ids.append(context.request_id))
    model = Fake(scripts=[[CALL], [CALL], ["Done."]] * 2)

    def ask(thread: Thread) -> Stream[Event]:
        return rxllm.stream_generate(model, thread).pipe(ops.run_tools([look], thread=thread))

    source = ask(THREAD).pipe(ops.repeat_until_halt(ask))
    source.run()
    source.run()
    assert len(ids) == 4
    assert ids[0] == ids[1] != ids[2] == ids[3]


# Failures


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (rxllm.stream_generate(Fake("Hello"), THREAD), "a MessageCompleted"),
        (rxllm.stream(Fake("Hello"), THREAD), "a ChatCompleted"),
        (empty(), "without an event"),
    ],
)
def test_a_source_that_is_no_step_is_a_typed_error_that_names_the_remedy(source: Any, end: str) -> None:
    with pytest.raises(
        StreamError, match=rf"ended (with )?{end}.*add ops\.run_tools\(tools, thread=thread\)"
    ) as caught:
        source.pipe(ops.repeat_until_halt(lambda thread: never())).run()
    assert caught.value.reason == "malformed_event"


def test_a_first_step_that_fails_before_its_first_event_fails_the_chat() -> None:
    error = AdapterError("invalid_request")
    for source in (
        chat(Fake(error)),
        from_iterable([ErrorEvent(error)]).pipe(ops.repeat_until_halt(asking(Fake("Hi")))),
    ):
        events: list[Event] = []
        with pytest.raises(AdapterError):
            source.pipe(ops.tap(events.append)).run()
        assert events == []


def test_a_first_step_that_breaks_off_without_an_end_is_a_result_with_its_error() -> None:
    error = StreamError("truncated")
    torn = rxllm.stream_generate(Fake(["Hel", error]), THREAD)
    events = list(torn.pipe(ops.repeat_until_halt(asking(Fake("Hi")))))
    assert isinstance(events[-1], ChatCompleted)
    result = events[-1].result
    assert (result.halted_reason, result.error, result.output_text, result.thread) == ("error", error, "Hel", Thread())
    assert Stream.of(from_iterable(events)).pipe(ops.to_chat_result(THREAD)).run() == result


def test_an_error_that_is_first_but_not_last_is_seen() -> None:
    error = StreamError("truncated")
    failed = Stream.of(from_iterable([ErrorEvent(error), step("error")]))
    events = list(failed.pipe(ops.repeat_until_halt(asking(Fake("Hi")))))
    assert [type(event) for event in events] == [ErrorEvent, StepCompleted, ChatCompleted]


def test_a_later_step_that_fails_at_once_is_a_result_with_its_error() -> None:
    error = AdapterError("invalid_request")
    events = list(chat(Fake(scripts=[[CALL], [error]])))
    assert [type(event) for event in events[-2:]] == [ErrorEvent, ChatCompleted]
    assert events[-1].result.halted_reason == "error"  # type: ignore[union-attr]
    assert len(events[-1].result.steps) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("ask", [lambda thread: None, lambda thread: [step()]])
def test_an_ask_that_returns_no_stream_is_named(ask: Any) -> None:
    with pytest.raises(TypeError, match=r"repeat_until_halt\(ask\): ask must return an Observable of events, not "):
        of(step("tool_calls", (CALL,))).pipe(ops.repeat_until_halt(ask)).run()


def test_a_function_that_raises_ends_the_chat_with_its_error() -> None:
    def halt_when(step: StepResult) -> bool:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        chat(Fake(CALL, "Two."), halt_when=halt_when).run()


@pytest.mark.parametrize("name", ["ask", "halt_when"])
def test_an_exit_from_a_function_ends_the_chat_for_its_subscriber_too(name: str) -> None:
    def leave(argument: Any) -> Any:
        raise KeyboardInterrupt

    ended: list[Any] = []
    model = Fake(CALL, "Two.")
    functions: dict[str, Any] = {"ask": asking(model), "halt_when": None, name: leave}
    source = asking(model)(THREAD).pipe(ops.repeat_until_halt(**functions))

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        source.subscribe(lambda event: None, ended.append)
        await until(lambda: ended)

    asyncio.run(main())
    assert [type(error) for error in ended] == [KeyboardInterrupt]


def test_steps_that_end_while_they_are_subscribed_to_do_not_nest() -> None:
    def ask(thread: Thread) -> Stream[Event]:
        def subscribe(observer: Any, scheduler: Any = None) -> Disposable:
            observer.on_next(step("tool_calls", (CALL,)))
            observer.on_completed()
            return Disposable()

        return Stream(subscribe)

    errors: list[Exception] = []
    events: list[Event] = []
    ask(THREAD).pipe(ops.repeat_until_halt(ask, max_turns=2000)).subscribe(events.append, errors.append)
    assert errors == []
    assert len(events) == 2002
    assert isinstance(events[-1], ChatCompleted)


def test_a_subscriber_that_raises_at_the_end_gets_it_once() -> None:
    errors: list[Exception] = []

    def on_next(event: Event) -> None:
        if isinstance(event, ChatCompleted):
            raise LookupError("mine")

    chat(Fake("Hi")).subscribe(on_next, errors.append)
    assert [type(error) for error in errors] == [LookupError]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"ask": None}, "ask"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_turns": True}, "max_turns"),
        ({"halt_when": 3}, "halt_when"),
        ({"halt_when": leave_open}, "halt_when"),
        ({"finalize": "x"}, "finalize"),
    ],
)
def test_nonsense_is_refused_at_the_call(options: Any, name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.repeat_until_halt(**{"ask": lambda thread: never(), **options})
    assert [path for path, _ in caught.value.errors] == [(name,)]


def test_events_pass_as_they_come() -> None:
    events = list(chat(Fake(["Hel", "lo"])))
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["Hel", "lo"]


# continue_with


def chain(scheduler: TestScheduler, *marbles: str) -> list[Any]:
    return [cold(scheduler, each, {"X": ValueError("no")}) for each in marbles]


def subscriptions(source: Any) -> list[tuple[int, int]]:
    return [(each.subscribe - START, each.unsubscribe - START) for each in source.subscriptions]


def test_one_stream_follows_another_until_there_is_none() -> None:
    scheduler = TestScheduler()
    first, second, third = chain(scheduler, "-a-|", "-b-|", "-c|")
    following = {"a": second, "b": third}
    notes = record(scheduler, lambda: first.pipe(ops.continue_with(following.get)))
    assert notes == [(1, "next", "a"), (4, "next", "b"), (7, "next", "c"), (8, "end", None)]
    assert [subscriptions(each) for each in (first, second, third)] == [[(0, 3)], [(3, 6)], [(6, 8)]]


def test_it_is_asked_with_the_last_item_of_each() -> None:
    scheduler = TestScheduler()
    first, second = chain(scheduler, "-ab|", "-c|")
    asked: list[str] = []
    record(scheduler, lambda: first.pipe(ops.continue_with(lambda last: asked.append(last) or {"b": second}.get(last))))
    assert asked == ["b", "c"]


def test_an_empty_stream_ends() -> None:
    check(
        ops.continue_with(lambda last: None),
        "---|",
        "^--!",
        "---|",
    )


def test_none_is_an_item_like_any_other() -> None:
    asked: list[Any] = []
    check(
        ops.continue_with(asked.append),
        "-n-|",
        "^--!",
        "-n-|",
        resubscribe=False,
        n=None,
    )
    assert asked == [None]


def test_an_error_of_a_later_stream_ends_all() -> None:
    scheduler = TestScheduler()
    first, second = chain(scheduler, "-a-|", "-b-X")
    notes = record(scheduler, lambda: first.pipe(ops.continue_with(lambda last: second)))
    assert [(tick, kind) for tick, kind, _ in notes] == [(1, "next"), (4, "next"), (6, "error")]
    assert second.subscriptions == [ReactiveTest.subscribe(START + 3, START + 6)]


def test_an_exception_of_the_function_is_the_streams_error() -> None:
    failure = ValueError("no")

    def refuse(last: Any) -> None:
        raise failure

    check(
        ops.continue_with(refuse),
        "-a-|",
        "^--!",
        "-a-X",
        X=failure,
    )


def test_dispose_releases_the_one_that_runs() -> None:
    scheduler = TestScheduler()
    first, second = chain(scheduler, "-a-|", "-b-c-|")
    record(scheduler, lambda: first.pipe(ops.continue_with(lambda last: second)), disposed=5)
    assert (subscriptions(first), subscriptions(second)) == ([(0, 3)], [(3, 5)])


def test_a_thousand_streams_need_no_thousand_frames() -> None:
    scheduler = TestScheduler()
    notes = record(
        scheduler,
        lambda: cold(scheduler, "0|", {"0": 0}).pipe(
            ops.continue_with(lambda last: cold(scheduler, "n|", {"n": last + 1}) if last < 999 else None)
        ),
        disposed=5000,
    )
    assert [what for _, kind, what in notes if kind == "next"] == list(range(1000))


def test_a_source_that_is_no_stream_is_refused() -> None:
    with pytest.raises(TypeError, match="must be an Observable or None, not"):
        stream_generate(Fake("x"), "Hi").pipe(ops.continue_with(lambda last: 3)).run()  # type: ignore[arg-type]

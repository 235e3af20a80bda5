"""What becomes of a request before its model is asked: changed, refused, or checked while the answer comes."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from dataclasses import replace
from typing import Any

import pytest
from reactivex import empty, of, throw, timer
from reactivex import operators as rx_ops
from reactivex.subject import Subject
from reactivex.testing import TestScheduler

import rxllm
from rxllm import Engine, Event, Fake, Request, ToolCall, ValidationError, alongside, system, tool, user
from rxllm import operators as ops
from rxllm.testing.loopback import Loopback, Reply, endless
from rxllm.testing.marbles import record
from rxllm.values import EngineError
from tests.waiting import turns, until, wait_until

REFUSAL = ValidationError("invalid_request", "the question is not allowed")


def brief(request: Request) -> Request:
    return replace(request, messages=(system("Be brief."), *request.messages))


async def later(request: Request) -> Request:
    await asyncio.sleep(0)
    return brief(request)


def observable(request: Request) -> Any:
    return of(request, brief(request))


def refuse(request: Request) -> Request:
    raise REFUSAL


async def refuse_later(request: Request) -> Request:
    await asyncio.sleep(0)
    raise REFUSAL


def texts(request: Request) -> list[str]:
    return [message.text for message in request.messages]


@pytest.mark.parametrize("function", [brief, later, observable])
def test_a_function_may_change_the_request(function: Any) -> None:
    model = Fake("Hello")
    response = rxllm.generate(Engine(model, prepare=[function]), "Hi").run()
    assert response.output_text == "Hello"
    assert texts(model.requests[0]) == ["Be brief.", "Hi"]


@pytest.mark.parametrize("functions", [(brief, later, observable), (later, brief, brief), (observable, later, brief)])
def test_they_are_called_in_order_each_with_what_the_last_has_made(functions: Any) -> None:
    def number(request: Request) -> Request:
        return replace(request, metadata={"messages": len(request.messages)})

    model = Fake("Hello")
    rxllm.generate(Engine(model).with_prepare(*functions, number), "Hi").run()
    assert model.requests[0].metadata == {"messages": 4}


def test_it_sees_every_option_in_its_place() -> None:
    seen: list[Request] = []
    engine = Engine(Fake("Hello"), model="small", params={"temperature": 0.5}, prepare=[lambda r: seen.append(r) or r])
    rxllm.generate(engine, "Hi", max_tokens=9).run()
    assert (seen[0].model, seen[0].temperature, seen[0].max_tokens) == ("small", 0.5, 9)


def test_the_thread_and_the_results_keep_what_was_asked() -> None:
    @tool
    def look() -> str:
        return "seen"

    model = Fake(ToolCall("c1", "look"), "Done.")
    result = rxllm.chat(Engine(model, prepare=[brief]), "Hi", tools=[look]).run()
    assert [message.role for message in result.thread] == ["user", "assistant", "tool", "assistant"]
    assert [texts(request)[0] for request in model.requests] == ["Be brief.", "Be brief."]


def test_who_answers_instead_is_asked_what_was_prepared() -> None:
    other = Fake("Hello")
    engine = Engine(Fake(rxllm.AdapterError("unknown")), prepare=[brief], operators=[ops.fallback(other)], retry=False)
    rxllm.generate(engine, "Hi").run()
    assert texts(other.requests[0]) == ["Be brief.", "Hi"]


@pytest.mark.parametrize("function", [refuse, refuse_later, lambda request: throw(REFUSAL)])
@pytest.mark.parametrize("call", [rxllm.stream_generate, rxllm.generate, rxllm.step, rxllm.chat])
def test_an_error_refuses_the_request_before_anybody_is_asked(call: Any, function: Any) -> None:
    model = Fake("Hello")
    with pytest.raises(ValidationError, match="the question is not allowed"):
        call(Engine(model, prepare=[function]), "Hi").run()
    assert model.requests == []


@pytest.mark.parametrize("function", [lambda request: None, lambda request: of("Hi"), lambda request: later])
def test_an_invalid_prepared_request_is_named(function: Any) -> None:
    with pytest.raises(ValidationError, match=r"prepare\.1 must be a function that returns a Request"):
        rxllm.generate(Engine(Fake("Hello"), prepare=[brief, function]), "Hi").run()


def test_an_invalid_function_is_refused_by_the_engine() -> None:
    with pytest.raises(EngineError, match=r"prepare\[0\] must be a function, not 3"):
        Engine(Fake("Hello"), prepare=[3])  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="check must be a function, not None"):
        alongside(None)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="check must be a function that takes a request, not <function"):
        alongside(lambda: None)  # type: ignore[misc,arg-type]
    with pytest.raises(ValidationError, match=r"source must be an Observable, .* not Request"):
        rxllm.generate(Engine(Fake("Hi"), prepare=[ops.guard(bool)]), "Hi").run()  # type: ignore[list-item]


def test_a_prepared_request_is_checked_like_any_other() -> None:
    with pytest.raises(ValidationError):
        rxllm.generate(Engine(Fake("Hello"), prepare=[lambda request: replace(request, messages=())]), "Hi").run()


def test_a_model_that_prepares_for_another_is_a_call_of_its_own() -> None:
    def summarize(request: Request) -> Any:
        return rxllm.generate(Fake("short"), request).map(
            lambda response: replace(request, messages=(user(response.output_text),))
        )

    model = Fake("Hello")
    result = rxllm.chat(Engine(model, prepare=[summarize]), "A long story").run()
    assert texts(model.requests[0]) == ["short"]
    assert result.thread[0] == user("A long story")


# Checks that run while the model answers


async def passing(request: Request) -> None:
    await turns()


async def failing(request: Request) -> None:
    await turns()
    raise REFUSAL


def test_the_answer_is_held_back_until_the_check_has_passed() -> None:
    order: list[str] = []

    async def check(request: Request) -> None:
        await until(lambda: "answered" in order)
        order.append("checked")

    answered = ops.tap(lambda event: order.append("answered"), rxllm.MessageCompleted)
    engine = Engine(Fake(["Hel", "lo"]), prepare=[alongside(check)], operators=[answered])
    for text in rxllm.stream_generate(engine, "Hi").pipe(ops.text()):
        order.append(text)
    assert order == ["answered", "checked", "Hel", "lo"]


def test_an_answer_that_is_slower_than_the_check_comes_as_it_comes() -> None:
    check = alongside(lambda request: timer(3.0).pipe(rx_ops.ignore_elements()))
    engine = Engine(Fake([("delay", 5.0), "Hel", ("delay", 5.0), "lo"]), prepare=[check])
    notes = record(TestScheduler(), lambda: rxllm.stream_generate(engine, "Hi").pipe(ops.text()))
    assert notes == [(5, "next", "Hel"), (10, "next", "lo"), (10, "end", None)]


def test_a_check_that_raises_ends_the_call_and_nothing_of_it_is_seen() -> None:
    seen: list[Any] = []
    engine = Engine(Fake(["Hello", ("delay", 30), "!"]), prepare=[alongside(failing)])
    with pytest.raises(ValidationError, match="not allowed"):
        rxllm.stream_generate(engine, "Hi").pipe(ops.tap(seen.append)).run()
    assert seen == []


def test_a_model_that_fails_waits_for_the_check_too() -> None:
    down = Fake(rxllm.AdapterError("invalid_request"))
    with pytest.raises(rxllm.AdapterError):
        rxllm.generate(Engine(down, prepare=[alongside(passing)]), "Hi").run()
    with pytest.raises(ValidationError, match="not allowed"):
        rxllm.generate(Engine(down, prepare=[alongside(failing)]), "Hi").run()


def test_it_checks_what_those_before_it_have_made() -> None:
    seen: list[list[str]] = []

    def check(request: Request) -> None:
        seen.append(texts(request))

    rxllm.generate(Engine(Fake("Hello"), prepare=[alongside(check), later, alongside(check)]), "Hi").run()
    assert seen == [["Hi"], ["Be brief.", "Hi"]]


@pytest.mark.sockets
def test_a_refused_answers_connection_is_closed() -> None:
    with Loopback(Reply(endless())) as server:
        model = rxllm.OpenAIChat(base_url=server.url, api_key="k")

        def when_asked(request: Request) -> None:
            server.wait_requests(1)
            raise REFUSAL

        async def check(request: Request) -> None:
            await asyncio.to_thread(when_asked, request)

        with pytest.raises(ValidationError, match="not allowed"):
            rxllm.generate(Engine(model, model="m", prepare=[alongside(check)]), "Hi", retry=False).run()
        server.connections[0].wait_closed()
        assert server.connections[0].closed_by == "client"


# Time, order and endings


class Answering:
    """An adapter whose answer a test emits event by event."""

    def __init__(self) -> None:
        self.answer: Subject[Event] = Subject()

    def stream(self, request: Request, call: rxllm.values.Call) -> Subject[Event]:
        return self.answer

    def say(self, *texts: str) -> None:
        for text in texts:
            self.answer.on_next(rxllm.TextDelta(text))


def by_hand(*more: Any, **options: Any) -> tuple[Answering, Subject[None], Any]:
    """Return an adapter and a check that are driven by hand, and the events of the call that both belong to."""
    model, check = Answering(), Subject[None]()
    engine = Engine(model, prepare=[alongside(lambda request: check), *more])
    return model, check, rxllm.stream_generate(engine, "Hi", retry=False, **options)


def deltas(events: list[Any]) -> list[str]:
    return [event.delta for event in events]


def test_a_function_and_a_check_keep_the_time_of_the_scheduler() -> None:
    def slowly(request: Request) -> Any:
        return timer(3.0).pipe(rx_ops.map(lambda _: brief(request)))

    model = Fake("Hello")
    engine = Engine(model, prepare=[slowly, alongside(lambda request: timer(4.0).pipe(rx_ops.ignore_elements()))])
    notes = record(TestScheduler(), lambda: rxllm.stream_generate(engine, "Hi"))
    assert {tick for tick, _, _ in notes} == {7}
    assert notes[-1][1] == "end"
    assert texts(model.requests[0]) == ["Be brief.", "Hi"]


@pytest.mark.parametrize("function", [lambda request: None, refuse, lambda request: empty()])
def test_a_function_that_fails_after_one_that_takes_time_ends_the_call(function: Any) -> None:
    model = Fake("Hello")
    engine = Engine(model, prepare=[lambda request: timer(3.0).pipe(rx_ops.map(lambda _: request)), function])
    ((tick, kind, error),) = record(TestScheduler(), lambda: rxllm.generate(engine, "Hi"))
    assert (tick, kind, type(error), model.requests) == (3, "error", ValidationError, [])


def test_a_check_that_fails_after_the_answer_is_complete_is_all_that_is_seen() -> None:
    def slowly(request: Request) -> Any:
        return timer(5.0).pipe(rx_ops.flat_map(lambda _: throw(REFUSAL)))

    notes = record(TestScheduler(), lambda: rxllm.generate(Engine(Fake("Hello"), prepare=[alongside(slowly)]), "Hi"))
    assert notes == [(5, "error", REFUSAL)]


def test_a_check_without_an_item_has_passed() -> None:
    for check in (lambda request: empty(), lambda request: None):
        assert rxllm.generate(Engine(Fake("Hello"), prepare=[alongside(check)]), "Hi").run().output_text == "Hello"


def test_a_check_that_fails_at_once_keeps_the_model_from_being_asked() -> None:
    model, calls = Fake("Hello"), []

    def count(request: Request) -> Request:
        calls.append(request)
        return request

    with pytest.raises(ValidationError, match="not allowed"):
        rxllm.generate(Engine(model, prepare=[alongside(refuse), count, later]), "Hi").run()
    assert (model.requests, calls) == ([], [])


def test_an_event_that_comes_while_others_are_released_waits_behind_them() -> None:
    model, check, events = by_hand()
    seen: list[Any] = []

    def on_next(event: Event) -> None:
        seen.append(event)
        if len(seen) == 1:
            model.say("c", "d")
            model.answer.on_completed()

    ends: list[str] = []
    events.subscribe(on_next, ends.append, lambda: ends.append("end"), scheduler=TestScheduler())
    model.say("a", "b")
    assert seen == []
    check.on_completed()
    assert (deltas(seen), ends) == (["a", "b", "c", "d"], ["end"])


def test_a_check_on_another_thread_neither_loses_nor_reorders_events() -> None:
    model, check, events = by_hand()
    seen: list[Any] = []
    ended = threading.Event()

    def on_next(event: Any) -> None:
        if not seen:
            released.set()
        seen.append(event)

    released = threading.Event()
    events.subscribe(on_next, print, ended.set, scheduler=TestScheduler())
    first, second = [f"a{number}" for number in range(500)], [f"b{number}" for number in range(500)]
    model.say(*first)
    thread = threading.Thread(target=check.on_completed)
    thread.start()
    wait_until(released.is_set)
    model.say(*second)
    model.answer.on_completed()
    thread.join()
    assert ended.is_set()
    assert deltas(seen) == first + second


@pytest.mark.parametrize("at", [0, 1])
def test_a_subscriber_that_raises_at_a_released_event_ends_the_call_once(at: int) -> None:
    model, check, events = by_hand()
    seen: list[Any] = []
    errors: list[Exception] = []

    def on_next(event: Event) -> None:
        seen.append(event)
        if len(seen) == at + 1:
            raise ZeroDivisionError

    events.subscribe(on_next, errors.append, scheduler=TestScheduler())
    model.say("a", "b", "c")
    check.on_completed()
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert not model.answer.observers
    model.say("d")
    assert len(seen) == at + 1


@pytest.mark.sockets
def test_a_subscriber_that_raises_at_a_released_event_closes_the_connection() -> None:
    errors: list[Exception] = []
    held: list[Event] = []

    async def check(request: Request) -> None:
        await until(lambda: len(held) >= 3)

    with Loopback(Reply(endless())) as server:
        model = rxllm.OpenAIChat(base_url=server.url, api_key="k")
        ended = threading.Event()

        def on_error(error: Exception) -> None:
            errors.append(error)
            ended.set()

        engine = Engine(model, model="m", prepare=[alongside(check)], operators=[ops.tap(held.append)])
        events = rxllm.stream_generate(engine, "Hi", retry=False)
        events.subscribe(lambda event: 1 / 0, on_error)
        wait_until(ended.is_set)
        server.connections[0].wait_closed()
    assert [type(error) for error in errors] == [ZeroDivisionError]


def test_who_leaves_at_a_released_event_sees_no_more() -> None:
    model, check, events = by_hand()
    seen: list[Any] = []
    events.pipe(ops.tap(seen.append), rx_ops.take(1)).subscribe(scheduler=TestScheduler())
    model.say("a", "b")
    check.on_completed()
    assert deltas(seen) == ["a"]
    assert not model.answer.observers


def test_a_disposed_call_leaves_its_check_and_its_answer() -> None:
    model, check, events = by_hand()
    seen: list[Any] = []
    subscription = events.subscribe(seen.append, seen.append, lambda: seen.append("end"), scheduler=TestScheduler())
    model.say("a")
    subscription.dispose()
    assert not check.observers
    assert not model.answer.observers
    check.on_completed()
    assert seen == []


def test_of_two_checks_the_one_that_fails_disposes_of_the_other() -> None:
    second: Subject[None] = Subject()
    model, check, events = by_hand(alongside(lambda request: second))
    errors: list[Exception] = []
    events.subscribe(print, errors.append, scheduler=TestScheduler())
    model.say("a")
    second.on_error(REFUSAL)
    assert errors == []  # the first is still running
    check.on_completed()
    assert errors == [REFUSAL]
    assert not model.answer.observers


@pytest.mark.parametrize("place", ["function", "check"])
@pytest.mark.parametrize("count", [1, 50])
def test_a_disposed_call_cancels_what_prepares_it(place: str, count: int) -> None:
    model = Fake([("delay", 30), "Hello"])
    cancelled: list[str] = []

    async def wait(request: Request) -> Request:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(place)
            raise
        return request

    def plain(request: Request) -> Any:
        return wait(request)

    async def main() -> None:
        for function in (wait, plain):
            prepare = [function if place == "function" else alongside(function)]
            subscription = rxllm.stream_generate(Engine(model, prepare=prepare), "Hi").subscribe()
            await turns(count)
            subscription.dispose()
            subscription.dispose()
        await until(lambda: len(cancelled) >= 2)
        await turns()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()
    assert cancelled == [place, place]
    assert len(model.requests) == (2 if place == "check" else 0)


def test_a_function_that_is_disposed_of_before_it_began_leaves_no_coroutine_behind(recwarn: Any) -> None:
    def plain(request: Request) -> Any:
        return later(request)

    async def main() -> None:
        for function in (plain, alongside(plain), alongside(later)):
            rxllm.stream_generate(Engine(Fake("Hello"), prepare=[function]), "Hi").subscribe().dispose()

    asyncio.run(main())
    for function in (plain, alongside(plain), alongside(later)):
        rxllm.stream_generate(Engine(Fake("Hello"), prepare=[function]), "Hi").subscribe().dispose()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []

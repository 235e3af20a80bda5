"""A function that is called at every end of a stream, once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Observable, Subject
from reactivex import operators as rx
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Engine, Fake, StreamError, ToolCall, session, stream, stream_generate, tool
from rxllm import operators as ops
from rxllm.events import ErrorEvent, Event, MessageCompleted, StepRestarted, TextDelta
from rxllm.runtime import Stream
from rxllm.runtime.back_pressure import Endings
from rxllm.runtime.portal import portal
from rxllm.testing import World, simulate
from rxllm.testing import record as record_file
from rxllm.testing.loopback import Loopback
from rxllm.testing.marbles import check, cold, record
from rxllm.values import Message, Response, Session, Thread, ValidationError, user
from tests.closing import STALLED, assert_closes
from tests.examples import examples
from tests.operators.threads import together
from tests.runtime.support import BEGIN, finished, model, script
from tests.waiting import PATIENCE, turns, until, wait_until

THREAD = Thread((user("Hi"),))
ENDLESS = ["Once", " upon", ("delay", 3600), " a time"]
VALUES: dict[str, Any] = {
    "H": TextDelta("H"),
    "i": TextDelta("i"),
    "e": MessageCompleted(Message("assistant", "Hi"), "stop"),
    "x": ErrorEvent(StreamError("truncated")),
    "r": StepRestarted("truncated", 1),
}


class Ends:
    """Calls of the function: result and outcome, and the thread of each."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, str]] = []
        self.threads: list[threading.Thread] = []
        self.called = threading.Event()

    def __call__(self, result: Any, outcome: str) -> None:
        self.calls.append((result, outcome))
        self.threads.append(threading.current_thread())
        self.called.set()

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(result.output_text, outcome) for result, outcome in self.calls]

    def wait(self) -> Ends:
        wait_until(self.called.is_set)
        return self


def is_last(event: Event) -> bool:
    """Whether `event` is the last one before the model falls silent."""
    return isinstance(event, TextDelta) and event.delta == " upon"


def fold(events: list[Event]) -> Response[Any]:
    return reactivex.from_iterable(events).pipe(ops.to_response()).run()


# The ends, in virtual time


@pytest.mark.parametrize(
    ("source", "subscribed", "emitted", "text", "outcome"),
    [
        ("-H-i-e|", "^-----!", "-H-i-e|", "Hi", "completed"),
        ("-|", "^!", "-|", "", "completed"),
        ("-H-x|", "^---!", "-H-x|", "H", "failed"),
        ("-H-X", "^--!", "-H-X", "H", "failed"),
        ("-X", "^!", "-X", "", "failed"),
        ("-H-i-e|", "^-!", "-H", "H", "cancelled"),
        ("---H|", "^!", "-", "", "cancelled"),
        ("-H-xri|", "^-----!", "-H-xri|", "i", "completed"),
        ("-H-xri-|", "^-----!", "-H-xri", "i", "cancelled"),
        ("-H-x--|", "^---!", "-H-x", "H", "failed"),
    ],
)
def test_it_is_called_once_at_the_end_with_what_has_passed(
    source: str, subscribed: str, emitted: str, text: str, outcome: str
) -> None:
    ends = Ends()
    check(ops.finally_result(ends), source, subscribed, emitted, resubscribe=False, X=KeyError("mine"), **VALUES)
    assert ends.texts == [(text, outcome)]


def test_each_subscription_has_a_call_of_its_own() -> None:
    ends = Ends()
    check(ops.finally_result(ends), "-H-i-e|", "^-----!", "-H-i-e|", **VALUES)
    assert ends.texts == [("Hi", "completed")] * 2


def test_the_function_comes_before_the_subscribers_end() -> None:
    order: list[str] = []
    events = stream_generate(Fake("Hi"), "Hello").pipe(ops.finally_result(lambda result, outcome: order.append("fn")))
    events.do_action(on_completed=lambda: order.append("end")).run()
    assert order == ["fn", "end"]


def test_an_error_of_the_stream_is_the_results_too() -> None:
    ends = Ends()
    with pytest.raises(AdapterError):
        stream_generate(Fake(AdapterError("unknown")), "Hi").pipe(ops.finally_result(ends)).run()
    [(response, outcome)] = ends.calls
    assert (response.error, response.finish_reason, outcome) == (AdapterError("unknown"), "error", "failed")


def test_an_error_that_an_operator_below_raises_is_a_failure() -> None:
    ends = Ends()
    with pytest.raises(StreamError):
        stream_generate(Fake(["a", StreamError("truncated")]), "Hi").pipe(ops.finally_result(ends), ops.text()).run()
    assert ends.wait().texts == [("a", "failed")]


# The ways to leave a stream


async def left_by_dispose(events: Stream[Event]) -> None:
    seen: list[Event] = []
    subscription = events.subscribe(seen.append)
    await until(lambda: len(seen) == 3)
    subscription.dispose()


async def left_by_break(events: Stream[Event]) -> None:
    async for event in events:
        if is_last(event):
            break


async def left_by_an_exception_in_the_body(events: Stream[Event]) -> None:
    with contextlib.suppress(KeyError):
        async for event in events:
            if is_last(event):
                raise KeyError


async def left_by_cancel(events: Stream[Event]) -> None:
    seen: list[Event] = []

    async def answer() -> Any:
        return await events.do_action(seen.append)

    task = asyncio.create_task(answer())
    await until(lambda: len(seen) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def left_by_a_timeout(events: Stream[Event]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            await events.do_action(lambda event: limit.reschedule(0.0) if is_last(event) else None)


async def left_by_take(events: Stream[Event]) -> None:
    await events.take(3)


async def left_by_take_until(events: Stream[Event]) -> None:
    stop = Subject[None]()
    seen: list[Event] = []
    events.take_until(stop).subscribe(seen.append)
    await until(lambda: len(seen) == 3)
    stop.on_next(None)


async def left_by_switch_map(events: Stream[Event]) -> None:
    questions, seen = Subject[str](), list[Event]()
    questions.pipe(rx.switch_map(lambda question: events if question else reactivex.never())).subscribe(seen.append)
    questions.on_next("A story!")
    await until(lambda: len(seen) == 3)
    questions.on_next("")


async def left_on_another_thread(events: Stream[Event]) -> None:
    seen: list[Event] = []
    subscription = events.subscribe(seen.append)
    await until(lambda: len(seen) == 3)
    await asyncio.to_thread(subscription.dispose)


async def left_inside_on_next(events: Stream[Event]) -> None:
    seen: list[Event] = []

    subscription = SerialDisposable()

    def on_next(event: Event) -> None:
        seen.append(event)
        if len(seen) == 3:
            subscription.dispose()

    subscription.disposable = events.subscribe(on_next)
    await until(lambda: len(seen) == 3)


async def left_by_dropping_the_iterator(events: Stream[Event]) -> None:
    items = aiter(events)
    for _ in range(3):
        await anext(items)
    del items
    await asyncio.to_thread(gc.collect)


WAYS = [
    left_by_dispose,
    left_by_break,
    left_by_an_exception_in_the_body,
    left_by_cancel,
    left_by_a_timeout,
    left_by_take,
    left_by_take_until,
    left_by_switch_map,
    left_on_another_thread,
    left_inside_on_next,
    left_by_dropping_the_iterator,
]


@pytest.mark.parametrize("leave", WAYS)
def test_however_it_is_left_the_function_is_called_on_the_calls_own_loop(leave: Callable[..., Any]) -> None:
    ends, loops = Ends(), list[asyncio.AbstractEventLoop]()

    def end(result: Any, outcome: str) -> None:
        loops.append(asyncio.get_running_loop())
        ends(result, outcome)

    async def main() -> None:
        await leave(stream_generate(Fake(ENDLESS), "A story!").pipe(ops.finally_result(end)))
        await until(ends.called.is_set)
        await asyncio.sleep(0)
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())
    assert ends.texts == [("Once upon", "cancelled")]


@pytest.mark.parametrize("leave", WAYS)
def test_a_call_on_rxllms_own_loop_is_no_other(leave: Callable[..., Any]) -> None:
    ends = Ends()
    done = asyncio.run_coroutine_threadsafe(
        leave(stream_generate(Fake(ENDLESS), "A story!").pipe(ops.finally_result(ends))), portal().loop
    )
    done.result(PATIENCE)
    assert ends.wait().texts == [("Once upon", "cancelled")]
    assert ends.threads == [portal().thread]


def test_break_in_a_plain_for() -> None:
    ends = Ends()
    for event in stream_generate(Fake(ENDLESS), "A story!").pipe(ops.finally_result(ends)):
        if is_last(event):
            break
    assert ends.wait().texts == [("Once upon", "cancelled")]
    assert ends.threads == [portal().thread]


def test_a_dispose_returns_before_the_function_is_called() -> None:
    free, ends = threading.Event(), Ends()

    def end(result: Any, outcome: str) -> None:
        free.wait(PATIENCE)
        ends(result, outcome)

    seen = threading.Event()
    events = stream_generate(Fake(ENDLESS), "A story!").pipe(ops.finally_result(end))
    subscription = events.subscribe(lambda event: seen.set())
    wait_until(seen.is_set)
    subscription.dispose()
    assert ends.calls == []
    free.set()
    ends.wait()


def test_a_dispose_before_the_first_event_has_an_empty_result() -> None:
    ends = Ends()
    stream_generate(Fake([("delay", 60)]), "A story!").pipe(ops.finally_result(ends)).subscribe().dispose()
    assert ends.wait().calls == [(fold([]), "cancelled")]


def test_a_subscriber_that_raises_ends_it_too() -> None:
    ends, errors = Ends(), list[Exception]()

    def refuse(event: Event) -> None:
        raise KeyError("mine")

    async def main() -> None:
        events = stream_generate(Fake(ENDLESS), "A story!").pipe(ops.finally_result(ends))
        events.subscribe(refuse, errors.append)
        await until(ends.called.is_set)

    asyncio.run(main())
    assert ends.texts == [("", "failed")]
    assert [repr(error) for error in errors] == ["KeyError('mine')"]


def test_nothing_is_emitted_after_a_dispose() -> None:
    ends, seen, free = Ends(), list[Any](), asyncio.Event()

    async def story(request: Any, call: Any) -> AsyncIterator[Event]:
        yield TextDelta("a")
        await free.wait()
        yield TextDelta("b")

    async def main() -> None:
        events = stream_generate(story, "Hi").pipe(ops.finally_result(ends))
        subscription = events.subscribe(seen.append, seen.append, lambda: seen.append("end"))
        await until(lambda: len(seen) == 2)
        subscription.dispose()
        free.set()
        await until(ends.called.is_set)
        await turns()

    asyncio.run(main())
    assert len(seen) == 2
    assert ends.texts == [("a", "cancelled")]


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_a_source_of_another_thread_ends_on_the_calls_loop(end: str) -> None:
    ends = Ends()
    source: Subject[Event] = Subject()
    subscription = source.pipe(ops.finally_result(ends)).subscribe(None, lambda error: None)
    source.on_next(TextDelta("Hi"))
    act = {
        "completed": source.on_completed,
        "failed": lambda: source.on_error(KeyError()),
        "cancelled": subscription.dispose,
    }
    act[end]()
    assert ends.wait().threads == [portal().thread]
    assert ends.texts == [("Hi", end)]


# Sockets, threads, exit


@pytest.mark.sockets
def test_when_it_is_called_after_a_dispose_the_server_sees_the_close() -> None:
    async def leave(server: Loopback) -> None:
        ends, seen = Ends(), list[Event]()
        subscription = stream_generate(model(server), "Hi").pipe(ops.finally_result(ends)).subscribe(seen.append)
        await until(lambda: bool(seen) and getattr(seen[-1], "delta", "") == "c")
        subscription.dispose()
        await until(ends.called.is_set)
        assert ends.texts == [("abc", "cancelled")]

    assert_closes(leave)


@settings(deadline=None, max_examples=examples(50))
@given(st.integers(0, 6), st.integers(2, 6))
def test_it_is_called_once_however_many_threads_dispose_it_as_it_ends(pieces: int, disposers: int) -> None:
    ends = Ends()
    source: Subject[Event] = Subject()
    subscription = source.pipe(ops.finally_result(ends)).subscribe()

    def play() -> None:
        for _ in range(pieces):
            source.on_next(TextDelta("x"))
        source.on_completed()

    together(play, *[subscription.dispose] * disposers)
    ends.wait()
    done = threading.Event()
    portal().loop.call_soon_threadsafe(done.set)  # behind a second call, if there were one
    wait_until(done.is_set)
    [(response, outcome)] = ends.calls
    assert outcome in ("completed", "cancelled")
    assert response.output_text == "x" * pieces or outcome == "cancelled"


SAVE = """
def save(response, outcome):
    print(outcome, response.output_text, flush=True)
async def save_slowly(response, outcome):
    while threading.main_thread().is_alive():  # until the interpreter exits
        await asyncio.sleep(0)
    save(response, outcome)
def stream(fn):
    return stream_generate(engine, "Hi").pipe(ops.finally_result(fn))
"""


@pytest.mark.judges
@pytest.mark.parametrize("fn", ["save", "save_slowly"])
@pytest.mark.parametrize(
    "reading",
    [
        "for event in stream({0}):\n    if getattr(event, 'delta', '') == 'c': break",
        "items = iter(stream({0}))\nwhile getattr(next(items), 'delta', '') != 'c': pass",
        "seen = threading.Event()\n"
        "subscription = stream({0}).subscribe(lambda event: getattr(event, 'delta', '') == 'c' and seen.set())\n"
        "seen.wait()\nsubscription.dispose()",
    ],
    ids=["a for that is left", "an abandoned iterator", "a subscription"],
)
def test_the_interpreters_exit_waits_for_it(fn: str, reading: str) -> None:
    with Loopback(STALLED) as server:
        assert finished(script(BEGIN + SAVE + reading.format(fn), server.url)) == (0, "cancelled abc\n", "")


@pytest.mark.judges
def test_the_end_of_asyncio_run_still_calls_it() -> None:
    code = """
async def main():
    async for event in stream(save):
        if getattr(event, 'delta', '') == 'c': break
asyncio.run(main())
"""
    with Loopback(STALLED) as server:
        assert finished(script(BEGIN + SAVE + code, server.url)) == (0, "cancelled abc\n", "")


# Functions


def test_an_async_function_is_waited_for_before_the_end() -> None:
    saved: list[str] = []

    async def save(response: Response[Any], outcome: str) -> None:
        await turns(1000)
        saved.append(f"{outcome} {response.output_text}")

    async def main() -> None:
        await stream_generate(Fake("Hi"), "Hello").pipe(ops.finally_result(save))
        assert saved == ["completed Hi"]

    asyncio.run(main())
    stream_generate(Fake("Hi"), "Hello").pipe(ops.finally_result(save)).run()
    assert saved == ["completed Hi"] * 2


def test_an_async_function_goes_on_when_the_stream_is_disposed_meanwhile() -> None:
    saved, begun, free = list[str](), asyncio.Event(), asyncio.Event()

    async def save(response: Response[Any], outcome: str) -> None:
        begun.set()
        await free.wait()
        gc.collect()
        saved.append(outcome)

    async def main() -> None:
        ended: list[str] = []
        events = stream_generate(Fake("Hi"), "Hello").pipe(ops.finally_result(save))
        subscription = events.subscribe(None, None, lambda: ended.append("end"))
        await until(begun.is_set)
        subscription.dispose()
        free.set()
        await until(lambda: bool(saved))
        await turns()
        assert (saved, ended) == (["completed"], [])

    asyncio.run(main())


def test_a_reader_that_is_cancelled_while_the_function_runs_goes_on_when_it_is_done() -> None:
    saved, begun, free = list[str](), asyncio.Event(), asyncio.Event()

    async def save(response: Response[Any], outcome: str) -> None:
        begun.set()
        await free.wait()
        saved.append(outcome)

    async def read(events: Stream[Event]) -> None:
        try:
            await events
        finally:
            assert saved == ["completed"]

    async def main() -> None:
        reader = asyncio.ensure_future(read(stream_generate(Fake("Hi"), "Hello").pipe(ops.finally_result(save))))
        await until(begun.is_set)
        reader.cancel()
        await turns()
        assert not reader.done()
        free.set()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(main())


@pytest.mark.parametrize("is_first", [True, False], ids=["the loop is first", "the reader is first"])
@pytest.mark.parametrize("read", [lambda events: events.run(), list], ids=["run", "for"])
def test_a_reader_waits_while_its_stream_is_still_being_disposed_on_the_loop(
    read: Any, is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, saved, tape = threading.Event(), list[str](), tmp_path / "tape.jsonl"
    wait = Endings.wait_blocking

    def begin_to_wait(endings: Endings, loop: asyncio.AbstractEventLoop) -> None:
        waits.set()
        wait(endings, loop)

    def hold() -> None:
        """Hold the loop up until the reader waits, be it in its dispose, or before it."""
        if threading.current_thread() is portal().thread:
            wait_until(waits.is_set)

    def held(source: Observable[Event]) -> Stream[Event]:
        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            def complete() -> None:
                observer.on_completed()
                hold()

            subscription = source.subscribe(observer.on_next, observer.on_error, complete, scheduler=scheduler)
            return CompositeDisposable(Disposable(hold), subscription)

        return Stream(subscribe)

    monkeypatch.setattr(Endings, "wait_blocking", begin_to_wait)
    save = ops.finally_result(lambda response, outcome: saved.append(outcome))
    take = [held, rx.take(2)] if is_first else [rx.take(2), held]
    read(stream_generate(Fake(ENDLESS), "A story!").pipe(save, record_file(tape), *take))
    assert saved == ["cancelled"]
    assert '"disposed": true' in tape.read_text()


@pytest.mark.parametrize("pieces", [["Once"], ENDLESS])
def test_a_function_that_exits_keeps_no_reader(pieces: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def wait_and_note(running: list[Any], timeout: float) -> None:
        kept.extend(wait(running, timeout).not_done)

    def leave(response: Response[Any], outcome: str) -> None:
        raise SystemExit(3)

    monkeypatch.setattr("rxllm.runtime.back_pressure.wait", wait_and_note)
    answer = stream_generate(Fake(pieces), "A story!")
    with contextlib.suppress(SystemExit), rxllm.to_iter(answer.pipe(ops.finally_result(leave))) as events:
        next(events)
    assert kept == []


def test_the_function_may_return_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake("A greeting.")

    def summarize(response: Response[Any], outcome: str) -> Stream[Response[Any]]:
        return rxllm.generate(fake, f"Sum up: {response.output_text}")

    stream_generate(Fake("Hello"), "Hi").pipe(ops.finally_result(summarize)).run()
    assert [request.messages[-1].text for request in fake.requests] == ["Sum up: Hello"]
    assert caplog.records == []


async def fail_later(result: Any, outcome: str) -> None:
    await asyncio.sleep(0)
    raise KeyError("mine")


def fail_at_once(result: Any, outcome: str) -> None:
    raise KeyError("mine")


@pytest.mark.parametrize("fn", [fail_at_once, fail_later])
def test_its_exceptions_are_logged(fn: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "rxllm"):
        assert isinstance(stream_generate(Fake("Hi"), "Hello").pipe(ops.finally_result(fn)).run(), MessageCompleted)
    [entry] = caplog.records
    assert entry.getMessage() == f"finally_result: {fn.__name__} failed: KeyError('mine')"
    assert entry.exc_info is not None


def test_an_async_function_may_not_take_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def hang(result: Any, outcome: str) -> None:
        await asyncio.Event().wait()

    async def hanging(world: World) -> None:
        await stream_generate(Fake("Hi"), "Hello").pipe(ops.finally_result(hang))
        assert time.monotonic() == pytest.approx(30.0)

    simulate(hanging, faults=())
    assert "it took longer than 30 s" in caplog.text


def test_the_end_of_the_loop_cancels_an_async_function_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[str] = []

    async def save(result: Any, outcome: str) -> None:
        begun.append(outcome)
        await asyncio.Event().wait()

    async def main() -> None:
        stream_generate(Fake(ENDLESS), "A story!").pipe(ops.finally_result(save)).subscribe().dispose()
        await until(lambda: begun)

    asyncio.run(main())
    assert "was cancelled, because the event loop ended" in caplog.text


def test_an_async_function_that_the_end_of_the_loop_cancels_before_it_begins_is_named(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    async def save(result: Any, outcome: str) -> None:
        raise AssertionError

    async def main() -> None:
        stream_generate(Fake(ENDLESS), "A story!").pipe(ops.finally_result(save)).subscribe().dispose()

    asyncio.run(main())
    gc.collect()
    assert ("was cancelled, because the event loop ended" in caplog.text, [*recwarn]) == (True, [])


def test_the_end_of_the_loop_is_a_failure_while_the_model_is_silent() -> None:
    ends, seen = Ends(), list[Event]()

    async def main() -> None:
        stream_generate(Fake(ENDLESS), "A story!").pipe(ops.finally_result(ends)).subscribe(seen.append, print)
        await until(lambda: len(seen) == 3)

    asyncio.run(main())
    assert ends.texts == [("Once upon", "failed")]
    assert ends.calls[0][0].error == StreamError("cancelled", "the event loop ended the call")


def test_under_virtual_time_an_async_function_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = TestScheduler()
    notes = record(scheduler, lambda: cold(scheduler, "-H|", VALUES).pipe(ops.finally_result(fail_later)))
    assert [kind for _, kind, _ in notes] == ["next", "end"]
    assert "needs an event loop" in caplog.text


# What the result is


def test_the_fold_makes_the_result() -> None:
    @tool
    def double(x: int) -> int:
        return 2 * x

    def fake() -> Fake:
        return Fake(ToolCall("c0", "double", {"x": 21}), "42")

    cases: list[tuple[Callable[[], Stream[Event]], Any]] = [
        (lambda: stream(fake(), THREAD, tools=[double]), ops.to_chat_result(THREAD)),
        (lambda: rxllm.stream_step(fake(), THREAD, tools=[double]), ops.to_step_result(THREAD)),
        (lambda: session.stream_start(fake(), "Hi", tools=[double]), ops.to_session(Session())),
    ]
    for events, folding in cases:
        ends = Ends()
        events().pipe(ops.finally_result(ends, folding)).run()
        assert ends.calls == [(events().pipe(folding).run(), "completed")]


def test_a_chat_that_is_disposed_in_its_first_step_has_a_result() -> None:
    ends = Ends()
    stream(Fake(ENDLESS), THREAD).pipe(ops.finally_result(ends, ops.to_chat_result(THREAD)), rx.take(3)).run()
    [(result, outcome)] = ends.wait().calls
    assert (result.halted_reason, result.final_response.output_text, outcome) == ("cancelled", "Once upon", "cancelled")


@pytest.mark.parametrize(
    ("fn", "fold", "name", "fault"),
    [
        (None, None, "fn", "must be a function"),
        (lambda response: None, None, "fn", "must be a function that takes a result and an outcome"),
        (print, ops.to_response, "fold", "pass, for example, ops.to_response(), "),
        (print, 3, "fold", "must be a function"),
        (print, ops.to_chat_result(), "fold", "has no result for a stream without events"),
        (print, ops.to_response(int), "fold", "has no result for a stream without events"),
        (print, ops.to_text(), "fold", "has no result for a stream that failed"),
        (print, ops.text(), "fold", "it emitted 0 items, not one"),
    ],
)
def test_invalid_arguments_are_refused(fn: Any, fold: Any, name: str, fault: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.finally_result(fn, fold)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))
    assert fault in caught.value.errors[0][1]


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.sampled_from(["a", "b ", ToolCall("c1", "f", {"x": 1}), ("thinking", "hm")]), min_size=1), st.data())
def test_the_result_is_the_fold_of_what_was_delivered(pieces: list[Any], data: st.DataObject) -> None:
    """On completion it equals the streamed fold, on a dispose the fold of the events before it."""
    source = reactivex.from_iterable(all_events := list(stream_generate(Fake(pieces), "Hi")))
    ends = Ends()
    assert Stream.of(source).pipe(ops.finally_result(ends), ops.to_response()).run() == ends.wait().calls[0][0]
    count = data.draw(st.integers(1, len(all_events)))
    left = Ends()
    seen = list(stream_generate(Fake(pieces), "Hi").pipe(ops.finally_result(left)).take(count))
    assert left.wait().calls[0][0] == fold(seen)


def test_it_is_an_operator_of_an_engine_too() -> None:
    ends = Ends()
    rxllm.generate(Engine(Fake("Hi"), operators=[ops.finally_result(ends)]), "Hello").run()
    assert ends.texts == [("Hi", "completed")]


@pytest.mark.parametrize("is_async", [False, True])
class TestReadersGoOnWhenItIsDone:
    """However their stream was ended: a next question may depend on what was saved."""

    @staticmethod
    def story(saved: list[tuple[str, str]], is_async: bool) -> Stream[str]:
        def save(response: Response[Any], outcome: str) -> None:
            saved.append((outcome, response.output_text))

        async def save_later(response: Response[Any], outcome: str) -> None:
            await turns(1000)
            save(response, outcome)

        events = stream_generate(Fake(ENDLESS), "Hi")
        return events.pipe(ops.finally_result(save_later if is_async else save), ops.text())

    def test_run_and_iterators(self, is_async: bool) -> None:
        saved: list[tuple[str, str]] = []
        self.story(saved, is_async).take(2).run()
        assert saved == [("cancelled", "Once upon")]
        with rxllm.to_iter(self.story(saved, is_async)) as items:
            next(items)
        assert len(saved) == 2
        assert list(self.story(saved, is_async).take(2)) == ["Once", " upon"]
        assert len(saved) == 3

    def test_await_and_async_iterators(self, is_async: bool) -> None:
        saved: list[tuple[str, str]] = []

        async def main() -> None:
            await self.story(saved, is_async).take(2)
            assert saved == [("cancelled", "Once upon")]
            async with rxllm.to_async_iter(self.story(saved, is_async)) as items:
                async for _ in items:
                    break
            assert len(saved) == 2
            assert [text async for text in self.story(saved, is_async).take(2)] == ["Once", " upon"]
            assert len(saved) == 3
            texts: list[str] = []
            task = asyncio.ensure_future(self.story(saved, is_async).do_action(texts.append))
            await until(lambda: len(texts) == 2)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert len(saved) == 4

        asyncio.run(main())

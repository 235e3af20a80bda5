from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import reduce
from typing import Any

import pytest
import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Observable, Subject, abc, from_iterable

import rxllm
from rxllm import Engine, Fake, RetryPolicy, StreamCollector, ToolCall, to_async_iter, to_iter, tool
from rxllm import operators as ops
from rxllm.collector.event_rules import EventRules
from rxllm.events import (
    ChatCompleted,
    Custom,
    ErrorEvent,
    Event,
    Nested,
    PartAdded,
    RawChunk,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolProgress,
    UsageUpdated,
)
from rxllm.operators._share_folded import MOST, JoinedEvents
from rxllm.runtime import Gate, Stream, read_by
from rxllm.testing import World, assert_operator, events, simulate, strategies
from rxllm.testing.loopback import Loopback, Reply, endless
from rxllm.testing.virtual_time import EVERY, Clock, Source
from rxllm.values import AdapterError, EngineError, ProviderPart, StreamError, Usage, ValidationError
from tests.closing import assert_closes
from tests.examples import examples
from tests.laws import scripts
from tests.runtime.support import model
from tests.waiting import PATIENCE, turns, until, wait_until

HELLO: list[Event] = events("H", "e", "llo")


def fold(events: Sequence[Event]) -> StreamCollector:
    return reduce(StreamCollector.apply_event, events, StreamCollector())


class Watch:
    """A watcher in virtual time; one with a `period` is an iterator whose reader takes an item each so many ticks."""

    def __init__(self, shared: Observable[Event], clock: Clock, period: int | None = None) -> None:
        self.events: list[Event] = []
        self.ends: list[BaseException | None] = []
        self._gate = None if period is None else Gate(8)
        self._clock = clock
        self._period = period
        receive = self.events.append if self._gate is None else self._gate.waiting.append
        with read_by(self._gate, self._take_error):
            self._subscription = shared.subscribe(
                receive, self.ends.append, lambda: self.ends.append(None), scheduler=clock
            )
        if period is not None:
            clock.at(clock.tick + period, self._take)

    @property
    def all(self) -> list[Event]:
        """What it has received, and what its reader would still take."""
        return [*self.events, *(() if self._gate is None else self._gate.waiting)]

    def leave(self) -> None:
        self._subscription.dispose()

    def _take_error(self, error: BaseException) -> bool:
        self.ends.append(error)
        return True

    def _take(self) -> None:
        assert self._gate is not None
        assert self._period is not None
        if self._gate.waiting:
            self.events.append(self._gate.take())
        if self._clock.tick < 2000:
            self._clock.at(self._clock.tick + self._period, self._take)


class Call:
    """A source of one event in `EVERY` ticks, shared."""

    def __init__(self, events: Sequence[Event], grace: float | None = None, error: Exception | None = None) -> None:
        self.clock = Clock()
        self.source = Source(events, error, self.clock)
        self.shared: Stream[Event] = Stream.of(self.source).pipe(ops.share_folded(grace))
        self.end = (len(events) + 1) * EVERY

    def watch(self, period: int | None = None) -> Watch:
        return Watch(self.shared, self.clock, period)

    def until(self, tick: int) -> None:
        self.clock.advance_to(float(tick))


# Late watchers


def test_a_late_watcher_gets_what_has_been_said_and_then_live_events() -> None:
    call = Call(HELLO)
    early = call.watch()
    call.until(3 * EVERY)
    late = call.watch()
    assert early.events == HELLO[:3]
    assert late.events == [HELLO[0], TextDelta("He", "block_0")]
    call.until(call.end)
    assert early.events == HELLO
    assert late.events[2:] == HELLO[3:]
    assert (early.ends, late.ends) == ([None], [None])
    assert call.source.uses == [(0, call.end)]


def test_the_first_watcher_starts_the_call() -> None:
    call = Call(HELLO)
    assert call.source.uses == []
    call.watch()
    call.watch()
    assert call.source.uses == [(0, None)]


def test_after_the_end_a_watcher_gets_all_of_it_at_once() -> None:
    call = Call(HELLO)
    call.watch()
    call.until(call.end)
    late = call.watch()
    assert late.events == [HELLO[0], TextDelta("Hello", "block_0"), *HELLO[-2:]]
    assert late.ends == [None]
    assert len(call.source.uses) == 1


def test_after_an_error_a_watcher_gets_what_was_said_and_the_error() -> None:
    failure = ValueError("no")
    call = Call(HELLO[:3], error=failure)
    early = call.watch()
    call.until(call.end)
    late = call.watch()
    assert (early.ends, late.ends) == ([failure], [failure])
    assert late.events == [HELLO[0], TextDelta("He", "block_0")]


def test_each_pipe_has_a_call_of_its_own() -> None:
    operator, clock = ops.share_folded(None), Clock()
    sources = [Source(HELLO, clock=clock), Source(HELLO, clock=clock)]
    for source in sources:
        source.pipe(operator).subscribe(scheduler=clock)
    assert [source.uses for source in sources] == [[(0, None)]] * 2


watches = st.tuples(st.integers(0, 80), st.none() | st.integers(0, 40), st.sampled_from([None, None, 1, 3, 7]))


@settings(deadline=None, max_examples=examples(200))
@given(scripts.scripts, st.lists(watches, min_size=1, max_size=5))
def test_every_watcher_folds_to_the_result_wherever_it_joined_and_left(script: Any, plan: Any) -> None:
    """Law: fold(watched) == fold(all), of whoever stays to the end; of whoever leaves, it is the fold until then."""
    engine = Engine(scripts.fake(script), tools=tuple(scripts.TOOLS), retry=RetryPolicy(max_attempts=1))
    everything = list(rxllm.stream(engine, "Hi").pipe(ops.errors_as_events()))
    call = Call(everything)
    first = call.watch()
    stay: list[Watch] = []

    def join(stays: int | None, period: int | None) -> None:
        watch = call.watch(period)
        if stays is None:
            stay.append(watch)
        else:
            call.clock.at(call.clock.tick + stays, lambda: leave(watch, period))

    def leave(watch: Watch, period: int | None) -> None:
        watch.leave()
        if period is None:
            assert fold(watch.all) == fold(first.events)
            assert readings(watch.all) == readings(first.events)

    for joins, stays, period in plan:
        call.clock.at(joins, lambda stays=stays, period=period: join(stays, period))
    call.until(3000)
    assert first.events == everything
    for watch in stay:
        assert watch.ends == [None]
        assert fold(watch.all) == fold(everything)
        assert readings(watch.all) == readings(everything)
    assert call.source.uses == [(0, call.end)]


def readings(events: Sequence[Event]) -> Any:
    """What the readers of text, thinking and tool calls make of it, up to an error."""
    source = Stream.of(from_iterable(events)).take_while(lambda event: not isinstance(event, ErrorEvent))
    calls = sorted(source.pipe(ops.tool_calls()), key=lambda call: call.id)  # calls may be completed in any order
    return "".join(source.pipe(ops.text())), "".join(source.pipe(ops.thinking())), calls


def test_the_events_of_a_watcher_are_lawful_wherever_it_joins() -> None:
    script = [[("thinking", "hm"), "Let ", "me ", "see", ToolCall("c1", "add", {"x": 1})], ["It ", "is", Usage(1, 2)]]
    chat = list(rxllm.stream(Fake(scripts=script), "Hi", tools=scripts.TOOLS))
    call = Call(chat)
    call.watch()
    watches = list[Watch]()
    for joins in range(call.end + 4):
        call.until(joins)
        watches.append(call.watch(period=1 + joins % 3 * 4))
    call.until(1500)
    for watch in watches:
        assert watch.ends == [None]
        assert list(Stream.of(from_iterable(watch.all)).pipe(ops.verify())) == watch.all


# Leaving and stopping


def test_leaving_is_not_stopping() -> None:
    call = Call(HELLO, grace=None)
    first = call.watch()
    call.until(EVERY)
    first.leave()
    call.until(call.end)
    assert call.source.uses == [(0, call.end)]
    assert first.events == HELLO[:1]
    assert first.ends == []
    assert call.watch().ends == [None]


def test_the_call_ends_when_nobody_has_watched_for_the_grace() -> None:
    call = Call(HELLO, grace=3)
    first, second = call.watch(), call.watch()
    call.until(1)
    first.leave()
    call.until(2 * EVERY)
    assert call.clock.waiting == 0
    second.leave()
    assert call.source.uses == [(0, None)]
    call.until(call.end)
    assert call.source.uses == [(0, 2 * EVERY + 3)]
    assert call.clock.waiting == 0


def test_a_watcher_within_the_grace_keeps_the_call() -> None:
    call = Call(HELLO, grace=3)
    first = call.watch()
    call.until(3)
    first.leave()
    call.until(5)
    second = call.watch()
    assert call.clock.waiting == 0
    call.until(call.end)
    assert fold(second.events) == fold(HELLO)
    assert call.source.uses == [(0, call.end)]


def test_without_grace_the_call_ends_with_its_last_watcher() -> None:
    call = Call(HELLO, grace=0)
    first = call.watch()
    call.until(3)
    first.leave()
    assert call.source.uses == [(0, 3)]


def test_a_call_that_has_ended_does_not_begin_again() -> None:
    call = Call(HELLO, grace=0)
    first = call.watch()
    call.until(2 * EVERY)
    first.leave()
    late = call.watch()
    assert late.events == [HELLO[0], TextDelta("H", "block_0")]
    assert [error.reason for error in late.ends if isinstance(error, StreamError)] == ["cancelled"]
    assert "the shared call was stopped after 0 s without watchers" in str(late.ends[0])
    assert len(call.source.uses) == 1


def test_an_end_during_the_grace_needs_no_timer() -> None:
    call = Call(HELLO, grace=100)
    first = call.watch()
    call.until(call.end - 1)
    first.leave()
    assert call.clock.waiting == 1
    call.until(call.end)
    assert call.clock.waiting == 0
    assert call.watch().ends == [None]


def test_the_owner_stops_the_call_for_all() -> None:
    clock, stop = Clock(), Subject[None]()
    source = Source(HELLO, clock=clock)
    shared = Stream.of(source).take_until(stop).pipe(ops.share_folded(None))
    early, late = Watch(shared, clock), Watch(shared, clock, 1)
    clock.advance_to(3.0)
    stop.on_next(None)
    assert source.uses == [(0, 3)]
    assert (early.ends, late.ends) == ([None], [None])


@pytest.mark.parametrize("grace", [-1, "soon", float("inf"), True])
def test_a_wrong_grace_is_refused(grace: Any) -> None:
    with pytest.raises(ValidationError, match="grace must be a non-negative number of seconds"):
        ops.share_folded(grace)


# Watchers that misbehave


def test_a_watcher_that_raises_harms_no_other() -> None:
    failure = ValueError("no")

    def refuse(event: Event) -> None:
        raise failure

    call = Call(HELLO)
    errors = list[Exception]()
    call.shared.subscribe(refuse, errors.append, scheduler=call.clock)
    other = call.watch()
    call.until(call.end)
    assert errors == [failure]
    assert other.events == HELLO


def test_an_exit_goes_to_the_watcher_that_raised_it() -> None:
    call = Call(HELLO)
    listener = list[BaseException]()

    def exit(event: Event) -> None:
        raise SystemExit(3)

    with read_by(None, lambda error: listener.append(error) or True):
        call.shared.subscribe(exit, scheduler=call.clock)
    other = call.watch()
    call.until(call.end)
    assert [type(error) for error in listener] == [SystemExit]
    assert (other.events, other.ends) == (HELLO, [None])


def test_an_exception_at_the_end_harms_no_other_watcher() -> None:
    def refuse() -> None:
        raise ValueError("no")

    call = Call(HELLO)
    heard = list[BaseException]()
    with read_by(None, lambda error: heard.append(error) or True):
        call.shared.subscribe(on_completed=refuse, scheduler=call.clock)
    other = call.watch()
    call.until(call.end)
    assert other.ends == [None]
    assert [str(error) for error in heard] == ["no"]


def test_a_watcher_may_leave_or_send_others_away_inside_on_next() -> None:
    call = Call(HELLO)
    watches = list[Watch]()

    def part(event: Event) -> None:
        watches[0].leave()
        subscription.dispose()

    subscription = call.shared.subscribe(part, scheduler=call.clock)
    watches += [call.watch(), call.watch()]
    call.until(call.end)
    assert watches[0].events == []
    assert watches[1].events == HELLO


def test_a_watcher_that_joins_inside_on_next_gets_everything_once() -> None:
    call = Call(HELLO)
    joined = list[Watch]()

    def join(event: Event) -> None:
        joined.append(call.watch())

    call.shared.subscribe(join, scheduler=call.clock)
    call.until(call.end)
    assert len(joined) == len(HELLO)
    assert all(fold(watch.events) == fold(HELLO) for watch in joined)


def test_an_event_that_comes_while_another_is_delivered_keeps_its_place() -> None:
    call = Subject[Event]()
    shared = call.pipe(ops.share_folded(None))
    first, second = list[Event](), list[Event]()

    def push(event: Event) -> None:
        first.append(event)
        if event == TextDelta("a"):
            call.on_next(UsageUpdated(Usage(1)))

    shared.subscribe(push)
    shared.subscribe(second.append)
    call.on_next(TextDelta("a"))
    assert first == second == [TextDelta("a"), UsageUpdated(Usage(1))]


def test_an_item_that_is_no_event_ends_it_for_all() -> None:
    source = Subject[Any]()
    shared = source.pipe(ops.share_folded(None))
    errors = list[Any]()
    shared.subscribe(on_error=errors.append)
    shared.subscribe(on_error=errors.append)
    source.on_next("text")
    assert [error.reason for error in errors] == ["malformed_event"] * 2
    assert not source.observers


def test_it_keeps_the_rules_of_operators_but_those_of_sharing() -> None:
    assert_operator(lambda: ops.share_folded(0), without={"afresh", "apart"})


# Slow watchers


def test_a_slow_watcher_gets_joined_deltas_and_no_other_waits() -> None:
    response = events(*map(str, range(60)), usage=Usage(1, 1))
    call = Call(response)
    slow, quick = call.watch(period=20), call.watch()
    call.until(call.end)
    assert quick.events == response
    assert slow.ends == [None]
    assert fold(slow.all) == fold(response)
    assert len(slow.all) < 15


def test_a_slow_watcher_does_not_pace_the_call() -> None:
    letters = [f"{i} " for i in range(3000)]
    shared = rxllm.stream_generate(Fake(letters), "Hi").pipe(ops.share_folded(None))
    with to_iter(shared, maxsize=2) as slow:
        first = next(slow)
        response = shared.pipe(ops.to_response()).run()
        rest = list(slow)
    assert response.output_text == "".join(letters)
    assert fold([first, *rest]).to_response() == response
    assert len(rest) < 100


def test_a_slow_first_watcher_does_not_pace_a_source_that_schedules_its_events() -> None:
    letters = events(*"Hello" * 100)
    shared = reactivex.range(len(letters)).map(letters.__getitem__).pipe(ops.share_folded(None))
    with to_iter(shared, maxsize=1) as slow:
        next(slow)
        assert shared.pipe(ops.to_text()).run() == "Hello" * 100


def test_who_leaves_at_the_error_of_a_call_has_not_stopped_it() -> None:
    shared = rxllm.stream_generate(Fake(["Hel", ("error", "timeout")]), "Hi").pipe(ops.share_folded(0))
    with pytest.raises(AdapterError, match="timeout"):
        shared.pipe(ops.raise_errors()).run()
    response = shared.pipe(ops.to_response()).run()
    assert (response.output_text, getattr(response.error, "reason", None)) == ("Hel", "timeout")


def test_waiting_deltas_are_joined_across_the_usage_of_each_frame() -> None:
    waiting = JoinedEvents(())
    for number in range(5000):
        waiting.add(TextDelta("x", "1"))
        waiting.add(UsageUpdated(Usage(number)))
    assert waiting.take() == [TextDelta("x" * 5000, "1"), UsageUpdated(Usage(4999))]
    assert not waiting


def test_only_neighbours_of_a_block_are_joined() -> None:
    mixed: list[Event] = [
        *(TextDelta("a", "1"), ThinkingDelta("b", "1"), TextDelta("c", "1"), TextCompleted("ac", "1")),
        *(TextDelta("d", "2"), UsageUpdated(Usage(1)), Custom("x"), TextDelta("e", "2")),
    ]
    assert JoinedEvents(mixed).take() == mixed


def test_a_watcher_that_never_takes_anything_misses_what_the_fold_does_not_keep() -> None:
    waiting = JoinedEvents(())
    part = PartAdded(ProviderPart("a", {}))
    for number in range(3 * MOST):
        for event in (TextDelta("x"), Custom("n", number), ToolProgress("c", "f", number), RawChunk("frame", number)):
            waiting.add(event)
        assert len(waiting) <= MOST
    waiting.add(part)
    events = waiting.take()
    assert part in events
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == "x" * (3 * MOST)


def test_the_texts_of_agents_at_once_are_joined() -> None:
    waiting = JoinedEvents(())
    for number in range(5000):
        for path in (("a",), ("b",), ("b", "c")):
            waiting.add(Nested(path, TextDelta("x", "1")))
            waiting.add(Nested(path, UsageUpdated(Usage(number))))
    assert waiting.take() == [
        Nested(path, event)
        for path in (("a",), ("b",), ("b", "c"))
        for event in (TextDelta("x" * 5000, "1"), UsageUpdated(Usage(4999)))
    ]


@settings(deadline=None, max_examples=examples(100))
@given(strategies.lawful_chats, st.floats(0, 1), st.floats(0, 1))
def test_waiting_events_of_agents_are_lawful_and_fold_to_the_same(
    events: list[Event], joins: float, full: float
) -> None:
    cut, end = round(joins * len(events)), round(full * len(events))
    waiting = JoinedEvents(fold(events[:cut]).to_events())
    for number, event in enumerate([*events[cut:], None]):
        if number == end:
            waiting = JoinedEvents([*waiting.take(), *(Custom("filler", number) for number in range(MOST + 1))])
        if event is not None:
            waiting.add(event)
    taken = waiting.take()
    folded = [event for event in taken if not isinstance(event, Custom)]
    assert len(taken) - len(folded) < MOST
    rules = EventRules()
    for event in folded:
        rules.feed(event)
    assert fold(folded) == fold(events)
    assert fold(folded).to_events() == fold(events).to_events()


def test_an_event_that_the_fold_keeps_is_never_dropped() -> None:
    waiting = JoinedEvents(())
    sources: list[Event] = [TextDelta(str(number), str(number)) for number in range(3 * MOST)]
    for event in sources:
        waiting.add(event)
    assert waiting.take() == sources


# Loops and threads


class Story:
    """A model that says "a", and "b" when it is `free` to."""

    def __init__(self) -> None:
        self.begun, self.free = threading.Event(), threading.Event()

    async def tell(self, request: Any, call: Any) -> AsyncIterator[Event]:
        yield TextDelta("a")
        self.begun.set()
        await until(self.free.is_set)
        yield TextDelta("b")

    def shared(self, middle: Any) -> Stream[Event]:
        return rxllm.stream_generate(self.tell, "Hi").pipe(middle)


def test_all_watchers_are_called_on_the_loop_of_the_call() -> None:
    threads = set[int]()

    async def main() -> None:
        story = Story()
        shared = story.shared(ops.tap(lambda event: threads.add(threading.get_ident()))).pipe(ops.share_folded(None))
        ended = asyncio.Event()
        shared.subscribe(on_completed=ended.set)
        texts = list[str]()

        def watch() -> None:
            shared.pipe(ops.tap(lambda event: threads.add(threading.get_ident())), ops.text()).subscribe(texts.append)

        await until(story.begun.is_set)
        await asyncio.to_thread(watch)
        story.free.set()
        await until(ended.is_set)
        assert "".join(texts) == "ab"

    asyncio.run(main())
    assert threads == {threading.get_ident()}


def test_watchers_of_other_loops_and_threads_get_the_result() -> None:
    expected = "".join(f"{number} " for number in range(40))

    async def main() -> None:
        pieces = asyncio.Semaphore(0)

        async def tell(request: Any, call: Any) -> AsyncIterator[Event]:
            for number in range(40):
                await pieces.acquire()
                yield TextDelta(f"{number} ")

        def free(count: int) -> None:
            for _ in range(count):
                pieces.release()

        shared = rxllm.stream_generate(tell, "Hi").pipe(ops.share_folded(None))
        answer = shared.pipe(ops.to_text())

        async def read() -> str:
            async with to_async_iter(shared) as items:
                return fold([item async for item in items]).current_text

        ways: list[Callable[[], Any]] = [answer.run, lambda: asyncio.run(read()), lambda: next(iter(answer))]
        first = asyncio.ensure_future(answer)
        texts = list[Any]()
        for way in ways * 3:
            texts.append(asyncio.to_thread(way))
            texts.append(read())
            free(4)
            await turns()
        free(4)
        assert await asyncio.gather(first, *texts) == [expected] * (1 + len(texts))

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*blocks this thread's event loop:RuntimeWarning")
@pytest.mark.parametrize("middle", [ops.share_folded(None), ops.share_folded(0)])
def test_who_blocks_the_loop_of_the_call_does_not_wait_for_it(middle: Any) -> None:
    ways: list[Callable[[Any], Any]] = [
        lambda stream: stream.run(),
        lambda stream: list(stream),
        lambda stream: next(to_iter(stream)),
        lambda stream: rxllm.show(stream),
        lambda stream: stream.pipe(ops.text()).run(),
        lambda stream: rxllm.run(reactivex.timer(0.001).pipe(reactivex.operators.flat_map(lambda _: stream))),
    ]

    async def main() -> None:
        story = Story()
        shared = story.shared(middle)
        first = asyncio.ensure_future(shared.pipe(ops.to_text()))
        await until(story.begun.is_set)
        for way in ways:
            with pytest.raises(EngineError, match=r"await stream") as caught:
                way(shared)
            assert caught.value.reason == "wrong_loop"
        story.free.set()
        text = shared.pipe(ops.to_text())
        assert await asyncio.gather(first, text, asyncio.to_thread(text.run)) == ["ab"] * 3
        assert shared.pipe(ops.to_text()).run() == "ab"  # it is over

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*blocks this thread's event loop:RuntimeWarning")
def test_who_blocks_another_loop_waits_for_the_call() -> None:
    story = Story()
    shared = story.shared(ops.share_folded(None))
    shared.subscribe()  # on the portal

    async def main() -> None:
        assert shared.pipe(ops.tap(lambda event: story.free.set(), TextDelta), ops.to_text()).run() == "ab"

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*blocks this thread's event loop:RuntimeWarning")
def test_a_tool_of_a_chat_that_blocks_the_loop_does_not_wait_for_it_either() -> None:
    async def main() -> None:
        story = Story()
        shared = story.shared(ops.share_folded(None))
        first = asyncio.ensure_future(shared.pipe(ops.to_text()))
        await until(story.begun.is_set)
        errors = list[Any]()

        @tool
        def read() -> str:
            try:
                return shared.pipe(ops.to_text()).run()
            except EngineError as error:
                errors.append(error.reason)
                return "later"
            finally:
                story.free.set()

        rxllm.stream(Fake(scripts=[[ToolCall("c1", "read")], ["ok"]]), "Hi", tools=[read]).run()
        assert errors == ["wrong_loop"]
        assert await first == "ab"

    asyncio.run(main())


def test_a_late_watcher_on_another_thread_leaves_before_it_is_called() -> None:
    async def main() -> None:
        story = Story()
        shared = story.shared(ops.share_folded(None))
        first = asyncio.ensure_future(shared.pipe(ops.to_text()))
        await until(story.begun.is_set)
        seen = list[Event]()
        thread = threading.Thread(target=lambda: shared.subscribe(seen.append).dispose())
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()  # the loop does nothing meanwhile
        story.free.set()
        assert await first == "ab"
        assert seen == []

    asyncio.run(main())


def test_a_call_ends_with_the_loop_it_runs_on() -> None:
    async def silent() -> AsyncIterator[Event]:
        yield TextDelta("a")
        await asyncio.Event().wait()

    shared = rxllm.from_async_iter(silent).pipe(ops.share_folded(60))
    seen, errors = list[Event](), list[Exception]()

    async def main() -> abc.DisposableBase:
        subscription = shared.subscribe(seen.append, errors.append)
        await until(lambda: seen)
        return subscription

    asyncio.run(main()).dispose()
    assert [error.reason for error in errors if isinstance(error, StreamError)] == ["cancelled"]
    with pytest.raises(StreamError, match="the event loop ended the call"):
        shared.pipe(ops.to_text()).run()


def test_a_late_watcher_does_not_wait_for_a_loop_that_is_closed() -> None:
    source = Subject[Event]()
    shared = source.pipe(ops.share_folded(None))
    errors = list[Exception]()

    async def main() -> None:
        shared.subscribe(on_error=errors.append)

    asyncio.run(main())
    with pytest.raises(StreamError, match="the shared call's event loop is closed"):
        shared.run()
    assert len(errors) == 1


def test_a_watcher_that_leaves_after_its_loop_is_closed_ends_the_call() -> None:
    source = Subject[Event]()
    shared = source.pipe(ops.share_folded(5))

    async def main() -> abc.DisposableBase:
        return shared.subscribe()

    subscription = asyncio.run(main())
    assert source.observers
    subscription.dispose()
    assert not source.observers


def test_a_source_on_many_threads_loses_nothing() -> None:
    source = Subject[Event]()
    shared = source.pipe(ops.share_folded(None))
    watches = [list[Event]() for _ in range(4)]
    subscribe: list[Callable[[], Any]] = [lambda seen=seen: shared.subscribe(seen.append) for seen in watches]
    subscribe.pop(0)()

    def emit(name: str) -> None:
        for _ in range(300):
            source.on_next(SourceAdded({"from": name}))

    threads = [threading.Thread(target=emit, args=(name,)) for name in "abc"]
    threads += [threading.Thread(target=act) for act in subscribe]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    source.on_completed()
    wait_until(lambda: all(len(seen) == 900 for seen in watches))
    assert all(fold(seen) == fold(watches[0]) for seen in watches)


# Sockets


def test_the_connection_is_closed_when_the_grace_after_the_last_watcher_is_over() -> None:
    async def leaving_one_by_one(world: World) -> None:
        server = world.serve(Reply(endless(every=1.0)))
        shared = rxllm.stream_generate(model(server), "Hi").pipe(ops.share_folded(10.0))
        first, second = to_async_iter(shared), to_async_iter(shared)
        for items in (first, second):
            await anext(items)
        await first.aclose()
        await asyncio.sleep(30.0)
        assert server.open_count == 1
        await second.aclose()
        left = time.monotonic()
        await asyncio.sleep(30.0)
        assert server.connections[0].closed_at == pytest.approx(left + 10.0, abs=0.1)
        assert server.connections[0].closed_by == "client"

    simulate(leaving_one_by_one, faults=())


@pytest.mark.judges
def test_the_socket_is_closed_when_the_grace_is_over() -> None:
    with Loopback(Reply(endless())) as server:
        with to_iter(rxllm.stream_generate(model(server), "Hi").pipe(ops.share_folded(1.0))) as items:
            next(items)
        server.connections[0].wait_closed()
        assert server.connections[0].closed_by == "client"


@pytest.mark.sockets
def test_the_socket_is_closed_when_the_owner_stops_the_call() -> None:
    def stop_it(server: Loopback) -> None:
        stop = Subject[None]()
        shared = rxllm.stream_generate(model(server), "Hi").take_until(stop).pipe(ops.share_folded(None))
        watchers = to_iter(shared), to_iter(shared)
        for items in watchers:
            next(items)
        stop.on_next(None)
        for items in watchers:
            list(items)  # it ends

    assert_closes(stop_it, Reply(endless()))


def test_a_browser_that_comes_again_has_missed_nothing() -> None:
    @tool
    def look() -> str:
        return "7 C"

    engine = Engine(
        Fake(["Let me ", "see", ToolCall("c1", "look")], ["It is ", ("delay", 0.02), "cold."]), tools=(look,)
    )

    async def main() -> None:
        shared = rxllm.stream(engine, "Hi").pipe(ops.share_folded(grace=PATIENCE))
        before = list[Event]()
        async with to_async_iter(shared) as items:
            async for event in items:
                before.append(event)
                if event == TextDelta("It is ", "block_0"):
                    break
        async with to_async_iter(shared) as items:
            after = [event async for event in items]
        assert isinstance(after[-1], ChatCompleted)
        assert [text async for text in Stream.of(from_iterable(after)).pipe(ops.text())] == [
            "Let me see",
            "It is ",
            "cold.",
        ]
        assert fold(after).to_chat_result() == fold(after).chat_result

    asyncio.run(main())

"""The fastest stream: races of all, and hedges that start late."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from reactivex import Observable, Subject, just
from reactivex.disposable import Disposable
from reactivex.testing import ReactiveTest, TestScheduler

import rxllm
from rxllm import (
    AdapterError,
    Event,
    Fake,
    LLMError,
    StreamError,
    ToolCall,
    ValidationError,
    stream,
    stream_generate,
    tool,
)
from rxllm import operators as ops
from rxllm.events import ErrorEvent, MessageCompleted, MessageStarted, TextCompleted, TextDelta, UsageUpdated
from rxllm.runtime import Stream
from rxllm.testing import World, simulate
from rxllm.testing.loopback import DONE, STALL, Loopback, Pause, Reply, chat, chat_chunk, chat_finish
from rxllm.testing.marbles import START, cold, record
from rxllm.values import Usage, assistant
from tests.closing import also_next, assert_closed, next_call
from tests.operators.threads import together
from tests.runtime.support import model
from tests.waiting import until

# race


WON = {"race": {"winner": 1, "errors": ()}}
VALUES: dict[str, Any] = {
    "s": MessageStarted(assistant("")),
    "u": UsageUpdated(Usage(1)),
    "A": TextDelta("A"),
    "a": TextCompleted("A"),
    "B": TextDelta("B"),
    "b": TextCompleted("B"),
    "m": MessageCompleted(assistant("B"), "stop"),
    "w": MessageCompleted(assistant("B"), "stop", metadata=WON),
    "E": ErrorEvent(StreamError("truncated")),
    "X": AdapterError("provider_unavailable"),
}


def raced(
    *streams: str, disposed: int | None = None, race: Callable[..., Observable[Event]] = rxllm.race
) -> tuple[list[tuple[int, str, Any]], list[tuple[int, int]]]:
    scheduler = TestScheduler()
    sources = [cold(scheduler, marbles, VALUES) for marbles in streams]
    told = record(scheduler, lambda: race(*sources), disposed)
    used = [(int(each.subscribe) - START, int(each.unsubscribe) - START) for s in sources for each in s.subscriptions]
    return told, used


def test_the_first_content_wins_and_not_the_first_bookend() -> None:
    told, used = raced(
        "s-u--A-a-m|",
        "-s-B-b--m|",
    )
    assert told == [
        (3, "next", VALUES["s"]),
        (3, "next", VALUES["B"]),
        (5, "next", VALUES["b"]),
        (8, "next", VALUES["w"]),
        (9, "end", None),
    ]
    assert used == [(0, 3), (0, 9)]


def test_one_that_fails_before_its_content_is_out_and_named() -> None:
    told, used = raced(
        "s-E|",
        "-s-B-b--m|",
    )
    ended = told[-2][2]
    assert [kind for _, kind, _ in told] == ["next"] * 4 + ["end"]
    assert ended.metadata["race"]["winner"] == 1
    assert ended.metadata["race"]["errors"] == (f"0: {VALUES['E'].error!r}",)
    assert used == [(0, 3), (0, 9)]


@pytest.mark.parametrize(("last", "end"), [("-----X", [(5, "error", VALUES["X"])]), ("-----E|", None)])
def test_when_all_fail_the_last_failure_passes_as_it_came(last: str, end: Any) -> None:
    told, _ = raced("--X", last)
    assert told == (end or [(5, "next", VALUES["E"]), (5, "end", None)])


def test_after_the_first_content_an_error_is_the_winner_s_own() -> None:
    told, used = raced("-s-A-X", "-s---------B|")
    assert told[-1] == (5, "error", VALUES["X"])
    assert used == [(0, 5), (0, 3)]


def test_the_end_without_content_wins_too_if_it_is_an_end() -> None:
    told, _ = raced("--s--m|", "------A|")
    assert [what for _, _, what in told[:2]] == [
        VALUES["s"],
        MessageCompleted(assistant("B"), "stop", metadata={"race": {"winner": 0, "errors": ()}}),
    ]


def test_an_event_during_the_release_of_held_events_comes_behind_them() -> None:
    source = Subject[Event]()
    told: list[Any] = []

    def tell(event: Event) -> None:
        told.append(event)
        if event == VALUES["s"]:
            source.on_next(VALUES["b"])
            source.on_completed()

    rxllm.race(source, Subject[Event]()).subscribe(tell, on_completed=lambda: told.append("end"))
    source.on_next(VALUES["s"])
    source.on_next(VALUES["B"])
    assert told == [VALUES["s"], VALUES["B"], VALUES["b"], "end"]


def test_dispose_reaches_all() -> None:
    told, used = raced("s----A", "s----B", disposed=3)
    assert told == []
    assert used == [(0, 3), (0, 3)]


def test_a_stream_that_wins_at_once_leaves_the_others_alone() -> None:
    def answer(observer: Any, scheduler: Any = None) -> Any:
        observer.on_next(TextDelta("now"))
        observer.on_completed()

    other = cold(TestScheduler(), "A|", VALUES)
    assert [*rxllm.race(Stream(answer), other)] == [TextDelta("now")]
    assert other.subscriptions == []


def test_it_is_run_anew_for_each_subscription() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "s-A|", VALUES)
    both = rxllm.race(source, source)
    first = record(scheduler, lambda: both)
    assert len(source.subscriptions) == 2
    assert [kind for _, kind, _ in first] == ["next", "next", "end"]
    assert source.subscriptions[1] == ReactiveTest.subscribe(START, START + 2)
    assert isinstance(both, Stream)


class Kept(Observable[Event]):
    """A source that says what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.observers: list[Any] = []

    def _subscribe_core(self, observer: Any, scheduler: Any = None) -> Any:
        self.observers.append(observer)
        return Disposable()


def test_streams_of_several_threads_have_one_winner() -> None:
    """A stream of reactivex's own may be of any thread."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            source, seen = Kept(), list[Any]()
            rxllm.race(*[source] * 4).subscribe(seen.append, seen.append)
            said = [[TextDelta(f"{k}{n}") for n in range(3)] for k in range(4)]
            together(*(partial(_say, observer, each) for observer, each in zip(source.observers, said, strict=True)))
            assert seen in said
    finally:
        sys.setswitchinterval(interval)


def _say(observer: Any, events: list[TextDelta]) -> None:
    for event in events:
        observer.on_next(event)


def test_a_second_stream_that_fails_while_the_first_one_s_failure_is_told_is_the_last() -> None:
    first, second = Subject[Event](), Subject[Event]()
    seen: list[Any] = []

    class SlowError(AdapterError):
        def __repr__(self) -> str:
            second.on_error(VALUES["X"])
            return "slow"

    rxllm.race(first, second).subscribe(seen.append, seen.append)
    failure = SlowError("timeout")
    first.on_error(failure)
    assert seen == [failure]


@pytest.mark.parametrize("streams", [(), (3,), (just(TextDelta("a")), "b")])
def test_an_object_that_is_no_stream_is_refused(streams: Any) -> None:
    with pytest.raises(ValidationError, match="streams"):
        rxllm.race(*streams)
    with pytest.raises(ValidationError, match="others") as caught:
        ops.race(*streams)
    assert caught.value.reason == "invalid_option"


@pytest.mark.parametrize(
    "streams",
    [
        ("s-u--A-a-m|", "-s-B-b--m|"),
        ("s-A-a-m|", "-s-B-b--m|", "--s|"),
        ("s-E|", "-s-B-b--m|"),
        ("--X", "-----E|"),
        ("-s-A-X", "-s---------B|"),
    ],
)
def test_in_a_pipe_it_is_the_function_with_the_source_as_stream_0(streams: tuple[str, ...]) -> None:
    def piped(source: Observable[Event], *others: Observable[Event]) -> Observable[Event]:
        return source.pipe(ops.race(*others))

    assert raced(*streams, race=piped) == raced(*streams)


def test_it_is_an_engine_s_operator() -> None:
    slow, quick = Fake([("delay", 60), "Late."]), stream_generate(Fake("Yes."), "Hi")
    response = rxllm.generate(rxllm.Engine(slow, operators=[ops.race(quick)]), "Hi").run()
    assert (response.output_text, response.metadata) == ("Yes.", WON)


@pytest.mark.sockets
def test_the_losers_sockets_are_closed() -> None:
    """A server that accepts and stalls loses to one that answers, and sees its connection close."""

    def when_both_are_asked() -> Iterator[bytes | Pause]:
        while not slow.requests:
            yield Pause(0.001)
        yield from (chat_chunk("Yes"), STALL)

    async def main() -> None:
        seen: list[Event] = []
        race = rxllm.race(stream_generate(model(slow), "Hi"), stream_generate(model(quick), "Hi"))
        subscription = race.subscribe(seen.append)
        await until(lambda: any(isinstance(event, TextDelta) for event in seen))
        await next_call(slow)
        assert_closed(slow.connections[0])
        assert quick.open_count == 1
        subscription.dispose()

    with Loopback(also_next(Reply([b": hello\n\n", STALL]))) as slow, Loopback(Reply(when_both_are_asked())) as quick:
        asyncio.run(main())


@pytest.mark.sockets
def test_usage_is_counted_once_and_no_text_is_doubled() -> None:
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
    answer = [chat_chunk("Yes"), Pause(0.01), chat_finish(), chat_finish("stop", **usage), DONE]
    with Loopback(lambda _: Reply(answer)) as server:
        streams = [stream_generate(model(server), "Hi") for _ in range(3)]
        response = rxllm.race(*streams).pipe(ops.to_response()).run()
    assert (response.output_text, response.usage.input_tokens, response.usage.output_tokens) == ("Yes", 3, 2)
    assert response.metadata["race"]["winner"] in (0, 1, 2)


@pytest.mark.sockets
def test_a_server_that_is_not_there_loses() -> None:
    with Loopback(Reply(chat("Yes"))) as server, Loopback() as gone:
        pass
    with Loopback(Reply(chat("Yes"))) as server:
        absent = stream_generate(model(gone), "Hi", retry=False)
        response = rxllm.race(absent, stream_generate(model(server), "Hi")).pipe(ops.to_response()).run()
        assert response.output_text == "Yes"
    with pytest.raises(LLMError):
        rxllm.race(absent, absent).run()


def test_the_result_of_a_chat_says_who_has_won() -> None:
    @tool
    def look() -> str:
        return "sunny"

    slow, quick = Fake([("delay", 60), "Late."]), Fake(ToolCall("c1", "look", {}), "Sunny.")
    chats = [stream(engine, "Is it?", tools=[look]) for engine in (slow, quick)]
    note = {"race": {"winner": 1, "errors": ()}}
    result = rxllm.race(*chats).pipe(ops.to_chat_result()).run()
    assert (result.output_text, result.metadata) == ("Sunny.", note)
    assert [step.response.metadata for step in result.steps] == [note] * 2
    assert result.final_response == result.steps[-1].response
    assert rxllm.race(stream(Fake("Yes."), "Is it?")).pipe(ops.to_response()).run().metadata["race"]["winner"] == 0


# hedge


HEDGE_VALUES: dict[str, Any] = {
    "s": MessageStarted(assistant("")),
    "A": TextDelta("A"),
    "m": MessageCompleted(assistant("A"), "stop"),
    "X": AdapterError("provider_unavailable"),
}


def hedged(
    marbles: str,
    after: float,
    disposed: int | None = None,
    hedge: Callable[..., Observable[Event]] = rxllm.hedge,
) -> tuple[list[Any], list[tuple[int, int]]]:
    scheduler = TestScheduler()
    source = cold(scheduler, marbles, HEDGE_VALUES)
    told = record(scheduler, lambda: hedge(source, after), disposed)
    return told, [(int(each.subscribe) - START, int(each.unsubscribe) - START) for each in source.subscriptions]


def signed(winner: int, *errors: str) -> MessageCompleted:
    metadata = {"hedge": {"winner": winner, "errors": errors}}
    return MessageCompleted(assistant("A"), "stop", metadata=metadata)


def test_one_that_speaks_in_time_is_alone() -> None:
    told, used = hedged("s-A-m|", after=3)
    assert told == [
        (2, "next", HEDGE_VALUES["s"]),
        (2, "next", HEDGE_VALUES["A"]),
        (4, "next", signed(0)),
        (5, "end", None),
    ]
    assert used == [(0, 5)]


def test_a_slow_one_is_joined_and_may_still_win() -> None:
    told, used = hedged("s---A-m|", after=3)
    assert told[-2:] == [(6, "next", signed(0)), (7, "end", None)]
    assert used == [(0, 7), (3, 4)]


def test_if_the_first_fails_the_second_begins_at_once() -> None:
    told, used = hedged("s-X", after=100)
    assert told == [(4, "error", HEDGE_VALUES["X"])]
    assert used == [(0, 2), (2, 4)]


def test_a_dispose_leaves_no_timer_behind() -> None:
    told, used = hedged("s-----A|", after=3, disposed=2)
    assert (told, used) == ([], [(0, 2)])


@pytest.mark.parametrize("after", [0, -1, float("nan"), float("inf"), "2", None, True])
def test_a_time_that_is_none_is_refused(after: Any) -> None:
    with pytest.raises(ValidationError, match="after"):
        rxllm.hedge(just(HEDGE_VALUES["A"]), after)
    with pytest.raises(ValidationError, match="after must be a positive number of seconds") as caught:
        ops.hedge(after)
    assert caught.value.reason == "invalid_option"


def test_hedge_refuses_an_object_that_is_no_stream() -> None:
    with pytest.raises(ValidationError, match="must be an Observable"):
        rxllm.hedge("stream", 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("marbles", ["s-A-m|", "s---A-m|", "s-X", "s-----A|", "-s|"])
def test_in_a_pipe_it_is_the_function_of_the_source(marbles: str) -> None:
    def piped(source: Observable[Event], after: float) -> Observable[Event]:
        return source.pipe(ops.hedge(after))

    assert hedged(marbles, 3, hedge=piped) == hedged(marbles, 3)


def test_it_is_an_engine_s_operator_of_hedge() -> None:
    engine = rxllm.Engine(rxllm.Fake([("delay", 60), "Late."], "In time."), operators=[ops.hedge(after=1)])
    (_, _, response), *_ = record(TestScheduler(), lambda: rxllm.generate(engine, "When?"))
    assert (response.output_text, response.metadata["hedge"]) == ("In time.", {"winner": 1, "errors": ()})


@pytest.mark.parametrize("call", [lambda hedge, stream: hedge(stream, 2), lambda hedge, stream: hedge(stream, after=2)])
def test_the_operator_with_a_stream_names_the_function(call: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^hedge: .*; write ops\.hedge\(after=2\) .* or rxllm\.hedge\(stream, after\)$"
    ):
        call(ops.hedge, just(HEDGE_VALUES["A"]))


def test_the_socket_of_the_one_that_is_not_heard_is_closed() -> None:
    """The first request stalls, the second is answered."""

    async def hedging(world: World) -> None:
        slow, quick = Reply([b": hello\n\n", STALL]), Reply([chat_chunk("Yes"), Pause(60.0), chat_finish(), DONE])
        server = world.serve([slow, quick])
        response = await rxllm.hedge(stream_generate(model(server), "Hi"), after=5.0).pipe(ops.to_response())
        assert (response.output_text, response.metadata["hedge"]["winner"]) == ("Yes", 1)
        first, second = server.connections
        assert (first.closed_by, first.closed_at) == ("client", pytest.approx(5.0, abs=0.1))
        assert second.accepted_at == pytest.approx(5.0, abs=0.1)

    simulate(hedging, faults=())

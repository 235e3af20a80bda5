from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from reactivex import Observable, just
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Event, ValidationError, stream_generate
from rxllm import operators as ops
from rxllm.events import MessageCompleted, MessageStarted, TextDelta
from rxllm.testing.loopback import STALL, Loopback, Reply, Request, chat
from rxllm.testing.marbles import START, cold, record
from rxllm.values import assistant
from tests.runtime.support import assert_prompt, model, until

VALUES: dict[str, Any] = {
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
    source = cold(scheduler, marbles, VALUES)
    told = record(scheduler, lambda: hedge(source, after), disposed)
    return told, [(int(each.subscribe) - START, int(each.unsubscribe) - START) for each in source.subscriptions]


def signed(winner: int, *errors: str) -> MessageCompleted:
    metadata = {"hedge": {"winner": winner, "errors": errors}}
    return MessageCompleted(assistant("A"), "stop", metadata=metadata)


def test_one_that_speaks_in_time_is_alone() -> None:
    told, used = hedged("s-A-m|", after=3)
    assert told == [
        (2, "next", VALUES["s"]),
        (2, "next", VALUES["A"]),
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
    assert told == [(4, "error", VALUES["X"])]
    assert used == [(0, 2), (2, 4)]


def test_a_dispose_leaves_no_timer_behind() -> None:
    told, used = hedged("s-----A|", after=3, disposed=2)
    assert (told, used) == ([], [(0, 2)])


@pytest.mark.parametrize("after", [0, -1, float("nan"), float("inf"), "2", None, True])
def test_a_time_that_is_none_is_refused(after: Any) -> None:
    with pytest.raises(ValidationError, match="after"):
        rxllm.hedge(just(VALUES["A"]), after)
    with pytest.raises(ValidationError, match="after must be a number of seconds above 0") as caught:
        ops.hedge(after)
    assert caught.value.reason == "invalid_option"


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(ValidationError, match="must be an Observable"):
        rxllm.hedge("stream", 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("marbles", ["s-A-m|", "s---A-m|", "s-X", "s-----A|", "-s|"])
def test_in_a_pipe_it_is_the_function_of_the_source(marbles: str) -> None:
    def piped(source: Observable[Event], after: float) -> Observable[Event]:
        return source.pipe(ops.hedge(after))

    assert hedged(marbles, 3, hedge=piped) == hedged(marbles, 3)


def test_it_is_an_engine_s_operator() -> None:
    engine = rxllm.Engine(rxllm.Fake([("delay", 60), "Late."], "In time."), operators=[ops.hedge(after=0.01)])
    response = rxllm.generate(engine, "When?").run()
    assert (response.output_text, response.metadata["hedge"]) == ("In time.", {"winner": 1, "errors": ()})


@pytest.mark.parametrize("call", [lambda hedge, stream: hedge(stream, 2), lambda hedge, stream: hedge(stream, after=2)])
def test_the_operator_with_a_stream_names_the_function(call: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^hedge: .*; write ops\.hedge\(after=2\) .* or rxllm\.hedge\(stream, after\)$"
    ):
        call(ops.hedge, just(VALUES["A"]))


def test_the_socket_of_the_one_that_is_not_heard_is_closed() -> None:
    """The first request stalls, the second is answered."""

    async def once() -> float:
        def answer(request: Request) -> Reply:
            return Reply([b": hello\n\n", STALL]) if len(server.requests) == 1 else Reply(chat("Yes"))

        with Loopback(answer) as server:
            won: list[float] = []

            def note(event: Event) -> None:
                if isinstance(event, TextDelta):
                    won.append(time.monotonic())

            hedged = rxllm.hedge(stream_generate(model(server), "Hi"), after=0.05).pipe(
                ops.tap(note), ops.to_response()
            )
            response = await hedged
            assert (response.output_text, response.metadata["hedge"]["winner"]) == ("Yes", 1)
            first = server.connections[0]
            await until(lambda: first.closed_at is not None)
            assert first.closed_by == "client"
            assert first.closed_at is not None
            return first.closed_at - won[0]

    assert_prompt([asyncio.run(once()) for _ in range(5)])

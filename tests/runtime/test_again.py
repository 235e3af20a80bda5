"""``retry``, ``catch`` and ``timeout`` of a Stream: reactivex's, and text is never emitted twice."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Observable
from reactivex import operators as rx

import rxllm
from rxllm import AdapterError, ErrorEvent, Event, Fake, StepRestarted, Stream, StreamError, TextDelta, stream_generate
from rxllm import operators as ops
from rxllm.serializer import from_json, to_json
from rxllm.testing.marbles import cold
from rxllm.testing.virtual_time import Clock
from rxllm.values import Message, ValidationError
from tests.examples import examples

CUT = ["2, 3, ", ("error", "provider_unavailable")]
MINE = LookupError("mine")


def asked(*turns: Any) -> Stream[Event]:
    return stream_generate(Fake(*turns), "Name primes.", retry=False)


def told(source: Observable[Any]) -> list[Any]:
    """The items, and the error."""
    return (
        source.pipe(rx.materialize(), rx.map(lambda each: getattr(each, "exception", getattr(each, "value", "|"))))
        .pipe(rx.to_list())
        .run()
    )


# As reactivex's own


def _raise(*_: Any) -> Any:
    raise MINE


METHODS: dict[str, tuple[Callable[[Stream[Any]], Observable[Any]], Callable[[Observable[Any]], Observable[Any]]]] = {
    "retry": (lambda source: source.retry(3), rx.retry(3)),
    "retry(1)": (lambda source: source.retry(1), rx.retry(1)),
    "retry()": (lambda source: source.retry().take(4), lambda source: source.pipe(rx.retry(), rx.take(4))),
    "catch": (lambda source: source.catch(reactivex.of("other")), rx.catch(reactivex.of("other"))),
    "catch a function": (
        lambda source: source.catch(lambda error, again: again.map(str.upper)),
        rx.catch(lambda error, again: again.pipe(rx.map(str.upper))),
    ),
    "a function that raises": (lambda source: source.catch(_raise), rx.catch(_raise)),
    "timeout": (lambda source: source.timeout(2.0, reactivex.of("other")), rx.timeout(2.0, reactivex.of("other"))),
    "repeat": (lambda source: source.repeat(2), rx.repeat(2)),
}


@pytest.mark.parametrize("marbles", ["-a-b-|", "-a-X", "a-b--X", "---a-|", "-a---b-|", "|"])
@pytest.mark.parametrize("name", METHODS)
def test_items_that_are_no_events_and_subscriptions_are_reactivexs(name: str, marbles: str) -> None:
    ours, theirs = METHODS[name]

    def ran(operator: Callable[[Any], Observable[Any]], make: Callable[[Any], Any]) -> tuple[Any, Any]:
        clock = Clock()
        source = cold(clock, marbles, {"X": MINE})
        results = clock.start(lambda: operator(make(source)), disposed=300.0)
        return results.messages, source.subscriptions

    assert ran(ours, Stream.of) == ran(theirs, lambda source: source)


# Events

WAYS: dict[str, Callable[..., Stream[Any]]] = {
    "retry": lambda first, then: asked(first, then).retry(3),
    "catch": lambda first, then: asked(first).catch(asked(then)),
    "catch a function": lambda first, then: asked(first, then).catch(lambda error, again: again),
    "retry, then catch": lambda first, then: asked(first, first).retry(2).catch(lambda error, _: asked(then)),
    "retry of raised errors": lambda first, then: asked(first, then).pipe(ops.raise_errors()).retry(3),
    "restart": lambda first, then: asked(first, then).pipe(ops.restart({"base_delay": 0.0, "jitter": 0.0})),
}

every_way = pytest.mark.parametrize("way", WAYS)


@every_way
def test_the_same_answer_is_emitted_once(way: str) -> None:
    events = WAYS[way](CUT, ["2, ", "3", ", 5, 7."])
    assert told(events.pipe(ops.text())) == ["2, 3, ", "5, 7.", "|"]
    assert "".join(told(WAYS[way](CUT, "2, 3, 5, 7.").pipe(ops.words()))[:-1]) == "2, 3, 5, 7."
    assert "".join(told(WAYS[way](CUT, "2, 3, 5. End.").pipe(ops.sentences()))[:-1]) == "2, 3, 5. End."


@every_way
@pytest.mark.parametrize("other", ["2, three", "two", "2, 3", ""])
def test_another_answer_ends_the_text_with_an_error(way: str, other: str) -> None:
    for operator in (ops.text(), ops.words()):
        *texts, error = told(WAYS[way](CUT, [other] if other else []).pipe(operator))
        assert "".join(texts) == "2, 3, "
        assert isinstance(error, StreamError)
        assert error.reason == "restarted"
        assert isinstance(error.__cause__, AdapterError)
        assert error.__cause__.reason == "provider_unavailable"
        assert "ops.to_text()" in str(error)


@every_way
def test_folds_have_the_last_answer_only(way: str) -> None:
    events = list(WAYS[way](CUT, "two, three"))
    assert reactivex.from_iterable(events).pipe(ops.to_text()).run() == "two, three"
    assert reactivex.from_iterable(events).pipe(ops.verify(), ops.to_response()).run().error is None
    assert [type(event) for event in events].count(StepRestarted) == (2 if way == "retry, then catch" else 1)


def test_thinking_is_emitted_once_too() -> None:
    first, then = [("thinking", "hm "), *CUT], [("thinking", "hm hm"), "2, 3, 5"]
    assert told(asked(first, then).retry(2).pipe(ops.thinking())) == ["hm ", "hm", "|"]


def test_an_attempt_without_an_event_leaves_nothing_to_discard() -> None:
    events = asked(AdapterError("rate_limited"), "Hi").retry(2)
    assert not any(isinstance(event, StepRestarted) for event in events)


def test_a_restart_names_its_reason_and_counts_the_attempts() -> None:
    events = asked(CUT, CUT, "2, 3, 5").retry(3).pipe(ops.only(StepRestarted))
    assert list(events) == [StepRestarted("provider_unavailable", 2), StepRestarted("provider_unavailable", 3)]


def test_after_the_last_attempt_the_failure_is_passed_on_as_it_came() -> None:
    assert type(list(asked(CUT, CUT).retry(2))[-1]) is ErrorEvent
    assert told(asked(CUT, CUT).pipe(ops.raise_errors()).retry(2))[-1] == AdapterError(
        "provider_unavailable", "adapter error (fake): provider_unavailable", provider="fake"
    )


def test_an_error_event_that_is_not_the_end_is_no_failure() -> None:
    error = ErrorEvent(StreamError("timeout"))
    items = [TextDelta("a"), error, TextDelta("b")]
    assert list(Stream.of(reactivex.of(*items)).retry(3)) == items
    assert list(Stream.of(reactivex.of(*items)).catch(reactivex.of("other"))) == items


def test_nothing_is_held_back() -> None:
    source, seen = reactivex.Subject[Any](), list[Any]()
    Stream.of(source).retry(2).subscribe(seen.append)
    source.on_next(TextDelta("a"))
    assert seen == [TextDelta("a")]


@pytest.mark.parametrize("wrong", ["other", lambda error, again: "other"])
def test_what_is_no_stream_is_refused_with_what_to_write(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="handler must be an Observable or a future, or a function that returns"):
        list(asked(CUT).catch(wrong))


def test_a_future_may_follow() -> None:
    async def main() -> None:
        later: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        later.set_result("later")
        assert await Stream.of(reactivex.throw(MINE)).catch(lambda error, again: later) == "later"

    asyncio.run(main())


def test_a_repeated_stream_is_no_restart() -> None:
    assert told(asked("2, 3", "2, 3, 5").repeat(2).pipe(ops.text())) == ["2, 3", "2, 3, 5", "|"]


def test_another_response_in_the_stream_is_no_restart_either() -> None:
    both = asked("one").concat(asked(CUT, "2, 3, 5").retry(2))
    assert told(both.pipe(ops.text())) == ["one", "2, 3, ", "5", "|"]


def test_in_a_chat_earlier_steps_stand() -> None:
    call = rxllm.values.ToolCall("c1", "roll", {})
    engine = rxllm.Engine(
        Fake(["Wait. ", call], CUT, "2, 3, 5"),
        tools=[rxllm.tool(roll)],
        operators=[ops.restart({"base_delay": 0.0, "jitter": 0.0})],
    )
    assert "".join(rxllm.stream(engine, "Hi").pipe(ops.text())) == "Wait. 2, 3, 5"


def roll() -> int:
    """Roll a die."""
    return 4


# Timeouts


def test_a_timeout_is_an_error_of_rxllm_and_of_python() -> None:
    clock = Clock()
    results = clock.start(lambda: Stream.of(reactivex.never()).timeout(2.0))
    (message,) = results.messages
    error = message.value.exception
    assert isinstance(error, TimeoutError)
    assert isinstance(error, StreamError)
    assert (message.time, error.reason, str(error)) == (202.0, "timeout", "nothing arrived for 2.0 s")
    assert from_json(to_json(error)) == StreamError("timeout", "nothing arrived for 2.0 s")
    assert pickle.loads(pickle.dumps(error)) == error


def test_another_stream_after_a_timeout_begins_with_a_restart() -> None:
    clock = Clock()
    source = cold(clock, "-a-----b", {"a": TextDelta("one ")})
    other = reactivex.of(TextDelta("one two"))
    results = clock.start(lambda: Stream.of(source).timeout(2.0, other).pipe(ops.text()))
    assert [(each.time, each.value.value) for each in results.messages[:-1]] == [(201.0, "one "), (203.0, "two")]


# Equal sequences


def test_two_streams_are_compared_as_streams() -> None:
    one = Stream.of(reactivex.of(1, 2))
    assert list(one.sequence_equal(Stream.of(reactivex.of(1, 2)))) == [True]
    assert list(one.sequence_equal(Stream.of(reactivex.of(1)))) == [False]
    assert list(one.sequence_equal([1, 2])) == [True]


# Laws


def cut_up(text: str, cuts: Sequence[int]) -> list[str]:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[begin:end] for begin, end in pairwise(ends)]


def attempt(text: str, cuts: Sequence[int], failure: Exception | None) -> list[Any]:
    pieces: list[Any] = [TextDelta(piece, "t") for piece in cut_up(text, cuts)]
    ended: list[Any] = [
        rxllm.events.TextCompleted(text, "t"),
        rxllm.events.MessageCompleted(Message("assistant", text)),
    ]
    return [rxllm.events.MessageStarted(Message("assistant")), *pieces, *([failure] if failure else ended)]


def played(attempts: list[list[Any]], as_event: bool) -> Stream[Event]:
    """A stream that plays one of `attempts` for each subscription."""
    left = iter(attempts)

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        *items, last = next(left)
        failed = isinstance(last, Exception)
        end: Observable[Any] = (
            (reactivex.of(ErrorEvent(last)) if as_event else reactivex.throw(last)) if failed else reactivex.of(last)  # type: ignore[arg-type]
        )
        return reactivex.concat(reactivex.from_iterable(items), end).subscribe(observer, scheduler=scheduler)

    return Stream(subscribe)


TEXT = st.text("ab .", max_size=12)
CUTS = st.lists(st.integers(0, 12), max_size=4)


@settings(deadline=None, max_examples=examples(100))
@given(TEXT, TEXT, st.integers(0, 12), CUTS, CUTS, st.booleans(), st.booleans())
def test_emitted_text_is_the_beginning_of_one_answer(
    answer: str, other: str, place: int, cuts: list[int], others: list[int], is_same: bool, as_event: bool
) -> None:
    final = answer if is_same else other
    failure = StreamError("timeout")
    attempts = [attempt(answer[:place], cuts, failure), attempt(final, others, None)]
    events = list(played(attempts, as_event).retry(2))
    assert list(Stream.of(reactivex.from_iterable(events)).pipe(ops.verify())) == events
    whole = list(played([attempts[1]], as_event).pipe(ops.to_response()))
    assert list(Stream.of(reactivex.from_iterable(events)).pipe(ops.to_response())) == whole
    for operator in (ops.text, ops.words, ops.sentences):
        *texts, ending = told(Stream.of(reactivex.from_iterable(events)).pipe(operator()))
        emitted = "".join(texts)
        if ending == "|":
            assert emitted == final
        else:
            assert ending.reason == "restarted"
            assert answer[:place].startswith(emitted)
            assert not final.startswith(emitted)

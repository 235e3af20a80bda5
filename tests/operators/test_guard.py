"""Guards in virtual time: what is shown, when, and what is left of a stream that a guard has stopped."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from reactivex import Observable, Subject, empty, from_iterable, of, throw, timer
from reactivex import operators as rx
from reactivex.testing import TestScheduler

from rxllm import Fake, ToolCall, ValidationError, serializer, stream, tool
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    Custom,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    PartAdded,
    RawChunk,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.operators._guard import AT_ONCE
from rxllm.runtime import current_gate
from rxllm.runtime.back_pressure import HELD_BACK
from rxllm.testing import assert_operator, events
from rxllm.testing.marbles import START, check, cold, record
from rxllm.testing.virtual_time import Clock, OperatorRun
from rxllm.values import Message, ProviderPart, StreamError, TextPart, Usage
from tests.operators.scripts import said, through

VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "a": TextDelta("One is."),
    "b": TextDelta(" Two"),
    "c": TextDelta(" is."),
    "A": TextDelta(" "),
    "B": TextDelta("Two"),
    "T": TextCompleted("One is. Two is."),
    "e": MessageCompleted(Message("assistant", "One is. Two is."), "stop"),
    "u": UsageUpdated(Usage(3)),
}


@tool
def add(x: int = 1) -> int:
    return x + 1


def taking(seconds: float, verdict: Any = None) -> Callable[[str], Observable[Any]]:
    return lambda text: timer(seconds).pipe(rx.map(lambda _: verdict))


def no_two(text: str) -> str | None:
    return "it says two" if "Two" in text else None


def tripped(text: str, guard: str = "no_two", reason: str = "it says two") -> StreamError:
    metadata = {"guard": guard, "reason": reason, "text": text}
    return StreamError("guard_tripped", f"the guard {guard!r} tripped: {reason}", metadata=metadata)


def texts(shown: Iterable[Any]) -> str:
    return "".join(event.delta for event in shown if isinstance(event, TextDelta))


def parts(*deltas: str, **options: Any) -> list[str]:
    """The texts that are checked of an answer in these pieces."""
    checked: list[str] = []
    through(ops.guard(checked.append, **options), said(deltas))
    return checked


def last(shown: list[Any]) -> Any:
    assert isinstance(shown[-1], ErrorEvent)
    return shown[-1].error


def played(marbles: str, operator: Any, **values: Any) -> list[tuple[int, Any]]:
    """The notifications of `operator` on a source, with their ticks; the source must be released at the end."""
    scheduler = TestScheduler()
    source = cold(scheduler, marbles, {**VALUES, **values})
    notes = record(scheduler, lambda: source.pipe(operator))
    (used,) = source.subscriptions
    assert used.unsubscribe <= START + notes[-1][0]
    return [(at, "end" if kind == "end" else value) for at, kind, value in notes]


# What is shown, and when


def test_a_sentence_is_released_when_it_has_passed_and_what_follows_waits() -> None:
    assert played("-sab-c-Te--|", ops.guard(taking(2))) == [
        *((1, VALUES["s"]), (5, VALUES["a"]), (5, VALUES["A"])),
        *((9, VALUES["B"]), (9, VALUES["c"]), (9, VALUES["T"]), (9, VALUES["e"]), (11, "end")),
    ]


def test_a_trip_ends_the_stream_with_what_was_shown() -> None:
    check(
        ops.guard(no_two),
        "-sab-c-Te--|",
        "^------!",
        "-s-(aA)(Sx|)",
        **VALUES,
        S=TextCompleted("One is. "),
        x=ErrorEvent(tripped("Two is.")),
    )


def test_before_the_first_event_it_is_raised() -> None:
    check(ops.guard(no_two), "--B---|", "^-----!", "------X", **VALUES, X=tripped("Two"))


def test_the_source_is_left_before_the_end_is_told() -> None:
    scheduler, used = TestScheduler(), list[Any]()
    source = cold(scheduler, "-sabcTe|", VALUES)
    stopped = source.pipe(ops.guard(no_two)).do_action(lambda event: used.append(source.subscriptions[0].unsubscribe))
    record(scheduler, lambda: stopped)
    assert used[-2:] == [START + 5, START + 5]


def test_everything_waits_behind_unchecked_text_in_order() -> None:
    values: dict[str, Any] = {
        "c": ToolCallStarted("c1", "add"),
        "d": ToolCallDelta("c1", "{}"),
        "f": ToolCallCompleted("c1", "add", {}, "{}"),
        "g": Custom("mine"),
    }
    notes = played("-sa(uT)cdfg-|", ops.guard(taking(9)), **{**values, "T": TextCompleted("One is.")})
    assert [at for at, _ in notes] == [1, *[12] * 8]
    assert [type(what).__name__ for _, what in notes[1:-1]] == [
        *("TextDelta", "UsageUpdated", "TextCompleted"),
        *("ToolCallStarted", "ToolCallDelta", "ToolCallCompleted", "Custom"),
    ]


def test_a_tool_call_that_came_before_the_trip_is_not_shown() -> None:
    started = ToolCallStarted("c1", "add")
    shown = [
        what for _, what in played("-s(acf)--|", ops.guard(taking(1, False)), c=TextCompleted("One is."), f=started)
    ]
    assert shown[1:-1] == [
        ErrorEvent(
            StreamError(
                "guard_tripped", "the guard '<lambda>' tripped", metadata={"guard": "<lambda>", "text": "One is."}
            )
        )
    ]


def test_an_open_call_of_the_shown_part_is_closed() -> None:
    events = [
        VALUES["s"],
        ToolCallStarted("c1", "add"),
        ToolCallDelta("c1", "{"),
        TextDelta("Two"),
        TextCompleted("Two"),
    ]
    shown = through(ops.guard(no_two), events)
    assert shown[3] == ToolCallCompleted("c1", "add", {}, "{", {"error": "incomplete"})
    assert last(shown) == tripped("Two")


def test_an_error_of_the_source_passes_at_once_without_what_waits() -> None:
    check(ops.guard(taking(5)), "-sab-X", "^----!", "-s---X", **VALUES, X=ValueError("no"))


def test_an_error_event_waits_for_the_text_before_it() -> None:
    broken = ErrorEvent(StreamError("truncated"))
    assert played("-s(aTx|)", ops.guard(taking(3)), T=TextCompleted("One is."), x=broken) == [
        *((1, VALUES["s"]), (5, VALUES["a"]), (5, TextCompleted("One is.")), (5, broken), (5, "end"))
    ]


# What is checked


def test_sentences_are_checked_once_whole() -> None:
    assert parts("One", " is. ", "Two is", ".\n\nThree") == ["One is. ", "Two is.\n\n", "Three"]


def test_a_number_is_so_many_characters() -> None:
    assert parts("abcdefg", "h", "ij", every=3) == ["abc", "def", "ghi", "j"]


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_a_sentence_without_an_end_is_checked_in_pieces(size: int) -> None:
    text = "x" * 3000
    assert [len(part) for part in parts(*(text[i : i + size] for i in range(0, 3000, size)))] == [1024, 1024, 952]


def test_a_check_of_two_arguments_sees_the_text_in_front() -> None:
    seen: list[tuple[str, str]] = []

    def look(text: str, before: str) -> None:
        seen.append((text, before))

    through(ops.guard(look), [*said(["One. Two. ", "Three."]), *said(["Four."])])
    assert seen == [("One. ", ""), ("Two. ", "One. "), ("Three.", "One. Two. "), ("Four.", "")]
    seen.clear()
    through(ops.guard(look, every=1000), said(["x" * 5000]))
    assert [len(before) for _, before in seen] == [0, 1000, 2000, 2048, 2048]


def test_other_parameters_with_defaults_are_the_authors_own() -> None:
    def strict(text: str, words: tuple[str, ...] = ("Two",)) -> bool:
        return not any(word in text for word in words)

    assert last(through(ops.guard(strict), said(["Two"]))).reason == "guard_tripped"
    assert texts(through(ops.guard(partial(strict, words=())), said(["Two"]))) == "Two"


def test_white_space_alone_passes() -> None:
    assert parts("  \n ", " ") == []


def test_blocks_are_checked_apart() -> None:
    checked: list[str] = []
    through(
        ops.guard(checked.append),
        [
            TextDelta("One", "1"),
            TextCompleted("One", "1"),
            TextDelta("Two ", "2"),
            TextDelta("Three", "3"),
            TextDelta("four", "2"),
        ],
    )
    assert checked == ["One", "Two ", "Three", "four"]


THOUGHT: list[Event] = [
    MessageStarted(Message("assistant")),
    ThinkingDelta("Two?", "t"),
    ThinkingCompleted("Two?", "signed", id="t"),
    TextDelta("One.", "b"),
    TextCompleted("One.", "b"),
]


def test_thinking_is_checked_too() -> None:
    assert through(ops.guard(no_two), THOUGHT) == [THOUGHT[0], ErrorEvent(tripped("Two?"))]
    assert through(ops.guard(lambda text: None), THOUGHT) == THOUGHT


def test_thinking_passes_where_nobody_sees_it() -> None:
    assert through(ops.guard(no_two, thinking=False), THOUGHT) == THOUGHT


def test_raw_frames_that_repeat_the_text_are_dropped() -> None:
    kept = [UsageUpdated(Usage(7)), PartAdded(ProviderPart("p", {}))]
    assert through(ops.guard(no_two), [RawChunk("delta", {"text": "Two"}), *kept]) == kept


@pytest.mark.parametrize(
    "event",
    [
        TextCompleted("Two"),
        ThinkingCompleted("Two"),
        MessageCompleted(Message("assistant", "Two"), "stop"),
        MessageCompleted(Message("assistant", (TextPart("One. "), TextPart("Two"))), "stop"),
        MessageStarted(Message("assistant", "Two")),
    ],
)
def test_text_that_no_delta_had_is_checked_where_it_comes(event: Event) -> None:
    for before in ([], [TextDelta("One.")]):
        assert last(through(ops.guard(no_two), [Custom("mine"), *before, event])) in (
            tripped("Two"),
            tripped("One. Two"),
        )


def test_the_results_of_a_chat_are_checked_where_their_text_was_not() -> None:
    for types in ((StepCompleted,), (ChatCompleted,), (MessageCompleted, ChatCompleted)):
        source = stream(Fake("Two"), "Hi").pipe(ops.only(*types), ops.guard(no_two))
        with pytest.raises(StreamError, match="tripped"):
            source.pipe(ops.raise_errors()).run()
        assert list(stream(Fake("One"), "Hi").pipe(ops.only(*types), ops.guard(no_two)))


@pytest.mark.parametrize("delta", [True, False])
def test_a_chats_text_is_checked_once(delta: bool) -> None:
    checked: list[str] = []
    source = stream(
        Fake(["Let me ", ToolCall("c", "add")], ["It is ", ("thinking", "hm"), "4."]),
        "Hi",
        tools=[add],
        emit_text_deltas=delta,
    )
    source.pipe(ops.guard(checked.append)).run()
    assert checked == ["Let me ", "It is ", "hm", "4."]


# Verdicts


@pytest.mark.parametrize(
    "make",
    [
        lambda verdict: lambda text: verdict,
        lambda verdict: lambda text: of(verdict),
        lambda verdict: lambda text: of("no", verdict),
    ],
)
@pytest.mark.parametrize("verdict", [None, True])
def test_what_passes(make: Any, verdict: Any) -> None:
    assert texts(through(ops.guard(make(verdict)), said(["One."]))) == "One."


def test_a_stream_without_an_item_has_passed() -> None:
    assert texts(through(ops.guard(lambda text: empty()), said(["One."]))) == "One."


@pytest.mark.parametrize("verdict", [0, 1, "", [], "x".join, {"flagged": False}, 0.0, b"no"])
def test_what_is_no_verdict_never_passes(verdict: Any) -> None:
    for judge in (lambda text: verdict, lambda text: of(verdict)):
        error = last(through(ops.guard(judge), said(["One."])))
        assert error.reason == "guard_failed"
        assert "which is not a verdict" in error.message
        assert "to pass, return None or True" in error.message


def test_what_a_check_raises_stops_the_stream() -> None:
    def broken(text: str) -> None:
        raise ZeroDivisionError("division\nby zero")

    for judge in (broken, lambda text: throw(ZeroDivisionError("division by zero"))):
        error = last(through(ops.guard(judge), said(["One."])))
        assert error.reason == "guard_failed"
        assert error.message.endswith("raised ZeroDivisionError: division by zero")
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert error.metadata["text"] == "One."


def test_the_error_is_short_and_survives_json_and_pickle() -> None:
    error = last(through(ops.guard(lambda text: "bad\n" * 1000), said(["One is " * 100])))
    assert len(error.metadata["text"]) == 80
    assert len(error.message) < 450
    assert "One" not in error.message
    assert "\n" not in error.message
    assert pickle.loads(pickle.dumps(error)) == error
    assert serializer.from_json(serializer.to_json(ErrorEvent(error))) == ErrorEvent(error)


class Rules:
    def __call__(self, text: str) -> bool:
        return False


@pytest.mark.parametrize(("check", "name"), [(no_two, "no_two"), (partial(no_two), "no_two"), (Rules(), "Rules")])
def test_the_guard_is_named(check: Any, name: str) -> None:
    assert last(through(ops.guard(check), said(["Two"]))).metadata["guard"] == name


# Time


def test_a_check_that_outlasts_its_time_ends_the_stream() -> None:
    late = StreamError(
        "guard_late",
        "the guard '<lambda>' took longer than 2 s (max_lag)",
        metadata={"guard": "<lambda>", "seconds": 2.0, "text": "One is."},
    )
    check(ops.guard(taking(3), max_lag=2), "-sab-c-Te--|", "^----!", "-s---(x|)", **VALUES, x=ErrorEvent(late))


def test_a_check_in_time_passes() -> None:
    assert played("-sab-c-Te--|", ops.guard(taking(2), max_lag=3)) == played("-sab-c-Te--|", ops.guard(taking(2)))


def test_nothing_is_left_behind_by_a_late_check() -> None:
    clock = Clock()
    source = cold(clock, "-sab-c-Te--|", VALUES)
    run = OperatorRun(source.pipe(ops.guard(taking(50), max_lag=2)), clock).run()
    assert (run.ends, run.left_over) == ([(5, "end", None)], None)


def test_the_time_of_a_check_begins_with_it_and_not_with_its_sentence() -> None:
    notes = played("s-a---------b-c-T-|", ops.guard(taking(1), max_lag=2))
    assert notes[-1] == (18, "end")


def test_with_release_nothing_waits_longer() -> None:
    notes = played("-sab-c-Te--|", ops.guard(taking(100), max_lag=2, on_late="release"))
    assert notes == [
        *((1, VALUES["s"]), (4, VALUES["a"]), (5, VALUES["A"]), (5, VALUES["B"]), (7, VALUES["c"])),
        *((9, VALUES["T"]), (10, VALUES["e"]), (11, "end")),
    ]


def test_with_release_what_passes_early_is_released_early() -> None:
    notes = played("-sab-c-Te--|", ops.guard(taking(0), max_lag=50, on_late="release"))
    assert [at for at, _ in notes] == [1, 3, 3, 7, 7, 7, 8, 11]


def test_with_release_a_late_trip_still_ends_the_stream() -> None:
    guard = ops.guard(taking(4, False), max_lag=1, on_late="release")
    notes = played("-sab-------c-Te--|", guard)
    assert [at for at, _ in notes] == [1, 3, 4, 4, 7, 7, 7]
    assert notes[-3][1] == TextCompleted("One is. Two")
    assert notes[-2][1].error.metadata["text"] == "One is."


def test_with_release_the_end_of_a_response_ends_its_checks() -> None:
    clock = Clock()
    source = cold(clock, "-sab-c-Te--|", VALUES)
    run = OperatorRun(source.pipe(ops.guard(taking(10, False), max_lag=2, on_late="release")), clock).run()
    assert (run.ends, run.left_over) == ([(11, "end", None)], None)
    assert run.notes[-2] == (10, "next", VALUES["e"])


def test_with_release_late_checks_give_way_to_newer_ones() -> None:
    begun: list[str] = []
    ended: list[str] = []

    def hanging(text: str) -> Observable[Any]:
        begun.append(text)
        return timer(1000).pipe(rx.finally_action(lambda: ended.append(text)))

    texts = [f"{number:02}\n" for number in range(20)]
    source = from_iterable([]).pipe(
        rx.concat(*(timer(1).pipe(rx.map(lambda _, t=text: TextDelta(t))) for text in texts))
    )
    notes = record(TestScheduler(), lambda: source.pipe(ops.guard(hanging, every=3, max_lag=2, on_late="release")))
    assert begun == texts[: len(begun)]
    assert len(begun) >= 18
    assert [at for at, kind, _ in notes if kind == "next"] == [number + 3 for number in range(20)]
    assert sorted(ended) == sorted(begun)


# Several checks at once


def test_four_checks_run_at_once_in_order() -> None:
    running, most = set[str](), list[int]()

    def slow(text: str) -> Observable[Any]:
        running.add(text)
        most.append(len(running))
        return timer(5).pipe(rx.finally_action(lambda: running.discard(text)))

    def passing(text: str) -> Observable[Any]:
        return slow(text).pipe(rx.ignore_elements())

    text = "".join(f"{number}\n" for number in range(8))
    notes = record(
        TestScheduler(), lambda: from_iterable([TextDelta(text), TextCompleted(text)]).pipe(ops.guard(passing, every=2))
    )
    assert max(most) == AT_ONCE
    assert [at for at, _, _ in notes] == [5] * 4 + [10] * 4 + [10, 10]


def checks_of(**subjects: Subject[Any]) -> Callable[[str], Subject[Any]]:
    return lambda text: subjects[text.strip()]


def by_hand() -> tuple[Subject[Any], dict[str, Subject[Any]], list[Any], list[Any]]:
    """A source, a check per sentence, and what is shown and how it ends."""
    source, checks = Subject[Any](), {name: Subject[Any]() for name in ("a", "b", "c")}
    shown, ends = list[Any](), list[Any]()
    source.pipe(ops.guard(checks_of(**checks))).subscribe(
        shown.append, ends.append, lambda: ends.append("end"), scheduler=TestScheduler()
    )
    source.on_next(VALUES["s"])
    return source, checks, shown, ends


def test_verdicts_count_in_the_order_of_the_text() -> None:
    source, checks, shown, ends = by_hand()
    source.on_next(TextDelta("a\nb\nc\nd"))
    checks["b"].on_completed()
    checks["c"].on_next("bad")
    checks["c"].on_completed()
    assert (texts(shown), ends) == ("", [])
    assert not source.observers  # nothing more is needed of it
    checks["a"].on_completed()
    assert texts(shown) == "a\nb\n"
    assert (last(shown).metadata["text"], ends) == ("c", ["end"])


def test_of_two_trips_the_earlier_counts() -> None:
    source, checks, shown, _ = by_hand()
    source.on_next(TextDelta("a\nb\nc\nd"))
    for name in ("b", "a"):
        checks[name].on_next(f"bad {name}")
        checks[name].on_completed()
    assert last(shown).metadata["reason"] == "bad a"
    assert not any(check.observers for check in checks.values())


def test_the_last_item_of_a_check_is_its_verdict() -> None:
    source, checks, shown, _ = by_hand()
    source.on_next(TextDelta("a\nb"))
    checks["a"].on_next(False)
    checks["a"].on_next(True)
    checks["a"].on_completed()
    assert texts(shown) == "a\n"


def test_a_dispose_ends_the_checks_and_the_source() -> None:
    checks, source, shown = {name: Subject[Any]() for name in "ab"}, Subject[Any](), list[Any]()
    subscription = source.pipe(ops.guard(checks_of(**checks))).subscribe(shown.append, scheduler=TestScheduler())
    source.on_next(TextDelta("a\nb\n..."))
    assert all(check.observers for check in checks.values())
    subscription.dispose()
    assert not any(subject.observers for subject in (source, *checks.values()))
    checks["a"].on_completed()
    assert shown == []


# Unusual sources and subscribers


def test_it_keeps_every_rule_with_tool_calls_and_a_check_that_is_a_stream() -> None:
    calls = [ToolCall("c1", "add", {"x": 1})]
    assert_operator(lambda: ops.guard(lambda text: of(True)), events=events("One is. Two is.", tool_calls=calls))


def test_it_keeps_every_rule_where_it_trips() -> None:
    assert_operator(
        lambda: ops.guard(no_two),
        events=events("One is. ", "Two is. ", "Three"),
        without={"errors", "ends_with_source", "error_event"},
    )


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_subscriber_that_raises_where_a_verdict_comes_ends_the_stream_once(
    error: type[BaseException], caplog: Any
) -> None:
    source, one, ends = Subject[Any](), Subject[Any](), list[Any]()

    def on_next(event: Event) -> None:
        raise error

    source.pipe(ops.guard(lambda text: one)).subscribe(on_next, ends.append, scheduler=TestScheduler())
    source.on_next(TextDelta("a"))
    source.on_next(TextCompleted("a"))
    one.on_completed()
    assert [type(end) for end in ends] == [error]
    assert not source.observers


def test_a_source_that_does_not_end_is_left_waiting_in_bounds() -> None:
    reads: list[bool] = []
    source, never = Subject[Any](), Subject[Any]()

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        gate.append(current_gate())
        return source.subscribe(observer, scheduler=scheduler)

    gate: list[Any] = []
    Observable(subscribe).pipe(ops.guard(lambda text: never)).subscribe(scheduler=TestScheduler())
    source.on_next(TextDelta("a"))
    for number in range(HELD_BACK - 1):
        assert not gate[0].full
        source.on_next(UsageUpdated(Usage(number)))
    assert gate[0].full
    gate[0].when_open(lambda: reads.append(True))
    assert reads == []
    never.on_completed()
    assert reads == [True]
    assert not gate[0].full


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"check": "no"}, "check"),
        ({"check": lambda: None}, "check"),
        ({"check": lambda text, before, after: None}, "check"),
        ({"every": "word"}, "every"),
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"max_lag": -1}, "max_lag"),
        ({"max_lag": "fast"}, "max_lag"),
        ({"on_late": "drop"}, "on_late"),
        ({"on_late": "release"}, "max_lag"),
        ({"thinking": None}, "thinking"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.guard(**{"check": no_two, **arguments})
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))


def test_a_void_attempt_is_checked_and_shown_as_it_came() -> None:
    void = [VALUES["s"], TextDelta("One"), StepRestarted("again", 2), *said(["Three."])]
    assert through(ops.guard(no_two), void) == void

from __future__ import annotations

from typing import Any

import pytest
from reactivex import operators as rx
from reactivex.testing import TestScheduler

from rxllm import StreamError
from rxllm.testing.marbles import START, Spy, check, cold, parse, record


def test_a_diagram_is_read_from_left_to_right() -> None:
    failure = ValueError("no")
    assert list(parse("-a-(bc)--X", {"a": 1, "X": failure})) == [
        (1, "next", 1),
        (3, "next", "b"),
        (3, "next", "c"),
        (9, "error", failure),
    ]
    assert list(parse("--(a|) ", {})) == [(2, "next", "a"), (2, "end", None)]


@pytest.mark.parametrize(
    ("marbles", "values", "what"),
    [
        ("-a|b", {}, "at 3: no notification can follow the end"),
        ("-a||", {}, "at 3: no notification can follow the end"),
        ("-a|X", {"X": ValueError()}, "at 3: no notification can follow the end"),
        ("-(a", {}, "at 1: this bracket is not closed"),
        ("-(a(b))", {}, "at 3: brackets must be in pairs"),
        ("-a)", {}, "at 2: brackets must be in pairs"),
        ("-X", {}, r"at 1: X is the stream's error: pass it, as in X=ValueError\(...\) or X=ValueError$"),
        ("-X", {"X": "no"}, "at 1: X is the stream's error: pass it"),
        ("-X", {"X": int}, "at 1: X is the stream's error: pass it"),
        ("-a-#", {}, "at 3: # is the stream's error: pass it, as in X=ValueError"),
        ("-#b", {"X": ValueError()}, "at 2: no notification can follow the end"),
    ],
)
def test_a_diagram_that_cannot_be_is_refused(marbles: str, values: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        list(parse(marbles, values))
    with pytest.raises(ValueError, match=what):
        cold(TestScheduler(), marbles, values)


@pytest.mark.parametrize("subscribed", ["", "---", "^", "^--", "-^-!", "^--!-!", "^-a!", "!--^", " ^--!"])
def test_a_use_that_cannot_be_is_refused(subscribed: str) -> None:
    with pytest.raises(ValueError, match="is not a subscription: write"):
        check(rx.map(str), "-a-|", subscribed, "-a-|")


def test_check_says_what_came_instead() -> None:
    with pytest.raises(AssertionError) as caught:
        check(rx.map(str.upper), "-a-|", "^--!", "-a-|")
    message = str(caught.value)
    assert "first subscription: it emitted\n  [(1, 'next', 'A'), (3, 'end', None)]" in message
    assert "but '-a-|' means\n  [(1, 'next', 'a'), (3, 'end', None)]" in message


def no_b(item: str) -> str:
    if item == "b":
        raise ValueError("no b here")
    return item


@pytest.mark.parametrize("end", ["X", "#"])
@pytest.mark.parametrize("error", [ValueError("no b here"), ValueError, Exception])
def test_an_error_of_the_operator_itself_is_compared_by_what_it_is(end: str, error: Any) -> None:
    check(rx.map(no_b), "-a-b-|", "^--!", f"-a-{end}", X=error)


@pytest.mark.parametrize("error", [ValueError("another"), ValueError(), TypeError("no b here"), TypeError])
def test_another_error_is_found(error: Any) -> None:
    with pytest.raises(AssertionError, match="it emitted"):
        check(rx.map(no_b), "-a-b-|", "^--!", "-a-X", X=error)


def test_errors_within_items_are_compared_too() -> None:
    def fail(item: str) -> Any:
        return [item, (KeyError(item), ExceptionGroup(item, [OSError(2, item)]))]

    check(rx.map(fail), "-a-|", "^--!", "-x-|", x=fail("a"))
    with pytest.raises(AssertionError):
        check(rx.map(fail), "-a-|", "^--!", "-x-|", x=fail("b"))


def test_a_class_in_the_source_is_raised() -> None:
    check(rx.map(str.upper), "-a#", "^-!", "-A#", X=ValueError, A="A")
    check(rx.map(str.upper), "-aX", "^-!", "-AX", X=StreamError("truncated"), A="A")
    with pytest.raises(
        ValueError, match=r"the source cannot raise StreamError: .*'reason'; pass X=StreamError\(\.\.\.\)"
    ):
        check(rx.map(str.upper), "-aX", "^-!", "-AX", X=StreamError, A="A")


def test_check_says_when_the_source_was_used() -> None:
    with pytest.raises(AssertionError, match=r"the source was subscribed to at \[\(0, 1\)\], not '\^--!'"):
        check(rx.take(1), "-a-|", "^--!", "-(a|)")


def test_check_sees_state_that_outlives_a_subscription() -> None:
    seen: list[str] = []

    def fresh(item: str) -> bool:
        seen.append(item)
        return len(seen) == 1

    with pytest.raises(AssertionError, match="second subscription: it emitted"):
        check(rx.filter(fresh), "-a-|", "^--!", "-a-|")
    seen.clear()
    check(rx.filter(fresh), "-a-|", "^--!", "-a-|", resubscribe=False)


def test_a_dispose_is_drawn_where_it_comes() -> None:
    check(rx.map(str.upper), "-a-b-c-|", "^---!", "-A-B----", A="A", B="B")


def test_record_counts_from_the_subscription() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-a-b-|", {})
    assert record(scheduler, lambda: source, disposed=2) == [(1, "next", "a")]
    assert [(use.subscribe, use.unsubscribe) for use in source.subscriptions] == [(START, START + 2)]


def test_the_spy_remembers_its_scheduler() -> None:
    spy, scheduler = Spy(), TestScheduler()
    spy.pipe(rx.map(str)).subscribe(scheduler=scheduler)
    assert spy.scheduler is scheduler


def shout() -> Any:
    return rx.map(str.upper)


def shout_with(suffix: str = "!") -> Any:
    return rx.map(lambda item: item + suffix)


@pytest.mark.parametrize("maker", [shout, shout_with, rx.first])
def test_a_maker_in_place_of_its_operator_is_refused(maker: Any) -> None:
    with pytest.raises(TypeError, match=rf"write {maker.__name__}\(\) with parentheses"):
        check(maker, "-a-|", "^--!", "-a-|")


@pytest.mark.parametrize(
    ("operator", "what"),
    [
        (lambda source: None, "returned None"),
        ("shout", "'shout' is not an operator"),
        (None, "None is not an operator"),
    ],
)
def test_what_is_no_operator_is_refused(operator: Any, what: str) -> None:
    with pytest.raises(TypeError, match=what):
        check(operator, "-a-|", "^--!", "-a-|")


def test_what_an_operator_raises_comes_back_as_it_is() -> None:
    failure = TypeError("its own")

    def failing(source: Any) -> Any:
        raise failure

    with pytest.raises(TypeError) as caught:
        check(failing, "-a-|", "^--!", "-a-|")
    assert caught.value is failure

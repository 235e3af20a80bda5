"""Broken operators, one fault each, and the rules of the suite that find it."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from reactivex import Observable, empty, from_iterable, throw
from reactivex import operators as rx
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    MessageCompleted,
    RawChunk,
    StepCompleted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from rxllm.testing import OPERATOR_RULES, assert_operator, events
from rxllm.testing._operator_rules import ITEMS
from rxllm.testing._rules import LINES
from rxllm.values import Message

Operator = Callable[[Observable[Any]], Observable[Any]]

NAME = ContextVar("NAME", default="nobody's")


def from_subscribe(subscribe: Callable[[Observable[Any], Any, Any], Any]) -> Operator:
    """An operator of a function of source, observer and scheduler."""
    return lambda source: Observable(lambda observer, scheduler=None: subscribe(source, observer, scheduler))


class Raw(Observable[Any]):
    """An Observable without the guards that reactivex puts around a subscription."""

    def __init__(self, begin: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._begin = begin

    def subscribe(self, on_next: Any = None, on_error: Any = None, on_completed: Any = None, *, scheduler: Any = None):
        return self._begin((on_next, on_error, on_completed), scheduler)


def hasty() -> Operator:
    def operator(source: Observable[Any]) -> Observable[Any]:
        source.subscribe()
        return source.pipe(rx.skip(0))

    return operator


def greedy() -> Operator:
    return lambda source: source.pipe(rx.merge(source.pipe(rx.ignore_elements())))


def timeless() -> Operator:
    return from_subscribe(lambda source, observer, scheduler: source.subscribe(observer))


def endless() -> Operator:
    return from_subscribe(
        lambda source, observer, scheduler: source.subscribe(observer.on_next, observer.on_error, scheduler=scheduler)
    )


def talkative() -> Operator:
    def begin(source: Observable[Any], to: Any, scheduler: Any) -> Any:
        on_next, on_error, on_completed = to

        def end() -> None:
            on_completed()
            on_next("one more")

        return source.subscribe(on_next, on_error, end, scheduler=scheduler)

    return lambda source: Raw(lambda to, scheduler: begin(source, to, scheduler))


def ending_twice() -> Operator:
    def begin(source: Observable[Any], to: Any, scheduler: Any) -> Any:
        on_next, on_error, on_completed = to
        return source.subscribe(on_next, on_error, lambda: (on_completed(), on_completed()), scheduler=scheduler)

    return lambda source: Raw(lambda to, scheduler: begin(source, to, scheduler))


def early() -> Operator:
    return rx.take(2)


def late() -> Operator:
    return rx.concat(empty().pipe(rx.delay(3)))


def swallowing() -> Operator:
    return rx.catch(empty())


def wrapping() -> Operator:
    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        def on_error(error: Exception) -> None:
            observer.on_error(ValueError(str(error)))

        return source.subscribe(observer.on_next, on_error, observer.on_completed, scheduler=scheduler)

    return from_subscribe(subscribe)


def clinging() -> Operator:
    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        source.subscribe(observer, scheduler=scheduler)
        return Disposable()

    return from_subscribe(subscribe)


def unstoppable() -> Operator:
    def begin(source: Observable[Any], to: Any, scheduler: Any) -> Any:
        subscription = source.subscribe(*to, scheduler=scheduler)
        return Disposable(lambda: (subscription.dispose(), to[0]("left")))

    return lambda source: Raw(lambda to, scheduler: begin(source, to, scheduler))


def busy() -> Operator:
    """Ignores a dispose while it delivers."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        delivering = False

        def on_next(item: Any) -> None:
            nonlocal delivering
            delivering = True
            observer.on_next(item)
            delivering = False

        subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
        return Disposable(lambda: None if delivering else subscription.dispose())

    return from_subscribe(subscribe)


def ticking() -> Operator:
    """Starts a timer for each item, and forgets it."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        def on_next(item: Any) -> None:
            scheduler.schedule_relative(60.0, lambda *_: None)
            observer.on_next(item)

        return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

    return from_subscribe(subscribe)


def threaded(stop: threading.Event) -> Operator:
    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        threading.Thread(target=stop.wait, daemon=True, name="forgotten").start()
        return source.subscribe(observer, scheduler=scheduler)

    return from_subscribe(subscribe)


def numbering(count_in: str) -> Operator:
    """Drops each third item; the count is where `count_in` says."""
    counts = {"factory": 0}

    def operator(source: Observable[Any]) -> Observable[Any]:
        counts["operator"] = 0

        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            if count_in == "factory":
                counts["factory"] = 0  # looks clean, until two are subscribed at a time

            def on_next(item: Any) -> None:
                counts[count_in] += 1
                if counts[count_in] % 3:
                    observer.on_next(item)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def impatient() -> Operator:
    """Drops what comes while it subscribes."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        ready = False

        def on_next(item: Any) -> None:
            if ready:
                observer.on_next(item)

        subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
        ready = True
        return subscription

    return from_subscribe(subscribe)


def pairwise() -> Operator:
    """Remembers an item only after it has delivered it."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        before: Any = None

        def on_next(item: Any) -> None:
            nonlocal before
            observer.on_next((before, item))
            before = item

        return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

    return from_subscribe(subscribe)


def single() -> Operator:
    """Refuses a subscription while another one is delivering."""

    def operator(source: Observable[Any]) -> Observable[Any]:
        delivering = False

        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            def on_next(item: Any) -> None:
                nonlocal delivering
                delivering = True
                try:
                    observer.on_next(item)
                finally:
                    delivering = False

            if delivering:
                return empty().subscribe(observer, scheduler=CurrentThreadScheduler.singleton())
            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def forgiving() -> Operator:
    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        def on_next(item: Any) -> None:
            with suppress(Exception):
                observer.on_next(item)

        return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

    return from_subscribe(subscribe)


def blaming() -> Operator:
    """Takes a subscriber's exception for its own."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        def on_next(item: Any) -> None:
            try:
                observer.on_next(item)
            except Exception as error:
                observer.on_error(ValueError(f"cannot map {error}"))

        return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

    return from_subscribe(subscribe)


def concluding() -> Operator:
    """Emits at the end, where nobody above delivers a subscriber's exception."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        def on_completed() -> None:
            observer.on_next("the end")
            observer.on_completed()

        return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

    return from_subscribe(subscribe)


def alive(emit: Callable[[Any, SerialDisposable], None]) -> Operator:
    """Emits by `emit` whenever its source has been silent for 30 seconds."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        timer = SerialDisposable()

        def wait() -> None:
            timer.disposable = scheduler.schedule_relative(30.0, lambda *_: (wait(), emit(observer, timer)))

        def on_next(item: Any) -> None:
            wait()
            observer.on_next(item)

        def done(end: Callable[..., None]) -> Callable[..., None]:
            return lambda *error: (timer.dispose(), end(*error))

        wait()
        ends = done(observer.on_error), done(observer.on_completed)
        return CompositeDisposable(source.subscribe(on_next, *ends, scheduler=scheduler), timer)

    return from_subscribe(subscribe)


def reminding() -> Operator:
    """Beats in silence, and is glad of any subscriber."""

    def emit(observer: Any, timer: SerialDisposable) -> None:
        with contextlib.suppress(Exception):
            observer.on_next(TextDelta(""))

    return alive(emit)


def rearming() -> Operator:
    """Its timer outlives a dispose once it has fired."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        timer = SerialDisposable()

        def beat(*_: Any) -> None:
            scheduler.schedule_relative(30.0, beat)

        timer.disposable = scheduler.schedule_relative(30.0, beat)
        done = lambda: (timer.dispose(), observer.on_completed())  # noqa: E731
        fail = lambda error: (timer.dispose(), observer.on_error(error))  # noqa: E731
        return CompositeDisposable(source.subscribe(observer.on_next, fail, done, scheduler=scheduler), timer)

    return from_subscribe(subscribe)


def hushing() -> Operator:
    """Drops what went wrong, and ends as if all were well."""
    return rx.filter(lambda event: not isinstance(event, ErrorEvent))


def stopping_short() -> Operator:
    return rx.take_while(lambda event: not isinstance(event, ErrorEvent))


def joining() -> Operator:
    """Puts the text together, whatever became of the rest."""
    return lambda source: source.pipe(
        rx.map(lambda event: event.delta if isinstance(event, TextDelta) else ""),
        rx.reduce(lambda text, delta: text + delta, ""),
    )


def changing(kind: Any, **changed: Callable[[Any], Any]) -> Callable[[], Operator]:
    """Changes those fields of those events, and nothing else."""

    def change(event: Any) -> Any:
        if not isinstance(event, kind):
            return event
        return msgspec.structs.replace(event, **{name: fn(getattr(event, name)) for name, fn in changed.items()})

    return lambda: rx.map(change)


def dropping(kind: type[Any]) -> Callable[[], Operator]:
    return lambda: rx.filter(lambda event: not isinstance(event, kind))


def dropping_first(kind: type[Any]) -> Callable[[], Operator]:
    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        dropped = False

        def on_next(item: Any) -> None:
            nonlocal dropped
            if isinstance(item, kind) and not dropped:
                dropped = True
            else:
                observer.on_next(item)

        return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

    return lambda: from_subscribe(subscribe)


def other_response(result: Any) -> Any:
    return replace(result, response=replace(result.response, output_text="another"))


FAULTS: dict[str, tuple[Callable[[], Operator], set[str]]] = {
    "subscribes when it is assembled": (hasty, {"cold", "once"}),
    "subscribes twice": (greedy, {"once"}),
    "keeps the scheduler to itself": (timeless, {"scheduler"}),
    "never ends": (endless, {"ends", "ends_with_source"}),
    "says something after its end": (talkative, {"ends"}),
    "ends twice": (ending_twice, {"ends"}),
    "ends early": (early, {"ends_with_source"}),
    "ends late": (late, {"ends_with_source"}),
    "swallows the error": (swallowing, {"errors"}),
    "makes another error of it": (wrapping, {"errors"}),
    "does not dispose of its source": (clinging, {"disposal", "dispose_inside"}),
    "says something after a dispose": (unstoppable, {"disposal"}),
    "does not dispose while it delivers": (busy, {"dispose_inside"}),
    "forgets a timer": (ticking, {"left_over"}),
    "keeps its state per source": (lambda: numbering("operator"), {"afresh"}),
    "keeps its state per operator": (lambda: numbering("factory"), {"apart"}),
    "drops what comes while it subscribes": (impatient, {"at_once"}),
    "updates its state after it has delivered": (pairwise, {"reentrant"}),
    "refuses to be subscribed from inside": (single, {"subscribed_inside"}),
    "swallows the subscriber's exception": (forgiving, {"subscriber"}),
    "makes its own error of the subscriber's": (blaming, {"subscriber"}),
    "loses the subscriber's exception at the end": (concluding, {"subscriber"}),
    "swallows the subscriber's exception in a timer": (reminding, {"subscriber"}),
    "forgets a timer that has fired": (rearming, {"left_over"}),
    "drops an error event": (hushing, {"error_event"}),
    "completes at an error event": (stopping_short, {"error_event"}),
    "makes a text of half an answer": (joining, {"error_event"}),
    "changes text deltas only": (changing(TextDelta, delta=str.upper), {"consistent"}),
    "changes text completions only": (changing(TextCompleted, text=str.upper), {"consistent"}),
    "changes thinking deltas only": (changing(ThinkingDelta, delta=str.upper), {"consistent"}),
    "loses a delta": (dropping_first(TextDelta), {"consistent"}),
    "loses a delta of arguments": (dropping_first(ToolCallDelta), {"consistent"}),
    "changes arguments only": (changing(ToolCallCompleted, arguments=lambda arguments: {"y": 1}), {"consistent"}),
    "drops text completions": (dropping(TextCompleted), {"consistent"}),
    "drops thinking completions": (dropping(ThinkingCompleted), {"consistent"}),
    "drops call completions": (dropping(ToolCallCompleted), {"consistent"}),
    "drops steps": (dropping(StepCompleted), {"consistent"}),
    "renames a tool": (changing(ToolCallCompleted, name=str.upper), {"consistent"}),
    "renames a tool from its start on": (
        changing(ToolCallStarted | ToolCallCompleted, name=str.upper),
        {"consistent"},
    ),
    "changes the message only": (
        changing(MessageCompleted, message=lambda message: Message("assistant", "another")),
        {"consistent"},
    ),
    "changes the step only": (changing(StepCompleted, result=other_response), {"consistent"}),
    "changes the chat only": (
        changing(ChatCompleted, result=lambda result: replace(result, final_response=None)),
        {"consistent"},
    ),
}


def broken_rules(make: Callable[[], Operator], **options: Any) -> set[str]:
    try:
        assert_operator(make, **options)
    except AssertionError as error:
        return {line.partition(":")[0] for line in str(error).splitlines() if not line.startswith(" ")}
    return set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_rule(fault: str) -> None:
    make, rules = FAULTS[fault]
    assert rules <= broken_rules(make)
    assert broken_rules(make, only=rules) == rules


@pytest.mark.judges
@pytest.mark.parametrize("fault", FAULTS)
def test_what_one_may_do_on_purpose_can_be_left_out(fault: str) -> None:
    make, _ = FAULTS[fault]
    assert_operator(make, without=broken_rules(make))


def test_a_forgotten_thread_is_found() -> None:
    stop = threading.Event()
    try:
        with pytest.raises(AssertionError, match=r"left_over: .*forgotten"):
            assert_operator(lambda: threaded(stop), only=["left_over"])
    finally:
        stop.set()


def test_every_rule_has_a_fault() -> None:
    assert set().union(*(rules for _, rules in FAULTS.values())) == set(OPERATOR_RULES)


def test_the_message_names_the_rule_and_says_how() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_operator(early)
    assert str(caught.value).startswith("ends_with_source: it ends when its source does, but it ended with [(4,")


def test_all_broken_rules_are_named_at_once() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_operator(clinging)
    assert {"disposal", "dispose_inside"} <= {line.partition(":")[0] for line in str(caught.value).splitlines()}


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="no such rule: colour; the rules are cold, "):
        assert_operator(early, without=["colour"])


def test_events_may_be_anything_that_the_operator_takes() -> None:
    assert_operator(lambda: rx.map(lambda number: number + 1), events=[1, 2, 3])
    with pytest.raises(AssertionError, match="ends"):
        assert_operator(lambda: rx.take_while(lambda number: number < 3), events=[1, 2, 3])


def test_an_operator_on_a_timer_is_tried_in_virtual_time() -> None:
    assert broken_rules(lambda: rx.delay(3), events=["a", "b"]) == {"ends_with_source"}
    assert_operator(lambda: rx.timeout(700), events=["a", "b"])
    assert_operator(lambda: alive(lambda observer, _: observer.on_next(TextDelta(""))))


@pytest.mark.parametrize("rule", OPERATOR_RULES)
def test_a_rule_can_be_a_test_of_its_own(rule: str) -> None:
    assert_operator(lambda: rx.filter(lambda item: True), only=[rule])


def waiting(until: threading.Event) -> Operator:
    def operator(source: Observable[Any]) -> Observable[Any]:
        until.wait(30)
        return source.pipe(rx.skip(0))

    return operator


@pytest.mark.parametrize("only", [["cold"], None])
def test_an_operator_that_blocks_is_broken_in_time(only: Any) -> None:
    until = threading.Event()
    try:
        with pytest.raises(AssertionError) as caught:
            assert_operator(lambda: waiting(until), only=only, seconds=0.2)
        assert (
            str(caught.value) == "cold: nothing happens before it is subscribed to, but it did not return within 0.2 s"
        )
    finally:
        until.set()


def test_an_operator_that_runs_its_source_is_broken_in_time() -> None:
    def collecting() -> Operator:
        return lambda source: from_iterable(source.to_list().run())

    with pytest.raises(AssertionError, match=r"^cold: .*, but it did not return within 0.2 s$"):
        assert_operator(collecting, seconds=0.2)


def test_what_the_maker_raises_comes_back_as_it_is() -> None:
    class Stop(BaseException):
        pass

    def refusing() -> Operator:
        raise failure

    for failure in (KeyError("none"), Stop()):
        with pytest.raises(type(failure)) as caught:
            assert_operator(refusing)
        assert caught.value is failure


def of_a_width(width: int) -> Operator:
    return rx.skip(width)


@pytest.mark.parametrize("operator", [rx.skip(0), ops.map_text(str.upper), ops.raise_errors(), of_a_width, None, 5])
def test_an_operator_instead_of_its_maker_is_told_so(operator: Any) -> None:
    hint = "cannot be called without arguments: pass a function that makes the operator, as in assert_operator(lambda: "
    with pytest.raises(TypeError, match=re.escape(hint)) as caught:
        assert_operator(operator)
    assert str(caught.value).startswith(repr(operator))


@pytest.mark.parametrize(
    "make", [lambda: of_a_width(), lambda: ops.map_text(), lambda: rx.map(1, 2, 3), partial(int, "x", base="y")]
)
def test_a_type_error_of_the_makers_own_comes_back_as_it_is(make: Any) -> None:
    with pytest.raises(TypeError) as own:
        make()
    with pytest.raises(TypeError) as caught:
        assert_operator(make)
    assert str(caught.value) == str(own.value)
    assert "assert_operator" not in str(caught.value)


@pytest.mark.parametrize("make", [ops.raise_errors, partial(ops.map_text, str.upper), partial(of_a_width, width=0)])
def test_a_maker_may_have_parameters_that_are_not_needed(make: Any) -> None:
    assert_operator(make)


def test_an_operator_is_tried_on_what_it_acts_on_only_by_events() -> None:
    """As its docstring says: a lawful response holds nothing for it, and so no fault shows."""

    def shy() -> Operator:
        return rx.take_while(lambda event: not isinstance(event, RawChunk))

    assert_operator(shy)
    with pytest.raises(AssertionError, match=r"^ends_with_source: "):
        assert_operator(shy, events=events("Hel", ("raw_chunk", {"n": 1}), "lo"))


def test_context_variables_are_those_of_the_caller() -> None:
    seen: set[str] = set()

    def mapping() -> Operator:
        seen.add(NAME.get())
        return rx.skip(0)

    token = NAME.set("the caller's")
    try:
        assert_operator(mapping)
    finally:
        NAME.reset(token)
    assert seen == {"the caller's"}


def failing(at: int) -> Callable[[], Operator]:
    def fail(item: Any) -> Any:
        if item == ITEMS[at]:
            raise TypeError("no such field")
        return item

    return lambda: rx.map(fail)


def test_errors_are_compared_by_what_they_say() -> None:
    assert_operator(failing(0), only=["afresh", "apart"])
    assert_operator(failing(2), only=["afresh", "apart"])


def test_errors_that_say_something_else_are_found() -> None:
    calls = itertools.count()

    def fail(item: Any) -> Any:
        raise TypeError(next(calls))

    with pytest.raises(AssertionError, match=r"(?s)^it raised TypeError\(\d+\) at item 0, .*\nafresh: .*\napart: "):
        assert_operator(lambda: rx.map(fail), only=["afresh", "apart"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (failing(0), "it raised TypeError('no such field') at item 0, MessageStarted("),
        (failing(2), "it raised TypeError('no such field') at item 2, ThinkingCompleted("),
        (lambda: rx.concat(throw(KeyError("none"))), "it raised KeyError('none') when the source ended"),
        (lambda: lambda source: throw(KeyError("none")), "it raised KeyError('none') when it was subscribed to"),
    ],
)
def test_an_operator_that_raises_is_told_so_first(make: Any, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_operator(make)
    assert str(caught.value).startswith(message)
    assert "\nends_with_source: " in str(caught.value)


def test_an_operator_of_other_items_is_told_to_pass_some() -> None:
    with pytest.raises(AssertionError, match=r"at item 0, .*; if the operator takes other .* events=\['a', 'b'\]\n"):
        assert_operator(lambda: rx.map(lambda item: item.upper()))
    assert_operator(lambda: rx.map(lambda item: item.upper()), events=["a", "b"])
    with pytest.raises(AssertionError, match=r"^it raised AttributeError\([^;]*\n"):
        assert_operator(lambda: rx.map(lambda item: item.upper()), events=[1])


class Whole:
    def __init__(self) -> None:
        self.text = ""

    def feed(self, item: str) -> list[str]:
        self.text += item
        return []

    def close(self) -> list[str]:
        return [self.text]


def whole_by_hand() -> Operator:
    """Emit a string at the end, as one would write it first: an exception of `on_next` is lost."""

    def subscribe(source: Observable[Any], observer: Any, scheduler: Any) -> Any:
        state = Whole()

        def end() -> None:
            observer.on_next(state.text)
            observer.on_completed()

        return source.subscribe(state.feed, observer.on_error, end, scheduler=scheduler)

    return from_subscribe(subscribe)


def test_an_exception_that_is_lost_comes_with_the_mend() -> None:
    with pytest.raises(AssertionError, match=r"was lost: .*feed\(item\) and close\(\), .*operators\.lift\(TheClass\)"):
        assert_operator(whole_by_hand, events=["a", "b"])
    assert_operator(lambda: ops.lift(Whole), events=["a", "b"])


@pytest.mark.parametrize(
    "make",
    [
        ops.raise_errors,  # by on_error
        ops.to_response,  # in a result
        ops.scan_collect,  # in a state
        lambda: rx.map(repr),  # in text
        lambda: rx.take(2),  # before it comes
        lambda: rx.concat(throw(KeyError("another"))),  # as another error
    ],
)
def test_an_error_event_may_be_told_in_any_way(make: Any) -> None:
    assert broken_rules(make, only=["error_event"]) == set()


def test_an_error_event_is_none_of_the_business_of_what_takes_other_items() -> None:
    assert_operator(lambda: rx.filter(lambda number: number != 2), events=[1, 2, 3])
    with pytest.raises(AssertionError, match=r"^error_event: "):
        assert_operator(hushing, events=[TextDelta("Hi"), TextCompleted("Hi")], only=["error_event"])


def test_a_difference_is_told_by_its_place_and_both_sides() -> None:
    calls = itertools.count()

    def count(item: Any) -> Any:
        return f"{'x' * 500}{next(calls)}" if item == ITEMS[2] else item

    with pytest.raises(AssertionError) as caught:
        assert_operator(lambda: rx.map(count), only=["afresh"])
    head, expected, actual = str(caught.value).splitlines()
    assert head.endswith("but the second subscription differs at index 2:")
    assert re.fullmatch(r"    expected  …x{20,100}\d'\)", expected)
    assert re.fullmatch(r"    actual    …x{20,100}\d'\)", actual)
    assert expected[-6:] != actual[-6:]


def test_what_is_missing_is_a_difference() -> None:
    missing = r"at once, it differs at index 0:\n    expected  MessageStarted\(.*\n    actual    the end$"
    with pytest.raises(AssertionError, match=missing):
        assert_operator(impatient, only=["at_once"])


@pytest.mark.judges
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("source", [None, events(*["piece " * 50] * 20, thinking="hm")], ids=["few", "many"])
def test_a_failure_fits_on_a_screen(fault: str, source: Any) -> None:
    try:
        assert_operator(FAULTS[fault][0], events=source)
    except AssertionError as error:
        lines = str(error).splitlines()
        assert len(lines) <= max(LINES, len(OPERATOR_RULES) + 1)
        assert max(map(len, lines)) <= 300


def test_an_operator_that_raises_shows_its_own_traceback() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_operator(failing(2))
    assert isinstance(caught.value.__cause__, TypeError)
    assert "fail" in [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)]

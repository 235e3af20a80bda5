"""The operator rules, which `assert_operator` checks in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from reactivex import Observable, Subject
from reactivex import operators as rx

from rxllm.adapters import Fake
from rxllm.events import (
    EVENT_CLASSES,
    ErrorEvent,
    MessageCompleted,
    Nested,
    TextCompleted,
    TextDelta,
    ToolExecutionStarted,
)
from rxllm.pipelines import stream
from rxllm.testing._rules import (
    SECONDS,
    BrokenRule,
    HangingError,
    RuleTable,
    clip,
    expect,
    expect_same,
    in_time,
    report,
)
from rxllm.testing.event_checks import events, inconsistency, played
from rxllm.testing.marbles import comparable
from rxllm.testing.virtual_time import EVERY, LIMIT, SILENCE, Clock, Make, OperatorRun, Source, run_operator
from rxllm.values import LLMError, StreamError, ToolCall, Usage, tool
from rxllm.values.argument_checks import call_fault

ITEMS: list[Any] = events("Hel", "lo", thinking="hm", usage=Usage(3, 2))
"""The items that the source emits by default."""

NO_EVENTS = "; if the operator takes other items than events, pass some, as in events=['a', 'b']"

LIFT = (
    "; to pass it on, write the operator as a class with feed(item) and close(), and return operators.lift(TheClass), "
    "or catch what observer.on_next raises and call observer.on_error with it"
)

OPERATOR_RULES = RuleTable()
"""Maps each rule's name to its text."""


def assert_operator(
    make: Make,
    *,
    events: Sequence[Any] | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    seconds: float = SECONDS,
) -> None:
    """Check that the operator returned by ``make()`` follows the `OPERATOR_RULES`.

    >>> from rxllm import operators as ops
    >>> assert_operator(lambda: ops.filter_deltas(text=False))

    `events` are the items that the source emits. By default, they are the events of a simple response. Pass other items
    if the operator cannot handle these events, or leaves all of them unchanged. If the operator works on events,
    ``operators.verify`` must accept the items:

    >>> from rxllm.testing import events
    >>> assert_operator(ops.include_raw_chunks, events=events("Hi", ("raw_chunk", {"n": 1})))

    `only` names the rules to check, and `without` names the rules to omit, as in
    ``assert_operator(lambda: ops.snapshots(), without={"at_once"})``. These are the rules:

    =====================  ====================================================  =======================================
    rule                   what is checked                                       when to omit it
    =====================  ====================================================  =======================================
    ``cold``               nothing happens before it is subscribed to            never
    ``once``               it subscribes to its source once                      if it subscribes again (retry, repeat)
    ``scheduler``          it passes on the scheduler given to subscribe()       if it sets its source's scheduler
    ``ends``               it ends once, and emits nothing afterwards            if it never ends by itself
    ``ends_with_source``   it ends when its source does                          if it ends early or late (take, delay)
    ``errors``             the source's exception passes at once, unchanged      if it handles errors (catch, fallback)
    ``disposal``           disposal reaches the source at once                   if it shares its source (share)
    ``dispose_inside``     disposal inside on_next reaches the source at once    if it shares its source (share)
    ``left_over``          no timer or thread is left after the end              if it shares its source (share)
    ``afresh``             a second subscription emits the same items            if it replays, or shares state
    ``apart``              concurrent subscriptions share nothing                if it limits concurrency
    ``at_once``            its output is the same if all items arrive at once    if it joins simultaneous items
    ``reentrant``          its output is the same if an item arrives while       if it joins simultaneous items
                           another item is being delivered
    ``subscribed_inside``  it can be subscribed to inside on_next                if it limits concurrency
    ``subscriber``         a subscriber's exception reaches its on_error         never
    ``consistent``         deltas, completions and messages agree                if its output cannot be folded
    ``error_event``        an ErrorEvent's error is passed on                    if it selects or replaces items
    =====================  ====================================================  =======================================

    To turn each rule into a separate test::

        @pytest.mark.parametrize("rule", OPERATOR_RULES)
        def test_the_contract(rule):
            assert_operator(my_operator, only=[rule])

    Time is virtual, so the operator must use the subscription's scheduler. For some rules, the source is silent for ten
    minutes before its last item. An operator that blocks for `seconds` of real time breaks the rule that is being
    checked, and the remaining rules are not checked. The operator is created and run on another thread, in the caller's
    context.

    Raises an ``AssertionError`` with the reason for each broken rule. Raises ``ValueError`` for an unknown rule, and
    ``TypeError`` if `make` is an operator.
    """
    __tracebackhide__ = True
    names = OPERATOR_RULES.chosen(only, without)
    _refuse_operator(make)
    tested = Tested(make, events)
    broken: list[BrokenRule] = []
    for rule in OPERATOR_RULES.broken(tested, names, call=lambda check: in_time(check, seconds)):
        broken.append(rule)
        if isinstance(rule.error, HangingError):
            report(broken)
    if broken:
        with suppress(HangingError):
            if failure := in_time(tested.failure, seconds):
                message, error = failure
                broken.insert(0, BrokenRule("", message, error, error))
    report(broken)


def _refuse_operator(make: Any) -> None:
    # `make` is not called here, because it might raise a TypeError for another reason.
    if call_fault(make) is not None:
        remedy = "pass a function that makes the operator, as in assert_operator(lambda: my_operator(5))"
        raise TypeError(f"{make!r} cannot be called without arguments: {remedy}")


@dataclass(frozen=True)
class Tested:
    """An operator under test, and the `events` that its source emits."""

    make: Make
    events: Sequence[Any] | None = None

    @property
    def items(self) -> list[Any]:
        return list(ITEMS if self.events is None else self.events)

    @property
    def end(self) -> int:
        """The tick at which the source ends."""
        return (len(self.items) + 1) * EVERY

    def run(self, error: Exception | None = None, **options: Any) -> tuple[OperatorRun, Source]:
        return run_operator(self.make, self.items, error, **options)

    def deliveries(self) -> list[tuple[int, int, int]]:
        """Return the deliveries to test.

        Each delivery is a tuple: the number of the item, the tick at which the operator emits the item, and the
        `silence` with which the source must be run.
        """
        last = len(self.items) * EVERY
        timed = [item for item in _ticks(self.run(silence=SILENCE)[0]) if last - EVERY < item[1] < last + SILENCE]
        return [(*item, 0) for item in _ticks(self.run()[0])] + [(*item, SILENCE) for item in timed[:2]]

    def make_stream(self, clock: Clock) -> Observable[Any]:
        return Source(self.items, clock=clock).pipe(self.make())

    def failure(self) -> tuple[str, Exception] | None:
        """Return a description of the operator's error, and the error itself, or None if the operator did not fail."""
        moments = {0: "when it was subscribed to", self.end: "when the source ended"}
        moments |= {(number + 1) * EVERY: f"at item {number}, {clip(item)}" for number, item in enumerate(self.items)}
        match self.run()[0].ends:
            case [(tick, "error", error), *_]:
                remedy = NO_EVENTS if self.events is None and not isinstance(error, LLMError) else ""
                return f"it raised {error!r} {moments.get(tick, f'at tick {tick}')}{remedy}", error
            case _:
                return None


def _ticks(run: OperatorRun) -> list[tuple[int, int]]:
    return [(number, tick) for number, (tick, kind, _) in enumerate(run.notes) if kind == "next"]


# Rules for one subscription


@OPERATOR_RULES.rule("cold", "nothing happens before it is subscribed to")
def _cold(tested: Tested) -> None:
    clock = Clock()
    source = Source(tested.items, clock=clock)
    source.pipe(tested.make())
    clock.advance_to(float(tested.end))
    expect(not source.uses, "its source was subscribed to")


@OPERATOR_RULES.rule("once", "it subscribes to its source once")
def _once(tested: Tested) -> None:
    _, source = tested.run()
    expect(len(source.uses) == 1, f"there were {len(source.uses)} subscriptions")


@OPERATOR_RULES.rule("scheduler", "it passes on the scheduler given to subscribe()")
def _scheduler(tested: Tested) -> None:
    clock = Clock()
    source = Source(tested.items, clock=clock)
    OperatorRun(source.pipe(tested.make()), clock).run()
    for scheduler in source.schedulers:
        expect(scheduler is clock, f"the source received the scheduler {scheduler!r}")


@OPERATOR_RULES.rule("ends", "it ends once, and emits nothing afterwards")
def _ends(tested: Tested) -> None:
    for error, silence in ((None, 0), (RuntimeError("the source's own"), 0), (None, SILENCE)):
        run, _ = tested.run(error, silence=silence)
        expect(run.escaped is None, f"{run.escaped!r} was raised")
        expect(len(run.ends) > 0, "it did not end")
        expect(len(run.ends) == 1, f"it ended {len(run.ends)} times: {run.ends}")
        expect(run.notes[-1] == run.ends[0], f"it emitted {run.notes[-1]} after it had ended")


@OPERATOR_RULES.rule("ends_with_source", "it ends when its source does")
def _ends_with_source(tested: Tested) -> None:
    ends = tested.run()[0].ends
    expect(ends == [(tested.end, "end", None)], f"it ended with {ends} instead of ending at tick {tested.end}")


@OPERATOR_RULES.rule("errors", "the source's exception passes through, at once and unchanged")
def _errors(tested: Tested) -> None:
    failure = RuntimeError("the source's own")
    for count in range(len(tested.items) + 1):
        run, source = run_operator(tested.make, tested.items[:count], failure)
        at = (count + 1) * EVERY
        expect(
            run.ends == [(at, "error", failure)],
            f"after {count} items, at tick {at}, the operator ended with {run.ends}",
        )
        expect(source.released(at), f"the source failed at tick {at}, but was still in use: {source.uses}")


@OPERATOR_RULES.rule("disposal", "disposal reaches the source at once, and nothing is emitted afterwards")
def _disposal(tested: Tested) -> None:
    for tick in range(1, tested.end, EVERY):
        run, source = tested.run(dispose_at=tick)
        expect(source.released(tick), f"after disposal at tick {tick}, the source was still in use: {source.uses}")
        expect(not run.late, f"after disposal at tick {tick}, it emitted {run.late}")


@OPERATOR_RULES.rule("dispose_inside", "disposal inside on_next reaches the source at once")
def _dispose_inside(tested: Tested) -> None:
    for number, _, silence in tested.deliveries():
        run, source = tested.run(on_item=_call_at_item(number, lambda run: run.dispose()), silence=silence)
        expect(run.escaped is None, f"it raised {run.escaped!r}")
        expect(not run.late, f"it was disposed while delivering item {number}, but emitted {run.late} afterwards")
        at = run.notes[number][0]
        expect(source.released(at), f"after disposal at tick {at}, the source was still in use: {source.uses}")


@OPERATOR_RULES.rule("left_over", "no timer or thread is left after the end or after disposal")
def _left_over(tested: Tested) -> None:
    in_silence = tested.end - EVERY + SILENCE // 2
    for tick in (None, *range(1, tested.end, EVERY), in_silence):
        run, _ = tested.run(dispose_at=tick, silence=SILENCE if tick == in_silence else 0)
        when = "its end" if tick is None else f"disposal at tick {tick}"
        expect(run.left_over is None, f"after {when} {run.left_over}")


# Rules for several subscriptions


@OPERATOR_RULES.rule("afresh", "a second subscription emits the same items as the first")
def _afresh(tested: Tested) -> None:
    clock = Clock()
    piped = tested.make_stream(clock)
    first, second = (OperatorRun(piped, clock).run().notes for _ in range(2))
    _expect_same("the second subscription", first, second)


@OPERATOR_RULES.rule("apart", "concurrent subscriptions share nothing")
def _apart(tested: Tested) -> None:
    alone = tested.run()[0].notes
    operator, clock = tested.make(), Clock()
    one, other = (Source(tested.items, clock=clock).pipe(operator) for _ in range(2))
    runs = [OperatorRun(piped, clock) for piped in (one, other, one)]
    for index, run in enumerate(runs):
        clock.at(index * (EVERY + 1), run.begin)
    clock.advance_to(float(LIMIT))
    _expect_same("the first of two streams from one operator", alone, runs[0].notes)
    _expect_same("the second of two streams from one operator", alone, runs[1].notes)
    _expect_same("the second of two concurrent subscriptions", alone, runs[2].notes)


# Rules for sources and subscribers that behave unusually


@OPERATOR_RULES.rule("at_once", "its output is the same if all items arrive at once, and take(1) releases the source")
def _at_once(tested: Tested) -> None:
    values = tested.run()[0].values
    _expect_same("at once, it", values, tested.run(at_once=True)[0].values)
    run, source = run_operator(
        lambda: lambda source: source.pipe(tested.make(), rx.take(1)), tested.items, at_once=True
    )
    _expect_same("with take(1), it", values[:1], run.values)
    expect(source.released(0), "take(1) did not release the source")


@OPERATOR_RULES.rule("reentrant", "its output is the same if an item arrives while another item is being delivered")
def _reentrant(tested: Tested) -> None:
    subject, clock, pending = Subject[Any](), Clock(), tested.items

    def push(*_: Any) -> None:
        if pending:
            subject.on_next(pending.pop(0))

    run = OperatorRun(subject.pipe(tested.make()), clock, push)
    run.begin()
    while pending:
        push()
    subject.on_completed()
    clock.advance_to(float(LIMIT))
    _expect_same("it", tested.run(at_once=True)[0].values, run.values)


@OPERATOR_RULES.rule("subscribed_inside", "it can be subscribed to again from inside on_next")
def _subscribed_inside(tested: Tested) -> None:
    for at_once in (False, True):
        clock = Clock()
        piped = Source(tested.items, clock=None if at_once else clock).pipe(tested.make())
        inner = OperatorRun(piped, clock)
        outer = OperatorRun(piped, clock, _call_at_item(0, lambda run, inner=inner: inner.begin())).run()
        alone = tested.run(at_once=at_once)[0].values
        _expect_same("the outer subscription", alone, outer.values)
        _expect_same("the inner subscription", alone, inner.values)


@OPERATOR_RULES.rule("subscriber", "a subscriber's exception reaches its on_error, once, and releases the source")
def _subscriber(tested: Tested) -> None:
    for number, tick, silence in tested.deliveries():
        for error in (RuntimeError("the subscriber's own"), StreamError("cancelled", "the subscriber's own")):
            run, source = tested.run(on_item=_call_at_item(number, _raiser(error)), silence=silence)
            lost = [*source.unheard, *([run.escaped] if run.escaped else [])]
            expect(not lost, f"the exception at item {number} was lost: {lost}{LIFT}")
            after = run.notes[number + 1 :]
            arrived = [(kind, value) for _, kind, value in after] == [("error", error)] and after[0][2] is error
            expect(arrived, f"after {error!r} was raised at item {number}, the operator emitted {after}{LIFT}")
            expect(
                source.released(tick),
                f"after the error at item {number}, at tick {tick}, the source was still in use: {source.uses}",
            )


# Rules for events


@OPERATOR_RULES.rule("consistent", "deltas, completions, messages and results agree")
def _consistent(tested: Tested) -> None:
    for items in _lawful_inputs() if tested.events is None else [tested.items]:
        emitted = run_operator(tested.make, items)[0].values
        if _are_events([*items, *emitted]):
            fault = inconsistency(emitted)
            expect(fault is None or inconsistency(items) is not None, f"{fault}")


@OPERATOR_RULES.rule("error_event", "an ErrorEvent's error is passed on as an event, in a result, or through on_error")
def _error_event(tested: Tested) -> None:
    if not _are_events(tested.items):
        return
    content = list(takewhile(lambda item: not isinstance(item, MessageCompleted | ErrorEvent), tested.items))
    error = StreamError("truncated", "a planted error")
    for before in (content[:1], content):
        run, _ = run_operator(tested.make, [*before, ErrorEvent(error)])
        at = (len(before) + 1) * EVERY
        completed = any(kind == "end" and tick >= at for tick, kind, _ in run.ends)
        passed = any(_contains(value, error) for _, _, value in run.notes)
        expect(passed or not completed, f"an ErrorEvent after {len(before)} events was lost, and the stream completed")


def _are_events(items: list[Any]) -> bool:
    return all(isinstance(item, EVENT_CLASSES) for item in items)


def _contains(value: Any, error: StreamError) -> bool:
    return getattr(value, "error", None) == error or error.message in repr(value)


def _lawful_inputs() -> list[list[Any]]:
    call = ToolCall("c1", "add", {"x": 1})
    deltas = [("tool_call_delta", {"id": "c2", "name": "add", "arguments_delta": json}) for json in ('{"x"', ": 2}")]
    blocks = [TextDelta("Hel", "a"), TextDelta("lo", "a"), TextCompleted("Hello", "a"), TextDelta("World", "b")]
    add = tool(name="add", handler=_increment)
    chat = stream(Fake(["Let me ", "see", call], ["It is ", "2"]), "What is 1 + 1?", tools=[add])
    alone = played(chat)
    begun = 1 + next(index for index, event in enumerate(alone) if isinstance(event, ToolExecutionStarted))
    nested = [Nested((call.id,), event) for event in alone]
    return [
        events("Hel", "lo", thinking=("h", "m"), usage=Usage(3, 2)),
        events("a", ("thinking", "b"), "c", *deltas, "d"),
        events(*blocks, TextCompleted("World", "b"), call),
        events("Hel", "lo", StreamError("truncated")),
        alone,
        [*alone[:begun], *nested, *alone[begun:]],  # the same chat, run by an agent
    ]


def _increment(arguments: dict[str, Any]) -> int:
    return arguments["x"] + 1


def _call_at_item(number: int, do: Callable[[OperatorRun], object]) -> Callable[[OperatorRun, int], None]:
    def on_item(run: OperatorRun, at: int) -> None:
        if at == number:
            do(run)

    return on_item


def _raiser(error: Exception) -> Callable[[OperatorRun], object]:
    def do(run: OperatorRun) -> object:
        raise error

    return do


def _expect_same(which: str, expected: Sequence[Any], actual: Sequence[Any]) -> None:
    expect_same(which, expected, actual, comparable)

"""What every operator keeps, as a suite."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any

from rxllm.testing._observe import SECONDS, HangingError, in_time
from rxllm.testing._operator_events import consistent
from rxllm.testing._operator_rules import ITEMS, RULES, raised
from rxllm.testing._rule_table import chosen, on_a_screen
from rxllm.testing._virtual_time import Make

OPERATOR_RULES: dict[str, str] = {
    "cold": "nothing happens before it is subscribed",
    "once": "it subscribes to its source once",
    "scheduler": "it passes the subscription's scheduler on",
    "ends": "there is one end, and nothing after it",
    "ends_with_source": "it ends when its source does",
    "errors": "the source's exception passes, at once and as it is",
    "disposal": "a dispose reaches the source at once, and nothing comes afterwards",
    "dispose_inside": "a dispose from inside on_next is the same",
    "left_over": "no timer and no thread is left after the end or a dispose",
    "afresh": "a second subscription starts afresh",
    "apart": "what is subscribed at the same time has nothing in common",
    "at_once": "a source that says all at once gives the same items, and take(1) releases it",
    "reentrant": "an item that comes while another is being delivered gives what it gives later",
    "subscribed_inside": "it can be subscribed again from inside on_next",
    "subscriber": "a subscriber's exception comes back to its on_error, once, and releases the source",
    "consistent": "deltas, completions, messages and results say the same",
    "error_event": "what an ErrorEvent says is passed on: as an event, in a result, or by on_error",
}
"""The rules of `assert_operator`, by name, in the order in which they are checked."""


def assert_operator(
    make: Make,
    *,
    events: Sequence[Any] | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    seconds: float = SECONDS,
) -> None:
    """Check that the operators that `make` gives keep all of `OPERATOR_RULES`.

    >>> from rxllm import operators as ops
    >>> assert_operator(lambda: ops.filter_deltas(text=False))

    `events` are what the source says; without them, a lawful response. For an operator from events to events they must
    be lawful; for any other they are whatever it takes. What an operator does is tried only where something in them
    makes it do it: to one that passes all of a plain response on unchanged, give what it acts on.

    >>> from rxllm.testing import events
    >>> assert_operator(ops.include_raw_chunks, events=events("Hi", ("raw_chunk", {"n": 1})))

    `only` names the rules to check, and `without` those that this operator rightly breaks, as in
    ``assert_operator(lambda: ops.snapshots(), without={"at_once"})``:

    =====================  =================================================  ==========================================
    rule                   what is checked                                    leave it out where
    =====================  =================================================  ==========================================
    ``cold``               nothing happens before it is subscribed            never
    ``once``               it subscribes to its source once                   it asks again: retry, repeat
    ``scheduler``          the subscription's scheduler is passed on          it gives its source a scheduler of its own
    ``ends``               there is one end, and nothing after it             it never ends by itself
    ``ends_with_source``   it ends when its source does                       it ends early or late: take, delay
    ``errors``             the source's exception passes, at once, as it is   it handles errors: catch, fallback
    ``disposal``           a dispose reaches the source at once               it shares its source with others: share
    ``dispose_inside``     so does a dispose from inside on_next              as `disposal`
    ``left_over``          no timer or thread is left after the end           it shares its source with others
    ``afresh``             a second subscription starts afresh                it replays, or counts over subscriptions
    ``apart``              subscriptions at the same time share nothing       it limits what runs at the same time
    ``at_once``            items that come at once give what they give later  it puts together what comes at once
    ``reentrant``          so does an item from inside on_next                as `at_once`
    ``subscribed_inside``  it can be subscribed from inside on_next           as `apart`
    ``subscriber``         a subscriber's exception comes to its on_error     a timer of reactivex's own delivers: delay
    ``consistent``         deltas, completions and messages say the same      what it says is not meant for a fold
    ``error_event``        what an ErrorEvent says is passed on               it selects items, or replaces what failed
    =====================  =================================================  ==========================================

    To have each rule as a test of its own::

        @pytest.mark.parametrize("rule", OPERATOR_RULES)
        def test_the_contract(rule):
            assert_operator(my_operator, only=[rule])

    Time is virtual: an operator must take its own from the subscription's scheduler. One that blocks for so many real
    `seconds` breaks the rule that it is tried for, and is not tried any further. The operator is made and run on a
    thread that is not the caller's, in the caller's context.

    Raises ``AssertionError``, which names every broken rule and says how, and first what the operator itself has
    raised, if anything; ``ValueError`` for a rule that is none, and ``TypeError`` for an operator instead of its maker.
    """
    __tracebackhide__ = True
    rules = chosen(OPERATOR_RULES, only, without)
    _refuse_operator(make)
    items = list(ITEMS if events is None else events)
    broken: list[str] = []
    for name, sentence in rules.items():
        try:
            in_time(lambda name=name: _check(name, make, items, events), seconds)
        except AssertionError as error:
            broken.append(f"{name}: {sentence}, but {error}")
            if isinstance(error, HangingError):
                raise AssertionError(on_a_screen(broken)) from None
    if broken:
        cause: Exception | None = None
        with suppress(HangingError):
            if failure := in_time(lambda: raised(make, items), seconds):
                broken[:0], cause = [failure[0]], failure[1]
        raise AssertionError(on_a_screen(broken)) from cause


def _refuse_operator(make: Any) -> None:
    # By its signature, since a TypeError of a call may be the maker's own.
    with suppress(ValueError):  # some builtins have no signature
        try:
            signature(make).bind()
        except TypeError:
            remedy = "give a function that makes the operator, as in assert_operator(lambda: my_operator(5))"
            raise TypeError(f"{make!r} cannot be called without arguments: {remedy}") from None


def _check(name: str, make: Make, items: list[Any], events: Sequence[Any] | None) -> None:
    consistent(make, events) if name == "consistent" else RULES[name](make, items)

"""`assert_operator`: the rules of operators, checked in virtual time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from rxllm.testing._observe import SECONDS, HangingError, in_time
from rxllm.testing._operator_rules import OPERATOR_RULES, Tested
from rxllm.testing._rule_table import BrokenRule, report
from rxllm.testing._virtual_time import Make
from rxllm.values.argument_checks import call_fault


def assert_operator(
    make: Make,
    *,
    events: Sequence[Any] | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    seconds: float = SECONDS,
) -> None:
    """Check that the operators that `make` returns keep all of `OPERATOR_RULES`.

    >>> from rxllm import operators as ops
    >>> assert_operator(lambda: ops.filter_deltas(text=False))

    `events` are what the source emits, by default a lawful response. For an operator from events to events they must
    be lawful; for any other they are whatever it takes. An operator is tested only on what they contain: one that
    passes a plain response on unchanged needs events that it acts on.

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
    ``errors``             the source's exception passes at once, unchanged   it handles errors: catch, fallback
    ``disposal``           a dispose reaches the source at once               it shares its source with others: share
    ``dispose_inside``     so does a dispose from inside on_next              as `disposal`
    ``left_over``          no timer or thread is left after the end           it shares its source with others
    ``afresh``             a second subscription starts afresh                it replays, or counts over subscriptions
    ``apart``              subscriptions at the same time share nothing       it limits what runs at the same time
    ``at_once``            items that come at once give what they give later  it puts together what comes at once
    ``reentrant``          so does an item from inside on_next                as `at_once`
    ``subscribed_inside``  it can be subscribed from inside on_next           as `apart`
    ``subscriber``         a subscriber's exception comes to its on_error     never
    ``consistent``         deltas, completions and messages agree             its output is not meant for a fold
    ``error_event``        the error of an ErrorEvent is passed on            it selects items, or replaces what failed
    =====================  =================================================  ==========================================

    To have each rule as a test of its own::

        @pytest.mark.parametrize("rule", OPERATOR_RULES)
        def test_the_contract(rule):
            assert_operator(my_operator, only=[rule])

    Time is virtual: an operator must take its own from the subscription's scheduler. Timers fire in a silence of ten
    minutes before the source's last item; what one raises ends the subscription, as in a `Stream`. An operator that
    blocks for so many real `seconds` breaks the rule that is being checked, and the others are not checked. The
    operator is made and run on a thread that is not the caller's, in the caller's context.

    Raises ``AssertionError``, which names every broken rule and says how, after the operator's own error if it raised
    one; ``ValueError`` for an unknown rule, and ``TypeError`` for an operator instead of its maker.
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
    # By its signature, since a TypeError of a call may be the maker's own.
    if call_fault(make) is not None:
        remedy = "give a function that makes the operator, as in assert_operator(lambda: my_operator(5))"
        raise TypeError(f"{make!r} cannot be called without arguments: {remedy}")

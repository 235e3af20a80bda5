"""The rules of encoders of tool results, and `assert_encoder`, which checks them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from typing import Any

from rxllm.testing._rule_table import RuleTable, expect

ENCODER_RULES = RuleTable()
"""The rules of `assert_encoder`, by name."""

RESULTS: tuple[Any, ...] = (
    "sunny",
    "",
    "naïve ☃ \u0000",
    0,
    -1.5,
    True,
    None,
    [1, [2, None]],
    (1, "two"),
    {"city": "Lima", "days": [{"high": 21.5}]},
    {},
)
"""What tools return."""

Encoder = Callable[[Any], Any]


def assert_encoder(encoder: Callable[[Any], str], *, without: Collection[str] = ()) -> None:
    """Check that ``encoder(result)`` returns text that can be sent to a model: see `ENCODER_RULES`.

    >>> import json
    >>> assert_encoder(json.dumps)

    `without` names the rules to leave out: ``text`` if its tools return only one kind of result, ``error`` if the
    model must not see what failed, ``stable`` if the text contains the time; ``pure`` never.

    Raises as ``assert_executor`` does.
    """
    __tracebackhide__ = True
    ENCODER_RULES.check(encoder, without)


def _encoded(encoder: Encoder, result: Any) -> Any:
    try:
        return encoder(result)
    except Exception as error:
        raise AssertionError(f"for {result!r} it raised {error!r}") from error


@ENCODER_RULES.rule("text", "it returns text for whatever a tool may return")
def _text(encoder: Encoder) -> None:
    for result in deepcopy(RESULTS):
        encoded = _encoded(encoder, result)
        expect(isinstance(encoded, str), f"for {result!r} it returned {encoded!r}")


@ENCODER_RULES.rule("error", "the message of a failed tool is in the text")
def _error(encoder: Encoder) -> None:
    encoded = _encoded(encoder, {"error": "ValueError: no such city"})
    expect("no such city" in str(encoded), f"it returned {encoded!r}")


@ENCODER_RULES.rule("stable", "equal results give equal text")
def _stable(encoder: Encoder) -> None:
    for result in RESULTS:
        first, second = (_encoded(encoder, deepcopy(result)) for _ in range(2))
        expect(first == second, f"for {result!r} it returned {first!r}, then {second!r}")


@ENCODER_RULES.rule("pure", "it does not change the result")
def _pure(encoder: Encoder) -> None:
    for result in map(deepcopy, RESULTS):
        before = deepcopy(result)
        _encoded(encoder, result)
        expect(result == before, f"{before!r} became {result!r}")

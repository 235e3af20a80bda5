"""What every encoder of tools' results keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from typing import Any

from rxllm.testing._rule_table import check, expect

ENCODER_RULES: dict[str, str] = {
    "text": "it gives text for whatever a tool may return",
    "error": "a failed tool's words are in it",
    "stable": "equal results give equal text",
    "pure": "the result stays as it was",
}
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


def assert_encoder(encoder: Callable[[Any], str], *, without: Collection[str] = ()) -> None:
    """Check that ``encoder(result)`` gives text that a model can be told: see `ENCODER_RULES`.

    >>> import json
    >>> assert_encoder(json.dumps)

    `without` names the rules to leave out: ``text`` where its tools return but one kind of result, ``error`` where the
    model must not see what failed, ``stable`` where it says the time; ``pure`` never.

    Raises as ``assert_executor`` does.
    """
    __tracebackhide__ = True
    check(ENCODER_RULES, _RULES, without, encoder)


def _encoded(encoder: Callable[[Any], Any], result: Any) -> Any:
    try:
        return encoder(result)
    except Exception as error:
        raise AssertionError(f"for {result!r} it raised {error!r}") from error


def _text(encoder: Callable[[Any], Any]) -> None:
    for result in deepcopy(RESULTS):
        encoded = _encoded(encoder, result)
        expect(isinstance(encoded, str), f"for {result!r} it gave {encoded!r}")


def _error(encoder: Callable[[Any], Any]) -> None:
    encoded = _encoded(encoder, {"error": "ValueError: no such city"})
    expect("no such city" in str(encoded), f"it gave {encoded!r}")


def _stable(encoder: Callable[[Any], Any]) -> None:
    for result in RESULTS:
        first, second = (_encoded(encoder, deepcopy(result)) for _ in range(2))
        expect(first == second, f"for {result!r} it gave {first!r}, then {second!r}")


def _pure(encoder: Callable[[Any], Any]) -> None:
    for result in map(deepcopy, RESULTS):
        before = deepcopy(result)
        _encoded(encoder, result)
        expect(result == before, f"{before!r} became {result!r}")


_RULES: dict[str, Callable[[Any], None]] = {
    "text": _text,
    "error": _error,
    "stable": _stable,
    "pure": _pure,
}

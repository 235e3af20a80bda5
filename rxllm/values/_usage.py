"""Tokens and money."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from typing import Any, ClassVar, cast

from rxllm.values._encode import Value, value


@value
class Usage(Value):
    """What a response cost. Counts are tokens, costs are in the provider's currency; None means: not reported.

    `input_tokens` includes cached and cache-written tokens, `output_tokens` includes reasoning tokens; these also have
    their own fields. `total_tokens` is the provider's own total, `total` that or else the sum. `extra` keeps the
    provider's other counters under their own names. ``a + b`` sums two responses, ``sum(usages, Usage())`` many.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    input_cost: float | None = None
    output_cost: float | None = None
    total_cost: float | None = None
    tool_usage: dict[str, Any] = field(default_factory=dict[str, Any])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    _other_names: ClassVar[Mapping[str, str]] = {
        "prompt_tokens": "input_tokens",
        "completion_tokens": "output_tokens",
        "cached_tokens": "cached_input_tokens",
        "cache_read_input_tokens": "cached_input_tokens",
        "cache_creation_input_tokens": "cache_write_input_tokens",
        "thinking_tokens": "reasoning_tokens",
        "tokens": "total",
        "cost": "total_cost",
    }

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        summed = {spec.name: _sum(getattr(self, spec.name), getattr(other, spec.name)) for spec in fields(self)}
        if summed["total_tokens"] is not None:  # one of the two may lack it
            summed["total_tokens"] = self.total + other.total
        return Usage(**summed)

    def __radd__(self, other: int) -> Usage:
        return self if other == 0 else NotImplemented  # ``sum`` begins with 0

    @property
    def total(self) -> int:
        """All tokens: the provider's total, or the sum of input and output if it reports none."""
        if self.total_tokens is not None:
            return self.total_tokens
        return (self.input_tokens or 0) + (self.output_tokens or 0)


def by_iteration(usage: Usage, price: Callable[[str | None, Usage], Usage]) -> Usage:
    """Return `usage` with the costs it lacks, by the `price` of a model: None is the one that answers.

    A provider that asks several models for one answer has the usage of each, as a dict of its fields, in
    ``extra["iterations"]``, and in the ``extra`` of that the model, if it is another. The costs are unknown if those of
    one iteration are. A stated cost of 0 next to a price is no statement.
    """
    lacking = usage
    if usage.total_cost == 0:
        lacking = replace(usage, input_cost=None, output_cost=None, total_cost=None)
    parts = _iterations(usage)
    if not parts:
        priced = price(None, lacking)
        return usage if priced == lacking else priced
    parts[0] = replace(parts[0], tool_usage=usage.tool_usage)
    models = [part.extra.get("model") for part in parts]
    sums = [price(name if isinstance(name, str) else None, part) for name, part in zip(models, parts, strict=True)]
    if any(part.total_cost is None for part in sums):
        return usage
    total = sum(sums, Usage())
    names = ("input_cost", "output_cost", "total_cost")
    return replace(usage, **{name: getattr(total, name) for name in names if getattr(lacking, name) is None})


def _iterations(usage: Usage) -> list[Usage]:
    """Return the iterations of a usage; none unless it is their sum, as that of several answers is not."""
    try:
        parts = [Usage(**fields) for fields in usage.extra.get("iterations") or ()]
        total = sum(parts, Usage())
    except TypeError:  # in the provider's own words
        return []
    is_sum = (total.input_tokens, total.output_tokens) == (usage.input_tokens, usage.output_tokens)
    return parts if is_sum else []


def whole(number: Any) -> int | None:
    """Return a provider's count of tokens; None if `number` is not a whole one.

    >>> whole(3.0), whole(1.5), whole("3")
    (3, None, None)
    """
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def amount(number: Any) -> float | None:
    """Return a provider's cost; None if `number` is not a number."""
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


def _sum(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return a if b is None else b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        left, right = cast(Mapping[str, Any], a), cast(Mapping[str, Any], b)
        return {key: _sum(left.get(key), right.get(key)) for key in {**left, **right}}
    return a + b if isinstance(a, int | float) and isinstance(b, int | float) else b

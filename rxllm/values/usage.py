"""Usage, spending, and the limits and prices of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from typing import Any, cast

from rxllm.values.argument_checks import is_count, must_be
from rxllm.values.base import Value, value
from rxllm.values.errors import ValidationError


@value
class Usage(Value):
    """The tokens and cost of a response.

    A field is None if the provider does not report it. Costs are in the provider's currency.

    * `input_tokens` includes cached and cache-written tokens.
    * `output_tokens` includes reasoning tokens.
    * `total_tokens` is the provider's total. If it is None, `total` is the sum of input and output.
    * `extra` keeps the provider's other counters under their own names.

    To add usages, write ``a + b`` or ``sum(usages, Usage())``.
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

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        summed = {spec.name: _sum(getattr(self, spec.name), getattr(other, spec.name)) for spec in fields(self)}
        if summed["total_tokens"] is not None:  # one of the two may have no total
            summed["total_tokens"] = self.total + other.total
        return Usage(**summed)

    def __radd__(self, other: int) -> Usage:
        return self if other == 0 else NotImplemented  # ``sum`` starts with 0

    @property
    def total(self) -> int:
        """The provider's total if it reports one, and otherwise the sum of input and output tokens."""
        if self.total_tokens is not None:
            return self.total_tokens
        return (self.input_tokens or 0) + (self.output_tokens or 0)


def by_iteration(usage: Usage, price: Callable[[str | None, Usage], Usage]) -> Usage:
    """Return `usage` with its missing costs filled in by ``price(model, usage)``.

    * If several models worked on an answer, ``extra["iterations"]`` lists the usage of each iteration. Each iteration
      is priced separately.
    * `model` is the model name in an iteration's ``extra``. It is None for the model that wrote the answer.
    * If the cost of any iteration is unknown, no costs are filled in.
    * A known price replaces a reported cost of 0.
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
    """Return the usage of each iteration. The list is empty if the iterations do not add up to `usage`."""
    try:
        parts = [Usage(**fields) for fields in usage.extra.get("iterations") or ()]
        total = sum(parts, Usage())
    except TypeError:  # an iteration has a field that `Usage` lacks
        return []
    is_sum = (total.input_tokens, total.output_tokens) == (usage.input_tokens, usage.output_tokens)
    return parts if is_sum else []


def whole(number: Any) -> int | None:
    """Return a token count as an int, or None if it is not a whole number.

    >>> whole(3.0), whole(1.5), whole("3")
    (3, None, None)
    """
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def amount(number: Any) -> float | None:
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


def _sum(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return a if b is None else b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        left, right = cast(Mapping[str, Any], a), cast(Mapping[str, Any], b)
        return {key: _sum(left.get(key), right.get(key)) for key in {**left, **right}}
    return a + b if isinstance(a, int | float) and isinstance(b, int | float) else b


@value
class Spending(Value):
    """The tokens and money used by calls that share a `Budget`.

    * `calls`: the number of calls that have ended.
    * `tokens`: the number of tokens that these calls used.
    * `estimated`: the tokens that rxllm estimated, because a call failed, was disposed early or reported no usage.
    * `usd`: the sum of all known costs, or None.
    * `unpriced`: the number of calls whose cost is unknown.
    * `reserved`, `reserved_usd`: the tokens and money set aside for running calls.
    """

    tokens: int = 0
    usd: float | None = None
    calls: int = 0
    estimated: int = 0
    unpriced: int = 0
    reserved: int = 0
    reserved_usd: float = 0.0


CAPABILITIES = (
    *("tools", "json_schema", "vision", "images", "tools_with_schema"),
    *("sampling", "forced_tool_choice"),
)
"""The names of the flags in `ModelInfo`."""

_MILLION = 1_000_000


@value
class ModelInfo(Value):
    """An entry in the catalogue ``rxllm.models``.

    A field is None if its value is unknown. `name` is ``"provider:model"``, or just the provider if its model has no
    name. The flags are:

    * `tools`: the model can call tools;
    * `json_schema`: its answers can be constrained by a JSON schema;
    * `vision`: it can read images in the request;
    * `images`: it can generate images;
    * `tools_with_schema`: a request can have both tools and a schema;
    * `sampling`: a request can set `temperature`, `top_p` and ``top_k``;
    * `forced_tool_choice`: a request can force a tool call, for example with ``tool_choice="required"``.

    `reasoning_efforts` lists the accepted values of `reasoning_effort`.

    Limits are in tokens. Prices are per million tokens, in the same currency as the costs in `Usage`. The input price
    also applies to cached tokens that have no price of their own.

    Raises ``ValidationError("invalid_option")`` if a value is invalid.
    """

    name: str
    tools: bool | None = None
    json_schema: bool | None = None
    vision: bool | None = None
    images: bool | None = None
    tools_with_schema: bool | None = None
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    cache_write_input_price: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    sampling: bool | None = None
    forced_tool_choice: bool | None = None
    reasoning_efforts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks = ((name, getattr(self, name), *rule) for name, rule in _RULES.items())
        faults = [((name,), must_be(expected, item)) for name, item, expected, fits in checks if not fits(item)]
        if faults:
            raise ValidationError("invalid_option", errors=faults)

    @property
    def provider(self) -> str:
        return self.name.partition(":")[0]

    @property
    def has_prices(self) -> bool:
        return self.input_price is not None or self.output_price is not None

    def priced(self, usage: Usage) -> Usage:
        """Return `usage` with the missing costs computed from this model's prices.

        >>> usage = ModelInfo("a:b", input_price=2.0, output_price=10.0).priced(Usage(500_000, 100_000))
        >>> usage.input_cost, usage.output_cost, usage.total_cost
        (1.0, 1.0, 2.0)

        The total is filled in only if the input and output costs are known. This method does not price the iterations
        of other models; ``rxllm.models.priced`` does.
        """
        return by_iteration(usage, lambda model, part: part if model else self._fill_costs(part))

    def _fill_costs(self, usage: Usage) -> Usage:
        input_cost = self._input_cost(usage) if usage.input_cost is None else usage.input_cost
        output_cost = _cost(usage.output_tokens, self.output_price) if usage.output_cost is None else usage.output_cost
        total = usage.total_cost
        if total is None and input_cost is not None and output_cost is not None:
            total = input_cost + output_cost
        return replace(usage, input_cost=input_cost, output_cost=output_cost, total_cost=total)

    def _input_cost(self, usage: Usage) -> float | None:
        if usage.input_tokens is None or self.input_price is None:
            return None
        special = 0.0
        plain = usage.input_tokens
        for tokens, price in (
            (usage.cached_input_tokens, self.cached_input_price),
            (usage.cache_write_input_tokens, self.cache_write_input_price),
        ):
            if tokens is not None and price is not None:
                special += tokens * price / _MILLION
                plain -= tokens
        return plain * self.input_price / _MILLION + special


def _cost(tokens: int | None, price: float | None) -> float | None:
    return None if tokens is None or price is None else tokens * price / _MILLION


def _is_name(value: Any) -> bool:
    provider, colon, model = value.partition(":") if isinstance(value, str) else ("", "", "")
    return provider != "" and (model != "" or not colon)


def _is_price(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and math.isfinite(value) and value >= 0)


def _are_efforts(value: Any) -> bool:
    return value is None or (isinstance(value, tuple) and all(isinstance(entry, str) for entry in value))  # pyright: ignore


_Rule = tuple[str, Callable[[Any], bool]]
_FLAG: _Rule = ("True, False or None", lambda value: value is None or isinstance(value, bool))
_TOKENS: _Rule = ("an integer >= 1 or None", lambda value: value is None or is_count(value))
_PRICE: _Rule = ("a number >= 0 or None", _is_price)

_RULES: dict[str, _Rule] = {
    "name": ("'provider:model'", _is_name),
    **dict.fromkeys(CAPABILITIES, _FLAG),
    **dict.fromkeys(("context_tokens", "max_output_tokens"), _TOKENS),
    **dict.fromkeys(("input_price", "output_price", "cached_input_price", "cache_write_input_price"), _PRICE),
    "metadata": ("a mapping", lambda value: isinstance(value, Mapping)),
    "reasoning_efforts": ("a tuple of strings or None", _are_efforts),
}

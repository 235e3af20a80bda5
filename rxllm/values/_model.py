"""What is known about a model: capabilities, limits and prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from rxllm.values._encode import Value, value
from rxllm.values._usage import Usage, by_iteration
from rxllm.values.argument_checks import is_count, must_be
from rxllm.values.errors import ValidationError

CAPABILITIES = ("tools", "json_schema", "vision", "images", "tools_with_schema")
"""The fields of `ModelInfo` that say what a model can do."""

_MILLION = 1_000_000


@value
class ModelInfo(Value):
    """An entry of the catalogue ``rxllm.models``. None means: not known.

    `name` is ``"provider:model"``, or the provider alone if its model has no name. The flags say whether the model can
    call `tools`, answer in a `json_schema`, see images in the request (`vision`) and make `images`;
    `tools_with_schema` is False if tools and a schema exclude each other. Limits are in tokens. Prices are per million
    tokens, in the currency of `Usage`'s costs; cached and cache-written tokens without a price cost what input costs.

    Raises ``ValidationError("invalid_option")`` for invalid values.
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
        """Return `usage` with the costs it lacks; the total is their sum, if both are known.

        >>> usage = ModelInfo("a:b", input_price=2.0, output_price=10.0).priced(Usage(500_000, 100_000))
        >>> usage.input_cost, usage.output_cost, usage.total_cost
        (1.0, 1.0, 2.0)

        An iteration of another model has no price here; ``rxllm.models.priced`` looks for that model's.
        """
        return by_iteration(usage, lambda model, part: part if model else self._filled(part))

    def _filled(self, usage: Usage) -> Usage:
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


_Rule = tuple[str, Callable[[Any], bool]]
_FLAG: _Rule = ("True, False or None", lambda value: value is None or isinstance(value, bool))
_TOKENS: _Rule = ("a whole number of at least 1, or None", lambda value: value is None or is_count(value))
_PRICE: _Rule = ("a number of at least 0, or None", _is_price)

_RULES: dict[str, _Rule] = {
    "name": ("'provider:model'", _is_name),
    **dict.fromkeys(CAPABILITIES, _FLAG),
    **dict.fromkeys(("context_tokens", "max_output_tokens"), _TOKENS),
    **dict.fromkeys(("input_price", "output_price", "cached_input_price", "cache_write_input_price"), _PRICE),
    "metadata": ("a mapping", lambda value: isinstance(value, Mapping)),
}

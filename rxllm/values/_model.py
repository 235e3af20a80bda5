"""What is known of a model before it is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from rxllm.values._usage import Usage
from rxllm.values._base import Value, value
from rxllm.values.errors import ValidationError

CAPABILITIES = ("tools", "json_schema", "vision", "images", "tools_with_schema")
"""The fields of `ModelInfo` that say what a model can do."""

_MILLION = 1_000_000


@value
class ModelInfo(Value):
    """An entry of the catalogue ``rxllm.models``. None means that nobody has said.

    `name` is ``"provider:model"``, or the provider alone where a model has no name. It can call `tools`, keep to a
    `json_schema`, see images in what it is asked (`vision`), make `images`; `tools_with_schema` is False where tools
    and a schema exclude one another. Limits are in tokens, prices in the currency of `Usage`'s costs, per million
    tokens; cached and cache-written ones cost what input does where they have no price of their own.

    Raises ``ValidationError("invalid_option")`` for values that make no sense.
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
        wrong = [((name,), f"must be {wanted}, not {held!r}") for name, held, wanted, fits in checks if not fits(held)]
        if wrong:
            raise ValidationError("invalid_option", errors=wrong)

    @property
    def provider(self) -> str:
        return self.name.partition(":")[0]

    @property
    def has_prices(self) -> bool:
        return self.input_price is not None or self.output_price is not None

    def priced(self, usage: Usage) -> Usage:
        """`usage` with the costs that it lacks; the total is their sum, if both are known.

        >>> usage = ModelInfo("a:b", input_price=2.0, output_price=10.0).priced(Usage(500_000, 100_000))
        >>> usage.input_cost, usage.output_cost, usage.total_cost
        (1.0, 1.0, 2.0)
        """
        asked = self._input_cost(usage) if usage.input_cost is None else usage.input_cost
        answered = _cost(usage.output_tokens, self.output_price) if usage.output_cost is None else usage.output_cost
        total = usage.total_cost
        if total is None and asked is not None and answered is not None:
            total = asked + answered
        return replace(usage, input_cost=asked, output_cost=answered, total_cost=total)

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


def _is_name(held: Any) -> bool:
    provider, colon, model = held.partition(":") if isinstance(held, str) else ("", "", "")
    return provider != "" and (model != "" or not colon)


def _is_price(held: Any) -> bool:
    return held is None or (
        isinstance(held, int | float) and not isinstance(held, bool) and math.isfinite(held) and held >= 0
    )


_Rule = tuple[str, Callable[[Any], bool]]
_FLAG: _Rule = ("True, False or None", lambda held: held is None or isinstance(held, bool))
_TOKENS: _Rule = (
    "a whole number of at least 1, or None",
    lambda held: held is None or (type(held) is int and held > 0),
)
_PRICE: _Rule = ("a number of at least 0, or None", _is_price)

_RULES: dict[str, _Rule] = {
    "name": ("'provider:model'", _is_name),
    **dict.fromkeys(CAPABILITIES, _FLAG),
    **dict.fromkeys(("context_tokens", "max_output_tokens"), _TOKENS),
    **dict.fromkeys(("input_price", "output_price", "cached_input_price", "cache_write_input_price"), _PRICE),
    "metadata": ("a mapping", lambda held: isinstance(held, Mapping)),
}

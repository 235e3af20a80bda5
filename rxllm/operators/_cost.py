"""Calculate what a response costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._shared.costs import all_counts, fill_costs, price_context, token_counts
from rxllm.runtime import Stream, engine_call
from rxllm.values import EngineError, Usage
from rxllm.values.argument_checks import check, check_function, invalid_option, shown

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

_PROVIDERS = {"gemini": "google", "moonshot": "moonshotai", "openai-responses": "openai"}
"""Providers that have other names in genai-prices."""


def cost(
    model: str | None = None, *, price: Callable[[Usage], Usage] | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Fill in a response's costs, in dollars, from the price list of genai-prices where the provider states none.

    ::

        source   --start--H--usage--end---------|
        cost()   --start--H--usage--(usage,end)-|        (the second with costs)

    >>> from rxllm import Fake, Usage, generate, operators as ops, stream_generate
    >>> answer = stream_generate(Fake(["Hi", Usage(1_000_000, 100_000)]), "Hello")
    >>> answer.pipe(cost("anthropic:claude-3-haiku-20240307"), ops.to_response()).run().usage.total_cost
    0.375
    >>> answer.pipe(cost("nobody:knows"), ops.to_response()).run().usage.total_cost is None
    True

    As an engine's operator, ``Engine(adapter, model, operators=[ops.cost()])``, it knows provider and model, and every
    result, total and budget has the costs; after ``ops.fallback`` the price is that of the model that answers. In a
    pipe name them: ``"provider:model"``; otherwise the response's own model name is looked up under any provider. Costs
    stay None for models that are not in the list, and stated costs stay. Searches, sound, images, one-hour caches and
    service tiers have prices of their own. An agent's costs are those of its own engine, and are not filled in here,
    so that nothing is charged twice. The prices of your own contract belong in an entry of ``rxllm.models``.

    With `price`, that function returns the usage with its costs, and genai-prices is not needed:

    >>> from dataclasses import replace
    >>> price = lambda usage: replace(usage, total_cost=usage.total * 0.001)
    >>> answer.pipe(cost(price=price), ops.to_response()).run().usage.total_cost
    1100.0

    The list is that of the installed genai-prices (https://github.com/pydantic/genai-prices); nothing is fetched.
    Raises ``EngineError("missing_dependency")`` without it, and ``ValidationError("invalid_option")`` if `model` is not
    ``"provider:model"``, or `price` returns something else than a `Usage`.
    """
    check("model", model, model is None or all(str(model).partition(":")), "None or 'provider:model'")
    if price is not None:
        check_function("price", price)
        return fill_costs(lambda usage, _, __: _checked(price(usage)))
    _prices()

    def operator(source: Observable[Event]) -> Stream[Event]:
        call = engine_call()
        requested = model or (f"{call.provider}:{call.request.model or ''}" if call is not None else ":")

        def fill(usage: Usage, response_model: str | None, metadata: Mapping[str, Any]) -> Usage:
            provider, _, name = (_fallback(metadata) or requested).partition(":")
            provider = _PROVIDERS.get(provider, provider) or None
            return _priced(usage, provider, filter(None, (response_model, name)), price_context(usage, metadata))

        return fill_costs(fill)(source)

    return operator


def _checked(usage: Any) -> Usage:
    if not isinstance(usage, Usage):
        remedy = "write lambda usage: dataclasses.replace(usage, total_cost=...)"
        raise invalid_option("price", f"must return a Usage, not {shown(usage)}; {remedy}")
    return usage


def _fallback(metadata: Mapping[str, Any]) -> str | None:
    """Return the model that answered instead of the requested one, as ``ops.fallback`` records it."""
    match metadata:
        case {"fallback": {"answered_by": str(name)}}:
            return name if ":" in name else ":"  # a stream may be of any provider
        case _:
            return None


def _priced(usage: Usage, provider: str | None, names: Iterable[str], context: Mapping[str, str]) -> Usage:
    for name in names:
        price = _price(usage, provider, name, context)
        if price is not None:
            input_cost = float(price.input_price) if usage.input_cost is None else usage.input_cost
            output_cost = float(price.output_price) if usage.output_cost is None else usage.output_cost
            # The price of a search or of the request itself is neither input nor output.
            total = input_cost + output_cost + float(price.total_price - price.input_price - price.output_price)
            total = total if usage.total_cost is None else usage.total_cost
            return replace(usage, input_cost=input_cost, output_cost=output_cost, total_cost=total)
    return usage


def _price(usage: Usage, provider: str | None, model: str, context: Mapping[str, str]) -> PriceCalculation | None:
    calc_price, Counts = _prices()  # noqa: N806 a class
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    for counts in (all_counts(usage), token_counts(usage)):
        try:
            return calc_price(Counts(**counts), model, provider_id=provider, price_context=context)
        except LookupError:  # the model is not in the list
            return None
        except ValueError:  # impossible counts, or too few to tell text from the rest
            continue
    return None


def _prices() -> tuple[Callable[..., PriceCalculation], type]:
    try:
        from genai_prices import Usage as Counts
        from genai_prices import calc_price
    except ImportError as error:
        message = "cost() needs the package genai-prices: pip install 'rxllm[cost]'"
        raise EngineError("missing_dependency", message) from error
    return calc_price, Counts

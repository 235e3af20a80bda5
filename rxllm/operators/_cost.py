"""What a response costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._shared.fill_costs import costs_filled
from rxllm.operators._shared.price_counts import all_counts, price_context, token_counts
from rxllm.runtime import Stream, current_assembly
from rxllm.values import EngineError, Usage
from rxllm.values.arguments import check_function, invalid_option

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

_PROVIDERS = {"gemini": "google", "moonshot": "moonshotai", "openai-responses": "openai"}
"""The names of providers that genai-prices has other names for."""


def cost(
    model: str | None = None, *, price: Callable[[Usage], Usage] | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Fill in a response's costs, in dollars, from the list of genai-prices, where the provider has stated none.

    ::

        source   --start--H--usage--end--|
        cost()   --start--H--usage--(usage end)|        (the second with costs)

    >>> from rxllm import Fake, Usage, generate, operators as ops, stream_generate
    >>> answer = stream_generate(Fake(["Hi", Usage(1_000_000, 100_000)]), "Hello")
    >>> answer.pipe(cost("anthropic:claude-3-haiku-20240307"), ops.to_response()).run().usage.total_cost
    0.375
    >>> answer.pipe(cost("nobody:knows"), ops.to_response()).run().usage.total_cost is None
    True

    As an engine's operator, ``Engine(adapter, model, operators=[ops.cost()])``, it knows the provider and the model
    that are asked, and every result, total and budget has the costs. In a pipe say which: ``"provider:model"``; without
    one, what the response names as its model is looked for under any provider. The costs of a model that is not in the
    list stay None; those that a provider has stated stay as they are. Searches, sound, images, caches of an hour and
    the service tier that has answered have prices of their own. Behind ``ops.fallback`` the price is that of who has
    answered. It is an entry of ``rxllm.models``, not this list, that says what your own contract says.

    With `price`, the costs are what that function fills in, and genai-prices is not needed.

    The list is that of the installed genai-prices (https://github.com/pydantic/genai-prices); nothing is fetched.
    Raises ``EngineError("missing_dependency")`` without it, and ``ValidationError("invalid_option")`` for another
    `model` than ``"provider:model"``.
    """
    if model is not None and not all(str(model).partition(":")):
        raise invalid_option("model", f'must be "provider:model", not {model!r}')
    if price is not None:
        check_function("price", price)
        return costs_filled(lambda usage, _, __: price(usage))
    _prices()

    def operator(source: Observable[Event]) -> Stream[Event]:
        assembly = current_assembly.get()
        asked = model or (f"{assembly.provider}:{assembly.request.model or ''}" if assembly is not None else ":")

        def fill(usage: Usage, said: str | None, about: Mapping[str, Any]) -> Usage:
            provider, _, name = (_instead(about) or asked).partition(":")
            context = price_context(usage, about)
            return _priced(usage, _PROVIDERS.get(provider, provider) or None, filter(None, (said, name)), context)

        return costs_filled(fill)(source)

    return operator


def _instead(about: Mapping[str, Any]) -> str | None:
    """Who has answered in place of who was asked: ``ops.fallback`` says so."""
    match about:
        case {"fallback": {"answered_by": str(name)}}:
            return name if ":" in name else ":"  # a stream is of whatever provider
        case _:
            return None


def _priced(usage: Usage, provider: str | None, names: Iterable[str], context: Mapping[str, str]) -> Usage:
    for name in names:
        price = _price(usage, provider, name, context)
        if price is not None:
            asked = float(price.input_price) if usage.input_cost is None else usage.input_cost
            answered = float(price.output_price) if usage.output_cost is None else usage.output_cost
            # What a search or a request costs is neither input nor output.
            total = asked + answered + float(price.total_price - price.input_price - price.output_price)
            total = total if usage.total_cost is None else usage.total_cost
            return replace(usage, input_cost=asked, output_cost=answered, total_cost=total)
    return usage


def _price(usage: Usage, provider: str | None, model: str, context: Mapping[str, str]) -> PriceCalculation | None:
    calc_price, counts = _prices()
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    for counted in (all_counts(usage), token_counts(usage)):
        try:
            return calc_price(counts(**counted), model, provider_id=provider, price_context=context)
        except LookupError:  # a model that is not in the list
            return None
        except ValueError:  # counts that cannot be, or that are not enough to tell what is text and what is not
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

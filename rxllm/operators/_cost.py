"""Calculate what a response costs."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.models import price_list
from rxllm.operators._shared.costs import Prices
from rxllm.runtime import Stream
from rxllm.values import Usage
from rxllm.values.argument_checks import check, check_function


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
    stay None for models that are not in the list, and stated costs above 0 stay. Searches, sound, images, one-hour
    caches and service tiers have prices of their own, and so has each model that the provider asked for one answer
    (Anthropic's compactions, advisors and fallbacks). An agent's costs are those of its own engine, and are not filled
    in here, so that nothing is charged twice. The prices of your own contract belong in an entry of ``rxllm.models``,
    whose function ``priced`` calculates the costs of a usage without a stream.

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
    else:
        price_list()  # raises if it is not installed
    return Prices(model, price)

"""Calculate costs and count usage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from reactivex import Observable, abc

from rxllm import models
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    UsageUpdated,
)
from rxllm.models import price_context, price_list, with_price
from rxllm.operators._event_operators import handle_each
from rxllm.runtime import EngineCall, Stream, engine_call
from rxllm.values import EngineError, Spending, Usage
from rxllm.values.argument_checks import check, check_function, invalid_option, shown
from rxllm.values.requests import CHARACTERS_PER_TOKEN

Cost = Callable[[Usage, str | None, Mapping[str, Any]], Usage]
"""A function that takes a `Usage`, the model's name and the response's metadata, and returns the usage with costs."""

Price = Callable[[Usage], Usage]


def cost(model: str | None = None, *, price: Price | None = None) -> Callable[[Observable[Event]], Stream[Event]]:
    """Add costs in dollars to a response's usage.

    ::

        source   --start--H--usage--end---------|
        cost()   --start--H--usage--(usage,end)-|        (the second with costs)

    >>> from rxllm import Fake, Usage, generate, operators as ops, stream_generate
    >>> answer = stream_generate(Fake(["Hi", Usage(1_000_000, 100_000)]), "Hello")
    >>> answer.pipe(cost("anthropic:claude-3-haiku-20240307"), ops.to_response()).run().usage.total_cost
    0.375
    >>> answer.pipe(cost("nobody:knows"), ops.to_response()).run().usage.total_cost is None
    True

    In ``Engine(adapter, model, operators=[ops.cost()])``, prices depend on the call's provider and model. Results,
    totals and budgets then include the costs. After ``ops.fallback``, the price of the model that answered applies. In
    a pipe, pass ``"provider:model"``. Otherwise, the response's model name is looked up under every provider. Costs
    stay None for a model that is not in the genai-prices list. Non-zero costs reported by the provider are kept.

    Searches, audio, images, one-hour caches and service tiers have their own prices. If Anthropic uses other models for
    compactions, advisors or fallbacks, the price of each model applies to that model's tokens. An agent's costs are
    added by its own engine. If your contract has special prices, put them in an ``rxllm.models`` entry. To price a
    `Usage` without a stream, call ``rxllm.models.priced``.

    Or pass `price`, a function that adds costs to a `Usage`:

    >>> from dataclasses import replace
    >>> price = lambda usage: replace(usage, total_cost=usage.total * 0.001)
    >>> answer.pipe(cost(price=price), ops.to_response()).run().usage.total_cost
    1100.0

    The price list is in the genai-prices package (https://github.com/pydantic/genai-prices). Nothing is downloaded.

    Raises ``EngineError("missing_dependency")`` if the list is needed but not installed. Raises
    ``ValidationError("invalid_option")`` unless `model` is ``"provider:model"`` and `price` returns a `Usage`.
    """
    check("model", model, model is None or all(str(model).partition(":")), "None or 'provider:model'")
    if price is not None:
        check_function("price", price)
    else:
        price_list()  # raises if genai-prices is not installed
    return Prices(model, price)


class Prices:
    """Adds costs to a response's usage. The engine's budgets use the same prices."""

    def __init__(self, model: str | None = None, price: Price | None = None) -> None:
        self._model = model
        self._price = price

    def __call__(self, source: Observable[Event]) -> Stream[Event]:
        return fill_costs(self.cost(engine_call()))(source)

    def cost(self, call: EngineCall | None) -> Cost:
        """Return a function that prices the answer to `call`.

        The function raises ``EngineError`` if genai-prices is needed but not installed.
        """
        price = self._price
        if price is not None:
            return lambda usage, _, __: _check_usage(price(usage))
        requested = self._model or (f"{call.provider}:{call.request.model or ''}" if call is not None else ":")

        def cost(usage: Usage, response_model: str | None, metadata: Mapping[str, Any]) -> Usage:
            return with_price(
                usage, _answering_model(metadata) or requested, response_model, price_context(usage, metadata)
            )

        return cost


_NO_METADATA: Mapping[str, Any] = {}

_READ = frozenset({MessageStarted, UsageUpdated, StepRestarted, MessageCompleted, ErrorEvent})


def fill_costs(cost: Cost) -> Callable[[Observable[Event]], Stream[Event]]:
    """Return an operator that emits the final usage again, with costs.

    ::

        source         --start--usage--usage--end--|
        fill_costs     --start--usage--usage--(usage end)|
    """

    def make_handler(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        usage: Usage | None = None
        model: str | None = None

        def handle(event: Event) -> None:
            nonlocal usage, model
            if type(event) not in _READ:
                on_next(event)
                return
            match event:
                case MessageStarted(message=message):
                    model = message.metadata.get("model")
                case UsageUpdated():
                    usage = event.usage
                case StepRestarted():
                    usage = None
                case MessageCompleted() | ErrorEvent() if usage is not None:
                    metadata = event.metadata if isinstance(event, MessageCompleted) else _NO_METADATA
                    stated, usage = usage, None  # the next response has its own usage
                    try:
                        filled = cost(stated, model, metadata)
                    except Exception as error:
                        on_error(error)
                        return
                    if filled != stated:
                        on_next(UsageUpdated(filled))
                case _:
                    pass
            on_next(event)

        return handle

    return handle_each(make_handler)


def cost_of(call: EngineCall | None, price: Price | None = None, *, uses_list: bool) -> Cost:
    """Return a function that adds costs, using the first price that is known.

    Prices are looked up in this order: the model's catalogue entry, `price`, the engine's ``cost`` operators, the
    genai-prices list. The last two are used only if `uses_list` is True.
    """
    entry = None if call is None else models.find(call.provider, call.request.model)
    known = [Prices(price=function) for function in (entry and models.price_of(entry), price) if function is not None]
    if uses_list:
        operators = () if call is None else call.operators
        known += [*(operator for operator in operators if isinstance(operator, Prices)), Prices()]
    costs = [prices.cost(call) for prices in known]

    def cost(usage: Usage, response_model: str | None, metadata: Mapping[str, Any]) -> Usage:
        for fill in costs:
            if not usage.total_cost:  # A reported cost of 0 is replaced if a price is known.
                try:
                    usage = fill(usage, response_model, metadata)
                except EngineError:  # The price list is not installed.
                    break
        return usage

    return cost


def _check_usage(usage: Any) -> Usage:
    if not isinstance(usage, Usage):
        remedy = "write lambda usage: dataclasses.replace(usage, total_cost=...)"
        raise invalid_option("price", f"must return a Usage, not {shown(usage)}; {remedy}")
    return usage


def _answering_model(metadata: Mapping[str, Any]) -> str | None:
    match metadata:
        case {"fallback": {"answered_by": str(name)}}:
            return name if ":" in name else ":"  # a stream's name does not show its provider
        case _:
            return None


OUTPUT_TOKENS = 1_000
"""The number of tokens to reserve for an answer whose maximum length is unknown."""


class Estimate(msgspec.Struct, frozen=True):
    usage: Usage = Usage(0, 0, total_cost=0.0)
    cost: Cost | None = None
    limit: int | None = None


NOTHING = Estimate()


class ResponseCount:
    """The usage that one response has reported, plus an estimate of its usage since the last report."""

    def __init__(self, request: Estimate = NOTHING) -> None:
        self._request = request
        self._limit = math.inf if request.limit is None else request.limit
        self._void = Spending()  # what was spent before the last restart
        self._reset()

    def begin(self) -> None:
        """Count the request's tokens, unless they have already been counted."""
        if self._stated is None:
            self._known = self._void.tokens + (self._request.usage.input_tokens or 0)

    def _reset(self) -> None:
        self._stated: Usage | None = None
        self._model: str | None = None
        self._metadata: Mapping[str, Any] = {}
        self._known = self._void.tokens  # tokens that are not estimated from `characters`
        self.characters = 0
        """The number of characters received since the last usage report."""

    def see(self, event: object) -> None:
        match event:
            case TextDelta(delta=text) | ToolCallDelta(arguments_delta=text):
                self.characters += len(text)
            case ThinkingDelta(delta=text, estimated_tokens=tokens):
                self.characters += len(text) or (tokens or 0) * CHARACTERS_PER_TOKEN
            case MessageStarted(message=message):
                self._model = message.metadata.get("model")
                self.begin()
            case MessageCompleted(metadata=metadata):
                self._metadata = metadata
            case UsageUpdated(usage=usage):
                self._note(usage)
            case StepRestarted():
                self._void = self.spent
                self._reset()
            case _:
                pass

    def _note(self, usage: Usage) -> None:
        self._stated, self._known, self.characters = usage, self._void.tokens + usage.total, 0

    @property
    def tokens(self) -> int:
        return self._known + self._answer

    def characters_of(self, tokens: float) -> float:
        """Return the value of `characters` at which the estimated number of tokens reaches `tokens`."""
        return (tokens - self._known) * CHARACTERS_PER_TOKEN

    @property
    def _answer(self) -> int:
        tokens = -(-self.characters // CHARACTERS_PER_TOKEN)
        return tokens if tokens <= self._limit else int(self._limit)

    @property
    def usd(self) -> float | None:
        """The cost since the last restart, or None if it is unknown."""
        stated, cost = self._stated, self._request.cost
        if stated is not None and (stated.total_cost or cost is None):
            return stated.total_cost
        if cost is None:
            return None
        if stated is None:
            usage = Usage(self._known - self._void.tokens, self._answer)
        else:
            usage = replace(stated, output_tokens=(stated.output_tokens or 0) + self._answer)
        return cost(usage, self._model, self._metadata).total_cost

    @property
    def spent(self) -> Spending:
        void, usd = self._void, self.usd
        used = self.tokens - void.tokens
        costs = [cost for cost in (void.usd, usd) if cost is not None]
        return Spending(
            self.tokens,
            sum(costs) if costs else None,
            calls=1,
            estimated=void.estimated + (used if self._stated is None else self._answer),
            unpriced=int(void.unpriced > 0 or (usd is None and used > 0)),
        )

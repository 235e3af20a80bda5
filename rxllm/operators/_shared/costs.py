"""Add costs to the usage in a stream of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from reactivex import Observable, abc

from rxllm import models
from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted, RawChunk, StepRestarted, UsageUpdated
from rxllm.models import price_context, with_price
from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import EngineCall, Stream, engine_call
from rxllm.values import EngineError, Usage
from rxllm.values.argument_checks import invalid_option, shown

Cost = Callable[[Usage, str | None, Mapping[str, Any]], Usage]
"""Takes a response's usage, the provider's name for the model and the end's metadata; returns the usage with costs."""

_NO_METADATA: Mapping[str, Any] = {}

_READ = frozenset({MessageStarted, UsageUpdated, RawChunk, StepRestarted, MessageCompleted, ErrorEvent})


def fill_costs(cost: Cost) -> Callable[[Observable[Event]], Stream[Event]]:
    """Before a response's last event, emit its last usage once more with costs, if `cost` finds any.

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
                case RawChunk(kind="usage", data=Mapping()):
                    usage = raw_usage(event.data) or usage
                case StepRestarted():
                    usage = None
                case MessageCompleted() | ErrorEvent() if usage is not None:
                    metadata = event.metadata if isinstance(event, MessageCompleted) else _NO_METADATA
                    stated, usage = usage, None  # the next response has its own
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


def raw_usage(data: Any) -> Usage | None:
    """Return the usage in the data of a ``RawChunk("usage")``; None unless its keys are fields of `Usage`."""
    try:
        return Usage(**cast(Mapping[str, Any], data))
    except TypeError:  # unknown names: the fold raises a better error
        return None


Price = Callable[[Usage], Usage]


class Prices:
    """The operator ``cost``, whose prices the budgets of its engine take too."""

    def __init__(self, model: str | None = None, price: Price | None = None) -> None:
        self._model = model
        self._price = price

    def __call__(self, source: Observable[Event]) -> Stream[Event]:
        return fill_costs(self.cost(engine_call()))(source)

    def cost(self, call: EngineCall | None) -> Cost:
        """Return the costs of the answer to `call`. They raise ``EngineError`` if the price list is not installed."""
        price = self._price
        if price is not None:
            return lambda usage, _, __: _checked(price(usage))
        requested = self._model or (f"{call.provider}:{call.request.model or ''}" if call is not None else ":")

        def cost(usage: Usage, response_model: str | None, metadata: Mapping[str, Any]) -> Usage:
            return with_price(usage, _fallback(metadata) or requested, response_model, price_context(usage, metadata))

        return cost


def cost_of(call: EngineCall | None, price: Price | None = None, *, uses_list: bool) -> Cost:
    """Return the costs of the answer to `call`, from the first that knows them.

    These are its catalogue entry, `price`, the operators ``cost`` of its engine, and the price list, if `uses_list`.
    """
    entry = None if call is None else models.find(call.provider, call.request.model)
    known = [Prices(price=function) for function in (entry and models.price_of(entry), price) if function is not None]
    if uses_list:
        operators = () if call is None else call.operators
        known += [*(operator for operator in operators if isinstance(operator, Prices)), Prices()]
    costs = [prices.cost(call) for prices in known]

    def cost(usage: Usage, response_model: str | None, metadata: Mapping[str, Any]) -> Usage:
        for fill in costs:
            if not usage.total_cost:  # a stated cost of 0 next to a price is no statement
                try:
                    usage = fill(usage, response_model, metadata)
                except EngineError:  # the price list is not installed
                    break
        return usage

    return cost


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

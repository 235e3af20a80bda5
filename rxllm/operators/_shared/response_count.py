"""Count what a response uses while it comes, and estimate what a request may use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from rxllm import models
from rxllm.events import (
    MessageCompleted,
    MessageStarted,
    RawChunk,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    UsageUpdated,
)
from rxllm.operators._shared.costs import Cost, cost_of, raw_usage
from rxllm.runtime import Budget, EngineCall
from rxllm.values import Response, Spending, Usage, estimated_tokens

CHARACTERS_PER_TOKEN = 4

OUTPUT_TOKENS = 1_000
"""What is reserved for an answer if neither the request nor the catalogue limits it."""


class Estimate(msgspec.Struct, frozen=True):
    """What a request may use: `usage`, with its cost if the price is known; its answer has a `limit`."""

    usage: Usage = Usage(0, 0, total_cost=0.0)
    cost: Cost | None = None
    limit: int | None = None


NOTHING = Estimate()


def estimate(call: EngineCall, budget: Budget) -> Estimate:
    """Return what the request of `call` may use of `budget`."""
    if not budget.reserves and budget.usd is None:
        return NOTHING
    request, model = call.request, models.find(call.provider, call.request.model)
    limit = None if model is None else model.max_output_tokens
    usage = Usage(estimated_tokens(request), request.max_tokens or limit or OUTPUT_TOKENS)
    cost = cost_of(call, budget.price, uses_list=budget.usd is not None)
    return Estimate(cost(usage, None, request.options), cost, request.max_tokens)


def estimate_unasked(budget: Budget) -> Estimate:
    """Return the estimate of a response that no engine of this process has asked for."""
    return Estimate(cost=cost_of(None, budget.price, uses_list=budget.usd is not None))


def spending_of(call: EngineCall, budget: Budget, response: Response[Any]) -> Spending:
    """Return what `response`, the answer to `call`, has used of `budget`."""
    usage, model = response.usage, response.message and response.message.metadata.get("model")
    estimated = 0
    if not usage.total:  # as while it arrived
        usage = Usage(estimated_tokens(call.request), -(-len(response.output_text) // CHARACTERS_PER_TOKEN))
        estimated = usage.total
    cost = cost_of(call, budget.price, uses_list=budget.usd is not None)
    usd = cost(usage, model, response.metadata).total_cost
    return Spending(usage.total, usd, calls=1, estimated=estimated, unpriced=int(usd is None))


class ResponseCount:
    """What one response has used so far: as its provider states, and an estimate of what came after that."""

    def __init__(self, request: Estimate = NOTHING) -> None:
        self._request = request
        self._limit = math.inf if request.limit is None else request.limit
        self._void = Spending()  # spent before a restart
        self._reset()

    def begin(self) -> None:
        """Count the request: the answer has begun, or was left before it did, and the provider works on it."""
        if self._stated is None:
            self._known = self._void.tokens + (self._request.usage.input_tokens or 0)

    def _reset(self) -> None:
        self._stated: Usage | None = None
        self._model: str | None = None
        self._metadata: Mapping[str, Any] = {}
        self._known = self._void.tokens  # all tokens but those of `characters`
        self.characters = 0
        """Those of the answer that came after the provider's last usage."""

    def see(self, event: object) -> None:
        match event:
            case TextDelta(delta=text) | ThinkingDelta(delta=text) | ToolCallDelta(arguments_delta=text):
                self.characters += len(text)
            case MessageStarted(message=message):
                self._model = message.metadata.get("model")
                self.begin()
            case MessageCompleted(metadata=metadata):
                self._metadata = metadata
            case UsageUpdated(usage=usage):
                self._state(usage)
            case RawChunk(kind="usage", data=data) if (usage := raw_usage(data)) is not None:
                self._state(usage)
            case StepRestarted():
                self._void = self.spent
                self._reset()
            case _:
                pass

    def _state(self, usage: Usage) -> None:
        self._stated, self._known, self.characters = usage, self._void.tokens + usage.total, 0

    @property
    def tokens(self) -> int:
        return self._known + self._answer

    def characters_of(self, tokens: float) -> float:
        """Return how many characters since the last usage make so many tokens."""
        return (tokens - self._known) * CHARACTERS_PER_TOKEN

    @property
    def _answer(self) -> int:
        """The tokens of the answer that nobody has stated."""
        tokens = -(-self.characters // CHARACTERS_PER_TOKEN)
        return tokens if tokens <= self._limit else int(self._limit)

    @property
    def usd(self) -> float | None:
        """The cost since the last restart, None if it is not known."""
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

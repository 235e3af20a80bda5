"""Count what a response uses while it comes, and estimate what a request may use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import msgspec

from rxllm.events import (
    MessageStarted,
    RawChunk,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    UsageUpdated,
)
from rxllm.operators._shared.costs import raw_usage
from rxllm.runtime import EngineCall, models
from rxllm.values import Spending, Usage, estimated_tokens

CHARACTERS_PER_TOKEN = 4

OUTPUT_TOKENS = 1_000
"""What is reserved for an answer if neither the request nor the catalogue limits it."""


class Estimate(msgspec.Struct, frozen=True):
    """What a request may use: `usage`, with its cost if the catalogue has the `price`; its answer has a `limit`."""

    usage: Usage = Usage(0, 0, total_cost=0.0)
    price: Callable[[Usage], Usage] | None = None
    limit: int | None = None


NOTHING = Estimate()


def estimate(call: EngineCall) -> Estimate:
    """Return what the request of `call` may use."""
    request, model = call.request, models.find(call.provider, call.request.model)
    limit = None if model is None else model.max_output_tokens
    usage = Usage(estimated_tokens(request), request.max_tokens or limit or OUTPUT_TOKENS)
    if model is None or not model.has_prices:
        return Estimate(usage, None, request.max_tokens)
    return Estimate(model.priced(usage), model.priced, request.max_tokens)


class ResponseCount:
    """What one response has used so far: as its provider states, and an estimate of what came after that."""

    def __init__(self, request: Estimate = NOTHING) -> None:
        self._request = request
        self._limit = math.inf if request.limit is None else request.limit
        self._void = Spending()  # spent before a restart
        self._reset()

    def begin(self) -> None:
        """Count the request: the answer has begun, or nobody waits for it any more, and the provider works on it."""
        if self._stated is None:
            self._known = self._void.tokens + (self._request.usage.input_tokens or 0)

    def _reset(self) -> None:
        self._stated: Usage | None = None
        self._known = self._void.tokens  # all tokens but those of `characters`
        self.characters = 0
        """Those of the answer that came after the provider's last usage."""

    def see(self, event: object) -> None:
        match event:
            case TextDelta(delta=text) | ThinkingDelta(delta=text) | ToolCallDelta(arguments_delta=text):
                self.characters += len(text)
            case MessageStarted():
                self.begin()
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
        """The cost since the last restart, None if nobody knows it."""
        stated, price = self._stated, self._request.price
        if stated is not None and stated.total_cost is not None:
            return stated.total_cost
        if price is None:
            return None
        if stated is None:
            return price(Usage(self._known - self._void.tokens, self._answer)).total_cost
        return price(replace(stated, output_tokens=(stated.output_tokens or 0) + self._answer)).total_cost

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

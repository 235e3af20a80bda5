"""Count what a response uses while it comes, and estimate what a request may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from rxllm.events import (
    Event,
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
from rxllm.values import Message, Spending, ThinkingPart, Usage

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
    usage = Usage(tokens_of(sum(map(_length, request.messages))), request.max_tokens or limit or OUTPUT_TOKENS)
    if model is None or not model.has_prices:
        return Estimate(usage, None, request.max_tokens)
    return Estimate(model.priced(usage), model.priced, request.max_tokens)


def tokens_of(characters: int) -> int:
    """Return about how many tokens so many characters are.

    >>> tokens_of(0), tokens_of(1), tokens_of(9)
    (0, 1, 3)
    """
    return -(-characters // CHARACTERS_PER_TOKEN)


def _length(message: Message) -> int:
    content = message.content
    if isinstance(content, dict):
        return len(str(content))
    thinking = sum(len(part.text) for part in message.parts if isinstance(part, ThinkingPart))
    return len(message.text) + thinking + sum(len(call.raw_arguments or "{}") for call in message.tool_calls)


class ResponseCount:
    """What one response has used so far: as its provider states, and an estimate of what came after that."""

    def __init__(self, request: Estimate = NOTHING) -> None:
        self._request = request
        self._void = Spending()  # spent before a restart
        self._begin()

    def _begin(self) -> None:
        self._stated: Usage | None = None
        self._characters = 0  # of the answer, since the provider's last usage
        self._has_begun = False

    def see(self, event: Event) -> None:
        match event:
            case TextDelta(delta=text) | ThinkingDelta(delta=text) | ToolCallDelta(arguments_delta=text):
                self._characters += len(text)
                self._has_begun = True
            case MessageStarted():
                self._has_begun = True
            case UsageUpdated(usage=usage):
                self._stated, self._characters = usage, 0
            case RawChunk(kind="usage", data=data) if (usage := raw_usage(data)) is not None:
                self._stated, self._characters = usage, 0
            case StepRestarted():
                self._void = self.spent
                self._begin()
            case _:
                pass

    @property
    def tokens(self) -> int:
        return self._void.tokens + self._since_restart

    @property
    def _since_restart(self) -> int:
        return self._answer + (self._input if self._stated is None else self._stated.total)

    @property
    def _answer(self) -> int:
        """The tokens of the answer that nobody has stated."""
        tokens, limit = tokens_of(self._characters), self._request.limit
        return tokens if limit is None else min(tokens, limit)

    @property
    def _input(self) -> int:
        return (self._request.usage.input_tokens or 0) if self._has_begun else 0

    @property
    def usd(self) -> float | None:
        """The cost since the last restart, None if nobody knows it."""
        stated, price = self._stated, self._request.price
        if stated is not None and stated.total_cost is not None:
            return stated.total_cost
        if price is None:
            return None
        if stated is None:
            return price(Usage(self._input, self._answer)).total_cost
        return price(replace(stated, output_tokens=(stated.output_tokens or 0) + self._answer)).total_cost

    @property
    def spent(self) -> Spending:
        void, usd = self._void, self.usd
        estimated = self._since_restart if self._stated is None else self._answer
        is_unpriced = void.unpriced or (usd is None and self._since_restart > 0)
        known = [cost for cost in (void.usd, usd) if cost is not None]
        return Spending(
            self.tokens,
            sum(known) if known else None,
            calls=1,
            estimated=void.estimated + estimated,
            unpriced=int(is_unpriced),
        )

"""Limits on the tokens and dollars that a group of calls may use.

A model source is a stream that makes a model call. A call can be counted by several budgets, but only once by each.

==============================  ===============================  =======================================================
where the budget is             where the model source finds it  what counts the call
==============================  ===============================  =======================================================
in an engine's operators        in its engine; see               The model source applies ``ops.budget`` for each
                                ``Scope.under``                  budget.
in a pipe, after a stream       in ``Scope.shares``, to which    The model source counts it. ``ops.budget`` itself
                                ``ops.budget`` adds a `Share`    counts the events if there is no model source, or if
                                                                 ``ops.budget`` was given only a token limit.
in a pipe after a batch, or     in its engine or in              The model source counts it.
in the operators of a batch's   ``Scope.shares``                 ``Budget.count_journaled`` counts answers from the
engine                                                           journal.
around a chat in which a tool   in ``Scope.shares``, which the   The model source of the agent's engine counts it.
runs an agent                   tool sets
around a ``fallback`` that      in ``Scope.shares``              The model source of that engine counts it.
calls another engine
around an adapter that calls    in ``Scope.shares`` and          Only the model source that uses the adapter counts it.
an engine                       ``Scope.counted``
==============================  ===============================  =======================================================

If ``ops.budget`` is not given a shared `Budget`, it creates a `ChatBudget` for each chat. ``Scope.chat`` keeps it
between steps.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal, NoReturn

import msgspec

from rxllm.values import Spending, StreamError, Usage, ValidationError
from rxllm.values.advice import explains_options
from rxllm.values.argument_checks import (
    check,
    check_count,
    check_function,
    check_instance,
    invalid_option,
    is_positive,
    shown,
)

AHEAD = 32
"""The maximum number of unreserved answer tokens that may arrive between two checks of the budget."""


class Budget:
    """A limit on the tokens or dollars that a group of calls may use.

    ``ops.budget(shared)`` applies the budget to calls from any engine, chat, loop or thread. Before a request is sent,
    the maximum that the request could use is reserved. If less than this maximum is left, the request is not sent.
    After the call, the reservation is replaced by what the call actually used.

    If there is a dollar limit, a request whose price is unknown is not sent. To supply missing prices, pass
    ``price(usage)``, as in ``ops.cost``. To send such requests anyway, pass ``unpriced="allow"``. ``ops.budget``
    documents the exact rules.

    >>> from rxllm import Engine, Fake, Usage, generate, operators as ops
    >>> shared = Budget(tokens=5_000)
    >>> engine = Engine(Fake(["Hi", Usage(10, 2)]), operators=[ops.budget(shared)])
    >>> generate(engine, "Hello", max_tokens=100).run().output_text
    'Hi'
    >>> shared.spent
    Spending(tokens=12, calls=1, unpriced=1)
    >>> generate(engine, "Hello", max_tokens=5_000).run()
    Traceback (most recent call last):
        ...
    rxllm.StreamError: the budget has 4988 of 5000 tokens left, and this request may use 5006, so the \
request was not sent; raise the budget, or pass a smaller max_tokens

    `spent` can be stored as JSON. After a restart, continue with ``Budget(tokens=5_000, spent=spending)``. Any amounts
    that were still reserved at the restart count as spent. Copying a Budget returns the same Budget. Pickling one
    raises ``TypeError``.

    Raises ``ValidationError("invalid_option")`` if no limit is given, or if a limit is not a positive number.
    """

    reserves = True
    """Whether requests reserve tokens. They always reserve dollars."""

    @explains_options("Budget(...)")
    def __init__(
        self,
        tokens: int | None = None,
        usd: float | None = None,
        *,
        price: Callable[[Usage], Usage] | None = None,
        unpriced: Literal["refuse", "allow"] = "refuse",
        spent: Spending | None = None,
    ) -> None:
        if tokens is None and usd is None:
            fault = "is required if usd is None; pass one of them, or both"
            raise invalid_option("tokens", fault)
        if tokens is not None:
            check_count("tokens", tokens)
        check("usd", usd, usd is None or is_positive(usd), "a positive number or None")
        if price is not None:
            check_function("price", price)
        check("unpriced", unpriced, unpriced in ("refuse", "allow"), "'refuse' or 'allow'")
        self.price = price
        self.allows_unpriced = usd is None or unpriced == "allow"
        check_instance("spent", spent, Spending | None, "a Spending, such as another Budget's `spent`")
        self._tokens = tokens
        self._usd = usd
        self._lock = threading.RLock()
        self._settled = Spending() if spent is None else _with_reserved(spent)
        self._running: dict[Reservation, None] = {}
        self._journaled: set[Hashable] = set()

    @property
    def tokens(self) -> int | None:
        return self._tokens

    @property
    def usd(self) -> float | None:
        return self._usd

    @property
    def spent(self) -> Spending:
        """The amounts that have been used or reserved so far."""
        with self._lock:
            tokens = self._committed() - self._settled.tokens
            return replace(self._settled, reserved=tokens, reserved_usd=self._reserved_usd())

    def reserve(self, tokens: int, usd: float | None) -> Reservation:
        """Reserve `tokens` and `usd` for a call.

        Raises ``StreamError("budget_exceeded")`` if not enough of the budget is left.
        """
        tokens = tokens if self.reserves else 0
        with self._lock:
            if self._tokens is not None and (used := self._committed()) + tokens > self._tokens:
                raise _refusal("tokens", self._tokens, used, tokens)
            # If the price is unknown, allow the call as long as any of the dollar budget is left.
            if self._usd is not None:
                spent = self._committed_usd()
                if spent >= self._usd if usd is None else spent + usd > self._usd:
                    raise _refusal("usd", self._usd, spent, usd)
            return self.begin(tokens, usd or 0.0)

    @property
    def is_passed(self) -> bool:
        """Whether the calls have used or reserved more than a limit allows."""
        with self._lock:
            usd = self._usd is not None and self._committed_usd() > self._usd
            return usd or (self._tokens is not None and self._committed() > self._tokens)

    def catch_up(self, usage: Usage) -> None:
        """Raise each spent amount to the corresponding amount in `usage`, if that is higher."""
        with self._lock:
            if usage.total > self._settled.tokens:
                self._settled = replace(self._settled, tokens=usage.total)
            if (usage.total_cost or 0.0) > (self._settled.usd or 0.0):
                self._settled = replace(self._settled, usd=usage.total_cost)

    def count_journaled(self, key: Hashable, spent: Callable[[], Spending] | None = None) -> None:
        """Count the answer stored in the journal under `key`, unless it has already been counted.

        If `spent` is None, the answer is only marked as counted.
        """
        with self._lock:
            if key not in self._journaled and spent is not None:
                self._settled = _sum(self._settled, spent())
            self._journaled.add(key)

    def begin(self, tokens: int = 0, usd: float = 0.0) -> Reservation:
        """Reserve the amounts without checking the limits."""
        with self._lock:
            reservation = Reservation(self, tokens, usd)
            self._running[reservation] = None
            return reservation

    def grow(self, reservation: Reservation, tokens: int, usd: float | None) -> bool:
        """Increase a reservation, and return whether the budget is still sufficient."""
        with self._lock:
            if reservation in self._running:
                reservation.tokens = max(reservation.tokens, tokens)
                reservation.usd = max(reservation.usd, usd or 0.0)
            has_tokens = self._tokens is None or self._committed() <= self._tokens
            return has_tokens and (self._usd is None or usd is None or self._committed_usd() <= self._usd)

    def slack(self) -> float:
        """Return how many tokens may arrive before `grow` must be called again."""
        if self.reserves and self._usd is None:
            return 0
        with self._lock:
            return AHEAD if self._tokens is None else min(AHEAD, self._tokens - self._committed())

    def settle(self, reservation: Reservation, used: Spending) -> Spending:
        """Replace a reservation with the amounts that were `used`. If it has already been settled, do nothing."""
        with self._lock:
            if self._running.pop(reservation, reservation) is None:
                self._settled = _sum(self._settled, used)
            return self._settled

    def _committed(self) -> int:
        return self._settled.tokens + sum([entry.tokens for entry in self._running])

    def _committed_usd(self) -> float:
        return (self._settled.usd or 0.0) + self._reserved_usd()

    def _reserved_usd(self) -> float:
        # A running total of floats might not return to exactly 0.
        return math.fsum(entry.usd for entry in self._running)

    def __repr__(self) -> str:
        limits = {"tokens": self._tokens, "usd": self._usd, "spent": self.spent}
        return f"Budget({', '.join(f'{name}={item!r}' for name, item in limits.items() if item is not None)})"

    def __copy__(self) -> Budget:
        return self  # a copied engine shares its budget

    def __deepcopy__(self, memo: object) -> Budget:
        return self

    def __reduce__(self) -> NoReturn:
        message = (
            "a Budget cannot be pickled, because calls share it; "
            "send its limits and budget.spent, and create a Budget(..., spent=spending) in the other process"
        )
        raise TypeError(message)


class ChatBudget(Budget):
    """The budget of one chat or stream. It does not reserve tokens."""

    reserves = False


class Reservation(msgspec.Struct, eq=False):
    """The amounts that a budget reserves for one call."""

    budget: Budget
    tokens: int
    usd: float


class Share(msgspec.Struct, eq=False):
    """A budget that model sources apply to their calls."""

    budget: Budget
    is_taken: bool = False


class HoldsBudget:
    """Base class for operators that apply a budget."""

    def budget_of(self, chat: dict[Any, Budget]) -> Budget:
        """Return the shared budget or, if there is none, this operator's budget for the chat.

        `chat` maps operators to their budgets for the chat. If there is no shared budget, and this operator has no
        budget in `chat` yet, a new budget is created and added to `chat`.
        """
        raise NotImplementedError

    def spending(self, call: Any, response: Any) -> Spending:
        """Return the tokens and dollars that `response` used."""
        raise NotImplementedError


def _with_reserved(spent: Spending) -> Spending:
    """Count the reserved amounts as spent, because the provider may charge for them."""
    running = Spending(spent.reserved, spent.reserved_usd or None, estimated=spent.reserved)
    return _sum(replace(spent, reserved=0, reserved_usd=0.0), running)


def _sum(a: Spending, b: Spending) -> Spending:
    usd = a.usd if b.usd is None else b.usd if a.usd is None else a.usd + b.usd
    tokens, calls = a.tokens + b.tokens, a.calls + b.calls
    return Spending(tokens, usd, calls, a.estimated + b.estimated, a.unpriced + b.unpriced)


def _refusal(name: str, limit: float, used: float, needed: float | None) -> StreamError:
    unit = "dollars" if name == "usd" else name
    remaining = max(limit - used, 0)
    needs = f", and this request may use {needed:.10g}" if needed else ""
    remedy = "raise the budget, or pass a smaller max_tokens" if needed else "raise the budget"
    message = (
        f"the budget has {remaining:.10g} of {limit:.10g} {unit} left{needs}, so the request was not sent; {remedy}"
    )
    return StreamError("budget_exceeded", message, metadata={"limit": name, "left": remaining, "needed": needed})


def unpriced_call(name: str, outcome: str = "the request was not sent") -> ValidationError:
    fault = f"is a dollar limit, but the price of {shown(name)} is unknown, so {outcome}"
    remedy = 'pass price=lambda usage: dataclasses.replace(usage, total_cost=...) or unpriced="allow" to a Budget'
    package = "" if find_spec("genai_prices") else "; pip install 'rxllm[cost]' installs a price list"
    return invalid_option("usd", f"{fault}; {remedy}{package}")


def budget_passed(budget: Budget) -> StreamError:
    limits = {"tokens": budget.tokens, "dollars": budget.usd}
    amounts = " or ".join(f"{limit:.10g} {unit}" for unit, limit in limits.items() if limit is not None)
    message = f"the stream has exceeded its budget of {amounts} and was cut off; raise the budget"
    return StreamError("budget_exceeded", message)

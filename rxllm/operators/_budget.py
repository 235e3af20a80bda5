"""Limit what a response, a chat, or all calls that share a budget may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, overload

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxllm.events import Event
from rxllm.operators._shared.budget_meter import Meter
from rxllm.operators._shared.operate import operate
from rxllm.operators._shared.response_count import NOTHING, estimate
from rxllm.runtime import (
    Budget,
    ChatBudget,
    EngineCall,
    HoldsBudget,
    Share,
    Stream,
    current_engine_call,
    current_scope,
    scoped,
)
from rxllm.values import StreamError
from rxllm.values.argument_checks import invalid_option


@overload
def budget(shared: Budget, /) -> Callable[[Observable[Event]], Stream[Event]]: ...
@overload
def budget(tokens: int | None = None, usd: float | None = None) -> Callable[[Observable[Event]], Stream[Event]]: ...
def budget(
    tokens: int | Budget | None = None, usd: float | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Halt a chat before its next step once it has used so many tokens or dollars; cut a response over the tokens.

    ::

        source              --start--H--e--l--l--o--!--usage--end--|
        budget(tokens=1)    --start--H--e--l--l--(o,Hello,end)|         (finish reason length, metadata budget)

    >>> from rxllm import Engine, Fake, chat
    >>> engine = Engine(Fake(["Once ", "upon ", "a ", "time"]), operators=[budget(tokens=2)])
    >>> result = chat(engine, "A story?").run()
    >>> result.halted_reason, result.final_response.output_text, result.final_response.metadata["budget"]
    ('budget', 'Once upon ', {'tokens': 2, 'tokens_spent': 3})

    It counts over the steps of each chat, both as an engine's operator and in a pipe after ``stream``; after
    ``stream_generate``, over the response. The provider's usage counts; until it arrives, four characters of the answer
    are taken for a token. Events that an ``ops.restart`` before it makes void count too.

    Over the tokens inside a response, the source is disposed, which closes its connection, open blocks are completed,
    and ``MessageCompleted`` has the finish reason ``length``. A response that ends by itself stays as it is; if it
    calls tools, they run, and then the chat halts with the ``halted_reason`` ``"budget"``. The metadata ``"budget"``
    of ``MessageCompleted``, and so of the response, holds the limits and what was spent.

    Dollars are ``Usage.total_cost``, known when a response ends: put ``ops.cost()`` before, unless the provider or
    ``rxllm.models`` states them. An unknown cost breaks no limit: ``usd_spent`` is None, and a warning is logged.

    With a shared `Budget` in place of `tokens`, all calls that share it count, in any engine, chat and thread::

        shared = rxllm.Budget(tokens=50_000, usd=2.0)
        engine = Engine("openai:gpt-5", operators=[ops.cost(), ops.budget(shared)])

    ======================  ============================================================================================
    before a request        it reserves its messages and tools, as ``rxllm.count_tokens`` estimates them, and its
                            `max_tokens`; without those, the `max_output_tokens` of its entry in ``rxllm.models``, or
                            else 1,000 tokens; and their price, if that entry has one
    if more is reserved     the request is not sent, but fails with ``StreamError("budget_exceeded")``; a chat that has
    and spent than allowed  had a step halts with the `halted_reason` ``"budget"``
    while the answer comes  what exceeds the reservation is reserved too; if it is not left, the answer is cut
    at its end              the usage that the provider states counts; for what it has not stated, when a call breaks
                            off or is left early, say, the estimate (``shared.spent.estimated``): of the request, and
                            of the answer so far. Left before its first event, a call counts its request, which the
                            provider may bill; a call that fails before its first event counts no tokens
    a price nobody knows    reserves and counts nothing; ``shared.spent.unpriced`` is the number of those calls
    ======================  ============================================================================================

    So calls at the same time pass the budget only by what their providers state beyond these estimates, and by one
    delta for each.

    Calls that the tools of an engine make keep to its budgets as well, at any depth, shared or not. In a pipe, a shared
    Budget holds for all model calls of the stream, and a budget of its own counts the events, those of agents
    (``Nested``) included: one that is passed inside an agent ends the stream with an ``ErrorEvent``.

    A call counts once in each Budget. Where operators ask again or elsewhere (``hedge``, ``fallback``, ``restart``,
    ``retry_before_content``), the budget after them in the list counts the answer that passes; before them, it reserves
    and counts every attempt, with what the losers have said until they are cancelled. The engine's own retries belong
    to one call.

    Raises ``ValidationError("invalid_option")`` without a limit, and for a limit that is not a number above 0.
    """
    if isinstance(tokens, Budget):
        if usd is not None:
            raise invalid_option("usd", "must be left out: a shared Budget has its own limits")
        return _Operator(tokens, lambda: tokens)
    make = partial(ChatBudget, tokens, usd)
    make()  # the limits are checked here
    return _Operator(None, make)


class _Operator(HoldsBudget):
    """The operator; an engine with it holds its own calls, and those of their tools, to the budget."""

    def __init__(self, shared: Budget | None, make: Callable[[], Budget]) -> None:
        self._shared = shared
        self._make = make

    def __call__(self, source: Observable[Event]) -> Stream[Event]:
        call = current_engine_call.get()
        if call is not None:
            budget = self.budget_of(call.chat)
            if not budget.reserves:
                budget.catch_up(call.before)  # other engines may have answered
            return operate(partial(_of_call, budget, call))(source)
        if self._shared is not None:
            return operate(partial(_of_pipe, self._shared))(source)
        return operate(partial(_of_stream, self._make))(source)

    @property
    def is_shared(self) -> bool:
        """Whether its calls share a `Budget`, which cannot be copied."""
        return self._shared is not None

    def budget_of(self, chat: dict[Any, Budget]) -> Budget:
        """Return the shared budget, or that of the chat whose budgets are in `chat`."""
        return self._shared or chat.setdefault(self, self._make())


def _of_call(
    budget: Budget,
    call: EngineCall,
    source: Observable[Event],
    observer: abc.ObserverBase[Event],
    scheduler: abc.SchedulerBase | None,
) -> abc.DisposableBase:
    scope = current_scope.get()
    if budget in scope.counted:
        return source.subscribe(observer, scheduler=scheduler)
    meter = Meter(observer, lambda: budget)
    try:
        meter.reserve(estimate(call) if budget.reserves else NOTHING)
    except StreamError as error:
        observer.on_error(error)
        return Disposable()
    return meter.start(source, scheduler, replace(scope, counted=(*scope.counted, budget)))


def _of_pipe(
    budget: Budget, source: Observable[Event], observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
) -> abc.DisposableBase:
    """Hand the budget down to the model calls below; if there are none, count the events."""
    scope = current_scope.get()
    share = Share(budget)
    below = scoped(source, replace(scope, shares=(*scope.shares, share)))  # the subscriber's own calls are not part
    return Meter(observer, lambda: budget, share).start(below, scheduler, scope)


def _of_stream(
    make: Callable[[], Budget],
    source: Observable[Event],
    observer: abc.ObserverBase[Event],
    scheduler: abc.SchedulerBase | None,
) -> abc.DisposableBase:
    return Meter(observer, make).start(source, scheduler, current_scope.get())

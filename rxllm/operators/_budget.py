"""Limit the tokens and dollars that model calls may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import msgspec
from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SingleAssignmentDisposable

from rxllm import models
from rxllm.collector import DELTAS, StreamCollector, Unfinished, fold_message, is_unfinished
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    RawChunk,
    StepCompleted,
    StepRestarted,
    UsageUpdated,
)
from rxllm.operators._cost import NOTHING, OUTPUT_TOKENS, Cost, Estimate, ResponseCount, cost_of
from rxllm.operators._event_operators import operate
from rxllm.runtime import (
    Budget,
    ChatBudget,
    EngineCall,
    HoldsBudget,
    Reservation,
    Scope,
    Share,
    Stream,
    budget_passed,
    conclude,
    current_engine_call,
    current_scope,
    scoped,
    unpriced_call,
    within,
)
from rxllm.values import Response, Spending, Usage, estimated_tokens, estimated_usage
from rxllm.values.argument_checks import invalid_option


@overload
def budget(shared: Budget, /) -> Callable[[Observable[Event]], Stream[Event]]: ...
@overload
def budget(
    tokens: int | None = None,
    usd: float | None = None,
    *,
    price: Callable[[Usage], Usage] | None = None,
    unpriced: Literal["refuse", "allow"] = "refuse",
) -> Callable[[Observable[Event]], Stream[Event]]: ...
def budget(
    tokens: int | Budget | None = None,
    usd: float | None = None,
    *,
    price: Callable[[Usage], Usage] | None = None,
    unpriced: Literal["refuse", "allow"] = "refuse",
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Limit the tokens and dollars that a chat or response may use.

    ::

        source              --start--H--e--l--l--o--!--usage--end--|
        budget(tokens=1)    --start--H--e--l--l--(o,Hello,end)|         (finish reason length, metadata budget)

    >>> from rxllm import Engine, Fake, chat
    >>> engine = Engine(Fake(["Once ", "upon ", "a ", "time"]), operators=[budget(tokens=2)])
    >>> result = chat(engine, "A story?").run()
    >>> result.halted_reason, result.final_response.output_text, result.final_response.metadata["budget"]
    ('budget', 'Once upon ', {'tokens': 2, 'tokens_spent': 3})

    The limit applies to all steps of a chat together. After ``stream_generate``, it applies to one response. Until the
    provider reports usage, four characters count as one token. Answers discarded by an upstream ``ops.restart`` still
    count.

    A response that exceeds the token limit is cut off, and its connection is closed. Open blocks are completed, and
    the finish reason is ``length``. A complete response that turns out to be over the limit is left unchanged. Its
    tools still run. The chat then halts with the `halted_reason` ``"budget"``. The response's ``"budget"`` metadata
    contains the limits and the amounts spent.

    A dollar limit needs prices, but not ``ops.cost()``. Prices are looked up in this order: the model's entry in
    ``rxllm.models``, `price`, the engine's ``ops.cost``, the genai-prices list. A request without a known price fails
    with a ``ValidationError`` and is not sent. With ``unpriced="allow"``, such a request is sent if any budget is left.
    Its cost then counts only if reported by the provider.

    A shared `Budget` limits all calls that use it, in any engine, chat or thread::

        shared = rxllm.Budget(tokens=50_000, usd=2.0)
        engine = Engine("openai:gpt-5", operators=[ops.budget(shared)])

    ======================  ============================================================================================
    before a request        The request reserves tokens for its messages and tools, as estimated by
                            ``rxllm.count_tokens``, and for the answer: the request's `max_tokens`, or else the model's
                            `max_output_tokens` in ``rxllm.models``, or else 1,000. It also reserves the tokens' cost.
    if too little is left   The request fails with ``StreamError("budget_exceeded")`` and is not sent. A chat that
                            has already completed a step halts with the `halted_reason` ``"budget"``.
    during the answer       Tokens beyond the reservation are reserved as they arrive. If the budget has none left, the
                            answer is cut off.
    after the answer        The usage that the provider reported is counted. If it reported none, the usage is
                            estimated from the request and the answer so far, and also added to
                            ``shared.spent.estimated``. If a call is cancelled before its first event, its request
                            counts, because the provider may bill it. If a call fails before its first event, nothing
                            counts.
    without a known price   The request is sent only if there is no dollar limit, or with ``unpriced="allow"``. It
                            reserves and counts no dollars. ``shared.spent.unpriced`` is the number of such calls.
    ======================  ============================================================================================

    To stay within the limit, set `max_tokens` on every request. A call can still exceed the limit if its input is
    larger than estimated. Without `max_tokens`, each call can exceed the limit by 32 tokens or one delta of text,
    whichever is more. Hidden thinking of more than 1,000 tokens can also push a call over the limit. Searches and other
    tools billed per use are only counted at the end.

    In an engine, the budget applies to all calls, wherever the operator is in the engine's list. Each attempt by
    ``hedge``, ``fallback``, ``restart`` and ``retry_before_content`` counts, even if it is cancelled. Calls made by
    other operators, ``prepare`` and tools count too, at any depth. No Budget counts a call twice. The engine's own
    retries of a call do not count as separate calls.

    In a pipe, a shared Budget or a dollar limit applies to all model calls of the stream. A plain token limit counts
    the events of the stream and its agents instead. If an agent exceeds the limit, the stream ends with an
    ``ErrorEvent``. A shared Budget counts each answer in a ``generate_many`` journal once.

    Raises ``ValidationError("invalid_option")`` if there is no limit, or if a limit is not a positive number.
    """
    if isinstance(tokens, Budget):
        own = {"usd": usd is not None, "price": price is not None, "unpriced": unpriced != "refuse"}
        if names := [name for name, is_passed in own.items() if is_passed]:
            raise invalid_option(names[0], "must be left out, because a shared Budget has its own limits")
        return _Operator(tokens, lambda: tokens)
    make = partial(ChatBudget, tokens, usd, price=price, unpriced=unpriced)
    make()  # checks the limits
    return _Operator(None, make)


class _Operator(HoldsBudget):
    def __init__(self, shared: Budget | None, make: Callable[[], Budget]) -> None:
        self._shared = shared
        self._make = make

    @property
    def is_shared(self) -> bool:
        return self._shared is not None

    def budget_of(self, chat: dict[Any, Budget]) -> Budget:
        return self._shared or chat.setdefault(self, self._make())

    def spending(self, call: EngineCall, response: Response[Any]) -> Spending:
        budget, usage = self._make(), response.usage
        estimated = 0
        if not usage.total:  # estimated as in `ResponseCount`
            usage = estimated_usage(call.request, response.output_text)
            estimated = usage.total
        model = response.message and response.message.metadata.get("model")
        usd = _cost_of(call, budget)(usage, model, response.metadata).total_cost
        return Spending(usage.total, usd, calls=1, estimated=estimated, unpriced=int(usd is None))

    def __call__(self, source: Observable[Event]) -> Stream[Event]:
        call = current_engine_call.get()
        if call is None:
            return operate(self._in_pipe)(source)
        budget = self.budget_of(call.chat)
        if not budget.reserves:
            budget.catch_up(call.before)  # Earlier steps may have been answered by other engines.
        return operate(partial(self._in_engine, budget, call))(source)

    def _in_engine(
        self,
        budget: Budget,
        call: EngineCall,
        source: Observable[Event],
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> abc.DisposableBase:
        scope = current_scope.get()
        if budget in scope.counted:
            return source.subscribe(observer, scheduler=scheduler)
        meter = _Meter(observer, lambda: budget)
        try:
            request = _estimate(call, budget)
            if request.usage.total_cost is None and not budget.allows_unpriced:
                raise unpriced_call(f"{call.provider}:{call.request.model}" if call.request.model else call.provider)
            meter.reserve(request)
        except Exception as error:  # the caller's price function may raise
            observer.on_error(error)
            return Disposable()
        return meter.start(source, scheduler, replace(scope, counted=(*scope.counted, budget)))

    def _in_pipe(
        self, source: Observable[Event], observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        scope, budget = current_scope.get(), self._make()
        if self._shared is None and budget.usd is None:
            return _Meter(observer, self._make).start(source, scheduler, scope)
        # Count events here only if no model call upstream applies the budget itself.
        share = Share(budget)
        # Calls that the subscriber itself makes must not count.
        below = scoped(source, replace(scope, shares=(*scope.shares, share)))
        return _Meter(observer, lambda: budget, share).start(below, scheduler, scope)


def _cost_of(call: EngineCall | None, budget: Budget) -> Cost:
    return cost_of(call, budget.price, uses_list=budget.usd is not None)


def _estimate(call: EngineCall, budget: Budget) -> Estimate:
    if not budget.reserves and budget.usd is None:
        return NOTHING
    request, model = call.request, models.find(call.provider, call.request.model)
    limit = None if model is None else model.max_output_tokens
    usage = Usage(estimated_tokens(request), request.max_tokens or limit or OUTPUT_TOKENS)
    cost = _cost_of(call, budget)
    return Estimate(cost(usage, None, request.options), cost, request.max_tokens)


_COUNTED = DELTAS | {MessageStarted, UsageUpdated, StepRestarted, MessageCompleted}

_HALT = {"halted_reason": "budget"}


class _Running(msgspec.Struct):
    count: ResponseCount
    reservation: Reservation
    unchecked: float = 0.0


class _Meter:
    """Counts one subscription's events, and stops the subscription if they exceed the budget.

    ==================  ==============================================================================================
    event               effect
    ==================  ==============================================================================================
    MessageStarted      A response begins. If the operator is used in a pipe, and has neither a dollar limit nor a
                        shared Budget, the response gets its own budget, unless the response continues a chat. The
                        response is cut off if it continues a chat whose budget is already exceeded, or if a price is
                        missing.
    a delta             The response is cut off if it needs more than the budget has left.
    MessageCompleted    The actual usage replaces the reservation. A chat that is over its limit halts.
    ErrorEvent or end   Running responses are settled. The event or end is then delivered in the subscriber's scope,
                        because the subscriber may start another call.
    ==================  ==============================================================================================

    If model calls upstream apply the budget themselves (``share.is_taken``), no events are counted here.
    """

    def __init__(
        self, observer: abc.ObserverBase[Event], make: Callable[[], Budget], share: Share | None = None
    ) -> None:
        self._observer = observer
        self._make = make
        self._share = share
        self._budget = make()
        self._scope = current_scope.get()
        self._source = SingleAssignmentDisposable()
        self._running: dict[tuple[str, ...], _Running] = {}
        self._seen: list[Event] = []
        self._unfinished = Unfinished()
        self._is_between_steps = False
        self._is_unpriced = False
        self._ended = False
        self._is_disposed = False

    def reserve(self, request: Estimate) -> None:
        tokens, usd = request.usage.total, request.usage.total_cost
        self._running[()] = _Running(ResponseCount(request), self._budget.reserve(tokens, usd))

    def start(self, source: Observable[Event], scheduler: abc.SchedulerBase | None, below: Scope) -> abc.DisposableBase:
        try:
            with within(below):
                self._source.disposable = source.subscribe(
                    self._on_next, self._on_error, self._on_completed, scheduler=scheduler
                )
        except BaseException:
            self._settle_all()
            raise
        return CompositeDisposable(self._source, Disposable(self._leave))

    def _on_next(self, event: Event) -> None:
        if self._ended:
            return
        if self._share is not None and self._share.is_taken:
            self._observer.on_next(event)
        elif type(event) in DELTAS:
            self._on_delta(event)
        elif isinstance(event, Nested):
            self._on_nested(event.path, event.event, event)
        else:
            self._on_other(event)

    def _on_delta(self, event: Any) -> None:
        response = self._running.get(()) or self._begin(())
        response.count.see(event)
        self._seen.append(event)
        self._unfinished.see(event)
        self._observer.on_next(event)
        if response.count.characters > response.unchecked:
            self._check(response)

    def _on_nested(self, path: tuple[str, ...], inner: object, event: Event) -> None:
        if type(inner) is MessageStarted:
            self._settle(path)  # the agent's last response never ended
        if type(inner) in _COUNTED:
            self._count(path, inner)
        if type(inner) is MessageCompleted or type(inner) is ErrorEvent:
            self._settle(path)
        self._unfinished.see(event)
        self._observer.on_next(event)
        if type(inner) in DELTAS and (response := self._running.get(path)) is not None:
            self._check(response)

    def _on_other(self, event: Event) -> None:
        if type(event) is MessageStarted:
            if (self._is_between_steps and self._budget.is_passed) or self._is_unpriced:
                self._cut()
                return
            self._seen.clear()
            if not self._is_between_steps:
                self._budget = self._make()
            self._is_between_steps = False
        if type(event) in _COUNTED:
            self._count((), event)
        self._unfinished.see(event)
        if isinstance(event, ErrorEvent):
            self._settle(())
            with within(self._scope):  # The subscriber may start another call.
                self._observer.on_next(event)
            return
        if isinstance(event, MessageCompleted):
            event = self._complete(event)
        elif isinstance(event, StepRestarted):
            self._seen.clear()
        elif isinstance(event, StepCompleted | ChatCompleted):
            self._is_between_steps = isinstance(event, StepCompleted)
        if not isinstance(event, RawChunk):
            self._seen.append(event)
        self._observer.on_next(event)

    def _begin(self, path: tuple[str, ...]) -> _Running:
        estimate = Estimate(cost=_cost_of(None, self._budget))
        response = self._running[path] = _Running(ResponseCount(estimate), self._budget.begin())
        if self._is_disposed:  # another thread has disposed of the stream
            self._settle(path)
        return response

    def _count(self, path: tuple[str, ...], event: object) -> None:
        response = self._running.get(path) or self._begin(path)
        response.count.see(event)
        response.unchecked = 0

    def _check(self, response: _Running) -> None:
        count, reservation = response.count, response.reservation
        budget, takes_more = reservation.budget, count.tokens > reservation.tokens
        if takes_more and not self._ended and not budget.grow(reservation, count.tokens, count.spent.usd):
            self._cut()
        else:
            response.unchecked = count.characters_of(reservation.tokens + budget.slack())

    def _complete(self, event: MessageCompleted) -> MessageCompleted:
        """Settle the response. Return `event` with the spent amounts added to its metadata."""
        spending = self._settle(())
        self._is_unpriced = spending.get("usd_spent", 0.0) is None and not self._budget.allows_unpriced
        limits = [limit for limit in ("tokens", "usd") if limit in spending]
        is_over = any((spending[f"{limit}_spent"] or 0) > spending[limit] for limit in limits)
        halt = _HALT if is_over and self._continues(event) else {}
        spending = {**event.metadata.get("budget", {}), **spending}  # keeps the limits of other budgets
        return replace(event, metadata={**event.metadata, "budget": spending, **halt})

    def _continues(self, end: MessageCompleted) -> bool:
        state = StreamCollector()
        for event in (*self._seen, end):
            state = state.apply_event(event)
        return is_unfinished(state.to_response())

    def _cut(self) -> None:
        self._ended = True
        self._source.dispose()
        closing = self._unfinished.close()
        if () not in self._running:  # the budget was exceeded by an agent or an earlier step
            error = (
                unpriced_call("the stream", "the stream was cut off")
                if self._is_unpriced
                else budget_passed(self._budget)
            )
            conclude(self._observer, [*closing, ErrorEvent(error)])
            return
        message = fold_message([*self._seen, *closing])
        metadata = {"budget": self._settle(()), **_HALT}
        conclude(self._observer, [*closing, MessageCompleted(message, "length", metadata=metadata)])

    def _settle(self, path: tuple[str, ...]) -> dict[str, Any]:
        """Replace the reservation at `path` with the response's usage. Return the limits and the amounts spent."""
        response = self._running.pop(path, None)
        spending: dict[str, Any] = {}
        if response is None:
            return spending
        budget, usd = response.reservation.budget, response.count.usd
        settled = budget.settle(response.reservation, response.count.spent)
        if budget.tokens is not None:
            spending |= {"tokens": budget.tokens, "tokens_spent": settled.tokens}
        if budget.usd is not None:
            spending |= {"usd": budget.usd, "usd_spent": None if usd is None else settled.usd}
        return spending

    def _settle_all(self) -> None:
        self._is_disposed = True
        for path in list(self._running):
            self._settle(path)

    def _leave(self) -> None:
        """Settle the running responses.

        The tokens of a response's request are counted even if none of the response's events has arrived.
        """
        for response in list(self._running.values()):
            response.count.begin()
        self._settle_all()

    def _on_error(self, error: Exception) -> None:
        self._settle_all()
        with within(self._scope):
            self._observer.on_error(error)

    def _on_completed(self) -> None:
        self._settle_all()
        if not self._ended:
            with within(self._scope):
                self._observer.on_completed()

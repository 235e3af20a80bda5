"""Limit the tokens and dollars that a response, a chat or a group of calls may use."""

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
    ToolCallDelta,
    UsageUpdated,
)
from rxllm.operators._cost import CHARACTERS_PER_TOKEN, NOTHING, OUTPUT_TOKENS, Cost, Estimate, ResponseCount, cost_of
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
from rxllm.values import Response, Spending, Usage, estimated_tokens
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
    """Halt a chat before its next step once its budget is spent, and cut off a response that exceeds the token limit.

    ::

        source              --start--H--e--l--l--o--!--usage--end--|
        budget(tokens=1)    --start--H--e--l--l--(o,Hello,end)|         (finish reason length, metadata budget)

    >>> from rxllm import Engine, Fake, chat
    >>> engine = Engine(Fake(["Once ", "upon ", "a ", "time"]), operators=[budget(tokens=2)])
    >>> result = chat(engine, "A story?").run()
    >>> result.halted_reason, result.final_response.output_text, result.final_response.metadata["budget"]
    ('budget', 'Once upon ', {'tokens': 2, 'tokens_spent': 3})

    In an engine, or after ``stream`` in a pipe, the limit applies to all steps of a chat together. After
    ``stream_generate``, it applies to one response. The provider reports the usage. Until a report arrives, every four
    characters of the answer count as one token. An answer that an upstream ``ops.restart`` has discarded still counts.

    If a response exceeds the token limit, the source is disposed, which closes its connection. Open blocks are
    completed, and ``MessageCompleted`` has the finish reason ``length``. If the final usage shows that a complete
    response was over the limit, the response is left unchanged. Any tools it calls still run, and then the chat halts
    with the `halted_reason` ``"budget"``. The ``"budget"`` metadata of ``MessageCompleted`` and of the response
    contains the limits and the amounts spent.

    A dollar limit needs prices, but does not need ``ops.cost()``. Prices are looked up in the model's entry in
    ``rxllm.models``, in `price`, in the engine's ``ops.cost`` and in the genai-prices list, in this order. Each request
    reserves the most it can cost (see below). A request whose price is unknown fails with a ``ValidationError`` and is
    not sent. With ``unpriced="allow"``, it is sent if any budget is left, and its cost counts only if
    the provider reports it.

    Pass a shared `Budget` instead of `tokens` to limit all calls that share it, in any engine, chat or thread::

        shared = rxllm.Budget(tokens=50_000, usd=2.0)
        engine = Engine("openai:gpt-5", operators=[ops.budget(shared)])

    ======================  ============================================================================================
    before a request        The request reserves tokens for its messages and tools, as estimated by
                            ``rxllm.count_tokens``, and for its answer: its `max_tokens`, or else the model's
                            `max_output_tokens` in ``rxllm.models``, or else 1,000. It also reserves the tokens' cost.
    if too little is left   The request fails with ``StreamError("budget_exceeded")`` and is not sent. A chat that
                            has already completed a step halts with the `halted_reason` ``"budget"``.
    during the answer       Tokens beyond the reservation are reserved as they arrive. If the budget has none left, the
                            answer is cut off.
    after the answer        The usage that the provider reported is counted. If it reported none, for example after a
                            failure or a cancellation, the usage is estimated from the request and the answer so far,
                            and is also added to ``shared.spent.estimated``. If a call is cancelled before its first
                            event, its request is counted, because the provider may bill it; if a call fails before
                            its first event, no tokens are counted.
    without a known price   The request is sent only if there is no dollar limit, or with ``unpriced="allow"``. It
                            reserves and counts no dollars. ``shared.spent.unpriced`` is the number of such calls.
    ======================  ============================================================================================

    The limit is never exceeded if every request sets `max_tokens`, and the provider respects it and bills no more input
    than was estimated. Otherwise, the input beyond the estimate can exceed the limit. Without `max_tokens`, each
    running call can also exceed it by 32 tokens or one delta of visible text, and by all hidden thinking beyond 1,000
    tokens. The cost of searches and other tools billed per use is not known until the end.

    In an engine, the budget applies to every call that the engine makes, wherever the operator is in the list. This
    includes each attempt by ``hedge``, ``fallback``, ``restart`` and ``retry_before_content``, even if it is cancelled,
    and calls made by other operators, ``prepare`` and tools, at any depth. Each Budget counts a call once, and the
    engine's own retries are part of that call.

    In a pipe, a shared Budget or a dollar limit applies to all model calls of the stream. With a plain token limit, the
    events of the stream and of its agents (``Nested``) are counted instead. If an agent exceeds the limit, the stream
    ends with an ``ErrorEvent``. A shared Budget counts each answer in a ``generate_many`` journal once.

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
    """The ``budget`` operator. In an engine, it limits the engine's own calls and its tools' calls."""

    def __init__(self, shared: Budget | None, make: Callable[[], Budget]) -> None:
        self._shared = shared
        self._make = make

    @property
    def is_shared(self) -> bool:
        """Whether the operator has a shared `Budget`, which cannot be copied."""
        return self._shared is not None

    def budget_of(self, chat: dict[Any, Budget]) -> Budget:
        return self._shared or chat.setdefault(self, self._make())

    def spending(self, call: EngineCall, response: Response[Any]) -> Spending:
        budget, usage = self._make(), response.usage
        estimated = 0
        if not usage.total:  # as estimated while the response was arriving
            usage = Usage(estimated_tokens(call.request), -(-len(response.output_text) // CHARACTERS_PER_TOKEN))
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
            budget.catch_up(call.before)  # other engines may have answered earlier steps
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
        # Model calls upstream do their own counting. If there are none, the meter counts the events.
        share = Share(budget)
        below = scoped(source, replace(scope, shares=(*scope.shares, share)))  # the subscriber's calls do not count
        return _Meter(observer, lambda: budget, share).start(below, scheduler, scope)


def _cost_of(call: EngineCall | None, budget: Budget) -> Cost:
    return cost_of(call, budget.price, uses_list=budget.usd is not None)


def _estimate(call: EngineCall, budget: Budget) -> Estimate:
    """Estimate the maximum that `call`'s request can take from `budget`."""
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
    """A running response. The next check is due when more than `unchecked` characters have arrived."""

    count: ResponseCount
    reservation: Reservation
    unchecked: float = 0.0


class _Meter:
    """A meter that counts one subscription's events against a budget, and cuts the stream off if they exceed it.

    ==================  ==============================================================================================
    event               effect
    ==================  ==============================================================================================
    MessageStarted      A response begins. In a pipe, it gets its own budget unless it is the next step of a chat. If
                        the budget has already been exceeded or a price is missing, the stream is cut off.
    a delta             The delta is counted. If the response takes more than the budget has left, it is cut off.
    MessageCompleted    The response is settled: its actual usage replaces its reservation. A chat that would
                        continue is halted if it is over the limit.
    ErrorEvent or end   Running responses are settled. The subscriber's scope is restored before it is notified,
                        because it may start another call.
    ==================  ==============================================================================================

    If upstream calls count their own usage (``share.is_taken``), the meter passes events on uncounted.
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
        """Subscribe to `source`, with `below` as the scope of its calls."""
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
        response.count.characters += len(event.arguments_delta if type(event) is ToolCallDelta else event.delta)
        self._seen.append(event)
        self._unfinished.see(event)
        self._observer.on_next(event)
        if response.count.characters > response.unchecked:
            self._check(response)

    def _on_nested(self, path: tuple[str, ...], inner: object, event: Event) -> None:
        if type(inner) is MessageStarted:
            self._settle(path)  # this agent's previous response never ended
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
            with within(self._scope):  # the subscriber may start another call
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
        """Start counting a response for which nothing has been reserved."""
        estimate = Estimate(cost=_cost_of(None, self._budget))
        response = self._running[path] = _Running(ResponseCount(estimate), self._budget.begin())
        if self._is_disposed:  # another thread has just disposed the stream
            self._settle(path)
        return response

    def _count(self, path: tuple[str, ...], event: object) -> None:
        response = self._running.get(path) or self._begin(path)
        response.count.see(event)
        response.unchecked = 0

    def _check(self, response: _Running) -> None:
        """Cut the response off if it takes more than the budget has left."""
        count, reservation = response.count, response.reservation
        budget, takes_more = reservation.budget, count.tokens > reservation.tokens
        if takes_more and not self._ended and not budget.grow(reservation, count.tokens, count.spent.usd):
            self._cut()
        else:
            response.unchecked = count.characters_of(reservation.tokens + budget.slack())

    def _complete(self, event: MessageCompleted) -> MessageCompleted:
        """Settle the response, and return `event` with the limits and the amounts spent in its metadata."""
        spending = self._settle(())
        self._is_unpriced = spending.get("usd_spent", 0.0) is None and not self._budget.allows_unpriced
        limits = [limit for limit in ("tokens", "usd") if limit in spending]
        is_over = any((spending[f"{limit}_spent"] or 0) > spending[limit] for limit in limits)
        halt = _HALT if is_over and self._continues(event) else {}
        spending = {**event.metadata.get("budget", {}), **spending}  # another budget may have added its own limits
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
        if () not in self._running:  # an agent or an earlier step has exceeded the budget
            error = unpriced_call("the stream") if self._is_unpriced else budget_passed(self._budget)
            conclude(self._observer, [*closing, ErrorEvent(error)])
            return
        message = fold_message([*self._seen, *closing])
        metadata = {"budget": self._settle(()), **_HALT}
        conclude(self._observer, [*closing, MessageCompleted(message, "length", metadata=metadata)])

    def _settle(self, path: tuple[str, ...]) -> dict[str, Any]:
        """Settle the running response at `path`, if there is one, and return the limits and the amounts spent."""
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
        """Settle the running responses. Each counts as a request, even if none of its events has arrived."""
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

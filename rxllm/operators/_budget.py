"""Limit what a response, a chat, or all calls that share a budget may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SingleAssignmentDisposable

from rxllm.collector import StreamCollector, Unfinished, fold_message, is_unfinished
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
from rxllm.operators._cost import Estimate, ResponseCount, estimate, estimate_unasked, spending_of
from rxllm.operators._event_operators import DELTAS, operate
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
from rxllm.values import Response, Spending, Usage
from rxllm.values.argument_checks import invalid_option

# Count what the responses of a stream use, settle it with their budget, and cut the one that passes it


_COUNTED = DELTAS | {MessageStarted, UsageUpdated, RawChunk, StepRestarted, MessageCompleted}

_HALT = {"halted_reason": "budget"}


class _Response:
    """A response that runs: what it has used, and what is reserved for it."""

    def __init__(self, count: ResponseCount, reservation: Reservation) -> None:
        self.count = count
        self.reservation = reservation
        self.unchecked = 0.0  # so many characters may come before it is checked whether they are within the budget


class Meter:
    """One subscription to a stream under a budget: its running responses, by their paths, and the events of its own."""

    def __init__(
        self, observer: abc.ObserverBase[Event], make: Callable[[], Budget], share: Share | None = None
    ) -> None:
        self._observer = observer
        self._make = make
        self._share = share
        self._budget = make()
        self._scope = current_scope.get()
        self._running = SingleAssignmentDisposable()
        self._responses: dict[tuple[str, ...], _Response] = {}
        self._seen: list[Event] = []
        self._unfinished = Unfinished()
        self._is_between_steps = False
        self._is_unpriced = False
        self._ended = False
        self._is_disposed = False

    def reserve(self, request: Estimate) -> None:
        tokens, usd = request.usage.total, request.usage.total_cost
        self._responses[()] = _Response(ResponseCount(request), self._budget.reserve(tokens, usd))

    def start(self, source: Observable[Event], scheduler: abc.SchedulerBase | None, below: Scope) -> abc.DisposableBase:
        """Subscribe to `source` within the scope `below`."""
        try:
            with within(below):
                self._running.disposable = source.subscribe(
                    self._on_next, self._on_error, self._on_completed, scheduler=scheduler
                )
        except BaseException:
            self._settle_all()
            raise
        return CompositeDisposable(self._running, Disposable(self._leave))

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
        response = self._responses.get(()) or self._open(())
        response.count.characters += len(event.arguments_delta if type(event) is ToolCallDelta else event.delta)
        self._seen.append(event)
        self._unfinished.see(event)
        self._observer.on_next(event)
        if response.count.characters > response.unchecked:
            self._check(response)

    def _on_nested(self, path: tuple[str, ...], inner: object, event: Event) -> None:
        if type(inner) is MessageStarted:
            self._settle(path)  # a response that never ended
        if type(inner) in _COUNTED:
            self._count(path, inner)
        if type(inner) is MessageCompleted or type(inner) is ErrorEvent:
            self._settle(path)
        self._unfinished.see(event)
        self._observer.on_next(event)
        if type(inner) in DELTAS and (response := self._responses.get(path)) is not None:
            self._check(response)

    def _on_other(self, event: Event) -> None:
        if type(event) is MessageStarted:
            if (self._is_between_steps and self._budget.is_passed) or self._is_unpriced:
                self._cut()
                return
            self._begin()
        if type(event) in _COUNTED:
            self._count((), event)
        self._unfinished.see(event)
        match event:
            case RawChunk():
                self._observer.on_next(event)
                return
            case ErrorEvent():
                self._settle(())
                with within(self._scope):  # another call may follow
                    self._observer.on_next(event)
                return
            case MessageCompleted():
                event = self._complete(event)
            case StepRestarted():
                self._seen.clear()
            case StepCompleted() | ChatCompleted():
                self._is_between_steps = isinstance(event, StepCompleted)
            case _:
                pass
        self._seen.append(event)
        self._observer.on_next(event)

    def _begin(self) -> None:
        self._seen.clear()
        if not self._is_between_steps:  # in a pipe a response, or a chat, has a budget of its own
            self._budget = self._make()
        self._is_between_steps = False

    def _open(self, path: tuple[str, ...]) -> _Response:
        response = self._responses[path] = _Response(
            ResponseCount(estimate_unasked(self._budget)), self._budget.begin()
        )
        if self._is_disposed:  # on another thread, at this moment
            self._settle(path)
        return response

    def _count(self, path: tuple[str, ...], event: object) -> None:
        response = self._responses.get(path) or self._open(path)
        response.count.see(event)
        response.unchecked = 0

    def _check(self, response: _Response) -> None:
        """Cut the response if it takes more than is left."""
        count, reservation = response.count, response.reservation
        if (
            count.tokens > reservation.tokens
            and not self._ended
            and not reservation.grow(count.tokens, count.spent.usd)
        ):
            self._cut()
        else:
            response.unchecked = count.characters_of(reservation.tokens + reservation.slack())

    def _complete(self, event: MessageCompleted) -> MessageCompleted:
        """Settle the response, and return its end with what was spent."""
        spending = self._settle(())
        self._is_unpriced = spending.get("usd_spent", 0.0) is None and not self._budget.allows_unpriced
        # It halts the chat if too much was spent and the chat would continue.
        halt = _HALT if self._is_over(spending) and self._continues(event) else {}
        spending = {**event.metadata.get("budget", {}), **spending}  # there may be another budget
        return replace(event, metadata={**event.metadata, "budget": spending, **halt})

    def _settle(self, path: tuple[str, ...]) -> dict[str, Any]:
        """Settle the response that runs there, if there is one, and return what was spent."""
        response = self._responses.pop(path, None)
        spending: dict[str, Any] = {}
        if response is None:
            return spending
        budget, usd = response.reservation.budget, response.count.usd
        settled = response.reservation.settle(response.count.spent)
        if budget.tokens is not None:
            spending |= {"tokens": budget.tokens, "tokens_spent": settled.tokens}
        if budget.usd is not None:
            spending |= {"usd": budget.usd, "usd_spent": None if usd is None else settled.usd}
        return spending

    def _leave(self) -> None:
        """Settle what still runs; its requests count, even those that nothing has come of yet."""
        for response in list(self._responses.values()):
            response.count.begin()
        self._settle_all()

    def _settle_all(self) -> None:
        self._is_disposed = True
        for path in list(self._responses):
            self._settle(path)

    def _is_over(self, spending: dict[str, Any]) -> bool:
        limits = [limit for limit in ("tokens", "usd") if limit in spending]
        return any((spending[f"{limit}_spent"] or 0) > spending[limit] for limit in limits)

    def _continues(self, end: MessageCompleted) -> bool:
        state = StreamCollector()
        for event in (*self._seen, end):
            state = state.apply_event(event)
        return is_unfinished(state.to_response())

    def _cut(self) -> None:
        self._ended = True
        self._running.dispose()
        closing = self._unfinished.close()
        if () not in self._responses:  # an agent has passed it, or an earlier step
            error = unpriced_call("the stream") if self._is_unpriced else budget_passed(self._budget)
            conclude(self._observer, [*closing, ErrorEvent(error)])
            return
        message = fold_message([*self._seen, *closing])
        metadata = {"budget": self._settle(()), **_HALT}
        conclude(self._observer, [*closing, MessageCompleted(message, "length", metadata=metadata)])

    def _on_error(self, error: Exception) -> None:
        self._settle_all()
        with within(self._scope):
            self._observer.on_error(error)

    def _on_completed(self) -> None:
        self._settle_all()
        if not self._ended:
            with within(self._scope):
                self._observer.on_completed()


# Limit what a response, a chat, or all calls that share a budget may use


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

    Dollars need a price, and no ``ops.cost()``: the entry in ``rxllm.models``, `price`, the engine's ``ops.cost``, or
    else the list of genai-prices has it. Each request reserves the price of what it may use, as below. A request
    whose price is not known is not sent, but fails with a ``ValidationError``; with ``unpriced="allow"`` it is sent as
    long as anything is left, and only the cost that its provider states counts.

    With a shared `Budget` in place of `tokens`, all calls that share it count, in any engine, chat and thread::

        shared = rxllm.Budget(tokens=50_000, usd=2.0)
        engine = Engine("openai:gpt-5", operators=[ops.budget(shared)])

    ======================  ============================================================================================
    before a request        it reserves its messages and tools, as ``rxllm.count_tokens`` estimates them, and its
                            `max_tokens`; without those, the `max_output_tokens` of its entry in ``rxllm.models``, or
                            else 1,000 tokens; and the price of all that
    if more is reserved     the request is not sent, but fails with ``StreamError("budget_exceeded")``; a chat that has
    and spent than allowed  had a step halts with the `halted_reason` ``"budget"``
    while the answer comes  what exceeds the reservation is reserved too; if it is not left, the answer is cut
    at its end              the usage that the provider states counts; for what it has not stated, when a call breaks
                            off or is left early, say, the estimate (``shared.spent.estimated``): of the request, and
                            of the answer so far. Left before its first event, a call counts its request, which the
                            provider may bill; a call that fails before its first event counts no tokens
    an unpriced request     under tokens alone, or with ``unpriced="allow"``: reserves and counts no dollars;
                            ``shared.spent.unpriced`` is the number of those calls
    ======================  ============================================================================================

    The limit may be passed by 0 if every request has `max_tokens` and its provider keeps to them and bills no more
    input than the estimate; else, for each running call, by the input beyond its estimate, and without `max_tokens` by
    what the model thinks unseen beyond the 1,000 tokens and by 32 tokens, or one delta, of what is seen. Searches and
    other tools that a provider bills by the piece are known at the end only.

    It holds for every call of the engine, wherever it stands in the list: each attempt of ``hedge``, ``fallback``,
    ``restart`` and ``retry_before_content``, with what the losers have said until they are cancelled; calls that other
    operators, ``prepare`` and tools make, at any depth. A call counts once in each Budget. The engine's own retries
    belong to one call. In a pipe, a shared Budget, and dollars, hold for all model calls of the stream. Tokens of a
    budget of its own count the events there, those of agents (``Nested``) included: one that is passed inside an agent
    ends the stream with an ``ErrorEvent``. A shared Budget counts the answers in the journal of ``generate_many`` too,
    each once.

    Raises ``ValidationError("invalid_option")`` without a limit, and for a limit that is not a number above 0.
    """
    if isinstance(tokens, Budget):
        own = {"usd": usd is not None, "price": price is not None, "unpriced": unpriced != "refuse"}
        if names := [name for name, is_passed in own.items() if is_passed]:
            raise invalid_option(names[0], "must be left out: a shared Budget has its own limits")
        return _Operator(tokens, lambda: tokens)
    make = partial(ChatBudget, tokens, usd, price=price, unpriced=unpriced)
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
        if self._shared is not None or self._make().usd is not None:
            return operate(partial(_of_pipe, self._make))(source)
        return operate(partial(_of_stream, self._make))(source)

    @property
    def is_shared(self) -> bool:
        """Whether its calls share a `Budget`, which cannot be copied."""
        return self._shared is not None

    def budget_of(self, chat: dict[Any, Budget]) -> Budget:
        """Return the shared budget, or that of the chat whose budgets are in `chat`."""
        return self._shared or chat.setdefault(self, self._make())

    def spending(self, call: EngineCall, response: Response[Any]) -> Spending:
        return spending_of(call, self._make(), response)


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
        request = estimate(call, budget)
        if request.usage.total_cost is None and not budget.allows_unpriced:
            raise unpriced_call(f"{call.provider}:{call.request.model}" if call.request.model else call.provider)
        meter.reserve(request)
    except Exception as error:  # a price function of the caller's may raise
        observer.on_error(error)
        return Disposable()
    return meter.start(source, scheduler, replace(scope, counted=(*scope.counted, budget)))


def _of_pipe(
    make: Callable[[], Budget],
    source: Observable[Event],
    observer: abc.ObserverBase[Event],
    scheduler: abc.SchedulerBase | None,
) -> abc.DisposableBase:
    """Hand the budget down to the model calls below; if there are none, count the events."""
    scope, budget = current_scope.get(), make()
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

"""Count what the responses of a stream use, settle it with their budget, and cut the one that passes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from rxllm.operators._shared.event_operators import DELTAS
from rxllm.operators._shared.response_count import Estimate, ResponseCount, estimate_unasked
from rxllm.runtime import (
    Budget,
    Reservation,
    Scope,
    Share,
    budget_passed,
    conclude,
    current_scope,
    unpriced_call,
    within,
)

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

"""A call under a limiter: what it may use, what it has used, and how long its provider asks to wait."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SingleAssignmentDisposable

from rxllm.events import ErrorEvent
from rxllm.operators._shared.response_count import NOTHING, OUTPUT_TOKENS, Estimate, ResponseCount
from rxllm.runtime import EngineCall, Limiter, current_scope, fail, result_of, scoped, within
from rxllm.values import AdapterError, LLMError, Usage, estimated_tokens
from rxllm.values.argument_checks import shown

LONGEST = 600.0
"""For how many seconds a provider holds calls back; after that one of them asks it again."""


class LimitedCall:
    """One subscription to `source`, whose tokens are counted if it is the answer to an engine's call.

    ``hold_back(seconds)`` is called when the provider asks to wait; ``retry_in(seconds)``, before another attempt in so
    many seconds, returns in how many it may begin.
    """

    def __init__(self, source: Observable[Any], call: EngineCall | None, now: Callable[[], float]) -> None:
        self._source = source
        self._now, self._came = now, now()
        self._is_engine_call = call is not None
        request = NOTHING if call is None else _estimate(call)
        self._count = ResponseCount(request)
        self.reserved = request.usage.total

    @property
    def used(self) -> int:
        return self._count.tokens

    def subscribe(
        self,
        observer: abc.ObserverBase[Any],
        scheduler: abc.SchedulerBase | None,
        hold_back: Callable[[float], object],
        retry_in: Callable[[float], float],
    ) -> abc.DisposableBase:
        def obey(error: object, seconds: float | None) -> None:
            if seconds and isinstance(error, AdapterError) and (error.retry_after or error.reason == "rate_limited"):
                hold_back(min(seconds, LONGEST))

        def on_next(item: Any) -> None:
            if type(item) is ErrorEvent:
                obey(item.error, getattr(item.error, "retry_after", None))
            self._count.see(item)
            observer.on_next(item)

        def on_error(error: Exception) -> None:
            obey(error, getattr(error, "retry_after", None))
            observer.on_error(error)

        def before_retry(error: LLMError, seconds: float) -> float:
            obey(error, seconds)
            return retry_in(seconds)

        source = self._source
        if self._is_engine_call:
            scope = current_scope.get()
            queued = scope.queued + self._now() - self._came
            source = scoped(source, replace(scope, before_retry=(*scope.before_retry, before_retry), queued=queued))
        return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)


def _estimate(call: EngineCall) -> Estimate:
    # The catalogue's longest answer, which a Budget reserves, would let few calls run at a time.
    request = call.request
    return Estimate(Usage(estimated_tokens(request), request.max_tokens or OUTPUT_TOKENS), None, request.max_tokens)


class PermittedCall:
    """A call that begins when a `Limiter` of the user's permits it."""

    def __init__(
        self,
        limiter: Limiter,
        call: LimitedCall,
        observer: abc.ObserverBase[Any],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._limiter = limiter
        self._call = call
        self._observer = observer
        self._scheduler = scheduler
        self._scope = current_scope.get()
        self._running = SingleAssignmentDisposable()
        self._permit = SingleAssignmentDisposable()

    def start(self) -> abc.DisposableBase:
        permitted = result_of(self._acquire).subscribe(self._begin, self._observer.on_error, scheduler=self._scheduler)
        return CompositeDisposable(self._running, self._permit, permitted)

    async def _acquire(self) -> None:
        acquiring: object = self._limiter.acquire(self._call.reserved)
        if not inspect.isawaitable(acquiring):
            remedy = "write async def acquire(self, tokens)"
            raise TypeError(
                f"{type(self._limiter).__name__}.acquire must return an awaitable, not {shown(acquiring)}; {remedy}"
            )
        permit = await acquiring
        # Here, not in `_begin`, which a call that is disposed meanwhile does not reach.
        self._permit.disposable = Disposable(lambda: self._limiter.settle(permit, self._call.used))

    def _begin(self, _: None) -> None:
        try:
            with within(self._scope):
                self._running.disposable = self._call.subscribe(
                    self._observer, self._scheduler, self._limiter.hold_back, lambda seconds: seconds
                )
        except BaseException as error:  # the source raised, and nothing above would deliver it
            fail(self._observer, error)

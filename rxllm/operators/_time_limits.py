"""Time limits that a provider's pings do not defeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from reactivex import Observable, abc

from rxllm.collector import Unfinished
from rxllm.events import ErrorEvent, Event
from rxllm.http import NO_TIMEOUTS, Timeouts
from rxllm.operators._shared.watchdog import Activity, Watch
from rxllm.runtime import Stream, engine_call
from rxllm.values import AdapterError, StreamError


def time_limits(
    first: float | None = None, idle: float | None = None, total: float | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Limit the seconds before the first content, of silence after it, and in total.

    ::

        source               --start--H--ping--ping--------i--end--|
        time_limits(idle=15) --start--H--ping--ping--(H,error)|        (H completed, then the error)

    >>> from rxllm import Fake, stream_generate
    >>> slow = stream_generate(Fake(["Hel", ("delay", 60), "lo"]), "Hi").pipe(time_limits(first=5, idle=0.01))
    >>> [type(event).__name__ for event in slow]
    ['MessageStarted', 'TextDelta', 'TextCompleted', 'ErrorEvent']

    Content is what the model produces: message starts and ends, usage and raw frames, by which a provider shows that it
    is alive, do not extend a limit. An agent that works does, but not by its provider's usage and raw frames. At a
    limit, open blocks and calls are completed, and an ``ErrorEvent`` with ``StreamError("timeout")`` ends the stream;
    before the first event it is ``on_error`` with ``AdapterError("timeout")``. The error's metadata has the `limit`
    that was exceeded, its `seconds`, and the number of `events` so far. The source is disposed, which closes its
    connection. While the consumer is behind, only `total` counts. After a ``MessageCompleted`` no limit counts until
    another event arrives.

    The call option ``timeout``, a number or a `Timeouts`, does the same below retry: a call whose first content is late
    is a failed attempt there, which is retried.

    Raises ``ValidationError("invalid_option")`` for a limit that is not a number above 0.
    """
    limits = Timeouts(first, idle, total)

    def operator(source: Observable[Event]) -> Stream[Event]:
        if limits == NO_TIMEOUTS:
            return Stream.of(source)
        call = engine_call()
        provider = call.provider if call is not None else None

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return Watch(_Limits(limits, provider), observer, scheduler).start(source)

        return Stream(subscribe)

    return operator


_MESSAGES: Mapping[str, str] = {
    "first": "no content came within {:g} s",
    "idle": "no more content came for {:g} s",
    "total": "the stream did not end within {:g} s",
}


class _Limits:
    def __init__(self, limits: Timeouts, provider: str | None) -> None:
        self._limits = limits
        self._provider = provider
        self._unfinished = Unfinished()
        self.see = self._unfinished.see

    def due(self, heard: Activity) -> float | None:
        return None if heard.over else min((time for time, _, _ in self._deadlines(heard)), default=math.inf)

    def act(self, heard: Activity) -> Iterable[Event] | Exception:
        _, limit, seconds = min(self._deadlines(heard))
        message = f"{_MESSAGES[limit].format(seconds)} (timeout {limit!r}, after {heard.events} events)"
        metadata = {"limit": limit, "seconds": seconds, "events": heard.events}
        if not heard.events:
            return AdapterError("timeout", message, provider=self._provider, metadata=metadata)
        error = StreamError("timeout", message, provider=self._provider, metadata=metadata)
        return [*self._unfinished.close(), ErrorEvent(error)]

    def _deadlines(self, heard: Activity) -> Iterable[tuple[float, str, float]]:
        limit, silence = ("idle", self._limits.idle) if heard.spoken else ("first", self._limits.first)
        if silence is not None:
            yield heard.last + silence, limit, silence
        if self._limits.total is not None:
            yield heard.began + self._limits.total, "total", self._limits.total

"""Say once that ``.retry`` and ``.catch`` do not act on an `ErrorEvent`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxllm.events import ErrorEvent
from rxllm.values.argument_checks import shown

log = logging.getLogger("rxllm")

_hinted: set[str] = set()
"""The methods whose hint this program has logged."""


def hint_at_error_events(method: str) -> Callable[[Observable[Any]], Observable[Any]]:
    """Log a hint if an `ErrorEvent` passes on its way to reactivex's `method`, which sees only ``on_error``."""

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(item: Any) -> None:
                if type(item) is ErrorEvent:
                    _hint(method, item.error)
                observer.on_next(item)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def _hint(method: str, error: Exception) -> None:
    if method not in _hinted:
        _hinted.add(method)
        fault = f".{method}(...) does not act on an ErrorEvent, after which its stream completes: got {shown(error)}"
        log.warning("%s; write .pipe(ops.raise_errors()).%s(...), or see docs/errors.md for other ways", fault, method)

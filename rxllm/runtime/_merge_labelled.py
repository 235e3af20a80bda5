"""Merge several streams under labels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxllm.events import ErrorEvent
from rxllm.runtime._bounded import Bounded
from rxllm.runtime._stream import Stream
from rxllm.values import Labelled
from rxllm.values.argument_checks import check, check_count, invalid_option, must_be
from rxllm.values.errors import as_llm_error

T = TypeVar("T")


def merge_labelled(
    streams: Mapping[str, Observable[T]], *, concurrency: int | None = None
) -> Stream[Labelled[T | ErrorEvent]]:
    """Merge all of `streams`, or `concurrency` of them at a time, each item with the label of its stream.

    ::

        a                                  --1--------2--|
        b                                  -----3--X
        merge_labelled({"a": a, "b": b})   --a1-b3-bX-a2-|        (bX: an ErrorEvent of b)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> answers = {name: stream_generate(Fake(name.upper()), "Hi").pipe(ops.text()) for name in ("ann", "bob")}
    >>> [(answer.label, answer.item) for answer in merge_labelled(answers)]
    [('ann', 'ANN'), ('bob', 'BOB')]

    A stream that fails has an ``ErrorEvent`` as its last item, like an event stream's own, and the others continue.
    Within a label the order is the stream's own.

    Raises ``ValidationError("invalid_option")`` without streams, for one that is not an Observable, and for a
    `concurrency` below 1.
    """
    _check(streams, concurrency)
    labels = list(streams)

    def subscribe(
        observer: abc.ObserverBase[Labelled[T | ErrorEvent]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        guard = threading.RLock()  # streams may be on several threads; the observer gets one item at a time

        def pass_on(index: int, item: T | ErrorEvent) -> None:
            try:
                observer.on_next(Labelled(labels[index], item))
            except Exception as error:  # raised by the subscriber: not a failure of this stream
                running.dispose()
                observer.on_error(error)

        def end(index: int, error: Exception | None) -> None:
            if error is not None:
                pass_on(index, ErrorEvent(as_llm_error(error)))

        limit = concurrency or len(labels)
        sources = (_serialized(stream, guard) for stream in streams.values())
        running = Bounded(sources, limit, pass_on, end, observer.on_completed, observer.on_error)
        with guard:
            running.start(scheduler)
        return running

    return Stream(subscribe)


def _serialized(stream: Observable[T], guard: threading.RLock) -> Observable[T]:
    def guarded(fn: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            with guard:
                fn(*args)

        return call

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        handlers = map(guarded, (observer.on_next, observer.on_error, observer.on_completed))
        return stream.subscribe(*handlers, scheduler=scheduler)

    return Observable(subscribe)


def _check(streams: Mapping[str, object], concurrency: object) -> None:
    is_mapping = isinstance(streams, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
    check("streams", streams, is_mapping and bool(streams), "a mapping of labels to streams, at least one")
    for label, stream in streams.items():
        if not isinstance(stream, Observable):
            raise invalid_option(("streams", str(label)), must_be("an Observable", stream))
    if concurrency is not None:
        check_count("concurrency", concurrency)

"""Several streams side by side."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeVar

from reactivex import Observable, abc

from rxllm.events import ErrorEvent
from rxllm.runtime import Bounded, Stream
from rxllm.values import Labelled, ValidationError
from rxllm.values.errors import as_llm_error

T = TypeVar("T")


def merge_labelled(
    streams: Mapping[str, Observable[T]], *, concurrency: int | None = None
) -> Stream[Labelled[T | ErrorEvent]]:
    """All of `streams` at once, or `concurrency` of them at a time, each item with the label of its stream.

    ::

        a                                  --1-----2--|
        b                                  -----3--X
        merge_labelled({"a": a, "b": b})   --a1-b3-bX-a2--|       (bX: an ErrorEvent of b)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> said = {name: stream_generate(Fake(name.upper()), "Hi").pipe(ops.text()) for name in ("ann", "bob")}
    >>> [(each.label, each.item) for each in merge_labelled(said)]
    [('ann', 'ANN'), ('bob', 'BOB')]

    The failure of one is its last item, an ``ErrorEvent``, and the others go on. Within a label the order is the
    stream's own. Only what is also an item of the streams can be told from a failure: an event stream's own
    ``ErrorEvent`` looks the same, which is meant.

    Raises ``ValidationError("invalid_option")`` without streams, for what is no Observable, and for a `concurrency`
    below 1.
    """
    _check(streams, concurrency)
    labels = list(streams)

    def subscribe(
        observer: abc.ObserverBase[Labelled[T | ErrorEvent]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        guard = threading.RLock()  # the streams may be of several threads, and who hears them is told one at a time

        def pass_on(index: int, item: T | ErrorEvent) -> None:
            # A subscriber's exception is its own, and no failure of the stream.
            try:
                observer.on_next(Labelled(labels[index], item))
            except Exception as error:
                running.dispose()
                observer.on_error(error)

        def end(index: int, error: Exception | None) -> None:
            if error is not None:
                pass_on(index, ErrorEvent(as_llm_error(error)))

        limit = concurrency or len(labels)
        sources = (_one_at_a_time(stream, guard) for stream in streams.values())
        running = Bounded(sources, limit, pass_on, end, observer.on_completed, observer.on_error)
        with guard:
            running.start(scheduler)
        return running

    return Stream(subscribe)


def _one_at_a_time(stream: Observable[T], guard: threading.RLock) -> Observable[T]:
    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        def on_next(item: T) -> None:
            with guard:
                observer.on_next(item)

        def on_error(error: Exception) -> None:
            with guard:
                observer.on_error(error)

        def on_completed() -> None:
            with guard:
                observer.on_completed()

        return stream.subscribe(on_next, on_error, on_completed, scheduler=scheduler)

    return Observable(subscribe)


def _check(streams: Mapping[str, object], concurrency: object) -> None:
    wrong: list[tuple[tuple[str, ...], str]] = []
    if not isinstance(streams, Mapping) or not streams:  # pyright: ignore[reportUnnecessaryIsInstance]
        wrong.append((("streams",), f"must be a mapping of labels to streams, at least one, not {streams!r}"))
    else:
        others = [label for label, each in streams.items() if not isinstance(each, Observable)]
        wrong += [(("streams", str(label)), f"is no Observable: {streams[label]!r}") for label in others]
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        wrong.append((("concurrency",), f"must be None or at least 1, not {concurrency!r}"))
    if wrong:
        raise ValidationError("invalid_option", errors=wrong)

"""Hold items back while a stream of booleans says so."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.operators._shared.operate import operate
from rxllm.runtime import (
    LIMIT,
    MAX_WAITING,
    Gate,
    Hold,
    LoopScheduler,
    Stream,
    call_context,
    clock,
    current_gate,
    fail,
    paced,
)
from rxllm.values import StreamError
from rxllm.values.argument_checks import check_count, check_instance, invalid_option, shown

T = TypeVar("T")


def gate(
    while_open: Observable[bool], maxsize: int = MAX_WAITING, *, limit: int | None = None
) -> Callable[[Observable[T]], Stream[T]]:
    """Let items through while the last boolean of `while_open` is True, and hold them back while it is False.

    ::

        source               --a-b-c-d-e-f--|
        while_open           T-----F-------T---
        gate(while_open)     --a-b---------(cdef)|

    >>> import reactivex
    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> approved = reactivex.timer(0.01).map(lambda _: True)
    >>> list(stream_generate(Fake(["Hello, ", "world"]), "Hi").pipe(ops.text(), gate(approved)))
    ['Hello, ', 'world']

    It is closed until the first boolean: write ``while_open.start_with(True)`` for a gate that begins open. Every item
    comes once and in order; the end waits behind them, and an ``on_error`` passes at once, without them. When
    `while_open` ends, an open gate stays open, and a closed one ends the stream with ``StreamError("cancelled")``,
    since nothing could open it any more; its error passes at once, and an item that is not a boolean is one.

    While `maxsize` items wait, a source that can wait does, down to its socket. One that cannot, such as a `Subject`,
    is cut off with ``StreamError("overflow")`` when more than `limit` items would wait, by default 65,536.
    A closed gate is a busy consumer: before it, `keep_latest` lets the newest alone wait, and `conflate` joins deltas.

    Raises ``ValidationError("invalid_option")`` for arguments of another kind.
    """
    check_instance("while_open", while_open, Observable, "an Observable of booleans")
    check_count("maxsize", maxsize)
    if limit is not None:
        check_count("limit", limit)
    most = max(LIMIT, maxsize) if limit is None else limit
    return operate(
        lambda source, observer, scheduler: _Gated(observer, maxsize, most, scheduler).start(source, while_open)
    )


class _Gated:
    """One subscription. The items that wait are those of `gate`, which slows the source down."""

    def __init__(
        self, observer: abc.ObserverBase[Any], maxsize: int, limit: int, scheduler: abc.SchedulerBase | None
    ) -> None:
        self._observer = observer
        self._limit = limit
        self._scheduler = scheduler
        self._clock = clock(scheduler)
        self._wake = SerialDisposable()
        self._lock = RLock()
        self._context = call_context()
        self._reader = current_gate.get()
        self._gate = Hold(min(maxsize, limit))
        self._gate.closed = True
        self._delivering = False
        self._waiting = False  # for the reader
        self._completed = False  # the source has
        self._over = False

    def start(self, source: Observable[Any], while_open: Observable[bool]) -> abc.DisposableBase:
        subscriptions = CompositeDisposable(self._wake)
        switch = paced(while_open, None)  # a button does not wait for the reader
        subscriptions.add(
            switch.subscribe(self._switch, self._fail, self._on_switch_completed, scheduler=self._scheduler)
        )
        if not self._over:
            items = paced(source, self._gate)
            subscriptions.add(items.subscribe(self._on_next, self._fail, self._on_completed, scheduler=self._scheduler))
        return subscriptions

    def _switch(self, is_open: Any) -> None:
        # Without the lock: whoever closes the gate does not wait for a delivery.
        if not isinstance(is_open, bool):  # the text "off" is true
            remedy = "write while_open.map(...) with a function that returns a boolean"
            self._fail(invalid_option("while_open", f"must emit True or False, not {shown(is_open)}; {remedy}"))
            return
        if not is_open:
            self._gate.closed = True
            return
        self._gate.let_through()
        if self._gate.waiting:
            self._soon()

    def _on_switch_completed(self) -> None:
        if self._gate.closed:
            fault = "gate() is closed for good: while_open ended, and its last item was not True"
            self._fail(StreamError("cancelled", f"{fault}; end it with True, or let it go on"))

    def _on_next(self, item: Any) -> None:
        with self._lock:
            if not (self._gate.closed or self._gate.waiting or self._delivering):
                self._deliver(item)
            elif len(self._gate.waiting) < self._limit:
                self._gate.waiting.append(item)
            else:
                self._cut_off()
            self._release()  # what has come during the delivery, or since the gate has opened
            if self._completed:
                self._end()

    def _cut_off(self) -> None:
        fault = f"the source does not wait for gate() to open: {self._limit} items wait"
        remedy = "thin them out with ops.keep_latest() or ops.conflate(), take a source that waits, such as that of"
        self._fail(StreamError("overflow", f"{fault}; {remedy} rxllm.from_async_iter(...), or pass a larger limit="))

    def _soon(self) -> None:
        # Whoever opens the gate may be on another thread; it should not do this work.
        if isinstance(self._clock, LoopScheduler) and self._clock.has_ended:
            self._fail(StreamError("cancelled", "the event loop of the stream is closed"))
        elif not self._wake.is_disposed:
            self._wake.disposable = self._clock.schedule(self._release_now)

    def _release_now(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        context = self._context.copy()  # whoever opens the gate has another
        with self._lock:
            try:
                context.run(self._release)
            except BaseException as error:  # raised by the subscriber; no caller would deliver it
                context.run(fail, self._observer, error)
            else:
                context.run(self._end)

    def _release(self) -> None:
        while self._gate.waiting and not (self._gate.closed or self._delivering):
            if self._reader is not None and self._reader.full:
                self._wait_for(self._reader)
                return
            self._deliver(self._gate.waiting[0])
            if not self._over:
                self._gate.take()  # once the reader has it: what waits for an idle reader must not see a gap

    def _wait_for(self, reader: Gate) -> None:
        if not self._waiting:
            self._waiting = True
            reader.when_open(self._reader_is_open)

    def _reader_is_open(self) -> None:
        self._waiting = False
        self._soon()

    def _deliver(self, item: Any) -> None:
        self._delivering = True
        try:
            self._observer.on_next(item)
        finally:
            self._delivering = False

    def _on_completed(self) -> None:
        with self._lock:
            self._completed = True
            self._end()

    def _end(self) -> None:
        if self._completed and not self._gate.waiting and not self._delivering:
            self._over = True
            self._wake.dispose()
            self._observer.on_completed()

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._over = True
            self._wake.dispose()
            self._gate.waiting.clear()
            self._observer.on_error(error)

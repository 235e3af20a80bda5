"""An Observable that can also be run, awaited and iterated.

Items reach a subscriber on the event loop that was running when it subscribed:

==================================  =============================================================================
thread that emits the item          delivery to the subscriber
==================================  =============================================================================
the subscriber's loop               immediate
another thread                      scheduled on the subscriber's loop; the items keep their order
any thread, if the subscriber has   immediate, on the thread that emits the item
no loop or its loop is closed
==================================  =============================================================================

If a timer or a scheduled call raises an exception, the subscription ends, and the exception is passed to ``on_error``
once.

``pipe`` and the operator methods return Streams too.
"""

from __future__ import annotations

import contextlib
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Generator, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from reactivex import Observable, abc, throw
from reactivex.disposable import Disposable
from reactivex.observer import AutoDetachObserver
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.runtime._clock import CallScheduler
from rxllm.runtime._reading import AsyncItems, Items, last, run
from rxllm.runtime._stream_methods import StreamMethods
from rxllm.runtime._unhandled import fail, report_unheard
from rxllm.runtime.back_pressure import LIMIT, as_read
from rxllm.runtime.context_variables import subscriber_error
from rxllm.runtime.portal import chosen_loop, running_loop, subscribing
from rxllm.runtime.stream_arguments import NotEncodable, Origin, check_operators
from rxllm.values import StreamError
from rxllm.values.advice import advice
from rxllm.values.argument_checks import invalid_option, must_be, shown

S = TypeVar("S")
T = TypeVar("T", covariant=True)
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_G = TypeVar("_G")
_H = TypeVar("_H")
_I = TypeVar("_I")


# The observer of a subscription that has no scheduler


class Subscriber(AutoDetachObserver[S], abc.DisposableBase):
    """Calls the user's functions until one of them raises an exception, or the stream ends.

    What their ``on_next`` raises ends the subscription and goes to their ``on_error`` directly. The operators between
    do not see it: one that emits at the end of its source could not pass an error on, and ``retry`` would take it for
    an error of the source.
    """

    def __init__(
        self, on_next: abc.OnNext[S] | None, on_error: abc.OnError | None, on_completed: abc.OnCompleted | None
    ) -> None:
        super().__init__(on_next, on_error, on_completed)
        self._has_on_error = on_error is not None

    def subscribe_to(self, source: abc.Subscription[S]) -> None:
        """Subscribe as ``Observable.subscribe`` does, but with no observer between the source and this one.

        On reactivex's current-thread scheduler, a source emits once its subscription can be disposed.
        """
        loop = running_loop()
        # While `run()` blocks the running loop, the stream runs on a different loop.
        entry = self if loop is None or chosen_loop() is not loop else _OnItsLoop(self, loop)
        timers = CallScheduler(self.end_with)

        def subscribe(*_: Any) -> None:
            try:
                subscription = cast(Any, source(entry, timers))
            except Exception as error:
                if self.is_stopped:
                    raise
                entry.on_error(error)
            else:
                self.subscription = subscription if hasattr(subscription, "dispose") else Disposable(subscription)

        current_thread = CurrentThreadScheduler.singleton()
        if current_thread.schedule_required():
            current_thread.schedule(subscribe)
        else:
            subscribe()

    def on_next(self, value: S) -> None:
        if self.is_stopped:
            return
        try:
            self._on_next(value)
        except Exception as error:
            if self.is_stopped or not self._has_on_error:
                raise
            token = subscriber_error.set(error)
            try:
                self.dispose()
            finally:
                subscriber_error.reset(token)
            try:
                self._on_error(error)
            except BaseException as unhandled:
                report_unheard(unhandled)

    def leave_source(self) -> None:
        """Dispose of the subscription to the source. What the source has emitted is still delivered."""
        self._subscription.dispose()

    def end_with(self, error: BaseException) -> None:
        """End the subscription with an exception that a timer or a scheduled call raised."""
        self.leave_source()
        if self.is_stopped:
            report_unheard(error)
        else:
            fail(self, error)


class _OnItsLoop(abc.ObserverBase[S]):
    """Calls `subscriber` on `loop`, where it subscribed."""

    def __init__(self, subscriber: Subscriber[S], loop: AbstractEventLoop) -> None:
        self._subscriber = subscriber
        self._emit = subscriber.on_next
        self._loop = loop
        self._thread = get_ident()  # on Python 3.11, this is faster than finding the running loop
        self._waiting: deque[Callable[[], None]] = deque()  # an item stays at the front until it has been delivered
        self._has_overflowed = False

    def on_next(self, value: S) -> None:
        if (get_ident() == self._thread and not self._waiting) or self._is_here:
            self._emit(value)
        elif len(self._waiting) < LIMIT:
            self._hand_over(lambda: self._emit(value))
        elif not self._has_overflowed:
            self._has_overflowed = True
            self._subscriber.leave_source()
            fault = f"{LIMIT} items are waiting for the subscriber's event loop, and the source cannot wait"
            remedy = "thin them out before they are pushed, as .throttle_first(0.1) does, or push them on that loop"
            self.on_error(StreamError("overflow", f"{fault}; {remedy}"))

    def on_error(self, error: Exception) -> None:
        if self._is_here:
            self._subscriber.on_error(error)
        else:
            self._hand_over(lambda: self._subscriber.on_error(error))

    def on_completed(self) -> None:
        if self._is_here:
            self._subscriber.on_completed()
        else:
            self._hand_over(self._subscriber.on_completed)

    @property
    def _is_here(self) -> bool:
        return (get_ident() == self._thread and not self._waiting) or self._loop.is_closed()

    def _hand_over(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the subscription has ended
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        try:
            self._waiting[0]()
        except BaseException as error:
            self._subscriber.end_with(error)
        finally:
            self._waiting.popleft()


# The Stream: an Observable that can also be run, awaited and iterated


_Any = Callable[[Any], Any]
_UNKNOWN = Origin()
_NOT_ENCODABLE = NotEncodable()


READ_TWICE = "the arguments of a call can be read only once; keep what you have read"


class Stream(StreamMethods[T]):
    """A cold Observable. Nothing happens until you subscribe or run it.

    >>> from reactivex import of
    >>> stream = Stream.of(of(1, 2, 3))
    >>> stream.run(), list(stream.map(str))
    (3, ['1', '2', '3'])
    """

    _origin = _UNKNOWN

    def __init__(self, subscribe: abc.Subscription[T] | None = None) -> None:
        self._not_encodable = _NOT_ENCODABLE
        super().__init__(subscribe)

    @staticmethod
    def _of_argument(argument: Any) -> Stream[Any]:
        """Return a stream that emits the whole argument of a tool. The stream can be read only once.

        The presence of this method is how `values` recognizes the class `Stream`.
        """
        items = [argument] if isinstance(argument, str) and argument else argument
        unread = [as_read(items)]
        return Deferred(lambda: unread.pop() if unread else throw(RuntimeError(READ_TWICE)))

    @classmethod
    def of(cls, source: Observable[_A]) -> Stream[_A]:
        """Return `source` as a Stream.

        Raises ``ValidationError("invalid_option")`` if `source` is not an Observable.
        """
        if not isinstance(source, Observable):  # pyright: ignore[reportUnnecessaryIsInstance]
            remedy = advice("arguments", "Stream.of")
            raise invalid_option("source", f"{must_be('an Observable', source)}; write {remedy}")

        def subscribe(observer: abc.ObserverBase[_A], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            return source.subscribe(observer, scheduler=scheduler)

        return source if isinstance(source, Stream) else Stream(subscribe)

    @overload
    def pipe(self, op1: Callable[[Observable[T]], Observable[_A]], /) -> Stream[_A]: ...
    @overload
    def pipe(
        self, op1: Callable[[Observable[T]], Observable[_A]], op2: Callable[[Observable[_A]], Observable[_B]], /
    ) -> Stream[_B]: ...
    @overload
    def pipe(
        self,
        op1: Callable[[Observable[T]], Observable[_A]],
        op2: Callable[[Observable[_A]], Observable[_B]],
        op3: Callable[[Observable[_B]], Observable[_C]],
        /,
    ) -> Stream[_C]: ...
    @overload
    def pipe(
        self,
        op1: Callable[[Observable[T]], Observable[_A]],
        op2: Callable[[Observable[_A]], Observable[_B]],
        op3: Callable[[Observable[_B]], Observable[_C]],
        op4: Callable[[Observable[_C]], Observable[_D]],
        /,
    ) -> Stream[_D]: ...
    @overload
    def pipe(
        self,
        op1: Callable[[Observable[T]], Observable[_A]],
        op2: Callable[[Observable[_A]], Observable[_B]],
        op3: Callable[[Observable[_B]], Observable[_C]],
        op4: Callable[[Observable[_C]], Observable[_D]],
        op5: Callable[[Observable[_D]], Observable[_E]],
        /,
    ) -> Stream[_E]: ...
    @overload
    def pipe(
        self,
        op1: Callable[[Observable[T]], Observable[_A]],
        op2: Callable[[Observable[_A]], Observable[_B]],
        op3: Callable[[Observable[_B]], Observable[_C]],
        op4: Callable[[Observable[_C]], Observable[_D]],
        op5: Callable[[Observable[_D]], Observable[_E]],
        op6: Callable[[Observable[_E]], Observable[_F]],
        /,
    ) -> Stream[_F]: ...
    @overload
    def pipe(
        self,
        op1: Callable[[Observable[T]], Observable[_A]],
        op2: Callable[[Observable[_A]], Observable[_B]],
        op3: Callable[[Observable[_B]], Observable[_C]],
        op4: Callable[[Observable[_C]], Observable[_D]],
        op5: Callable[[Observable[_D]], Observable[_E]],
        op6: Callable[[Observable[_E]], Observable[_F]],
        op7: Callable[[Observable[_F]], Observable[_G]],
        /,
    ) -> Stream[_G]: ...
    @overload
    def pipe(
        self,
        op1: Callable[[Observable[T]], Observable[_A]],
        op2: Callable[[Observable[_A]], Observable[_B]],
        op3: Callable[[Observable[_B]], Observable[_C]],
        op4: Callable[[Observable[_C]], Observable[_D]],
        op5: Callable[[Observable[_D]], Observable[_E]],
        op6: Callable[[Observable[_E]], Observable[_F]],
        op7: Callable[[Observable[_F]], Observable[_G]],
        op8: Callable[[Observable[_G]], Observable[_H]],
        /,
    ) -> Stream[_H]: ...
    @overload
    def pipe(
        self,
        op1: Callable[[Observable[T]], Observable[_A]],
        op2: Callable[[Observable[_A]], Observable[_B]],
        op3: Callable[[Observable[_B]], Observable[_C]],
        op4: Callable[[Observable[_C]], Observable[_D]],
        op5: Callable[[Observable[_D]], Observable[_E]],
        op6: Callable[[Observable[_E]], Observable[_F]],
        op7: Callable[[Observable[_F]], Observable[_G]],
        op8: Callable[[Observable[_G]], Observable[_H]],
        op9: Callable[[Observable[_H]], Observable[_I]],
        /,
    ) -> Stream[_I]: ...
    @overload
    def pipe(self, op1: Callable[[Observable[T]], _A], /) -> _A: ...
    @overload
    def pipe(self, op1: Callable[[Observable[T]], _A], op2: Callable[[_A], _B], /) -> _B: ...
    @overload
    def pipe(self, op1: Callable[[Observable[T]], _A], op2: Callable[[_A], _B], op3: Callable[[_B], _C], /) -> _C: ...
    @overload
    def pipe(
        self,
        op1: _Any,
        op2: _Any,
        op3: _Any,
        op4: _Any,
        op5: _Any,
        op6: _Any,
        op7: _Any,
        op8: _Any,
        op9: _Any,
        op10: _Any,
        /,
        *more: _Any,
    ) -> Any: ...
    def pipe(self, *operators: Callable[[Any], Any]) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Pass the stream through `operators`, from left to right.

        The result is a Stream, even if the last operator returns a plain Observable.

        Raises ``ValidationError("invalid_option")`` if an argument is not an operator. For example, ``ops.text``
        without parentheses is not one.
        """
        check_operators(operators)
        result: Any = self
        for operator in operators:
            result = operator(result)
        result = Stream.of(cast(Observable[Any], result)) if type(result) is Observable else result
        if self._origin is not _UNKNOWN and isinstance(result, Stream) and result._origin is _UNKNOWN:
            result._origin = self._origin.piped()
        return cast(Any, result)

    def subscribe(
        self,
        on_next: abc.ObserverBase[T] | abc.OnNext[T] | None = None,
        on_error: abc.OnError | None = None,
        on_completed: abc.OnCompleted | None = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> abc.DisposableBase:
        """Start a call, and return a disposable that ends it.

        If you do not pass a `scheduler`, reactivex's timers run on the call's event loop. If you subscribe while a loop
        is running, your functions are called on that loop. See also reactivex's ``Observable.subscribe``.
        """
        with subscribing():
            if scheduler is not None:
                return super().subscribe(on_next, on_error, on_completed, scheduler=scheduler)
            if callable(getattr(on_next, "on_next", None)):
                observer = cast(abc.ObserverBase[T], on_next)
                on_next, on_error, on_completed = observer.on_next, observer.on_error, observer.on_completed
            subscriber = Subscriber(cast(abc.OnNext[T] | None, on_next), on_error, on_completed)
            subscriber.subscribe_to(self._subscribe_core)
            return subscriber

    def __repr__(self) -> str:
        return self._origin.describe()

    if not TYPE_CHECKING:  # type checkers report unknown attributes by themselves

        def __getattr__(self, name: str) -> Any:
            methods = (method for method in dir(type(self)) if not method.startswith("_"))
            # Do not pass `obj` to the error. Otherwise, Python would append its own suggestion.
            raise AttributeError(self._origin.missing_attribute(name, methods), name=name)

    if not TYPE_CHECKING:

        def keys(self) -> Any:
            # FastAPI tries dict(stream). Without this method, that would make a call.
            raise TypeError(self._origin.still_to_run("a Stream is not a mapping"))

    def __add__(self, other: Observable[_A]) -> Stream[T | _A]:
        if not isinstance(other, Observable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(self._origin.still_to_run(f"a Stream cannot be added to {shown(other)}"))
        return self.concat(other)

    __iadd__ = __add__

    if not TYPE_CHECKING:

        def __getitem__(self, key: Any) -> Any:
            if not isinstance(key, int | slice):
                raise TypeError(self._origin.still_to_run(f"a Stream has no item {shown(key)}"))
            return super().__getitem__(key)

    @property
    def _whole(self) -> Observable[Any]:
        """The Observable that ``run`` and ``await`` read instead of this one."""
        return self

    def run(self, scheduler: abc.SchedulerBase | None = None) -> T:
        """Wait until the stream ends, and return its last item; see `rxllm.run`."""
        return run(self, scheduler)

    def __await__(self) -> Generator[Any, None, T]:
        return last(self).__await__()

    def __iter__(self) -> Items[T]:
        return Items(self)

    def __aiter__(self) -> AsyncItems[T]:
        return AsyncItems(self)


class Deferred(Stream[S]):
    """A Stream that calls `make` each time it is subscribed to.

    If `make` raises an exception, the exception is passed to ``on_error``.
    """

    def __init__(self, make: Callable[[], Observable[S]]) -> None:
        super().__init__()
        self._make = make

    def subscribe(
        self,
        on_next: abc.ObserverBase[S] | abc.OnNext[S] | None = None,
        on_error: abc.OnError | None = None,
        on_completed: abc.OnCompleted | None = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> abc.DisposableBase:
        try:
            source = self._make()
        except Exception as error:
            source = throw(error)
        return Stream.of(source).subscribe(on_next, on_error, on_completed, scheduler=scheduler)


def returned_by(
    function: str,
    stream: Stream[_A],
    model: str | None = None,
    items: type[Any] | str = "events",
    call: tuple[Any, Mapping[str, Any]] | None = None,
) -> Stream[_A]:
    """Set the `Origin` of `stream`, and return `stream`."""
    stream._origin = Origin(function, model or "", items, call)  # pyright: ignore[reportPrivateUsage]
    return stream


def call_of(stream: Observable[Any]) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the engine and the options with which `stream` was created, or None if they are unknown."""
    return stream._origin.call if isinstance(stream, Stream) else None  # pyright: ignore[reportPrivateUsage]

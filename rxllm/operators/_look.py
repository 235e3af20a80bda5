"""Operators that observe a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.operators._event_operators import handle_each, operate
from rxllm.runtime import Journal, Stream, current_scope, noting_times, scoped, stopwatch
from rxllm.values import Timed, Trace
from rxllm.values.argument_checks import check, check_classes, check_function

T = TypeVar("T")
E = TypeVar("E")


@overload
def tap(fn: Callable[[E], object], type: type[E], /, *types: type[E]) -> Callable[[Observable[T]], Stream[T]]: ...
@overload
def tap(fn: Callable[[T], object], /) -> Callable[[Observable[T]], Stream[T]]: ...
def tap(fn: Callable[[Any], object], /, *types: type[Any]) -> Callable[[Observable[Any]], Stream[Any]]:
    """Call ``fn(item)`` for each item, or only for the instances of `types`.

    ::

        source         --a--b--c--|
        tap(print)       a  b  c        (printed)
                       --a--b--c--|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> _ = stream_generate(Fake("Hi"), "Hello").pipe(tap(lambda event: print(event.delta), TextDelta)).run()
    Hi

    All items are emitted unchanged. If `fn` raises, the stream ends with that exception.

    Raises ``ValidationError("invalid_option")`` unless `fn` is a function and `types` are classes.
    """
    check_function("fn", fn)
    check_classes("types", types)

    def call(on_next: abc.OnNext[Any], on_error: abc.OnError) -> abc.OnNext[Any]:
        def on_item(item: Any) -> None:
            if not types or isinstance(item, types):
                try:
                    fn(item)
                except Exception as error:
                    on_error(error)
                    return
            on_next(item)

        return on_item

    return handle_each(call)


def trace(fn: Callable[[Trace], object]) -> Callable[[Observable[T]], Stream[T]]:
    """Call `fn` with a `Trace` of each signal.

    ::

        source      --a--b--|
        trace(fn)   --a--b--|        (fn: subscribe at 0, next at 2, next at 5, end at 8)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> seen = []
    >>> stream_generate(Fake("Hi"), "Hello").pipe(ops.text(), trace(seen.append), ops.trace(seen.append)).run()
    'Hi'
    >>> [(trace.kind, trace.count, trace.item) for trace in seen[-4:]]
    [('next', 0, 'Hi'), ('next', 0, 'Hi'), ('end', 1, None), ('end', 1, None)]

    The signals are the subscription, every item, and the completion, error or disposal. Times are in seconds since the
    subscription. Put a trace before and after an operator to see its delays. `fn` is called before the subscriber
    receives the signal. If `fn` raises, the stream ends with that exception.

    Raises ``ValidationError("invalid_option")`` unless `fn` is a function.
    """
    check_function("fn", fn)

    def start(
        source: Observable[T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        now = stopwatch(scheduler)
        started_at = now()
        count = 0
        over = False

        def call(kind: Literal["subscribe", "next", "error", "end", "dispose"], item: Any = None) -> bool:
            nonlocal over
            if over:
                return False
            over = kind in ("error", "end", "dispose")
            try:
                fn(Trace(kind, now() - started_at, count, item))
            except Exception as error:
                over = True
                observer.on_error(error)
                return False
            return True

        def on_next(item: T) -> None:
            nonlocal count
            if call("next", item):
                count += 1
                observer.on_next(item)

        def on_error(error: Exception) -> None:
            if call("error", error):
                observer.on_error(error)

        def on_completed() -> None:
            if call("end"):
                observer.on_completed()

        def on_dispose() -> None:
            call("dispose")

        if not call("subscribe"):
            return Disposable()
        subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(on_dispose))

    return operate(start)


def timed() -> Callable[[Observable[T]], Stream[Timed[T]]]:
    """Emit each item together with the time since the subscription.

    ::

        source     --a--b--|
        timed()    --A--B--|        (A: a at 2, B: b at 5)

    >>> from rxllm import Fake, operators as ops, stream
    >>> result = stream(Fake("Hi"), "Hello").pipe(timed(), ops.to_chat_result()).run()
    >>> result
    ChatResult('Hi', completed, 1 steps, 0 tokens)

    Times are in seconds. Put `timed` directly before an operator that folds the stream, such as `to_chat_result`. Other
    event operators do not accept `Timed` items. ``rxllm.timeline(result)`` draws the result's timeline. A notebook
    draws it too. The times are not part of the result's fields or its JSON.

    Upstream retries, fallbacks and races are recorded in the answer's metadata, under ``"retry"``, ``"fallback"``,
    ``"race"`` or ``"hedge"``. ``"began"`` is the number of seconds from the start of the first attempt to the start of
    the attempt that answered. ``"lost"`` lists the other attempts. Each has a `name`, an `error`, and the times at
    which it `began` and `ended`. The `error` of a disposed attempt is None. An answer that continued over another
    connection has ``"reattached"``, which lists the gaps. Each gap has its length (`seconds`), the number of seconds
    from its start to the end of the answer (`before`), and an `error`.
    """

    def start(
        source: Observable[T], observer: abc.ObserverBase[Timed[T]], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        now = stopwatch(scheduler)
        started_at = now()

        def on_next(item: T) -> None:
            observer.on_next(Timed(now() - started_at, item))

        notes = noting_times(source)
        return notes.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

    return operate(start)


_JOURNAL_METHODS = ("response", "tool", "begin", "finish")


def journaled(journal: Journal) -> Callable[[Observable[T]], Stream[T]]:
    """Record responses and tool calls in `journal`, and replay them.

    ::

        source                --start--H--e--l--l--o--Hello--end--|
        journaled(journal)    --start--H--e--l--l--o--Hello--end--|

    >>> from rxllm import Fake, ToolCall, stream, tool
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> class Printer:
    ...     def response(self, path, key, events): return events.finally_action(lambda: print("the model has answered"))
    ...     def tool(self, path, key): return None
    ...     async def begin(self, path, key, call): print(call, "begins")
    ...     async def finish(self, path, key, events): print("its outcome is", events[-1].content)
    >>> events = stream(Fake(ToolCall("c0", "double", {"x": 21}), "42"), "Double 21!", tools=[double])
    >>> events.pipe(journaled(Printer())).run().result
    the model has answered
    double(x=21) begins
    its outcome is 42
    the model has answered
    ChatResult('42', completed, 2 steps, 0 tokens)

    The journal covers everything upstream, including agents and all calls that tools make to a model. Events are not
    changed. When the same stream runs again, recorded requests and completed tool calls are replayed. Answers are
    recorded before operators change them. Operators receive replayed answers too, so guards and budgets still work.

    An interrupted tool call runs again if its tool is ``@tool(idempotent=True)``. Otherwise, the call stays in
    ``pending_tool_calls``, and the call's ``metadata["interrupted"]`` is True.

    ``rxllm.durable`` has a journal that writes to a database. To write your own, see `rxllm.runtime.Journal`.

    Raises ``ValidationError("invalid_option")`` unless `journal` has the methods of a `Journal`.
    """
    fits = all(callable(getattr(journal, name, None)) for name in _JOURNAL_METHODS) and not isinstance(journal, type)
    methods = ", ".join(_JOURNAL_METHODS)
    check("journal", journal, fits, f"an object with the methods {methods} (see rxllm.runtime.Journal)")

    def start(
        source: Observable[T], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        scope = replace(current_scope.get(), journal=journal)
        return scoped(source, scope).subscribe(observer, scheduler=scheduler)

    return operate(start)

"""Look at what passes without changing it: call a function, count, record, mark the place, note what is done."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.events import ErrorEvent
from rxllm.operators._event_operators import handle_each, operate
from rxllm.runtime import Journal, Stream, current_scope, scoped, stopwatch
from rxllm.values import Trace
from rxllm.values.argument_checks import check, check_classes, check_function

T = TypeVar("T")
E = TypeVar("E")


@overload
def tap(fn: Callable[[E], object], type: type[E], /, *types: type[E]) -> Callable[[Observable[T]], Stream[T]]: ...
@overload
def tap(fn: Callable[[T], object], /) -> Callable[[Observable[T]], Stream[T]]: ...
def tap(fn: Callable[[Any], object], /, *types: type[Any]) -> Callable[[Observable[Any]], Stream[Any]]:
    """Call ``fn(item)`` for every item that passes, or for those of `types`.

    ::

        source         --a--b--c--|
        tap(print)       a  b  c        (printed)
                       --a--b--c--|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> _ = stream_generate(Fake("Hi"), "Hello").pipe(tap(lambda event: print(event.delta), TextDelta)).run()
    Hi

    An exception of `fn` ends the stream.

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


def tally(fn: Callable[[Mapping[str, int]], object]) -> Callable[[Observable[T]], Stream[T]]:
    """Call `fn` once, when the stream is over, with the number of items of each class.

    ::

        source      --start--H--i--Hi--end--|
        tally(fn)   --start--H--i--Hi--end--|        (then fn({"MessageStarted": 1, "TextDelta": 2, ...}))

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> counted = stream_generate(Fake(["H", "i"]), "Hello").pipe(tally(print), ops.to_text())
    >>> counted.run()
    {'MessageStarted': 1, 'TextDelta': 2, 'TextCompleted': 1, 'MessageCompleted': 1}
    'Hi'

    Over is completed, failed or disposed; `fn` is called before the observer hears of it. An exception of `fn` after a
    normal end ends the stream with it. The events of agents all count as ``Nested``. For the number of all items there
    is reactivex's ``count`` method.

    Raises ``ValidationError("invalid_option")`` if `fn` is not a function.
    """
    check_function("fn", fn)

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        counts: Counter[str] = Counter()
        is_reported = False

        def on_next(item: T) -> None:
            counts[type(item).__name__] += 1
            observer.on_next(item)

        def report() -> None:
            nonlocal is_reported
            if not is_reported:
                is_reported = True
                fn(dict(counts))  # a copy, made at once: the dispose may be on another thread

        def on_error(error: Exception) -> None:
            try:
                report()
            except Exception as failure:
                failure.__cause__, error = error, failure
            observer.on_error(error)

        def on_completed() -> None:
            try:
                report()
            except Exception as error:
                observer.on_error(error)
            else:
                observer.on_completed()

        subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(report))

    return operate(subscribe)


def trace(fn: Callable[[Trace], object]) -> Callable[[Observable[T]], Stream[T]]:
    """Call `fn` with a `Trace` for the subscription, for each item, and for the end, the error or the dispose.

    ::

        source      --a--b--|
        trace(fn)   --a--b--|        (fn: subscribe at 0, next at 2, next at 5, end at 8)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> seen = []
    >>> stream_generate(Fake("Hi"), "Hello").pipe(ops.text(), trace(seen.append), ops.trace(seen.append)).run()
    'Hi'
    >>> [(trace.kind, trace.count, trace.item) for trace in seen[-4:]]
    [('next', 0, 'Hi'), ('next', 0, 'Hi'), ('end', 1, None), ('end', 1, None)]

    Times are in seconds on the subscription's clock. Two traces around an operator show how long it takes and what it
    holds back. `fn` is called before the observer; an exception of `fn` ends the stream.

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
        failed = False  # an exception of `fn`, which is not called again

        def call(kind: Literal["subscribe", "next", "error", "end", "dispose"], item: Any = None) -> bool:
            nonlocal over, failed
            over = over or kind in ("error", "end", "dispose")
            if failed:
                return False
            try:
                fn(Trace(kind, now() - started_at, count, item))
            except Exception as error:
                over = failed = True
                observer.on_error(error)
            return not failed

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
            if not over:
                call("dispose")

        if not call("subscribe"):
            return Disposable()
        subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(on_dispose))

    return operate(start)


def checkpoint(label: str) -> Callable[[Observable[T]], Stream[T]]:
    """Add a note to a passing error: the label, the line that built the checkpoint, the number of items before it.

    ::

        source             --a--b--X
        checkpoint("in")   --a--b--X        (X has a note: passed checkpoint 'in' (app.py:7) after 2 items)

    >>> from rxllm import Fake, StreamError, stream_generate
    >>> from rxllm import operators as ops
    >>> piped = stream_generate(Fake(["Hel", StreamError("truncated")]), "Hi").pipe(checkpoint("model"), ops.to_text())
    >>> try: piped.run()
    ... except StreamError as error: print(error.__notes__[0].partition(" (")[0])
    passed checkpoint 'model'

    A traceback shows the notes below the error; its frames are those of the loop that reads the stream, not of the
    pipe. The error in an ``ErrorEvent`` gets a note too. Notes are not part of an error's equality or JSON; no error
    gets the same note twice.

    Raises ``ValidationError("invalid_option")`` if `label` is not a string, or empty.
    """
    check("label", label, isinstance(label, str) and label != "", "a string, not empty")  # pyright: ignore[reportUnnecessaryIsInstance]
    caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    built_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        passed = 0

        def add_note(error: BaseException) -> None:
            note = f"passed checkpoint {label!r} ({built_at}) after {passed} items"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)

        def on_next(item: T) -> None:
            nonlocal passed
            if isinstance(item, ErrorEvent):
                add_note(item.error)
            passed += 1
            observer.on_next(item)

        def on_error(error: Exception) -> None:
            add_note(error)
            observer.on_error(error)

        return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)

    return operate(subscribe)


_METHODS = ("response", "tool", "begin", "finish")


def journaled(journal: Journal) -> Callable[[Observable[T]], Stream[T]]:
    """Note the responses and tools of a stream in `journal`, and answer from it what an earlier run has noted there.

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

    It holds for everything below, in agents and in the calls of tools too, and changes no event. A stream that is run
    again with what its journal has noted asks no model twice for what has been answered, and runs no tool that has
    finished; operators see the answers again, so guards judge and budgets count as before. A tool that had begun and
    not finished runs again if it is ``@tool(idempotent=True)``. Otherwise it is left to the caller, as a call that
    waits for approval; ``metadata["interrupted"]`` of the call in ``pending_tool_calls`` tells why. A journal notes the
    model's answers as they came, before operators change them.

    See `rxllm.runtime.Journal` for what it implements; ``rxllm.durable`` has one that keeps to a database.

    Raises ``ValidationError("invalid_option")`` for an object that is not a journal.
    """
    fits = all(callable(getattr(journal, name, None)) for name in _METHODS) and not isinstance(journal, type)
    check("journal", journal, fits, f"an object with the methods {', '.join(_METHODS)}, see rxllm.runtime.Journal")

    def start(
        source: Observable[T], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        scope = replace(current_scope.get(), journal=journal)
        return scoped(source, scope).subscribe(observer, scheduler=scheduler)

    return operate(start)

"""Call a function for what passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from reactivex import Observable, abc

from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check_classes, check_function

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

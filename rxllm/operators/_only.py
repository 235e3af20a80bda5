"""Keep some classes of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check_classes, invalid_option

E = TypeVar("E")


def only(*types: type[E]) -> Callable[[Observable[Any]], Stream[E]]:
    """Keep the items of these classes; a type checker knows what is left.

    ::

        source              --start--delta--delta--end--|
        only(TextDelta)     ---------delta--delta-------|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> list(stream_generate(Fake("Hi"), "Hello").pipe(only(TextDelta)))
    [TextDelta(delta='Hi', id='block_0')]

    The events of agents that run as tools are all `Nested`, so ``only(TextDelta)`` has the chat's own text; for that of
    the agents, take what is inside:

    >>> from reactivex import from_iterable
    >>> from rxllm import operators as ops
    >>> from rxllm.events import Nested
    >>> chat = from_iterable([TextDelta("Ask."), Nested(("c1",), TextDelta("Yes.")), Nested(("c2",), TextDelta("No."))])
    >>> list(chat.pipe(only(Nested)).filter(lambda nested: nested.path == ("c1",)).map(lambda nested: nested.event))
    [TextDelta(delta='Yes.', id=None)]

    Raises ``ValidationError("invalid_option")`` without arguments, and for one that is not a class.
    """
    if not types:
        raise invalid_option("types", "must be at least one class")
    check_classes("types", types)

    def keep(on_next: abc.OnNext[E], on_error: abc.OnError) -> abc.OnNext[Any]:
        def on_item(item: Any) -> None:
            if isinstance(item, types):
                on_next(item)

        return on_item

    return handle_each(keep)

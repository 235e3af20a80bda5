"""Let raw frames pass, or drop them."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.collector import innermost
from rxllm.events import Event, RawChunk
from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream
from rxllm.values import ProviderPart
from rxllm.values.argument_checks import check_instance


def include_raw_chunks(include: bool = False) -> Callable[[Observable[Event]], Stream[Event]]:
    """Drop ``RawChunk`` events, those of agents too, unless `include`; usage and message parts always pass.

    It cannot add chunks: the decoder emits them if the call has the option ``include_raw_chunks=True``.

    ::

        source                   --raw--delta--raw--delta--|
        include_raw_chunks()     -------delta-------delta--|

    >>> from rxllm import Fake, stream_generate
    >>> fake = Fake([("raw_chunk", {"x": 1}), "Hi"])
    >>> stream_generate(fake, "Hello", include_raw_chunks=True).pipe(include_raw_chunks()).to_list().run()[1]
    TextDelta(delta='Hi', id='block_0')

    Raises ``ValidationError("invalid_option")`` for a flag that is not True or False.
    """
    check_instance("include", include, bool, "True or False")

    def make_handler(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        def handle(event: Event) -> None:
            raw = innermost(event)
            if type(raw) is not RawChunk or raw.kind == "usage" or isinstance(raw.data, ProviderPart):
                on_next(event)

        return handle

    return Stream.of if include else handle_each(make_handler)
